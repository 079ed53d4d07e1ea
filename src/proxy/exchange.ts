/**
 * One request and its answer on the traffic listener, as the services see it.
 *
 * The bytes stay with the listener; this is what routing, choosing and forwarding need to know, and
 * the few things they may do. A service answers by `forward` (forward.ts) or by `respond`.
 */

import type { Lease } from "./target.ts";

/** Header lines as they came: name, value, name, value, ... in order, case and repetition kept. */
export type HeaderLines = readonly string[];

export interface Exchange {
  readonly requestId: string;
  readonly method: string;
  /** The request target byte for byte as the client sent it (latin1), in origin form. */
  readonly target: string;
  /** The decoded, normalised path: for routing decisions only, never forwarded. */
  readonly path: string;
  readonly headers: HeaderLines;
  readonly remoteAddress: string;
  /** The first value of a header (name in lower case), or undefined. */
  header(name: string): string | undefined;
  /** True once the client is gone or the answer is complete. */
  readonly finished: boolean;
  /** True once the first byte of an answer was handed to the client's connection. */
  readonly answered: boolean;
  /** Calls back once when the client leaves before the answer is complete. */
  onAbort(listener: () => void): void;
  /**
   * Reads the whole request body. Throws BatonError `body_too_large` above `limitBytes`. Only for
   * services that choose by content; what was read must be handed to `forward` as `body`.
   */
  readBody(limitBytes: number): Promise<Uint8Array>;
  /** Answers with a Response of our own making; ignored once `finished`. */
  respond(response: Response): void;
  /** Puts service, version and the like on the access log line. */
  note(fields: Readonly<Record<string, unknown>>): void;
}

export interface ForwardOptions {
  /** The request target to send, when it differs from the client's (a stripped prefix). */
  readonly target?: string;
  /** The body, if `readBody` took it. */
  readonly body?: Uint8Array;
  /**
   * When true, a failure before any byte of an answer went to the client is returned to the caller,
   * who may forward to another target, instead of being answered with 502/504.
   */
  readonly returnFailure?: boolean;
  /** Limits in milliseconds where they differ from the defaults; 0 means none. */
  readonly timeouts?: {
    readonly connectMs?: number;
    readonly firstByteMs?: number;
    readonly idleMs?: number;
  };
  /** For observers: they must not keep or change the chunk. */
  readonly onHead?: (status: number, headers: HeaderLines) => void;
  readonly onBody?: (chunk: Uint8Array) => void;
}

/** How a forward ended. The lease is released before the promise resolves, on every path. */
export interface ForwardOutcome {
  readonly result: "complete" | "client_closed" | "upstream_failed" | "cut";
  /** The status that went to the client (499 if it left first), or 0 when nothing was sent. */
  readonly status: number;
  /** Set for upstream failures: which code of the error table it is. */
  readonly reason?: string;
  /** True when nothing of the request reached the target: the request may go elsewhere. */
  readonly retriable: boolean;
  readonly bytesToClient: number;
}

/** Moves the request to the lease's target and the answer back; see forward.ts. */
export type Forward = (
  exchange: Exchange,
  lease: Lease,
  options?: ForwardOptions,
) => Promise<ForwardOutcome>;
