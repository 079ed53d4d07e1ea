/**
 * The client's half of an exchange, as forwarding sees it.
 *
 * An HTTP/1.1 connection implements it (h1_exchange.ts); another protocol's stream may as well.
 * Bytes that are handed over are views which are valid during the call only.
 */

import type { Exchange } from "./exchange.ts";
import type { Head } from "./head.ts";
import type { Timeouts } from "./timeouts.ts";

/** How the end of a body is told: no body, so many bytes, pieces, or (answers) the connection's end. */
export type Framing = "none" | "length" | "chunked" | "close";

/** Takes the request's body as it comes, and hears of the client. */
export interface RequestSink {
  onRequestChunk(chunk: Uint8Array): void;
  /** The request is complete. `trailers` are lines, each with CRLF. */
  onRequestEnd(trailers: string): void;
  /** No more bytes in this turn: what was put together should leave. */
  onRequestFlush(): void;
  /** The client takes bytes again after `flushAnswer` returned false. */
  onClientDrain(): void;
  /**
   * The client is gone, its request turned out to be broken, or (`cut` says why) we end the exchange.
   * Comes at most once.
   */
  onClientGone(cut?: string): void;
}

/** The two ends of an upgraded connection push into each other through this. */
export interface TunnelEnd {
  onTunnelData(chunk: Uint8Array): void;
  onTunnelFin(): void;
  onTunnelDrain(): void;
  onTunnelClosed(): void;
  /** Ends both sides; those between two WebSocket frames hear Close 1001 first. */
  cutTunnel(reason: string): void;
}

/** A socket after its upgrade. */
export interface RawSide {
  write(bytes: Uint8Array): boolean;
  pause(): void;
  resume(): void;
  end(): void;
  destroy(): void;
}

export interface ClientSide extends Exchange {
  /** Limits of the service that the exchange was routed to, where it has its own. */
  timeouts?: Partial<Timeouts> | undefined;
  readonly requestHead: Head;
  /** 10, 11, or 20. */
  readonly httpVersion: number;
  readonly requestFraming: Framing;
  /** Bytes of the body when `requestFraming` is "length". */
  readonly requestLength: number;
  /** From an absolute-form target: takes the place of `Host` (RFC 9112 section 3.2.2). */
  readonly authority: string | undefined;
  /** The protocol that the client asked to switch to, lower case, if it is one that we tunnel. */
  readonly upgrade: string | undefined;
  /** The client said that it reads trailers. */
  readonly acceptsTrailers: boolean;
  /** Header lines that replace or extend the client's when the request goes on: who it is for. */
  readonly stamps: string;
  /** Known names (bit set) that must not cross because `stamps` has them. */
  readonly stampedNames: number;
  /** The last byte of the request has been handed to the sink. */
  readonly requestComplete: boolean;

  /** Body bytes flow to the sink from `resumeRequest` on. */
  attach(sink: RequestSink): void;
  /** Takes the sink away again; possible as long as no body byte was handed over. */
  detach(): void;
  pauseRequest(): void;
  resumeRequest(): void;

  /** Sends an interim answer other than 101. False: wait for `onClientDrain`. */
  inform(status: number, reason: string, lines: string): boolean;
  /** Starts the answer. `lines` are complete but for framing, connection and date of our own. */
  startAnswer(
    status: number,
    reason: string,
    lines: string,
    framing: Framing,
    length: number,
    hasDate: boolean,
  ): void;
  answerChunk(chunk: Uint8Array): void;
  endAnswer(trailers: string): void;
  /** Sends what was put together, as one write. False: wait for `onClientDrain`. */
  flushAnswer(): boolean;
  /** Ends a started answer so that the client can see that it is incomplete. */
  breakAnswer(reason: string): void;
  /** Answers with an error of ours; does nothing once an answer has begun. */
  fail(error: unknown): void;
  /** Sends the 101 and gives the raw connection away. */
  openTunnel(reason: string, lines: string, end: TunnelEnd): RawSide;
  /** The tunnel has ended: writes the log line. */
  closeTunnel(reason: string | undefined, bytesToClient: number): void;
}
