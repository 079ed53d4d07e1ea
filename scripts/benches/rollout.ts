/**
 * A swap every second under load: 200 requests/s over keep-alive connections (half of them POSTs with
 * a body), 50 event streams and 20 tunnels, while other versions of the same service crash in a loop,
 * never get ready, and download slowly. Nothing may fail, be cut, or be executed twice.
 *
 *   scripts/bench rollout [--swaps 30] [--workers 2]
 */

import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { readFileSync } from "node:fs";
import {
  type BuildOptions,
  FileOracle,
  makeBuild,
  type TestBuild,
} from "../../test/support/builds.ts";
import { type BenchContext, type BenchResult, percentile, type RuntimeName } from "../lib/bench.ts";
import { Fleet, getJson, until } from "../lib/fleet.ts";
import { startLoad } from "../lib/load.ts";
import { startTunnels } from "../lib/tunnels.ts";

const REQUESTS_PER_S = 200;
const STREAMS = 50;
const TUNNELS = 20;
const SWAP_EVERY_MS = 1_000;

interface Outcome {
  readonly failed: number;
  readonly cut: number;
  readonly executed_twice: number;
  readonly longest_stall_ms: number;
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
  try {
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
    const current = async () => await (await fetch(`${base}/slow`)).text();
    await until("build-0", current, (build) => build === "build-0");
    await oracle.addTrouble();

    const load = startLoad({
      requestsPerS: REQUESTS_PER_S,
      request: (n) =>
        n % 2 === 0
          ? { url: `${base}/slow` }
          : { url: `${base}/execute`, method: "POST", body: `execution-${n}` },
      streams: STREAMS,
      stream: (n) => ({ url: `${base}/events?count=${20 + n % 40}&ms=50` }),
    });
    const tunnels = startTunnels(`${base}/echo`, { count: TUNNELS, lifeMs: 2_000, everyMs: 100 });
    await pause(500);
    // The swaps are what is measured, not the first connections of seventy clients at once.
    load.report.longestStallMs = 0;
    tunnels.report.longestStallMs = 0;

    const begun = performance.now();
    for (const [n, next] of following.entries()) {
      await oracle.publish("v1", next);
      await until(next.id, current, (build) => build === next.id);
      await pause(Math.max(0, begun + (n + 1) * SWAP_EVERY_MS - performance.now()));
    }
    const last = await load.stop();
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
      longest_stall_ms: Math.max(streamStall(last.longestStallMs), open.longestStallMs),
      p99_ms: percentile(last.latenciesMs, 0.99),
      swaps,
      requests: last.requests,
      streams: last.streams,
      tunnels: open.opened,
    };
  } finally {
    await fleet.close();
    slow.close();
  }
}

/** Streams send every 50 ms, so that much of a wait is not a stall. */
function streamStall(waitMs: number): number {
  return Math.max(0, waitMs - 50);
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
