/**
 * Moves one request to a target that speaks HTTP/2, and the answer back: what forward.ts is for
 * HTTP/1.1, with the same promises about leases, retries and backpressure.
 */

import { BatonError } from "../errors.ts";
import { ConnectFailed } from "../runtime/runtime.ts";
import type { ClientSide, RequestSink } from "./client_side.ts";
import type { Deadlines, Timed } from "./deadlines.ts";
import type { ForwardOptions, ForwardOutcome } from "./exchange.ts";
import { H2Session, type H2SessionOptions, H2Sessions } from "./h2_sessions.ts";
import {
  bit,
  CONTENT_LENGTH,
  DATE,
  EXPECT,
  type Head,
  HOP_BY_HOP,
  HOST,
  X_BATON_GENERATION,
  X_REQUEST_ID,
} from "./head.ts";
import type { ClientStream } from "./http2/client_session.ts";
import type { ClientStreamHandlers } from "./http2/handlers.ts";
import { H2_ERRORS } from "./http2/protocol.ts";
import { CONNECT_PAUSES_MS, IDEMPOTENT } from "./retry_rules.ts";
import type { Lease, Target } from "./target.ts";
import type { Timeouts } from "./timeouts.ts";

export interface H2ForwardOptions extends H2SessionOptions {
  readonly timeouts: Timeouts;
  readonly connectTries: number;
  readonly showGeneration: boolean;
}

type FailureCode =
  | "upstream_reset"
  | "upstream_bad_response"
  | "upstream_timeout"
  | "upstream_connect_failed";

/** The sessions of all targets that speak HTTP/2. */
export class H2Forwarder {
  readonly options: H2ForwardOptions;
  readonly #sessions = new WeakMap<Target, H2Sessions>();

  constructor(options: H2ForwardOptions) {
    this.options = options;
  }

  sessions(target: Target): H2Sessions {
    let sessions = this.#sessions.get(target);
    if (sessions === undefined) {
      sessions = new H2Sessions(target, this.options);
      this.#sessions.set(target, sessions);
    }
    return sessions;
  }

  forward(side: ClientSide, lease: Lease, options: ForwardOptions): Promise<ForwardOutcome> {
    return new Promise((resolve) => new H2Relay(this, side, lease, options, resolve).start());
  }
}

class H2Relay implements RequestSink, ClientStreamHandlers, Timed {
  deadlineMs = Infinity;
  deadlinePlace = -1;
  readonly #engine: H2Forwarder;
  readonly #deadlines: Deadlines;
  readonly #exchange: ClientSide;
  readonly #lease: Lease;
  readonly #options: ForwardOptions;
  readonly #resolve: (outcome: ForwardOutcome) => void;
  readonly #sessions: H2Sessions;
  #session: H2Session | undefined;
  #stream: ClientStream | undefined;
  #tries = 0;
  #mayRepeat: boolean;
  #requestEnded: boolean;
  #requestBytes = 0;
  #requestPaused = false;
  #answerPaused = false;
  #answerEnded = false;
  #bytesToClient = 0;
  #status = 0;
  #done = false;

  constructor(
    engine: H2Forwarder,
    exchange: ClientSide,
    lease: Lease,
    options: ForwardOptions,
    resolve: (outcome: ForwardOutcome) => void,
  ) {
    this.#engine = engine;
    this.#deadlines = engine.options.deadlines;
    this.#exchange = exchange;
    this.#lease = lease;
    this.#options = options;
    this.#resolve = resolve;
    this.#sessions = engine.sessions(lease.target);
    this.#requestEnded = options.body !== undefined || exchange.requestComplete;
    this.#mayRepeat = IDEMPOTENT.has(exchange.method);
  }

  start(): void {
    this.#exchange.note(this.#lease.target.logFields);
    if (this.#exchange.finished) return this.#finish("client_closed", 499);
    this.#lease.cut = (reason) => this.#cut(reason);
    this.#exchange.attach(this);
    this.#deadlines.add(this);
    this.#begin();
  }

  #begin(): void {
    const session = this.#sessions.take();
    if (session === undefined) this.#connect();
    else this.#send(session);
  }

