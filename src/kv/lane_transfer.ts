/**
 * Moves what a lane holds between the index's memory and the columns of a snapshot.
 */

import type { LaneBlocks } from "./blocks.ts";
import type { BlockHasher } from "./hash.ts";
import { RowBuilder } from "./lane_blocks.ts";
import type { IndexModule } from "./wasm/load.ts";

/** Rows loaded at a time (about 2 ms), 39 bytes each in the staging memory. */
export const LOAD_BATCH = 8192;
/** Bytes of a row on its way out. */
const COPY_BYTES = 22;

/** All blocks of a slot, parents before children; none for no slot. */
export function copySlot(
  module: IndexModule,
  hasher: BlockHasher,
  slot: number | undefined,
): LaneBlocks {
  const { call } = module;
  const rows = new RowBuilder(slot === undefined ? 0 : call.slotCount(slot));
  if (slot !== undefined) {
    const room = Math.floor(call.stagingBytes() / COPY_BYTES) & ~7;
    const engines = call.stagingAt(), locals = engines + room * 8;
    const depths = locals + room * 8, copies = depths + room * 4;
    call.snapshotBegin(slot);
    for (;;) {
      const count = call.snapshotRows(room, depths, engines, locals, copies);
      if (count === 0) break;
      const { u16, u32, u64 } = module;
      rows.add(
        u32.subarray(depths >>> 2, (depths >>> 2) + count),
        u64.subarray(engines >>> 3, (engines >>> 3) + count),
        u64.subarray(locals >>> 3, (locals >>> 3) + count),
        u16.subarray(copies >>> 1, (copies >>> 1) + count),
      );
    }
  }
  return rows.finish((parents, locals) => hasher.chainKeys(parents, locals));
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
