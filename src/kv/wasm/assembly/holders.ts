/**
 * Who holds a node.
 *
 * One holder is written into the node itself: four bits of tiers (never none) and the number of the
 * holding. More holders are a block of memory (address / 16, with no tier bits): a header and eight
 * bytes each, sorted by slot, so that membership is a binary search, and so that the one lane that
 * stops where two neighbouring nodes differ is found in a logarithmic number of steps.
 *
 * header: 0 count u16, 2 size class u16, 4 how many entries lack the device tier u32
 * entry:  0 slot u16, 2 tiers u16, 4 holding u32
 */

import { classBytes, freeBlock, takeBlock } from "./arena";
import {
  holdingAt,
  nodeAt,
  nodeHolders,
  NUMBER_MASK,
  setNodeHolders,
  slotOf,
} from "./records";

const HEADER: usize = 8;
export const ENTRY: usize = 8;

// @ts-ignore: decorator
@inline
export function isSingle(holders: u32): bool {
  return holders >>> 28 != 0;
}
// @ts-ignore: decorator
@inline
export function listAt(holders: u32): usize {
  return <usize>holders << 4;
}
// @ts-ignore: decorator
@inline
export function listCount(list: usize): u32 {
  return <u32>load<u16>(list);
}
// @ts-ignore: decorator
@inline
export function listMixed(list: usize): u32 {
  return load<u32>(list, 4);
}
// @ts-ignore: decorator
@inline
export function entryAt(list: usize, index: u32): usize {
  return list + HEADER + <usize>index * ENTRY;
}
// @ts-ignore: decorator
@inline
export function entrySlot(entry: usize): u32 {
  return <u32>load<u16>(entry);
}
// @ts-ignore: decorator
@inline
export function entryTiers(entry: usize): u32 {
  return <u32>load<u16>(entry, 2);
}
// @ts-ignore: decorator
@inline
export function entryHolding(entry: usize): u32 {
  return load<u32>(entry, 4);
}

/** Index of the first entry with a slot not below `slot`. */
export function lowerBound(list: usize, slot: u32): u32 {
  let low: u32 = 0;
  let high = listCount(list);
  while (low < high) {
    const middle = (low + high) >> 1;
    if (entrySlot(entryAt(list, middle)) < slot) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The holding of a slot on a node, or 0. */
export function holdingOn(node: u32, slot: u32): u32 {
  const holders = nodeHolders(nodeAt(node));
  if (isSingle(holders)) {
    const holding = holders & NUMBER_MASK;
    return slotOf(holdingAt(holding)) == slot ? holding : 0;
  }
  const list = listAt(holders);
  const index = lowerBound(list, slot);
  if (index >= listCount(list)) return 0;
  const entry = entryAt(list, index);
  return entrySlot(entry) == slot ? entryHolding(entry) : 0;
}

// @ts-ignore: decorator
@inline
function capacity(sizeClass: i32): u32 {
  return <u32>((classBytes(sizeClass) - HEADER) / ENTRY);
}

// @ts-ignore: decorator
@inline
function lacksDevice(tiers: u32): u32 {
  return (tiers & 1) ^ 1;
}

function writeEntry(entry: usize, slot: u32, tiers: u32, holding: u32): void {
  store<u16>(entry, <u16>slot);
  store<u16>(entry, <u16>tiers, 2);
  store<u32>(entry, holding, 4);
}

/** Adds a holder that is known to be absent; `alone` says that the node has none yet. */
export function addHolder(
  node: u32,
  slot: u32,
  tiers: u32,
  holding: u32,
  alone: bool,
): void {
  const at = nodeAt(node);
  if (alone) {
    setNodeHolders(at, holding | (tiers << 28));
    return;
  }
  const holders = nodeHolders(at);
  if (isSingle(holders)) {
    const other = holders & NUMBER_MASK;
    const otherTiers = holders >>> 28;
    const otherSlot = slotOf(holdingAt(other));
    const list = takeBlock(0);
    store<u16>(list, 2);
    store<u16>(list, 0, 2);
    store<u32>(list, lacksDevice(tiers) + lacksDevice(otherTiers), 4);
    writeEntry(entryAt(list, <u32>(otherSlot > slot)), otherSlot, otherTiers, other);
    writeEntry(entryAt(list, <u32>(slot > otherSlot)), slot, tiers, holding);
    setNodeHolders(at, <u32>(list >> 4));
    return;
  }
  let list = listAt(holders);
  const count = listCount(list);
  const sizeClass = <i32>load<u16>(list, 2);
  if (count == capacity(sizeClass)) {
    const larger = takeBlock(sizeClass + 1);
    memory.copy(larger, list, HEADER + <usize>count * ENTRY);
    store<u16>(larger, <u16>(sizeClass + 1), 2);
    freeBlock(list, sizeClass);
    list = larger;
    setNodeHolders(at, <u32>(list >> 4));
  }
  const index = lowerBound(list, slot);
  const entry = entryAt(list, index);
  memory.copy(entry + ENTRY, entry, <usize>(count - index) * ENTRY);
  writeEntry(entry, slot, tiers, holding);
  store<u16>(list, <u16>(count + 1));
  store<u32>(list, listMixed(list) + lacksDevice(tiers), 4);
}

/** Takes a holder away; true if it was the last one. */
export function removeHolder(node: u32, slot: u32): bool {
  const at = nodeAt(node);
  const holders = nodeHolders(at);
  if (isSingle(holders)) return true;
  let list = listAt(holders);
  const count = listCount(list) - 1;
  const index = lowerBound(list, slot);
  const entry = entryAt(list, index);
  const sizeClass = <i32>load<u16>(list, 2);
  if (count == 1) {
    const other = entryAt(list, index ^ 1);
    setNodeHolders(at, entryHolding(other) | (entryTiers(other) << 28));
    freeBlock(list, sizeClass);
    return false;
  }
  store<u32>(list, listMixed(list) - lacksDevice(entryTiers(entry)), 4);
  memory.copy(entry, entry + ENTRY, <usize>(count - index) * ENTRY);
  store<u16>(list, <u16>count);
  // Shrink two classes down (half the size), not one, so that a holder that comes and goes is cheap.
  if (sizeClass >= 2 && count <= capacity(sizeClass - 2)) {
    const smaller = takeBlock(sizeClass - 2);
    memory.copy(smaller, list, HEADER + <usize>count * ENTRY);
    store<u16>(smaller, <u16>(sizeClass - 2), 2);
    freeBlock(list, sizeClass);
    setNodeHolders(at, <u32>(smaller >> 4));
  }
  return false;
}

/** Writes the tiers (at least one) of a holder that is known to be present. */
export function setTiers(node: u32, slot: u32, tiers: u32): void {
  const at = nodeAt(node);
  const holders = nodeHolders(at);
  if (isSingle(holders)) {
    setNodeHolders(at, (holders & NUMBER_MASK) | (tiers << 28));
    return;
  }
  const list = listAt(holders);
  const entry = entryAt(list, lowerBound(list, slot));
  store<u32>(list, listMixed(list) + lacksDevice(tiers) - lacksDevice(entryTiers(entry)), 4);
  store<u16>(entry, <u16>tiers, 2);
}
