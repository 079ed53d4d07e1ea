/**
 * Frames that leave together: everything that a connection says in one turn goes into one buffer,
 * and to the socket as one write.
 */

import {
  CONTINUATION,
  END_HEADERS,
  END_STREAM,
  FRAME_HEAD_BYTES,
  HEADERS,
  MOST_PAYLOAD_BYTES,
} from "./protocol.ts";

/** What a buffer has room for: what a session gathers at most, and a frame more. */
const BUFFER_BYTES = 98_304;
/** Buffers that nobody writes into at present, of all connections: those that are idle have none. */
const spare: Uint8Array[] = [];
const MOST_SPARE = 16;
const NONE = new Uint8Array(0);

export class FrameWriter {
  #bytes: Uint8Array = NONE;
  #length = 0;
  /** The last frame, if it is one that can still be told to end its stream: where its flags are. */
  #lastFlagsAt = -1;
  #lastStream = 0;

  get length(): number {
    return this.#length;
  }

  /** What was written; the writer's own until `clear`. */
  view(): Uint8Array {
    return this.#bytes.subarray(0, this.#length);
  }

  /** Forgets what was written; `isGivenAway`: somebody still reads the view. */
  clear(isGivenAway: boolean): void {
    this.#length = 0;
    this.#lastFlagsAt = -1;
    if (!isGivenAway && this.#bytes.length === BUFFER_BYTES && spare.length < MOST_SPARE) {
      spare.push(this.#bytes);
    }
    this.#bytes = NONE;
  }

  #reserve(more: number): void {
    const wanted = this.#length + more;
    if (wanted <= this.#bytes.length) return;
    const size = Math.max(BUFFER_BYTES, 2 * this.#bytes.length, wanted);
    const larger = size === BUFFER_BYTES
      ? spare.pop() ?? new Uint8Array(size)
      : new Uint8Array(size);
    larger.set(this.view());
    this.#bytes = larger;
  }

  byte(value: number): void {
    if (this.#length === this.#bytes.length) this.#reserve(1);
    this.#bytes[this.#length++] = value;
  }

  u32(value: number): void {
    this.#reserve(4);
    const at = this.#length;
    this.#bytes[at] = value >>> 24;
    this.#bytes[at + 1] = value >>> 16;
    this.#bytes[at + 2] = value >>> 8;
    this.#bytes[at + 3] = value;
    this.#length = at + 4;
  }

  bytes(bytes: Uint8Array): void {
    this.#reserve(bytes.length);
    this.#bytes.set(bytes, this.#length);
    this.#length += bytes.length;
  }

  /** Chars up to 255, one byte each. */
  latin1(text: string): void {
    this.#reserve(text.length);
    const bytes = this.#bytes;
    let at = this.#length;
    for (let index = 0; index < text.length; index++) bytes[at++] = text.charCodeAt(index);
    this.#length = at;
  }

  /** A frame's head; its payload, of `length` bytes, has to follow. */
  head(type: number, flags: number, stream: number, length: number): void {
    this.#reserve(FRAME_HEAD_BYTES);
    this.#putHead(this.#length, type, flags, stream, length);
    this.#length += FRAME_HEAD_BYTES;
    this.#lastFlagsAt = -1;
  }

  #putHead(at: number, type: number, flags: number, stream: number, length: number): void {
    const bytes = this.#bytes;
    bytes[at] = length >>> 16;
    bytes[at + 1] = length >>> 8;
    bytes[at + 2] = length;
    bytes[at + 3] = type;
    bytes[at + 4] = flags;
    bytes[at + 5] = stream >>> 24;
    bytes[at + 6] = stream >>> 16;
    bytes[at + 7] = stream >>> 8;
    bytes[at + 8] = stream;
  }

  /** A whole DATA frame. */
  data(type: number, flags: number, stream: number, bytes: Uint8Array): void {
    this.head(type, flags, stream, bytes.length);
    this.#lastFlagsAt = this.#length - 5;
    this.#lastStream = stream;
    this.bytes(bytes);
  }

  /** Begins a HEADERS frame; the header block follows, then `endBlock` with what this answers. */
  beginBlock(): number {
    this.#reserve(FRAME_HEAD_BYTES);
    const at = this.#length;
    this.#length += FRAME_HEAD_BYTES;
    return at;
  }

  /** Ends a HEADERS frame, or several when the block is too large for one (RFC 9113 section 4.3). */
  endBlock(at: number, flags: number, stream: number): void {
    const from = at + FRAME_HEAD_BYTES;
    const length = this.#length - from;
    if (length <= MOST_PAYLOAD_BYTES) {
      this.#putHead(at, HEADERS, flags | END_HEADERS, stream, length);
    } else {
      const block = this.#bytes.slice(from, this.#length);
      this.#length = at;
      for (let sent = 0; sent < length; sent += MOST_PAYLOAD_BYTES) {
        const piece = block.subarray(sent, sent + MOST_PAYLOAD_BYTES);
        const isLast = sent + piece.length === length;
        const pieceFlags = (sent === 0 ? flags : 0) | (isLast ? END_HEADERS : 0);
        this.head(sent === 0 ? HEADERS : CONTINUATION, pieceFlags, stream, piece.length);
        this.bytes(piece);
      }
    }
    this.#lastFlagsAt = at + 4;
    this.#lastStream = stream;
  }

  /** Makes the frame that was written last end its stream, if it is one of that stream. */
  endLast(stream: number): boolean {
    if (this.#lastFlagsAt < 0 || this.#lastStream !== stream) return false;
    this.#bytes[this.#lastFlagsAt] = (this.#bytes[this.#lastFlagsAt] as number) | END_STREAM;
    this.#lastFlagsAt = -1;
    return true;
  }
}
