/** Pauses that double from 1 s to 30 s, each shortened at random by up to a quarter. */
export class Backoff {
  readonly #random: () => number;
  readonly #firstMs: number;
  readonly #longestMs: number;
  #nextMs: number;

  constructor(random: () => number, firstMs = 1000, longestMs = 30_000) {
    this.#random = random;
    this.#firstMs = firstMs;
    this.#longestMs = longestMs;
    this.#nextMs = firstMs;
  }

  /** The pause to make now; the one after it will be twice as long. */
  next(): number {
    const ms = this.#nextMs;
    this.#nextMs = Math.min(ms * 2, this.#longestMs);
    return ms * (1 - this.#random() * 0.25);
  }

  reset(): void {
    this.#nextMs = this.#firstMs;
  }
}
