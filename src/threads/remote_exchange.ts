/**
 * An exchange whose client is on another thread, as the services of the main thread see it: they
 * answer it, or have its thread move it to a target, without knowing that it is elsewhere.
 */

import { BatonError } from "../errors.ts";
import type { Forward, ForwardOptions, ForwardOutcome } from "../proxy/exchange.ts";
import type { Lease, Target } from "../proxy/target.ts";
import type { FarExchange, Moved, PoolBytes } from "../router/pool_bytes.ts";
import type { PromptFacts } from "../router/prompt_facts.ts";
import type { ToldPrompt, ToMain, ToThread } from "./messages.ts";
import { errorTold, tellError } from "./told_error.ts";

type Asking = Extract<ToMain, { kind: "exchange" }>;
type Outcome = Extract<ToMain, { kind: "outcome" }>;

export interface RemoteExchangeOptions {
  readonly post: (message: ToThread) => void;
  /** The number by which threads know the target. */
  readonly idOf: (target: Target) => number;
}

/** What the thread is moving. */
interface Moving {
  readonly lease: Lease;
  readonly firstByte: () => void;
  readonly settle: (moved: Moved) => void;
}

export class RemoteExchange implements FarExchange {
  readonly requestId: string;
  readonly method: string;
  readonly target: string;
  readonly path: string;
  readonly remoteAddress: string;
  finished = false;
  answered = false;
  /** For a pool: its thread reads and watches. */
  readonly bytes: PoolBytes = {
    readPrompt: () => this.#readPrompt(),
    move: (lease, firstByte) => this.#move(lease, { returnFailure: true }, firstByte),
  };
  readonly #id: number;
  readonly #headerText: string;
  #headers: readonly string[] | undefined;
  readonly #host: string;
  readonly #options: RemoteExchangeOptions;
  readonly #abortListeners: (() => void)[] = [];
  #prompt: ToldPrompt | undefined;
  #onPrompt: ((prompt: ToldPrompt) => void) | undefined;
  #moving: Moving | undefined;
  /** Its thread knows that nothing more comes of it. */
  #isOver = false;
  /** For the log line; they go along with the next message. */
  #notes: Readonly<Record<string, unknown>> | undefined;
  /** Answers that are still being read. */
  #pending: Promise<void> = Promise.resolve();

  constructor(asking: Asking, options: RemoteExchangeOptions) {
    this.#id = asking.exchange;
    this.#options = options;
    this.requestId = asking.requestId;
    this.method = asking.method;
    this.target = asking.target;
    this.path = asking.path;
    this.#headerText = asking.headers;
    this.remoteAddress = asking.remoteAddress;
    this.#host = asking.host;
    this.#prompt = asking.prompt;
  }

  get headers(): readonly string[] {
    return this.#headers ??= this.#headerText === "" ? [] : this.#headerText.split("\n");
  }

  header(name: string): string | undefined {
    const { headers } = this;
    for (let at = 0; at + 1 < headers.length; at += 2) {
      if (headers[at]?.toLowerCase() === name) return headers[at + 1];
    }
    return undefined;
  }

  onAbort(listener: () => void): void {
    if (!this.finished) this.#abortListeners.push(listener);
  }

  /** A body stays with its thread: `bytes` is the way to what it says. */
  readBody(): Promise<Uint8Array> {
    return Promise.reject(new BatonError("not_implemented", "bodies are not read across threads"));
  }

  note(fields: Readonly<Record<string, unknown>>): void {
    this.#notes = { ...this.#notes, ...fields };
  }

