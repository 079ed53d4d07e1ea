/**
 * The traffic listener in several threads: the main thread keeps the truth, and tells every thread of
 * each change in one ordered stream of tables.
 */

import type { Log } from "../observe/log.ts";
import type { Metrics } from "../observe/metrics.ts";
import type { Forward } from "../proxy/exchange.ts";
import { Routes, type Service } from "../proxy/routes.ts";
import type { Target } from "../proxy/target.ts";
import type { Timeouts } from "../proxy/timeouts.ts";
import { randomPseudonym, type TrafficServer } from "../proxy/traffic.ts";
import type { Address, Runtime } from "../runtime/runtime.ts";
import type { TlsPair } from "../runtime/tls_contract.ts";
import type { HostGate, ListenerSettings, PoolReading, SharedService } from "./messages.ts";
import { type RemoteExchange, remoteForward } from "./remote_exchange.ts";
import { sharedWord } from "./shared_count.ts";
import { SharedTargetLeases } from "./shared_targets.ts";
import { ThreadHandle } from "./thread_handle.ts";

/** A service whose requests threads may move without asking, where there is nothing to decide. */
export interface ThreadedService {
  readonly service: Service;
  /** The next path segment is a version, and is cut off. */
  readonly byVersion: boolean;
  /** Paths behind the version that are not the target's to answer. */
  readonly hidden?: readonly string[];
  /** It is a pool: its threads read prompts, and the main thread chooses by them. */
  readonly pool?: PoolReading;
  /** For a pool: prompts may be read before anybody wants to know them. */
  readsFirst?(): boolean;
  /** Where every request goes now: by version, or "" for all. */
  direct(): readonly (readonly [version: string, target: Target])[];
  /** Called, in the turn in which it happens, when `direct` may have changed. */
  onChange(listener: () => void): () => void;
}

export interface ThreadedTrafficOptions {
  readonly runtime: Runtime;
  readonly log: Log;
  readonly metrics: Metrics;
  readonly threads: number;
  readonly settings: ListenerSettings;
  readonly services: readonly ThreadedService[];
  readonly timeouts: (service: string) => Partial<Timeouts> | undefined;
  readonly appFetch: (request: Request) => Response | Promise<Response>;
  readonly gate: () => HostGate;
}

const MODULE = new URL("./main.ts", import.meta.url);
/** Before a thread that ended is replaced. */
const RESTART_MS = 1000;

/** Starts the threads. Rejects when one cannot listen; none is left then. */
export async function startThreadedTraffic(
  options: ThreadedTrafficOptions,
): Promise<ThreadedTraffic> {
  const traffic = new ThreadedTraffic(options);
  try {
    await traffic.start();
  } catch (error) {
    traffic.destroy();
    throw error;
  }
  return traffic;
}

export class ThreadedTraffic implements TrafficServer {
  readonly forward: Forward = remoteForward;
  readonly #options: ThreadedTrafficOptions;
  readonly #routes = new Routes();
  readonly #threads = new Set<ThreadHandle>();
  readonly #shared = new Map<Target, SharedTargetLeases>();
  readonly #byId = new Map<number, SharedTargetLeases>();
  readonly #unsubscribe: (() => void)[] = [];
  /** Client connections of all threads. */
  readonly #connections = sharedWord();
  /** One name in `Via` for all: a circle may come back by another thread. */
  readonly #pseudonym: string;
  #pair: TlsPair | undefined;
  #address: Address;
  #lastTarget = 0;
  #lastTable = 0;
  #isDraining = false;
  #isClosing = false;

