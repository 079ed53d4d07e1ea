/**
 * The choice for one request: what each worker holds of the prompt, which of them may be chosen, and
 * the claim. All of it is one step without `await`, so the choice is true when it is made.
 */

import { BatonError } from "../errors.ts";
import type { ApproximateIndex } from "../kv/approximate.ts";
import { withSpeculation } from "../kv/approximate.ts";
import type { IndexStore } from "../kv/create_kv_store.ts";
import type { Match } from "../kv/prefix_index.ts";
import type { Lease } from "../proxy/target.ts";
import type { Clock, Random } from "../runtime/runtime.ts";
import type { SessionAffinity, SessionLease } from "./affinity.ts";
import { type Candidate, type Choice, type ChoiceOptions, choose } from "./choice.ts";
import { type CostWeights, NO_OVERLAP, type Overlap, poolWeights } from "./cost.ts";
import type { Booking, LoadBook } from "./load.ts";
import type { PoolMembers } from "./pool_members.ts";
import type { PoolWorker } from "./pool_worker.ts";
import { BYTES_PER_TOKEN, type PromptContent } from "./prompt_tokens.ts";
import type { RouteMetrics } from "./route_metrics.ts";

export interface WorkerChoiceOptions {
  readonly model: string;
  readonly group: string;
  readonly blockSize: number;
  readonly textChunkBytes: number;
  readonly weights: Partial<CostWeights>;
  readonly temperature: number;
  readonly clock: Clock;
  readonly random: Random;
  readonly members: PoolMembers;
  readonly load: LoadBook;
  readonly sessions: SessionAffinity;
  readonly metrics: RouteMetrics;
  /** Blocks that workers say they hold. */
  readonly store: IndexStore;
  /** Blocks that were routed a moment ago, until events confirm them. */
  readonly speculative: ApproximateIndex;
  /** Blocks that were routed to workers that publish no events. */
  readonly decisions: ApproximateIndex;
  /** Text of prompts whose tokens are not known. */
  readonly texts: ApproximateIndex;
}

/** A prompt, or the hashes of its blocks with the number of its tokens. */
export type ChoiceContent =
  | PromptContent
  | { readonly locals: BigUint64Array; readonly promptTokens: number };

/** A candidate and the worker that it is. */
export interface Ranked extends Candidate {
  readonly at: PoolWorker;
}

/** What is asked for. Without content the request goes to the least busy worker. */
export interface Wish {
  readonly content: ChoiceContent | undefined;
  readonly session: string | undefined;
  /** Workers that had this request already. */
  readonly tried: ReadonlySet<string>;
}

/** A worker, claimed and booked. All three are released when the request has ended. */
export interface Claim {
  readonly worker: PoolWorker;
  readonly lease: Lease;
  readonly booking: Booking;
  readonly session: SessionLease | undefined;
  /** For the access log. */
  readonly reason: string;
  readonly promptTokens: number;
  readonly cachedTokens: number;
}

export class WorkerChoice {
  readonly #options: WorkerChoiceOptions;
  readonly #weights: CostWeights;

  constructor(options: WorkerChoiceOptions) {
    this.#options = options;
    this.#weights = { ...poolWeights(options.blockSize), ...options.weights };
  }

  /** Workers that may be chosen; all that are left when every one of them seems to be ill. */
  usable(tried: ReadonlySet<string> = new Set()): PoolWorker[] {
    const left = this.#options.members.list()
      .filter((worker) => worker.available && !tried.has(worker.id));
    const healthy = left.filter((worker) => worker.healthy);
    return healthy.length > 0 ? healthy : left;
  }

