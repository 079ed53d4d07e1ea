/** Waiting on the runtime's clock, with an end that somebody else can set. */

import { messageOf } from "../errors.ts";
import type { Clock } from "../runtime/runtime.ts";

/** Thrown where a wait was called off; the signal's reason is the message. */
export class CalledOff extends Error {
  override readonly name = "CalledOff";
}

/** Throws CalledOff if the signal is already set. */
export function throwIfCalledOff(signal: AbortSignal | undefined): void {
  if (signal?.aborted) throw calledOff(signal);
}

/** Waits for `delayMs`; throws CalledOff as soon as the signal is set. */
export function sleep(clock: Clock, delayMs: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(calledOff(signal));
    const cancel = clock.after(delayMs, () => {
      signal?.removeEventListener("abort", onAbort);
      resolve();
    });
    const onAbort = (): void => {
      cancel();
      reject(calledOff(signal as AbortSignal));
    };
    signal?.addEventListener("abort", onAbort, { once: true });
  });
}

/** Resolves as `work` does, or throws CalledOff as soon as the signal is set. */
export function orCalledOff<T>(work: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (signal === undefined) return work;
  return new Promise((resolve, reject) => {
    const onAbort = (): void => reject(calledOff(signal));
    if (signal.aborted) onAbort();
    else signal.addEventListener("abort", onAbort, { once: true });
    // Also when nobody waits for it any more: how the work fails then must not be an unhandled error.
    work.then(resolve, reject).finally(() => signal.removeEventListener("abort", onAbort));
  });
}

/** True once `work` is settled within `timeoutMs`, false when the time is over first. */
export function settledWithin(
  clock: Clock,
  work: Promise<unknown>,
  timeoutMs: number,
): Promise<boolean> {
  return new Promise((resolve) => {
    const cancel = clock.after(timeoutMs, () => resolve(false));
    const done = (): void => {
      cancel();
      resolve(true);
    };
    work.then(done, done);
  });
}

function calledOff(signal: AbortSignal): CalledOff {
  const reason: unknown = signal.reason;
  return new CalledOff(messageOf(reason));
}
