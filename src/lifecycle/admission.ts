/**
 * The count of what is in flight, and the wait for it to reach zero.
 */

export class Admission {
  #inflight = 0;
  #waiting: (() => void)[] = [];

  /** Counts one more; the returned function takes it back, once however often it is called. */
  enter(): () => void {
    this.#inflight += 1;
    let inside = true;
    return () => {
      if (!inside) return;
      inside = false;
      this.#inflight -= 1;
      if (this.#inflight === 0) { for (const resolve of this.#waiting.splice(0)) resolve(); }
    };
  }

  get inflight(): number {
    return this.#inflight;
  }

  /** Resolves the next time the count is zero (at once if it is now). */
  idle(): Promise<void> {
    if (this.#inflight === 0) return Promise.resolve();
    return new Promise((resolve) => this.#waiting.push(resolve));
  }
}
