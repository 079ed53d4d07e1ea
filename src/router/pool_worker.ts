/**
 * One worker of a pool: where it is, whether it may be chosen, and whether it seems to be well.
 *
 * A worker that failed is left out for a while, twice as long each time in a row, and then tried
 * again. One that fails its probes is left out until it passes one. It costs only itself.
 */

import type { Log } from "../observe/log.ts";
import type { Target } from "../proxy/target.ts";
import type { Clock } from "../runtime/runtime.ts";

const FIRST_PAUSE_MS = 1_000;
const MAX_PAUSE_MS = 30_000;

export interface PoolWorkerOptions {
  readonly id: string;
  readonly dpRank: number;
  readonly url: string;
  readonly target: Target;
  readonly clock: Clock;
  readonly log: Log;
  /** Most leases at a time; no limit when absent. */
  readonly maxInflight?: number | undefined;
  /** Failed probes in a row that make it ill. */
  readonly probeFailures?: number | undefined;
}

export class PoolWorker {
  readonly id: string;
  readonly dpRank: number;
  /** Base URL, without a slash at the end. */
  readonly url: string;
  readonly target: Target;
  /** False while whoever lists it says that it takes no requests: it stays, and is not chosen. */
  listedReady = true;
  readonly #options: PoolWorkerOptions;
  #pauseMs = 0;
  #pausedUntil = 0;
  #failedProbes = 0;
  /** Somebody was told that it is ill, and not yet that it is well again. */
  #isSaidIll = false;
  #lastError: string | undefined;

  constructor(options: PoolWorkerOptions) {
    this.#options = options;
    this.id = options.id;
    this.dpRank = options.dpRank;
    this.url = options.url.replace(/\/$/, "");
    this.target = options.target;
  }

  /** It may be given requests, if it is well and has room. */
  get available(): boolean {
    return this.listedReady && !this.target.retired;
  }

  get healthy(): boolean {
    const { clock, probeFailures = Infinity } = this.#options;
    return clock.monotonic() >= this.#pausedUntil && this.#failedProbes < probeFailures;
  }

  /** It has as many requests as it may have. */
  get full(): boolean {
    const { maxInflight } = this.#options;
    return maxInflight !== undefined && this.target.leases >= maxInflight;
  }

  get lastError(): string | undefined {
    return this.#lastError;
  }

  /** The worker could not be reached, or broke off. Never called for answers with a 4xx status. */
  failed(reason: string): void {
    this.#lastError = reason;
    this.#pauseMs = Math.min(MAX_PAUSE_MS, Math.max(FIRST_PAUSE_MS, this.#pauseMs * 2));
    this.#pausedUntil = this.#options.clock.monotonic() + this.#pauseMs;
    this.#tell();
  }

  /** It answered a request. */
  answered(): void {
    this.#pauseMs = 0;
    this.#pausedUntil = 0;
    this.#lastError = undefined;
    if (this.#isSaidIll) this.#tell();
  }

  /** What a probe found: undefined when it is well. Being reachable ends a pause for not being so. */
  probed(error: string | undefined): void {
    if (error !== undefined) {
      this.#failedProbes += 1;
      this.#lastError = error;
      this.#tell();
      return;
    }
    const wasIll = this.#failedProbes > 0;
    this.#failedProbes = 0;
    if (wasIll || this.#lastError === "upstream_connect_failed") this.answered();
  }

  /** Logs each change once: a pause that is over does not make it well, an answer does. */
  #tell(): void {
    const isIll = !this.healthy;
    if (isIll === this.#isSaidIll || (!isIll && this.#lastError !== undefined)) return;
    this.#isSaidIll = isIll;
    const { log } = this.#options;
    const { id: worker, url } = this;
    if (isIll) log.warn("worker_ill", { worker, url, reason: this.#lastError });
    else log.info("worker_well", { worker, url });
  }
}
