/**
 * How long the recovery may go on, and everything in it that waits.
 */

import type { Clock } from "../runtime/runtime.ts";

export interface PatienceOptions {
  readonly clock: Clock;
  /** Longest time without progress. */
  readonly budgetMs: number;
  /** Longest time in all. */
  readonly maxMs: number;
  /** The budget is used up: true ends all waiting, false lets it go on for ever. */
  readonly onSpent: () => boolean;
}

/** The recovery was stopped from outside. */
export class RecoveryStopped extends Error {
  override readonly name = "RecoveryStopped";
}

/** A peer's turn is over: others are asked now, or nobody is. */
export class TurnOver extends Error {
  override readonly name = "TurnOver";
}

/** How often a peer whose time is up is looked at while nobody else can be asked. */
const TURN_CHECK_MS = 1000;

export class RecoveryPatience {
  readonly #options: PatienceOptions;
  readonly #end = new AbortController();
  readonly #startedMs: number;
  #progressMs: number;
  #isStopped = false;
  #stopTimer: () => void = () => {};

  /** Time begins to count now. */
  constructor(options: PatienceOptions) {
    this.#options = options;
    this.#startedMs = options.clock.monotonic();
    this.#progressMs = this.#startedMs;
  }

  /** Aborted when the recovery is stopped, or ended by its budget. */
  get signal(): AbortSignal {
    return this.#end.signal;
  }

  /** True when the budget has ended the recovery. Throws `RecoveryStopped` when it was stopped. */
  get isSpent(): boolean {
    this.throwIfStopped();
    return this.#end.signal.aborted;
  }

  arm(): void {
    const check = (): void => {
      const leftMs = this.#endMs() - this.#now();
      if (leftMs > 0) this.#stopTimer = this.#options.clock.after(leftMs, check);
      else if (this.#options.onSpent()) this.#end.abort(new Error("the budget is used up"));
    };
    this.#stopTimer = this.#options.clock.after(this.#endMs() - this.#now(), check);
  }

  disarm(): void {
    this.#stopTimer();
  }

  /**
   * A peer's turn: its signal is that of the whole, and is also aborted once half of the budget has
   * brought nothing, counted from now or the last progress, as soon as `mayEnd`. A peer that sends
   * without end would use up the time of those that have what we need, or all of it for nothing.
   */
  turn(mayEnd: () => boolean): { readonly signal: AbortSignal; end(): void } {
    const over = new AbortController();
    const beganMs = this.#now();
    const shareMs = this.#options.budgetMs / 2;
    let stopTimer = (): void => {};
    const check = (): void => {
      const leftMs = Math.max(beganMs, this.#progressMs) + shareMs - this.#now();
      if (leftMs > 0) stopTimer = this.#options.clock.after(leftMs, check);
      else if (mayEnd()) over.abort(new TurnOver(`no lane in ${shareMs} ms`));
      else stopTimer = this.#options.clock.after(Math.min(shareMs, TURN_CHECK_MS), check);
    };
    check();
    return {
      signal: AbortSignal.any([this.#end.signal, over.signal]),
      end: () => stopTimer(),
    };
  }

  /** Something was achieved: the budget counts from here. */
  progress(): void {
    this.#progressMs = this.#now();
  }

  stop(): void {
    this.#isStopped = true;
    this.#end.abort(new RecoveryStopped("the recovery was stopped"));
  }

  throwIfStopped(): void {
    if (this.#isStopped) throw this.#end.signal.reason;
  }

  /** Waits for `wanted` or for the end; false for the latter. Rejects when stopped, or as `wanted`. */
  async within(wanted: Promise<unknown>): Promise<boolean> {
    const { signal } = this.#end;
    let forget = (): void => {};
    const ended = new Promise<boolean>((resolve) => {
      const tell = (): void => resolve(false);
      if (signal.aborted) tell();
      signal.addEventListener("abort", tell, { once: true });
      forget = () => signal.removeEventListener("abort", tell);
    });
    try {
      const isDone = await Promise.race([wanted.then(() => true), ended]);
      this.throwIfStopped();
      return isDone;
    } finally {
      forget();
    }
  }

  /** Waits until `isTrue` (asked again at every change), for at most `mostMs`, or until the end. */
  async until(
    isTrue: () => boolean,
    onChange: (listener: () => void) => () => void,
    mostMs: number,
  ): Promise<void> {
    if (isTrue()) return;
    let stopTimer = (): void => {};
    let forget = (): void => {};
    const wanted = new Promise<void>((resolve) => {
      stopTimer = this.#options.clock.after(mostMs, resolve);
      forget = onChange(() => {
        if (isTrue()) resolve();
      });
    });
    try {
      await this.within(wanted);
    } finally {
      stopTimer();
      forget();
    }
  }

  #endMs(): number {
    const { budgetMs, maxMs } = this.#options;
    return Math.min(this.#progressMs + budgetMs, this.#startedMs + maxMs);
  }

  #now(): number {
    return this.#options.clock.monotonic();
  }
}
