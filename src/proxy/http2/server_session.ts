/** The server's side of a connection: a client's streams are requests. */

import { HTTP2_PREFACE } from "../request_rules.ts";
import type { RequestHead } from "./handlers.ts";
import { readRequest, readTrailers } from "./messages.ts";
import {
  INITIAL_WINDOW_SIZE,
  MAX_CONCURRENT_STREAMS,
  MAX_HEADER_LIST_SIZE,
  writeSettings,
} from "./peer_settings.ts";
import {
  ConnectionError,
  DEFAULT_WINDOW_BYTES,
  END_STREAM,
  H2_ERRORS,
  MOST_31_BITS,
  WINDOW_UPDATE,
} from "./protocol.ts";
import {
  CONNECTION_WINDOW_BYTES,
  Session,
  type SessionOptions,
  STREAM_WINDOW_BYTES,
} from "./session.ts";
import { Stream, type StreamHome } from "./stream.ts";

/** What a request earns its client: it may be reset, and its answer acknowledged. */
const CREDITS_A_REQUEST = 3;

export interface ServerHandlers {
  /** Must call `handle` of the stream in the same turn. It is paused until `resume`. */
  stream(stream: ServerStream, request: RequestHead): void;
  /** What was gathered is with the socket: `pendingBytes` tells what of it is not with the kernel. */
  flushed(): void;
  /** Comes once and last. */
  close(): void;
}

export interface ServerSessionOptions extends SessionOptions {
  /** Streams that the client may have open at once. */
  readonly mostStreams: number;
}

export class ServerSession extends Session<ServerStream> {
  protected readonly isClient = false;
  protected lastTaken = 0;
  /** The highest number that the client has used, also of those that were not taken. */
  #highest = 0;
  readonly #handlers: ServerHandlers;
  readonly #mostStreams: number;
  #prefaceAt = 0;

  constructor(options: ServerSessionOptions, handlers: ServerHandlers) {
    super(options);
    this.#handlers = handlers;
    this.#mostStreams = options.mostStreams;
  }

  /** Begins, with bytes that were read from the socket already. */
  begin(early: Uint8Array): void {
    writeSettings(this.out, [
      [MAX_CONCURRENT_STREAMS, this.#mostStreams],
      [INITIAL_WINDOW_SIZE, STREAM_WINDOW_BYTES],
      [MAX_HEADER_LIST_SIZE, this.options.headerBytes],
    ]);
    this.out.head(WINDOW_UPDATE, 0, 0, 4);
    this.out.u32(CONNECTION_WINDOW_BYTES - DEFAULT_WINDOW_BYTES);
    this.options.socket.handle(this);
    this.data(early);
  }

  /** Asks the client to open no more streams; those that it opens all the same are served. */
  announceEnd(): void {
    if (this.isOpen && !this.isClosing) this.sendGoaway(MOST_31_BITS, H2_ERRORS.none);
  }

  protected takeBytes(chunk: Uint8Array): void {
    let at = 0;
    while (this.#prefaceAt < HTTP2_PREFACE.length && at < chunk.length) {
      if (chunk[at++] !== HTTP2_PREFACE.charCodeAt(this.#prefaceAt++)) {
        throw new ConnectionError(H2_ERRORS.protocol, "no preface");
      }
    }
    if (at < chunk.length) this.reader.push(at === 0 ? chunk : chunk.subarray(at));
  }

  protected isIdle(id: number): boolean {
    return id % 2 === 0 || id > this.#highest;
  }

  protected mayHaveData(): boolean {
    return true;
  }

  protected takeGoaway(): void {
    // The client will open no more streams. Those that are open go on.
    if (this.open.size === 0) this.closeGently();
  }

  protected takeHeaders(id: number, flags: number): void {
    const stream = this.open.get(id);
    if (stream !== undefined) return this.#takeTrailers(stream, flags);
    if (id % 2 === 0) throw new ConnectionError(H2_ERRORS.protocol, `a client's stream ${id}`);
    if (id <= this.#highest) {
      const wasReset = this.stray(id);
      if (wasReset === true) return;
      // Numbers that were left out count as used (RFC 9113 section 5.1.1).
      const code = wasReset === false ? H2_ERRORS.streamClosed : H2_ERRORS.protocol;
      throw new ConnectionError(code, `HEADERS on the closed stream ${id}`);
    }
    this.#highest = id;
    // What comes after the last stream that our GOAWAY named is not answered (section 6.8).
    if (this.isClosing) {
      this.closed.add(id, true);
      return this.spend();
    }
    this.lastTaken = id;
    this.#takeRequest(id, (flags & END_STREAM) !== 0);
  }

  #takeRequest(id: number, isComplete: boolean): void {
    if (this.open.size >= this.#mostStreams) return this.#refuse(id, H2_ERRORS.refusedStream);
    if (this.decoder.isTooLarge) return this.#refuse(id, H2_ERRORS.enhanceYourCalm);
    const request = readRequest(this.decoder.fields, isComplete);
    if (request === undefined) return this.#refuse(id, H2_ERRORS.protocol);
    this.earn(CREDITS_A_REQUEST);
    const stream = new ServerStream(this, id, this.peer.windowBytes, (status, lines, ends) => {
      this.#sendHead(id, status, lines, ends);
    });
    stream.hasEnded = isComplete;
    if (request.length >= 0) stream.bytesToCome = request.length;
    this.open.add(stream);
    this.#handlers.stream(stream, request);
  }

  /** Ends a stream that never became a request. */
  #refuse(id: number, code: number): void {
    this.spend();
    this.closed.add(id, true);
    this.sendReset(id, code);
  }

  #takeTrailers(stream: ServerStream, flags: number): void {
    if (stream.hasEnded) return stream.reset(H2_ERRORS.streamClosed);
    const trailers = this.decoder.isTooLarge ? undefined : readTrailers(this.decoder.fields);
    const isWell = trailers !== undefined && (flags & END_STREAM) !== 0;
    if (!isWell || !stream.receiveEnd(trailers)) stream.reset(H2_ERRORS.protocol);
  }

  #sendHead(id: number, status: number, lines: string, ends: boolean): void {
    const { out, encoder } = this;
    const at = out.beginBlock();
    encoder.begin(out);
    encoder.status(out, status);
    encoder.lines(out, lines);
    out.endBlock(at, ends ? END_STREAM : 0, id);
    this.flushSoon();
  }

  protected override flushed(): void {
    this.#handlers.flushed();
  }

  protected gone(): void {
    this.#handlers.close();
  }
}

/** A request that came in. */
export class ServerStream extends Stream {
  readonly #sendHead: (status: number, lines: string, ends: boolean) => void;

  constructor(
    home: StreamHome,
    id: number,
    sendBytes: number,
    sendHead: (status: number, lines: string, ends: boolean) => void,
  ) {
    super(home, id, { sendBytes, receiveBytes: STREAM_WINDOW_BYTES }, true);
    this.#sendHead = sendHead;
  }

  /** An interim answer (1xx but 101). False: wait for `drain`. */
  inform(status: number, lines: string): boolean {
    if (this.isClosed) return true;
    this.#sendHead(status, lines, false);
    return this.hasRoom();
  }

  /** Begins the answer; `end` or `write` follow. The lines are valid header lines. */
  respond(status: number, lines: string): void {
    if (!this.isClosed) this.#sendHead(status, lines, false);
  }

  /** Nobody will read the rest of the request: the client is told to stop (RFC 9113 section 8.1). */
  protected override ourSideEnded(): void {
    this.reset(H2_ERRORS.none);
  }

  protected override get wantsRest(): boolean {
    return false;
  }
}
