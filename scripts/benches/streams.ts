/**
 * streams: 1,000 event streams with 20 events a second each through one proxy on one core.
 *
 * The delay of an event is from its write to its arrival, by the machine's monotonic clock. Added is a
 * percentile of the delays through Baton less the same percentile of a hundred streams that the same
 * client has open at the same upstream at the same time without a proxy: what these two processes are
 * late by themselves is in both. Time in which Baton was ready to run and the kernel ran others on its
 * core is taken off the first (lib/core_waits.ts; nothing on a machine that does nothing else);
 * `p99_ms` of the systems is with it. What piles up meanwhile is not taken off: with a `waited_share`
 * of more than a few percent the machine was measured, not Baton.
 *
 * Memory is the growth of the proxy's resident set (`rss` of /proc/<pid>/stat, garbage included, no
 * collection forced) from no stream to a thousand, flowing for seconds, in a process that has served
 * 300 streams before; divided by a thousand, the highest of what is measured in the first round.
 * A stream is two sockets, so the kernel's own memory for them is not in it.
 */

import { join } from "node:path";
import { once } from "node:events";
import type { BenchContext, BenchResult, Limit } from "../lib/bench.ts";
import { median } from "../lib/bench.ts";
import { Pinned } from "../lib/pinned.ts";

const PROXY_CORE = 0;
const LOAD_CORE = 1;
const STREAMS = 1000;
const EVENTS_PER_SECOND = 20;
const ROUNDS = 3;
const WARM_STREAMS = 300;

interface Delays {
  readonly events: number;
  readonly closed: number;
  /** Of the time measured, the part in which the proxy waited for its core. */
  readonly waited_share: number;
  readonly p50_us: number;
  readonly p99_us: number;
  readonly own_p50_us: number;
  readonly own_p99_us: number;
  readonly direct_p50_us: number;
  readonly direct_p99_us: number;
}

export async function run(context: BenchContext): Promise<BenchResult> {
  const load = join(context.root, "scripts/lib/streams_load.ts");
  const upstream = new Pinned(
    "upstream",
    LOAD_CORE,
    context.command("node", load, "serve", String(EVENTS_PER_SECOND)),
  );
  const running = [upstream];
  const figures: Record<string, number> = {};
  const limits: Record<string, Limit> = {};
  const systems: Record<string, Record<string, number>> = {};
  try {
    const upstreamPort = await upstream.printedPort();
    const seconds = context.runtimes.length > 1 ? 2 : 4;
    const proxies = new Map<string, { process: Pinned; port: number; perStream: number[] }>();
    for (const runtime of context.runtimes) {
      const file = join(context.root, "scripts/lib/proxy_under_test.ts");
      const process = new Pinned(
        runtime,
        PROXY_CORE,
        context.command(runtime, file, String(upstreamPort)),
      );
      running.push(process);
      proxies.set(runtime, { process, port: await process.printedPort(), perStream: [] });
    }
    const measured = new Map<string, Delays[]>();
    const measure = async (name: string, port: number, proxy: Pinned, streams = STREAMS) => {
      const pid = proxy.process.pid ?? 0;
      const duration = streams === STREAMS ? seconds : 1;
      const numbers = [port, streams, duration, upstreamPort, pid].map(String);
      const command = context.command("node", load, "ask", ...numbers);
      const client = new Pinned("client", LOAD_CORE, command);
      while (!client.output.includes("measured") && client.process.exitCode === null) {
        await new Promise((resolve) => setTimeout(resolve, 20));
      }
      const rss = proxy.rssBytes();
      if (client.process.exitCode === null) await once(client.process, "exit");
      measured.set(name, [
        ...measured.get(name) ?? [],
        JSON.parse(client.output.split("\n")[0] ?? ""),
      ]);
      return rss;
    };
    // Code is compiled, and the garbage collector's young space has grown, before memory is measured:
    // what counts is the price of a stream.
    for (const [runtime, proxy] of proxies) {
      await measure(`warm ${runtime}`, proxy.port, proxy.process, WARM_STREAMS);
    }
    for (let round = 0; round < ROUNDS; round++) {
      for (const [runtime, proxy] of proxies) {
        const before = proxy.process.rssBytes();
        const cpuBefore = proxy.process.cpuUs();
        const rss = await measure(runtime, proxy.port, proxy.process);
        const delays = measured.get(runtime)?.at(-1);
        context.say(
          `${runtime}: cpu ${Math.round((proxy.process.cpuUs() - cpuBefore) / 1000)} ms, ` +
            `rss ${Math.round(before / 1024)} -> ${
              Math.round(rss / 1024)
            } KiB, p99 ${delays?.p99_us} us`,
        );
        // From the second round on the growth is hidden by what the first one left for reuse.
        if (round === 0) proxy.perStream.push((rss - before) / STREAMS / 1024);
      }
    }
    const middle = (name: string, key: keyof Delays) =>
      median((measured.get(name) ?? []).map((delays) => delays[key]));
    for (const [runtime, proxy] of proxies) {
      systems[runtime] = {
        p50_ms: middle(runtime, "p50_us") / 1000,
        p99_ms: middle(runtime, "p99_us") / 1000,
        direct_p50_ms: middle(runtime, "direct_p50_us") / 1000,
        direct_p99_ms: middle(runtime, "direct_p99_us") / 1000,
        events: middle(runtime, "events"),
        waited_share: middle(runtime, "waited_share"),
      };
      const added = (own: keyof Delays, direct: keyof Delays) =>
        median((measured.get(runtime) ?? []).map((one) => one[own] - one[direct])) / 1000;
      figures[`${runtime}_added_p99_ms`] = added("own_p99_us", "direct_p99_us");
      figures[`${runtime}_added_p50_ms`] = added("own_p50_us", "direct_p50_us");
      figures[`${runtime}_rss_kib_per_stream`] = Math.max(...proxy.perStream);
      figures[`${runtime}_events_share`] = middle(runtime, "events") /
        (STREAMS * EVENTS_PER_SECOND * seconds);
      figures[`${runtime}_closed`] = Math.max(
        ...(measured.get(runtime) ?? []).map((one) => one.closed),
      );
      limits[`${runtime}_added_p99_ms`] = ["<=", 5];
      limits[`${runtime}_rss_kib_per_stream`] = ["<=", 40];
      limits[`${runtime}_events_share`] = [">=", 0.97];
      limits[`${runtime}_closed`] = ["==", 0];
    }
    return { figures, limits, systems };
  } finally {
    for (const process of running) await process.stop();
  }
}
