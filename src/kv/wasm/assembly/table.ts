/**
 * A hash table of record numbers that never stops to grow.
 *
 * Chunks of 64 bytes, a cache line each: fifteen slots and a count of the records that wanted to be
 * here, or had to pass, and are further on. A look-up compares all slots of a chunk at once, and goes
 * to the next one only if that count says so; a removal empties a slot and counts back, so that it
 * touches no other record, there are no tombstones, and churn costs nothing.
 *
 * A slot is 4 bytes: 26 bits record number, 6 bits of the tag, which save most looks at records that
 * only share the place. The home chunk of a record is proportional to its 32-bit tag (tag x chunks /
 * 2^32), so a table and its successor hold their records in the same order. To grow by 0.6, records
 * move from the front of the old table to the front of the new one, a few at a time; the pages behind
 * the move are reused for the pages ahead of it, so that there are never two whole tables, no pause,
 * and no slack beyond the load factor (0.56 to 0.9).
 */

import { freePage, PAGE_BYTES, PAGE_SHIFT, reserve, takePage } from "./arena";
import { engineOf, holdingAt, nodeAt, nodeTag, slotOf } from "./records";

const CHUNK_SHIFT: u32 = 6;
const SLOTS: u32 = 15;
const OVERFLOW: usize = 60;
/** Chunks of a page. */
const PAGE_CHUNKS: u32 = <u32>(PAGE_BYTES >> CHUNK_SHIFT);
const PAGE_CHUNKS_SHIFT: u32 = <u32>PAGE_SHIFT - CHUNK_SHIFT;
const MAX_PAGES: u32 = 32768;
export const RECORD_MASK: u32 = 0x03ffffff;
const TAG_SHIFT: u32 = 26;
/** Chunks that every eighth insertion moves; one would just do. */
const MOVE_CHUNKS: u32 = 4;
const MOVING: usize = memory.data(4 * 15 * 8, 8);

/** A page of empty chunks that stands for every page that holds nothing yet. */
const EMPTY_PAGE: usize = reserve(PAGE_BYTES);

export const EDGES: usize = memory.data(48, 8);
export const ENGINES: usize = memory.data(48, 8);

// 0 pages u32 | 4 chunks u32 | 8 old pages u32 | 12 old chunks u32 (0 = not growing)
// | 16 moved chunks u32 | 20 count u32

// @ts-ignore: decorator
@inline
function mix(x: u64): u32 {
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93;
  return <u32>(x >> 32) ^ <u32>x;
}

/** Tag of the engine's name of a block in a lane. */
// @ts-ignore: decorator
@inline
export function engineTag(engine: u64, slot: u32): u32 {
  return mix(engine ^ (<u64>(slot + 1) * 0x9e3779b97f4a7c15));
}

/** Tag of a block: that of its parent, carried on. */
// @ts-ignore: decorator
@inline
export function edgeTag(parentTag: u32, local: u64): u32 {
  return mix(local ^ (<u64>parentTag * 0x9e3779b97f4a7c15));
}

// @ts-ignore: decorator
@inline
function tagOf(table: usize, number: u32): u32 {
  if (table == EDGES) return nodeTag(nodeAt(number));
  const at = holdingAt(number);
  return engineTag(engineOf(at), slotOf(at));
}

/** The bits of a tag that are kept in its slot; never 0, so that an empty slot matches none. */
// @ts-ignore: decorator
@inline
function slotTag(tag: u32): u32 {
  const low = tag & 63;
  return low == 0 ? 1 : low;
}

// @ts-ignore: decorator
@inline
function home(tag: u32, chunks: u32): u32 {
  return <u32>((<u64>tag * <u64>chunks) >> 32);
}

// @ts-ignore: decorator
@inline
function chunkAddress(pages: usize, chunk: u32): usize {
  return <usize>load<u32>(pages + (<usize>(chunk >> PAGE_CHUNKS_SHIFT) << 2)) +
    (<usize>(chunk & (PAGE_CHUNKS - 1)) << CHUNK_SHIFT);
}

// @ts-ignore: decorator
@inline
function overflow(at: usize): u32 {
  return load<u32>(at, OVERFLOW);
}

