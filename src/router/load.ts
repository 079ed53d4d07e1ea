/**
 * How busy each worker is, by what this router gave it.
 *
 * A booking is made in the step that chooses the worker and has one owner. It adds to the worker's
 * load, moves from prefill to decode at the first token, grows with the output, and is taken off
 * exactly once, however often and from wherever `release` is called.
 */

import type { WorkerRank } from "./choice.ts";
import { NO_LOAD, type WorkerLoad } from "./cost.ts";
import type { InheritedLoad } from "./inherited_load.ts";

export interface BookingSize {
  /** Prompt tokens that the worker has to compute (those that it holds not counted). */
  readonly prefillTokens: number;
  /** Blocks of the whole prompt. */
  readonly promptBlocks: number;
}

export interface Booking {
  readonly rank: WorkerRank;
  readonly released: boolean;
  /** The first token came: nothing is left to prefill. */
  prefillComplete(): void;
  /**
   * The output grew by one block. `weight` (0 to 1), when given, is what each of the request's blocks
   * counts from now on: a request near its end will soon free them.
   */
  outputBlock(weight?: number): void;
  release(): void;
}

interface RankLoad {
  prefillTokens: number;
  decodeBlocks: number;
  requests: number;
}

export class LoadBook {
  readonly #ranks = new Map<string, Map<number, RankLoad>>();
  readonly #inherited: InheritedLoad | undefined;

  /** `inherited`: what another replica gave the workers, counted like our own while it lasts. */
  constructor(inherited?: InheritedLoad) {
    this.#inherited = inherited;
  }

  /** Adds a request to a rank's load until the booking is released. */
  book(rank: WorkerRank, size: BookingSize): Booking {
    return new CountedBooking(rank, size, this.#loadOf(rank), () => this.#forgetIdle(rank));
  }

  /** What a rank is busy with; all zero when it has nothing. */
  load(rank: WorkerRank): WorkerLoad {
    const load = this.#ranks.get(rank.worker)?.get(rank.dpRank) ?? NO_LOAD;
    const more = this.#inherited?.of(rank) ?? NO_LOAD;
    return {
      prefillTokens: load.prefillTokens + more.prefillTokens,
      decodeBlocks: load.decodeBlocks + more.decodeBlocks,
      requests: load.requests + more.requests,
    };
  }

  /** All ranks that have requests of ours. */
  *loads(): Generator<WorkerRank & WorkerLoad> {
    for (const [worker, ranks] of this.#ranks) {
      for (const [dpRank, load] of ranks) yield { worker, dpRank, ...load };
    }
  }

  #loadOf({ worker, dpRank }: WorkerRank): RankLoad {
    let ranks = this.#ranks.get(worker);
    if (ranks === undefined) this.#ranks.set(worker, ranks = new Map());
    let load = ranks.get(dpRank);
    if (load === undefined) {
      ranks.set(dpRank, load = { prefillTokens: 0, decodeBlocks: 0, requests: 0 });
    }
    return load;
  }

  #forgetIdle({ worker, dpRank }: WorkerRank): void {
    const ranks = this.#ranks.get(worker);
    if (ranks?.get(dpRank)?.requests !== 0) return;
    ranks.delete(dpRank);
    if (ranks.size === 0) this.#ranks.delete(worker);
  }
}

class CountedBooking implements Booking {
  readonly rank: WorkerRank;
  readonly #load: RankLoad;
  readonly #onRelease: () => void;
  #prefillTokens: number;
  #blocks: number;
  #weight = 1;
  #released = false;

  constructor(rank: WorkerRank, size: BookingSize, load: RankLoad, onRelease: () => void) {
    this.rank = rank;
    this.#load = load;
    this.#onRelease = onRelease;
    this.#prefillTokens = size.prefillTokens;
    this.#blocks = size.promptBlocks;
    load.prefillTokens += size.prefillTokens;
    load.decodeBlocks += size.promptBlocks;
    load.requests += 1;
  }

  get released(): boolean {
    return this.#released;
  }

  prefillComplete(): void {
    this.#load.prefillTokens -= this.#prefillTokens;
    this.#prefillTokens = 0;
  }

  outputBlock(weight = this.#weight): void {
    if (this.#released) return;
    const before = this.#blocks * this.#weight;
    this.#blocks += 1;
    this.#weight = weight;
    this.#load.decodeBlocks += this.#blocks * weight - before;
  }

  release(): void {
    if (this.#released) return;
    this.#released = true;
    this.prefillComplete();
    this.#load.decodeBlocks -= this.#blocks * this.#weight;
    this.#load.requests -= 1;
    this.#onRelease();
  }
}
