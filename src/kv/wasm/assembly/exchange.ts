/**
 * What callers write before a call and read after one, and the counters of what a call did.
 */

import { reserve } from "./arena";

/** What callers write before a call and read after one. */
const STAGING_BYTES: usize = 1 << 19;
const STAGING: usize = reserve(STAGING_BYTES);
export const RESULT: usize = reserve(64);

export function stagingAt(): usize {
  return STAGING;
}
export function stagingBytes(): usize {
  return STAGING_BYTES;
}
export function resultAt(): usize {
  return RESULT;
}

// Offsets in RESULT, u32 each.
export const APPLIED: usize = 0;
export const DUPLICATES: usize = 4;
export const UNKNOWN: usize = 8;
export const EVICTED: usize = 12;
export const RENAMED: usize = 16;
export const CONFLICTS: usize = 20;
export const CUT: usize = 24;
export const FULL: usize = 28;

// @ts-ignore: decorator
@inline
export function bump(counter: usize): void {
  store<u32>(RESULT + counter, load<u32>(RESULT + counter) + 1);
}

export function resetResult(): void {
  memory.fill(RESULT, 0, 32);
}
