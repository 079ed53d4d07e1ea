/** The streams that were closed last, to tell frames that crossed our reset from those out of order. */

/** Far more than may be open at once: what is forgotten is dealt with as an error of one stream. */
const REMEMBERED = 512;

export class ClosedStreams {
  /** Made when the first stream ends; negative numbers were reset by us. */
  #ring: Int32Array | undefined;
  #count = 0;

  add(stream: number, byUs: boolean): void {
    this.#ring ??= new Int32Array(REMEMBERED);
    this.#ring[this.#count % REMEMBERED] = byUs ? -stream : stream;
    this.#count += 1;
  }

  /** Whether it ended by our reset; undefined when we do not remember it. */
  wasResetByUs(stream: number): boolean | undefined {
    for (let at = 0; at < Math.min(this.#count, REMEMBERED); at++) {
      const found = this.#ring?.[at];
      if (found === stream) return false;
      if (found === -stream) return true;
    }
    return undefined;
  }
}
