/** How far the other side may be ahead of us (RFC 9113 section 6.9). */

export class ReceiveWindow {
  readonly #bytes: number;
  /** What it may send now. */
  #left: number;
  /** What was used up since it was last told. */
  #used = 0;

  constructor(bytes: number) {
    this.#bytes = bytes;
    this.#left = bytes;
  }

  /** Bytes have come; false when they were more than allowed. */
  take(bytes: number): boolean {
    this.#left -= bytes;
    return this.#left >= 0;
  }

  /** Bytes were used. Answers the increment to tell, or 0 as long as the window is wide enough. */
  give(bytes: number): number {
    this.#used += bytes;
    if (this.#used * 2 < this.#bytes) return 0;
    const increment = this.#used;
    this.#used = 0;
    this.#left += increment;
    return increment;
  }
}
