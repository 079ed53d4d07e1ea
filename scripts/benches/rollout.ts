/**
 * A swap every second under load: 200 requests/s over keep-alive connections (half of them POSTs with
 * a body), 50 event streams and 20 tunnels, while other versions of the same service crash in a loop,
 * never get ready, and download slowly. Nothing may fail, be cut, or be executed twice.
 *
 * Nor may anybody wait long: for a whole answer, for an echo, or for the next event of a stream over
 * the 50 ms at which events are sent. `longest_wait_ms` is that as the clients saw it. Clients, Baton,
 * the old and the new program and the one that crashes share two cores here, so a wait also holds the
 * time in which one of the path's processes was ready to run and the kernel ran another; that part is
 * measured beside it (lib/core_waits.ts), and `longest_stall_ms`, the figure that has a limit, is the
 * longest wait without it. What Baton computes, and what it waits for itself (a `fork`, a file), stays
 * in it. `direct` are the same clients on a program of their own without Baton, at the same time, at a
 * tenth of the rate: nothing is taken off for them, they show what the machine was like.
 *
 *   scripts/bench rollout [--swaps 30] [--workers 2]
 */

import { spawn } from "node:child_process";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import {
  type BuildOptions,
  FileOracle,
  makeBuild,
  NODE,
  type TestBuild,
} from "../../test/support/builds.ts";
import { type BenchContext, type BenchResult, percentile, type RuntimeName } from "../lib/bench.ts";
import { CoreWaits } from "../lib/core_waits.ts";
import { Fleet, getJson, until } from "../lib/fleet.ts";
import { startLoad } from "../lib/load.ts";
import { startTunnels } from "../lib/tunnels.ts";

const REQUESTS_PER_S = 200;
const STREAMS = 50;
const TUNNELS = 20;
const SWAP_EVERY_MS = 1_000;
const EVENT_EVERY_MS = 50;
/** Waits up to this count as they are, whatever they were for. */
const WORTH_A_LOOK_MS = 10;
const CHILD = fileURLToPath(new URL("../../test/support/child_program.ts", import.meta.url));

interface Outcome {
  readonly failed: number;
  readonly cut: number;
  readonly executed_twice: number;
  /** Without the time for which the path's processes had no core. */
  readonly longest_stall_ms: number;
  readonly longest_wait_ms: number;
  readonly direct_longest_wait_ms: number;
  readonly p99_ms: number;
  readonly swaps: number;
  readonly requests: number;
  readonly streams: number;
  readonly tunnels: number;
}

export async function run(context: BenchContext): Promise<BenchResult> {
  const at = context.args.indexOf("--swaps");
  const swaps = at < 0 ? Math.floor(36 / context.runtimes.length) : Number(context.args[at + 1]);
  const workersAt = context.args.indexOf("--workers");
  const workers = workersAt < 0 ? 1 : Number(context.args[workersAt + 1]);
  const figures: Record<string, number> = {};
  const systems: Record<string, Record<string, number>> = {};
  for (const runtime of context.runtimes) {
    const outcome = await measure(context, runtime, swaps, workers);
    systems[`baton on ${runtime}`] = { ...outcome };
    figures[`${runtime}_swaps`] = outcome.swaps;
    figures[`${runtime}_longest_stall_ms`] = outcome.longest_stall_ms;
    for (const key of ["failed", "cut", "executed_twice"] as const) {
      figures[key] = (figures[key] ?? 0) + outcome[key];
    }
  }
  return {
    figures,
    systems,
    limits: {
      failed: ["==", 0],
      cut: ["==", 0],
      executed_twice: ["==", 0],
      ...Object.fromEntries(context.runtimes.flatMap((runtime) => [
        [`${runtime}_longest_stall_ms`, ["<=", 50] as const],
        [`${runtime}_swaps`, [">=", swaps] as const],
      ])),
    },
  };
}

