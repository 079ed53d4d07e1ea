/**
 * Bytes of a connection to frames (RFC 9113 sections 4.1 and 6): sizes, padding and the kind of
 * stream that each type belongs to are checked here, what a frame means is for the session.
 *
 * DATA is passed on as it comes, other frames when they are complete. Payloads are views of the
 * reader's input or of its own buffer, valid during the call only.
 */

import {
  ACK,
  ConnectionError,
  CONTINUATION,
  DATA,
  FRAME_HEAD_BYTES,
  GOAWAY,
  H2_ERRORS,
  MOST_PAYLOAD_BYTES,
  PADDED,
  readU31,
  SETTINGS,
} from "./protocol.ts";

export interface FrameSink {
  /** A DATA frame begins; `length` is what it takes of the windows, padding included. */
  dataFrame(stream: number, flags: number, length: number): void;
  /** A piece of its data. */
  dataBytes(bytes: Uint8Array): void;
  /** It is complete, and had `padding` bytes that are no data. */
  dataEnd(padding: number): void;
  /** Any other frame of a known type: its payload is `bytes[from..to)`. */
  frame(
    type: number,
    flags: number,
    stream: number,
    bytes: Uint8Array,
    from: number,
    to: number,
  ): void;
  /** A frame of a type that we do not know; it is skipped (section 5.5). */
  unknownFrame(): void;
  /** False ends the reading in the middle of the input: the session has ended. */
  readonly isOpen: boolean;
}

/** What the length of a type's payload must be; 0 for any. */
const EXACT_BYTES: readonly number[] = [0, 0, 5, 4, 0, 0, 8, 0, 4, 0];
/** Types that belong to a stream (1), to the connection (2), or to either (0). */
const BELONGS: readonly number[] = [1, 1, 1, 1, 2, 1, 2, 2, 0, 1];

export class FrameReader {
  readonly #sink: FrameSink;
  /** The beginning of a frame whose rest has not come. */
  #kept: Uint8Array = new Uint8Array(0);
  #keptLength = 0;
  /** Of a DATA frame whose head was read: what is left of the data, and of the padding after it. */
  #dataLeft = 0;
  #paddingLeft = 0;
  #padding = 0;
  #isInData = false;
  /** Bytes of an unknown frame that are still to be skipped. */
  #skip = 0;

  constructor(sink: FrameSink) {
    this.#sink = sink;
  }

