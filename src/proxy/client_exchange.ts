/**
 * One request of a client and its answer: all of an exchange that is the same over every protocol.
 *
 * What belongs to one write is put together first (head, body bytes of one read, the end) and leaves
 * with `flushAnswer`. How bytes travel is the subclass's.
 */

import { BatonError } from "../errors.ts";
import type { ClientSide, Framing, RawSide, RequestSink, TunnelEnd } from "./client_side.ts";
import type { Head } from "./head.ts";
import {
  bodilessAnswer,
  errorAnswer,
  joinPieces,
  readWholeBody,
  responseLines,
  streamResponse,
} from "./own_answer.ts";
import { normalisePath } from "./path.ts";
import { reasonPhrase } from "./reason_phrase.ts";
import type { Timeouts } from "./timeouts.ts";
import type { Served, TrafficCore } from "./traffic_core.ts";

/** What the connection found out about a request before it became an exchange. */
export interface RequestFacts {
  readonly requestId: string;
  readonly method: string;
  readonly target: string;
  readonly head: Head;
  readonly httpVersion: number;
  readonly framing: Framing;
  readonly length: number;
  readonly authority: string | undefined;
  readonly upgrade: string | undefined;
  readonly acceptsTrailers: boolean;
  readonly keepAlive: boolean;
  readonly stamps: string;
  readonly stampedNames: number;
  readonly startedMs: number;
}

/** The connection that an exchange belongs to, as far as every exchange knows it. */
export interface ClientConnection {
  readonly core: TrafficCore;
  readonly remoteAddress: string;
}

export abstract class ClientExchange implements ClientSide, Served {
  readonly requestId: string;
  readonly method: string;
  readonly target: string;
  readonly requestHead: Head;
  readonly httpVersion: number;
  readonly requestFraming: Framing;
  readonly requestLength: number;
  readonly authority: string | undefined;
  readonly upgrade: string | undefined;
  readonly acceptsTrailers: boolean;
  readonly stamps: string;
  readonly stampedNames: number;
  readonly startedMs: number;
  readonly remoteAddress: string;
  /** Whether the client may send another request on the connection afterwards. */
  keepAlive: boolean;
  status = 0;
  reason: string | undefined;
  bytesToClient = 0;
  bytesFromClient = 0;
  firstByteMs = 0;
  notes: Record<string, unknown> | undefined;
  /** Taken by the core when it admitted the exchange; called when its last byte has left. */
  release: (() => void) | undefined;
  sink: RequestSink | undefined;
  timeouts: Partial<Timeouts> | undefined;
  requestPaused = true;
  requestComplete: boolean;
  answered = false;
  finished = false;
  protected readonly core: TrafficCore;
  /** The answer has a body on the wire. */
  protected hasBody = false;
  /** The answer's end is among what was put together. */
  protected hasEnd = false;
  /** Lines that come after the body. */
  protected trailers = "";
  #path: string | undefined;
  #abortListeners: (() => void)[] | undefined;
  #pieces: Uint8Array[] = [];

  constructor(connection: ClientConnection, facts: RequestFacts) {
    this.core = connection.core;
    this.remoteAddress = connection.remoteAddress;
    this.requestId = facts.requestId;
    this.method = facts.method;
    this.target = facts.target;
    this.requestHead = facts.head;
    this.httpVersion = facts.httpVersion;
    this.requestFraming = facts.framing;
    this.requestLength = facts.length;
    this.authority = facts.authority;
    this.upgrade = facts.upgrade;
    this.acceptsTrailers = facts.acceptsTrailers;
    this.keepAlive = facts.keepAlive;
    this.stamps = facts.stamps;
    this.stampedNames = facts.stampedNames;
    this.startedMs = facts.startedMs;
    this.requestComplete = facts.framing === "none";
  }

  get path(): string {
    return this.#path ??= normalisePath(this.target);
  }

  get headers(): readonly string[] {
    return this.requestHead.lines();
  }

  header(name: string): string | undefined {
    return this.requestHead.find(name);
  }

