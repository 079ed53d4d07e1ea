/**
 * Where the frames of a WebSocket connection begin and end, without reading what is in them
 * (RFC 6455 section 5.2): so that a Close frame can be put between two, never into one.
 */

export class FrameBoundaries {
  #header = new Uint8Array(14);
  #have = 0;
  #payloadLeft = 0;

  /** True between two frames. */
  get atBoundary(): boolean {
    return this.#have === 0 && this.#payloadLeft === 0;
  }

  /** Follows the bytes to their end. */
  advance(bytes: Uint8Array): void {
    let at = 0;
    while (at < bytes.length) at = this.#step(bytes, at);
  }

  /** Follows the bytes to the first boundary: the offset behind it, or -1 if there is none. */
  toBoundary(bytes: Uint8Array): number {
    let at = 0;
    while (at < bytes.length) {
      at = this.#step(bytes, at);
      if (this.atBoundary) return at;
    }
    return -1;
  }

  #step(bytes: Uint8Array, from: number): number {
    if (this.#payloadLeft > 0) {
      const taken = Math.min(this.#payloadLeft, bytes.length - from);
      this.#payloadLeft -= taken;
      return from + taken;
    }
    this.#header[this.#have] = bytes[from] as number;
    this.#have += 1;
    if (this.#have >= 2 && this.#have === this.#headerLength()) {
      this.#payloadLeft = this.#payloadLength();
      this.#have = 0;
    }
    return from + 1;
  }

  #headerLength(): number {
    const second = this.#header[1] as number;
    const length = second & 0x7f;
    return 2 + (length === 126 ? 2 : length === 127 ? 8 : 0) + ((second & 0x80) !== 0 ? 4 : 0);
  }

  #payloadLength(): number {
    const length = (this.#header[1] as number) & 0x7f;
    if (length < 126) return length;
    let value = 0;
    const end = length === 126 ? 4 : 10;
    for (let at = 2; at < end; at++) value = value * 256 + (this.#header[at] as number);
    return value;
  }
}

/** Close, status 1001 "going away" (RFC 6455 section 7.4.1), as a server sends it. */
export const CLOSE_GOING_AWAY = new Uint8Array([0x88, 0x02, 0x03, 0xe9]);
/** The same as a client sends it: masked, with the mask 0. */
export const MASKED_CLOSE_GOING_AWAY = new Uint8Array([0x88, 0x82, 0, 0, 0, 0, 0x03, 0xe9]);
