/**
 * One HTTP/2 stream of a client: a request and its answer, like any other exchange.
 *
 * Flow control is the backpressure: a body that nobody reads is not acknowledged, and an answer that
 * the client's window has no room for stays with us, at most one high-water mark of it.
 */

import { BatonError } from "../errors.ts";
import type { Framing, RawSide, RequestSink } from "./client_side.ts";
import type { Timed } from "./deadlines.ts";
import type { RequestFacts } from "./h1_exchange.ts";
import type { Head } from "./head.ts";
import type { StreamHandlers } from "./http2/handlers.ts";
import { H2_ERRORS } from "./http2/protocol.ts";
import type { ServerStream } from "./http2/server_session.ts";
import {
  bodilessAnswer,
  errorAnswer,
  joinPieces,
  readWholeBody,
  responseLines,
  streamResponse,
} from "./own_answer.ts";
import { normalisePath } from "./path.ts";
import type { Served, TrafficCore } from "./traffic_core.ts";

/** How long the rest of a broken answer may take to leave before the stream is reset. */
const LAST_BYTES_MS = 2000;

/** The connection that a stream belongs to, as the stream sees it. */
export interface H2Owner {
  readonly core: TrafficCore;
  readonly remoteAddress: string;
  /** The stream is closed. `wasGivenUp`: by the client, before its answer was complete. */
  ended(exchange: H2Exchange, wasGivenUp: boolean): void;
}

export class H2Exchange implements Served, StreamHandlers, Timed {
  deadlineMs = Infinity;
  deadlinePlace = -1;
  /** Where its connection keeps it. */
  place = -1;
  readonly requestId: string;
  readonly method: string;
  readonly target: string;
  readonly requestHead: Head;
  readonly httpVersion = 20;
  readonly requestFraming: Framing;
  readonly requestLength: number;
  readonly authority = undefined;
  readonly upgrade = undefined;
  readonly acceptsTrailers: boolean;
  readonly stamps: string;
  readonly stampedNames: number;
  readonly startedMs: number;
  /** Of no use here: one stream of many does not end the connection. */
  keepAlive = true;
  status = 0;
  reason: string | undefined;
  bytesToClient = 0;
  bytesFromClient = 0;
  firstByteMs = 0;
  notes: Record<string, unknown> | undefined;
  release: (() => void) | undefined;
  sink: RequestSink | undefined;
  requestPaused = true;
  requestComplete: boolean;
  answered = false;
  finished = false;

  readonly #owner: H2Owner;
  readonly #stream: ServerStream;
  #path: string | undefined;
  #abortListeners: (() => void)[] | undefined;
  #pieces: Uint8Array[] = [];
  #bytes = 0;
  #trailers = "";
  #hasBody = false;
  #ended = false;
  #isStalled = false;
  #windowBytes = 0;
  #isClosed = false;

  constructor(owner: H2Owner, stream: ServerStream, facts: RequestFacts) {
    this.#owner = owner;
    this.#stream = stream;
    this.requestId = facts.requestId;
    this.method = facts.method;
    this.target = facts.target;
    this.requestHead = facts.head;
    this.requestFraming = facts.framing;
    this.requestLength = facts.length;
    this.acceptsTrailers = facts.acceptsTrailers;
    this.stamps = facts.stamps;
    this.stampedNames = facts.stampedNames;
    this.startedMs = facts.startedMs;
    this.requestComplete = facts.framing === "none";
    owner.core.deadlines.add(this);
    if (!this.requestComplete) this.#startWindow();
    stream.handle(this);
  }

  get path(): string {
    return this.#path ??= normalisePath(this.target);
  }

  get headers(): readonly string[] {
    return this.requestHead.lines();
  }

  get remoteAddress(): string {
    return this.#owner.remoteAddress;
  }

  header(name: string): string | undefined {
    return this.requestHead.find(name);
  }

