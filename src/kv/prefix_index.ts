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
import { TIERS } from "./blocks.ts";
import { blockCount, BlockHasher, type BlockOptions } from "./hash.ts";
import { RowBuilder } from "./lane_blocks.ts";
import { IndexModule } from "./wasm/load.ts";

export interface PrefixIndexOptions {
  /** Tokens in a block. */
  readonly blockSize: number;
  /**
   * Most (block, lane) pairs to keep; beyond it the least recently used ends of sequences go. Without
   * it, what comes beyond 60 million is refused.
   */
  readonly maxBlocks?: number;
}

/** What an event did. All counts are blocks. */
export interface ApplyResult {
  /** Blocks that came to be held, in one more tier, or (for a removal) copies that went. */
  applied: number;
  /** Copies of blocks that were held in that tier already. */
  duplicates: number;
  /** Blocks refused because their sequence's parent is not held. */
  unknownParent: number;
  /** Removals of blocks that are not held in that tier. */
  unknownBlocks: number;
  /** Blocks, of any lane, that went to keep within `maxBlocks`. */
  evicted: number;
  /** Held blocks that came under another engine hash: the engine was restarted unnoticed. */
  renamed: number;
  /** Blocks refused because their engine hash stands for another block, and those after them. */
  conflicts: number;
  /** Blocks refused: another block size, too few tokens, or no room below `maxBlocks`. */
  refused: number;
  /** Blocks that went because one above them did. */
  cut: number;
}

/** How far one lane holds a sequence, in blocks; each tier includes the faster ones. */
export interface Match {
  readonly lane: number;
  readonly worker: string;
  readonly dpRank: number;
  readonly device: number;
  readonly host: number;
  readonly disk: number;
  readonly external: number;
}

export type Query =
  | {
    readonly tokens: Uint32Array;
    readonly lora?: string | undefined;
    readonly salt?: string | undefined;
    readonly eagle?: boolean | undefined;
    readonly multimodal?: readonly (readonly bigint[])[] | undefined;
  }
  | { readonly locals: BigUint64Array };

export interface IndexStats {
  readonly lanes: number;
  /** (block, lane) pairs, those of closed lanes that are still being freed not counted. */
  readonly blocks: number;
  /** Different blocks. */
  readonly nodes: number;
  /** (block, lane) pairs of closed and cleared lanes that wait to be freed. */
  readonly dying: number;
  /** Bytes of records and tables. */
  readonly bytes: number;
  /** Bytes of address space, most of it possibly never touched. */
  readonly memoryBytes: number;
}

interface LaneRecord {
  readonly worker: string;
  readonly dpRank: number;
  slot: number;
}

const MAX_SLOTS = 65_536;
/** Blocks of one look-up hashed and walked at a time: a miss wastes at most the rest of these. */
const MATCH_BATCH = 128;
/** Holdings freed in one turn of the event loop, and along with each event. */
const FREE_BATCH = 2048;
const FREE_BATCH_INLINE = 64;
/** Rows of a snapshot loaded at a time (about 2 ms), 39 bytes each in the staging memory. */
const LOAD_BATCH = 8192;
const MATCH_WORDS = 5;
/** The word of the result that tells a full index from a conflict. */
const FULL_WORD = 7;

export class PrefixIndex {
  readonly blockSize: number;
  readonly #module: IndexModule;
  readonly #hasher: BlockHasher;
  readonly #staging: number;
  readonly #stagingBytes: number;
  readonly #result: number;
  readonly #matches: number;
  readonly #lanes = new Map<number, LaneRecord>();
  readonly #freeSlots: number[] = [];
  /** Slots that are being taken apart, oldest first. */
  readonly #dying: number[] = [];
  #nextSlot = 0;
  #nextLane = 0;
  #freeing = false;

