/**
 * A hash table of record numbers that never stops to grow.
 *
 * Open addressing with linear probing. The home of a record is proportional to its 32-bit tag
 * (tag x size / 2^32), so a table and its successor hold their records in the same order. To grow by
 * half, records move from the front of the old table to the front of the new one, a few at each
 * insertion; the pages behind the move are reused for the pages ahead of it, so that there are never
 * two whole tables, no pause, and no slack beyond the load factor (0.53 to 0.8).
 *
 * A slot is 4 bytes: 28 bits record number, 4 bits of the tag, which save 15 of 16 looks at records
 * that only share the place. Removal shifts back what follows, so there are no tombstones and churn
 * costs nothing.
 */

import { freePage, PAGE_BYTES, PAGE_SHIFT, reserve, takePage } from "./arena";
import { engineOf, holdingAt, nodeAt, nodeTag, NUMBER_MASK, slotOf } from "./records";

const PAGE_SLOTS: u32 = <u32>(PAGE_BYTES >> 2);
const SLOT_SHIFT: u32 = <u32>PAGE_SHIFT - 2;
const MAX_PAGES: u32 = 32768;
/** Slots of the old table that one insertion moves; 2.5 would do. */
const MOVE_SLOTS: i32 = 8;

/** A page of empty slots that stands for every page that holds nothing yet. */
const EMPTY_PAGE: usize = reserve(PAGE_BYTES);

export const EDGES: usize = memory.data(48, 8);
export const ENGINES: usize = memory.data(48, 8);

// 0 pages u32 | 4 size u32 | 8 old pages u32 | 12 old size u32 (0 = not growing) | 16 moved u32
// | 20 count u32

/** Tag of the engine's name of a block in a lane. */
// @ts-ignore: decorator
@inline
export function engineTag(engine: u64, slot: u32): u32 {
  let x = engine ^ (<u64>(slot + 1) * 0x9e3779b97f4a7c15);
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93;
  return <u32>(x >> 32) ^ <u32>x;
}

/** Tag of a block: that of its parent, carried on. */
// @ts-ignore: decorator
@inline
export function edgeTag(parentTag: u32, local: u64): u32 {
  let x = local ^ (<u64>parentTag * 0x9e3779b97f4a7c15);
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93;
  return <u32>(x >> 32) ^ <u32>x;
}

// @ts-ignore: decorator
@inline
function tagOf(table: usize, number: u32): u32 {
  if (table == EDGES) return nodeTag(nodeAt(number));
  const at = holdingAt(number);
  return engineTag(engineOf(at), slotOf(at));
}

// @ts-ignore: decorator
@inline
export function home(tag: u32, size: u32): u32 {
  return <u32>((<u64>tag * <u64>size) >> 32);
}

// @ts-ignore: decorator
@inline
export function slotAddress(pages: usize, position: u32): usize {
  return <usize>load<u32>(pages + (<usize>(position >> SLOT_SHIFT) << 2)) +
    (<usize>(position & (PAGE_SLOTS - 1)) << 2);
}

/** The pages of the half that a tag belongs to; sets `sizeFound`. */
// @ts-ignore: decorator
@inline
export function pagesFor(table: usize, tag: u32): usize {
  const oldSize = load<u32>(table, 12);
  if (oldSize != 0 && home(tag, oldSize) >= load<u32>(table, 16)) {
    sizeFound = oldSize;
    return <usize>load<u32>(table, 8);
  }
  sizeFound = load<u32>(table, 4);
  return <usize>load<u32>(table);
}
export let sizeFound: u32 = 0;

/** Prepares a directory for `size` slots, one page of overflow and one that stays empty. */
function prepare(pages: usize, size: u32): void {
  const count = (size >> SLOT_SHIFT) + 2;
  if (count > MAX_PAGES) unreachable();
  for (let i: u32 = 0; i < count; i++) store<u32>(pages + (<usize>i << 2), <u32>EMPTY_PAGE);
}