async function measure(
  context: BenchContext,
  runtime: RuntimeName,
  swaps: number,
  workers: number,
): Promise<Outcome> {
  const fleet = new Fleet(runtime);
  const slow = await startSlowServer();
  const close: (() => void)[] = [() => slow.close()];
  try {
    const alone = await startAlone(fleet);
    close.push(() => alone.close());
    const oracle = new TroubledOracle(fleet.path("oracle"), slow.url);
    const ports = await fleet.ports();
    const baton = fleet.startBaton("baton", ports, {
      traffic: { workers },
      services: {
        shard: {
          mount: "/shard",
          versions: {
            oracle: `file:${oracle.path}`,
            binaryName: "child",
            dataDir: fleet.path("data"),
            bakeMs: 200,
          },
        },
      },
    });
    const builds: TestBuild[] = [];
    for (let n = 0; n <= swaps; n += 1) builds.push(await makeBuild({ id: `build-${n}` }));
    const [first, ...following] = builds;
    if (first === undefined) throw new Error("no builds");
    await oracle.publish("v1", first);
    const base = `${baton.traffic}/shard/v1`;
    const waits = new Waits();
    close.push(() => waits.stop());
    waits.cores.watch(baton.pid, "always");
    const current = async () => {
      const [build = "", pid = ""] = (await (await fetch(`${base}/who`)).text()).split(" ");
      waits.cores.watch(Number(pid), "either");
      return build;
    };
    await until("build-0", current, (build) => build === "build-0");
    await oracle.addTrouble();

    const load = startLoad({
      requestsPerS: REQUESTS_PER_S,
      request: (n) =>
        n % 2 === 0
          ? { url: `${base}/slow` }
          : { url: `${base}/execute`, method: "POST", body: `execution-${n}` },
      streams: STREAMS,
      stream: (n) => ({ url: `${base}/events?count=${20 + n % 40}&ms=${EVENT_EVERY_MS}` }),
      onWait: (kind, from, to) => waits.add(from, to, kind === "event" ? EVENT_EVERY_MS : 0),
    });
    const tunnels = startTunnels(`${base}/echo`, {
      count: TUNNELS,
      lifeMs: 2_000,
      everyMs: 100,
      onWait: (from, to) => waits.add(from, to, 0),
    });
    let directMs = 0;
    const direct = startLoad({
      requestsPerS: REQUESTS_PER_S / 10,
      request: () => ({ url: `${alone.url}/slow` }),
      streams: STREAMS / 10,
      stream: (n) => ({ url: `${alone.url}/events?count=${20 + n % 40}&ms=${EVENT_EVERY_MS}` }),
      onWait: (kind, from, to) => {
        const dueMs = kind === "event" ? EVENT_EVERY_MS : 0;
        if (waits.measuring) directMs = Math.max(directMs, to - from - dueMs);
      },
    });
    await pause(500);
    // The swaps are what is measured, not the first connections of seventy clients at once.
    waits.measuring = true;

    const begun = performance.now();
    for (const [n, next] of following.entries()) {
      await oracle.publish("v1", next);
      await until(next.id, current, (build) => build === next.id);
      await pause(Math.max(0, begun + (n + 1) * SWAP_EVERY_MS - performance.now()));
    }
    waits.measuring = false;
    const last = await load.stop();
    await direct.stop();
    const open = await tunnels.stop();
    const versions = await getJson(`${baton.admin}/api/v1/versions`);
    context.say(
      `${runtime}: ${last.requests} requests, ${last.streams} streams, ` +
        `${open.opened} tunnels over ${swaps} swaps; ${versions.versions?.length} versions beside`,
    );
    for (const reason of [...last.reasons, ...open.reasons].slice(0, 10)) {
      context.say(`  ${reason}`);
    }
    const executed = readFileSync(fleet.path("data", "v1", "executed.log"), "utf8")
      .trim().split("\n");
    return {
      failed: last.failed + open.failed,
      cut: last.cut + open.cut,
      executed_twice: executed.length - new Set(executed).size,
      longest_stall_ms: waits.longestStallMs(),
      longest_wait_ms: waits.longestMs,
      direct_longest_wait_ms: directMs,
      p99_ms: percentile(last.latenciesMs, 0.99),
      swaps,
      requests: last.requests,
      streams: last.streams,
      tunnels: open.opened,
    };
  } catch (error) {
    const lines = fleet.log("baton").split("\n").filter((line) => !line.includes('"request"'));
    for (const line of lines.slice(-40)) context.say(line.slice(0, 400));
    throw error;
  } finally {
    for (const one of close) one();
    await fleet.close();
  }
}

