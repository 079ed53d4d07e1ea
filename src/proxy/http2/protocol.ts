/** Numbers of HTTP/2's wire format (RFC 9113), and what two of its errors do. */

// Frame types (section 6).
export const DATA = 0;
export const HEADERS = 1;
export const PRIORITY = 2;
export const RST_STREAM = 3;
export const SETTINGS = 4;
export const PUSH_PROMISE = 5;
export const PING = 6;
export const GOAWAY = 7;
export const WINDOW_UPDATE = 8;
export const CONTINUATION = 9;

// Flags.
export const END_STREAM = 0x1;
export const ACK = 0x1;
export const END_HEADERS = 0x4;
export const PADDED = 0x8;
export const HAS_PRIORITY = 0x20;

/** Bytes before the payload of each frame (section 4.1). */
export const FRAME_HEAD_BYTES = 9;
/** The largest payload that we take (section 4.2; we ask for no more), and the largest that we send. */
export const MOST_PAYLOAD_BYTES = 16_384;
/** Every window begins with this (section 6.9.2). */
export const DEFAULT_WINDOW_BYTES = 65_535;
/** The largest window, stream number and last-stream-id. */
export const MOST_31_BITS = 2 ** 31 - 1;

/** What RST_STREAM and GOAWAY say (section 7). */
export const H2_ERRORS = {
  none: 0,
  protocol: 1,
  internal: 2,
  flowControl: 3,
  settingsTimeout: 4,
  streamClosed: 5,
  frameSize: 6,
  refusedStream: 7,
  cancel: 8,
  compression: 9,
  connect: 10,
  enhanceYourCalm: 11,
} as const;

/** What the other side sent ends the whole connection (section 5.4.1). */
export class ConnectionError extends Error {
  override readonly name = "ConnectionError";
  /** One of `H2_ERRORS`. */
  readonly code: number;
  constructor(code: number, message: string) {
    super(message);
    this.code = code;
  }
}

/** A whole number of four bytes. */
export function readU32(bytes: Uint8Array, at: number): number {
  return ((bytes[at] as number) << 24 | (bytes[at + 1] as number) << 16 |
    (bytes[at + 2] as number) << 8 | (bytes[at + 3] as number)) >>> 0;
}

/** The same without its highest bit, which is reserved wherever HTTP/2 has a number of 31 bits. */
export function readU31(bytes: Uint8Array, at: number): number {
  return readU32(bytes, at) & MOST_31_BITS;
}
