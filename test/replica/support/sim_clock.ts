/** A clock that jumps from timer to timer, letting promises run out in between. */

import type { Clock } from "../../../src/runtime/runtime.ts";
import { setImmediate } from "node:timers";

interface Timer {
  readonly due: number;
  readonly order: number;
  readonly action: () => void;
  isCancelled: boolean;
}

export class SimClock implements Clock {
  #at = 0;
  #order = 0;
  #timers: Timer[] = [];

  now(): number {
    return 1_800_000_000_000 + this.#at;
  }

  monotonic(): number {
    return this.#at;
  }

  after(delayMs: number, action: () => void): () => void {
    const due = this.#at + Math.max(0, delayMs);
    const timer = { due, order: this.#order++, action, isCancelled: false };
    // Sorted by insertion: few timers are pending at any time.
    let at = this.#timers.length;
    while (at > 0 && (this.#timers[at - 1] as Timer).due > due) at -= 1;
    this.#timers.splice(at, 0, timer);
    return () => {
      timer.isCancelled = true;
    };
  }

  /** Runs timers until `isDone`, or until virtual time has moved on by `mostMs`. */
  async run(isDone: () => boolean, mostMs: number): Promise<void> {
    const end = this.#at + mostMs;
    await settle();
    while (!isDone()) {
      const timer = this.#timers.shift();
      if (timer === undefined) return;
      if (timer.isCancelled) continue;
      if (timer.due > end) {
        this.#timers.unshift(timer);
        this.#at = end;
        return;
      }
      this.#at = timer.due;
      timer.action();
      await settle();
    }
  }
}

/** Lets promises and streams run out. */
export async function settle(): Promise<void> {
  for (let turn = 0; turn < 2; turn += 1) {
    await new Promise((resolve) => setImmediate(resolve));
  }
}

/** Numbers in [0, 1) from a seed (mulberry32). */
export function seeded(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4_294_967_296;
  };
}
