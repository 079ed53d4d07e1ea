/**
 * The turns of this thread's event loop, as all work that is done in slices shares them.
 *
 * Cutting a lane, writing a dump, reading one, loading it and applying events can all have something
 * to do at the same time. With a budget of its own each of them would be short, and all of them in
 * one turn would not: sockets would wait for the sum. So there is one budget to a turn, and who wants
 * to go on when it is used up waits for a later turn, one waiter to a turn.
 */

import type { Clock } from "../runtime/runtime.ts";

/** Milliseconds of sliced work in a turn. */
export const TURN_MS = 2;
/** The same for what serves others and can take longer: a replica that gives a dump routes, too. */
export const PATIENT_TURN_MS = 1;

const turnsOf = new WeakMap<Clock, Turns>();

export class Turns {
  readonly #clock: Clock;
  readonly #waiting: (() => void)[] = [];
  #usedMs = 0;
  #number = 0;
  /** A timer is set: the turn that work was done in last may not have ended yet. */
  #isArmed = false;

  private constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** A thread has one clock, so whoever has the clock shares these. */
  static of(clock: Clock): Turns {
    let turns = turnsOf.get(clock);
    if (turns === undefined) {
      turns = new Turns(clock);
      turnsOf.set(clock, turns);
    }
    return turns;
  }

  /** To be called before work is done: begins a turn that nobody has worked in yet; its number. */
  enter(): number {
    if (!this.#isArmed) this.#begin();
    return this.#number;
  }

  /** Milliseconds of work done in this turn so far. */
  get usedMs(): number {
    return this.#usedMs;
  }

  /** Says that work was done in this turn. */
  use(ms: number): void {
    this.#usedMs += ms;
  }

  /** Calls `action` at the start of a later turn. */
  later(action: () => void): void {
    this.#waiting.push(action);
    if (!this.#isArmed) this.#begin();
  }

  #begin(): void {
    // Armed at the start of the work: when the budget is used up the timer is already due.
    this.#isArmed = true;
    this.#number += 1;
    this.#usedMs = 0;
    this.#clock.after(0, () => {
      this.#isArmed = false;
      const next = this.#waiting.shift();
      if (next === undefined) return;
      this.#begin();
      next();
    });
  }
}