  onAbort(listener: () => void): void {
    if (!this.finished) (this.#abortListeners ??= []).push(listener);
  }

  note(fields: Readonly<Record<string, unknown>>): void {
    this.notes = { ...this.notes, ...fields };
  }

  // ------------------------------------------------------------------------------- the request

  attach(sink: RequestSink): void {
    this.sink = sink;
  }

  detach(): void {
    this.sink = undefined;
    this.pauseRequest();
  }

  pauseRequest(): void {
    this.requestPaused = true;
    if (!this.requestComplete) this.#stream.pause();
  }

  resumeRequest(): void {
    if (!this.requestPaused) return;
    this.requestPaused = false;
    // A flush follows: the head must not wait for a body that waits for word from the target.
    this.#stream.resume();
  }

  readBody(limitBytes: number): Promise<Uint8Array> {
    return readWholeBody(this, limitBytes);
  }

  data(chunk: Uint8Array): void {
    const { sink } = this;
    const most = this.#owner.core.limits.bodyBytes;
    this.#windowBytes += chunk.length;
    this.bytesFromClient += chunk.length;
    if (sink === undefined) return;
    if (most > 0 && this.bytesFromClient > most) return this.#breakRequest("body_too_large");
    sink.onRequestChunk(chunk);
  }

  end(trailers: string): void {
    if (this.requestComplete) return;
    this.requestComplete = true;
    if (!this.#isStalled) this.deadlineMs = Infinity;
    this.sink?.onRequestEnd(trailers);
  }

  flush(): void {
    this.sink?.onRequestFlush();
  }

  /** The body is refused: whoever reads it hears that the client is gone, and it gets its answer. */
  #breakRequest(code: "body_too_large" | "request_timeout"): void {
    const { sink } = this;
    this.sink = undefined;
    sink?.onClientGone();
    if (this.answered) this.breakAnswer(code);
    else this.fail(new BatonError(code, `the request body is refused: ${code}`));
  }

  #startWindow(): void {
    const { limits, now } = { limits: this.#owner.core.limits, now: this.#owner.core.now() };
    this.#windowBytes = 0;
    this.deadlineMs = limits.bodyWindowMs > 0 ? now + limits.bodyWindowMs : Infinity;
  }

  onDeadline(nowMs: number): void {
    this.deadlineMs = Infinity;
    // The client has let its window stay closed for too long, or the last bytes had their time.
    if (this.#isStalled) return this.#stream.reset(H2_ERRORS.cancel);
    if (this.finished) return this.#stream.reset(H2_ERRORS.none);
    if (this.requestComplete) return;
    const { bodyFloorBytes } = this.#owner.core.limits;
    const waitsForUs = this.answered || this.requestPaused;
    if (waitsForUs || this.#windowBytes >= bodyFloorBytes) return this.#startWindow();
    this.deadlineMs = nowMs + LAST_BYTES_MS;
    this.#breakRequest("request_timeout");
  }

  drain(): void {
    if (this.finished) return;
    this.#isStalled = false;
    this.deadlineMs = Infinity;
    if (!this.requestComplete) this.#startWindow();
    this.sink?.onClientDrain();
  }

  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    const wasGivenUp = !this.finished;
    this.deadlineMs = Infinity;
    this.#owner.core.deadlines.remove(this);
    this.#abandon();
    this.#owner.ended(this, wasGivenUp);
  }

  #abandon(): void {
    if (this.finished) return;
    this.finished = true;
    this.reason ??= "client_closed";
    this.status = 499;
    const { sink } = this;
    this.sink = undefined;
    sink?.onClientGone();
    for (const listener of this.#abortListeners ?? []) listener();
    this.#owner.core.finished(this);
  }

  // -------------------------------------------------------------------------------- the answer

  inform(status: number, _reason: string, lines: string): void {
    if (!this.answered && !this.finished) this.#stream.inform(status, lines);
  }

  startAnswer(
    status: number,
    _reason: string,
    lines: string,
    framing: Framing,
    _length: number,
    hasDate: boolean,
  ): void {
    if (this.answered || this.finished) return;
    const { core } = this.#owner;
    this.answered = true;
    this.status = status;
    this.firstByteMs = core.now();
    this.#hasBody = framing !== "none" && this.method !== "HEAD" && status !== 204 &&
      status !== 304;
    this.#stream.respond(status, hasDate ? lines : lines + core.dateLine());
  }

  answerChunk(chunk: Uint8Array): void {
    if (!this.#hasBody || this.finished) return;
    this.#pieces.push(chunk);
    this.#bytes += chunk.length;
  }

  endAnswer(trailers: string): void {
    if (this.finished) return;
    this.#ended = true;
    if (this.#hasBody) this.#trailers = trailers;
  }

  flushAnswer(): boolean {
    if (this.finished) return true;
    const hasRoom = this.#write();
    if (this.#ended) this.#complete();
    else if (!hasRoom) this.#stalled();
    return hasRoom;
  }

  #write(): boolean {
    if (this.#bytes === 0) return true;
    const pieces = this.#pieces;
    const body = pieces.length === 1 ? pieces[0] as Uint8Array : joinPieces(pieces, this.#bytes);
    this.bytesToClient += this.#bytes;
    this.#pieces = [];
    this.#bytes = 0;
    return this.#stream.write(body);
  }

  #stalled(): void {
    const { writeStallMs } = this.#owner.core.limits;
    this.#isStalled = true;
    this.deadlineMs = writeStallMs > 0 ? this.#owner.core.now() + writeStallMs : Infinity;
  }

  #complete(): void {
    this.finished = true;
    this.sink = undefined;
    this.#stream.end(this.#trailers);
    // What is still with us has to be taken in time, and of the request nobody reads any more.
    const { core } = this.#owner;
    if (this.#stream.pendingBytes > 0) this.#stalled();
    else this.deadlineMs = this.requestComplete ? Infinity : core.now() + core.limits.lingerMs;
    this.#owner.core.finished(this);
  }

  breakAnswer(reason: string): void {
    if (this.finished) return;
    this.finished = true;
    this.reason ??= reason;
    this.sink = undefined;
    this.#write();
    this.#owner.core.finished(this);
    this.#isStalled = true;
    this.deadlineMs = this.#owner.core.now() + LAST_BYTES_MS;
    this.#stream.breakOff(H2_ERRORS.internal);
  }

  fail(error: unknown): void {
    if (this.answered || this.finished) return;
    const { status, lines, body, code } = errorAnswer(error, this.requestId);
    this.reason ??= code;
    this.#sendWhole(status, lines, body);
  }

  #sendWhole(status: number, lines: string, body: Uint8Array): void {
    this.startAnswer(status, "", lines, body.length === 0 ? "none" : "length", body.length, false);
    this.answerChunk(body);
    this.endAnswer("");
    this.flushAnswer();
  }

  respond(response: Response): void {
    if (this.answered || this.finished) return void response.body?.cancel();
    const lines = responseLines(response, this.requestId);
    if (lines === undefined) return this.fail(new BatonError("internal", "internal error"));
    if (response.body !== null) return void streamResponse(this, response, response.body, lines);
    const whole = bodilessAnswer(this.method, response.status, lines);
    this.#sendWhole(whole.status, whole.lines, whole.body);
  }

  /** Cannot happen: `upgrade` is never set, so nobody asks the target to switch. */
  openTunnel(): RawSide {
    throw new Error("an HTTP/2 stream has no upgrade");
  }

  closeTunnel(): void {}
}
