/**
 * The module's own memory: everything is carved from one linear memory and stays in it.
 *
 * Three kinds of space. Reserved regions at fixed addresses (tables of page addresses; untouched
 * pages of them cost nothing). Pages of 16 KiB for the hash tables, returned and reused as a table
 * moves to a larger one. Blocks by size class for lists of holders, each class with a free list.
 */

const WASM_PAGE: usize = 65536;
/**
 * Least pages to grow by: 16 MiB. To the JavaScript engine each growth is a new buffer of the whole
 * size, and a reason to look for garbage; pages that were never touched cost nothing.
 */
const LEAST_GROWTH: usize = 256;

export const PAGE_SHIFT: usize = 14;
export const PAGE_BYTES: usize = 1 << PAGE_SHIFT;

let top: usize = (__heap_base + 63) & ~63;
let freePages: usize = 0;
/** Bytes in use for records and tables, without reserved space that was never touched. */
export let usedBytes: usize = 0;

/** Address space for `bytes`, zero-filled, aligned to 64. Traps when memory is exhausted. */
export function reserve(bytes: usize): usize {
  const at = top;
  top = (top + bytes + 63) & ~63;
  const have = <usize>memory.size() * WASM_PAGE;
  if (top > have) {
    // Also by at least a sixteenth, so that growth stays rare.
    let pages = (top - have + WASM_PAGE - 1) / WASM_PAGE;
    const step = <usize>memory.size() / 16;
    if (pages < step) pages = step;
    if (pages < LEAST_GROWTH) pages = LEAST_GROWTH;
    if (memory.grow(<i32>pages) < 0) {
      pages = (top - have + WASM_PAGE - 1) / WASM_PAGE;
      if (memory.grow(<i32>pages) < 0) unreachable();
    }
  }
  return at;
}

/** `reserve`, counted as used. */
export function take(bytes: usize): usize {
  usedBytes += bytes;
  return reserve(bytes);
}

/** A zeroed 16 KiB page. */
export function takePage(): usize {
  usedBytes += PAGE_BYTES;
  if (freePages != 0) {
    const page = freePages;
    freePages = load<u32>(page);
    memory.fill(page, 0, PAGE_BYTES);
    return page;
  }
  return reserve(PAGE_BYTES);
}

export function freePage(page: usize): void {
  usedBytes -= PAGE_BYTES;
  store<u32>(page, <u32>freePages);
  freePages = page;
}

// Size classes 32, 48, 64, 96, 128, 192, ... bytes: two for each doubling.
const CLASSES: i32 = 40;
const CLASS_FREE: usize = memory.data(40 * 4, 4);
let carveAt: usize = 0;
let carveEnd: usize = 0;

/** Bytes of a size class. */
// @ts-ignore: decorator
@inline
export function classBytes(sizeClass: i32): usize {
  const base: usize = 32 << (sizeClass >> 1);
  return (sizeClass & 1) != 0 ? base + (base >> 1) : base;
}

/** A block of a size class, not zeroed, aligned to 16. */
export function takeBlock(sizeClass: i32): usize {
  if (sizeClass >= CLASSES) unreachable();
  const bytes = classBytes(sizeClass);
  usedBytes += bytes;
  const list = CLASS_FREE + (<usize>sizeClass << 2);
  const free = <usize>load<u32>(list);
  if (free != 0) {
    store<u32>(list, load<u32>(free));
    return free;
  }
  if (bytes >= PAGE_BYTES) return reserve(bytes);
  if (carveAt + bytes > carveEnd) {
    carveAt = reserve(PAGE_BYTES);
    carveEnd = carveAt + PAGE_BYTES;
  }
  const at = carveAt;
  carveAt += bytes;
  return at;
}

export function freeBlock(at: usize, sizeClass: i32): void {
  usedBytes -= classBytes(sizeClass);
  const list = CLASS_FREE + (<usize>sizeClass << 2);
  store<u32>(at, load<u32>(list));
  store<u32>(list, <u32>at);
}
