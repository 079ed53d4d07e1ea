/**
 * A fleet of workers in simulated time, fed from a trace, behind one or more routers that run
 * Baton's own index, load book and choice.
 *
 * A worker prefills one request at a time at a fixed rate, computing only the blocks that its cache
 * does not hold; its cache keeps the blocks used last. It tells all routers of what it stores and
 * evicts. Each router knows the load of the requests that it placed itself.
 */

import { ApproximateIndex, SPECULATION_TTL_MS, withSpeculation } from "../../src/kv/approximate.ts";
import { PrefixIndex } from "../../src/kv/prefix_index.ts";
import { choose } from "../../src/router/choice.ts";
import { type CostWeights, poolWeights } from "../../src/router/cost.ts";
import { type Booking, LoadBook } from "../../src/router/load.ts";
import { percentile } from "./bench.ts";

/** One request of a trace: block ids name 512 tokens each. */
export interface TraceRow {
  readonly timestamp: number;
  readonly input_length: number;
  readonly output_length: number;
  readonly hash_ids: readonly number[];
}

export interface FleetOptions {
  readonly workers: number;
  /** Blocks of 512 tokens that a worker's cache holds. */
  readonly cacheBlocks: number;
  readonly routers: number;
  readonly weights?: Partial<CostWeights>;
  /** How many times faster than recorded the trace is played. */
  readonly speed: number;
  /** "cost" is Baton's choice; the others are what it is compared with. */
  readonly policy: "cost" | "round_robin" | "random";
}

export interface FleetResult {
  readonly hit_percent: number;
  readonly mean_ttft_s: number;
  readonly p90_ttft_s: number;
}

const BLOCK = 512;
const PREFILL_TOKENS_PER_S = 15_928;
const DECODE_S_PER_TOKEN = 0.02;

/** Simulated time: what is due runs in order. */
class Timeline {
  #heap: { at: number; order: number; action: () => void }[] = [];
  #order = 0;
  now = 0;

  at(at: number, action: () => void): () => void {
    const entry = { at, order: this.#order++, action };
    const heap = this.#heap;
    let child = heap.push(entry) - 1;
    while (child > 0) {
      const parent = (child - 1) >> 1;
      const above = heap[parent];
      if (above === undefined || !before(entry, above)) break;
      heap[child] = above;
      child = parent;
    }
    heap[child] = entry;
    return () => {
      entry.action = () => {};
    };
  }

  /** Runs everything that is due until nothing is left. */
  run(): void {
    for (let next = this.#pop(); next !== undefined; next = this.#pop()) {
      this.now = next.at;
      next.action();
    }
  }

  #pop() {
    const heap = this.#heap;
    const top = heap[0];
    const last = heap.pop();
    if (last === undefined || top === undefined || last === top) return top;
    let parent = 0;
    for (;;) {
      let child = 2 * parent + 1;
      let least = heap[child];
      if (least === undefined) break;
      const right = heap[child + 1];
      if (right !== undefined && before(right, least)) {
        least = right;
        child += 1;
      }
      if (!before(least, last)) break;
      heap[parent] = least;
      parent = child;
    }
    heap[parent] = last;
    return top;
  }
}

function before(a: { at: number; order: number }, b: { at: number; order: number }): boolean {
  return a.at < b.at || (a.at === b.at && a.order < b.order);
}

/** A generator that is the same in every run. */
function seeded(seed: number): () => number {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

/** What the routers of a fleet know of one prompt. */
interface Prompt {
  readonly row: TraceRow;
  readonly locals: BigUint64Array;
  /** Names of the blocks, the same on every worker of the simulation. */
  readonly keys: BigUint64Array;
}

/** What a worker publishes: a prompt that it has computed, and blocks that it gave up. */
type Tell = (worker: Worker, stored: Prompt, removed: readonly bigint[]) => void;

class Worker {
  readonly id: string;
  readonly #timeline: Timeline;
  readonly #room: number;
  readonly #tell: Tell;
  /** Block -> whether it is held, the one used longest ago first. */
  readonly #cache = new Map<bigint, true>();
  readonly #queue: { prompt: Prompt; done: (hitBlocks: number) => void }[] = [];
  #busy = false;

  constructor(id: string, timeline: Timeline, room: number, tell: Tell) {
    this.id = id;
    this.#timeline = timeline;
    this.#room = room;
    this.#tell = tell;
  }

  prefill(prompt: Prompt, done: (hitBlocks: number) => void): void {
    this.#queue.push({ prompt, done });
    if (!this.#busy) this.#next();
  }

  #next(): void {
    const job = this.#queue.shift();
    this.#busy = job !== undefined;
    if (job === undefined) return;
    const { keys, row } = job.prompt;
    let hits = 0;
    while (hits < keys.length && this.#cache.has(keys[hits] ?? 0n)) hits += 1;
    const tokens = Math.max(0, row.input_length - hits * BLOCK);
    this.#timeline.at(this.#timeline.now + tokens / PREFILL_TOKENS_PER_S, () => {
      this.#keep(job.prompt);
      job.done(hits);
      this.#next();
    });
  }

  #keep(prompt: Prompt): void {
    // The end first, so that the beginning of a sequence is what was used last.
    for (const key of [...prompt.keys].reverse()) {
      this.#cache.delete(key);
      this.#cache.set(key, true);
    }
    const removed: bigint[] = [];
    for (const key of this.#cache.keys()) {
      if (this.#cache.size <= this.#room) break;
      this.#cache.delete(key);
      removed.push(key);
    }
    this.#tell(this, prompt, removed);
  }
}