  private constructor(module: IndexModule, options: PrefixIndexOptions) {
    this.blockSize = options.blockSize;
    this.#module = module;
    this.#hasher = new BlockHasher(module);
    this.#staging = module.call.stagingAt();
    this.#stagingBytes = module.call.stagingBytes();
    this.#result = module.call.resultAt() >>> 2;
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
    const slot = this.#takeSlot();
    this.#lanes.set(lane, { worker, dpRank, slot });
    this.#module.call.setHandle(slot, lane + 1);
    return lane;
  }

  /** Gone from look-ups at once; its memory is freed in slices. No error if it is closed already. */
  closeLane(lane: number): void {
    const record = this.#lanes.get(lane);
    if (record === undefined) return;
    this.#lanes.delete(lane);
    this.#retire(record.slot);
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
   */
  apply(lane: number, event: KvEvent): ApplyResult {
    const result = emptyResult();
    const record = this.#lanes.get(lane);
    if (record === undefined) {
      if (event.kind !== "cleared") result.refused = event.hashes.length;
      return result;
    }
    if (this.#dying.length > 0) this.#free(FREE_BATCH_INLINE);
    switch (event.kind) {
      case "stored":
        this.#storeTokens(record.slot, event, result);
        break;
      case "stored_hashed":
        this.#storeHashed(record.slot, event, result);
        break;
      case "removed":
        this.#remove(record.slot, event, result);
        break;
      case "cleared":
        this.#clear(lane, record);
        break;
    }
    return result;
  }

  #storeTokens(
    slot: number,
    event: Extract<KvEvent, { kind: "stored" }>,
    result: ApplyResult,
  ): void {
    const named = event.hashes.length;
    if (event.blockSize !== this.blockSize) {
      result.refused = named;
      return;
    }
    const count = Math.min(named, blockCount(event.tokens.length, this.blockSize, event.eagle));
    result.refused = named - count;
    const seed = this.#hasher.seed(event.lora, event.salt);
    const room = this.#hasher.blocksAtOnce(this.blockSize);
    for (let done = 0; done < count;) {
      const batch = Math.min(room, count - done);
      const localsAt = this.#staging + batch * 8;
      // Engine hashes first, the local hashes behind them, then the tokens.
      this.#hasher.stage(event.tokens, done, batch, this.blockSize, seed, event, batch * 8);
      this.#module.u64.set(part(event.hashes, done, batch), this.#staging >>> 3);
      const parent = done === 0 ? event.parent : event.hashes[done - 1];
      if (!this.#storeRun(slot, parent, batch, localsAt, event.tier, count - done, result)) return;
      done += batch;
    }
  }

  #storeHashed(
    slot: number,
    event: Extract<KvEvent, { kind: "stored_hashed" }>,
    result: ApplyResult,
  ): void {
    const count = Math.min(event.hashes.length, event.locals.length);
    result.refused = event.hashes.length - count;
    const room = this.#stagingBytes >>> 4;
    for (let done = 0; done < count;) {
      const batch = Math.min(room, count - done);
      const at = this.#staging >>> 3;
      this.#module.u64.set(part(event.hashes, done, batch), at);
      this.#module.u64.set(part(event.locals, done, batch), at + batch);
      const parent = done === 0 ? event.parent : event.hashes[done - 1];
      const localsAt = this.#staging + batch * 8;
      if (!this.#storeRun(slot, parent, batch, localsAt, event.tier, count - done, result)) return;
      done += batch;
    }
  }

  /** Stores what is staged; false if the event ends here. `left` = blocks from these on. */
  #storeRun(
    slot: number,
    parent: bigint | undefined,
    count: number,
    localsAt: number,
    tier: KvTier,
    left: number,
    result: ApplyResult,
  ): boolean {
    const hasParent = parent === undefined ? 0 : 1;
    const stored = this.#module.call.storeRun(
      slot,
      hasParent,
      parent ?? 0n,
      count,
      this.#staging,
      localsAt,
      TIERS.indexOf(tier),
    );
    if (stored < 0) {
      result.unknownParent += left;
      return false;
    }
    this.#collect(result);
    if (stored === count) return true;
    if (this.#module.u32[this.#result + FULL_WORD] === 0) result.conflicts = left - stored;
    else result.refused += left - stored;
    return false;
  }

  #remove(slot: number, event: Extract<KvEvent, { kind: "removed" }>, result: ApplyResult): void {
    const room = this.#stagingBytes >>> 3;
    const tier = TIERS.indexOf(event.tier);
    for (let done = 0; done < event.hashes.length; done += room) {
      const batch = part(event.hashes, done, Math.min(room, event.hashes.length - done));
      this.#module.u64.set(batch, this.#staging >>> 3);
      this.#module.call.removeRun(slot, batch.length, this.#staging, tier);
      this.#collect(result);
    }
  }