  /**
   * Chooses, and changes nothing. Throws `no_worker` when none is left, `too_many_requests` when all
   * that are left are full.
   */
  choose(
    content: ChoiceContent | undefined,
    tried: ReadonlySet<string> = new Set(),
    options: ChoiceOptions = {},
  ): Choice<Ranked> {
    const { blockSize, random, temperature } = this.#options;
    const candidates = this.ranked(content, this.usable(tried));
    return choose(candidates, { tokens: promptTokens(content), blockSize }, {
      temperature,
      ...options,
      weights: { ...this.#weights, ...options.weights },
    }, () => random.number());
  }

  /** Workers with their load and what they hold of the content. */
  ranked(content: ChoiceContent | undefined, workers: readonly PoolWorker[]): Ranked[] {
    const { load } = this.#options;
    const overlaps = content === undefined ? undefined : this.#overlaps(content);
    return workers.map((worker) => ({
      worker: worker.id,
      dpRank: worker.dpRank,
      at: worker,
      load: load.load({ worker: worker.id, dpRank: worker.dpRank }),
      overlap: overlaps?.get(worker.id),
      overloaded: worker.full,
    }));
  }

  /** Chooses, claims and books. Throws as `choose` does. */
  claim(requestId: string, { content, session, tried }: Wish): Claim {
    const { blockSize, clock, load, sessions, metrics } = this.#options;
    const preferred = session === undefined ? undefined : sessions.preferred(session);
    const { candidate, cost, reason } = this.choose(content, tried, { preferred });
    const lease = candidate.at.target.claim(requestId, clock.monotonic());
    if (lease === undefined) throw new BatonError("no_worker", "the worker is going away");
    const tokens = promptTokens(content);
    const booking = load.book(candidate, {
      prefillTokens: cost.prefillTokens,
      promptBlocks: Math.ceil(tokens / blockSize),
    });
    if (content !== undefined) this.remember(candidate.at, content);
    const cached = Math.round((candidate.overlap ?? NO_OVERLAP).device * blockSize);
    const cachedTokens = Math.min(cached, tokens);
    metrics.decided(reason);
    if (content !== undefined) metrics.predicted(tokens, cachedTokens);
    return {
      worker: candidate.at,
      lease,
      booking,
      session: session === undefined ? undefined : sessions.hold(session, candidate),
      reason,
      promptTokens: tokens,
      cachedTokens,
    };
  }

  /** Its process is gone, and with it whatever was only supposed to be in its cache. */
  forgetSupposed(worker: string): void {
    const { speculative, decisions, texts } = this.#options;
    for (const index of [speculative, decisions, texts]) index.removeWorker(worker);
  }

  /** In blocks of the pool, by worker: the best of its ranks. */
  #overlaps(content: ChoiceContent): Map<string, Overlap> {
    const { store, model, group, blockSize, textChunkBytes } = this.#options;
    const { speculative, decisions, texts } = this.#options;
    if ("text" in content) {
      const blocksPerChunk = textChunkBytes / BYTES_PER_TOKEN / blockSize;
      return bestByWorker(texts.match(content), blocksPerChunk);
    }
    const known = store.partition(model, group)?.index.match(content) ?? [];
    const supposed = decisions.match(content).filter((match) => !this.#publishes(match));
    const routed = withSpeculation(known, speculative.match(content));
    return bestByWorker(withSpeculation(routed, supposed), 1);
  }

  /** It will soon hold this. */
  remember(worker: PoolWorker, content: ChoiceContent): void {
    const { speculative, decisions, texts } = this.#options;
    const rank = { worker: worker.id, dpRank: worker.dpRank };
    if ("text" in content) texts.insert(rank, content);
    else if (this.#publishes(rank)) speculative.insert(rank, content);
    else decisions.insert(rank, content);
  }

  /** Has it ever told what it holds? */
  #publishes(rank: { readonly worker: string; readonly dpRank: number }): boolean {
    const { store, model, group } = this.#options;
    const lane = store.lane({ worker: rank.worker, dpRank: rank.dpRank, model, group });
    if (lane === undefined) return false;
    return lane.cursor !== undefined || lane.isUnnumbered || lane.blocks > 0;
  }
}

/** Estimated for a prompt that is known by its text. */
export function promptTokens(content: ChoiceContent | undefined): number {
  if (content === undefined) return 0;
  if ("tokens" in content) return content.tokens.length;
  if ("locals" in content) return content.promptTokens;
  return Math.ceil(content.text.length / BYTES_PER_TOKEN);
}

function bestByWorker(matches: readonly Match[], scale: number): Map<string, Overlap> {
  const best = new Map<string, Overlap>();
  for (const match of matches) {
    if (match.device < (best.get(match.worker)?.device ?? 0)) continue;
    best.set(match.worker, {
      device: match.device * scale,
      host: match.host * scale,
      disk: match.disk * scale,
      external: match.external * scale,
    });
  }
  return best;
}
