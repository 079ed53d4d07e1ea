/**
 * The traffic listener in several threads: the main thread keeps the truth, and tells every thread of
 * each change in one ordered stream of tables.
 *
 * About 400 lines because it is the one place that knows all threads.
 */

import type { Log } from "../observe/log.ts";
import type { Metrics } from "../observe/metrics.ts";
import type { Forward } from "../proxy/exchange.ts";
import { Routes, type Service } from "../proxy/routes.ts";
import type { Target } from "../proxy/target.ts";
import type { Timeouts } from "../proxy/timeouts.ts";
import type { TrafficServer } from "../proxy/traffic.ts";
import type { Address, Runtime } from "../runtime/runtime.ts";
import type { Thread } from "../runtime/threads_contract.ts";
import type { TlsPair } from "../runtime/tls_contract.ts";
import type { HostGate, ListenerSettings, SharedService, ToMain, ToThread } from "./messages.ts";
import { RemoteExchange, remoteForward } from "./remote_exchange.ts";
import { SharedTargetLeases } from "./shared_targets.ts";

/** A service whose requests threads may move without asking, where there is nothing to decide. */
export interface ThreadedService {
  readonly service: Service;
  /** The next path segment is a version, and is cut off. */
  readonly byVersion: boolean;
  /** How long a request may wait while the host has nothing to serve yet (default: not at all). */
  readonly startHoldMs?: number;
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
  readonly #threads = new Set<DataThread>();
  readonly #shared = new Map<Target, SharedTargetLeases>();
  readonly #byId = new Map<number, SharedTargetLeases>();
  readonly #unsubscribe: (() => void)[] = [];
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
    // One after the other: the first one finds the port that the others share.
    for (let count = 0; count < this.#options.threads; count++) await this.#startThread();
    this.publish();
  }