// The place of the last search: which half of the table, which chunk, and where that is.
let pages: usize = 0;
let chunk: u32 = 0;
export let chunkAt: usize = 0;

/** Goes to the home chunk of a tag. */
// @ts-ignore: decorator
@inline
export function seek(table: usize, tag: u32): void {
  const oldChunks = load<u32>(table, 12);
  if (oldChunks != 0) {
    const oldHome = home(tag, oldChunks);
    if (oldHome >= load<u32>(table, 16)) {
      pages = <usize>load<u32>(table, 8);
      chunk = oldHome;
      chunkAt = chunkAddress(pages, chunk);
      return;
    }
  }
  pages = <usize>load<u32>(table);
  chunk = home(tag, load<u32>(table, 4));
  chunkAt = chunkAddress(pages, chunk);
}

/** Goes to the next chunk if some record passed this one; false if none did. */
// @ts-ignore: decorator
@inline
export function further(): bool {
  if (overflow(chunkAt) == 0) return false;
  chunk++;
  chunkAt = chunkAddress(pages, chunk);
  return true;
}

/** One bit for each slot of a chunk in which a value occurs, after a shift. */
// @ts-ignore: decorator
@inline
function equal(at: usize, shift: i32, value: u32): u32 {
  const wanted = i32x4.splat(value);
  const a = i32x4.bitmask(i32x4.eq(i32x4.shr_u(v128.load(at), shift), wanted));
  const b = i32x4.bitmask(i32x4.eq(i32x4.shr_u(v128.load(at, 16), shift), wanted));
  const c = i32x4.bitmask(i32x4.eq(i32x4.shr_u(v128.load(at, 32), shift), wanted));
  const d = i32x4.bitmask(i32x4.eq(i32x4.shr_u(v128.load(at, 48), shift), wanted)) & 7;
  return <u32>(a | (b << 4) | (c << 8) | (d << 12));
}

/** Slots of a chunk that may hold a record with this tag, one bit each. */
// @ts-ignore: decorator
@inline
export function candidates(at: usize, tag: u32): u32 {
  return equal(at, TAG_SHIFT, slotTag(tag));
}

/** The record number in the first of some slots. */
// @ts-ignore: decorator
@inline
export function firstNumber(at: usize, slots: u32): u32 {
  return load<u32>(at + (<usize>ctz<u32>(slots) << 2)) & RECORD_MASK;
}

/** Prepares a directory for `chunks`, one page of overflow and one that stays empty. */
function prepare(directory: usize, chunks: u32): void {
  const count = (chunks >> PAGE_CHUNKS_SHIFT) + 2;
  if (count > MAX_PAGES) unreachable();
  for (let i: u32 = 0; i < count; i++) store<u32>(directory + (<usize>i << 2), <u32>EMPTY_PAGE);
}

export function createTable(table: usize): void {
  store<u32>(table, <u32>reserve(<usize>MAX_PAGES << 2));
  store<u32>(table, <u32>reserve(<usize>MAX_PAGES << 2), 8);
  store<u32>(table, PAGE_CHUNKS, 4);
  prepare(<usize>load<u32>(table), PAGE_CHUNKS);
}

/** The address of a chunk that is going to be written, on a page of its own. */
// @ts-ignore: decorator
@inline
function writable(directory: usize, chunks: u32, index: u32): usize {
  const entry = directory + (<usize>(index >> PAGE_CHUNKS_SHIFT) << 2);
  if (<usize>load<u32>(entry) == EMPTY_PAGE) {
    // The page past the overflow page must stay empty: probes end there.
    if (index >= chunks + PAGE_CHUNKS) unreachable();
    store<u32>(entry, <u32>takePage());
  }
  return chunkAddress(directory, index);
}

function place(directory: usize, chunks: u32, tag: u32, number: u32): void {
  let index = home(tag, chunks);
  let at = writable(directory, chunks, index);
  let empty = equal(at, 0, 0);
  while (empty == 0) {
    store<u32>(at, overflow(at) + 1, OVERFLOW);
    index++;
    at = writable(directory, chunks, index);
    empty = equal(at, 0, 0);
  }
  store<u32>(at + (<usize>ctz<u32>(empty) << 2), number | (slotTag(tag) << TAG_SHIFT));
}

