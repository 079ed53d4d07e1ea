/**
 * Builds the columns of a lane's snapshot from rows that come parents first, with their depth.
 *
 * A block whose tiers hold different numbers of copies takes one row for each number: the rows
 * follow each other and have the same engine hash. Children name the first of them as their parent.
 */

import type { LaneBlocks } from "./blocks.ts";

const TIER_COUNT = 4;

export class RowBuilder {
  #count = 0;
  #parents: Int32Array;
  #locals: BigUint64Array;
  #engines: BigUint64Array;
  #tiers: Uint8Array;
  #copies: Uint16Array;
  /** The row of the last block at each depth. */
  #rowAtDepth = new Int32Array(64);

  /** `expected` rows fit without growing. */
  constructor(expected: number) {
    this.#parents = new Int32Array(expected);
    this.#locals = new BigUint64Array(expected);
    this.#engines = new BigUint64Array(expected);
    this.#tiers = new Uint8Array(expected);
    this.#copies = new Uint16Array(expected);
  }

  /** Adds blocks; `copies` has four bits for each tier, device lowest. */
  add(
    depths: Uint32Array,
    engines: BigUint64Array,
    locals: BigUint64Array,
    copies: Uint16Array,
  ): void {
    for (let i = 0; i < depths.length; i++) {
      const depth = depths[i] ?? 0;
      const parent = depth === 0 ? -1 : this.#rowAtDepth[depth - 1] ?? -1;
      if (depth >= this.#rowAtDepth.length) {
        const larger = new Int32Array(this.#rowAtDepth.length * 2);
        larger.set(this.#rowAtDepth);
        this.#rowAtDepth = larger;
      }
      this.#rowAtDepth[depth] = this.#count;
      let packed = copies[i] ?? 0;
      while (packed !== 0) {
        let held = 0, tiers = 0;
        for (let tier = 0; tier < TIER_COUNT; tier++) {
          const here = (packed >> (4 * tier)) & 15;
          if (here === 0 || (held !== 0 && here !== held)) continue;
          held = here;
          tiers |= 1 << tier;
          packed &= ~(15 << (4 * tier));
        }
        this.#push(parent, engines[i] ?? 0n, locals[i] ?? 0n, tiers, held);
      }
    }
  }

  finish(
    chainKeys: (parents: Int32Array, locals: BigUint64Array) => BigUint64Array,
  ): LaneBlocks {
    const count = this.#count;
    const parents = this.#parents.subarray(0, count);
    const locals = this.#locals.subarray(0, count);
    return {
      count,
      parents,
      keys: chainKeys(parents, locals),
      locals,
      engines: this.#engines.subarray(0, count),
      tiers: this.#tiers.subarray(0, count),
      copies: this.#copies.subarray(0, count),
    };
  }

  #push(parent: number, engine: bigint, local: bigint, tiers: number, copies: number): void {
    if (this.#count === this.#parents.length) this.#grow();
    const row = this.#count++;
    this.#parents[row] = parent;
    this.#engines[row] = engine;
    this.#locals[row] = local;
    this.#tiers[row] = tiers;
    this.#copies[row] = copies;
  }

  #grow(): void {
    const room = this.#parents.length + (this.#parents.length >> 2) + 16;
    const parents = new Int32Array(room);
    parents.set(this.#parents);
    this.#parents = parents;
    const locals = new BigUint64Array(room);
    locals.set(this.#locals);
    this.#locals = locals;
    const engines = new BigUint64Array(room);
    engines.set(this.#engines);
    this.#engines = engines;
    const tiers = new Uint8Array(room);
    tiers.set(this.#tiers);
    this.#tiers = tiers;
    const copies = new Uint16Array(room);
    copies.set(this.#copies);
    this.#copies = copies;
  }
}
