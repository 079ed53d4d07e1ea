/**
 * Frames that cost the sender nothing and move nothing: PING, SETTINGS, RST_STREAM, PRIORITY, empty
 * DATA, small WINDOW_UPDATE and the like (CVE-2019-9511 to 9518, CVE-2023-44487).
 *
 * Each costs a credit. Work that a well-meant sender does earns some: a request opened may be reset,
 * data that we sent may be acknowledged.
 */

/** Credits at first, and the most that can be saved. */
const MOST_CREDITS = 1000;
const CREDITS_A_SECOND = 100;

export class FloodGuard {
  readonly #now: () => number;
  #credits = MOST_CREDITS;
  #atMs: number;

  /** `now` is monotonic milliseconds. */
  constructor(now: () => number) {
    this.#now = now;
    this.#atMs = now();
  }

  earn(credits: number): void {
    this.#credits = Math.min(MOST_CREDITS, this.#credits + credits);
  }

  /** False: the sender works against us. */
  spend(): boolean {
    this.#credits -= 1;
    if (this.#credits >= 0) return true;
    const now = this.#now();
    this.earn(Math.floor((now - this.#atMs) * CREDITS_A_SECOND / 1000));
    this.#atMs = now;
    return this.#credits >= 0;
  }
}
