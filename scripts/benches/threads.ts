/**
 * What a second thread of the data path brings: 1 KiB answers over keep-alive connections, with one
 * thread and with two.
 *
 * On two cores the load and the upstream need a share of both, so requests/s cannot double here. What
 * can be shown is that the cost of a request stays the same (no lock, no shared queue), which is
 * what near-linear scaling rests on, and that two threads use the second core: requests/s of both
 * where the proxy may use one core and where it may use two, the load on the same cores each time.
 *
 *   scripts/bench threads
 */

import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type BenchContext, type BenchResult, type Limit, median } from "../lib/bench.ts";
import { freePort, Pinned, untilListening, wrk } from "../lib/pinned.ts";
import { needPrograms } from "../lib/bench.ts";

const ALL_CORES = "0,1";
const LOAD_CORE = 1;
/** The kernel spreads connections by a hash: with few of them one thread may get most. */
const CONNECTIONS = 128;
const ROUNDS = 3;
const SECONDS = 2;

interface Run {
  readonly rps: number;
  readonly cpuUs: number;
  readonly p99Ms: number;
  readonly failed: number;
}

export async function run(context: BenchContext): Promise<BenchResult> {
  needPrograms({ nginx: "nginx", wrk: "wrk" });
  const folder = mkdtempSync(join(tmpdir(), "baton-bench-"));
  const running: Pinned[] = [];
  const figures: Record<string, number> = {};
  const limits: Record<string, Limit> = {};
  const systems: Record<string, Record<string, number>> = {};
  try {
    const upstream = await startUpstream(folder, running);
    for (const runtime of context.runtimes) {
      const runs = new Map<number, Run[]>([[1, []], [2, []]]);
      const servers = new Map<number, { process: Pinned; port: number }>();
      for (const threads of runs.keys()) {
        const file = join(context.root, "scripts/lib/threads_under_test.ts");
        const command = context.command(runtime, file, String(upstream), String(threads));
        const process = new Pinned(`${runtime} ${threads}`, ALL_CORES, command);
        running.push(process);
        servers.set(threads, { process, port: await process.printedPort() });
      }
      for (let round = -1; round < ROUNDS; round++) {
        for (const [threads, { process, port }] of servers) {
          const before = process.cpuUs();
          const load = { connections: CONNECTIONS, seconds: round < 0 ? 1 : SECONDS };
          const result = await wrk(LOAD_CORE, port, load);
          if (round < 0) continue;
          const cpuUs = (process.cpuUs() - before) / result.requests;
          runs.get(threads)?.push({ ...result, cpuUs });
        }
      }
      for (const { process } of servers.values()) await process.stop();
      const of = (threads: number, key: keyof Run) =>
        median((runs.get(threads) ?? []).map((one) => one[key]));
      for (const threads of runs.keys()) {
        systems[`${runtime}, threads: ${threads}`] = {
          rps: of(threads, "rps"),
          cpu_us_per_request: of(threads, "cpuUs"),
          p99_ms: of(threads, "p99Ms"),
        };
      }
      figures[`${runtime}_rps_2_over_1`] = of(2, "rps") / of(1, "rps");
      figures[`${runtime}_cpu_per_request_2_over_1`] = of(2, "cpuUs") / of(1, "cpuUs");
      figures[`${runtime}_failed`] = [...runs.values()].flat()
        .reduce((sum, { failed }) => sum + failed, 0);
      limits[`${runtime}_cpu_per_request_2_over_1`] = ["<=", 1.25];
      limits[`${runtime}_failed`] = ["==", 0];
    }
    return { figures, limits, systems };
  } finally {
    for (const process of running) await process.stop();
    rmSync(folder, { recursive: true, force: true });
  }
}

async function startUpstream(folder: string, running: Pinned[]): Promise<number> {
  const port = await freePort();
  const file = join(folder, "upstream.conf");
  const paths = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
    .map((name) => `${name}_temp_path ${folder}/${name};`).join(" ");
  writeFileSync(
    file,
    `daemon off; worker_processes 1; error_log /dev/null; pid ${folder}/upstream.pid;
     events { worker_connections 4096; }
     http { access_log off; keepalive_requests 100000000; keepalive_timeout 65s; ${paths}
       server { listen 127.0.0.1:${port} backlog=4096; location / { return 200 "${
      "x".repeat(1024)
    }"; } } }`,
  );
  running.push(new Pinned("upstream", LOAD_CORE, ["nginx", "-p", folder, "-c", file]));
  await untilListening(port);
  return port;
}
