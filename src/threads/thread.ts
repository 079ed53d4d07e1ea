/**
 * One thread of the data path: its listener, its pools and its copies of the targets. It holds no
 * truth; it does what the table of the main thread says, and asks about everything else.
 */

import { createLog } from "../observe/log.ts";
import type { Service } from "../proxy/routes.ts";
import { Routes } from "../proxy/routes.ts";
import { startTraffic, type TrafficServer } from "../proxy/traffic.ts";
import { loadTokenizer } from "../router/load_tokenizer.ts";
import type { ReadingOptions } from "../router/pool_bytes.ts";
import type { Runtime } from "../runtime/runtime.ts";
import type { ParentThread } from "../runtime/threads_contract.ts";
import { AskedExchanges } from "./asked.ts";
import type { HostGate, SharedService, ToMain, ToThread } from "./messages.ts";
import { Replicas } from "./replicas.ts";
import { SharedCount } from "./shared_count.ts";
import { createThreadMetrics } from "./thread_metrics.ts";
import { ThreadPool } from "./thread_pool.ts";
import { ThreadService } from "./thread_service.ts";

/** Between two hand-overs of metrics. */
const REPORT_MS = 200;

/** Runs in the thread until the main thread ends it. */
export function runThread(runtime: Runtime, parent: ParentThread): void {
  const thread = new DataThread(runtime, parent);
  parent.onMessage((message) => thread.told(message as ToThread));
}

class DataThread {
  readonly #runtime: Runtime;
  readonly #post: (message: ToMain) => void;
  readonly #replicas: Replicas;
  readonly #asked: AskedExchanges;
  readonly #metrics = createThreadMetrics();
  readonly #routes = new Routes();
  readonly #catchAll: Service;
  /** The pools among the services, by name. */
  readonly #pools = new Map<string, ReadingOptions>();
  #services: readonly SharedService[] = [];
  #mounted: string | undefined;
  #gate: HostGate = { accepting: false, draining: false };
  #onGate: (() => void) | undefined;
  #inflight: Int32Array = new Int32Array(1);
  #questions: number[] = [];
  #server: TrafficServer | undefined;
  #connections = 0;

  constructor(runtime: Runtime, parent: ParentThread) {
    this.#runtime = runtime;
    this.#post = (message) => parent.post(message);
    const { clock } = runtime;
    const post = this.#post;
    this.#replicas = new Replicas({ clock, post });
    this.#asked = new AskedExchanges({ clock, post, replicas: this.#replicas });
    this.#catchAll = {
      name: "",
      mounts: ["/"],
      handle: (exchange, forward) => this.#asked.ask(exchange, forward),
    };
  }

  told(message: ToThread): void {
    switch (message.kind) {
      case "start":
        return void this.#start(message);
      case "table":
        this.#services = this.#replicas.apply(message.table);
        return this.#mount();
      case "start_hold":
        return this.#asked.toldHold(message.question, message.holdMs);
      case "gate":
        this.#gate = message.gate;
        this.#onGate?.();
        return this.#answerIdle();
      case "tell_idle":
        this.#questions.push(message.question);
        return this.#answerIdle();
      case "certificate":
        return this.#server?.replaceCertificate(message.pair);
      case "drain":
        return this.#server?.drain();
      case "close":
        return void this.#close();
      case "destroy":
        return this.#server?.destroy();
      case "cut":
        return this.#replicas.lease(message.lease)?.cut?.(message.reason);
      case "warn":
        return this.#replicas.lease(message.lease)?.warn?.();
      default:
        return this.#asked.told(message);
    }
  }

  async #start(message: Extract<ToThread, { kind: "start" }>): Promise<void> {
    const runtime = this.#runtime;
    const { logLevel, ...settings } = message.settings;
    this.#gate = message.gate;
    this.#inflight = new Int32Array(message.inflight);
    const log = createLog({
      write: (line, isUrgent) =>
        isUrgent ? runtime.print("stderr", line) : runtime.printSoon("stderr", line),
      now: () => runtime.clock.now(),
      level: logLevel,
    });
    const gate = () => this.#gate;
    const { total, own } = message.connections;
    try {
      await this.#openPools(message.pools);
      this.#server = await startTraffic({
        ...settings,
        runtime,
        log,
        metrics: this.#metrics,
        routes: this.#routes,
        connectionCount: new SharedCount(total, own),
        lifecycle: {
          admit: () => this.#admit(),
          get draining() {
            return gate().draining;
          },
          onChange: (listener) => {
            this.#onGate = listener;
            return () => (this.#onGate = undefined);
          },
        },
        // What is ours is answered by the main thread too, which knows the state of everything.
        ownService: this.#catchAll,
      });
    } catch (error) {
      return this.#post({ kind: "listen_failed", message: messageOf(error) });
    }
    this.#post({ kind: "listening", address: this.#server.address });
    this.#report();
  }

  async #openPools(
    pools: Extract<ToThread, { kind: "start" }>["pools"],
  ): Promise<void> {
    for (const [service, reading] of pools) {
      const tokenizer = await loadTokenizer(this.#runtime.files, service, reading.tokenizer);
      const { maxBodyBytes, tokenizeTimeoutMs } = reading;
      this.#pools.set(service, { maxBodyBytes, tokenizer, asksWorkers: tokenizeTimeoutMs > 0 });
    }
    this.#mounted = "";
    this.#mount();
  }

  /** Once it is known how pools read; before that nobody is listening. */
  #mount(): void {
    if (this.#mounted === undefined) return;
    const services = this.#services;
    // The routes change only when services do; who serves a version is looked up each time.
    const key = JSON.stringify(services.map(({ name, mounts }) => [name, mounts]));
    if (key === this.#mounted) return;
    this.#mounted = key;
    const timeouts = new Map(services.map((shared) => [shared.name, shared.timeouts]));
    this.#routes.replace(
      services.map((shared) => this.#service(shared)),
      (name) => timeouts.get(name),
    );
  }

  #service(shared: SharedService): Service {
    const common = { shared, replicas: this.#replicas, asked: this.#asked };
    const reading = this.#pools.get(shared.name);
    if (reading !== undefined) return new ThreadPool({ ...common, reading });
    return new ThreadService({ ...common, clock: this.#runtime.clock });
  }

  #admit(): (() => void) | undefined {
    if (!this.#gate.accepting) return undefined;
    Atomics.add(this.#inflight, 0, 1);
    let inside = true;
    return () => {
      if (!inside) return;
      inside = false;
      Atomics.sub(this.#inflight, 0, 1);
      this.#answerIdle();
    };
  }

  #answerIdle(): void {
    if (this.#questions.length === 0 || Atomics.load(this.#inflight, 0) > 0) return;
    for (const question of this.#questions.splice(0)) this.#post({ kind: "idle", question });
  }

  #report(): void {
    this.#runtime.clock.after(REPORT_MS, () => {
      this.#tell();
      this.#report();
    });
  }

  #tell(): void {
    const metrics = this.#metrics.take();
    if (metrics !== undefined) this.#post(metrics);
    const connections = this.#server?.connections ?? 0;
    if (connections === this.#connections) return;
    this.#connections = connections;
    this.#post({ kind: "connections", count: connections });
  }

  async #close(): Promise<void> {
    await this.#server?.close();
    this.#tell();
    this.#runtime.flushPrinted();
    this.#post({ kind: "closed" });
  }
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
