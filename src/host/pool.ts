/**
 * A pool in the host: its workers, their lanes in the index, and the service that chooses among them.
 */

import type { PoolConfig } from "../config/pool.ts";
import { ApproximateIndex, SPECULATION_TTL_MS } from "../kv/approximate.ts";
import type { Lifecycle } from "../lifecycle/mod.ts";
import type { Log } from "../observe/log.ts";
import type { Metrics } from "../observe/metrics.ts";
import { SessionAffinity } from "../router/affinity.ts";
import { HealthProbe } from "../router/health_probe.ts";
import { InheritedLoad } from "../router/inherited_load.ts";
import { LoadBook } from "../router/load.ts";
import { loadTokenizer } from "../router/load_tokenizer.ts";
import { createPoolHints } from "../router/pool_hints.ts";
import { PoolMembers } from "../router/pool_members.ts";
import { PoolService } from "../router/pool_service.ts";
import type { PoolWorker } from "../router/pool_worker.ts";
import { PromptTokens } from "../router/prompt_tokens.ts";
import { Reservations } from "../router/reservations.ts";
import { createRouteMetrics, observeWorkers } from "../router/route_metrics.ts";
import { Selector } from "../router/selector.ts";
import { WorkerChoice } from "../router/worker_choice.ts";
import { WorkerWait } from "../router/worker_wait.ts";
import type { Runtime } from "../runtime/runtime.ts";
import type { HostedService } from "./hosted.ts";
import type { KvRoom } from "./kv_room.ts";
import { kubernetesWorkers } from "./pool_kubernetes.ts";
import {
  generationWorkers,
  listedWorkers,
  type TargetsOfVersions,
  type WorkerSource,
} from "./pool_sources.ts";
import { targetStatus } from "./upstream.ts";

export interface HostPoolOptions {
  readonly runtime: Runtime;
  readonly log: Log;
  readonly metrics: Metrics;
  readonly lifecycle: Lifecycle;
  readonly name: string;
  readonly mounts: readonly string[];
  readonly config: PoolConfig;
  readonly kv: KvRoom;
  /** The supervisor of a versions service; asked once all services are built. */
  readonly supervisor: (service: string) => TargetsOfVersions | undefined;
}

