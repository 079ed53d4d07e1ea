/**
 * HTTP/2 as the traffic path sees it: streams with fields in order, on byte sockets.
 *
 * Fields are name, value, name, value, ...: names in lower case, values one char a byte (latin1),
 * without the pseudo fields. Bodies are pushed; both directions have flow control.
 */

import type { Address, ByteSocket } from "./runtime.ts";

export interface Http2Limits {
  /** Streams that the other side may have open at once. */
  readonly streams: number;
  /** Largest header section of a message, in bytes; the stream of a larger one is reset. */
  readonly headerBytes: number;
}

/** What RST_STREAM and GOAWAY say (RFC 9113 section 7), as far as we say it or look at it. */
export const HTTP2_ERRORS = {
  none: 0,
  protocol: 1,
  internal: 2,
  refusedStream: 7,
  cancel: 8,
  enhanceYourCalm: 11,
} as const;

export interface Http2RequestHead {
  readonly method: string;
  /** `:path`, or "" if there was none (CONNECT). */
  readonly path: string;
  readonly scheme: string;
  readonly authority: string | undefined;
  readonly fields: readonly string[];
  /** No body follows. */
  readonly isComplete: boolean;
}

/** What a stream tells its owner. Exactly one `close` comes, and it comes last. */
export interface Http2StreamHandlers {
  /** The chunk is the owner's to keep. */
  data(chunk: Uint8Array): void;
  /** The other side's message is complete. */
  end(trailers: readonly string[]): void;
  /** There is room again after a `write` that returned false. */
  drain(): void;
  /** `code` is 0 when both sides ended in good order. */
  close(code: number): void;
}

interface Http2Body {
  /** Queues bytes; they are copied. False: wait for `drain`. */
  write(chunk: Uint8Array): boolean;
  /** Ends our message. Trailers only if they were announced when it was begun. */
  end(trailers: readonly string[]): void;
  /** Bytes that wait for the other side's window. */
  readonly pendingBytes: number;
  pause(): void;
  resume(): void;
  /** Ends the stream at once; what is queued is dropped. */
  reset(code: number): void;
  /** Ends the stream as broken once what is queued has left. */
  breakOff(code: number): void;
}

/** A request that came in. It is paused until `resume`. */
export interface Http2ServerStream extends Http2Body {
  handle(handlers: Http2StreamHandlers): void;
  /** An interim answer (1xx but 101). */
  inform(status: number, fields: readonly string[]): void;
  /**
   * A `date` is added unless there is one. Throws RangeError for a status or a field that HTTP/2
   * cannot carry; nothing was sent then.
   */
  respond(
    status: number,
    fields: readonly string[],
    options: { readonly ends: boolean; readonly trailers: boolean },
  ): void;
}

export interface Http2ServerSession {
  /** Streams that are open. */
  readonly streams: number;
  /** Asks the client to open no more streams; those that it opens all the same are served. */
  announceEnd(): void;
  /** Takes no more streams, and ends the connection after the last one. */
  close(): void;
  /** Cuts the connection; with a code the client is told why. */
  destroy(code?: number): void;
}

export interface Http2ServerHandlers {
  /** Must call `handle` of the stream in the same turn. */
  stream(stream: Http2ServerStream, head: Http2RequestHead): void;
  /** Comes once and last. */
  close(): void;
}

export interface Http2ClientHandlers extends Http2StreamHandlers {
  inform(status: number, fields: readonly string[]): void;
  head(status: number, fields: readonly string[], isComplete: boolean): void;
}

/** A request that we sent; its answer flows until it is paused. */
export type Http2ClientStream = Http2Body;

export interface Http2ClientSession {
  /** Requests that can be begun now. 0 once the other side is going away or the session has ended. */
  readonly room: number;
  readonly streams: number;
  /** Throws RangeError for a field that HTTP/2 cannot carry. */
  request(
    head: Omit<Http2RequestHead, "scheme">,
    options: { readonly trailers: boolean },
    handlers: Http2ClientHandlers,
  ): Http2ClientStream;
  /** Called when `room` may have grown. */
  onRoom(listener: () => void): void;
  /** Called once, when the session has ended. */
  onClose(listener: () => void): void;
  /** Ends the session after its last stream. */
  close(): void;
  destroy(): void;
}

export interface Http2 {
  /** False when a hostile client can end the process: then only trusted ones may speak it. */
  readonly hardened: boolean;
  /** Speaks HTTP/2 on an accepted socket. `early` are bytes that were read from it already. */
  serve(
    socket: ByteSocket,
    early: Uint8Array,
    limits: Http2Limits,
    handlers: Http2ServerHandlers,
  ): Http2ServerSession;
  /** Connects and begins HTTP/2 with prior knowledge. Rejects with `ConnectFailed`. */
  connect(
    address: Address,
    options: Pick<Http2Limits, "headerBytes"> & { readonly timeoutMs: number },
  ): Promise<Http2ClientSession>;
}
