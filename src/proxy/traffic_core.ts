/**
 * What all connections of the traffic listener share, as a connection sees it.
 */

import type { MessageHandlers, MessageParser } from "../runtime/runtime.ts";
import type { Deadlines } from "./deadlines.ts";
import type { H1Connection } from "./h1_connection.ts";
import type { H1Exchange } from "./h1_exchange.ts";
import type { Latin1 } from "./head.ts";
import type { Limits } from "./limits.ts";
import type { TrustedPeers } from "./trust.ts";

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
  begun(exchange: H1Exchange): void;
  /** Admits and routes an exchange. */
  dispatch(exchange: H1Exchange): void;
  /** The exchange has its last status: access log and metrics. */
  finished(exchange: H1Exchange): void;
  closed(connection: H1Connection): void;
}
