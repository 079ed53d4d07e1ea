/**
 * The workers whose events are listened to: registration as Dynamo's standalone indexer has it.
 *
 * A worker belongs to one partition and has one listener for each data-parallel rank.
 */

import { BatonError } from "../errors.ts";
import { type Log, silentLog } from "../observe/log.ts";
import type { Clock, Net, Random } from "../runtime/runtime.ts";
import type { KvStore } from "./kv_store.ts";
import type { Lane } from "./lane.ts";
import { type ListenerStatus, Subscription, type SubscriptionLimits } from "./subscriber.ts";
import { BadEndpoint, parseZmqEndpoint } from "./zmq_endpoint.ts";

export interface WorkerRegistration {
  readonly worker: string;
  readonly model: string;
  readonly group: string;
  readonly dpRank: number;
  readonly blockSize: number;
  readonly endpoint: string;
  readonly replayEndpoint?: string | undefined;
  readonly bind?: boolean | undefined;
}

export interface WorkerFilter {
  readonly model?: string | undefined;
  readonly group?: string | undefined;
}

/** One listener, or a lane without one (fed over HTTP). */
export interface ListenerRow {
  readonly endpoint: string | undefined;
  readonly status: ListenerStatus;
  readonly lastError: string | undefined;
  readonly lane: Lane | undefined;
}

export interface WorkerRow {
  readonly worker: string;
  readonly model: string;
  readonly group: string;
  readonly blockSize: number;
  readonly source: "zmq" | "http";
  /** The worst of its listeners: failed, pending, active, paused. */
  readonly status: ListenerStatus;
  readonly listeners: ReadonlyMap<number, ListenerRow>;
}

export interface KvWorkersOptions {
  readonly store: KvStore;
  readonly net: Net;
  readonly clock: Clock;
  readonly random: Random;
  readonly log?: Log;
  readonly limits?: Partial<SubscriptionLimits>;
}

interface Worker {
  readonly model: string;
  readonly group: string;
  readonly blockSize: number;
  readonly listeners: Map<number, Subscription>;
}

const BY_URGENCY: readonly ListenerStatus[] = ["failed", "pending", "active", "paused"];

export class KvWorkers {
  readonly #options: KvWorkersOptions;
  readonly #log: Log;
  readonly #workers = new Map<string, Worker>();

  constructor(options: KvWorkersOptions) {
    this.#options = options;
    this.#log = options.log ?? silentLog;
  }

  /**
   * Starts to listen to one rank of a worker; does not wait for the connection. The promise never
   * rejects, and resolves when the lane is open, or cannot be (which is logged). Throws `bad_request`
   * for an endpoint that cannot be used, `conflict` for a rank that is registered, a worker that is in
   * another partition, or another block size.
   */
  register(registration: WorkerRegistration): Promise<void> {
    const { worker: id, model, group, dpRank, blockSize } = registration;
    checkEndpoint(registration.endpoint);
    if (registration.replayEndpoint !== undefined) checkEndpoint(registration.replayEndpoint);
    const known = this.#workers.get(id);
    if (known !== undefined && (known.model !== model || known.group !== group)) {
      throw new BatonError("conflict", `worker ${id} is registered in another partition`);
    }
    if (known?.listeners.has(dpRank)) {
      throw new BatonError("conflict", `rank ${dpRank} of worker ${id} is registered already`);
    }
    if (known !== undefined && known.blockSize !== blockSize) {
      throw new BatonError("conflict", `worker ${id} has blocks of ${known.blockSize} tokens`);
    }
    this.#options.store.checkBlockSize({ model, group }, blockSize);
    const { store, net, clock, random, limits } = this.#options;
    const subscription = new Subscription({
      store,
      net,
      clock,
      random,
      log: this.#log,
      key: { model, group, worker: id, dpRank },
      blockSize,
      endpoint: registration.endpoint,
      ...(registration.replayEndpoint === undefined
        ? {}
        : { replayEndpoint: registration.replayEndpoint }),
      ...(registration.bind === undefined ? {} : { bind: registration.bind }),
      ...(limits === undefined ? {} : { limits }),
    });
    const entry: Worker = known ?? { model, group, blockSize, listeners: new Map() };
    entry.listeners.set(dpRank, subscription);
    this.#workers.set(id, entry);
    this.#log.info("kv_worker_registered", { worker: id, model, group, dpRank });
    return subscription.start().catch((error: unknown) => {
      if (subscription.isStopped) return;
      this.#log.error("kv_listener_failed", { worker: id, dpRank, error });
    });
  }

