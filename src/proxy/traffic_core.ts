/**
 * What all connections of the traffic listener share, as a connection sees it.
 */

import type { ByteSocket, Clock, MessageHandlers, MessageParser } from "../runtime/runtime.ts";
import type { AccessEntry } from "./access_log.ts";
import type { ClientSide, RequestSink } from "./client_side.ts";
import type { Deadlines } from "./deadlines.ts";
import type { Latin1 } from "./head.ts";
import type { Limits } from "./limits.ts";
import type { TrustedPeers } from "./trust.ts";

/** An exchange as the core sees it, whatever protocol it came by. */
export interface Served extends ClientSide, AccessEntry {
  readonly httpVersion: number;
  readonly sink: RequestSink | undefined;
  /** Whether the client may send another request on the connection afterwards. */
  keepAlive: boolean;
  /** Taken by the core when it admitted the exchange; called when its last byte has left. */
  release: (() => void) | undefined;
}

/** A client's connection as the core sees it. */
export interface ServedConnection {
  /** Where the traffic listener keeps it; -1 at first. */
  place: number;
  /** Closes when nothing is owed; else after the present answers. */
  shut(): void;
  /** Cuts it, whatever is on it. */
  cut(): void;
  /** Tells the client to go elsewhere, where the protocol has a way to. */
  announceEnd?(): void;
}

export interface TrafficCore {
  readonly limits: Limits;
  readonly deadlines: Deadlines;
  readonly trusted: TrustedPeers;
  /** Our name in `Via`; unique to this process, so that it finds circles. */
  readonly pseudonym: string;
  readonly scheme: "http" | "https";
  /** Protocols that a client may switch to, lower case. */
  readonly upgrades: ReadonlySet<string>;
  /** True from the beginning of a drain: answers say `connection: close`. */
  readonly draining: boolean;
  readonly latin1: Latin1;
  /** Monotonic milliseconds. */
  now(): number;
  after(delayMs: number, action: () => void): () => void;
  mintRequestId(): string;
  /** `date: ...` with CRLF. */
  dateLine(): string;
  takeParser(handlers: MessageHandlers): MessageParser;
  returnParser(parser: MessageParser): void;
  /** An exchange exists that will be answered without being routed. */
  begun(exchange: Served): void;
  /** Admits and routes an exchange. */
  dispatch(exchange: Served): void;
  /** The exchange has its last status: access log and metrics. */
  finished(exchange: Served): void;
  closed(connection: ServedConnection): void;
  readonly clock: Clock;
  /** Runs an action when this turn of the event loop is over. */
  readonly soon: (action: () => void) => void;
  /** Whether clients may speak HTTP/2. */
  readonly allowsHttp2: boolean;
  /** A connection turned out to be HTTP/2: another owner takes its socket and what was read of it. */
  becameHttp2(connection: ServedConnection, socket: ByteSocket, early: Uint8Array): void;
}
