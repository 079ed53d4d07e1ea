/**
 * HTTP/2 over `node:http2` (nghttp2) on both runtimes.
 *
 * Over 400 lines because server and client share the body of a stream, with what each runtime does
 * differently about its end.
 */

import { Buffer } from "node:buffer";
import http2, {
  type ClientHttp2Session,
  type ClientHttp2Stream,
  type Http2Session,
  type Http2Stream,
  type OutgoingHttpHeaders,
  type ServerHttp2Session,
  type ServerHttp2Stream,
} from "node:http2";
import {
  type Http2,
  HTTP2_ERRORS,
  type Http2ClientHandlers,
  type Http2ClientSession,
  type Http2ClientStream,
  type Http2Limits,
  type Http2RequestHead,
  type Http2ServerHandlers,
  type Http2ServerSession,
  type Http2ServerStream,
  type Http2StreamHandlers,
} from "./http2_contract.ts";
import { connect, type Socket } from "node:net";
import { connectFailure } from "./net_connect_error.ts";
import { type Address, type ByteSocket, ConnectFailed } from "./runtime.ts";
import { socketStream } from "./socket_stream.ts";

/** Bytes that a connection may be ahead of us, all streams together; for one it is nghttp2's 64 KiB. */
const CONNECTION_WINDOW_BYTES = 1024 * 1024;
/** Lines of one header section: far more than a browser sends, and a bound on our work. */
const MOST_FIELDS = 512;
/** An unset limit of the other side (RFC 9113 section 6.5.2 recommends no smaller than 100). */
const STREAMS_UNLESS_TOLD = 100;
/** The last-stream-id of a GOAWAY that refuses nothing yet (RFC 9113 section 6.8). */
const LAST_STREAM = 2 ** 31 - 1;
/** What a GOAWAY gets to leave before its connection is cut. */
const FAREWELL_MS = 50;
const IS_DENO = "Deno" in globalThis;
const END_STREAM = 1;
const EMPTY = new Uint8Array(0);

export function createHttp2(): Http2 {
  return {
    // Deno 2.9's server crashes on frames that are out of order (double free in its native part).
    hardened: !IS_DENO,
    serve: (socket, early, limits, handlers) => new Server(socket, early, limits, handlers),
    connect: async (address, options) => {
      const client = new Client(await dial(address, options), options);
      await client.settled(options.timeoutMs);
      return client;
    },
  };
}

// -------------------------------------------------------------------------------------- fields

interface Parsed {
  readonly pseudo: Map<string, string>;
  readonly fields: readonly string[];
}

/** Takes the pseudo fields out of what nghttp2 read. */
function parse(raw: readonly string[]): Parsed {
  const pseudo = new Map<string, string>();
  let at = 0;
  // They come first, or nghttp2 would have refused the section.
  for (; at + 1 < raw.length && raw[at]?.charCodeAt(0) === 0x3a; at += 2) {
    pseudo.set(raw[at] as string, raw[at + 1] as string);
  }
  return { pseudo, fields: at === 0 ? raw : raw.slice(at) };
}

/** Name, value, ... as the object that `node:http2` takes. Throws RangeError. */
function outgoing(fields: readonly string[]): OutgoingHttpHeaders {
  const headers = Object.create(null) as OutgoingHttpHeaders;
  for (let at = 0; at + 1 < fields.length; at += 2) {
    const name = (fields[at] as string).toLowerCase();
    const value = fields[at + 1] as string;
    const before = headers[name];
    if (before === undefined) headers[name] = value;
    else if (Array.isArray(before)) before.push(value);
    else headers[name] = [String(before), value];
  }
  return headers;
}

function orRangeError<T>(action: () => T): T {
  try {
    return action();
  } catch (error) {
    throw new RangeError(error instanceof Error ? error.message : String(error), { cause: error });
  }
}

// -------------------------------------------------------------------------------------- bodies

/** The part of a stream that is the same on both sides. */
class Body<S extends Http2Stream> {
  protected readonly stream: S;
  #handlers: Http2StreamHandlers | undefined;
  #hasEnded = false;
  #receivedTrailers: readonly string[] = [];
  #trailers: readonly string[] = [];
  #mayTrail = false;
  #wantsDrain = false;