  /**
   * Stops listening and forgets the worker's blocks; without a rank, all ranks. Throws `not_found` if
   * there is no such worker, rank, or it is in another partition.
   */
  unregister(
    query: {
      readonly worker: string;
      readonly model: string;
      readonly group?: string | undefined;
      readonly dpRank?: number | undefined;
    },
  ): void {
    const entry = this.#workers.get(query.worker);
    const isHere = entry !== undefined && entry.model === query.model &&
      (query.group === undefined || entry.group === query.group);
    if (!isHere) {
      if (this.#closeHttpLanes(query)) return;
      throw new BatonError("not_found", `no worker ${query.worker} of model ${query.model}`);
    }
    const ranks = query.dpRank === undefined ? [...entry.listeners.keys()] : [query.dpRank];
    for (const rank of ranks) {
      const listener = entry.listeners.get(rank);
      if (listener === undefined) {
        throw new BatonError("not_found", `worker ${query.worker} has no rank ${rank}`);
      }
      entry.listeners.delete(rank);
      void listener.stop();
    }
    if (entry.listeners.size === 0) this.#workers.delete(query.worker);
    this.#log.info("kv_worker_unregistered", { worker: query.worker, ranks });
  }

  pause(worker: string, dpRank?: number): void {
    for (const listener of this.#listeners(worker, dpRank)) {
      if (listener.status !== "pending" && listener.status !== "active") {
        throw new BatonError("conflict", `the listener is ${listener.status}`);
      }
      listener.pause();
    }
  }

  resume(worker: string, dpRank?: number): void {
    for (const listener of this.#listeners(worker, dpRank)) {
      if (listener.status !== "paused" && listener.status !== "failed") {
        throw new BatonError("conflict", `the listener is ${listener.status}`);
      }
      listener.resume();
    }
  }

  /** All workers that match, those that only post their events included. */
  list(filter: WorkerFilter = {}): WorkerRow[] {
    const rows: WorkerRow[] = [];
    const shown = new Set<Lane>();
    for (const [worker, entry] of this.#workers) {
      const listeners = new Map<number, ListenerRow>();
      for (const [rank, subscription] of entry.listeners) {
        const { endpoint, status, lastError } = subscription;
        listeners.set(rank, { endpoint, status, lastError, lane: undefined });
        for (const [laneRank, lane] of subscription.lanes) {
          shown.add(lane);
          const error = lane.lastError ?? lastError;
          listeners.set(laneRank, { endpoint, status, lastError: error, lane });
        }
      }
      if (!matches(filter, entry)) continue;
      const { model, group, blockSize } = entry;
      const status = worst([...listeners.values()].map((row) => row.status));
      rows.push({ worker, model, group, blockSize, source: "zmq", status, listeners });
    }
    return [...rows, ...this.#httpWorkers(filter, shown)];
  }

  /** Stops all listeners; resolves when their sockets are closed. */
  async stop(): Promise<void> {
    const listeners = [...this.#workers.values()].flatMap((entry) => [...entry.listeners.values()]);
    this.#workers.clear();
    await Promise.all(listeners.map((listener) => listener.stop()));
  }

  #listeners(worker: string, dpRank: number | undefined): Subscription[] {
    const entry = this.#workers.get(worker);
    const listeners = [...entry?.listeners ?? []]
      .filter(([rank]) => dpRank === undefined || rank === dpRank)
      .map(([, listener]) => listener);
    if (listeners.length === 0) throw new BatonError("not_found", `no worker ${worker}`);
    return listeners;
  }

  #closeHttpLanes(
    query: {
      worker: string;
      model: string;
      group?: string | undefined;
      dpRank?: number | undefined;
    },
  ): boolean {
    let isAny = false;
    for (const { key } of this.#options.store.lanes()) {
      if (key.worker !== query.worker || key.model !== query.model) continue;
      if (query.group !== undefined && key.group !== query.group) continue;
      if (query.dpRank !== undefined && key.dpRank !== query.dpRank) continue;
      isAny = this.#options.store.close(key) || isAny;
    }
    return isAny;
  }

  #httpWorkers(filter: WorkerFilter, shown: ReadonlySet<Lane>): WorkerRow[] {
    const rows = new Map<string, WorkerRow & { readonly listeners: Map<number, ListenerRow> }>();
    for (const lane of this.#options.store.lanes()) {
      const { worker, model, group, dpRank } = lane.key;
      if (shown.has(lane) || !matches(filter, { model, group })) continue;
      const id = JSON.stringify([worker, model, group]);
      let row = rows.get(id);
      if (row === undefined) {
        const blockSize = this.#options.store.blockSize(lane.key);
        const listeners = new Map<number, ListenerRow>();
        row = { worker, model, group, blockSize, source: "http", status: "active", listeners };
        rows.set(id, row);
      }
      const { lastError } = lane;
      row.listeners.set(dpRank, { endpoint: undefined, status: "active", lastError, lane });
    }
    return [...rows.values()];
  }
}

function matches(filter: WorkerFilter, entry: { model: string; group: string }): boolean {
  return (filter.model === undefined || filter.model === entry.model) &&
    (filter.group === undefined || filter.group === entry.group);
}

function worst(statuses: readonly ListenerStatus[]): ListenerStatus {
  return BY_URGENCY.find((status) => statuses.includes(status)) ?? "pending";
}

function checkEndpoint(text: string): void {
  try {
    parseZmqEndpoint(text);
  } catch (error) {
    if (!(error instanceof BadEndpoint)) throw error;
    throw new BatonError("bad_request", `bad ZMQ endpoint: ${error.message}`);
  }
}
