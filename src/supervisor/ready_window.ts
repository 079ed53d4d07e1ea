/**
 * How long a starting child is waited for.
 *
 * Every failed attempt doubles the window, up to a maximum; a start that worked resets it. Only a
 * child that says it is initialising, or that has no readiness path yet, may go past its window, up
 * to the same maximum: one that hangs or refuses fails at the window's end.
 */

import type { ReadyClass } from "./readiness.ts";

/** The longest window when none is configured: 32 minutes. */
export const DEFAULT_MAX_WINDOW_MS = 1_920_000;

/** The maximum that counts: never below the first window. */
export function maxWindowMs(timeoutMs: number, configuredMaxMs?: number): number {
  return Math.max(timeoutMs, configuredMaxMs ?? DEFAULT_MAX_WINDOW_MS);
}

/** The window after one more failed attempt. */
export function nextWindowMs(currentMs: number, maxMs: number): number {
  const doubled = currentMs * 2;
  return Number.isSafeInteger(doubled) && doubled < maxMs ? doubled : maxMs;
}

/** True for the answers that may go past the window. */
export function mayExtend(last: ReadyClass): boolean {
  return last === "initializing" || last === "ready_absent";
}
