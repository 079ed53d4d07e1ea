/**
 * The prefix index of one partition: which lanes hold which blocks, in which tiers.
 *
 * Blocks are known by what they contain (a chain of local hashes); the engines' own hashes are kept
 * per lane and only link parents and removals. A block whose parent the lane does not hold is
 * refused, and a block that goes takes with it what the lane held below it: the index may know too
 * little about a lane, never too much. All of it lives in one WebAssembly memory (src/kv/wasm); this
 * file moves events in and answers out, and knows which lane is which.
 *
 * Rules of tiers: a block stays while any tier holds a copy. A block that leaves a tier, and is not
 * in a faster one, takes that tier from everything below it. A look-up follows the device as far as
 * it goes, then from there the host, then the disk, then external storage.
 */

import type { KvEvent, LaneBlocks } from "./blocks.ts";
import { emptyResult, EventWriter, part } from "./event_writer.ts";
import { blockCount, BlockHasher, type BlockOptions } from "./hash.ts";
import type { ApplyResult, IndexStats, Match, PrefixIndexOptions, Query } from "./index_types.ts";
import { RowBuilder } from "./lane_blocks.ts";
import { FREE_BATCH, LaneSlots } from "./lane_slots.ts";
import { COPY_BATCH, LOAD_BATCH, loadRows, SlotCopy } from "./lane_transfer.ts";
import { IndexModule } from "./wasm/load.ts";

export type { ApplyResult, IndexStats, Match, PrefixIndexOptions, Query } from "./index_types.ts";

interface LaneRecord {
  readonly worker: string;
  readonly dpRank: number;
  slot: number;
  /** Counts what changes its blocks: a copy in slices is void when this moves. */
  changes: number;
}

/** Blocks of one look-up hashed and walked at a time: a miss wastes at most the rest of these. */
const MATCH_BATCH = 128;
/** Blocks of retired lanes freed along with each event. */
const FREE_BATCH_INLINE = 64;
const MATCH_WORDS = 5;
/** Without a limit, that is. */
const ALL = 0x7fffffff;

export class PrefixIndex {
  readonly blockSize: number;
  readonly #module: IndexModule;
  readonly #hasher: BlockHasher;
  readonly #staging: number;
  readonly #stagingBytes: number;
  readonly #writer: EventWriter;
  readonly #matches: number;
  readonly #lanes = new Map<number, LaneRecord>();
  readonly #slots: LaneSlots;
  #nextLane = 0;

  private constructor(module: IndexModule, options: PrefixIndexOptions) {
    this.blockSize = options.blockSize;
    this.#module = module;
    this.#hasher = new BlockHasher(module);
    this.#slots = new LaneSlots(module.call);
    this.#staging = module.call.stagingAt();
    this.#stagingBytes = module.call.stagingBytes();
    this.#writer = new EventWriter(module, this.#hasher, options.blockSize);
    this.#matches = module.call.matchesAt() >>> 2;
    if (options.maxBlocks !== undefined) module.call.setBound(options.maxBlocks);
  }

  /** Throws RangeError for a block size that is not an integer from 1 to 16,384. */
  static async create(options: PrefixIndexOptions): Promise<PrefixIndex> {
    const { blockSize, maxBlocks } = options;
    if (!Number.isInteger(blockSize) || blockSize < 1 || blockSize > 16_384) {
      throw new RangeError(`a block size of ${blockSize} tokens`);
    }
    if (maxBlocks !== undefined && (!Number.isInteger(maxBlocks) || maxBlocks < 2)) {
      throw new RangeError(`a bound of ${maxBlocks} blocks`);
    }
    return new PrefixIndex(await IndexModule.create(), options);
  }

  // ------------------------------------------------------------------------------------- lanes

  /** A handle for a new, empty lane. Handles are never used again. */
  openLane(worker: string, dpRank: number): number {
    const lane = this.#nextLane++;
    const slot = this.#slots.take();
    this.#lanes.set(lane, { worker, dpRank, slot, changes: 0 });
    this.#module.call.setHandle(slot, lane + 1);
    return lane;
  }

  /** Gone from look-ups at once; its memory is freed in slices. No error if it is closed already. */
  closeLane(lane: number): void {
    const record = this.#lanes.get(lane);
    if (record === undefined) return;
    this.#lanes.delete(lane);
    this.#slots.retire(record.slot);
  }

