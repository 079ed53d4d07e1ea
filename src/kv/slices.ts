/**
 * Shares the event loop between work that comes in bursts: a few milliseconds a turn, then a break.
 *
 * Work that is urgent (applying what is decoded) goes before other work (decoding more), so that
 * what waits, waits in its compact form. Within the turn's budget work runs at once, in the caller's
 * turn.
 */

import type { Clock } from "../runtime/runtime.ts";
import { TURN_MS, Turns } from "./turns.ts";
import { WorkSlice } from "./work_slice.ts";

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
  readonly #turns: Turns;
  readonly #urgent = new Set<Work>();
  readonly #other = new Set<Work>();
  #isRunning = false;
  #isWaiting = false;

  constructor(options: SlicesOptions) {
    this.#clock = options.clock;
    this.#budgetMs = options.budgetMs ?? TURN_MS;
    this.#turns = Turns.of(options.clock);
  }

  /** Has `work` stepped until it says that nothing is left. Submitting it twice is the same as once. */
  submit(work: Work, kind: "urgent" | "other"): void {
    (kind === "urgent" ? this.#urgent : this.#other).add(work);
    if (!this.#isRunning && !this.#isWaiting) this.#run();
  }

  /** For work that is done in a loop of its own: a pause that gives way whenever the turn is spent. */
  breather(budgetMs = this.#budgetMs): () => Promise<void> {
    const slice = new WorkSlice(this.#clock, Math.min(budgetMs, this.#budgetMs));
    return async () => {
      const rest = slice.rest();
      if (rest !== undefined) await rest;
    };
  }

  /** Forgets work that must not be stepped any more. */
  withdraw(work: Work): void {
    this.#urgent.delete(work);
    this.#other.delete(work);
  }

  #run(): void {
    this.#turns.enter();
    this.#isRunning = true;
    try {
      let before = this.#clock.monotonic();
      while (this.#turns.usedMs < this.#budgetMs) {
        const queue = this.#urgent.size > 0 ? this.#urgent : this.#other;
        const [work] = queue;
        if (work === undefined) break;
        queue.delete(work);
        if (work.step()) queue.add(work);
        const after = this.#clock.monotonic();
        this.#turns.use(after - before);
        before = after;
      }
    } finally {
      this.#isRunning = false;
      if (this.#urgent.size > 0 || this.#other.size > 0) this.#wait();
    }
  }

  #wait(): void {
    this.#isWaiting = true;
    this.#turns.later(() => {
      this.#isWaiting = false;
      this.#run();
    });
  }
}
