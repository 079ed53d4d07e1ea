/** One thread of the data path as the main thread sees it: what it asks, what it tells, its end. */

import type { Log } from "../observe/log.ts";
import type { Metrics } from "../observe/metrics.ts";
import type { Target } from "../proxy/target.ts";
import type { Address, Runtime } from "../runtime/runtime.ts";
import type { Thread } from "../runtime/threads_contract.ts";
import type { ToMain, ToThread } from "./messages.ts";
import { RemoteExchange } from "./remote_exchange.ts";
import { SharedCount, sharedWord } from "./shared_count.ts";
import type { SharedTargetLeases } from "./shared_targets.ts";

type Start = Extract<ToThread, { kind: "start" }>;

export interface ThreadHandleOptions {
  readonly runtime: Runtime;
  readonly log: Log;
  readonly metrics: Metrics;
  readonly shared: ReadonlyMap<number, SharedTargetLeases>;
  readonly connections: SharedArrayBuffer;
  readonly startHoldMs: (path: string) => number | Promise<number>;
  readonly serve: (exchange: RemoteExchange) => Promise<void>;
  readonly idOf: (target: Target) => number;
  readonly ended: (thread: ThreadHandle, error: string | undefined) => void;
}

/** What decides about requests that the thread has not heard of yet. */
const URGENT: ReadonlySet<ToThread["kind"]> = new Set(["table", "gate"]);

export class ThreadHandle {
  connections = 0;
  readonly #thread: Thread;
  readonly #options: ThreadHandleOptions;
  readonly #exchanges = new Map<number, RemoteExchange>();
  readonly #inflight = new Int32Array(sharedWord());
  readonly #ownConnections = sharedWord();
  readonly #questions = new Map<number, () => void>();
  readonly #counters = new Map<string, ReturnType<Metrics["counter"]>>();
  readonly #histograms = new Map<string, ReturnType<Metrics["histogram"]>>();
  readonly #exited: Promise<string | undefined>;
  #hasExited = false;
  #lastQuestion = 0;
  #listening: ((address: Address) => void) | undefined;
  #failed: ((error: Error) => void) | undefined;
  #closed: (() => void) | undefined;

  constructor(thread: Thread, options: ThreadHandleOptions) {
    this.#thread = thread;
    this.#options = options;
    thread.onMessage((message) => this.#told(message as ToMain));
    this.#exited = new Promise((resolve) => thread.onExit(resolve));
    void this.#exited.then((error) => this.#ended(error));
  }

  post(message: ToThread): void {
    if (!this.#hasExited) this.#thread.post(message, URGENT.has(message.kind));
  }

  get inflight(): number {
    return this.#hasExited ? 0 : Atomics.load(this.#inflight, 0);
  }

  listen(start: Pick<Start, "settings" | "gate" | "pools">): Promise<Address> {
    const inflight = this.#inflight.buffer as SharedArrayBuffer;
    const connections = { total: this.#options.connections, own: this.#ownConnections };
    return new Promise((resolve, reject) => {
      this.#listening = resolve;
      this.#failed = reject;
      if (this.#hasExited) reject(new Error("the thread ended"));
      this.post({ kind: "start", ...start, inflight, connections });
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
    new SharedCount(this.#options.connections, this.#ownConnections).forget();
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
      case "may_wait":
        return void this.#answerHold(message.question, message.path);
      case "gone":
      case "prompt":
      case "first_byte":
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

  async #answerHold(question: number, path: string): Promise<void> {
    const holdMs = await this.#options.startHoldMs(path);
    this.post({ kind: "start_hold", question, holdMs });
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
