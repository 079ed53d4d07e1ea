/** The client's side of a connection: requests of ours are its streams. */

import { type Address, ConnectFailed, type Net } from "../../runtime/runtime.ts";
import { Head } from "../head.ts";
import { HTTP2_PREFACE } from "../request_rules.ts";
import type { ClientStreamHandlers } from "./handlers.ts";
import { readAnswer, readTrailers } from "./messages.ts";
import {
  ENABLE_PUSH,
  INITIAL_WINDOW_SIZE,
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

/** What a request of ours earns a target: it may refuse it, or answer before it is complete. */
const CREDITS_A_REQUEST = 3;

/** A request as it is sent. */
export interface OutgoingRequest {
  readonly method: string;
  readonly path: string;
  readonly authority: string;
  /** Valid header lines; what belongs to an HTTP/1.1 connection is left out. */
  readonly lines: string;
  /** `te: trailers` is sent. */
  readonly acceptsTrailers: boolean;
  /** No body follows. */
  readonly isComplete: boolean;
}

export interface ConnectOptions extends Omit<SessionOptions, "socket" | "keptBytes"> {
  readonly net: Pick<Net, "connect">;
  readonly address: Address;
  /** For the connection and the other side's SETTINGS together. */
  readonly timeoutMs: number;
}

/** Connects and begins HTTP/2 with prior knowledge. Rejects with `ConnectFailed`. */
export async function connectHttp2(options: ConnectOptions): Promise<ClientSession> {
  const { net, address, timeoutMs, clock } = options;
  const sinceMs = clock.monotonic();
  const socket = await net.connect(address, { timeoutMs });
  // How many windows targets fill is bounded by the streams that we open.
  const session = new ClientSession({ ...options, socket, keptBytes: Infinity });
  await session.begin(Math.max(1, timeoutMs - (clock.monotonic() - sinceMs)));
  return session;
}

export class ClientSession extends Session<ClientStream> {
  protected readonly isClient = true;
  /** We take no streams of a server. */
  protected readonly lastTaken = 0;
  readonly #head = new Head();
  #nextId = 1;
  #isGoingAway = false;
  #settled: ((problem?: ConnectFailed) => void) | undefined;
  #onRoom: (() => void) | undefined;
  readonly #closeListeners: (() => void)[] = [];

  /** Resolves when the other side has said how many streams it takes. Rejects with ConnectFailed. */
  begin(timeoutMs: number): Promise<void> {
    this.out.latin1(HTTP2_PREFACE);
    writeSettings(this.out, [
      [ENABLE_PUSH, 0],
      [INITIAL_WINDOW_SIZE, STREAM_WINDOW_BYTES],
      [MAX_HEADER_LIST_SIZE, this.options.headerBytes],
    ]);
    this.out.head(WINDOW_UPDATE, 0, 0, 4);
    this.out.u32(CONNECTION_WINDOW_BYTES - DEFAULT_WINDOW_BYTES);
    this.options.socket.handle(this);
    this.flush();
    return new Promise((resolve, reject) => {
      const cancel = this.options.clock.after(timeoutMs, () => {
        this.#settled?.(new ConnectFailed("timeout", NO_SETTINGS));
      });
      this.#settled = (problem) => {
        this.#settled = undefined;
        cancel();
        if (problem === undefined) return resolve();
        this.destroy();
        reject(problem);
      };
    });
  }

  /** Requests that can be begun now. 0 once the other side is going away or the session has ended. */
  get room(): number {
    if (!this.isOpen || this.isClosing || this.#isGoingAway) return 0;
    if (this.#nextId > MOST_31_BITS) return 0;
    return Math.max(0, this.peer.streams - this.open.size);
  }

  /** Called when `room` may have grown. */
  onRoom(listener: () => void): void {
    this.#onRoom = listener;
  }

  /** Called once, when the session has ended. */
  onClose(listener: () => void): void {
    this.#closeListeners.push(listener);
  }

  /** Sends a request; `room` says whether it may. */
  request(request: OutgoingRequest, handlers: ClientStreamHandlers): ClientStream {
    const { out, encoder } = this;
    const id = this.#nextId;
    this.#nextId += 2;
    const stream = new ClientStream(this, id, this.peer.windowBytes, request.method, handlers);
    this.open.add(stream);
    const at = out.beginBlock();
    encoder.begin(out);
    encoder.pseudo(out, ":method", request.method);
    encoder.pseudo(out, ":scheme", "http");
    encoder.pseudo(out, ":authority", request.authority);
    encoder.pseudo(out, ":path", request.path);
    encoder.lines(out, request.lines);
    if (request.acceptsTrailers) encoder.teTrailers(out);
    out.endBlock(at, request.isComplete ? END_STREAM : 0, id);
    stream.hasSentEnd = request.isComplete;
    this.earn(CREDITS_A_REQUEST);
    this.flushSoon();
    return stream;
  }

  protected takeBytes(chunk: Uint8Array): void {
    this.reader.push(chunk);
  }

  protected isIdle(id: number): boolean {
    return id % 2 === 0 || id >= this.#nextId;
  }

  protected mayHaveData(stream: ClientStream): boolean {
    return stream.hasHead;
  }

  protected override tookSettings(): void {
    this.#settled?.();
    this.#onRoom?.();
  }

  /** Streams above the last that was taken are known not to have been (RFC 9113 section 6.8). */
  protected takeGoaway(last: number): void {
    this.#isGoingAway = true;
    for (const stream of this.open.all()) {
      if (stream.id > last) stream.finish(H2_ERRORS.refusedStream);
    }
    if (this.open.size === 0) this.closeGently();
  }

  protected takeHeaders(id: number, flags: number): void {
    const stream = this.open.get(id);
    if (stream === undefined) {
      if (this.stray(id) === true) return;
      throw new ConnectionError(H2_ERRORS.streamClosed, `HEADERS on the closed stream ${id}`);
    }
    if (stream.hasEnded) return stream.reset(H2_ERRORS.streamClosed);
    const ends = (flags & END_STREAM) !== 0;
    const isWell = !this.decoder.isTooLarge &&
      (stream.hasHead ? this.#takeTrailers(stream, ends) : this.#takeAnswer(stream, ends));
    if (!isWell) stream.reset(H2_ERRORS.protocol);
  }

  #takeAnswer(stream: ClientStream, ends: boolean): boolean {
    const answer = readAnswer(this.decoder.fields, this.#head);
    if (answer === undefined) return false;
    const { status, length } = answer;
    if (status < 200) {
      // 101 is not for HTTP/2 (section 8.6), and none of them is the end.
      if (status === 101 || ends) return false;
      // Flow control does not hold these up.
      this.spend();
      stream.inform(status, this.#head);
      return true;
    }
    if (stream.method === "HEAD" || status === 204 || status === 304) stream.bytesToCome = 0;
    else if (length >= 0) stream.bytesToCome = length;
    if (ends && stream.bytesToCome > 0 && stream.bytesToCome !== Infinity) return false;
    stream.head(status, this.#head, ends);
    return !ends || stream.isClosed || stream.receiveEnd("");
  }

  #takeTrailers(stream: ClientStream, ends: boolean): boolean {
    const trailers = readTrailers(this.decoder.fields);
    return trailers !== undefined && ends && stream.receiveEnd(trailers);
  }

  protected override streamLeft(): void {
    this.#onRoom?.();
    if (this.#isGoingAway && this.open.size === 0) this.closeGently();
  }

  protected gone(): void {
    this.#settled?.(new ConnectFailed("other", NO_SETTINGS));
    for (const listener of this.#closeListeners.splice(0)) listener();
  }
}

const NO_SETTINGS = "no HTTP/2 settings from the other side";

/** A request that we sent; its answer flows until it is paused. */
export class ClientStream extends Stream {
  readonly method: string;
  hasHead = false;
  readonly #client: ClientStreamHandlers;

  constructor(
    home: StreamHome,
    id: number,
    sendBytes: number,
    method: string,
    handlers: ClientStreamHandlers,
  ) {
    super(home, id, { sendBytes, receiveBytes: STREAM_WINDOW_BYTES }, false);
    this.method = method;
    this.#client = handlers;
    this.handle(handlers);
  }

  inform(status: number, head: Head): void {
    this.#client.inform(status, head);
  }

  head(status: number, head: Head, isComplete: boolean): void {
    this.hasHead = true;
    this.home.touch(this);
    this.#client.head(status, head, isComplete);
  }
}