  /**
   * Takes a block out of the external tier, and forgets it and those above it as far as nothing else
   * needs them: up to a block that has another child or is in the external tier itself. For indexes
   * that are fed with whole sequences whose ends are so marked. Returns how many went.
   */
  trim(lane: number, engine: bigint): number {
    const record = this.#lanes.get(lane);
    return record === undefined ? 0 : this.#module.call.trim(record.slot, engine);
  }

  /** The lane goes on in a new slot; the old one is hidden and freed in slices. */
  #clear(lane: number, record: LaneRecord): void {
    if (this.#module.call.slotCount(record.slot) === 0) return;
    this.#replaceSlot(lane, record, this.#takeSlot());
  }

  #collect(result: ApplyResult): void {
    const words = this.#module.u32;
    const at = this.#result;
    result.applied += words[at] ?? 0;
    result.duplicates += words[at + 1] ?? 0;
    result.unknownBlocks += words[at + 2] ?? 0;
    result.evicted += words[at + 3] ?? 0;
    result.renamed += words[at + 4] ?? 0;
    result.cut += words[at + 6] ?? 0;
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

  /** An exact copy of what a lane holds now, parents before children. */
  snapshot(lane: number): LaneBlocks {
    const record = this.#lanes.get(lane);
    const rows = new RowBuilder(this.count(lane));
    if (record !== undefined) {
      const room = Math.floor(this.#stagingBytes / 22) & ~7;
      const enginesAt = this.#staging, localsAt = enginesAt + room * 8;
      const depthsAt = localsAt + room * 8, copiesAt = depthsAt + room * 4;
      this.#module.call.snapshotBegin(record.slot);
      for (;;) {
        const count = this.#module.call
          .snapshotRows(room, depthsAt, enginesAt, localsAt, copiesAt);
        if (count === 0) break;
        const { u16, u32, u64 } = this.#module;
        rows.add(
          u32.subarray(depthsAt >>> 2, (depthsAt >>> 2) + count),
          u64.subarray(enginesAt >>> 3, (enginesAt >>> 3) + count),
          u64.subarray(localsAt >>> 3, (localsAt >>> 3) + count),
          u16.subarray(copiesAt >>> 1, (copiesAt >>> 1) + count),
        );
      }
    }
    return rows.finish((parents, locals) => this.#hasher.chainKeys(parents, locals));
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
    const slot = this.#takeSlot();
    for (let base = 0; base < blocks.count; base += LOAD_BATCH) this.#loadBatch(slot, blocks, base);
    this.#replaceSlot(lane, record, slot);
  }

  /**
   * `load` in slices of a few milliseconds, with `pause` awaited between them. The lane holds what it
   * held until all is loaded; events that are applied to it meanwhile are lost with that. Rejects as
   * `load` throws, also if the lane is closed meanwhile.
   */
  async loadInSlices(lane: number, blocks: LaneBlocks, pause: () => Promise<void>): Promise<void> {
    const record = this.#lanes.get(lane);
    if (record === undefined) throw new RangeError(`lane ${lane} is closed`);
    const slot = this.#takeSlot();
    for (let base = 0; base < blocks.count; base += LOAD_BATCH) {
      if (base > 0) await pause();
      this.#loadBatch(slot, blocks, base);
    }
    if (this.#lanes.get(lane) !== record) {
      this.#retire(slot);
      throw new RangeError(`lane ${lane} is closed`);
    }
    this.#replaceSlot(lane, record, slot);
  }

  /** Loads the rows from `base` on, as many as go at a time; gives up the slot if they do not fit. */
  #loadBatch(slot: number, blocks: LaneBlocks, base: number): void {
    const batch = Math.min(LOAD_BATCH, blocks.count - base);
    const loaded = this.#loadRows(slot, blocks, base, batch);
    if (loaded === batch) return;
    this.#retire(slot);
    throw new RangeError(`row ${base + loaded} does not fit the rows before it`);
  }

  /** Loads rows `base` to `base + count` into a slot; returns how many fit. */
  #loadRows(slot: number, blocks: LaneBlocks, base: number, count: number): number {
    const { u8, u16, u32, u64 } = this.#module;
    const names = this.#staging, engines = names + count * 8, locals = engines + count * 8;
    const parents = locals + count * 8, holdings = parents + count * 4;
    const tags = holdings + count * 4, copies = tags + count * 4, tiers = copies + count * 2;
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
    return this.#module.call
      .loadRows(slot, count, base, parents, names, engines, locals, tiers, copies, holdings, tags);
  }

