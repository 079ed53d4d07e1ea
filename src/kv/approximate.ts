/**
 * An index of what workers probably hold, for workers that publish no KV events, fed with the
 * choices themselves: a prompt that was sent to a worker is in its cache for a while.
 *
 * Each decision inserts its whole sequence for a limited time; a block stays as long as some live
 * decision leads over it, and no longer. With a short time to live the same thing bridges the moment
 * between a choice and the event that confirms it: two identical prompts in a row find each other
 * (`withSpeculation`), and what no event confirms is gone two seconds later.
 */

import { BatonError } from "../errors.ts";
import type { Clock } from "../runtime/runtime.ts";
import { type Match, PrefixIndex, type Query } from "./prefix_index.ts";

/** How long a routing decision stands for what a worker holds. */
const DECISION_TTL_MS = 120_000;
/** How long a decision stands in for the event that should confirm it. */
export const SPECULATION_TTL_MS = 2_000;
/** Beyond its bound an index gives up its oldest decisions down to this share of it. */
const PRUNED_SHARE = 0.8;
/** Blocks forgotten in one go, a few milliseconds; what is left comes at the next opportunity. */
const EXPIRY_BLOCKS = 16_384;

export interface ApproximateOptions {
  readonly clock: Clock;
  /** Tokens in a block; with text, bytes of UTF-8 in a chunk. */
  readonly blockSize: number;
  readonly ttlMs?: number;
  /** Most (block, worker rank) pairs. */
  readonly maxBlocks?: number;
}

/** What was routed: tokens, a text in chunks, or hashes with (if known) their chain keys. */
export type Sequence =
  | Extract<Query, { tokens: Uint32Array }>
  | { readonly text: string; readonly lora?: string; readonly salt?: string }
  | { readonly locals: BigUint64Array; readonly keys?: BigUint64Array };

interface Rank {
  readonly worker: string;
  readonly dpRank: number;
}

interface LaneState {
  readonly lane: number;
  /** Last block of each live decision -> its number. */
  readonly ends: Map<bigint, number>;
}

interface Decision {
  readonly state: LaneState;
  readonly end: bigint;
  readonly expiresAt: number;
}

export class ApproximateIndex {
  readonly #index: PrefixIndex;
  readonly #clock: Clock;
  readonly #ttlMs: number;
  readonly #maxBlocks: number;
  readonly #workers = new Map<string, Map<number, LaneState>>();
  /** By number, which is the order in which they expire. */
  readonly #decisions = new Map<number, Decision>();
  #nextNumber = 0;
  #lastText: { readonly sequence: Sequence; readonly locals: BigUint64Array } | undefined;
  #cancelTimer: (() => void) | undefined;
  #closed = false;

  private constructor(index: PrefixIndex, options: ApproximateOptions) {
    this.#index = index;
    this.#clock = options.clock;
    this.#ttlMs = options.ttlMs ?? DECISION_TTL_MS;
    this.#maxBlocks = options.maxBlocks ?? 2 ** 20;
  }

  static async create(options: ApproximateOptions): Promise<ApproximateIndex> {
    const { blockSize } = options;
    return new ApproximateIndex(await PrefixIndex.create({ blockSize }), options);
  }

  /** (block, worker rank) pairs. */
  get blocks(): number {
    return this.#index.stats().blocks;
  }

