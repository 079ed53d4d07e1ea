/**
 * A Baton that routes to mock inference workers, as the child of a Baton that rolls it: everything as
 * real processes and sockets, events over ZeroMQ. For tests of what a swap of the router keeps.
 */

import { writeFile } from "node:fs/promises";
import { laneId } from "../../src/kv/lane_key.ts";
import { readDump } from "../../src/replica/dump_reader.ts";
import {
  basePort,
  batonCommand,
  type BatonProcess,
  runVerb,
  startBatonProcess,
} from "./baton_process.ts";
import { FakeEngine } from "./fake_engine.ts";
import { type MockWorker, startMockWorker } from "./mock_worker.ts";
import { runtime } from "./runtime.ts";
import { until } from "./scratch.ts";

export const MODEL = "org/model:one";
export const TOKEN = "known-to-all-replicas";
const VERSION = "r1";

/** A worker whose cache really fills, and which tells so like a real engine. */
export interface EngineWorker {
  readonly id: string;
  readonly mock: MockWorker;
  readonly engine: FakeEngine;
}

/** `ringBatches` is how far back an engine can be asked: little, so that it is no help to a joiner. */
export async function startWorkers(
  count: number,
  options: { blockSize: number; ringBatches: number },
): Promise<EngineWorker[]> {
  return await Promise.all(Array.from({ length: count }, async (_, n) => {
    const id = `w${n}`;
    const engine = await FakeEngine.start({ runtime, ...options, seed: n + 1 });
    const mock = await startMockWorker({
      id,
      model: MODEL,
      blockSize: options.blockSize,
      decodeMsPerToken: 1,
      events: {
        stored: (parent, blocks) => {
          engine.raw({
            type: "BlockStored",
            block_hashes: blocks.map(({ hash }) => hash),
            parent_block_hash: parent ?? null,
            token_ids: blocks.flatMap(({ tokens }) => tokens),
            block_size: options.blockSize,
            lora_id: null,
            medium: "GPU",
            lora_name: null,
            extra_keys: blocks.map(() => null),
          });
          engine.publish();
        },
        removed: (hashes) => {
          engine.remove(hashes);
          engine.publish();
        },
      },
    });
    return { id, mock, engine };
  }));
}

export async function stopWorkers(workers: readonly EngineWorker[]): Promise<void> {
  await Promise.all(workers.flatMap(({ mock, engine }) => [mock.close(), engine.close()]));
}

/** The pool that all routers of a test have. */
export function poolOf(
  workers: readonly EngineWorker[],
  blockSize: number,
): Record<string, unknown> {
  return {
    mount: "/v1",
    pool: {
      model: MODEL,
      blockSize,
      workers: workers.map(({ id, mock, engine }) => ({
        id,
        url: mock.url,
        kvEvents: engine.endpoint,
        replay: engine.replayEndpoint,
      })),
    },
  };
}

export interface GenerationStatus {
  readonly generation: number;
  readonly role: string;
  readonly buildId: string;
  readonly pid: number;
  readonly adminPort: number;
  readonly peerPort: number;
  readonly ready: boolean;
}

/** What a router says of its recovery. */
export interface RecoveryReport {
  readonly state: string;
  readonly bytes: number;
  readonly lanes: Readonly<Record<string, number>>;
  readonly attempts: readonly { readonly peer: string; readonly outcome: string }[];
}

export interface RolledRouter {
  readonly outer: BatonProcess;
  /** Where the version's requests go: put `/v1/...` behind it. */
  readonly url: string;
  publish(buildId: string): Promise<void>;
  generations(): Promise<readonly GenerationStatus[]>;
  /** Waits for a generation of the build that has the role (by default: serves, and is ready). */
  generation(
    buildId: string,
    is?: (one: GenerationStatus) => boolean,
  ): Promise<GenerationStatus>;
  /** The end of what the version's processes printed. */
  childLog(): Promise<string>;
}

