/**
 * Asks each worker of a pool, again and again, whether it is well.
 */

import { messageOf } from "../errors.ts";
import type { Clock, Http } from "../runtime/runtime.ts";
import type { PoolWorker } from "./pool_worker.ts";

export interface HealthProbeOptions {
  readonly http: Http;
  readonly clock: Clock;
  readonly path: string;
  readonly intervalMs: number;
  readonly timeoutMs: number;
  readonly workers: () => Iterable<PoolWorker>;
}

export class HealthProbe {
  readonly #options: HealthProbeOptions;
  readonly #stop = new AbortController();
  #cancel = (): void => {};

  constructor(options: HealthProbeOptions) {
    this.#options = options;
  }

  /** Begins a round now, and the next one a pause after each. */
  start(): void {
    void this.#round();
  }

  stop(): void {
    this.#stop.abort(new Error("stopped"));
    this.#cancel();
  }

  /** One round: all workers at the same time, each within the limit. */
  async #round(): Promise<void> {
    const { workers, clock, intervalMs } = this.#options;
    await Promise.all([...workers()].map(async (worker) => {
      const error = await this.#ask(worker.url);
      if (!this.#stop.signal.aborted) worker.probed(error);
    }));
    if (this.#stop.signal.aborted) return;
    this.#cancel = clock.after(intervalMs, () => void this.#round());
  }

  /** What is wrong, or undefined. */
  async #ask(url: string): Promise<string | undefined> {
    const { http, clock, path, timeoutMs } = this.#options;
    const late = new AbortController();
    const abort = (): void => late.abort();
    this.#stop.signal.addEventListener("abort", abort, { once: true });
    const cancel = clock.after(timeoutMs, abort);
    try {
      const response = await http.fetch(url + path, { signal: late.signal, redirect: "manual" });
      await response.body?.cancel();
      return response.ok ? undefined : `the probe was answered ${response.status}`;
    } catch (error) {
      return late.signal.aborted
        ? "the probe was not answered in time"
        : `the probe failed: ${messageOf(error)}`;
    } finally {
      cancel();
      this.#stop.signal.removeEventListener("abort", abort);
    }
  }
}
