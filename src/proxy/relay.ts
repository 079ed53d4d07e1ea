/**
 * Moves one request to the target of a lease, and the answer back: what is the same whatever the
 * target speaks.
 *
 * Bytes go through as they come, each side paused while the other cannot take more. The lease is
 * released once, before the promise of `Forward` resolves, on every path.
 */

import { BatonError } from "../errors.ts";
import { type Clock, ConnectFailed } from "../runtime/runtime.ts";
import type { ClientSide, Framing, RequestSink } from "./client_side.ts";
import type { ForwardOptions, ForwardOutcome } from "./exchange.ts";
import {
  bit,
  CONTENT_LENGTH,
  crossingTrailers,
  DATE,
  type Head,
  HOP_BY_HOP,
  X_BATON_GENERATION,
  X_REQUEST_ID,
} from "./head.ts";
import { CONNECT_PAUSES_MS, IDEMPOTENT } from "./retry_rules.ts";
import type { Lease } from "./target.ts";
import type { Timeouts } from "./timeouts.ts";

/** What all relays of a forwarder share. */
export interface RelaySetup {
  readonly clock: Clock;
  readonly timeouts: Timeouts;
  readonly connectTries: number;
  readonly showGeneration: boolean;
}

/** What one relay is for. */
export interface RelayJob {
  readonly exchange: ClientSide;
  readonly lease: Lease;
  readonly options: ForwardOptions;
  readonly resolve: (outcome: ForwardOutcome) => void;
}

export type FailureCode =
  | "upstream_reset"
  | "upstream_bad_response"
  | "upstream_timeout"
  | "upstream_connect_failed";

export abstract class Relay implements RequestSink {
  protected readonly exchange: ClientSide;
  protected readonly lease: Lease;
  protected readonly options: ForwardOptions;
  protected requestEnded: boolean;
  protected requestBytes = 0;
  /** The request does no harm when it counts twice, as far as its method tells and was not undone. */
  protected mayRepeat: boolean;
  protected tries = 0;
  protected answerEnded = false;
  protected bytesToClient = 0;
  /** Of the answer; 0 before it has begun. */
  protected status = 0;
  protected done = false;
  readonly #setup: RelaySetup;
  readonly #resolve: (outcome: ForwardOutcome) => void;
  #requestPaused = false;
  #answerPaused = false;
  #cancelPause: (() => void) | undefined;

  constructor(setup: RelaySetup, { exchange, lease, options, resolve }: RelayJob) {
    this.#setup = setup;
    this.exchange = exchange;
    this.lease = lease;
    this.options = options;
    this.#resolve = resolve;
    this.requestEnded = options.body !== undefined || exchange.requestComplete;
    this.mayRepeat = IDEMPOTENT.has(exchange.method);
  }

  start(): void {
    this.exchange.note(this.lease.target.logFields);
    if (this.exchange.finished) return this.finish("client_closed", 499);
    this.lease.cut = (reason) => this.cut(reason);
    this.exchange.attach(this);
    this.begin();
  }

  // ------------------------------------------------------------------------------ the connection

  /** Sends the request on a connection that there is, or calls `connect`. */
  protected abstract begin(): void;
  /**
   * Makes a connection. Resolves with what then sends the request, or gives the connection back when
   * the relay is `done` meanwhile. Rejects with ConnectFailed.
   */
  protected abstract open(timeoutMs: number): Promise<() => void>;
  /** Gives the connection back; `isWhole`: request and answer went over it to their ends. */
  protected abstract letGo(isWhole: boolean): void;
  /** The target has to be heard of until then (monotonic). */
  protected abstract waitUntil(deadlineMs: number): void;
  /** Stops the answer's bytes, and lets them flow again. */
  protected abstract pauseAnswer(): void;
  protected abstract resumeAnswer(): void;