  constructor(stream: S) {
    this.stream = stream;
    stream.on("error", () => {});
    stream.on("wantTrailers", () => {
      if (!stream.destroyed) stream.sendTrailers(outgoing(this.#trailers));
    });
    stream.on("trailers", (_headers, _flags, raw?: string[]) => {
      this.#receivedTrailers = parse(raw ?? []).fields;
    });
  }

  protected attach(handlers: Http2StreamHandlers, mayTrail: boolean): void {
    const { stream } = this;
    this.#mayTrail = mayTrail;
    const isFirst = this.#handlers === undefined;
    this.#handlers = handlers;
    if (!isFirst) return;
    stream.on("data", (chunk: Uint8Array) => this.#handlers?.data(chunk));
    stream.on("end", () => this.#end());
    stream.on("drain", () => {
      if (!this.#wantsDrain) return;
      this.#wantsDrain = false;
      this.#handlers?.drain();
    });
    stream.on("close", () => this.#handlers?.close(stream.rstCode ?? 0));
  }

  protected announceTrailers(mayTrail: boolean): void {
    this.#mayTrail = mayTrail;
  }

  #end(): void {
    // A reset, or the loss of the connection, ends the readable side too: then it is destroyed
    // already, and this is not the end of a message. (Deno leaves the code at 0 then.)
    if (this.#hasEnded || this.stream.destroyed || (this.stream.rstCode ?? 0) !== 0) return;
    this.#hasEnded = true;
    this.#handlers?.end(this.#receivedTrailers);
  }

  get pendingBytes(): number {
    return this.stream.destroyed ? 0 : this.stream.writableLength;
  }

  write(chunk: Uint8Array): boolean {
    const { stream } = this;
    if (stream.destroyed || stream.writableEnded) return true;
    if (stream.write(Buffer.from(chunk))) return true;
    this.#wantsDrain = true;
    return false;
  }

  end(trailers: readonly string[]): void {
    if (this.stream.destroyed || this.stream.writableEnded) return;
    if (this.#mayTrail) this.#trailers = trailers;
    this.stream.end();
    if (!this.#mayTrail) this.stream.once("finish", () => this.ourSideEnded());
  }

  /** Whether the other side's message has come to its end. */
  protected get hasEnded(): boolean {
    return this.#hasEnded;
  }

  protected ourSideEnded(): void {}

  pause(): void {
    this.stream.pause();
  }

  resume(): void {
    this.stream.resume();
  }

  reset(code: number): void {
    if (!this.stream.destroyed) this.stream.close(code);
  }

  breakOff(code: number): void {
    const { stream } = this;
    if (stream.destroyed) return;
    // Not close(), which would end the body in good order before it resets the stream.
    const breakNow = () => void stream.destroy(new Error(`broken off: ${code}`));
    if (stream.writableLength === 0) breakNow();
    else stream.write(EMPTY, breakNow);
  }
}

class ServerStream extends Body<ServerHttp2Stream> implements Http2ServerStream {
  handle(handlers: Http2StreamHandlers): void {
    this.attach(handlers, false);
    // Given up by the client: unread bytes of its request must not hide that.
    this.stream.on("aborted", () => this.stream.destroy());
    this.stream.pause();
  }

  inform(status: number, fields: readonly string[]): void {
    const { stream } = this;
    if (stream.destroyed || stream.headersSent) return;
    try {
      stream.additionalHeaders({ ":status": status, ...outgoing(fields) });
      // Deno leaves it in the buffer until something else is sent.
      if (IS_DENO) stream.session?.ping(() => {});
    } catch {
      // An interim answer is a courtesy: one that HTTP/2 cannot carry is left out.
    }
  }

  respond(
    status: number,
    fields: readonly string[],
    options: { readonly ends: boolean; readonly trailers: boolean },
  ): void {
    const { stream } = this;
    if (stream.destroyed || stream.headersSent) return;
    const headers = outgoing(fields);
    headers[":status"] = status;
    orRangeError(() =>
      stream.respond(headers, {
        endStream: options.ends,
        waitForTrailers: options.trailers,
      })
    );
    this.announceTrailers(options.trailers);
  }

  /** Nobody will read the rest of the request: the client is told to stop (RFC 9113 section 8.1). */
  protected override ourSideEnded(): void {
    if (this.hasEnded) return;
    this.reset(HTTP2_ERRORS.none);
    // Unread bytes would keep the stream from closing.
    this.stream.resume();
  }
}

// -------------------------------------------------------------------------------------- server

class Server implements Http2ServerSession {
  readonly #session: ServerHttp2Session;
  readonly #handlers: Http2ServerHandlers;
  #streams = 0;
  #isBeingCut = false;

  constructor(
    socket: ByteSocket,
    early: Uint8Array,
    limits: Http2Limits,
    handlers: Http2ServerHandlers,
  ) {
    this.#handlers = handlers;
    const stream = socketStream(socket, early);
    // Half-open connections are of no use to HTTP/2, and nobody would end them.
    stream.allowHalfOpen = false;
    this.#session = http2.performServerHandshake(stream, {
      maxHeaderListPairs: MOST_FIELDS,
      settings: {
        maxConcurrentStreams: limits.streams,
        maxHeaderListSize: limits.headerBytes,
        enableConnectProtocol: false,
      },
    });
    const session = this.#session;
    session.on("error", () => {});
    widen(session);
    session.on("stream", (stream, headers, flags, raw?: string[]) => {
      this.#accept(stream, parse(raw ?? flatten(headers)), flags);
    });
    session.on("close", () => this.#handlers.close());
  }

  #accept(stream: ServerHttp2Stream, parsed: Parsed, flags: number): void {
    this.#streams += 1;
    stream.once("close", () => {
      this.#streams -= 1;
    });
    const { pseudo, fields } = parsed;
    const head: Http2RequestHead = {
      method: pseudo.get(":method") ?? "",
      path: pseudo.get(":path") ?? "",
      scheme: pseudo.get(":scheme") ?? "",
      authority: pseudo.get(":authority"),
      fields,
      isComplete: (flags & END_STREAM) !== 0,
    };
    this.#handlers.stream(new ServerStream(stream), head);
  }

  get streams(): number {
    return this.#streams;
  }

  announceEnd(): void {
    if (!this.#session.destroyed) this.#session.goaway(HTTP2_ERRORS.none, LAST_STREAM);
  }

  close(): void {
    if (!this.#session.destroyed) this.#session.close();
  }

  destroy(code: number = HTTP2_ERRORS.none): void {
    const session = this.#session;
    if (session.destroyed) return;
    if (code === HTTP2_ERRORS.none) return session.destroy();
    if (this.#isBeingCut) return;
    this.#isBeingCut = true;
    session.goaway(code);
    // At once it would overtake the frame that says why.
    setTimeout(() => session.destroy(), FAREWELL_MS);
  }
}

/** The other side may send more before it hears from us than the protocol's 64 KiB. */
function widen(session: Http2Session): void {
  const grow = () => {
    if (!session.destroyed) session.setLocalWindowSize(CONNECTION_WINDOW_BYTES);
  };
  if (session.connecting) session.once("connect", grow);
  else grow();
}

function flatten(headers: Readonly<Record<string, unknown>>): string[] {
  const raw: string[] = [];
  for (const [name, value] of Object.entries(headers)) {
    for (const one of Array.isArray(value) ? value : [value]) raw.push(name, String(one));
  }
  return raw;
}

// -------------------------------------------------------------------------------------- client

function dial(address: Address, options: { readonly timeoutMs: number }): Promise<Socket> {
  return new Promise((resolve, reject) => {
    const socket = address.kind === "unix"
      ? connect({ path: address.path })
      : connect({ host: address.host, port: address.port, noDelay: true });
    const timer = setTimeout(() => {
      socket.destroy();
      reject(new ConnectFailed("timeout", `no connection within ${options.timeoutMs} ms`));
    }, options.timeoutMs);
    const failed = (error: Error) => {
      clearTimeout(timer);
      reject(connectFailure(address, error));
    };
    socket.once("error", failed);
    socket.once("connect", () => {
      clearTimeout(timer);
      socket.off("error", failed);
      resolve(socket);
    });
  });
}

class Client implements Http2ClientSession {
  readonly #session: ClientHttp2Session;
  readonly #roomListeners: (() => void)[] = [];
  readonly #closeListeners: (() => void)[] = [];
  #streams = 0;
  #isGoingAway = false;

  constructor(socket: Socket, limits: Pick<Http2Limits, "headerBytes">) {
    this.#session = http2.connect("http://target", {
      createConnection: () => socket,
      maxHeaderListPairs: MOST_FIELDS,
      settings: { enablePush: false, maxHeaderListSize: limits.headerBytes },
    });
    const session = this.#session;
    session.on("error", () => {});
    widen(session);
    session.on("goaway", () => {
      this.#isGoingAway = true;
    });
    session.on("remoteSettings", () => this.#tellRoom());
    session.on("close", () => {
      this.#isGoingAway = true;
      for (const listener of this.#closeListeners.splice(0)) listener();
    });
  }

  get streams(): number {
    return this.#streams;
  }

  /** Waits until the other side has said how many streams it takes. Rejects with ConnectFailed. */
  settled(timeoutMs: number): Promise<void> {
    return new Promise((resolve, reject) => {
      const fail = (reason: "timeout" | "other") => {
        this.destroy();
        reject(new ConnectFailed(reason, "no HTTP/2 settings from the other side"));
      };
      const timer = setTimeout(() => fail("timeout"), timeoutMs);
      this.#session.once("remoteSettings", () => {
        clearTimeout(timer);
        resolve();
      });
      this.onClose(() => {
        clearTimeout(timer);
        fail("other");
      });
    });
  }

  get room(): number {
    const session = this.#session;
    if (this.#isGoingAway || session.closed || session.destroyed) return 0;
    const most = session.remoteSettings?.maxConcurrentStreams ?? STREAMS_UNLESS_TOLD;
    return Math.max(0, most - this.#streams);
  }

  #tellRoom(): void {
    for (const listener of this.#roomListeners) listener();
  }

  request(
    head: Omit<Http2RequestHead, "scheme">,
    options: { readonly trailers: boolean },
    handlers: Http2ClientHandlers,
  ): Http2ClientStream {
    const headers = outgoing(head.fields);
    headers[":method"] = head.method;
    headers[":scheme"] = "http";
    headers[":path"] = head.path;
    if (head.authority !== undefined) headers[":authority"] = head.authority;
    const stream = orRangeError(() =>
      this.#session.request(headers, {
        endStream: head.isComplete,
        waitForTrailers: options.trailers,
      })
    );
    this.#streams += 1;
    stream.once("close", () => {
      this.#streams -= 1;
      this.#tellRoom();
    });
    return new ClientStream(stream, options.trailers, handlers);
  }

  onRoom(listener: () => void): void {
    this.#roomListeners.push(listener);
  }

  onClose(listener: () => void): void {
    if (this.#session.destroyed) listener();
    else this.#closeListeners.push(listener);
  }

  close(): void {
    this.#isGoingAway = true;
    if (!this.#session.destroyed) this.#session.close();
  }

  destroy(): void {
    this.#isGoingAway = true;
    if (!this.#session.destroyed) this.#session.destroy();
  }
}

class ClientStream extends Body<ClientHttp2Stream> {
  #hasHead = false;
  #wantsPause = false;

  constructor(stream: ClientHttp2Stream, mayTrail: boolean, handlers: Http2ClientHandlers) {
    super(stream);
    stream.on("headers", (headers, _flags, raw?: string[]) => {
      handlers.inform(Number(headers[":status"]), parse(raw ?? flatten(headers)).fields);
    });
    stream.on("response", (headers, flags, raw?: string[]) => {
      const { fields } = parse(raw ?? flatten(headers));
      handlers.head(Number(headers[":status"]), fields, (flags & END_STREAM) !== 0);
      this.#hasHead = true;
      if (!this.#wantsPause) stream.resume();
    });
    this.attach(handlers, mayTrail);
    // Deno tells of the first bytes of a body before it tells of the head.
    stream.pause();
  }

  override pause(): void {
    this.#wantsPause = true;
    if (this.#hasHead) super.pause();
  }

  override resume(): void {
    this.#wantsPause = false;
    if (this.#hasHead) super.resume();
  }
}
