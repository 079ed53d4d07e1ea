/**
 * A client's HTTP/1.1 connection: bytes in, one exchange after the other, bytes out.
 *
 * Plain requests are read by the scanner of head.ts; the rest of what is legal (chunked bodies,
 * HTTP/1.0, heads in several reads, odd spellings) and the verdict on what is not are llhttp's.
 *
 * Over 400 lines because it is one state machine: read head -> read body -> wait for the answer ->
 * read head, with tunnel and closing as its ends.
 */

import { BatonError, type ErrorCode } from "../errors.ts";
import type { ByteSocket, SocketHandlers } from "../runtime/runtime.ts";
import { hasToken } from "./answer_reader.ts";
import type { Framing, RawSide, TunnelEnd } from "./client_side.ts";
import type { Timed } from "./deadlines.ts";
import { H1Exchange } from "./h1_exchange.ts";
import { badRequest, HOST_VALUE, identify, isHttp2Preface, refusalOf } from "./request_rules.ts";
import {
  bit,
  CONNECTION,
  CONTENT_LENGTH,
  Head,
  HOST,
  parseLength,
  type RequestLine,
  scanRequestLine,
  TE,
  TRANSFER_ENCODING,
  UPGRADE,
} from "./head.ts";
import type { ServedConnection, TrafficCore } from "./traffic_core.ts";
import { OddRequest } from "./odd_request.ts";
import { Stamper } from "./stamps.ts";

const READ_HEAD = 0;
const READ_BODY = 1;
const WAIT = 2;
const TUNNEL = 3;
const CLOSING = 4;
const CLOSED = 5;

/** What a client may send ahead while its request is being answered. */
const MOST_STASHED_BYTES = 65536;
/** What is read and thrown away, after an early answer, so that the client gets to read it. */
const MOST_LINGER_BYTES = 16 * 1024 * 1024;
const NONE = new Uint8Array(0);

