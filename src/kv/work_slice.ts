import type { Clock } from "../runtime/runtime.ts";
import { TURN_MS, Turns } from "./turns.ts";

/** Keeps a long piece of work from holding the event loop: call `rest` often, it waits seldom. */
export class WorkSlice {
  readonly #clock: Clock;
  readonly #turns: Turns;
  readonly #budgetMs: number;
  #turn = -1;
  #sinceMs = 0;

  /** `budgetMs`: milliseconds of a turn, those that others use included. */
  constructor(clock: Clock, budgetMs = TURN_MS) {
    this.#clock = clock;
    this.#turns = Turns.of(clock);
    this.#budgetMs = budgetMs;
  }

  /** Whether this turn is spent. */
  get isSpent(): boolean {
    const nowMs = this.#clock.monotonic();
    const turn = this.#turns.enter();
    if (turn === this.#turn) this.#turns.use(nowMs - this.#sinceMs);
    this.#turn = turn;
    this.#sinceMs = nowMs;
    return this.#turns.usedMs >= this.#budgetMs;
  }

  /** Undefined (nothing to wait for) until this turn is spent; then a promise for a later one. */
  rest(): Promise<void> | undefined {
    if (!this.isSpent) return undefined;
    return new Promise((resolve) => {
      this.#turns.later(() => {
        this.#turn = this.#turns.enter();
        this.#sinceMs = this.#clock.monotonic();
        resolve();
      });
    });
  }
}
