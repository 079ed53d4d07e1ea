/** A header block that comes in one HEADERS frame or goes on in CONTINUATION frames (section 6.10). */

import {
  ConnectionError,
  END_HEADERS,
  H2_ERRORS,
  HAS_PRIORITY,
  MOST_PAYLOAD_BYTES,
  PADDED,
  readU31,
} from "./protocol.ts";

/** Frames beyond what the bytes need: a client may cut where it likes, but not endlessly. */
const SPARE_FRAMES = 8;

export class HeaderBlock {
  /** The stream whose block is not complete: until then no other frame may come. 0: none. */
  stream = 0;
  /** The flags of the HEADERS frame. */
  flags = 0;
  /** The whole block is `bytes[from..to)`. */
  bytes: Uint8Array = new Uint8Array(0);
  from = 0;
  to = 0;
  readonly #mostBytes: number;
  #frames = 0;

  /** `mostBytes` bounds a block of several frames (CVE-2024-27316). */
  constructor(mostBytes: number) {
    this.#mostBytes = mostBytes;
  }

  /** Takes a HEADERS frame; true when the block is complete. Throws ConnectionError. */
  begin(stream: number, flags: number, bytes: Uint8Array, from: number, to: number): boolean {
    let start = from;
    let end = to;
    if ((flags & PADDED) !== 0) {
      if (to - from < 1) throw new ConnectionError(H2_ERRORS.frameSize, "HEADERS without padding");
      end -= bytes[start] as number;
      start += 1;
    }
    if ((flags & HAS_PRIORITY) !== 0) {
      if (to - start < 5) {
        throw new ConnectionError(H2_ERRORS.frameSize, "HEADERS without priority");
      }
      checkPriority(stream, bytes, start);
      start += 5;
    }
    if (end < start) throw new ConnectionError(H2_ERRORS.protocol, "more padding than payload");
    this.flags = flags;
    this.bytes = bytes;
    this.from = start;
    this.to = end;
    if ((flags & END_HEADERS) !== 0) return true;
    // The bytes are the reader's, and gone when the next frame comes.
    this.stream = stream;
    this.#frames = 0;
    this.bytes = bytes.slice(start, end);
    this.from = 0;
    this.to = end - start;
    return false;
  }

  /** Takes a CONTINUATION frame; true when the block is complete. Throws ConnectionError. */
  go(stream: number, flags: number, bytes: Uint8Array, from: number, to: number): boolean {
    if (stream !== this.stream) {
      throw new ConnectionError(H2_ERRORS.protocol, "CONTINUATION of no header block");
    }
    const length = this.to + to - from;
    this.#frames += 1;
    const mostFrames = SPARE_FRAMES + this.#mostBytes / MOST_PAYLOAD_BYTES;
    if (length > this.#mostBytes || this.#frames > mostFrames) {
      throw new ConnectionError(H2_ERRORS.enhanceYourCalm, "a header block without end");
    }
    if (length > this.bytes.length) {
      const larger = new Uint8Array(Math.max(length, 2 * this.bytes.length));
      larger.set(this.bytes.subarray(0, this.to));
      this.bytes = larger;
    }
    this.bytes.set(bytes.subarray(from, to), this.to);
    this.to = length;
    if ((flags & END_HEADERS) === 0) return false;
    this.stream = 0;
    return true;
  }

  /** The block was used: its bytes are given back. */
  clear(): void {
    this.bytes = NONE;
    this.from = this.to = 0;
  }
}

const NONE = new Uint8Array(0);

/** Priorities mean nothing to us; a stream that depends on itself is an error all the same. */
export function checkPriority(stream: number, bytes: Uint8Array, at: number): void {
  if (readU31(bytes, at) === stream) {
    throw new ConnectionError(H2_ERRORS.protocol, `stream ${stream} depends on itself`);
  }
}