const ABSOLUTE_FORM = /^https?:\/\/([^/?#]*)(.*)$/i;

export class H1Connection implements ServedConnection, SocketHandlers, Timed {
  deadlineMs: number;
  deadlinePlace = -1;
  place = -1;
  readonly core: TrafficCore;
  readonly remoteAddress: string;
  readonly #socket: ByteSocket;
  readonly #stamper: Stamper;
  readonly #head = new Head();
  readonly #line: RequestLine = { method: "", target: "" };
  #state = READ_HEAD;
  #exchange: H1Exchange | undefined;
  /** Bytes that came before they could be used. */
  #stash: Uint8Array = NONE;
  /** No byte of a request was read yet: the client may still begin HTTP/2. */
  #isNew = true;
  #isPaused = false;
  #isRunning = false;
  #bodyLeft = 0;
  #windowBytes = 0;
  #lingerBytes = 0;
  #hasFin = false;
  #lastHost: string | undefined;
  #tunnel: TunnelEnd | undefined;
  /** Exchanges whose last bytes still wait for the client's window. */
  #owed: (() => void)[] = [];
  /** Only the connection's end tells the client that the last answer is whole. */
  #endsLastAnswer = false;
  /** Since when the client has not taken what was written (monotonic); Infinity while it does. */
  #stalledSinceMs = Infinity;
  /** The present request, when it is llhttp that reads it. */
  #odd: OddRequest | undefined;

  constructor(core: TrafficCore, socket: ByteSocket) {
    this.core = core;
    this.#socket = socket;
    this.remoteAddress = socket.remoteAddress;
    this.#stamper = new Stamper({
      remoteAddress: socket.remoteAddress,
      localPort: socket.localPort,
      scheme: core.scheme,
      isTrusted: core.trusted.has(socket.remoteAddress),
      pseudonym: core.pseudonym,
    });
    this.deadlineMs = core.now() + core.limits.headerTimeoutMs;
    core.deadlines.add(this);
    socket.handle(this);
  }

  /** Nothing is owed on it: no exchange, and no part of a request. */
  get idle(): boolean {
    return this.#state === READ_HEAD && this.#odd === undefined && this.#owed.length === 0 &&
      (this.#stash.length === 0 || this.#isNew);
  }

  // ------------------------------------------------------------------------------------- bytes

  data(chunk: Uint8Array): void {
    if (this.#isNew) return this.#firstData(chunk);
    switch (this.#state) {
      case TUNNEL:
        if (this.#tunnel === undefined || this.#stash.length > 0) return this.#keep(chunk);
        return this.#tunnel.onTunnelData(chunk);
      case CLOSING:
        this.#lingerBytes += chunk.length;
        if (this.#lingerBytes > MOST_LINGER_BYTES) this.#socket.destroy();
        return;
      case CLOSED:
        return;
    }
    if (this.#stash.length > 0) return this.#keep(chunk);
    this.#run(chunk);
  }

  /** HTTP/2 with prior knowledge goes to its own owner (RFC 9113 section 3.3). */
  #firstData(chunk: Uint8Array): void {
    if (this.#stash.length > 0) this.#keep(chunk);
    const bytes = this.#stash.length > 0 ? this.#stash : chunk;
    const isHttp2 = isHttp2Preface(bytes);
    if (isHttp2 === undefined) {
      if (bytes === chunk) this.#keep(chunk);
      return;
    }
    this.#isNew = false;
    this.#stash = NONE;
    if (!isHttp2 || !this.core.allowsHttp2) return this.#run(bytes);
    this.#state = CLOSED;
    this.core.deadlines.remove(this);
    this.core.becameHttp2(this, this.#socket, bytes);
  }

  /** Keeps bytes for later; a client that sends too far ahead is not read on. */
  #keep(chunk: Uint8Array): void {
    if (this.#stash.length === 0) this.#stash = chunk.slice();
    else {
      const all = new Uint8Array(this.#stash.length + chunk.length);
      all.set(this.#stash);
      all.set(chunk, this.#stash.length);
      this.#stash = all;
    }
    if (this.#stash.length <= MOST_STASHED_BYTES || this.#isPaused) return;
    this.#isPaused = true;
    this.#socket.pause();
  }

  /** Uses bytes as far as the state allows and keeps the rest. */
  #run(chunk: Uint8Array): void {
    this.#isRunning = true;
    let at = 0;
    while (at < chunk.length && this.#canUse()) {
      at = this.#state === READ_HEAD ? this.#readHead(chunk, at) : this.#readBody(chunk, at);
    }
    this.#isRunning = false;
    if (at < chunk.length && this.#state < CLOSING) {
      this.#keep(at === 0 ? chunk : chunk.subarray(at));
    }
    this.#exchange?.sink?.onRequestFlush();
  }

  #canUse(): boolean {
    if (this.#state === READ_HEAD) return this.#stalledSinceMs === Infinity;
    if (this.#state !== READ_BODY) return false;
    const exchange = this.#exchange;
    if (exchange?.sink === undefined || exchange.requestPaused) return false;
    return this.#odd === undefined || this.#odd.pieces.length === 0;
  }

  /** Goes on with what was kept. */
  #continue(): void {
    if (this.#isRunning) return;
    this.#deliverDecoded();
    if (this.#stash.length > 0 && this.#canUse()) {
      const chunk = this.#stash;
      this.#stash = NONE;
      this.#run(chunk);
    }
    this.#exchange?.sink?.onRequestFlush();
    if (this.#stash.length > 0 || !this.#isPaused) return;
    this.#isPaused = false;
    this.#socket.resume();
  }

  resumeRequest(): void {
    this.#continue();
  }

  // -------------------------------------------------------------------------------------- head

  #readHead(chunk: Uint8Array, from: number): number {
    const { latin1, limits } = this.core;
    if (this.#odd === undefined) {
      const lines = scanRequestLine(chunk, from, chunk.length, latin1, this.#line);
      if (lines > 0) {
        const end = this.#head.scan(chunk, lines, chunk.length, latin1);
        if (end > 0 && this.#isPlain()) {
          if (this.#line.target.length > limits.targetBytes) {
            return this.#refuse("target_too_long", chunk);
          }
          if (end - lines > limits.headerBytes) return this.#refuse("headers_too_large", chunk);
          this.#begin(this.#line.method, this.#line.target, 11, this.#plainLength());
          return end;
        }
      }
    }
    return this.#readOddHead(chunk, from);
  }

  /** The scanner's reading is everybody's reading: no transfer coding, at most one plain length. */
  #isPlain(): boolean {
    const head = this.#head;
    if ((head.seen & bit(TRANSFER_ENCODING)) !== 0) return false;
    if ((head.seen & bit(CONTENT_LENGTH)) === 0) return true;
    return (head.repeated & bit(CONTENT_LENGTH)) === 0 &&
      parseLength(head.first(CONTENT_LENGTH) ?? "") >= 0;
  }

  #plainLength(): number {
    return this.#head.has(CONTENT_LENGTH)
      ? parseLength(this.#head.first(CONTENT_LENGTH) ?? "")
      : -1;
  }

  #readOddHead(chunk: Uint8Array, from: number): number {
    const { core } = this;
    if (this.#odd === undefined) {
      this.#odd = new OddRequest(core);
      this.deadlineMs = core.now() + core.limits.headerTimeoutMs;
    }
    const odd = this.#odd;
    const stop = odd.readHead(chunk, from);
    if (odd.refusal !== undefined) return this.#refuse(odd.refusal.code, chunk, odd.refusal.detail);
    const { head } = odd;
    if (head === undefined) return stop;
    odd.head = undefined;
    const isChunked = odd.understand(head, this.#head);
    if (typeof isChunked !== "boolean") {
      return this.#refuse(isChunked.code, chunk, isChunked.detail);
    }
    const length = isChunked ? Infinity : this.#plainLength();
    this.#begin(odd.method, head.target, head.version, length);
    if (this.#state >= CLOSING) return chunk.length;
    return this.#takeDecoded(chunk, odd) ? stop : chunk.length;
  }

  /** `length`: -1 without a body, Infinity for a chunked one. */
  #begin(method: string, target: string, version: number, length: number): void {
    const { core } = this;
    const head = this.#head;
    const framing: Framing = length === Infinity ? "chunked" : length >= 0 ? "length" : "none";
    const startedMs = core.now();
    this.deadlineMs = Infinity;
    let keepAlive = version === 11;
    let asksUpgrade = false;
    if (head.has(CONNECTION)) {
      const tokens = head.joined(CONNECTION) ?? "";
      keepAlive = version === 11 ? !hasToken(tokens, "close") : hasToken(tokens, "keep-alive");
      asksUpgrade = head.has(UPGRADE) && hasToken(tokens, "upgrade");
    }
    const form = target.charCodeAt(0) === 0x2f ? undefined : originForm(target, method);
    const host = head.first(HOST);
    const hostProblem = this.#checkHost(host, version);
    const isFragment = target.includes("#");
    let problem = isFragment ? badRequest("the target has a fragment") : form?.problem;
    problem ??= hostProblem;
    const authority = form?.authority;
    const stamped = this.#stamper.stamp(head, problem ? undefined : authority ?? host, version);
    const { requestId, stamps, stampedNames } = identify(head, stamped, core);
    const upgrade = asksUpgrade && version === 11 && framing === "none" && method === "GET"
      ? this.#knownUpgrade()
      : undefined;
    const exchange = new H1Exchange(this, {
      requestId,
      method,
      target: form?.target ?? target,
      head,
      httpVersion: version,
      framing,
      length: framing === "length" ? length : 0,
      authority,
      upgrade,
      acceptsTrailers: head.has(TE) && acceptsTrailers(head.joined(TE) ?? ""),
      keepAlive,
      stamps,
      stampedNames,
      startedMs,
    });
    this.#exchange = exchange;
    if (framing === "none" || length === 0) {
      this.#state = WAIT;
      if (length === 0) exchange.requestComplete = true;
      this.#releaseParser();
    } else {
      this.#state = READ_BODY;
      this.#bodyLeft = length;
      this.#startWindow();
    }
    problem ??= refusalOf(method, head, length, core);
    if (problem !== undefined) {
      if (problem.code === "bad_request") exchange.keepAlive = false;
      core.begun(exchange);
      return exchange.fail(problem);
    }
    core.dispatch(exchange);
  }

  #knownUpgrade(): string | undefined {
    const protocol = this.#head.joined(UPGRADE)?.trim().toLowerCase();
    return protocol !== undefined && this.core.upgrades.has(protocol) ? protocol : undefined;
  }

  #checkHost(host: string | undefined, version: number): BatonError | undefined {
    if (host === undefined) return version === 11 ? badRequest("there is no Host") : undefined;
    if ((this.#head.repeated & bit(HOST)) !== 0) return badRequest("there are several Host lines");
    if (host === this.#lastHost) return undefined;
    if (!HOST_VALUE.test(host)) return badRequest("the Host is not valid");
    this.#lastHost = host;
    return undefined;
  }

  // -------------------------------------------------------------------------------------- body

  #readBody(chunk: Uint8Array, from: number): number {
    const exchange = this.#exchange as H1Exchange;
    if (this.#odd !== undefined) return this.#readOddBody(chunk, from, this.#odd);
    const end = Math.min(chunk.length, from + this.#bodyLeft);
    this.#bodyLeft -= end - from;
    this.#windowBytes += end - from;
    exchange.bytesFromClient += end - from;
    exchange.sink?.onRequestChunk(
      from === 0 && end === chunk.length ? chunk : chunk.subarray(from, end),
    );
    if (this.#bodyLeft === 0) this.#requestComplete("");
    return end;
  }

  #readOddBody(chunk: Uint8Array, from: number, odd: OddRequest): number {
    const stop = odd.readBody(chunk, from);
    if (odd.refusal !== undefined) return this.#breakRequest(odd.refusal.code, chunk);
    return this.#takeDecoded(chunk, odd) ? stop : chunk.length;
  }

  /** Counts and hands on what llhttp has just decoded; false when it was too much. */
  #takeDecoded(chunk: Uint8Array, odd: OddRequest): boolean {
    const exchange = this.#exchange;
    if (exchange === undefined) return true;
    let bytes = 0;
    for (const piece of odd.pieces) bytes += piece.length;
    this.#windowBytes += bytes;
    exchange.bytesFromClient += bytes;
    const most = this.core.limits.bodyBytes;
    if (most > 0 && exchange.bytesFromClient > most) {
      this.#breakRequest("body_too_large", chunk);
      return false;
    }
    this.#deliverDecoded();
    // What nobody takes now has to outlive the chunk.
    odd.pieces = odd.pieces.map((piece) => piece.slice());
    return true;
  }

  /** Hands on what llhttp decoded, as far as it is wanted now. */
  #deliverDecoded(): void {
    const odd = this.#odd;
    const exchange = this.#exchange;
    if (odd === undefined || exchange === undefined || this.#state !== READ_BODY) return;
    while (exchange.sink !== undefined && !exchange.requestPaused) {
      const piece = odd.pieces.shift();
      if (piece !== undefined) {
        exchange.sink.onRequestChunk(piece);
        continue;
      }
      if (odd.trailers !== undefined && this.#odd === odd) this.#requestComplete(odd.trailers);
      return;
    }
  }

  #requestComplete(trailers: string): void {
    const exchange = this.#exchange;
    this.#releaseParser();
    this.#state = WAIT;
    this.deadlineMs = this.#stallDeadlineMs();
    if (exchange === undefined) return;
    exchange.requestComplete = true;
    exchange.sink?.onRequestEnd(trailers);
    if (!this.#isRunning) exchange.sink?.onRequestFlush();
  }

  /** The body is no body, or not to be had. */
  #breakRequest(code: ErrorCode, chunk: Uint8Array): number {
    const exchange = this.#exchange as H1Exchange;
    exchange.keepAlive = false;
    exchange.breakRequest(new BatonError(code, `the request body is refused: ${code}`));
    return chunk.length;
  }

  #releaseParser(): void {
    this.#odd?.release();
    this.#odd = undefined;
  }

  #startWindow(): void {
    const { bodyWindowMs } = this.core.limits;
    this.#windowBytes = 0;
    this.deadlineMs = bodyWindowMs > 0 ? this.core.now() + bodyWindowMs : Infinity;
  }

  // ------------------------------------------------------------------------------------ answers

  write(text: string): boolean {
    return this.#noteRoom(this.#socket.write(text));
  }

  writeAround(before: string, bytes: Uint8Array, after: string): boolean {
    return this.#noteRoom(this.#socket.writeAround(before, bytes, after));
  }

  #noteRoom(hasRoom: boolean): boolean {
    if (!hasRoom && this.#stalledSinceMs === Infinity) this.#stalledSinceMs = this.core.now();
    return hasRoom;
  }

  /** The client's window is full: it must take something in time. */
  answerStalled(): void {
    this.deadlineMs = this.#stallDeadlineMs();
  }

  #stallDeadlineMs(): number {
    const { writeStallMs } = this.core.limits;
    return writeStallMs > 0 ? this.#stalledSinceMs + writeStallMs : Infinity;
  }

  /** An answer is complete: the connection goes on with the next request, or ends. */
  exchangeDone(exchange: H1Exchange): void {
    this.core.finished(exchange);
    this.#settle(exchange);
    this.#exchange = undefined;
    this.#endsLastAnswer = exchange.endsWithConnection;
    if (!exchange.requestComplete || !exchange.keepAlive || this.#hasFin) return this.#close();
    this.#state = READ_HEAD;
    this.#awaitRequest();
  }

  /** A client that has not taken its answers yet may not ask for more. */
  #awaitRequest(): void {
    const isStalled = this.#stalledSinceMs !== Infinity;
    const { keepAliveMs } = this.core.limits;
    this.deadlineMs = isStalled ? this.#stallDeadlineMs() : this.core.now() + keepAliveMs;
    this.#continue();
  }

  /** The exchange counts as in flight until its bytes are with the kernel. */
  #settle(exchange: H1Exchange): void {
    const { release } = exchange;
    if (release === undefined) return;
    exchange.release = undefined;
    if (this.#socket.pendingBytes === 0) return release();
    this.#owed.push(release);
    if (this.#owed.length === 1) this.#awaitFlush();
  }

  /** A socket tells of its drain only when it was full, so this asks. */
  #awaitFlush(): void {
    this.core.after(50, () => {
      if (this.#owed.length === 0) return;
      if (this.#socket.pendingBytes === 0) this.#payOwed();
      else this.#awaitFlush();
    });
  }

  #payOwed(): void {
    for (const release of this.#owed.splice(0)) release();
  }

  /** Ends a connection on which an answer broke off; what was put together before still leaves. */
  breakOff(exchange: H1Exchange, byReset: boolean): void {
    this.core.finished(exchange);
    this.#settle(exchange);
    this.#exchange = undefined;
    if (byReset) this.#destroy(true);
    else this.#close();
  }

  /** FIN after what is queued; then the client has a moment to read it before the socket goes. */
  #close(): void {
    if (this.#state >= CLOSING) return;
    this.#releaseParser();
    this.#state = CLOSING;
    this.#stash = NONE;
    this.deadlineMs = this.core.now() + this.core.limits.lingerMs;
    this.#socket.end();
    if (!this.#isPaused) return;
    this.#isPaused = false;
    this.#socket.resume();
  }

  #destroy(reset = false): void {
    if (this.#state === CLOSED) return;
    const isIncomplete = this.#exchange?.endsWithConnection ??
      (this.#endsLastAnswer && this.#socket.pendingBytes > 0);
    this.#gone();
    this.#socket.destroy(reset || isIncomplete);
  }

  /** Answers something that never became an exchange, and closes. */
  #refuse(code: ErrorCode, chunk: Uint8Array, detail?: string): number {
    const head = new Head();
    const exchange = new H1Exchange(this, {
      requestId: this.core.mintRequestId(),
      method: "-",
      target: "-",
      head,
      httpVersion: 11,
      framing: "none",
      length: 0,
      authority: undefined,
      upgrade: undefined,
      acceptsTrailers: false,
      keepAlive: false,
      stamps: "",
      stampedNames: 0,
      startedMs: this.core.now(),
    });
    this.#exchange = exchange;
    this.core.begun(exchange);
    exchange.fail(new BatonError(code, detail ?? REFUSALS[code] ?? code));
    return chunk.length;
  }

  // ------------------------------------------------------------------------------------ tunnel

  enterTunnel(answer: string, end: TunnelEnd): RawSide {
    const socket = this.#socket;
    this.#state = TUNNEL;
    this.deadlineMs = Infinity;
    socket.write(answer);
    return {
      write: (bytes) => socket.writeAround("", bytes, ""),
      pause: () => socket.pause(),
      resume: () => {
        this.#tunnel = end;
        const early = this.#stash;
        this.#stash = NONE;
        if (early.length > 0) end.onTunnelData(early);
        socket.resume();
      },
      end: () => socket.end(),
      destroy: () => this.#destroy(),
    };
  }

  // -------------------------------------------------------------------------------- the client

  end(): void {
    this.#hasFin = true;
    switch (this.#state) {
      case TUNNEL:
        return this.#tunnel?.onTunnelFin();
      case CLOSING:
      case CLOSED:
        return;
      case READ_HEAD:
        return this.#close();
    }
    // A client that sends FIN before it has its answer counts as gone (proxy rule 65).
    this.#destroy();
  }

  drain(): void {
    if (this.#state === TUNNEL) return this.#tunnel?.onTunnelDrain();
    this.#stalledSinceMs = Infinity;
    this.#payOwed();
    if (this.#state === READ_HEAD) this.#awaitRequest();
    else if (this.#state === READ_BODY || this.#state === WAIT) {
      this.deadlineMs = Infinity;
      if (this.#state === READ_BODY) this.#startWindow();
      this.#exchange?.sink?.onClientDrain();
    }
  }

  close(): void {
    if (this.#state === CLOSED) return;
    this.#gone();
  }

  #gone(): void {
    const wasTunnel = this.#state === TUNNEL;
    this.#state = CLOSED;
    this.#stash = NONE;
    this.deadlineMs = Infinity;
    this.core.deadlines.remove(this);
    this.#releaseParser();
    const exchange = this.#exchange;
    this.#exchange = undefined;
    if (wasTunnel) {
      this.#tunnel?.onTunnelClosed();
      exchange?.release?.();
    } else if (exchange !== undefined) {
      exchange.abandon();
      exchange.release?.();
    }
    this.#payOwed();
    this.core.closed(this);
  }

  /** Closes when nothing is owed; else after the present answer. */
  shut(): void {
    if (this.idle) this.#close();
    else if (this.#exchange !== undefined && this.#state !== TUNNEL) {
      this.#exchange.keepAlive = false;
    }
  }

  /** Cuts the connection; a request that is on it hears why. */
  cut(): void {
    if (this.#state === TUNNEL) this.#tunnel?.cutTunnel("draining");
    else this.#exchange?.cut();
    this.#destroy();
  }

  onDeadline(nowMs: number): void {
    this.deadlineMs = Infinity;
    const { limits } = this.core;
    switch (this.#state) {
      case READ_HEAD:
        if (nowMs >= this.#stallDeadlineMs()) return this.#destroy();
        if (this.#odd === undefined) return this.#close();
        this.#refuse("request_timeout", NONE);
        return;
      case READ_BODY: {
        const exchange = this.#exchange;
        if (nowMs >= this.#stallDeadlineMs()) return this.#destroy();
        const waitsForUs = exchange === undefined || exchange.answered || exchange.requestPaused;
        if (waitsForUs || this.#windowBytes >= limits.bodyFloorBytes) return this.#startWindow();
        this.#breakRequest("request_timeout", NONE);
        return;
      }
      case WAIT:
        return this.#destroy();
      case CLOSING:
        if (this.#socket.pendingBytes === 0) return this.#destroy();
        // A slow reader still has bytes to come.
        this.#payLater(nowMs);
    }
  }

  #pendingAtLastLook = 0;

  #payLater(nowMs: number): void {
    const pending = this.#socket.pendingBytes;
    if (pending !== this.#pendingAtLastLook) this.#stalledSinceMs = nowMs;
    this.#pendingAtLastLook = pending;
    if (nowMs >= this.#stallDeadlineMs()) return this.#destroy();
    this.deadlineMs = nowMs + 100;
  }
}

const REFUSALS: Partial<Record<ErrorCode, string>> = {
  bad_request: "the request is malformed",
  headers_too_large: "the header section is too large",
  target_too_long: "the request target is too long",
  request_timeout: "the request did not come in time",
  version_not_supported: "only HTTP/1.0 and HTTP/1.1 are spoken here",
};

/** What a target that is no path asks for (RFC 9112 section 3.2). */
interface OriginForm {
  readonly target: string;
  readonly authority?: string;
  readonly problem?: BatonError;
}

function originForm(target: string, method: string): OriginForm {
  const absolute = ABSOLUTE_FORM.exec(target);
  if (absolute === null) {
    const isKnown = (target === "*" && method === "OPTIONS") || method === "CONNECT";
    return isKnown
      ? { target }
      : { target, problem: badRequest("the target is neither a path nor a URL") };
  }
  const authority = absolute[1] as string;
  const rest = absolute[2] as string;
  const origin = rest.startsWith("/") ? rest : `/${rest}`;
  if (HOST_VALUE.test(authority)) return { target: origin, authority };
  return { target: origin, authority, problem: badRequest("the target has no valid authority") };
}

function acceptsTrailers(te: string): boolean {
  return te.split(",").some((entry) => entry.split(";")[0]?.trim().toLowerCase() === "trailers");
}