  async #startThread(): Promise<void> {
    const { runtime, settings, gate } = this.#options;
    const thread = new DataThread(runtime.threads.start(MODULE), {
      runtime,
      log: this.#options.log,
      metrics: this.#options.metrics,
      shared: this.#byId,
      serve: (exchange) => this.#serve(exchange),
      idOf: (target) => this.#share(target).id,
      ended: (one, error) => this.#threadEnded(one, error),
    });
    this.#threads.add(thread);
    this.#tellTable(thread);
    const listen = { ...settings.listen, address: this.#address, reusePort: true };
    const tls = settings.tls === undefined || this.#pair === undefined
      ? {}
      : { tls: { ...settings.tls, pair: this.#pair } };
    this.#address = await thread.listen({ ...settings, listen, ...tls }, gate());
    if (this.#isDraining) thread.post({ kind: "drain" });
  }

  #threadEnded(thread: DataThread, error: string | undefined): void {
    if (!this.#threads.delete(thread)) return;
    for (const shared of this.#shared.values()) shared.threadEnded(thread);
    if (this.#isClosing) return;
    const { log, runtime } = this.#options;
    log.error("thread_ended", { error, left: this.#threads.size });
    runtime.clock.after(RESTART_MS, () => {
      if (this.#isClosing) return;
      this.#startThread().catch((reason) => log.error("thread_start_failed", { error: reason }));
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

  /** Tells every thread who serves now. */
  publish(): void {
    this.#lastTable += 1;
    for (const thread of this.#threads) this.#tellTable(thread);
  }

  #tellTable(thread: DataThread): void {
    const services: SharedService[] = this.#options.services.map((one) => ({
      name: one.service.name,
      mounts: one.service.mounts,
      byVersion: one.byVersion,
      startHoldMs: one.startHoldMs ?? 0,
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

interface DataThreadOptions {
  readonly runtime: Runtime;
  readonly log: Log;
  readonly metrics: Metrics;
  readonly shared: ReadonlyMap<number, SharedTargetLeases>;
  readonly serve: (exchange: RemoteExchange) => Promise<void>;
  readonly idOf: (target: Target) => number;
  readonly ended: (thread: DataThread, error: string | undefined) => void;
}

/** One thread as the main thread sees it. */
class DataThread {
  connections = 0;
  readonly #thread: Thread;
  readonly #options: DataThreadOptions;
  readonly #exchanges = new Map<number, RemoteExchange>();
  readonly #inflight = new Int32Array(new SharedArrayBuffer(4));
  readonly #questions = new Map<number, () => void>();
  readonly #counters = new Map<string, ReturnType<Metrics["counter"]>>();
  readonly #histograms = new Map<string, ReturnType<Metrics["histogram"]>>();
  readonly #exited: Promise<string | undefined>;
  #hasExited = false;
  #lastQuestion = 0;
  #listening: ((address: Address) => void) | undefined;
  #failed: ((error: Error) => void) | undefined;
  #closed: (() => void) | undefined;

  constructor(thread: Thread, options: DataThreadOptions) {
    this.#thread = thread;
    this.#options = options;
    thread.onMessage((message) => this.#told(message as ToMain));
    this.#exited = new Promise((resolve) => thread.onExit(resolve));
    void this.#exited.then((error) => this.#ended(error));
  }

  post(message: ToThread): void {
    if (!this.#hasExited) this.#thread.post(message);
  }

  get inflight(): number {
    return this.#hasExited ? 0 : Atomics.load(this.#inflight, 0);
  }

  listen(settings: ListenerSettings, gate: HostGate): Promise<Address> {
    const inflight = this.#inflight.buffer as SharedArrayBuffer;
    return new Promise((resolve, reject) => {
      this.#listening = resolve;
      this.#failed = reject;
      this.post({ kind: "start", settings, gate, inflight });
    });
  }

  idle(): Promise<void> {
    if (this.#hasExited) return Promise.resolve();
    this.#lastQuestion += 1;
    const question = this.#lastQuestion;
    return new Promise((resolve) => {
      this.#questions.set(question, resolve);
      this.post({ kind: "tell_idle", question });
    });
  }

  async close(): Promise<void> {
    if (this.#hasExited) return;
    const closed = new Promise<void>((resolve) => (this.#closed = resolve));
    this.post({ kind: "close" });
    await Promise.race([closed, this.#exited]);
    await this.#thread.terminate();
    await this.#exited;
  }

  destroy(): void {
    this.post({ kind: "destroy" });
    if (this.#closed === undefined) void this.close();
  }

  #ended(error: string | undefined): void {
    this.#hasExited = true;
    this.#failed?.(new Error(error ?? "the thread ended"));
    for (const exchange of this.#exchanges.values()) exchange.lost();
    this.#exchanges.clear();
    for (const resolve of this.#questions.values()) resolve();
    this.#questions.clear();
    this.#options.ended(this, error);
  }

  #told(message: ToMain): void {
    const { shared } = this.#options;
    switch (message.kind) {
      case "listening":
        return this.#listening?.(message.address);
      case "listen_failed":
        this.#failed?.(new Error(message.message));
        return void this.#thread.terminate();
      case "acknowledged":
        for (const { target, open } of message.retired) {
          shared.get(target)?.acknowledged(this, open);
        }
        return;
      case "lease_kind":
        for (const one of shared.values()) one.leaseKind(this, message.lease, message.leaseKind);
        return;
      case "lease_ended":
        return shared.get(message.target)?.leaseEnded(this, message.lease);
      case "lost":
        return shared.get(message.target)?.lost(this, message.lease, message.failure);
      case "connect_failed":
        return shared.get(message.target)?.target.reportConnectFailure(new Error(message.message));
      case "exchange":
        return void this.#serve(message);
      case "gone":
      case "outcome":
      case "forward_kind":
        return this.#exchanges.get(message.exchange)?.told(message);
      case "idle":
        this.#questions.get(message.question)?.();
        this.#questions.delete(message.question);
        return;
      case "connections":
        this.connections = message.count;
        return;
      case "metrics":
        return this.#count(message);
      case "closed":
        return this.#closed?.();
    }
  }

  async #serve(message: Extract<ToMain, { kind: "exchange" }>): Promise<void> {
    const exchange = new RemoteExchange(message, {
      post: (answer) => this.post(answer),
      idOf: this.#options.idOf,
    });
    this.#exchanges.set(message.exchange, exchange);
    await this.#options.serve(exchange);
    this.#exchanges.delete(message.exchange);
  }

  #count(message: Extract<ToMain, { kind: "metrics" }>): void {
    const { metrics } = this.#options;
    for (const { type, name, help, labels, buckets } of message.declared) {
      if (type === "counter") this.#counters.set(name, metrics.counter(name, help, labels));
      else this.#histograms.set(name, metrics.histogram(name, help, labels, buckets));
    }
    for (const [name, labels, by] of message.counted) this.#counters.get(name)?.inc(labels, by);
    for (const [name, labels, values] of message.observed) {
      const histogram = this.#histograms.get(name)?.with(labels);
      for (const value of values) histogram?.observe(value);
    }
  }
}
