/**
 * Moves events into the index's memory: a few calls for an event, whatever its length.
 */

import type { KvEvent, Tier } from "./blocks.ts";
import { TIERS } from "./blocks.ts";
import { blockCount, type BlockHasher } from "./hash.ts";
import type { ApplyResult } from "./index_types.ts";
import type { IndexModule } from "./wasm/load.ts";

/** The word of the result that tells a full index from a conflict. */
const FULL_WORD = 7;

export class EventWriter {
  readonly #blockSize: number;
  readonly #module: IndexModule;
  readonly #hasher: BlockHasher;
  readonly #staging: number;
  readonly #stagingBytes: number;
  readonly #result: number;

  constructor(module: IndexModule, hasher: BlockHasher, blockSize: number) {
    this.#blockSize = blockSize;
    this.#module = module;
    this.#hasher = hasher;
    this.#staging = module.call.stagingAt();
    this.#stagingBytes = module.call.stagingBytes();
    this.#result = module.call.resultAt() >>> 2;
  }

  /** Stores blocks of tokens. */
  storeTokens(
    slot: number,
    event: Extract<KvEvent, { kind: "stored" }>,
    result: ApplyResult,
  ): void {
    const named = event.hashes.length;
    if (event.blockSize !== this.#blockSize) {
      result.refused = named;
      return;
    }
    const count = Math.min(named, blockCount(event.tokens.length, this.#blockSize, event.eagle));
    result.refused = named - count;
    const seed = this.#hasher.seed(event.lora, event.salt);
    const room = this.#hasher.blocksAtOnce(this.#blockSize);
    for (let done = 0; done < count;) {
      const batch = Math.min(room, count - done);
      const localsAt = this.#staging + batch * 8;
      // Engine hashes first, the local hashes behind them, then the tokens.
      this.#hasher.stage(event.tokens, done, batch, this.#blockSize, seed, event, batch * 8);
      this.#module.u64.set(part(event.hashes, done, batch), this.#staging >>> 3);
      const parent = done === 0 ? event.parent : event.hashes[done - 1];
      if (!this.#storeRun(slot, parent, batch, localsAt, event.tier, count - done, result)) return;
      done += batch;
    }
  }

  /** Stores blocks that are hashed already. */
  storeHashed(
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
    tier: Tier,
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

  /** Removes copies, and with them up to about `most` blocks below; `result.left` = what is not done. */
  remove(
    slot: number,
    event: Extract<KvEvent, { kind: "removed" }>,
    most: number,
    result: ApplyResult,
  ): void {
    const room = this.#stagingBytes >>> 3;
    const tier = TIERS.indexOf(event.tier);
    const named = event.hashes.length;
    for (let done = 0; done < named; done += room) {
      const batch = part(event.hashes, done, Math.min(room, named - done));
      this.#module.u64.set(batch, this.#staging >>> 3);
      const handled = this.#module.call.removeRun(slot, batch.length, this.#staging, tier, most);
      this.#collect(result);
      if (handled === batch.length) continue;
      result.left = named - done - handled;
      return;
    }
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
}

export function emptyResult(): ApplyResult {
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
    left: 0,
  };
}

/** `count` values from `first` on; the array itself when that is all of it, as it mostly is. */
export function part(values: BigUint64Array, first: number, count: number): BigUint64Array {
  return count === values.length ? values : values.subarray(first, first + count);
}
