/**
 * What a client may ask of the traffic listener. Sizes in bytes, times in milliseconds; 0 = no limit
 * where a comment says so.
 */

export interface Limits {
  /** Header section of a request (431), trailers included. */
  readonly headerBytes: number;
  /** Request target (414). */
  readonly targetBytes: number;
  /** Request body (413). 0 = no limit. */
  readonly bodyBytes: number;
  /** From the first byte of a request to the end of its header section (408). */
  readonly headerTimeoutMs: number;
  /** A body must bring `bodyFloorBytes` in every such window until the answer begins (408). 0 = off. */
  readonly bodyWindowMs: number;
  readonly bodyFloorBytes: number;
  /** How long a connection may wait for its next request. */
  readonly keepAliveMs: number;
  /** How long a client may take no byte of an answer that waits for it. 0 = no limit. */
  readonly writeStallMs: number;
  /** Connections at once; further ones are answered 503 and closed. 0 = no limit. */
  readonly connections: number;
  /** How long a connection is read and ignored after our last byte, so that the byte arrives. */
  readonly lingerMs: number;
}

export const DEFAULT_LIMITS: Limits = {
  headerBytes: 16384,
  targetBytes: 8192,
  bodyBytes: 0,
  headerTimeoutMs: 10_000,
  bodyWindowMs: 30_000,
  bodyFloorBytes: 1024,
  keepAliveMs: 75_000,
  writeStallMs: 300_000,
  connections: 0,
  lingerMs: 2000,
};
