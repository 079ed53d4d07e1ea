/**
 * When a version may be started again after a failure, and how long its next start may take.
 *
 * The wait doubles with each crash or failed start and is reset by a run that was long enough; the
 * readiness window doubles with each start that did not get ready and is reset by one that did.
 */

import type { VersionsConfig } from "../config/versions.ts";
import type { Clock } from "../runtime/runtime.ts";
import { maxWindowMs, nextWindowMs } from "./ready_window.ts";

export class Attempts {
  readonly #clock: Clock;
  readonly #config: VersionsConfig;
  #backoffMs: number;
  #notBeforeMs = 0;
  #windowMs: number;
  #unready = 0;

  constructor(clock: Clock, config: VersionsConfig) {
    this.#clock = clock;
    this.#config = config;
    this.#backoffMs = config.restartBackoffMs;
    this.#windowMs = config.readyTimeoutMs;
  }

  /** A new build, or an operator, deserves a fresh try without the waits of earlier failures. */
  reset(): void {
    this.#notBeforeMs = 0;
    this.#backoffMs = this.#config.restartBackoffMs;
    this.becameReady();
  }

  /** Milliseconds until the next start is allowed, 0 if it is now. */
  get waitMs(): number {
    return Math.max(0, this.#notBeforeMs - this.#clock.monotonic());
  }

  /** The readiness window of the next start. */
  get windowMs(): number {
    return this.#windowMs;
  }

  /** Starts in a row that did not get ready. */
  get unready(): number {
    return this.#unready;
  }

  /** Puts the next start off, by twice as long as last time; says by how long. */
  backOff(): number {
    const delayMs = this.#backoffMs;
    this.#backoffMs = Math.min(delayMs * 2, this.#config.restartBackoffMaxMs);
    this.#notBeforeMs = this.#clock.monotonic() + delayMs;
    return delayMs;
  }

  /** A child ran for so long before it ended. */
  ranFor(ranMs: number): void {
    if (ranMs > this.#config.restartResetMs) this.#backoffMs = this.#config.restartBackoffMs;
  }

  becameReady(): void {
    this.#windowMs = this.#config.readyTimeoutMs;
    this.#unready = 0;
  }

  didNotGetReady(): void {
    const { readyTimeoutMs, readyMaxWaitMs } = this.#config;
    this.#unready += 1;
    this.#windowMs = nextWindowMs(this.#windowMs, maxWindowMs(readyTimeoutMs, readyMaxWaitMs));
  }
}
