/**
 * The state side of the host: the index with its lanes, the dump that other replicas take from it,
 * and the recovery that fills it before the host says that it is ready.
 */

import type { Hono } from "hono";
import type { ReplicaConfig } from "../config/replica.ts";
import { readSecret } from "../config/secret.ts";
import { createIndexerApi, type PeerRegister } from "../http/indexer.ts";
import { createSelectionApi } from "../http/selection.ts";
import { createKvStore, type IndexStore } from "../kv/create_kv_store.ts";
import { EventsDoor } from "../kv/events_door.ts";
import { KvWorkers } from "../kv/workers.ts";
import { Admission } from "../lifecycle/admission.ts";
import type { Lifecycle } from "../lifecycle/mod.ts";
import type { EventJournal } from "../observe/events.ts";
import type { Log } from "../observe/log.ts";
import type { Metrics } from "../observe/metrics.ts";
import { createDiscovery, staticDiscovery } from "../replica/discovery.ts";
import { createDumpHandler } from "../replica/dump_handler.ts";
import { createDumpMetrics } from "../replica/dump_metrics.ts";
import { joinedDiscovery } from "../replica/joined_discovery.ts";
import type { Discovery } from "../replica/peer_view.ts";
import { predecessorUrls } from "../replica/predecessors.ts";
import { createRecovery, type Recovery } from "../replica/recovery.ts";
import { createRecoveryMetrics } from "../replica/recovery_metrics.ts";
import { RegisteredPeers } from "../replica/registered_peers.ts";
import type { PoolHints } from "../router/pool_hints.ts";
import type { Selector } from "../router/selector.ts";
import type { Runtime } from "../runtime/runtime.ts";
import { readTlsFiles } from "./listeners.ts";

export interface KvRoomOptions {
  readonly runtime: Runtime;
  readonly log: Log;
  readonly metrics: Metrics;
  readonly events: EventJournal;
  readonly lifecycle: Lifecycle;
  /** Absent: this Baton runs alone, and its index begins empty. */
  readonly replica: ReplicaConfig | undefined;
  /** Resolves after the first complete listing of every pool's workers. */
  readonly workersListed: Promise<void>;
}

export interface KvRoom {
  readonly store: IndexStore;
  /** Listens to workers' events; pools register theirs. */
  readonly workers: KvWorkers;
  /** For the peer listener: the dump, the indexer API, `POST /events`, the selection API. */
  readonly apps: readonly Hono[];
  /** The pools' choices, for the selection API; each pool adds its own. */
  readonly selectors: Selector[];
  /** What the pools tell replicas that recover from us, and take from those that we recover from. */
  readonly hints: PoolHints[];
  /** True once this replica may serve from its index. */
  readonly recovered: boolean;
  start(): void;
  /** Resolves the next time that nobody is being given a dump. */
  dumpsEnd(): Promise<void>;
  stop(): Promise<void>;
  peers(): readonly unknown[];
  recovery(): Readonly<Record<string, unknown>>;
}

const CONDITION = "recovery";

export async function createKvRoom(options: KvRoomOptions): Promise<KvRoom> {
  const { runtime, log, metrics, events, lifecycle, replica } = options;
  const { clock, random } = runtime;
  const store = await createKvStore({ clock, random, log, metrics });
  const workers = new KvWorkers({ store, net: runtime.net, clock, random, log });
  const door = new EventsDoor({ store, clock });
  // Names this run: a restarted replica is another one, whose index begins empty.
  const id = random.uuid();
  const hints: PoolHints[] = [];
  const registered = new RegisteredPeers({ httpsOnly: replica?.tls !== undefined });
  let discovery: Discovery | undefined;
  let recovery: Recovery | undefined;
  if (replica !== undefined) {
    const { token, tls } = replica;
    // Also now, so that files that are not there stop the start.
    if (tls !== undefined) await readTlsFiles(runtime, tls);
    const predecessors = predecessorUrls(replica);
    discovery = joinedDiscovery([
      staticDiscovery(predecessors, undefined),
      createDiscovery({ runtime, log, config: replica }),
      registered,
    ]);
    lifecycle.conditions.set(CONDITION, false, "not begun");
    recovery = createRecovery({
      runtime,
      log,
      metrics: createRecoveryMetrics(metrics),
      events,
      store,
      discovery,
      config: replica,
      replica: id,
      ...(replica.predecessors === undefined ? {} : { predecessors }),
      ...(token === undefined ? {} : { readToken: () => readSecret(runtime, token) }),
      ...(tls === undefined ? {} : { readTls: () => readTlsFiles(runtime, tls) }),
      workersListed: options.workersListed,
      setCondition: (ok, reason) => lifecycle.conditions.set(CONDITION, ok, reason),
      importLoad: (records) => {
        const taken = hints.map((one) => one.take(records));
        const loads = taken.reduce((sum, one) => sum + one.loads, 0);
        const sessions = taken.reduce((sum, one) => sum + one.sessions, 0);
        log.info("recovery_load_taken", { records: records.length, loads, sessions });
      },
    });
    lifecycle.reportReady(() => ({ recovery_complete: recovery?.recovered ?? true }));
  }
  const dumps = new Admission();
  const recovered = (): boolean => recovery?.recovered ?? true;
  const dump = createDumpHandler({
    runtime,
    log,
    metrics: createDumpMetrics(metrics),
    store,
    replica: id,
    recovered,
    hasSource: () => recovery?.hasSource ?? false,
    offers: (lane) => recovery?.offers(lane) ?? false,
    running: dumps,
    exportLoad: function* () {
      for (const one of hints) yield* one.tell();
    },
    ...(replica === undefined
      ? {}
      : { maxDumps: replica.maxDumps, idleTimeoutMs: replica.idleTimeoutMs }),
  });
  const selectors: Selector[] = [];
  const indexer = createIndexerApi({
    store,
    workers,
    events: door,
    peers: peerRegister(discovery, registered),
  });
  return {
    store,
    workers,
    selectors,
    hints,
    apps: [dump, indexer, createSelectionApi({ selectors: () => selectors, random })],
    get recovered() {
      return recovered();
    },
    start: () => recovery?.start(),
    dumpsEnd: () => dumps.idle(),
    stop: async () => {
      recovery?.stop();
      discovery?.stop();
      await workers.stop();
      store.closeAll();
    },
    peers: () => discovery?.current() ?? [],
    recovery: () => ({ replica: id, ...(recovery?.status() ?? { state: "recovery_disabled" }) }),
  };
}

/** Lists the peers of the configuration too; only those that were added can be taken off. */
function peerRegister(
  discovery: Discovery | undefined,
  registered: RegisteredPeers,
): PeerRegister {
  return {
    list: () => discovery?.current().map((peer) => peer.url) ?? registered.list(),
    add: (url) => registered.add(url),
    remove: (url) => registered.remove(url),
  };
}
