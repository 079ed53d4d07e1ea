/**
 * Requests that wait for a pool's first worker: bounded in number and in time.
 */

import { BatonError } from "../errors.ts";
import type { Exchange } from "../proxy/exchange.ts";
import type { Clock } from "../runtime/runtime.ts";

export interface WorkerWaitOptions {
  readonly clock: Clock;
  /** Longest wait of one request; 0 = none waits. */
  readonly timeoutMs: number;
  readonly maxWaiting: number;
}

export class WorkerWait {
  readonly #options: WorkerWaitOptions;
  readonly #waiting = new Set<() => void>();

  constructor(options: WorkerWaitOptions) {
    this.#options = options;
  }

  /** Longest wait of one request. */
  get timeoutMs(): number {
    return this.#options.timeoutMs;
  }

  get size(): number {
    return this.#waiting.size;
  }

  /** Until when a request that begins to wait now may wait; monotonic. */
  deadline(): number {
    return this.#options.clock.monotonic() + this.#options.timeoutMs;
  }

  /**
   * Resolves at the next `wake`, or when the client has left. Throws `no_worker` at the deadline, and
   * at once when too many wait.
   */
  async wait(exchange: Exchange, deadlineMs: number): Promise<void> {
    const { clock, maxWaiting } = this.#options;
    const leftMs = deadlineMs - clock.monotonic();
    if (leftMs <= 0 || this.#waiting.size >= maxWaiting) throw noWorker();
    let cancel = (): void => {};
    let end = (): void => {};
    const isLate = await new Promise<boolean>((resolve) => {
      end = () => resolve(false);
      this.#waiting.add(end);
      cancel = clock.after(leftMs, () => resolve(true));
      exchange.onAbort(end);
    });
    cancel();
    this.#waiting.delete(end);
    if (isLate) throw noWorker();
  }

  /** Somebody may have come: all look again. */
  wake(): void {
    for (const end of this.#waiting) end();
  }
}

function noWorker(): BatonError {
  return new BatonError("no_worker", "the pool has no worker at the moment", {
    retryAfterS: 1,
    detail: { reason: "no_endpoints" },
  });
}
