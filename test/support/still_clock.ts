/** A clock that stands still until a test moves it, and takes no real time to move. */
import type { Clock } from "../../src/runtime/runtime.ts";

interface Timer {
  readonly due: number;
  readonly order: number;
  readonly action: () => void;
}

export class StillClock implements Clock {
  #at = 0;
  #order = 0;
  readonly #timers = new Set<Timer>();

  now(): number {
    return 1_700_000_000_000 + this.#at;
  }

  monotonic(): number {
    return this.#at;
  }

  after(delayMs: number, action: () => void): () => void {
    const timer = { due: this.#at + delayMs, order: this.#order++, action };
    this.#timers.add(timer);
    return () => void this.#timers.delete(timer);
  }

  /** Moves on, running each timer at its time, with all promise chains that follow in between. */
  async advance(ms: number): Promise<void> {
    const until = this.#at + ms;
    await calm();
    for (;;) {
      let next: Timer | undefined;
      for (const timer of this.#timers) {
        if (timer.due > until) continue;
        const isBefore = next === undefined || timer.due < next.due ||
          (timer.due === next.due && timer.order < next.order);
        if (isBefore) next = timer;
      }
      if (next === undefined) break;
      this.#timers.delete(next);
      this.#at = Math.max(this.#at, next.due);
      next.action();
      await calm();
    }
    this.#at = until;
  }
}

/** Lets promise chains run out, in microtasks only. */
export async function calm(): Promise<void> {
  for (let turn = 0; turn < 60; turn++) await Promise.resolve();
}
