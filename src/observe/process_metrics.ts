/**
 * Gauges of our own process, the same on both runtimes: read from /proc where there is one, and the
 * event loop's delay by a timer.
 */

import type { Runtime } from "../runtime/runtime.ts";
import type { Metrics } from "./metrics.ts";

const PROBE_MS = 500;
/** Linux counts CPU time in USER_HZ, which is 100 on every architecture that it runs on. */
const TICKS_PER_SECOND = 100;

/** Registers the gauges and starts the delay probe; the returned function stops it. */
export function observeProcess(
  runtime: Pick<Runtime, "name" | "version" | "files" | "clock">,
  metrics: Metrics,
): () => void {
  const { clock, files } = runtime;
  metrics.gauge("baton_info", "The runtime that Baton runs on; always 1.", ["runtime", "version"])
    .set(1, { runtime: runtime.name, version: runtime.version });
  metrics.gauge("process_start_time_seconds", "Start of the process, seconds since 1970.")
    .set(Math.round(clock.now() / 1000));
  const memory = metrics.gauge("process_resident_memory_bytes", "Resident memory.");
  const cpu = metrics.gauge("process_cpu_seconds", "User and system CPU time so far.");
  const descriptors = metrics.gauge("process_open_fds", "Open file descriptors.");
  metrics.beforeScrape(async () => {
    try {
      const status = await files.readText("/proc/self/status");
      memory.set(Number(/^VmRSS:\s+(\d+) kB$/m.exec(status)?.[1] ?? 0) * 1024);
      // The command name may hold spaces and parentheses: fields are counted after the last one.
      const stat = await files.readText("/proc/self/stat");
      const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
      cpu.set((Number(fields[11]) + Number(fields[12])) / TICKS_PER_SECOND);
      descriptors.set((await files.list("/proc/self/fd")).length);
    } catch {
      // No /proc on this system: these gauges stay at zero.
    }
  });

  const delay = metrics.histogram(
    "baton_event_loop_delay_seconds",
    `How late a timer came, probed every ${PROBE_MS} ms.`,
    [],
    [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5],
  );
  let cancel = (): void => {};
  const probe = (): void => {
    const due = clock.monotonic() + PROBE_MS;
    cancel = clock.after(PROBE_MS, () => {
      delay.observe(Math.max(0, clock.monotonic() - due) / 1000);
      probe();
    });
  };
  probe();
  return () => cancel();
}
