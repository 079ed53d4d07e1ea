/**
 * Hashes of many blocks in one call.
 */

import { chain, xxh3 } from "./xxh3";

/**
 * Local hashes of `count` blocks: XXH3-64 of `windowBytes` at every `strideBytes` from `tokens`,
 * written to `out` (u64 each).
 */
export function hashBlocks(
  tokens: usize,
  count: u32,
  strideBytes: u32,
  windowBytes: u32,
  seed: u64,
  out: usize,
): void {
  for (let i: u32 = 0; i < count; i++) {
    store<u64>(out, xxh3(tokens, windowBytes, seed));
    tokens += strideBytes;
    out += 8;
  }
}

export function hashBytes(at: usize, length: u32, seed: u64): u64 {
  return xxh3(at, length, seed);
}

/**
 * Chain keys of `count` rows. `parents` (i32 each) are row numbers from `base` on; a row whose
 * parent is below `base` finds the parent's key in its own place in `keys`; -1 starts a sequence.
 */
export function chainKeys(
  count: u32,
  base: i32,
  parents: usize,
  locals: usize,
  keys: usize,
  seed: u64,
): void {
  for (let i: u32 = 0; i < count; i++) {
    const parent = load<i32>(parents + (<usize>i << 2));
    const local = load<u64>(locals + (<usize>i << 3));
    const at = keys + (<usize>i << 3);
    if (parent < 0) store<u64>(at, local);
    else if (parent < base) store<u64>(at, chain(load<u64>(at), local, seed));
    else store<u64>(at, chain(load<u64>(keys + (<usize>(parent - base) << 3)), local, seed));
  }
}
