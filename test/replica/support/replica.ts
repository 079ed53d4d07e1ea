/** One replica for tests: a real store, a peer listener with `/dump`, and a recovery. */

import { Hono } from "hono";
import * as v from "valibot";
import { type ReplicaConfig, replicaSchema } from "../../../src/config/replica.ts";
import { KvStore } from "../../../src/kv/kv_store.ts";
import type { Lane } from "../../../src/kv/lane.ts";
import type { LaneKey } from "../../../src/kv/lane_key.ts";
import { PrefixIndex } from "../../../src/kv/prefix_index.ts";
import { requireToken } from "../../../src/http/token.ts";
import { createMetrics, type Metrics } from "../../../src/observe/metrics.ts";
import { type Log, silentLog } from "../../../src/observe/log.ts";
import { createDumpHandler } from "../../../src/replica/dump_handler.ts";
import { createDumpMetrics } from "../../../src/replica/dump_metrics.ts";
import { staticDiscovery } from "../../../src/replica/discovery.ts";
import type { Discovery } from "../../../src/replica/peer_view.ts";
import { createRecovery, type Recovery } from "../../../src/replica/recovery.ts";
import { createRecoveryMetrics } from "../../../src/replica/recovery_metrics.ts";
import type { HttpServer } from "../../../src/runtime/runtime.ts";
import { runtime } from "../../support/runtime.ts";

export { until } from "../../support/until.ts";

export function testStore(): KvStore<PrefixIndex> {
  return new KvStore({
    clock: runtime.clock,
    random: runtime.random,
    createIndex: (options) => PrefixIndex.create(options),
    hashBytes: () => 0n,
    laneLimits: { replayBackoffMs: 5 },
  });
}

export function laneKey(worker: string, more: Partial<LaneKey> = {}): LaneKey {
  return { model: "model", group: "default", worker, dpRank: 0, ...more };
}

/** A configuration for tests: a machine that is busy with other things uses up no budget. */
export function replicaConfig(more: Record<string, unknown> = {}): ReplicaConfig {
  return v.parse(replicaSchema, {
    subscribeTimeoutMs: 0,
    idleTimeoutMs: 60_000,
    recoveryBudgetMs: 200_000,
    ...more,
  });
}

export interface TestReplica {
  readonly id: string;
  readonly store: KvStore<PrefixIndex>;
  readonly recovery: Recovery;
  readonly metrics: Metrics;
  readonly emitted: { kind: string; fields: Record<string, unknown> }[];
  readonly conditions: { ok: boolean; reason: string }[];
  readonly url: string;
  close(): Promise<void>;
}

export interface TestReplicaOptions {
  readonly peers?: readonly string[];
  readonly discovery?: Discovery;
  readonly config?: Record<string, unknown>;
  readonly token?: string;
  readonly lanes?: readonly LaneKey[];
  readonly blockSize?: number;
  readonly log?: Log;
  readonly maxDumps?: number;
  readonly exportLoad?: () => Iterable<unknown>;
  readonly importLoad?: (records: readonly unknown[]) => void;
  /** Replaces the peer listener's app; gets the real one. */
  readonly wrap?: (
    app: Hono,
  ) => (request: Request) => Response | Promise<Response>;
}

const open = new Set<TestReplica>();

/** Closes what a failed test left open, so that the process can end. */
export async function closeAll(): Promise<void> {
  for (const replica of [...open]) await replica.close();
}

