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
// | 24 where taking it apart goes on u32 (0 = from the start) | 28 copies being made of it u32

const SLOT_BYTES: usize = 32;
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

// @ts-ignore: decorator
@inline
export function releasedTo(slot: u32): u32 {
  return load<u32>(slotAt(slot), 24);
}
// @ts-ignore: decorator
@inline
export function setReleasedTo(slot: u32, holding: u32): void {
  store<u32>(slotAt(slot), holding, 24);
}

/** Copies that are being made, of all slots. */
export let pins: u32 = 0;

// @ts-ignore: decorator
@inline
export function isPinned(slot: u32): bool {
  return load<u32>(slotAt(slot), 28) != 0;
}

/** While a slot is pinned nothing is evicted from it. */
export function pin(slot: u32): void {
  pins++;
  store<u32>(slotAt(slot), load<u32>(slotAt(slot), 28) + 1, 28);
}

export function unpin(slot: u32): void {
  pins--;
  store<u32>(slotAt(slot), load<u32>(slotAt(slot), 28) - 1, 28);
}
