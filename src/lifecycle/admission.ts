/**
 * The count of what is in flight, and the wait for it to reach zero.
 */

/** Counts what was let in somewhere else, under the same admission (another thread). */
export interface AdmissionElsewhere {
  readonly inflight: number;
  /** Resolves when nothing is in flight there, told after it knew the present state. */
  idle(): Promise<void>;
}

export class Admission {
  #elsewhere: AdmissionElsewhere | undefined;
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
    return this.#inflight + (this.#elsewhere?.inflight ?? 0);
  }

  /** From now on what `elsewhere` counts is in flight too. */
  include(elsewhere: AdmissionElsewhere): void {
    this.#elsewhere = elsewhere;
  }

  /** Resolves the next time the count is zero (at once if it is now). */
  async idle(): Promise<void> {
    await this.#elsewhere?.idle();
    if (this.#inflight > 0) await new Promise<void>((resolve) => this.#waiting.push(resolve));
  }
}