  /** Throws ConnectionError. */
  push(chunk: Uint8Array): void {
    let at = 0;
    while (this.#sink.isOpen) {
      if (this.#isInData) at = this.#readData(chunk, at);
      else if (this.#skip > 0) at = this.#skipSome(chunk, at);
      if (at >= chunk.length) return;
      if (this.#isInData || this.#skip > 0) continue;
      if (this.#keptLength > 0) at = this.#fill(chunk, at);
      else {
        const needed = this.#needed(chunk, at, chunk.length - at);
        if (chunk.length - at < needed) return this.#keep(chunk.subarray(at), needed);
        at = this.#begin(chunk, at);
      }
    }
  }

  #keep(bytes: Uint8Array, capacity: number): void {
    if (this.#kept.length < capacity) {
      const larger = new Uint8Array(capacity);
      larger.set(this.#kept.subarray(0, this.#keptLength));
      this.#kept = larger;
    }
    this.#kept.set(bytes, this.#keptLength);
    this.#keptLength += bytes.length;
  }

  /** Completes the frame whose beginning was kept, as far as it must be complete. */
  #fill(chunk: Uint8Array, from: number): number {
    let at = from;
    for (;;) {
      const needed = this.#needed(this.#kept, 0, this.#keptLength);
      if (needed <= this.#keptLength) break;
      const piece = chunk.subarray(at, at + needed - this.#keptLength);
      if (piece.length === 0) return at;
      this.#keep(piece, needed);
      at += piece.length;
    }
    this.#keptLength = 0;
    this.#begin(this.#kept, 0);
    // A buffer for each connection that was once cut in the middle of a frame would be too dear.
    this.#kept = new Uint8Array(0);
    return at;
  }

  /** How many bytes from `at` on have to be there before anything can be done with the frame. */
  #needed(bytes: Uint8Array, at: number, available: number): number {
    if (available < FRAME_HEAD_BYTES) return FRAME_HEAD_BYTES;
    const length = this.#check(bytes, at);
    const type = bytes[at + 3] as number;
    if (type === DATA) {
      return FRAME_HEAD_BYTES + (((bytes[at + 4] as number) & PADDED) === 0 ? 0 : 1);
    }
    return type > CONTINUATION ? FRAME_HEAD_BYTES : FRAME_HEAD_BYTES + length;
  }

  /** Checks a frame's head and answers the length of its payload. */
  #check(bytes: Uint8Array, at: number): number {
    const length = (bytes[at] as number) << 16 | (bytes[at + 1] as number) << 8 |
      (bytes[at + 2] as number);
    const type = bytes[at + 3] as number;
    const flags = bytes[at + 4] as number;
    const stream = readU31(bytes, at + 5);
    if (length > MOST_PAYLOAD_BYTES) throw wrongSize("too large");
    if (type > CONTINUATION) return length;
    const belongs = BELONGS[type] as number;
    if (belongs === 1 ? stream === 0 : belongs === 2 && stream !== 0) {
      throw new ConnectionError(H2_ERRORS.protocol, `type ${type} on stream ${stream}`);
    }
    const exact = EXACT_BYTES[type] as number;
    if (exact !== 0 && length !== exact) throw wrongSize(`type ${type}`);
    if (type === GOAWAY && length < 8) throw wrongSize("GOAWAY");
    if (type === SETTINGS && ((flags & ACK) === 0 ? length % 6 : length) !== 0) {
      throw wrongSize("SETTINGS");
    }
    if (type === DATA && (flags & PADDED) !== 0 && length === 0) throw wrongSize("no padding");
    return length;
  }

  /** Takes the frame that begins at `at`, and of DATA only the head; answers the offset behind. */
  #begin(bytes: Uint8Array, at: number): number {
    const length = this.#check(bytes, at);
    const type = bytes[at + 3] as number;
    const flags = bytes[at + 4] as number;
    const stream = readU31(bytes, at + 5);
    const from = at + FRAME_HEAD_BYTES;
    if (type === DATA) return this.#beginData(stream, flags, length, bytes, from);
    if (type > CONTINUATION) {
      this.#skip = length;
      this.#sink.unknownFrame();
      return from;
    }
    this.#sink.frame(type, flags, stream, bytes, from, from + length);
    return from + length;
  }

  #beginData(
    stream: number,
    flags: number,
    length: number,
    bytes: Uint8Array,
    from: number,
  ): number {
    const isPadded = (flags & PADDED) !== 0;
    const padding = isPadded ? bytes[from] as number : 0;
    const own = isPadded ? 1 + padding : 0;
    if (own > length) throw new ConnectionError(H2_ERRORS.protocol, "more padding than payload");
    this.#isInData = true;
    this.#dataLeft = length - own;
    this.#paddingLeft = padding;
    this.#padding = own;
    this.#sink.dataFrame(stream, flags, length);
    if (length === own && padding === 0) this.#endData();
    return isPadded ? from + 1 : from;
  }

  #readData(chunk: Uint8Array, from: number): number {
    const to = Math.min(chunk.length, from + this.#dataLeft);
    if (to > from) {
      this.#dataLeft -= to - from;
      this.#sink.dataBytes(chunk.subarray(from, to));
    }
    const end = Math.min(chunk.length, to + this.#paddingLeft);
    if (this.#dataLeft === 0) {
      this.#paddingLeft -= end - to;
      if (this.#paddingLeft === 0) this.#endData();
      return end;
    }
    return to;
  }

  #endData(): void {
    this.#isInData = false;
    this.#sink.dataEnd(this.#padding);
  }

  #skipSome(chunk: Uint8Array, from: number): number {
    const to = Math.min(chunk.length, from + this.#skip);
    this.#skip -= to - from;
    return to;
  }
}

function wrongSize(what: string): ConnectionError {
  return new ConnectionError(H2_ERRORS.frameSize, `frame size: ${what}`);
}
