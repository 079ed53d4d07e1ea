/**
 * One request on an HTTP/1.1 connection, and the framing of its answer.
 *
 * What belongs to one write is put together first (head, body bytes of one read, last chunk) and
 * leaves with `flushAnswer`.
 */

import { BatonError } from "../errors.ts";
import type { ClientSide, Framing, RawSide, RequestSink, TunnelEnd } from "./client_side.ts";
import type { H1Connection } from "./h1_connection.ts";
import { EXPECT, type Head } from "./head.ts";
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

const MOST_SKIPPED_BYTES = 65536;
const IGNORE: RequestSink = {
  onRequestChunk: () => {},
  onRequestEnd: () => {},
  onRequestFlush: () => {},
  onClientDrain: () => {},
  onClientGone: () => {},
};

export class H1Exchange implements ClientSide {
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
  /** Whether the client may send another request on the connection afterwards. */
  keepAlive: boolean;
  /** For the access log. */
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

  readonly #connection: H1Connection;
  #path: string | undefined;
  #abortListeners: (() => void)[] | undefined;
  #before = "";
  #pieces: Uint8Array[] = [];
  #after = "";
  #framing: Framing = "none";
  #left = 0;
  #ended = false;

  constructor(connection: H1Connection, facts: RequestFacts) {
    this.#connection = connection;
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

  get remoteAddress(): string {
    return this.#connection.remoteAddress;
  }

  header(name: string): string | undefined {
    return this.requestHead.find(name);
  }

  onAbort(listener: () => void): void {
    if (this.finished) return;
    (this.#abortListeners ??= []).push(listener);
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
    this.requestPaused = true;
  }

  pauseRequest(): void {
    this.requestPaused = true;
  }

  resumeRequest(): void {
    if (!this.requestPaused) return;
    this.requestPaused = false;
    this.#connection.resumeRequest();
  }

  readBody(limitBytes: number): Promise<Uint8Array> {
    return readWholeBody(this, limitBytes);
  }

  /** The client is gone, or what it sends is no request any more. */
  abandon(reason: string): void {
    if (this.finished) return;
    this.finished = true;
    this.reason ??= reason;
    if (this.status === 0 || !this.#ended) this.status = 499;
    const sink = this.sink;
    this.sink = undefined;
    sink?.onClientGone();
    for (const listener of this.#abortListeners ?? []) listener();
    this.#connection.core.finished(this);
  }

  // -------------------------------------------------------------------------------- the answer

  inform(status: number, reason: string, lines: string): void {
    if (this.answered || this.finished || this.httpVersion < 11) return;
    this.#connection.write(`HTTP/1.1 ${status} ${reason}\r\n${lines}\r\n`);
  }

  startAnswer(
    status: number,
    reason: string,
    lines: string,
    framing: Framing,
    length: number,
    hasDate: boolean,
  ): void {
    if (this.answered || this.finished) return;
    const core = this.#connection.core;
    this.answered = true;
    this.status = status;
    this.#left = length;
    let extra = hasDate ? "" : core.dateLine();
    if (this.method === "HEAD" || status === 204 || status === 304) this.#framing = "none";
    else if (framing === "length" || framing === "none") this.#framing = framing;
    else if (this.httpVersion >= 11) {
      this.#framing = "chunked";
      extra += "transfer-encoding: chunked\r\n";
    } else {
      this.#framing = "close";
      this.keepAlive = false;
    }
    if (core.draining || !this.requestComplete) this.keepAlive = false;
    if (!this.keepAlive) extra += "connection: close\r\n";
    else if (this.httpVersion < 11) extra += "connection: keep-alive\r\n";
    this.#before = `HTTP/1.1 ${status} ${reason}\r\n${lines}${extra}\r\n`;
    this.firstByteMs = core.now();
  }

  answerChunk(chunk: Uint8Array): void {
    if (this.#framing === "none" || this.finished) return;
    this.bytesToClient += chunk.length;
    this.#pieces.push(chunk);
  }

  endAnswer(trailers: string): void {
    if (this.finished) return;
    this.#ended = true;
    if (this.#framing === "chunked") this.#after = `0\r\n${trailers}\r\n`;
  }

  flushAnswer(): boolean {
    if (this.finished) return true;
    const hasRoom = this.#write();
    if (this.#ended) this.#complete();
    else if (!hasRoom) this.#connection.answerStalled();
    return hasRoom;
  }

  #write(): boolean {
    const pieces = this.#pieces;
    let before = this.#before;
    let after = this.#after;
    this.#before = this.#after = "";
    if (pieces.length === 0) {
      const text = before + after;
      return text === "" ? true : this.#connection.write(text);
    }
    const body = pieces.length === 1 ? pieces[0] as Uint8Array : joinAll(pieces);
    pieces.length = 0;
    if (this.#framing === "chunked") {
      before += `${body.length.toString(16)}\r\n`;
      after = `\r\n${after}`;
    }
    return this.#connection.writeAround(before, body, after);
  }

  #complete(): void {
    this.finished = true;
    this.sink = undefined;
    this.#connection.exchangeDone(this);
  }

  breakAnswer(reason: string): void {
    if (this.finished) return;
    this.finished = true;
    this.reason ??= reason;
    this.sink = undefined;
    this.#write();
    // Without a length or chunks the end of the connection is the end of the body: only a reset
    // tells the client that this one is not.
    this.#connection.breakOff(this, this.#framing === "close");
  }

  fail(error: unknown): void {
    if (this.answered || this.finished) return;
    const { status, lines, body, code } = errorAnswer(error, this.requestId);
    this.reason ??= code;
    if (code === "request_timeout") this.keepAlive = false;
    this.#sendWhole(status, lines, body);
  }

  #sendWhole(status: number, lines: string, body: Uint8Array): void {
    this.#skipSmallBody();
    this.startAnswer(status, reasonPhrase(status), lines, "length", body.length, false);
    this.answerChunk(body);
    this.endAnswer("");
    this.flushAnswer();
  }

  /** A small body that nobody will read is read away, so that the connection can go on. */
  #skipSmallBody(): void {
    if (this.requestComplete || this.sink !== undefined || this.requestFraming !== "length") return;
    if (this.requestLength > MOST_SKIPPED_BYTES || this.requestHead.has(EXPECT)) return;
    this.attach(IGNORE);
    this.resumeRequest();
    this.sink = undefined;
  }

  respond(response: Response): void {
    if (this.answered || this.finished) return void response.body?.cancel();
    const lines = responseLines(response, this.requestId);
    if (lines === undefined) return this.fail(new BatonError("internal", "internal error"));
    if (response.body !== null) return void streamResponse(this, response, response.body, lines);
    const whole = bodilessAnswer(this.method, response.status, lines);
    this.#sendWhole(whole.status, whole.lines, whole.body);
  }

  openTunnel(reason: string, lines: string, end: TunnelEnd): RawSide {
    this.answered = true;
    this.status = 101;
    this.firstByteMs = this.#connection.core.now();
    this.sink = undefined;
    return this.#connection.enterTunnel(`HTTP/1.1 101 ${reason}\r\n${lines}\r\n`, end);
  }

  closeTunnel(reason: string | undefined, bytesToClient: number): void {
    if (this.finished) return;
    this.finished = true;
    this.reason ??= reason;
    this.bytesToClient = bytesToClient;
    this.#connection.core.finished(this);
  }
}

function joinAll(pieces: readonly Uint8Array[]): Uint8Array {
  let size = 0;
  for (const piece of pieces) size += piece.length;
  return joinPieces(pieces, size);
}
