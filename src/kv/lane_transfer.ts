/**
 * Moves what a lane holds between the index's memory and the columns of a snapshot.
 */

import type { LaneBlocks } from "./blocks.ts";
import type { BlockHasher } from "./hash.ts";
import { RowBuilder } from "./lane_blocks.ts";
import type { IndexModule } from "./wasm/load.ts";

/** Rows loaded at a time (about 0.5 ms), 39 bytes each in the staging memory. */
export const LOAD_BATCH = 2048;
/** Rows copied at a time (30 us, and 1 ms while the code is not compiled yet), 22 bytes each in the staging memory. */
export const COPY_BATCH = 512;

/**
 * A copy of what a slot holds, made a piece at a time. The slot must not change before it is done;
 * it is pinned meanwhile, so that nothing is evicted from it.
 */
export class SlotCopy {
  readonly #module: IndexModule;
  readonly #hasher: BlockHasher;
  readonly #slot: number;
  readonly #rows: RowBuilder;
  #from: number;
  #level = 0;

  /** The columns are made in `rows`. */
  constructor(module: IndexModule, hasher: BlockHasher, slot: number, rows = new RowBuilder()) {
    this.#module = module;
    this.#hasher = hasher;
    this.#slot = slot;
    this.#rows = rows;
    rows.begin(module.call.slotCount(slot));
    this.#from = module.call.firstHolding(slot);
    module.call.pin(slot);
  }

  /** Copies up to `COPY_BATCH` blocks, parents before children; false when all are copied. */
  step(room = COPY_BATCH): boolean {
    if (this.#from === 0) return false;
    const { call } = this.#module;
    const engines = call.stagingAt(), locals = engines + COPY_BATCH * 8;
    const depths = locals + COPY_BATCH * 8, copies = depths + COPY_BATCH * 4;
    const count = call
      .snapshotRows(this.#from, this.#level, room, depths, engines, locals, copies);
    const { u16, u32, u64 } = this.#module;
    const result = call.resultAt() >>> 2;
    this.#from = u32[result] ?? 0;
    this.#level = u32[result + 1] ?? 0;
    this.#rows.add(
      u32.subarray(depths >>> 2, (depths >>> 2) + count),
      u64.subarray(engines >>> 3, (engines >>> 3) + count),
      u64.subarray(locals >>> 3, (locals >>> 3) + count),
      u16.subarray(copies >>> 1, (copies >>> 1) + count),
    );
    this.#rows.chain((...rows) => this.#hasher.chainRows(...rows));
    return this.#from !== 0;
  }

  /** To be called once, whether the copy is complete or not. */
  unpin(): void {
    this.#module.call.unpin(this.#slot);
  }

  /** What was copied. */
  rows(): LaneBlocks {
    return this.#rows.finish();
  }
}

/** Loads up to `LOAD_BATCH` rows from `base` on into a slot; returns how many fit. */
export function loadRows(
  module: IndexModule,
  slot: number,
  blocks: LaneBlocks,
  base: number,
): number {
  const { call, u8, u16, u32, u64 } = module;
  const count = Math.min(LOAD_BATCH, blocks.count - base);
  const names = call.stagingAt(), engines = names + count * 8, locals = engines + count * 8;
  const parents = locals + count * 8, holdings = parents + count * 4, tags = holdings + count * 4;
  const copies = tags + count * 4, tiers = copies + count * 2;
  const end = base + count;
  u64.set(blocks.engines.subarray(base, end), engines >>> 3);
  u64.set(blocks.locals.subarray(base, end), locals >>> 3);
  u16.set(blocks.copies.subarray(base, end), copies >>> 1);
  u8.set(blocks.tiers.subarray(base, end), tiers);
  for (let i = 0; i < count; i++) {
    const parent = blocks.parents[base + i] ?? -1;
    u32[(parents >>> 2) + i] = parent;
    if (parent >= 0 && parent < base) u64[(names >>> 3) + i] = blocks.engines[parent] ?? 0n;
  }
  return call
    .loadRows(slot, count, base, parents, names, engines, locals, tiers, copies, holdings, tags);
}
