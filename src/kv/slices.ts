/**
 * Shares the event loop between work that comes in bursts: a few milliseconds a turn, then a break.
 *
 * Work that is urgent (applying what is decoded) goes before other work (decoding more), so that
 * what waits, waits in its compact form. Within its budget work runs at once, in the caller's turn.
 */

import type { Clock } from "../runtime/runtime.ts";

export interface Work {
  /** Does a little, well under a millisecond; false when nothing is left for now. */
  step(): boolean;
}

export interface SlicesOptions {
  readonly clock: Clock;
  /** Milliseconds of work in one turn of the event loop. */
  readonly budgetMs?: number;
}

export class Slices {
  readonly #clock: Clock;
  readonly #budgetMs: number;
  readonly #urgent = new Set<Work>();
  readonly #other = new Set<Work>();
  /** Milliseconds used since the last break. */
  #used = 0;
  #isArmed = false;
  #isRunning = false;

  constructor(options: SlicesOptions) {
    this.#clock = options.clock;
    this.#budgetMs = options.budgetMs ?? 3;
  }

  /** Has `work` stepped until it says that nothing is left. Submitting it twice is the same as once. */
  submit(work: Work, kind: "urgent" | "other"): void {
    (kind === "urgent" ? this.#urgent : this.#other).add(work);
    if (!this.#isRunning && this.#used < this.#budgetMs) this.#run();
  }

  /** For work that is done in a loop of its own: a pause that gives way whenever the budget is used. */
  breather(): () => Promise<void> {
    let since = this.#clock.monotonic();
    return async () => {
      if (this.#clock.monotonic() - since < this.#budgetMs) return;
      await new Promise<void>((resolve) => {
        this.#clock.after(0, resolve);
      });
      since = this.#clock.monotonic();
    };
  }

  /** Forgets work that must not be stepped any more. */
  withdraw(work: Work): void {
    this.#urgent.delete(work);
    this.#other.delete(work);
  }

  #run(): void {
    this.#isRunning = true;
    // Armed at the start of the work: when the budget is used up the timer is already due.
    this.#arm();
    const start = this.#clock.monotonic();
    const before = this.#used;
    try {
      for (;;) {
        const queue = this.#urgent.size > 0 ? this.#urgent : this.#other;
        const [work] = queue;
        if (work === undefined) break;
        queue.delete(work);
        if (work.step()) queue.add(work);
        this.#used = before + this.#clock.monotonic() - start;
        if (this.#used >= this.#budgetMs) break;
      }
    } finally {
      this.#isRunning = false;
    }
  }

  #arm(): void {
    if (this.#isArmed) return;
    this.#isArmed = true;
    this.#clock.after(0, () => {
      this.#isArmed = false;
      this.#used = 0;
      if (this.#urgent.size > 0 || this.#other.size > 0) this.#run();
    });
  }
}