  // ------------------------------------------------------------------------------------ memory

  stats(): IndexStats {
    const { call } = this.#module;
    let dying = 0;
    for (const slot of this.#dying) dying += call.slotCount(slot);
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
    this.#free(budget);
    return this.#dying.length === 0;
  }

  #takeSlot(): number {
    const slot = this.#freeSlots.pop();
    if (slot !== undefined) return slot;
    if (this.#nextSlot < MAX_SLOTS) return this.#nextSlot++;
    while (this.#freeSlots.length === 0 && this.#dying.length > 0) this.#free(FREE_BATCH);
    const freed = this.#freeSlots.pop();
    if (freed === undefined) throw new RangeError(`more than ${MAX_SLOTS} lanes`);
    return freed;
  }

  #replaceSlot(lane: number, record: LaneRecord, slot: number): void {
    const old = record.slot;
    record.slot = slot;
    this.#retire(old);
    this.#module.call.setHandle(slot, lane + 1);
  }

  #retire(slot: number): void {
    this.#module.call.setHandle(slot, 0);
    if (this.#module.call.slotCount(slot) === 0) {
      this.#freeSlots.push(slot);
      return;
    }
    this.#dying.push(slot);
    this.#freeLater();
  }

  #free(budget: number): void {
    const { call } = this.#module;
    while (budget > 0) {
      const slot = this.#dying[0];
      if (slot === undefined) return;
      const before = call.slotCount(slot);
      const left = call.release(slot, budget);
      budget -= Math.max(1, before - left);
      if (left > 0) return;
      this.#dying.shift();
      this.#freeSlots.push(slot);
    }
  }

  #freeLater(): void {
    if (this.#freeing) return;
    this.#freeing = true;
    setTimeout(() => {
      this.#freeing = false;
      this.#free(FREE_BATCH);
      if (this.#dying.length > 0) this.#freeLater();
    }, 0);
  }
}

/** `count` values from `first` on; the array itself when that is all of it, as it mostly is. */
function part(values: BigUint64Array, first: number, count: number): BigUint64Array {
  return count === values.length ? values : values.subarray(first, first + count);
}

type KvTier = (typeof TIERS)[number];

function emptyResult(): ApplyResult {
  return {
    applied: 0,
    duplicates: 0,
    unknownParent: 0,
    unknownBlocks: 0,
    evicted: 0,
    renamed: 0,
    conflicts: 0,
    refused: 0,
    cut: 0,
  };
}
