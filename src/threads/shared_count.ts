/**
 * How many client connections all threads have, for the one limit on them. Each thread counts its
 * own beside it, so that what a lost thread had can be taken off.
 */

import type { ConnectionCount } from "../proxy/traffic.ts";

/** A number that threads share. */
export function sharedWord(): SharedArrayBuffer {
  return new SharedArrayBuffer(Int32Array.BYTES_PER_ELEMENT);
}

/** What one thread counts itself by; `forget` is for the main thread, once that thread has ended. */
export class SharedCount implements ConnectionCount {
  readonly #own: Int32Array;
  readonly #total: Int32Array;

  constructor(total: SharedArrayBuffer, own: SharedArrayBuffer) {
    this.#own = new Int32Array(own);
    this.#total = new Int32Array(total);
  }

  take(most: number): boolean {
    for (;;) {
      const count = Atomics.load(this.#total, 0);
      if (count >= most) return false;
      if (Atomics.compareExchange(this.#total, 0, count, count + 1) === count) break;
    }
    Atomics.add(this.#own, 0, 1);
    return true;
  }

  give(): void {
    Atomics.sub(this.#own, 0, 1);
    Atomics.sub(this.#total, 0, 1);
  }

  /** Takes off what the thread had. */
  forget(): void {
    Atomics.sub(this.#total, 0, Atomics.exchange(this.#own, 0, 0));
  }
}
