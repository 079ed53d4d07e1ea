/**
 * The workers of a pool at this moment, each with its lane in the index.
 *
 * A worker that joins gets its lane before anybody waits for it; one that leaves takes its lane with
 * it, so nothing is credited to it any more and its late events open nothing. A worker whose target is
 * retired has left, whoever retired it.
 */

import type { IndexStore } from "../kv/create_kv_store.ts";
import type { LaneKey } from "../kv/lane_key.ts";
import type { KvWorkers } from "../kv/workers.ts";
import type { Log } from "../observe/log.ts";
import type { Target } from "../proxy/target.ts";
import type { Clock } from "../runtime/runtime.ts";
import { PoolWorker } from "./pool_worker.ts";

export interface MemberSpec {
  readonly id: string;
  readonly dpRank: number;
  /** Base URL, for questions beside the requests. */
  readonly url: string;
  readonly target: Target;
  /** ZMQ endpoints. Without the first its events may come in over HTTP. */
  readonly kvEvents?: string | undefined;
  readonly replay?: string | undefined;
}

export interface PoolMembersOptions {
  readonly model: string;
  readonly group: string;
  readonly blockSize: number;
  readonly store: IndexStore;
  readonly listeners: KvWorkers;
  readonly clock: Clock;
  readonly log: Log;
  readonly maxInflight?: number | undefined;
  readonly probeFailures?: number | undefined;
}

export interface MembersListener {
  joined(worker: PoolWorker): void;
  left(worker: PoolWorker): void;
}

export class PoolMembers {
  readonly #options: PoolMembersOptions;
  readonly #workers = new Map<string, PoolWorker>();
  readonly #listeners = new Set<MembersListener>();
  #isFrozen = false;

  constructor(options: PoolMembersOptions) {
    this.#options = options;
  }

  list(): PoolWorker[] {
    return [...this.#workers.values()];
  }

  get(id: string): PoolWorker | undefined {
    return this.#workers.get(id);
  }

  /** True while some worker may be given requests. */
  get anyAvailable(): boolean {
    for (const worker of this.#workers.values()) if (worker.available) return true;
    return false;
  }

  /** Calls back until the returned function is called. */
  listen(listener: MembersListener): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /**
   * Takes a worker in, in place of one of the same name if there is one: it may be chosen at once.
   * Resolves when its lane is open, or cannot be (which is logged: it is chosen by load alone).
   */
  async add(spec: MemberSpec, isReady = true): Promise<void> {
    this.remove(spec.id);
    const { clock, log, maxInflight, probeFailures } = this.#options;
    const worker = new PoolWorker({ ...spec, clock, log, maxInflight, probeFailures });
    worker.listedReady = isReady;
    this.#workers.set(spec.id, worker);
    spec.target.onRetire(() => {
      if (this.#workers.get(spec.id) === worker && !this.#isFrozen) this.remove(spec.id);
    });
    for (const listener of this.#listeners) listener.joined(worker);
    try {
      await this.#openLane(worker, spec);
    } catch (error) {
      if (this.#workers.get(spec.id) === worker) {
        log.error("pool_lane_failed", { worker: spec.id, error });
      }
    }
  }

  /** Whether those who list it say that it takes requests. */
  setReady(id: string, isReady: boolean): void {
    const worker = this.#workers.get(id);
    if (worker === undefined || worker.listedReady === isReady) return;
    worker.listedReady = isReady;
    if (!isReady) return;
    for (const listener of this.#listeners) listener.joined(worker);
  }

  /** Its lane is closed, and empty in every answer from now on; what it is working on goes on. */
  remove(id: string): void {
    const worker = this.#workers.get(id);
    if (worker === undefined) return;
    this.#workers.delete(id);
    const { model, group, store, listeners, log } = this.#options;
    const isHeard = listeners.list({ model, group })
      .some((row) => row.worker === id && row.source === "zmq");
    if (isHeard) listeners.unregister({ worker: id, model, group });
    for (const { key } of store.lanes()) {
      if (key.worker === id && key.model === model && key.group === group) store.close(key);
    }
    store.close(this.#key(worker));
    log.info("pool_worker_left", { worker: id });
    for (const listener of this.#listeners) listener.left(worker);
  }

  /** From now on nobody leaves: the host goes down, and lanes stay for those who recover from us. */
  freeze(): void {
    this.#isFrozen = true;
  }

  #key({ id, dpRank }: PoolWorker): LaneKey {
    const { model, group } = this.#options;
    return { worker: id, model, group, dpRank };
  }

  async #openLane(worker: PoolWorker, spec: MemberSpec): Promise<void> {
    const { store, listeners, blockSize, log } = this.#options;
    const key = this.#key(worker);
    log.info("pool_worker_joined", { worker: worker.id, url: worker.url });
    if (spec.kvEvents === undefined) {
      await store.open(key, { blockSize });
      return;
    }
    // The listener opens the lane itself: so nobody sees it before it has its source.
    await listeners.register({
      ...key,
      blockSize,
      endpoint: spec.kvEvents,
      replayEndpoint: spec.replay,
    });
  }
}
