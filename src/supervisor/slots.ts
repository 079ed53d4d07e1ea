/** A bound on how many of something run at once; the rest waits in order. */

import { CalledOff } from "./wait.ts";

export class Slots {
  readonly #max: number;
  readonly #queue: (() => void)[] = [];
  #taken = 0;

  constructor(max: number) {
    this.#max = max;
  }

  get taken(): number {
    return this.#taken;
  }

  get waiting(): number {
    return this.#queue.length;
  }

  /** Takes a slot; the returned function gives it back, once. Throws CalledOff. */
  async take(signal?: AbortSignal): Promise<() => void> {
    if (signal?.aborted) throw new CalledOff(String(signal.reason));
    if (this.#taken < this.#max) {
      this.#taken += 1;
      return this.#giveBack();
    }
    await new Promise<void>((resolve, reject) => {
      const turn = (): void => {
        signal?.removeEventListener("abort", onAbort);
        resolve();
      };
      const onAbort = (): void => {
        this.#queue.splice(this.#queue.indexOf(turn), 1);
        reject(new CalledOff(String(signal?.reason)));
      };
      signal?.addEventListener("abort", onAbort, { once: true });
      this.#queue.push(turn);
    });
    return this.#giveBack();
  }

  #giveBack(): () => void {
    let given = false;
    return () => {
      if (given) return;
      given = true;
      // The slot goes straight to the next one: `taken` stays as it is.
      const next = this.#queue.shift();
      if (next === undefined) this.#taken -= 1;
      else next();
    };
  }
}