/** Opens the lanes and the listener; the recovery is not started. */
export async function testReplica(options: TestReplicaOptions = {}): Promise<TestReplica> {
  const store = testStore();
  const id = runtime.random.uuid();
  const metrics = createMetrics();
  const log = options.log ?? silentLog;
  const emitted: TestReplica["emitted"] = [];
  const conditions: TestReplica["conditions"] = [];
  const peers = options.peers ?? [];
  const config = replicaConfig({ peers: ["http://127.0.0.1:1"], ...options.config });
  const recovery = createRecovery({
    runtime,
    log,
    metrics: createRecoveryMetrics(metrics),
    events: {
      emit: (kind, fields = {}) => {
        emitted.push({ kind, fields });
        return { id: emitted.length, ts: "", kind };
      },
    },
    store,
    discovery: options.discovery ?? staticDiscovery(peers, undefined),
    config,
    replica: id,
    ...(options.token === undefined
      ? {}
      : { readToken: () => Promise.resolve(options.token ?? "") }),
    setCondition: (ok, reason) => conditions.push({ ok, reason }),
    ...(options.importLoad === undefined ? {} : { importLoad: options.importLoad }),
  });
  const app = createDumpHandler({
    runtime,
    log,
    metrics: createDumpMetrics(metrics),
    store,
    replica: id,
    recovered: () => recovery.recovered,
    offers: (lane) => recovery.offers(lane),
    hasSource: () => recovery.hasSource,
    ...(options.maxDumps === undefined ? {} : { maxDumps: options.maxDumps }),
    ...(options.exportLoad === undefined ? {} : { exportLoad: options.exportLoad }),
  });
  const peer = options.token === undefined ? app : guarded(app, options.token);
  const fetch = options.wrap?.(peer) ?? ((request: Request) => peer.fetch(request));
  const server: HttpServer = await runtime.http.serve(
    { address: { kind: "tcp", host: "127.0.0.1", port: 0 } },
    (request) => fetch(request),
  );
  const port = server.address.kind === "tcp" ? server.address.port : 0;
  for (const key of options.lanes ?? []) {
    await store.open(key, { blockSize: options.blockSize ?? 4 });
  }
  const replica: TestReplica = {
    id,
    store,
    recovery,
    metrics,
    emitted,
    conditions,
    url: `http://127.0.0.1:${port}`,
    async close() {
      open.delete(replica);
      recovery.stop();
      store.closeAll();
      await server.destroy();
    },
  };
  open.add(replica);
  return replica;
}

/** As the peer listener does it. */
function guarded(app: Hono, token: string): Hono {
  return new Hono().use(requireToken(() => Promise.resolve(token))).route("/", app);
}

/** A replica that has "recovered" from nobody and can be a source. */
export async function sourceReplica(options: TestReplicaOptions = {}): Promise<TestReplica> {
  const replica = await testReplica({ ...options, config: { ...options.config, peers: [] } });
  replica.recovery.start();
  await replica.recovery.done;
  return replica;
}

/** Blocks `first` to `first + count` of the sequence `name`, as a batch of one stored event. */
export function store(
  lane: Lane,
  seq: number | bigint,
  name: bigint,
  first: number,
  count: number,
): void {
  lane.receive({ seq: BigInt(seq), events: [storedEvent(name, first, count)] });
}

export function storedEvent(name: bigint, first: number, count: number) {
  const blockSize = 4;
  const hash = (at: number): bigint => BigInt.asUintN(64, name * 0x9e3779b97f4a7c15n + BigInt(at));
  return {
    kind: "stored" as const,
    parent: first === 0 ? undefined : hash(first - 1),
    hashes: BigUint64Array.from({ length: count }, (_, at) => hash(first + at)),
    tokens: tokensOf(name, first, count),
    blockSize,
    tier: "device" as const,
  };
}

export function tokensOf(name: bigint, first: number, count: number): Uint32Array {
  return Uint32Array.from(
    { length: count * 4 },
    (_, at) => (Number(name % 100_000n) * 1000 + first * 4 + at) >>> 0,
  );
}

/** What a lane holds, comparable: sorted rows of (parent engine, engine, local, tiers, copies). */
export function contentOf(lane: Lane): string[] {
  const { blocks } = lane.cut();
  const rows: string[] = [];
  for (let row = 0; row < blocks.count; row += 1) {
    const parent = blocks.parents[row] as number;
    rows.push([
      parent < 0 ? "root" : blocks.engines[parent],
      blocks.engines[row],
      blocks.locals[row],
      blocks.tiers[row],
      blocks.copies[row],
    ].join(" "));
  }
  return rows.sort();
}
