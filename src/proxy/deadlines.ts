/**
 * Coarse deadlines for many connections with one timer.
 *
 * A connection writes a number into a field whenever its deadline changes, which costs nothing; ten
 * times a second all are looked at. Good for limits of seconds; nothing here is exact.
 */

import type { Clock } from "../runtime/runtime.ts";
import { Roster } from "./roster.ts";

/** `deadlineMs` is monotonic; Infinity means none. */
export interface Timed {
  deadlineMs: number;
  /** Where `Deadlines` keeps it; -1 at first. */
  deadlinePlace: number;
  /** Called at the first look after the deadline. Sets the next one, or the call is repeated. */
  onDeadline(nowMs: number): void;
}

const LOOK_EVERY_MS = 100;

export class Deadlines {
  readonly #clock: Clock;
  readonly #items = new Roster<"deadlinePlace", Timed>("deadlinePlace");
  #cancel: (() => void) | undefined;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  add(item: Timed): void {
    this.#items.add(item);
    if (this.#cancel === undefined) this.#arm();
  }

  remove(item: Timed): void {
    this.#items.delete(item);
    if (this.#items.size > 0 || this.#cancel === undefined) return;
    this.#cancel();
    this.#cancel = undefined;
  }

  get size(): number {
    return this.#items.size;
  }

  #arm(): void {
    this.#cancel = this.#clock.after(LOOK_EVERY_MS, () => {
      this.#cancel = undefined;
      const now = this.#clock.monotonic();
      for (const item of this.#items) if (item.deadlineMs <= now) item.onDeadline(now);
      if (this.#items.size > 0 && this.#cancel === undefined) this.#arm();
    });
  }
}