/** What clients had to wait for, less what was due, and how much of it was for a core. */
class Waits {
  readonly cores = new CoreWaits({ countsOwn: true });
  readonly #long: { readonly from: number; readonly to: number; readonly dueMs: number }[] = [];
  measuring = false;
  longestMs = 0;

  add(from: number, to: number, dueMs: number): void {
    if (!this.measuring) return;
    const waitedMs = to - from - dueMs;
    this.longestMs = Math.max(this.longestMs, waitedMs);
    if (waitedMs > WORTH_A_LOOK_MS) this.#long.push({ from, to, dueMs });
  }

  /** The longest wait without the time for cores; shorter ones than `WORTH_A_LOOK_MS` as they are. */
  longestStallMs(): number {
    let longest = Math.min(this.longestMs, WORTH_A_LOOK_MS);
    for (const { from, to, dueMs } of this.#long) {
      // Within what was due, a wait for a core made nobody wait.
      const late = from + dueMs;
      longest = Math.max(longest, to - late - this.cores.within(late, to));
    }
    return longest;
  }

  stop(): void {
    this.cores.stop();
  }
}

/** The child program by itself, for the clients that go to it without Baton. */
async function startAlone(fleet: Fleet): Promise<{ url: string; close(): void }> {
  const { traffic: port } = await fleet.ports();
  const child = spawn(NODE, [CHILD, "alone", "{}", "--data-dir", "", "--port", String(port)], {
    stdio: "ignore",
  });
  const url = `http://127.0.0.1:${port}`;
  await until("the program without Baton", () => fetch(`${url}/slow`), (answer) => answer.ok);
  return { url, close: () => child.kill("SIGKILL") };
}

/** The oracle of the bench: one good version, and three that are trouble. */
class TroubledOracle {
  readonly #inner: FileOracle;

  constructor(folder: string, slowUrl: string) {
    this.#inner = new FileOracle(folder);
    this.slowUrl = slowUrl;
  }

  readonly slowUrl: string;

  get path(): string {
    return this.#inner.path;
  }

  async publish(version: string, build: TestBuild): Promise<void> {
    await this.#inner.publish(version, build);
  }

  async addTrouble(): Promise<void> {
    const trouble: Record<string, BuildOptions> = {
      crashing: { id: "crashing", crashAfterMs: 300 },
      unready: { id: "unready", neverReady: true },
    };
    for (const [version, options] of Object.entries(trouble)) {
      await this.#inner.publish(version, await makeBuild(options));
    }
    await this.#inner.list("downloading", { sha256: "0".repeat(64), binary: this.slowUrl });
  }
}

/** Sends an artifact at a kilobyte a second, for ever. */
async function startSlowServer(): Promise<{ url: string; close(): void }> {
  const server = createServer((_request, response) => {
    response.writeHead(200, { "content-type": "application/zip" });
    const timer = setInterval(() => response.write(new Uint8Array(1024)), 1_000);
    response.on("close", () => clearInterval(timer));
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  return {
    url: `http://127.0.0.1:${port}/artifact.zip`,
    close: () => {
      server.close();
      server.closeAllConnections();
    },
  };
}

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
