/**
 * A pool in the host: its workers, their lanes in the index, and the service that chooses among them.
 */

import type { PoolConfig } from "../config/pool.ts";
import { ApproximateIndex, SPECULATION_TTL_MS } from "../kv/approximate.ts";
import type { Lifecycle } from "../lifecycle/mod.ts";
import type { Log } from "../observe/log.ts";
import { Target } from "../proxy/target.ts";
import { upstreamAddress } from "../proxy/upstream_service.ts";
import { PoolService } from "../router/pool_service.ts";
import { PoolWorker } from "../router/pool_worker.ts";
import { PromptTokens } from "../router/prompt_tokens.ts";
import type { Runtime } from "../runtime/runtime.ts";
import type { HostedService } from "./hosted.ts";
import type { KvRoom } from "./kv_room.ts";
import { targetStatus } from "./upstream.ts";

export interface HostPoolOptions {
  readonly runtime: Runtime;
  readonly log: Log;
  readonly lifecycle: Lifecycle;
  readonly name: string;
  readonly mounts: readonly string[];
  readonly config: PoolConfig;
  readonly kv: KvRoom;
}

/** Bytes of a text chunk, for prompts whose tokens are not known. */
const CHUNK_BYTES = 128;
const TOKENIZE_TIMEOUT_MS = 250;
const MAX_BODY_BYTES = 16 * 1024 * 1024;

export async function hostPool(options: HostPoolOptions): Promise<HostedService> {
  const { runtime, log, lifecycle, name, mounts, config, kv } = options;
  const { clock, random, http } = runtime;
  const { model, group, blockSize } = config;
  if (!Array.isArray(config.workers)) {
    throw new Error(`service ${name}: pool.workers must be a list`);
  }
  const speculative = await ApproximateIndex.create({
    clock,
    blockSize,
    ttlMs: SPECULATION_TTL_MS,
  });
  const texts = await ApproximateIndex.create({ clock, blockSize: CHUNK_BYTES });
  const workers = config.workers.map(({ id, url, dpRank }) => {
    const address = upstreamAddress(url);
    const target = new Target({ service: name, version: id, generation: 1, address });
    return new PoolWorker({ id, dpRank, url, target, clock });
  });
  const service = new PoolService({
    name,
    mounts,
    model,
    group,
    blockSize,
    maxBodyBytes: MAX_BODY_BYTES,
    clock,
    random,
    http,
    store: kv.store,
    speculative,
    texts,
    prompts: new PromptTokens({ http, clock, timeoutMs: TOKENIZE_TIMEOUT_MS }),
    workers: () => workers,
  });
  const lanesOf = (id: string) => kv.store.lanes().filter(({ key }) => key.worker === id);

  return {
    service,
    start: async () => {
      for (const { id, dpRank, kvEvents, replay } of config.workers as WorkerList) {
        const key = { worker: id, model, group, dpRank };
        // Without a socket the lane still opens: its events may come in over HTTP.
        if (kvEvents === undefined) await kv.store.open(key, { blockSize });
        else {
          kv.workers.register({ ...key, blockSize, endpoint: kvEvents, replayEndpoint: replay });
        }
      }
      log.info("pool_started", { service: name, model, workers: workers.length });
      lifecycle.available();
    },
    part: {
      name,
      quiesce: () => Promise.resolve(),
      drain: async () => {
        await Promise.all(workers.map(({ target }) => target.retire()));
      },
      stop: () => {
        speculative.close();
        texts.close();
        return Promise.resolve();
      },
      kill: () => Promise.resolve(),
    },
    targets: () => workers.map(({ target }) => targetStatus(target)),
    workers: () =>
      workers.map((worker) => ({
        service: name,
        worker: worker.id,
        url: worker.url,
        healthy: worker.healthy,
        ...(worker.lastError === undefined ? {} : { lastError: worker.lastError }),
        leases: worker.target.leases,
        load: service.load.load({ worker: worker.id, dpRank: worker.dpRank }),
        lanes: lanesOf(worker.id).map((lane) => ({
          dpRank: lane.key.dpRank,
          state: lane.state,
          epoch: lane.epoch,
          cursor: lane.cursor?.toString(),
          blocks: lane.blocks,
        })),
      })),
  };
}

type WorkerList = Extract<PoolConfig["workers"], readonly unknown[]>;
