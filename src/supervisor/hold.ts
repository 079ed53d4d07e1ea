/**
 * Requests that wait for a version which is known but not serving right now.
 *
 * All versions share one bound on the count and one on the bytes. A waiter is let go once: when its
 * version serves again (in the order of arrival), when its time is over, when its client leaves, or
 * when there is nothing to wait for any more.
 */

import type { Clock } from "../runtime/runtime.ts";

export type HoldEnd = "released" | "timeout" | "full" | "left" | "hopeless";

export interface HoldOptions {
  readonly clock: Clock;
  readonly maxRequests: number;
  readonly maxBytes: number;
}

export interface HeldRequest {
  readonly version: string;
  /** What the request keeps in memory meanwhile. */
  readonly bytes: number;
  readonly timeoutMs: number;
  /** Registers a callback for the client's leaving. */
  readonly onLeave: (listener: () => void) => void;
}

interface Waiter {
  readonly bytes: number;
  end(how: HoldEnd): void;
}

export class Holds {
  readonly #options: HoldOptions;
  readonly #waiters = new Map<string, Set<Waiter>>();
  #count = 0;
  #bytes = 0;

  constructor(options: HoldOptions) {
    this.#options = options;
  }

  /** Requests that wait, all versions together. */
  get count(): number {
    return this.#count;
  }

  get bytes(): number {
    return this.#bytes;
  }

  waiting(version: string): number {
    return this.#waiters.get(version)?.size ?? 0;
  }

  /** Waits until the request may go on, or says why it may not. Never rejects. */
  wait(request: HeldRequest): Promise<HoldEnd> {
    const { clock, maxRequests, maxBytes } = this.#options;
    if (request.timeoutMs <= 0) return Promise.resolve("timeout");
    if (this.#count >= maxRequests || this.#bytes + request.bytes > maxBytes) {
      return Promise.resolve("full");
    }
    return new Promise((resolve) => {
      const waiters = this.#waiters.get(request.version) ?? new Set<Waiter>();
      this.#waiters.set(request.version, waiters);
      const waiter: Waiter = {
        bytes: request.bytes,
        end: (how) => {
          if (!waiters.delete(waiter)) return;
          if (waiters.size === 0 && this.#waiters.get(request.version) === waiters) {
            this.#waiters.delete(request.version);
          }
          this.#count -= 1;
          this.#bytes -= request.bytes;
          cancel();
          resolve(how);
        },
      };
      waiters.add(waiter);
      this.#count += 1;
      this.#bytes += request.bytes;
      const cancel = clock.after(request.timeoutMs, () => waiter.end("timeout"));
      request.onLeave(() => waiter.end("left"));
    });
  }

  /** Lets all waiters of a version go on, oldest first. */
  release(version: string): void {
    this.#endAll(version, "released");
  }

  /** Sends all waiters of a version away: nothing will serve it. */
  dismiss(version: string): void {
    this.#endAll(version, "hopeless");
  }

  #endAll(version: string, how: HoldEnd): void {
    for (const waiter of [...this.#waiters.get(version) ?? []]) waiter.end(how);
  }
}