  #connect(): void {
    const pauseMs = CONNECT_PAUSES_MS[Math.min(this.#tries, 2)] as number;
    this.#tries += 1;
    if (pauseMs === 0) return void this.#tryConnect();
    this.#engine.options.runtime.clock.after(pauseMs, () => void this.#tryConnect());
  }

  async #tryConnect(): Promise<void> {
    if (this.#done) return;
    const { connectMs } = { ...this.#engine.options.timeouts, ...this.#options.timeouts };
    try {
      await this.#sessions.connect(connectMs);
    } catch (error) {
      if (this.#done) return;
      this.#lease.target.reportConnectFailure(error);
      return this.#connectFailed(error);
    }
    if (!this.#done) this.#begin();
  }

  #connectFailed(error: unknown): void {
    const { label, retired } = this.#lease.target;
    const isSlow = error instanceof ConnectFailed && error.reason === "timeout";
    const mayTry = this.#options.returnFailure !== true && !isSlow && !retired &&
      this.#tries < this.#engine.options.connectTries;
    if (mayTry) return this.#connect();
    const why = error instanceof ConnectFailed ? error.reason : "other";
    if (isSlow) return this.#failed("upstream_timeout", `connect: no connection to ${label}`, true);
    this.#failed("upstream_connect_failed", `no connection to ${label} (${why})`, true);
  }

  // ------------------------------------------------------------------------------- the request

  #send(session: H2Session): void {
    const exchange = this.#exchange;
    const { body } = this.#options;
    const isComplete = this.#requestEnded && (body === undefined || body.length === 0);
    this.#session = session;
    this.#stream = session.session.request({
      method: exchange.method,
      path: this.#options.target ?? exchange.target,
      authority: exchange.authority ?? exchange.requestHead.first(HOST) ??
        this.#lease.target.hostName,
      lines: this.#lines(body),
      acceptsTrailers: exchange.acceptsTrailers,
      isComplete,
    }, this);
    session.uses += 1;
    session.deadlineMs = Infinity;
    this.#waitForFirstByte();
    if (isComplete) return;
    if (body === undefined) return exchange.resumeRequest();
    this.#stream.write(body);
    this.#stream.end("");
  }