  /**
   * Notes that a sequence was sent to a rank; the same again starts its time anew. Throws
   * `bad_request` when `keys` are given and not one for each hash, `not_ready` after `close`.
   */
  insert(rank: Rank, sequence: Sequence): void {
    this.#check();
    const locals = this.#locals(sequence);
    const count = locals.length;
    if ("keys" in sequence && sequence.keys !== undefined && sequence.keys.length !== count) {
      throw new BatonError("bad_request", "block hashes and sequence hashes differ in number");
    }
    if (count === 0) return;
    const parents = Int32Array.from({ length: count }, (_, row) => row - 1);
    // Always our own keys: those of another chain would not agree with decisions that have none.
    const keys = this.#index.hasher.chainKeys(parents, locals);
    const state = this.#stateOf(rank);
    const { lane, ends } = state;
    const stored = { kind: "stored_hashed", parent: undefined, hashes: keys, locals } as const;
    this.#index.apply(lane, { ...stored, tier: "device" });
    const end = keys[count - 1] ?? 0n;
    const known = ends.get(end);
    if (known === undefined) {
      this.#index.apply(lane, {
        kind: "stored_hashed",
        parent: keys[count - 2],
        hashes: keys.subarray(count - 1),
        locals: locals.subarray(count - 1),
        tier: "external",
      });
    } else {
      this.#decisions.delete(known);
    }
    const number = this.#nextNumber++;
    ends.set(end, number);
    this.#decisions.set(number, { state, end, expiresAt: this.#clock.monotonic() + this.#ttlMs });
    this.#expire();
    if (this.blocks > this.#maxBlocks) this.#prune(this.#maxBlocks * PRUNED_SHARE);
    this.#arm();
  }

  /** Every rank that probably holds at least the first block; all in the device tier. */
  match(sequence: Sequence): Match[] {
    this.#check();
    this.#expire();
    const query = "text" in sequence ? { locals: this.#locals(sequence) } : sequence;
    return this.#index.match(query).map((match) => {
      const { device } = match;
      return { ...match, host: device, disk: device, external: device };
    });
  }

  removeRank({ worker, dpRank }: Rank): void {
    const ranks = this.#workers.get(worker);
    const state = ranks?.get(dpRank);
    if (ranks === undefined || state === undefined) return;
    this.#index.closeLane(state.lane);
    for (const number of state.ends.values()) this.#decisions.delete(number);
    ranks.delete(dpRank);
    if (ranks.size === 0) this.#workers.delete(worker);
  }

  removeWorker(worker: string): void {
    for (const dpRank of [...this.#workers.get(worker)?.keys() ?? []]) {
      this.removeRank({ worker, dpRank });
    }
  }

  /** Forgets everything; later calls are refused. Idempotent. */
  close(): void {
    for (const worker of [...this.#workers.keys()]) this.removeWorker(worker);
    this.#closed = true;
    this.#cancelTimer?.();
    this.#cancelTimer = undefined;
  }

  #check(): void {
    if (this.#closed) throw new BatonError("not_ready", "the index is closed");
  }

  #locals(sequence: Sequence): BigUint64Array {
    if ("locals" in sequence) return sequence.locals;
    if ("tokens" in sequence) return this.#index.locals(sequence.tokens, sequence);
    const { hasher, blockSize } = this.#index;
    // A choice looks a text up, and inserts it a moment later.
    if (this.#lastText?.sequence === sequence) return this.#lastText.locals;
    const seed = hasher.seed(sequence.lora, sequence.salt);
    const locals = hasher.chunks(sequence.text, blockSize, seed);
    this.#lastText = { sequence, locals };
    return locals;
  }

  #stateOf({ worker, dpRank }: Rank): LaneState {
    let ranks = this.#workers.get(worker);
    if (ranks === undefined) this.#workers.set(worker, ranks = new Map());
    let state = ranks.get(dpRank);
    if (state === undefined) {
      ranks.set(dpRank, state = { lane: this.#index.openLane(worker, dpRank), ends: new Map() });
    }
    return state;
  }

  /** Ends one decision; returns the number of blocks that went. */
  #end(number: number, { state, end }: Decision): number {
    this.#decisions.delete(number);
    state.ends.delete(end);
    return this.#index.trim(state.lane, end);
  }

  #expire(): void {
    const now = this.#clock.monotonic();
    let budget = EXPIRY_BLOCKS;
    for (const [number, decision] of this.#decisions) {
      if (decision.expiresAt > now || budget <= 0) return;
      budget -= 1 + this.#end(number, decision);
    }
  }

  #prune(blocks: number): void {
    for (const [number, decision] of this.#decisions) {
      if (this.blocks <= blocks) return;
      this.#end(number, decision);
    }
  }

  /** One timer, for the oldest decision, so that memory goes without anybody asking. */
  #arm(): void {
    if (this.#cancelTimer !== undefined) return;
    const [oldest] = this.#decisions.values();
    if (oldest === undefined) return;
    const delayMs = Math.max(0, oldest.expiresAt - this.#clock.monotonic());
    this.#cancelTimer = this.#clock.after(delayMs, () => {
      this.#cancelTimer = undefined;
      this.#expire();
      this.#arm();
    });
  }
}

/** For each rank the better of what events say and what was routed there a moment ago. */
export function withSpeculation(
  known: readonly Match[],
  speculative: readonly Match[],
): Match[] {
  if (speculative.length === 0) return [...known];
  const merged = new Map(known.map((match) => [rankKey(match), match]));
  for (const guess of speculative) {
    const key = rankKey(guess);
    const match = merged.get(key);
    if (match === undefined) {
      merged.set(key, guess);
      continue;
    }
    const device = Math.max(match.device, guess.device);
    const host = Math.max(match.host, device);
    const disk = Math.max(match.disk, host);
    const external = Math.max(match.external, disk);
    merged.set(key, { ...match, device, host, disk, external });
  }
  return [...merged.values()];
}

function rankKey({ worker, dpRank }: Rank): string {
  return `${dpRank}/${worker}`;
}
