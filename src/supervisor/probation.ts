/**
 * The time after a switch in which the new generation must hold.
 *
 * Until it is over the old generation is kept warm. The new one's exit, a row of failed probes or of
 * refused connections ends it as failed, once; the end of its time ends it as passed.
 */

import type { Clock } from "../runtime/runtime.ts";
import type { Generation } from "./generation.ts";

export interface ProbationOptions {
  readonly clock: Clock;
  readonly bakeMs: number;
  readonly probeFailures: number;
  readonly connectErrors: number;
  readonly onPassed: () => void;
  readonly onFailed: (cause: string) => void;
}

export class Probation {
  readonly generation: Generation;
  /** The generation before, kept warm; undefined if there is none (any more). */
  old: Generation | undefined;
  readonly #options: ProbationOptions;
  readonly #cancel: () => void;
  #open = true;
  #failedProbes = 0;

  constructor(generation: Generation, old: Generation | undefined, options: ProbationOptions) {
    this.generation = generation;
    this.old = old;
    this.#options = options;
    this.#cancel = options.clock.after(options.bakeMs, () => {
      if (this.close()) options.onPassed();
    });
  }

  get open(): boolean {
    return this.#open;
  }

  probed(ready: boolean, detail: string): void {
    // Where the old one is not ready either the cause is outside both, and nothing is gained.
    const isBlamed = !ready && this.old?.live?.ready !== false;
    this.#failedProbes = isBlamed ? this.#failedProbes + 1 : 0;
    if (this.#failedProbes >= this.#options.probeFailures) {
      this.fail(`${this.#failedProbes} failed probes in a row (${detail})`);
    }
  }

  connectFailed(): void {
    if (this.generation.connectErrors >= this.#options.connectErrors) {
      this.fail(`${this.generation.connectErrors} refused connections`);
    }
  }

  fail(cause: string): void {
    if (this.close()) this.#options.onFailed(cause);
  }

  /** Ends it without a verdict; false if it had ended before. */
  close(): boolean {
    if (!this.#open) return false;
    this.#open = false;
    this.#cancel();
    return true;
  }
}
