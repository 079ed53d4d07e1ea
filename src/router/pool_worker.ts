/**
 * One worker of a pool: where it is, and whether it seems to be well.
 *
 * A worker that failed is left out for a while, twice as long each time in a row, and then tried
 * again. It costs only itself.
 */

import type { Target } from "../proxy/target.ts";
import type { Clock } from "../runtime/runtime.ts";

const FIRST_PAUSE_MS = 1_000;
const MAX_PAUSE_MS = 30_000;

export class PoolWorker {
  readonly id: string;
  readonly dpRank: number;
  /** Base URL, without a slash at the end. */
  readonly url: string;
  readonly target: Target;
  readonly #clock: Clock;
  #pauseMs = 0;
  #pausedUntil = 0;
  #lastError: string | undefined;

  constructor(
    options: { id: string; dpRank: number; url: string; target: Target; clock: Clock },
  ) {
    this.id = options.id;
    this.dpRank = options.dpRank;
    this.url = options.url.replace(/\/$/, "");
    this.target = options.target;
    this.#clock = options.clock;
  }

  get healthy(): boolean {
    return this.#clock.monotonic() >= this.#pausedUntil;
  }

  get lastError(): string | undefined {
    return this.#lastError;
  }

  /** The worker could not be reached, or broke off. Never called for answers with a 4xx status. */
  failed(reason: string): void {
    this.#lastError = reason;
    this.#pauseMs = Math.min(MAX_PAUSE_MS, Math.max(FIRST_PAUSE_MS, this.#pauseMs * 2));
    this.#pausedUntil = this.#clock.monotonic() + this.#pauseMs;
  }

  /** It answered. */
  answered(): void {
    this.#pauseMs = 0;
    this.#lastError = undefined;
  }
}