  /** Blocks that a lane holds (0 for a closed one). */
  count(lane: number): number {
    const record = this.#lanes.get(lane);
    return record === undefined ? 0 : this.#module.call.slotCount(record.slot);
  }

  // ------------------------------------------------------------------------------------ events

  /**
   * Applies one event of a lane. An event of a closed lane does nothing (its blocks count as
   * refused), so that events in flight cannot bring a removed worker back.
   *
   * A removal that takes more than about `most` blocks along ends early: `left` of its blocks, the
   * last ones, are not done with, and are to be applied again.
   */
  apply(lane: number, event: KvEvent, most = ALL): ApplyResult {
    const result = emptyResult();
    const record = this.#lanes.get(lane);
    if (record === undefined) {
      if (event.kind !== "cleared") result.refused = event.hashes.length;
      return result;
    }
    if (this.#slots.isFreeing) this.#slots.free(FREE_BATCH_INLINE);
    record.changes += 1;
    switch (event.kind) {
      case "stored":
        this.#writer.storeTokens(record.slot, event, result);
        break;
      case "stored_hashed":
        this.#writer.storeHashed(record.slot, event, result);
        break;
      case "removed":
        this.#writer.remove(record.slot, event, most, result);
        break;
      case "cleared":
        this.#clear(lane, record);
        break;
    }
    return result;
  }

  /**
   * Takes a block out of the external tier, and forgets it and those above it as far as nothing else
   * needs them: up to a block that has another child or is in the external tier itself. For indexes
   * that are fed with whole sequences whose ends are so marked. Returns how many went.
   */
  trim(lane: number, engine: bigint): number {
    const record = this.#lanes.get(lane);
    if (record === undefined) return 0;
    record.changes += 1;
    return this.#module.call.trim(record.slot, engine);
  }

  /** The lane goes on in a new slot; the old one is hidden and freed in slices. */
  #clear(lane: number, record: LaneRecord): void {
    if (this.#module.call.slotCount(record.slot) === 0) return;
    this.#replaceSlot(lane, record, this.#slots.take());
  }

  // ---------------------------------------------------------------------------------- look-ups

  /** The hasher of this index, for sequences that are not tokens. */
  get hasher(): BlockHasher {
    return this.#hasher;
  }

  /** Local hashes of the full blocks of `tokens`. */
  locals(tokens: Uint32Array, options: BlockOptions = {}): BigUint64Array {
    return this.#hasher.locals(tokens, this.blockSize, options);
  }

  /** Every lane that holds at least the first block, with how far it goes. */
  match(query: Query): Match[] {
    const call = this.#module.call;
    call.matchBegin();
    if ("locals" in query) {
      const locals = query.locals;
      const room = this.#stagingBytes >>> 3;
      for (let done = 0; done < locals.length; done += room) {
        const batch = part(locals, done, Math.min(room, locals.length - done));
        this.#module.u64.set(batch, this.#staging >>> 3);
        if (call.matchFeed(this.#staging, batch.length) === 0) break;
      }
    } else {
      const count = blockCount(query.tokens.length, this.blockSize, query.eagle);
      const seed = this.#hasher.seed(query.lora, query.salt);
      const room = Math.min(MATCH_BATCH, this.#hasher.blocksAtOnce(this.blockSize));
      for (let done = 0; done < count; done += room) {
        const batch = Math.min(room, count - done);
        this.#hasher.stage(query.tokens, done, batch, this.blockSize, seed, query, 0);
        if (call.matchFeed(this.#staging, batch) === 0) break;
      }
    }
    return this.#rows(call.matchEnd());
  }

  #rows(count: number): Match[] {
    const words = this.#module.u32;
    const matches: Match[] = [];
    for (let row = 0; row < count; row++) {
      const at = this.#matches + row * MATCH_WORDS;
      const device = words[at + 1] ?? 0;
      const host = words[at + 2] ?? 0;
      const disk = words[at + 3] ?? 0;
      const external = words[at + 4] ?? 0;
      const lane = (words[at] ?? 0) - 1;
      const record = this.#lanes.get(lane);
      // Blocks that no tier carries from the start on are of no use.
      if (record === undefined || external === 0) continue;
      const { worker, dpRank } = record;
      matches.push({ lane, worker, dpRank, device, host, disk, external });
    }
    return matches;
  }

  // --------------------------------------------------------------------------------- snapshots

  /** An exact copy of what a lane holds now, parents before children; nothing for a closed lane. */
  snapshot(lane: number): LaneBlocks {
    const slot = this.#lanes.get(lane)?.slot;
    if (slot === undefined) return new RowBuilder().finish();
    const copy = new SlotCopy(this.#module, this.#hasher, slot);
    while (copy.step());
    copy.unpin();
    return copy.rows();
  }

  /**
   * `snapshot` in slices well under a millisecond, with `pause` awaited between them. What it gives is
   * what the lane held at the start; undefined if anything changed the lane's blocks meanwhile. It is
   * in the memory of `rows`, whose next lane overwrites it.
   */
  async snapshotInSlices(
    lane: number,
    pause: () => Promise<void>,
    rows?: RowBuilder,
    rowsAtOnce = COPY_BATCH,
  ): Promise<LaneBlocks | undefined> {
    const record = this.#lanes.get(lane);
    if (record === undefined) return undefined;
    const { changes } = record;
    const copy = new SlotCopy(this.#module, this.#hasher, record.slot, rows);
    let isSame = true;
    try {
      while (isSame && copy.step(rowsAtOnce)) {
        await pause();
        isSame = this.#lanes.get(lane) === record && record.changes === changes;
      }
    } finally {
      copy.unpin();
    }
    return isSame ? copy.rows() : undefined;
  }

  /**
   * Makes a lane hold exactly these blocks. Keys are computed anew, not taken. Throws RangeError,
   * and leaves the lane as it was, when the rows are not a snapshot (a parent that does not come
   * before its child, one engine hash for two blocks) or the lane is closed. What does not fit below
   * `maxBlocks` is left out.
   */
  load(lane: number, blocks: LaneBlocks): void {
    const record = this.#lanes.get(lane);
    if (record === undefined) throw new RangeError(`lane ${lane} is closed`);
    const slot = this.#slots.take();
    for (let base = 0; base < blocks.count; base += LOAD_BATCH) this.#loadBatch(slot, blocks, base);
    this.#replaceSlot(lane, record, slot);
  }

  /**
   * `load` in slices of half a millisecond, with `pause` awaited between them. The lane holds what it
   * held until all is loaded; events that are applied to it meanwhile are lost with that. Rejects as
   * `load` throws, also if the lane is closed meanwhile.
   */
  async loadInSlices(lane: number, blocks: LaneBlocks, pause: () => Promise<void>): Promise<void> {
    const record = this.#lanes.get(lane);
    if (record === undefined) throw new RangeError(`lane ${lane} is closed`);
    const slot = this.#slots.take();
    for (let base = 0; base < blocks.count; base += LOAD_BATCH) {
      if (base > 0) await pause();
      this.#loadBatch(slot, blocks, base);
    }
    if (this.#lanes.get(lane) !== record) {
      this.#slots.retire(slot);
      throw new RangeError(`lane ${lane} is closed`);
    }
    this.#replaceSlot(lane, record, slot);
  }

  /** Loads the rows from `base` on, as many as go at a time; gives up the slot if they do not fit. */
  #loadBatch(slot: number, blocks: LaneBlocks, base: number): void {
    const fitting = loadRows(this.#module, slot, blocks, base);
    const batch = Math.min(LOAD_BATCH, blocks.count - base);
    if (fitting === batch) return;
    this.#slots.retire(slot);
    throw new RangeError(`row ${base + fitting} does not fit the rows before it`);
  }

  // ------------------------------------------------------------------------------------ memory

  stats(): IndexStats {
    const { call } = this.#module;
    const { dying } = this.#slots;
    return {
      lanes: this.#lanes.size,
      blocks: call.liveHoldings() - dying,
      nodes: call.liveNodes(),
      dying,
      bytes: call.bytesUsed(),
      memoryBytes: this.#module.memoryBytes,
    };
  }

  /** Frees the memory of closed and cleared lanes now; true when there is no more of it. */
  tidy(budget = FREE_BATCH): boolean {
    this.#slots.free(budget);
    return !this.#slots.isFreeing;
  }

  #replaceSlot(lane: number, record: LaneRecord, slot: number): void {
    const old = record.slot;
    record.slot = slot;
    record.changes += 1;
    this.#slots.retire(old);
    this.#module.call.setHandle(slot, lane + 1);
  }
}
