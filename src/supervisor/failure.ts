/**
 * Why a build could not be brought into service, by class.
 *
 * The class decides what happens next (quarantine.ts): `transient` causes lie outside the build
 * (network, disk, a busy host) and are tried again with back-off; every other class blames the
 * build itself and holds until the artifact changes or an operator allows it.
 */

import { messageOf } from "../errors.ts";
import { CalledOff } from "./wait.ts";

export type FailureClass =
  | "download"
  | "hash"
  | "preflight"
  | "crash"
  | "readiness"
  | "transient";

export class RolloutFailure extends Error {
  override readonly name = "RolloutFailure";
  readonly class: FailureClass;
  /** Something outside ended the process (SIGKILL: an operator, or the kernel for want of memory). */
  readonly killed: boolean;

  constructor(
    failureClass: FailureClass,
    message: string,
    options: { cause?: unknown; killed?: boolean } = {},
  ) {
    super(message, options);
    this.class = failureClass;
    this.killed = options.killed ?? false;
  }
}

/** Throws if the signal is set: see `abortReason`. */
export function throwIfAborted(signal: AbortSignal | undefined): void {
  if (signal?.aborted === true) throw abortReason(signal);
}

/** Why a signal was set: its reason if that is a failure of the build, else CalledOff. */
export function abortReason(signal: AbortSignal): Error {
  const reason: unknown = signal.reason;
  return reason instanceof RolloutFailure ? reason : new CalledOff(messageOf(reason));
}