/** Gathers the records of a chunk at `to`, with their tags; returns the end of them. */
function gather(table: usize, at: usize, to: usize): usize {
  for (let i: u32 = 0; i < SLOTS; i++) {
    const word = load<u32>(at + (<usize>i << 2));
    if (word == 0) continue;
    const number = word & RECORD_MASK;
    store<u32>(to, number);
    store<u32>(to, tagOf(table, number), 4);
    to += 8;
  }
  return to;
}

/**
 * Moves the next chunks, and on until no record is further on than its home. The tags are gathered
 * first: they lie all over memory, and are waited for together.
 */
function move(table: usize): void {
  const directory = <usize>load<u32>(table);
  const chunks = load<u32>(table, 4);
  const oldDirectory = <usize>load<u32>(table, 8);
  const oldChunks = load<u32>(table, 12);
  const end = oldChunks + PAGE_CHUNKS;
  const start = load<u32>(table, 16);
  let next = start;
  let passed = true;
  while (next < end && (passed || next < start + MOVE_CHUNKS)) {
    let to = MOVING;
    for (let i: u32 = 0; i < MOVE_CHUNKS && next < end; i++) {
      const at = chunkAddress(oldDirectory, next);
      to = gather(table, at, to);
      passed = overflow(at) != 0;
      next++;
      if (!passed && next >= start + MOVE_CHUNKS) break;
    }
    for (let from = MOVING; from < to; from += 8) {
      place(directory, chunks, load<u32>(from, 4), load<u32>(from));
    }
  }
  for (let page = start >> PAGE_CHUNKS_SHIFT; page < next >> PAGE_CHUNKS_SHIFT; page++) {
    const entry = oldDirectory + (<usize>page << 2);
    const left = <usize>load<u32>(entry);
    if (left == EMPTY_PAGE) continue;
    store<u32>(entry, <u32>EMPTY_PAGE);
    freePage(left);
  }
  store<u32>(table, next, 16);
  if (next >= end) store<u32>(table, 0, 12);
}

/** Adds a record that is known to be absent. */
export function insert(table: usize, tag: u32, number: u32): void {
  const count = load<u32>(table, 20) + 1;
  store<u32>(table, count, 20);
  if (load<u32>(table, 12) != 0) {
    if ((count & 7) == 0) move(table);
  } else {
    const chunks = load<u32>(table, 4);
    if (<u64>count * 10 > <u64>(chunks * SLOTS) * 9) {
      const larger = (chunks + <u32>(<u64>chunks * 3 / 5) + PAGE_CHUNKS - 1) & ~(PAGE_CHUNKS - 1);
      const directory = load<u32>(table);
      store<u32>(table, load<u32>(table, 8));
      store<u32>(table, directory, 8);
      store<u32>(table, larger, 4);
      store<u32>(table, chunks, 12);
      store<u32>(table, 0, 16);
      prepare(<usize>load<u32>(table), larger);
    }
  }
  const oldChunks = load<u32>(table, 12);
  if (oldChunks != 0 && home(tag, oldChunks) >= load<u32>(table, 16)) {
    place(<usize>load<u32>(table, 8), oldChunks, tag, number);
  } else {
    place(<usize>load<u32>(table), load<u32>(table, 4), tag, number);
  }
}

/** Removes a record that is known to be present. */
export function remove(table: usize, tag: u32, number: u32): void {
  store<u32>(table, load<u32>(table, 20) - 1, 20);
  const word = number | (slotTag(tag) << TAG_SHIFT);
  seek(table, tag);
  let found = equal(chunkAt, 0, word);
  while (found == 0) {
    store<u32>(chunkAt, overflow(chunkAt) - 1, OVERFLOW);
    chunk++;
    chunkAt = chunkAddress(pages, chunk);
    found = equal(chunkAt, 0, word);
  }
  store<u32>(chunkAt + (<usize>ctz<u32>(found) << 2), 0);
}