  #lines(body: Uint8Array | undefined): string {
    const exchange = this.#exchange;
    let drop = HOP_BY_HOP | bit(HOST) | exchange.stampedNames;
    let extra = "";
    if (body !== undefined) {
      drop |= bit(CONTENT_LENGTH) | bit(EXPECT);
      if (exchange.requestFraming !== "none") extra = `content-length: ${body.length}\r\n`;
    }
    return exchange.requestHead.crossing(drop) + extra + exchange.stamps;
  }

  onRequestChunk(chunk: Uint8Array): void {
    if (this.#done || this.#stream === undefined) return;
    this.#requestBytes += chunk.length;
    this.#mayRepeat = false;
    this.#waitForFirstByte();
    if (this.#stream.write(chunk)) return;
    this.#requestPaused = true;
    this.#exchange.pauseRequest();
  }

  onRequestEnd(trailers: string): void {
    this.#requestEnded = true;
    this.#stream?.end(this.#exchange.requestFraming === "chunked" ? trailers : "");
  }

  onRequestFlush(): void {}

  drain(): void {
    if (this.#done || !this.#requestPaused) return;
    this.#requestPaused = false;
    this.#waitForFirstByte();
    this.#exchange.resumeRequest();
  }

  #waitForFirstByte(): void {
    if (this.#status !== 0) return;
    const ms = this.#options.timeouts?.firstByteMs ?? this.#engine.options.timeouts.firstByteMs;
    this.#wait(ms);
  }

  #waitInside(): void {
    this.#wait(this.#options.timeouts?.idleMs ?? this.#engine.options.timeouts.idleMs);
  }

  #wait(ms: number): void {
    this.deadlineMs = ms > 0 ? this.#engine.options.runtime.clock.monotonic() + ms : Infinity;
  }

  onDeadline(): void {
    this.deadlineMs = Infinity;
    const where = this.#status === 0 ? "first_byte" : "idle";
    this.#failed("upstream_timeout", `${where}: no byte from the target in time`);
  }

  // -------------------------------------------------------------------------------- the answer

  inform(status: number, head: Head): void {
    if (!this.#done) this.#exchange.inform(status, "", head.crossing(HOP_BY_HOP));
  }

  head(status: number, head: Head, isComplete: boolean): void {
    if (this.#done) return;
    const exchange = this.#exchange;
    this.#status = status;
    let drop = HOP_BY_HOP;
    if (status === 204) drop |= bit(CONTENT_LENGTH);
    let extra = "";
    if (!head.has(X_REQUEST_ID)) extra = `x-request-id: ${exchange.requestId}\r\n`;
    if (this.#engine.options.showGeneration) {
      drop |= bit(X_BATON_GENERATION);
      const { version, generation } = this.#lease.target;
      extra += `x-baton-generation: ${version}#${generation}\r\n`;
    }
    const isBodiless = exchange.method === "HEAD" || status === 204 || status === 304;
    let stated = head.first(CONTENT_LENGTH);
    if (isComplete && stated === undefined && !isBodiless) {
      stated = "0";
      extra += "content-length: 0\r\n";
    }
    const framing = isBodiless ? "none" : stated === undefined ? "chunked" : "length";
    if (framing === "chunked") this.#lease.kind = "stream";
    this.#options.onHead?.(status, head.lines());
    const lines = head.crossing(drop) + extra;
    exchange.startAnswer(status, "", lines, framing, Number(stated ?? 0), head.has(DATE));
    this.#waitInside();
  }

  data(chunk: Uint8Array): void {
    if (this.#done) return;
    this.#bytesToClient += chunk.length;
    this.#options.onBody?.(chunk);
    this.#exchange.answerChunk(chunk);
  }

  end(trailers: string): void {
    if (this.#done) return;
    this.#answerEnded = true;
    this.#exchange.endAnswer(this.#exchange.acceptsTrailers ? trailers : "");
    this.#finish("complete", this.#status);
    this.#exchange.flushAnswer();
  }

  flush(): void {
    if (!this.#done && this.#status !== 0) this.#flush();
  }

  #flush(): void {
    const hasRoom = this.#exchange.flushAnswer();
    if (this.#done) return;
    if (hasRoom) return this.#waitInside();
    this.#answerPaused = true;
    this.deadlineMs = Infinity;
    this.#stream?.pause();
  }

  onClientDrain(): void {
    if (!this.#answerPaused) return;
    this.#answerPaused = false;
    this.#waitInside();
    this.#stream?.resume();
  }

  // ---------------------------------------------------------------------------------- the ends

  close(code: number): void {
    if (this.#done || this.#answerEnded) return;
    this.#stream = undefined;
    const session = this.#session;
    const hasBegun = this.#status !== 0 || this.#exchange.answered;
    // REFUSED_STREAM promises that nothing was done (RFC 9113 section 8.7); a session that was
    // idle may have been closed under the request, which then must do no harm twice.
    const isRefused = code === H2_ERRORS.refusedStream;
    const isStale = session !== undefined && session.uses > 1 && this.#mayRepeat;
    const isWhole = this.#requestEnded && this.#requestBytes === 0;
    if (!hasBegun && isWhole && (isRefused || isStale) && this.#tries < 3) {
      this.#tries += 1;
      this.#mayRepeat = false;
      return this.#begin();
    }
    this.#failed("upstream_reset", `the target ended the stream (${code})`, isRefused);
  }

  #failed(code: FailureCode, message: string, nothingSent = false): void {
    if (this.#done) return;
    const exchange = this.#exchange;
    if (this.#status !== 0 && exchange.answered) {
      exchange.breakAnswer(code);
    } else if (this.#options.returnFailure === true && !exchange.answered) {
      exchange.detach();
      const again = nothingSent && this.#requestBytes === 0;
      return this.#finish("upstream_failed", 0, code, again);
    } else {
      exchange.fail(new BatonError(code, message, { detail: { request_id: exchange.requestId } }));
    }
    const status = this.#status !== 0 ? this.#status : code === "upstream_timeout" ? 504 : 502;
    this.#finish("upstream_failed", status, code, nothingSent);
  }

  onClientGone(): void {
    if (!this.#done) this.#finish("client_closed", 499);
  }

  #cut(reason: string): void {
    if (this.#done) return;
    const exchange = this.#exchange;
    if (exchange.answered) exchange.breakAnswer(reason);
    else exchange.fail(new BatonError("draining", `cut: ${reason}`));
    this.#finish("cut", exchange.answered ? this.#status : 503, reason);
  }

  #finish(
    result: ForwardOutcome["result"],
    status: number,
    reason?: string,
    retriable = false,
  ): void {
    if (this.#done) return;
    this.#done = true;
    this.deadlineMs = Infinity;
    this.#deadlines.remove(this);
    if (result !== "complete" || !this.#requestEnded) this.#stream?.reset(H2_ERRORS.cancel);
    this.#stream = undefined;
    this.#lease.release();
    const outcome = { result, status, retriable, bytesToClient: this.#bytesToClient };
    this.#resolve(reason === undefined ? outcome : { ...outcome, reason });
  }
}
