/** A clock that stands still until a test moves it. */
import type { Clock } from "../../src/runtime/runtime.ts";

export class VirtualClock implements Clock {
  #at = 0;
  #timers: { due: number; order: number; action: () => void }[] = [];
  #order = 0;

  now(): number {
    return 1_700_000_000_000 + this.#at;
  }

  monotonic(): number {
    return this.#at;
  }

  after(delayMs: number, action: () => void): () => void {
    const timer = { due: this.#at + delayMs, order: this.#order++, action };
    this.#timers.push(timer);
    return () => {
      this.#timers = this.#timers.filter((one) => one !== timer);
    };
  }

  get pending(): number {
    return this.#timers.length;
  }

  /** Moves on, running each timer at its time, with all that follows from it in between. */
  async advance(ms: number): Promise<void> {
    const until = this.#at + ms;
    await settle();
    for (;;) {
      const next = this.#timers.filter((one) => one.due <= until)
        .sort((a, b) => a.due - b.due || a.order - b.order)[0];
      if (next === undefined) break;
      this.#timers = this.#timers.filter((one) => one !== next);
      this.#at = Math.max(this.#at, next.due);
      next.action();
      await settle();
    }
    this.#at = until;
  }
}

/** Lets promise chains run out. */
export async function settle(): Promise<void> {
  for (let turn = 0; turn < 5; turn += 1) {
    await new Promise((resolve) => setTimeout(resolve, 0));
  }
}
