/**
 * An exchange whose client is on another thread, as the services of the main thread see it: they
 * answer it, or have its thread move it to a target, without knowing that it is elsewhere.
 */

import { BatonError } from "../errors.ts";
import type { Exchange, Forward, ForwardOptions, ForwardOutcome } from "../proxy/exchange.ts";
import type { Lease, Target } from "../proxy/target.ts";
import type { ToMain, ToThread } from "./messages.ts";

type Asking = Extract<ToMain, { kind: "exchange" }>;

export interface RemoteExchangeOptions {
  readonly post: (message: ToThread) => void;
  /** The number by which threads know the target. */
  readonly idOf: (target: Target) => number;
}

export class RemoteExchange implements Exchange {
  readonly requestId: string;
  readonly method: string;
  readonly target: string;
  readonly path: string;
  readonly headers: readonly string[];
  readonly remoteAddress: string;
  finished = false;
  answered = false;
  readonly #id: number;
  readonly #host: string;
  readonly #options: RemoteExchangeOptions;
  readonly #abortListeners: (() => void)[] = [];
  #lease: Lease | undefined;
  #settle: ((outcome: ForwardOutcome, failure: string | undefined) => void) | undefined;
  /** Answers that are still being read. */
  #pending: Promise<void> = Promise.resolve();

  constructor(asking: Asking, options: RemoteExchangeOptions) {
    this.#id = asking.exchange;
    this.#options = options;
    this.requestId = asking.requestId;
    this.method = asking.method;
    this.target = asking.target;
    this.path = asking.path;
    this.headers = asking.headers;
    this.remoteAddress = asking.remoteAddress;
    this.#host = asking.host;
  }

  header(name: string): string | undefined {
    for (let at = 0; at + 1 < this.headers.length; at += 2) {
      if (this.headers[at]?.toLowerCase() === name) return this.headers[at + 1];
    }
    return undefined;
  }

  onAbort(listener: () => void): void {
    if (!this.finished) this.#abortListeners.push(listener);
  }

  readBody(): Promise<Uint8Array> {
    return Promise.reject(new BatonError("not_implemented", "bodies are not read across threads"));
  }

  note(fields: Readonly<Record<string, unknown>>): void {
    this.#options.post({ kind: "note", exchange: this.#id, fields: { ...fields } });
  }

  respond(response: Response): void {
    if (this.answered || this.finished) return void response.body?.cancel();
    this.answered = true;
    this.#pending = this.#send(response);
  }

  async #send(response: Response): Promise<void> {
    const { status } = response;
    const headers = [...response.headers];
    const body = response.body === null ? undefined : new Uint8Array(await response.arrayBuffer());
    this.#options.post({ kind: "respond", exchange: this.#id, status, headers, body });
  }

  /** For the app that answers what no service is mounted for. */
  request(): Request {
    const headers = new Headers();
    for (let at = 0; at + 1 < this.headers.length; at += 2) {
      headers.append(this.headers[at] as string, this.headers[at + 1] as string);
    }
    const method = /^(CONNECT|TRACE|TRACK)$/i.test(this.method) ? "GET" : this.method;
    return new Request(`http://${this.#host}${this.target}`, { method, headers });
  }

  /** Runs whoever answers it to the end, and tells the thread how that was. */
  async serve(answer: () => void | Promise<void>): Promise<void> {
    const exchange = this.#id;
    try {
      await answer();
      await this.#pending;
      this.#options.post({ kind: "done", exchange });
    } catch (error) {
      const known = error instanceof BatonError
        ? error
        : new BatonError("internal", "internal error");
      const { code, message, detail, retryAfterS } = known;
      this.#options.post({ kind: "fail", exchange, code, message, detail, retryAfterS });
      if (known !== error) throw error;
    } finally {
      this.finished = true;
    }
  }

  /** Has the thread move it; the lease stays here and is released when the thread says so. */
  forward(lease: Lease, options: ForwardOptions): Promise<ForwardOutcome> {
    const exchange = this.#id;
    if (this.finished) {
      lease.release();
      return Promise.resolve({
        result: "client_closed",
        status: 499,
        retriable: false,
        bytesToClient: 0,
      });
    }
    const { target } = lease;
    const { post } = this.#options;
    this.#lease = lease;
    lease.cut = (reason) => post({ kind: "cut_forward", exchange, reason });
    lease.warn = () => post({ kind: "warn_forward", exchange });
    return new Promise((resolve) => {
      this.#settle = (outcome, failure) => {
        this.#settle = undefined;
        this.#lease = undefined;
        lease.release(failure);
        resolve(outcome);
      };
      const { service, version, generation, address, protocol } = target;
      post({
        kind: "forward",
        exchange,
        target: { id: this.#options.idOf(target), service, version, generation, address, protocol },
        path: options.target,
        returnFailure: options.returnFailure === true,
        timeouts: options.timeouts === undefined ? undefined : { ...options.timeouts },
      });
    });
  }

  /** A message of the thread about it. */
  told(message: Extract<ToMain, { kind: "gone" | "outcome" | "forward_kind" }>): void {
    switch (message.kind) {
      case "gone":
        this.finished = true;
        for (const listener of this.#abortListeners.splice(0)) listener();
        return;
      case "forward_kind":
        if (this.#lease !== undefined) this.#lease.kind = message.leaseKind;
        return;
      case "outcome":
        this.answered ||= message.answered;
        this.#settle?.(message.outcome, message.failure);
    }
  }

  /** Its thread is no more. */
  lost(): void {
    this.finished = true;
    for (const listener of this.#abortListeners.splice(0)) listener();
    this.#settle?.(
      { result: "cut", status: 0, reason: "thread_ended", retriable: false, bytesToClient: 0 },
      "thread_ended",
    );
  }
}

/** The forwarder of exchanges that are on other threads. */
export const remoteForward: Forward = (exchange, lease, options) => {
  if (exchange instanceof RemoteExchange) return exchange.forward(lease, options ?? {});
  lease.release();
  return Promise.reject(new Error("not an exchange of a thread"));
};