  constructor(options: ThreadedTrafficOptions) {
    this.#options = options;
    this.#pair = options.settings.tls?.pair;
    this.#address = options.settings.listen.address;
    this.#pseudonym = options.settings.pseudonym ?? randomPseudonym(options.runtime);
    this.#routes.replace(options.services.map(({ service }) => service));
    options.metrics.gauge("baton_connections", "Open client connections.").collect((gauge) =>
      gauge.set(this.connections)
    );
    options.metrics.gauge("baton_threads", "Threads of the data path that serve.").collect(
      (gauge) => gauge.set(this.#threads.size),
    );
  }

  async start(): Promise<void> {
    for (const service of this.#options.services) {
      this.#unsubscribe.push(service.onChange(() => this.publish()));
    }
    // They load side by side, and listen one after the other: the first finds the others' port.
    const threads = Array.from({ length: this.#options.threads }, () => this.#addThread());
    for (const thread of threads) await this.#listen(thread);
    this.publish();
  }

  #addThread(): ThreadHandle {
    const { runtime } = this.#options;
    const thread = new ThreadHandle(runtime.threads.start(MODULE), {
      runtime,
      log: this.#options.log,
      metrics: this.#options.metrics,
      shared: this.#byId,
      connections: this.#connections,
      serve: (exchange) => this.#serve(exchange),
      startHoldMs: (path) => this.#startHoldMs(path),
      idOf: (target) => this.#idOf(target),
      ended: (one, error) => this.#threadEnded(one, error),
    });
    this.#threads.add(thread);
    this.#tellTable(thread);
    return thread;
  }

  async #listen(thread: ThreadHandle): Promise<void> {
    const { settings, gate } = this.#options;
    const listen = { ...settings.listen, address: this.#address, reusePort: true };
    const tls = settings.tls === undefined || this.#pair === undefined
      ? {}
      : { tls: { ...settings.tls, pair: this.#pair } };
    this.#address = await thread.listen({
      settings: { ...settings, listen, ...tls, pseudonym: this.#pseudonym },
      gate: gate(),
      pools: this.#options.services.flatMap(({ service, pool }) =>
        pool === undefined ? [] : [[service.name, pool] as const]
      ),
    });
    if (this.#isDraining) thread.post({ kind: "drain" });
  }

  #threadEnded(thread: ThreadHandle, error: string | undefined): void {
    if (!this.#threads.delete(thread)) return;
    for (const shared of this.#shared.values()) shared.threadEnded(thread);
    if (this.#isClosing) return;
    const { log, runtime } = this.#options;
    log.error("thread_ended", { error, left: this.#threads.size });
    runtime.clock.after(RESTART_MS, () => {
      if (this.#isClosing) return;
      this.#listen(this.#addThread()).catch((reason) =>
        log.error("thread_start_failed", { error: reason })
      );
    });
  }

  // ------------------------------------------------------------------------------------- tables

  #share(target: Target): SharedTargetLeases {
    let shared = this.#shared.get(target);
    if (shared === undefined) {
      this.#lastTarget += 1;
      const nowMs = () => this.#options.runtime.clock.monotonic();
      shared = new SharedTargetLeases(this.#lastTarget, target, nowMs);
      const { id } = shared;
      const leases = shared;
      this.#shared.set(target, shared);
      this.#byId.set(id, shared);
      // In the turn in which it retires, and after what takes its place was made reachable.
      target.onRetire(() => {
        this.publish();
        void leases.drained().then(() => {
          this.#shared.delete(target);
          this.#byId.delete(id);
        });
      });
    }
    return shared;
  }

  /** A target that no thread knows yet is told before anything is moved to it. */
  #idOf(target: Target): number {
    const isNew = !this.#shared.has(target);
    const { id } = this.#share(target);
    if (isNew && !target.retired) this.publish();
    return id;
  }

  /** Tells every thread who serves now. */
  publish(): void {
    this.#lastTable += 1;
    for (const thread of this.#threads) this.#tellTable(thread);
  }

  #tellTable(thread: ThreadHandle): void {
    const services: SharedService[] = this.#options.services.map((one) => ({
      name: one.service.name,
      mounts: one.service.mounts,
      byVersion: one.byVersion,
      hidden: one.hidden ?? [],
      readsFirst: one.readsFirst?.() ?? false,
      timeouts: this.#options.timeouts(one.service.name),
      direct: one.direct().flatMap(([version, target]) =>
        target.retired ? [] : [[version, this.#share(target).id] as const]
      ),
    }));
    const targets = [...this.#shared.values()].filter(({ target }) => !target.retired)
      .map((shared) => shared.forThread(thread));
    thread.post({ kind: "table", table: { number: this.#lastTable, services, targets } });
  }

  // ---------------------------------------------------------------------------------- exchanges

  #startHoldMs(path: string): number | Promise<number> {
    const route = this.#routes.match(path);
    return route?.service.startHoldMs?.({ path }, route.mount) ?? 0;
  }

  async #serve(exchange: RemoteExchange): Promise<void> {
    const { settings, appFetch, log } = this.#options;
    try {
      await exchange.serve(async () => {
        const route = settings.ownPaths?.includes(exchange.path)
          ? undefined
          : this.#routes.match(exchange.path);
        if (route !== undefined) {
          return await route.service.handle(exchange, remoteForward, route.mount);
        }
        exchange.respond(await appFetch(exchange.request()));
      });
    } catch (error) {
      log.error("service_failed", { request_id: exchange.requestId, error });
    }
  }

  // ------------------------------------------------------------------------------ TrafficServer

  get address(): Address {
    return this.#address;
  }

  get connections(): number {
    let count = 0;
    for (const thread of this.#threads) count += thread.connections;
    return count;
  }

  get inflight(): number {
    let count = 0;
    for (const thread of this.#threads) count += thread.inflight;
    return count;
  }

  /** Resolves when every thread has nothing in flight, told after it knew the present gate. */
  async idle(): Promise<void> {
    await Promise.all([...this.#threads].map((thread) => thread.idle()));
  }

  /** Tells the threads whether they may let anything in. */
  tellGate(): void {
    const gate = this.#options.gate();
    for (const thread of this.#threads) thread.post({ kind: "gate", gate });
  }

  replaceCertificate(pair: TlsPair): void {
    this.#pair = pair;
    for (const thread of this.#threads) thread.post({ kind: "certificate", pair });
  }

  drain(): void {
    this.#isDraining = true;
    for (const thread of this.#threads) thread.post({ kind: "drain" });
  }

  async close(): Promise<void> {
    this.#isClosing = true;
    for (const unsubscribe of this.#unsubscribe.splice(0)) unsubscribe();
    await Promise.all([...this.#threads].map((thread) => thread.close()));
  }

  destroy(): void {
    this.#isClosing = true;
    for (const thread of this.#threads) thread.destroy();
  }
}