export function createTable(table: usize): void {
  store<u32>(table, <u32>reserve(<usize>MAX_PAGES << 2));
  store<u32>(table, <u32>reserve(<usize>MAX_PAGES << 2), 8);
  store<u32>(table, PAGE_SLOTS, 4);
  prepare(<usize>load<u32>(table), PAGE_SLOTS);
}

function place(pages: usize, size: u32, tag: u32, number: u32): void {
  let position = home(tag, size);
  while (load<u32>(slotAddress(pages, position)) != 0) position++;
  const entry = pages + (<usize>(position >> SLOT_SHIFT) << 2);
  if (<usize>load<u32>(entry) == EMPTY_PAGE) {
    // The page past the overflow page must stay empty: probes end there.
    if (position >= size + PAGE_SLOTS) unreachable();
    store<u32>(entry, <u32>takePage());
  }
  store<u32>(slotAddress(pages, position), number | (tag << 28));
}

/** Moves on, at least `slots` slots and to the end of a run, so that no run is split. */
function move(table: usize, slots: i32): void {
  const pages = <usize>load<u32>(table);
  const size = load<u32>(table, 4);
  const oldPages = <usize>load<u32>(table, 8);
  const oldSize = load<u32>(table, 12);
  const end = oldSize + PAGE_SLOTS;
  let position = load<u32>(table, 16);
  while (true) {
    const value = load<u32>(slotAddress(oldPages, position));
    if (value != 0) {
      const number = value & NUMBER_MASK;
      place(pages, size, tagOf(table, number), number);
    }
    position++;
    slots--;
    if ((position & (PAGE_SLOTS - 1)) == 0) {
      const entry = oldPages + (<usize>((position - 1) >> SLOT_SHIFT) << 2);
      const page = <usize>load<u32>(entry);
      if (page != EMPTY_PAGE) {
        store<u32>(entry, <u32>EMPTY_PAGE);
        freePage(page);
      }
    }
    if (value == 0 && position >= oldSize) {
      const entry = oldPages + (<usize>(oldSize >> SLOT_SHIFT) << 2);
      const page = <usize>load<u32>(entry);
      if (page != EMPTY_PAGE) {
        store<u32>(entry, <u32>EMPTY_PAGE);
        freePage(page);
      }
      store<u32>(table, 0, 12);
      return;
    }
    if (position >= end) unreachable();
    if (value == 0 && slots <= 0) break;
  }
  store<u32>(table, position, 16);
}

/** Adds a record that is known to be absent. */
export function insert(table: usize, tag: u32, number: u32): void {
  const count = load<u32>(table, 20) + 1;
  store<u32>(table, count, 20);
  if (load<u32>(table, 12) != 0) {
    move(table, MOVE_SLOTS);
  } else {
    const size = load<u32>(table, 4);
    if (<u64>count * 5 > <u64>size * 4) {
      const larger = ((size + (size >> 1)) + PAGE_SLOTS - 1) & ~(PAGE_SLOTS - 1);
      const pages = load<u32>(table);
      store<u32>(table, load<u32>(table, 8));
      store<u32>(table, pages, 8);
      store<u32>(table, larger, 4);
      store<u32>(table, size, 12);
      store<u32>(table, 0, 16);
      prepare(<usize>load<u32>(table), larger);
    }
  }
  const pages = pagesFor(table, tag);
  place(pages, sizeFound, tag, number);
}

/** Removes a record that is known to be present. */
export function remove(table: usize, tag: u32, number: u32): void {
  store<u32>(table, load<u32>(table, 20) - 1, 20);
  const pages = pagesFor(table, tag);
  const size = sizeFound;
  const value = number | (tag << 28);
  let position = home(tag, size);
  while (load<u32>(slotAddress(pages, position)) != value) position++;
  let hole = position;
  while (true) {
    position++;
    const following = load<u32>(slotAddress(pages, position));
    if (following == 0) break;
    if (home(tagOf(table, following & NUMBER_MASK), size) <= hole) {
      store<u32>(slotAddress(pages, hole), following);
      hole = position;
    }
  }
  store<u32>(slotAddress(pages, hole), 0);
}

/** The number of the slots in use, both halves. */
export function tableSlots(table: usize): u32 {
  return load<u32>(table, 4);
}