/** Starts the outer one; `inner` is the configuration of its child, beside the ports. */
export async function startRolledRouter(
  folder: string,
  inner: Readonly<Record<string, unknown>>,
  versions: Readonly<Record<string, unknown>> = {},
): Promise<RolledRouter> {
  await writeFile(
    `${folder}/inner.json`,
    JSON.stringify({ shutdown: { announceMs: 0 }, traffic: { accessLog: false }, ...inner }),
  );
  const outer = await startBatonProcess(folder, {
    services: {
      router: {
        mount: "/",
        versions: {
          oracle: `file:${folder}/versions.json`,
          binaryName: "baton",
          command: [
            ...["{binary}", "serve", "--config", `${folder}/inner.json`],
            ...["--port", "{port}", "--admin-port", "{adminPort}", "--peer-port", "{peerPort}"],
            ...["--data-dir", "{dataDir}"],
          ],
          basePort: basePort(),
          bakeMs: 100,
          drainPollMs: 20,
          killGraceMs: 10_000,
          ...versions,
        },
      },
    },
    traffic: { generationHeader: true, accessLog: false },
    shutdown: { announceMs: 0, budgetMs: 60_000 },
  });
  const generations = async (): Promise<readonly GenerationStatus[]> => {
    const { versions } = await (await fetch(`${outer.admin}/api/v1/versions`)).json();
    return versions[0]?.generations ?? [];
  };
  return {
    outer,
    url: `${outer.traffic}/${VERSION}`,
    publish: async (buildId) => {
      const config = `${folder}/baton.json`;
      const file = await writeBuild(folder, buildId);
      const done = await runVerb(["publish", VERSION, file, "--config", config]);
      if (done.code !== 0) throw new Error(done.stderr);
    },
    generations,
    generation: async (buildId, is = (one) => one.role === "current" && one.ready) => {
      let found: GenerationStatus | undefined;
      await until(async () => {
        found = (await generations()).find((one) => one.buildId === buildId && is(one));
        return found !== undefined;
      }, `a generation of build ${buildId}`);
      return found as GenerationStatus;
    },
    childLog: async () => {
      const args = ["logs", VERSION, "--lines", "60", "--config", `${folder}/baton.json`];
      return (await runVerb(args)).stdout;
    },
  };
}

/** A program that is Baton, but for what it says of its build. */
async function writeBuild(folder: string, buildId: string): Promise<string> {
  const { command, args } = batonCommand([]);
  const words = [command, ...args].map((word) => `'${word}'`).join(" ");
  const file = `${folder}/${buildId}`;
  await writeFile(
    file,
    `#!/bin/sh\ncase "$1" in\n  --print-binary-version) echo ${buildId}; exit 0;;\n` +
      `  --print-*) echo "unknown flag: $1" >&2; exit 2;;\nesac\nexec ${words} "$@"\n`,
  );
  return file;
}

/** What a router says of its recovery; undefined while it does not answer yet. */
export async function recoveryOf(adminPort: number): Promise<RecoveryReport | undefined> {
  try {
    return await (await fetch(`http://127.0.0.1:${adminPort}/api/v1/recovery`)).json();
  } catch {
    return undefined;
  }
}

/** A whole index, comparable: for each lane its cursor and its blocks. */
export type Index = Readonly<Record<string, { cursor: string | undefined; blocks: string[] }>>;

/** Takes a dump and reads it to its verified end. */
export async function indexOf(peer: string): Promise<Index> {
  const response = await fetch(`${peer}/dump`, { headers: { authorization: `Bearer ${TOKEN}` } });
  if (response.body === null || response.status !== 200) {
    throw new Error(`no dump: ${response.status} ${await response.text()}`);
  }
  const index: Record<string, { cursor: string | undefined; blocks: string[] }> = {};
  await readDump(response.body, {
    lane: () => true,
    commit: ({ key, cursor, blocks }) => {
      const rows = Array.from({ length: blocks.count }, (_, row) => {
        const parent = blocks.parents[row] as number;
        const above = parent < 0 ? "root" : blocks.engines[parent];
        return `${above} ${blocks.engines[row]} ${blocks.locals[row]} ${blocks.tiers[row]}`;
      });
      index[laneId(key)] = { cursor: cursor?.toString(), blocks: rows.sort() };
    },
  }, { clock: runtime.clock, maxLaneBlocks: 1e6 });
  return index;
}

/** Both indexes once they have come to the same cursors: events may still be on their way. */
export async function indexesAtRest(one: string, other: string): Promise<[Index, Index]> {
  let both: [Index, Index] | undefined;
  await until(async () => {
    both = [await indexOf(one), await indexOf(other)];
    const [ours, theirs] = both;
    return Object.keys(ours).length === Object.keys(theirs).length &&
      Object.entries(ours).every(([id, { cursor }]) => theirs[id]?.cursor === cursor);
  }, "the same cursors");
  return both as [Index, Index];
}