class Router {
  readonly #index: PrefixIndex;
  readonly #speculative: ApproximateIndex;
  readonly #lanes = new Map<string, number>();
  readonly #book = new LoadBook();
  readonly #options: FleetOptions;
  readonly #random: () => number;
  #turn = 0;

  private constructor(
    index: PrefixIndex,
    speculative: ApproximateIndex,
    options: FleetOptions,
    random: () => number,
  ) {
    this.#index = index;
    this.#speculative = speculative;
    this.#options = options;
    this.#random = random;
    for (let i = 0; i < options.workers; i++) {
      this.#lanes.set(`w${i}`, index.openLane(`w${i}`, 0));
    }
  }

  static async create(
    timeline: Timeline,
    options: FleetOptions,
    random: () => number,
  ): Promise<Router> {
    const clock = {
      now: () => timeline.now * 1000,
      monotonic: () => timeline.now * 1000,
      after: (delayMs: number, action: () => void) =>
        timeline.at(timeline.now + delayMs / 1000, action),
    };
    const speculative = { clock, blockSize: BLOCK, ttlMs: SPECULATION_TTL_MS };
    return new Router(
      await PrefixIndex.create({ blockSize: BLOCK }),
      await ApproximateIndex.create(speculative),
      options,
      random,
    );
  }

  get hasher() {
    return this.#index.hasher;
  }

  hear(worker: string, { keys: hashes, locals }: Prompt, removed: readonly bigint[]): void {
    const lane = this.#lanes.get(worker) ?? -1;
    const event = { kind: "stored_hashed", parent: undefined, hashes, locals } as const;
    this.#index.apply(lane, { ...event, tier: "device" });
    // A worker's cache has each block once, however often it was stored: forget all of it.
    for (const key of removed) this.#forget(lane, key);
  }

  #forget(lane: number, key: bigint): void {
    const hashes = BigUint64Array.of(key);
    const event = { kind: "removed", hashes, tier: "device" } as const;
    while (this.#index.apply(lane, event).applied > 0);
  }

  /** Chooses a worker and books it. */
  place(prompt: Prompt): { worker: string; booking: Booking } {
    const tokens = prompt.row.input_length;
    const { policy, weights, workers } = this.#options;
    let worker: string;
    let prefillTokens = tokens;
    if (policy === "cost") {
      const matches = withSpeculation(this.#index.match(prompt), this.#speculative.match(prompt));
      const overlaps = new Map(matches.map((match) => [match.worker, match]));
      const candidates = [...this.#lanes.keys()].map((id) => {
        const rank = { worker: id, dpRank: 0 };
        return { ...rank, load: this.#book.load(rank), overlap: overlaps.get(id) };
      });
      const weighed = { weights: { ...poolWeights(BLOCK), ...weights } };
      const choice = choose(candidates, { tokens, blockSize: BLOCK }, weighed, this.#random);
      worker = choice.candidate.worker;
      prefillTokens = choice.cost.prefillTokens;
      this.#speculative.insert({ worker, dpRank: 0 }, prompt);
    } else {
      const at = policy === "random"
        ? Math.floor(this.#random() * workers)
        : this.#turn++ % workers;
      worker = `w${at}`;
    }
    const promptBlocks = Math.ceil(tokens / BLOCK);
    const booking = this.#book.book({ worker, dpRank: 0 }, { prefillTokens, promptBlocks });
    return { worker, booking };
  }

  close(): void {
    this.#speculative.close();
  }
}

/** Plays a trace; the same options give the same result. */
export async function playTrace(
  rows: readonly TraceRow[],
  options: FleetOptions,
): Promise<FleetResult> {
  const timeline = new Timeline();
  const random = seeded(1);
  const routers = await Promise.all(
    Array.from({ length: options.routers }, () => Router.create(timeline, options, random)),
  );
  const workers = new Map<string, Worker>();
  for (let i = 0; i < options.workers; i++) {
    const tell: Tell = (worker, stored, removed) => {
      for (const router of routers) router.hear(worker.id, stored, removed);
    };
    workers.set(`w${i}`, new Worker(`w${i}`, timeline, options.cacheBlocks, tell));
  }
  let blocks = 0, hitBlocks = 0;
  const ttfts: number[] = [];
  for (const [i, row] of rows.entries()) {
    timeline.at(row.timestamp / 1000 / options.speed, () => {
      const router = routers[i % routers.length];
      if (router === undefined) return;
      const arrived = timeline.now;
      const prompt = promptOf(row, router);
      const { worker, booking } = router.place(prompt);
      blocks += prompt.locals.length;
      workers.get(worker)?.prefill(prompt, (hits) => {
        hitBlocks += hits;
        ttfts.push(timeline.now - arrived);
        booking.prefillComplete();
        timeline.at(
          timeline.now + row.output_length * DECODE_S_PER_TOKEN,
          () => booking.release(),
        );
      });
    });
  }
  timeline.run();
  for (const router of routers) router.close();
  return {
    hit_percent: 100 * hitBlocks / blocks,
    mean_ttft_s: ttfts.reduce((sum, one) => sum + one, 0) / ttfts.length,
    p90_ttft_s: percentile(ttfts, 0.9),
  };
}

/** The blocks of a row as real tokens would give them: block `h` is the tokens h * 512 + 0..511. */
function promptOf(row: TraceRow, router: Router): Prompt {
  const tokens = new Uint32Array(row.hash_ids.length * BLOCK);
  let at = 0;
  for (const id of row.hash_ids) {
    for (let j = 0; j < BLOCK; j++) tokens[at++] = id * BLOCK + j;
  }
  const locals = router.hasher.locals(tokens, BLOCK);
  const parents = Int32Array.from(locals, (_, i) => i - 1);
  return { row, locals, keys: router.hasher.chainKeys(parents, locals) };
}
