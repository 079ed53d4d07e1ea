import type { Clock } from "../runtime/runtime.ts";

/** Lets timers and sockets have their turn after this many milliseconds of work in one go. */
const SLICE_MS = 2;

/** Keeps a long piece of work from holding the event loop: call `rest` often, it waits seldom. */
export class WorkSlice {
  readonly #clock: Clock;
  #since: number;

  constructor(clock: Clock) {
    this.#clock = clock;
    this.#since = clock.monotonic();
  }

  /** Undefined (nothing to wait for) until the slice is used up; then a promise for a later turn. */
  rest(): Promise<void> | undefined {
    if (this.#clock.monotonic() - this.#since < SLICE_MS) return undefined;
    return new Promise((resolve) => {
      this.#clock.after(0, () => {
        this.#since = this.#clock.monotonic();
        resolve();
      });
    });
  }
}
