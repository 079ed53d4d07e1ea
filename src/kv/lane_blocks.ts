/**
 * Builds the columns of a lane's snapshot from rows that come parents first, with their depth.
 *
 * A block whose tiers hold different numbers of copies takes one row for each number: the rows
 * follow each other and have the same engine hash. Children name the first of them as their parent.
 */

import type { LaneBlocks } from "./blocks.ts";

const TIER_COUNT = 4;

/** Computes the keys of the rows `from` (included) to `to` (excluded); those before have theirs. */
export type ChainRows = (
  keys: BigUint64Array,
  parents: Int32Array,
  locals: BigUint64Array,
  from: number,
  to: number,
) => void;

/** One builder may serve lane after lane: see `begin`. */
export class RowBuilder {
  #count = 0;
  /** Rows that have their keys. */
  #chained = 0;
  readonly #hasKeys: boolean;
  #parents = new Int32Array(0);
  #locals = new BigUint64Array(0);
  #engines = new BigUint64Array(0);
  #tiers = new Uint8Array(0);
  #copies = new Uint16Array(0);
  #keys = new BigUint64Array(0);
  /** The row of the last block at each depth. */
  #rowAtDepth = new Int32Array(64);

  /** Without `hasKeys` there is no column of keys: what is copied to be sent has none. */
  constructor(hasKeys = true) {
    this.#hasKeys = hasKeys;
  }

  /**
   * Begins a lane of about `expected` rows in the memory of the one before, whose columns are not to
   * be read any more.
   */
  begin(expected: number): void {
    this.#count = 0;
    this.#chained = 0;
    if (expected <= this.#parents.length) return;
    // The next lane may be a little larger than this one: then it need not have columns of its own.
    const room = this.#parents.length === 0 ? expected : expected + (expected >> 3);
    this.#allocate(room);
  }

  /** Adds blocks; `copies` has four bits for each tier, device lowest. */
  add(
    depths: Uint32Array,
    engines: BigUint64Array,
    locals: BigUint64Array,
    copies: Uint16Array,
  ): void {
    const blocks = depths.length;
    if (!copies.every(isEven)) {
      for (let i = 0; i < blocks; i++) {
        this.#addSplit(depths[i] ?? 0, engines[i] ?? 0n, locals[i] ?? 0n, copies[i] ?? 0);
      }
      return;
    }
    while (this.#count + blocks > this.#parents.length) this.#grow(this.#count + blocks);
    const first = this.#count;
    this.#engines.set(engines, first);
    this.#locals.set(locals, first);
    for (let i = 0; i < blocks; i++) {
      const packed = copies[i] ?? 0;
      this.#parents[first + i] = this.#enter(depths[i] ?? 0, first + i);
      this.#tiers[first + i] = tiersOf(packed);
      this.#copies[first + i] = highest(packed);
    }
    this.#count += blocks;
  }

  /** Gives the rows that were added since the last time their keys. */
  chain(chainRows: ChainRows): void {
    if (!this.#hasKeys) return;
    chainRows(this.#keys, this.#parents, this.#locals, this.#chained, this.#count);
    this.#chained = this.#count;
  }

  finish(): LaneBlocks {
    const count = this.#count;
    return {
      count,
      parents: this.#parents.subarray(0, count),
      keys: this.#keys.subarray(0, count),
      locals: this.#locals.subarray(0, count),
      engines: this.#engines.subarray(0, count),
      tiers: this.#tiers.subarray(0, count),
      copies: this.#copies.subarray(0, count),
    };
  }

  /** Notes the row of a block at a depth; returns its parent's. */
  #enter(depth: number, row: number): number {
    if (depth >= this.#rowAtDepth.length) {
      const larger = new Int32Array(this.#rowAtDepth.length * 2);
      larger.set(this.#rowAtDepth);
      this.#rowAtDepth = larger;
    }
    this.#rowAtDepth[depth] = row;
    return depth === 0 ? -1 : this.#rowAtDepth[depth - 1] ?? -1;
  }

  /** One row for each number of copies. */
  #addSplit(depth: number, engine: bigint, local: bigint, copies: number): void {
    const parent = this.#enter(depth, this.#count);
    let packed = copies;
    while (packed !== 0) {
      let held = 0, tiers = 0;
      for (let tier = 0; tier < TIER_COUNT; tier++) {
        const here = (packed >> (4 * tier)) & 15;
        if (here === 0 || (held !== 0 && here !== held)) continue;
        held = here;
        tiers |= 1 << tier;
        packed &= ~(15 << (4 * tier));
      }
      if (this.#count === this.#parents.length) this.#grow(this.#count + 1);
      const row = this.#count++;
      this.#parents[row] = parent;
      this.#engines[row] = engine;
      this.#locals[row] = local;
      this.#tiers[row] = tiers;
      this.#copies[row] = held;
    }
  }

  #grow(least: number): void {
    const [parents, locals, engines] = [this.#parents, this.#locals, this.#engines];
    const [tiers, copies, keys] = [this.#tiers, this.#copies, this.#keys];
    this.#allocate(Math.max(least, parents.length + (parents.length >> 2)));
    this.#parents.set(parents);
    this.#locals.set(locals);
    this.#engines.set(engines);
    this.#tiers.set(tiers);
    this.#copies.set(copies);
    this.#keys.set(keys);
  }

  #allocate(rows: number): void {
    this.#parents = new Int32Array(rows);
    this.#locals = new BigUint64Array(rows);
    this.#engines = new BigUint64Array(rows);
    this.#tiers = new Uint8Array(rows);
    this.#copies = new Uint16Array(rows);
    this.#keys = new BigUint64Array(this.#hasKeys ? rows : 0);
  }
}

/** Whether all tiers that hold a block hold the same number of copies. */
function isEven(packed: number): boolean {
  return packed === tiersOf16(packed) * highest(packed);
}

/** The lowest bit of each tier that holds a copy. */
function tiersOf16(packed: number): number {
  const any = packed | (packed >> 1) | (packed >> 2) | (packed >> 3);
  return any & 0x1111;
}

/** One bit for each tier that holds a copy. */
function tiersOf(packed: number): number {
  const any = tiersOf16(packed);
  return (any | (any >> 3) | (any >> 6) | (any >> 9)) & 15;
}

/** The copies of the slowest tier that holds any. */
function highest(packed: number): number {
  let rest = packed;
  while (rest > 15) rest >>= 4;
  return rest;
}