  #takeNotes(): { notes?: Readonly<Record<string, unknown>> } {
    const notes = this.#notes;
    this.#notes = undefined;
    return notes === undefined ? {} : { notes };
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
    const exchange = this.#id;
    const notes = this.#takeNotes();
    this.#options.post({ kind: "respond", exchange, status, headers, body, ...notes });
  }

  /** For the app that answers what no service is mounted for. */
  request(): Request {
    const headers = new Headers();
    const lines = this.headers;
    for (let at = 0; at + 1 < lines.length; at += 2) {
      headers.append(lines[at] as string, lines[at + 1] as string);
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
      if (!this.#isOver) this.#options.post({ kind: "done", exchange, ...this.#takeNotes() });
    } catch (error) {
      const told = tellError(error);
      this.#options.post({ kind: "fail", exchange, error: told, ...this.#takeNotes() });
      if (!(error instanceof BatonError)) throw error;
    } finally {
      this.finished = true;
    }
  }

  async #readPrompt(): Promise<PromptFacts> {
    if (this.finished) throw new BatonError("client_closed", "the client has left");
    if (this.#prompt === undefined) {
      this.#prompt = await new Promise<ToldPrompt>((resolve) => {
        this.#onPrompt = resolve;
        this.#options.post({ kind: "read_prompt", exchange: this.#id });
      });
    }
    const prompt = this.#prompt;
    if ("error" in prompt) throw errorTold(prompt.error);
    return prompt.facts;
  }

  /** Has the thread move it; the lease stays here and is released when the thread says so. */
  async forward(lease: Lease, options: ForwardOptions): Promise<ForwardOutcome> {
    return (await this.#move(lease, options, undefined)).outcome;
  }

  #move(
    lease: Lease,
    options: ForwardOptions,
    firstByte: (() => void) | undefined,
  ): Promise<Moved> {
    const exchange = this.#id;
    if (this.finished) {
      lease.release();
      return Promise.resolve(nothingOf({ result: "client_closed", status: 499 }));
    }
    const { service, version, generation, address, protocol } = lease.target;
    const { post, idOf } = this.#options;
    lease.cut = (reason) => post({ kind: "cut_forward", exchange, reason });
    lease.warn = () => post({ kind: "warn_forward", exchange });
    return new Promise((resolve) => {
      this.#moving = { lease, firstByte: firstByte ?? (() => {}), settle: resolve };
      post({
        kind: "forward",
        exchange,
        target: { id: idOf(lease.target), service, version, generation, address, protocol },
        path: options.target,
        returnFailure: options.returnFailure === true,
        timeouts: options.timeouts === undefined ? undefined : { ...options.timeouts },
        forPool: firstByte !== undefined,
        ...this.#takeNotes(),
      });
    });
  }

  /** A message of the thread about it. */
  told(
    message: Extract<
      ToMain,
      { kind: "gone" | "prompt" | "first_byte" | "outcome" | "forward_kind" }
    >,
  ): void {
    switch (message.kind) {
      case "gone":
        return this.#leave();
      case "prompt":
        return this.#onPrompt?.(message.prompt);
      case "first_byte":
        return this.#moving?.firstByte();
      case "forward_kind":
        if (this.#moving !== undefined) this.#moving.lease.kind = message.leaseKind;
        return;
      case "outcome":
        this.answered ||= message.answered;
        return this.#settle(message, message.failure);
    }
  }

  #settle(moved: Pick<Outcome, keyof Moved>, failure: string | undefined): void {
    const moving = this.#moving;
    if (moving === undefined) return;
    this.#moving = undefined;
    moving.lease.release(failure);
    const { outcome, status, cachedTokens } = moved;
    this.#isOver = outcome.result !== "upstream_failed";
    moving.settle({ outcome, status, cachedTokens });
  }

  /** Its client is gone. */
  #leave(): void {
    this.finished = true;
    for (const listener of this.#abortListeners.splice(0)) listener();
  }

  /** Its thread is no more. */
  lost(): void {
    this.#leave();
    this.#onPrompt?.({ error: tellError(new BatonError("client_closed", "the client has left")) });
    this.#settle(
      nothingOf({ result: "cut", status: 0, reason: "thread_ended" }),
      "thread_ended",
    );
  }
}

/** How it ends when nothing was moved, or nobody knows what. */
function nothingOf(outcome: Pick<ForwardOutcome, "result" | "status" | "reason">): Moved {
  return {
    outcome: { ...outcome, retriable: false, bytesToClient: 0 },
    status: 0,
    cachedTokens: undefined,
  };
}

/** The forwarder of exchanges that are on other threads. */
export const remoteForward: Forward = (exchange, lease, options) => {
  if (exchange instanceof RemoteExchange) return exchange.forward(lease, options ?? {});
  lease.release();
  return Promise.reject(new Error("not an exchange of a thread"));
};
