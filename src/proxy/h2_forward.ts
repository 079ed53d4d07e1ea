/**
 * Moves requests to targets that speak HTTP/2: what forward.ts is for HTTP/1.1, with the same promises
 * about leases, retries and backpressure.
 */

import type { ClientSide } from "./client_side.ts";
import type { Timed } from "./deadlines.ts";
import type { ForwardOptions, ForwardOutcome } from "./exchange.ts";
import { H2Session, type H2SessionOptions, H2Sessions } from "./h2_sessions.ts";
import {
  bit,
  CONTENT_LENGTH,
  crossingTrailers,
  EXPECT,
  type Head,
  HOP_BY_HOP,
  HOST,
} from "./head.ts";
import { isBodiless } from "./client_exchange.ts";
import type { ClientStream } from "./http2/client_session.ts";
import type { ClientStreamHandlers } from "./http2/handlers.ts";
import { H2_ERRORS } from "./http2/protocol.ts";
import { Relay, type RelayJob, type RelaySetup } from "./relay.ts";
import type { Lease, Target } from "./target.ts";

export interface H2ForwardOptions extends H2SessionOptions, RelaySetup {}

/** Connects and refused streams, all together, before a request fails. */
const MOST_TRIES = 3;

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

  forward(exchange: ClientSide, lease: Lease, options: ForwardOptions): Promise<ForwardOutcome> {
    return new Promise((resolve) => {
      new H2Relay(this, { exchange, lease, options, resolve }).start();
    });
  }
}

class H2Relay extends Relay implements ClientStreamHandlers, Timed {
  deadlineMs = Infinity;
  deadlinePlace = -1;
  readonly #engine: H2Forwarder;
  readonly #sessions: H2Sessions;
  #session: H2Session | undefined;
  #stream: ClientStream | undefined;

  constructor(engine: H2Forwarder, job: RelayJob) {
    super(engine.options, job);
    this.#engine = engine;
    this.#sessions = engine.sessions(job.lease.target);
    engine.options.deadlines.add(this);
  }

  protected begin(): void {
    const session = this.#sessions.take();
    if (session === undefined) this.connect();
    else this.#send(session);
  }

  protected async open(timeoutMs: number): Promise<() => void> {
    await this.#sessions.connect(timeoutMs);
    return () => {
      // Many wait for one session, and it may have no room for all of them.
      if (!this.done) this.begin();
    };
  }

  protected letGo(isWhole: boolean): void {
    this.deadlineMs = Infinity;
    this.#engine.options.deadlines.remove(this);
    if (!isWhole) this.#stream?.reset(H2_ERRORS.cancel);
    this.#stream = undefined;
  }

  protected waitUntil(deadlineMs: number): void {
    this.deadlineMs = deadlineMs;
  }

  protected pauseAnswer(): void {
    this.#stream?.pause();
  }

  protected resumeAnswer(): void {
    this.#stream?.resume();
  }

  onDeadline(): void {
    this.deadlineMs = Infinity;
    this.timedOut();
  }

  // ------------------------------------------------------------------------------- the request

  #send(session: H2Session): void {
    const { exchange } = this;
    const { body } = this.options;
    const isComplete = this.requestEnded && (body === undefined || body.length === 0);
    this.#session = session;
    this.#stream = session.session.request({
      method: exchange.method,
      path: this.options.target ?? exchange.target,
      authority: exchange.authority ?? exchange.requestHead.first(HOST) ??
        this.lease.target.hostName,
      lines: this.#lines(body),
      acceptsTrailers: exchange.acceptsTrailers,
      isComplete,
    }, this);
    session.uses += 1;
    session.deadlineMs = Infinity;
    this.waitForFirstByte();
    if (isComplete) return;
    if (body === undefined) return exchange.resumeRequest();
    this.#stream.write(body);
    this.#stream.end("");
  }

  #lines(body: Uint8Array | undefined): string {
    const { exchange } = this;
    let drop = HOP_BY_HOP | bit(HOST) | exchange.stampedNames;
    let extra = "";
    if (body !== undefined) {
      drop |= bit(CONTENT_LENGTH) | bit(EXPECT);
      if (exchange.requestFraming !== "none") extra = `content-length: ${body.length}\r\n`;
    }
    return exchange.requestHead.crossing(drop) + extra + exchange.stamps;
  }

  onRequestChunk(chunk: Uint8Array): void {
    if (this.done || this.#stream === undefined) return;
    this.requestBytes += chunk.length;
    this.mayRepeat = false;
    this.waitForFirstByte();
    if (!this.#stream.write(chunk)) this.pauseRequest();
  }

  onRequestEnd(trailers: string): void {
    this.requestEnded = true;
    const isChunked = this.exchange.requestFraming === "chunked";
    this.#stream?.end(isChunked ? crossingTrailers(trailers) : "");
  }

  onRequestFlush(): void {}

  drain(): void {
    this.resumeRequest();
  }

  // -------------------------------------------------------------------------------- the answer

  inform(status: number, head: Head): void {
    this.mayRepeat = false;
    this.passInterim(status, "", head);
  }

  head(status: number, head: Head, isComplete: boolean): void {
    if (this.done) return;
    const hasNone = isBodiless(this.exchange.method, status);
    let stated = head.first(CONTENT_LENGTH);
    let more = "";
    if (isComplete && stated === undefined && !hasNone) {
      stated = "0";
      more = "content-length: 0\r\n";
    }
    const framing = hasNone ? "none" : stated === undefined ? "chunked" : "length";
    this.answered(status, "", head, framing, Number(stated ?? 0), more);
  }

  data(chunk: Uint8Array): void {
    if (!this.done) this.passOn(chunk);
  }

  end(trailers: string): void {
    if (!this.done) this.passEnd(trailers);
  }

  flush(): void {
    if (this.status !== 0) this.flushAnswer();
  }

  // ---------------------------------------------------------------------------------- the ends

  close(code: number): void {
    if (this.done || this.answerEnded) return;
    const session = this.#session;
    const isMalformed = this.#stream?.isResetByUs === true;
    this.#stream = undefined;
    const hasBegun = this.status !== 0 || this.exchange.answered;
    // REFUSED_STREAM promises that nothing was done (RFC 9113 section 8.7); a session that was
    // idle may have been closed under the request, which then must do no harm twice.
    const isRefused = code === H2_ERRORS.refusedStream && !isMalformed;
    const isStale = session !== undefined && session.session.isGone && session.uses > 1 &&
      this.mayRepeat;
    const isWhole = this.requestEnded && this.requestBytes === 0;
    if (!hasBegun && isWhole && (isRefused || isStale) && this.tries < MOST_TRIES) {
      this.tries += 1;
      this.mayRepeat = false;
      return this.begin();
    }
    if (isMalformed) return this.failed("upstream_bad_response", `a malformed answer (${code})`);
    this.failed("upstream_reset", `the target ended the stream (${code})`, isRefused);
  }
}