  onAbort(listener: () => void): void {
    if (!this.finished) (this.#abortListeners ??= []).push(listener);
  }

  note(fields: Readonly<Record<string, unknown>>): void {
    this.notes = this.notes === undefined ? fields : { ...this.notes, ...fields };
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
  }

  abstract resumeRequest(): void;

  readBody(limitBytes: number): Promise<Uint8Array> {
    return readWholeBody(this, limitBytes);
  }

  /** The body is refused: whoever reads it hears that the client is gone, and it gets its answer. */
  breakRequest(error: BatonError, cut?: string): void {
    const { sink } = this;
    this.sink = undefined;
    sink?.onClientGone(cut);
    if (this.answered) this.breakAnswer(error.code);
    else this.fail(error);
  }

  /** The client is gone. */
  abandon(): void {
    if (this.finished) return;
    this.finished = true;
    this.reason ??= "client_closed";
    this.status = 499;
    const { sink } = this;
    this.sink = undefined;
    sink?.onClientGone();
    for (const listener of this.#abortListeners ?? []) listener();
    this.core.finished(this);
  }

  /** There is no more time for it: the client hears that, as far as it can still be told. */
  cut(): void {
    if (this.finished) return;
    const listeners = this.#abortListeners ?? [];
    this.#abortListeners = undefined;
    this.keepAlive = false;
    const error = new BatonError("draining", "cut: no time is left", { retryAfterS: 1 });
    this.breakRequest(error, error.code);
    for (const listener of listeners) listener();
  }

  // -------------------------------------------------------------------------------- the answer

  abstract inform(status: number, reason: string, lines: string): boolean;

  abstract startAnswer(
    status: number,
    reason: string,
    lines: string,
    framing: Framing,
    length: number,
    hasDate: boolean,
  ): void;

  answerChunk(chunk: Uint8Array): void {
    if (!this.hasBody || this.finished) return;
    this.bytesToClient += chunk.length;
    this.#pieces.push(chunk);
  }

  endAnswer(trailers: string): void {
    if (this.finished) return;
    this.hasEnd = true;
    this.trailers = trailers;
  }

  flushAnswer(): boolean {
    if (this.finished) return true;
    const hasRoom = this.write(this.#takeBody());
    if (this.hasEnd) {
      this.finished = true;
      this.sink = undefined;
      this.complete();
    } else if (!hasRoom) this.stalled();
    return hasRoom;
  }

  #takeBody(): Uint8Array | undefined {
    const pieces = this.#pieces;
    if (pieces.length === 0) return undefined;
    let body = pieces[0] as Uint8Array;
    if (pieces.length > 1) {
      let size = 0;
      for (const piece of pieces) size += piece.length;
      body = joinPieces(pieces, size);
    }
    pieces.length = 0;
    return body;
  }

  /** Sends what was put together, with these bytes of the body; see `flushAnswer`. */
  protected abstract write(body: Uint8Array | undefined): boolean;
  /** The last of the answer was written. */
  protected abstract complete(): void;
  /** The client does not take what was written. */
  protected abstract stalled(): void;
  /** What was written is not all: the client has to see that. */
  protected abstract breakOff(): void;

  breakAnswer(reason: string): void {
    if (this.finished) return;
    this.finished = true;
    this.reason ??= reason;
    this.sink = undefined;
    this.write(this.#takeBody());
    this.breakOff();
  }

  fail(error: unknown): void {
    if (this.answered || this.finished) return;
    const { status, lines, body, code } = errorAnswer(error, this.requestId);
    this.reason ??= code;
    this.sendWhole(status, lines, body);
  }

  respond(response: Response): void {
    if (this.answered || this.finished) return void response.body?.cancel();
    const lines = responseLines(response, this.requestId);
    if (lines === undefined) return this.fail(new BatonError("internal", "internal error"));
    if (response.body !== null) return void streamResponse(this, response, response.body, lines);
    const whole = bodilessAnswer(this.method, response.status, lines);
    this.sendWhole(whole.status, whole.lines, whole.body);
  }

  /** Answers with a whole answer of our own. */
  protected sendWhole(status: number, lines: string, body: Uint8Array): void {
    this.startAnswer(status, reasonPhrase(status), lines, "length", body.length, false);
    this.answerChunk(body);
    this.endAnswer("");
    this.flushAnswer();
  }

  abstract openTunnel(reason: string, lines: string, end: TunnelEnd): RawSide;
  abstract closeTunnel(reason: string | undefined, bytesToClient: number): void;
}

/** Whether an answer to this request has a body, whatever its fields say (RFC 9110 section 6.4.1). */
export function isBodiless(method: string, status: number): boolean {
  return method === "HEAD" || status === 204 || status === 304;
}
