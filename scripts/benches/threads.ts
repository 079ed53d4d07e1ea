/**
 * What a second thread of the data path brings: 1 KiB answers over keep-alive connections, with one
 * thread and with two.
 *
 * On two cores the load and the upstream need a share of both, so requests/s cannot double here. What
 * can be shown is that the cost of a request stays the same (no lock, no shared queue), which is
 * what near-linear scaling rests on, and that two threads use the second core: requests/s of both
 * where the proxy may use one core and where it may use two, the load on the same cores each time.
 *
 * With `--pool` the requests are chat completions of a pool of two workers, which the main thread
 * decides about one by one. Then its own CPU time for a request is what bounds the whole: it is
 * compared with that of a Baton in which one thread does everything.
 *
 *   scripts/bench threads [--pool]
 */

import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import {
  type BenchContext,
  type BenchResult,
  type Limit,
  median,
  needPrograms,
  type RuntimeName,
} from "../lib/bench.ts";
import { freePort, Pinned, untilListening, wrk } from "../lib/pinned.ts";

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
  readonly mainCpuUs: number;
}

export async function run(context: BenchContext): Promise<BenchResult> {
  needPrograms({ nginx: "nginx", wrk: "wrk" });
  const isPool = context.args.includes("--pool");
  const folder = mkdtempSync(join(tmpdir(), "baton-bench-"));
  const running: Pinned[] = [];
  const figures: Record<string, number> = {};
  const limits: Record<string, Limit> = {};
  const systems: Record<string, Record<string, number>> = {};
  try {
    const upstream = await startUpstream(folder, running);
    const script = isPool ? { script: chatScript(folder) } : {};
    for (const runtime of context.runtimes) {
      const runs = new Map<number, Run[]>([[1, []], [2, []]]);
      const servers = new Map<number, Server>();
      for (const threads of runs.keys()) {
        const process = isPool
          ? await startPool(context, runtime, threads, upstream, folder)
          : await startProxy(context, runtime, threads, upstream);
        running.push(process.process);
        servers.set(threads, process);
      }
      for (let round = -1; round < ROUNDS; round++) {
        for (const [threads, { process, port }] of servers) {
          const before = process.cpuUs();
          const load = { connections: CONNECTIONS, seconds: round < 0 ? 1 : SECONDS, ...script };
          const mainBefore = process.mainThreadCpuUs();
          const result = await wrk(LOAD_CORE, port, load);
          if (round < 0) continue;
          const cpuUs = (process.cpuUs() - before) / result.requests;
          const mainCpuUs = (process.mainThreadCpuUs() - mainBefore) / result.requests;
          runs.get(threads)?.push({ ...result, cpuUs, mainCpuUs });
        }
      }
      for (const { process } of servers.values()) await process.stop();
      const of = (threads: number, key: keyof Run) =>
        median((runs.get(threads) ?? []).map((one) => one[key]));
      for (const threads of runs.keys()) {
        systems[`${runtime}, threads: ${threads}`] = {
          rps: of(threads, "rps"),
          cpu_us_per_request: of(threads, "cpuUs"),
          main_thread_us_per_request: of(threads, "mainCpuUs"),
          p99_ms: of(threads, "p99Ms"),
        };
      }
      figures[`${runtime}_rps_2_over_1`] = of(2, "rps") / of(1, "rps");
      figures[`${runtime}_cpu_per_request_2_over_1`] = of(2, "cpuUs") / of(1, "cpuUs");
      figures[`${runtime}_failed`] = [...runs.values()].flat()
        .reduce((sum, { failed }) => sum + failed, 0);
      if (isPool) {
        figures[`${runtime}_main_thread_2_over_1`] = of(2, "mainCpuUs") / of(1, "mainCpuUs");
        limits[`${runtime}_main_thread_2_over_1`] = ["<=", 0.5];
      } else limits[`${runtime}_cpu_per_request_2_over_1`] = ["<=", 1.25];
      limits[`${runtime}_failed`] = ["==", 0];
    }
    return { figures, limits, systems };
  } finally {
    for (const process of running) await process.stop();
    rmSync(folder, { recursive: true, force: true });
  }
}

interface Server {
  readonly process: Pinned;
  readonly port: number;
}

async function startProxy(
  context: BenchContext,
  runtime: RuntimeName,
  threads: number,
  upstream: number,
): Promise<Server> {
  const file = join(context.root, "scripts/lib/threads_under_test.ts");
  const command = context.command(runtime, file, String(upstream), String(threads));
  const process = new Pinned(`${runtime} ${threads}`, ALL_CORES, command);
  return { process, port: await process.printedPort() };
}

/** All of Baton, with the upstream as both workers of a pool. */
async function startPool(
  context: BenchContext,
  runtime: RuntimeName,
  threads: number,
  upstream: number,
  folder: string,
): Promise<Server> {
  const port = await freePort();
  const name = `${runtime}-${threads}`;
  const file = join(folder, `${name}.json`);
  const workers = ["a", "b"].map((id) => ({ id, url: `http://127.0.0.1:${upstream}` }));
  writeFileSync(
    file,
    JSON.stringify({
      stateDir: join(folder, name),
      listen: { traffic: `127.0.0.1:${port}`, admin: "127.0.0.1:0" },
      traffic: { workers: threads, accessLog: false },
      services: { chat: { mount: "/", pool: { model: "m", tokenizeTimeoutMs: 0, workers } } },
      shutdown: { announceMs: 0 },
      log: { level: "error" },
    }),
  );
  const main = join(context.root, "src/main.ts");
  const process = new Pinned(name, ALL_CORES, context.command(runtime, main, "--config", file));
  await untilListening(port);
  return { process, port };
}

/** Chats of 8 KiB, each with a beginning that 16 share. */
function chatScript(folder: string): string {
  const file = join(folder, "chat.lua");
  writeFileSync(
    file,
    `local bodies = {}
     for n = 1, 256 do
       local system = string.rep("rule " .. (n % 16) .. " of the house. ", 200)
       local turn = string.rep("question " .. n .. "? ", 300)
       bodies[n] = '{"model":"m","stream":false,"messages":[{"role":"system","content":"' ..
         system .. '"},{"role":"user","content":"' .. turn .. '"}]}'
     end
     local at = 0
     function request()
       at = at % 256 + 1
       return wrk.format("POST", "/chat/completions", nil, bodies[at])
     end`,
  );
  return file;
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