/** Builds it. Throws an Error that names the key of a tokenizer file that cannot be used. */
export async function hostPool(options: HostPoolOptions): Promise<HostedService> {
  const { runtime, lifecycle, name, mounts, config, kv } = options;
  const { clock, random, http } = runtime;
  const { model, group, blockSize, health, maxBodyBytes, tokenizeTimeoutMs } = config;
  const log = options.log.with({ service: name });
  const approximate = (size: number, ttlMs: number): Promise<ApproximateIndex> =>
    ApproximateIndex.create({ clock, blockSize: size, ttlMs });
  const speculative = await approximate(blockSize, SPECULATION_TTL_MS);
  const decisions = await approximate(blockSize, config.approximateTtlMs);
  const texts = await approximate(config.textChunkBytes, config.approximateTtlMs);
  const tokenizer = await loadTokenizer(runtime.files, name, config.tokenizer);
  const members = new PoolMembers({
    model,
    group,
    blockSize,
    store: kv.store,
    listeners: kv.workers,
    clock,
    log,
    maxInflight: config.maxInflight,
    probeFailures: health?.failures,
  });
  const inherited = new InheritedLoad(clock);
  const load = new LoadBook(inherited);
  const sessions = new SessionAffinity({ clock, ttlMs: config.sessionTtlMs });
  const metrics = createRouteMetrics(options.metrics, name, load);
  observeWorkers(options.metrics, name, () => members.list());
  const choice = new WorkerChoice({
    ...config,
    clock,
    random,
    members,
    load,
    sessions,
    metrics,
    store: kv.store,
    speculative,
    decisions,
    texts,
  });
  const wait = new WorkerWait({
    clock,
    timeoutMs: config.holdTimeoutMs,
    maxWaiting: config.maxHeld,
  });
  const reservations = new Reservations({
    clock,
    book: load,
    isSchedulable: ({ worker }) => members.get(worker)?.available === true,
  });
  kv.selectors.push(
    new Selector({ model, group, blockSize, members, choice, load, reservations }),
  );
  kv.hints.push(createPoolHints({ model, group, members, load, inherited, sessions }));
  members.listen({
    joined: () => wait.wake(),
    left: ({ id }) => {
      choice.forgetSupposed(id);
      sessions.forget(id);
      inherited.forget(id);
      reservations.releaseWorker(id);
    },
  });
  const service = new PoolService({
    ...config,
    name,
    mounts,
    adapters: new Set(config.adapters),
    clock,
    http,
    members,
    choice,
    wait,
    metrics,
    tokenizer,
    asksWorkers: tokenizeTimeoutMs > 0,
    prompts: new PromptTokens({
      http,
      clock,
      timeoutMs: tokenizeTimeoutMs,
      onSource: (source) => metrics.read(source),
    }),
  });
  const probe = health === undefined
    ? undefined
    : new HealthProbe({ ...health, http, clock, workers: () => members.list() });
  let source: WorkerSource | undefined;

  return {
    service,
    threaded: {
      service,
      byVersion: false,
      pool: { maxBodyBytes, tokenizer: config.tokenizer, tokenizeTimeoutMs },
      readsFirst: () => members.anyAvailable,
      direct: () => [],
      onChange: (listener) => members.listen({ joined: listener, left: listener }),
    },
    start: async () => {
      source = sourceOf(options, log);
      await source.start(members);
      probe?.start();
      log.info("pool_started", { model, workers: members.list().length });
      // Generations make the host available themselves, once there is one.
      if (!("versions" in config.workers)) lifecycle.available();
    },
    part: {
      name,
      quiesce: () => {
        source?.stop();
        probe?.stop();
        // Lanes stay to the end: other replicas may recover from them.
        members.freeze();
        return Promise.resolve();
      },
      drain: async () => {
        await Promise.all((source?.owned() ?? []).map((target) => target.retire()));
      },
      stop: () => {
        reservations.close();
        for (const index of [speculative, decisions, texts]) index.close();
        return Promise.resolve();
      },
      kill: () => {
        source?.stop();
        probe?.stop();
        return Promise.resolve();
      },
    },
    // Generations are reported by the service that runs them.
    targets: () => (source?.owned() ?? []).map(targetStatus),
    workers: () => members.list().map((worker) => workerStatus(worker, options, load)),
  };
}

function sourceOf(options: HostPoolOptions, log: Log): WorkerSource {
  const { name, runtime, config: { workers } } = options;
  if ("kubernetes" in workers) {
    return kubernetesWorkers({ runtime, log, service: name, workers: workers.kubernetes });
  }
  if (!("versions" in workers)) return listedWorkers(name, workers);
  const supervisor = options.supervisor(workers.versions);
  if (supervisor === undefined) {
    throw new Error(`services.${name}.pool.workers.versions: no service ${workers.versions}`);
  }
  return generationWorkers(supervisor, workers);
}

/** A worker with its lanes, for `/api/v1/workers`. */
function workerStatus(
  worker: PoolWorker,
  { name, kv, config: { model, group } }: HostPoolOptions,
  load: LoadBook,
): Readonly<Record<string, unknown>> {
  const { id, url, dpRank, healthy, lastError, target } = worker;
  const lanes = kv.store.lanes().filter(({ key }) =>
    key.worker === id && key.model === model && key.group === group
  );
  return {
    service: name,
    worker: id,
    url,
    healthy,
    ready: worker.available,
    full: worker.full,
    ...(lastError === undefined ? {} : { lastError }),
    leases: target.leases,
    load: load.load({ worker: id, dpRank }),
    lanes: lanes.map((lane) => ({
      dpRank: lane.key.dpRank,
      state: lane.state,
      epoch: lane.epoch,
      cursor: lane.cursor?.toString(),
      blocks: lane.blocks,
      ...(lane.lastError === undefined ? {} : { lastError: lane.lastError }),
    })),
  };
}
