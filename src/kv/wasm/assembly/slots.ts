/**
 * Slots: the lanes as this module knows them, by number.
 *
 * A slot with handle 0 is hidden: a lane that was closed or cleared and is being taken apart in slices,
 * or one that is being loaded.
 */

import { reserve } from "./arena";

export const MAX_SLOTS: usize = 65536;
// 0 first u32 | 4 count u32 | 8 handle u32 | 12 query u32: the last look-up that followed the lane
// through slower tiers | 16 its row u32 | 20 the tier it has come to u32 (4 = none is left)

const SLOT_BYTES: usize = 24;
const SLOTS: usize = reserve(MAX_SLOTS * SLOT_BYTES);

// @ts-ignore: decorator
@inline
export function slotAt(slot: u32): usize {
  return SLOTS + <usize>slot * SLOT_BYTES;
}

/** Shows a slot as lane `handle` in look-ups, or hides it (0). */
export function setHandle(slot: u32, handle: u32): void {
  store<u32>(slotAt(slot), handle, 8);
}

export function slotCount(slot: u32): u32 {
  return load<u32>(slotAt(slot), 4);
}