  protected connect(): void {
    const pauseMs = CONNECT_PAUSES_MS[Math.min(this.tries, 2)] as number;
    this.tries += 1;
    if (pauseMs === 0) return void this.#tryConnect();
    this.#cancelPause = this.#setup.clock.after(pauseMs, () => {
      if (!this.done) void this.#tryConnect();
    });
  }

  async #tryConnect(): Promise<void> {
    let go: () => void;
    try {
      go = await this.open(this.options.timeouts?.connectMs ?? this.#setup.timeouts.connectMs);
    } catch (error) {
      if (this.done) return;
      this.lease.target.reportConnectFailure(error);
      return this.#connectFailed(error);
    }
    go();
  }

  #connectFailed(error: unknown): void {
    const { label, retired } = this.lease.target;
    const isSlow = error instanceof ConnectFailed && error.reason === "timeout";
    const mayTry = this.options.returnFailure !== true && !isSlow && !retired &&
      this.tries < this.#setup.connectTries;
    if (mayTry) return this.connect();
    if (isSlow) return this.failed("upstream_timeout", `connect: no connection to ${label}`, true);
    const why = error instanceof ConnectFailed ? error.reason : "other";
    this.failed("upstream_connect_failed", `no connection to ${label} (${why})`, true);
  }

  // ------------------------------------------------------------------------------- the request

  abstract onRequestChunk(chunk: Uint8Array): void;
  abstract onRequestEnd(trailers: string): void;
  abstract onRequestFlush(): void;

  /** The target takes no more for now. */
  protected pauseRequest(): void {
    this.#requestPaused = true;
    this.exchange.pauseRequest();
  }

  /** It does again. */
  protected resumeRequest(): void {
    if (this.done || !this.#requestPaused) return;
    this.#requestPaused = false;
    this.waitForFirstByte();
    this.exchange.resumeRequest();
  }

  protected waitForFirstByte(): void {
    if (this.status !== 0) return;
    this.#wait(this.options.timeouts?.firstByteMs ?? this.#setup.timeouts.firstByteMs);
  }

  #waitInside(): void {
    if (this.status === 0) return;
    this.#wait(this.options.timeouts?.idleMs ?? this.#setup.timeouts.idleMs);
  }

  #wait(ms: number): void {
    this.waitUntil(ms > 0 ? this.#setup.clock.monotonic() + ms : Infinity);
  }

  protected timedOut(): void {
    const where = this.status === 0 ? "first_byte" : "idle";
    this.failed("upstream_timeout", `${where}: no byte from the target in time`);
  }

  // -------------------------------------------------------------------------------- the answer

  /** An interim answer leaves as it comes, as long as the client takes them. */
  protected passInterim(status: number, reason: string, head: Head): void {
    if (this.done || this.exchange.inform(status, reason, head.crossing(HOP_BY_HOP))) return;
    this.#answerPaused = true;
    this.pauseAnswer();
  }

  /** The answer's head has come; `more` are lines that it lacks. */
  protected answered(
    status: number,
    reason: string,
    head: Head,
    framing: Framing,
    length: number,
    more: string,
  ): void {
    this.status = status;
    let drop = HOP_BY_HOP;
    if (status === 204) drop |= bit(CONTENT_LENGTH);
    let extra = more;
    if (!head.has(X_REQUEST_ID)) extra += `x-request-id: ${this.exchange.requestId}\r\n`;
    if (this.#setup.showGeneration) {
      drop |= bit(X_BATON_GENERATION);
      const { version, generation } = this.lease.target;
      extra += `x-baton-generation: ${version}#${generation}\r\n`;
    }
    if (framing === "chunked" || framing === "close") this.lease.kind = "stream";
    this.options.onHead?.(status, head.lines());
    const lines = head.crossing(drop) + extra;
    this.exchange.startAnswer(status, reason, lines, framing, length, head.has(DATE));
    this.#waitInside();
  }

  protected passOn(chunk: Uint8Array): void {
    this.bytesToClient += chunk.length;
    this.options.onBody?.(chunk);
    this.exchange.answerChunk(chunk);
  }

  protected passEnd(trailers: string): void {
    this.answerEnded = true;
    this.exchange.endAnswer(this.exchange.acceptsTrailers ? crossingTrailers(trailers) : "");
  }

  /** All of one read was passed on: it leaves. */
  protected flushAnswer(): void {
    if (this.done) return;
    if (this.answerEnded) {
      if (this.#answerPaused) this.resumeAnswer();
      // First, so that a request that waits behind this one finds the connection idle.
      this.finish("complete", this.status);
      return void this.exchange.flushAnswer();
    }
    const hasRoom = this.exchange.flushAnswer();
    if (this.done) return;
    if (hasRoom) return this.#waitInside();
    this.#answerPaused = true;
    this.pauseAnswer();
    if (this.status !== 0) this.waitUntil(Infinity);
  }

  onClientDrain(): void {
    if (!this.#answerPaused) return;
    this.#answerPaused = false;
    this.#waitInside();
    this.resumeAnswer();
  }

  // ---------------------------------------------------------------------------------- the ends

  protected failed(code: FailureCode, message: string, nothingSent = false): void {
    if (this.done) return;
    const { exchange } = this;
    if (this.status !== 0 && exchange.answered) {
      exchange.breakAnswer(code);
    } else if (this.options.returnFailure === true && !exchange.answered) {
      exchange.detach();
      const again = nothingSent && this.requestBytes === 0;
      return this.finish("upstream_failed", 0, code, again);
    } else {
      exchange.fail(new BatonError(code, message, { detail: { request_id: exchange.requestId } }));
    }
    const status = this.status !== 0 ? this.status : code === "upstream_timeout" ? 504 : 502;
    this.finish("upstream_failed", status, code, nothingSent);
  }

  onClientGone(cut?: string): void {
    if (cut === undefined) this.finish("client_closed", 499);
    else this.finish("cut", this.exchange.answered ? this.status : 503, cut);
  }

  protected cut(reason: string): void {
    if (this.done) return;
    const { exchange } = this;
    const status = exchange.answered ? this.status : 503;
    if (exchange.answered) exchange.breakAnswer(reason);
    else exchange.fail(new BatonError("draining", `cut: ${reason}`));
    this.finish("cut", status, reason);
  }

  protected finish(
    result: ForwardOutcome["result"],
    status: number,
    reason?: string,
    retriable = false,
  ): void {
    if (this.done) return;
    this.done = true;
    this.#cancelPause?.();
    this.letGo(result === "complete" && this.requestEnded);
    const isCut = result === "cut" || (result === "upstream_failed" && !retriable);
    this.lease.release(isCut ? reason ?? result : undefined);
    const outcome = { result, status, retriable, bytesToClient: this.bytesToClient };
    this.#resolve(reason === undefined ? outcome : { ...outcome, reason });
  }
}
