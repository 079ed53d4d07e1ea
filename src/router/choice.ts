/**
 * The choice of a worker for one request: filters, then a pin or a preference, then the least cost.
 *
 * Synchronous and without state, so that choosing and booking are one step for the caller. A worker
 * that is unhealthy, excluded or full is left out by itself: it changes nothing for the others.
 */

import { BatonError } from "../errors.ts";
import {
  type Cost,
  costOf,
  type CostWeights,
  DEFAULT_WEIGHTS,
  NO_OVERLAP,
  type Overlap,
  type Prompt,
  type WorkerLoad,
} from "./cost.ts";

/** One data-parallel rank of one worker. */
export interface WorkerRank {
  readonly worker: string;
  readonly dpRank: number;
}

export interface Candidate extends WorkerRank {
  /** undefined = nothing is known about its load. */
  readonly load?: WorkerLoad | undefined;
  /** undefined = it holds nothing of the prompt. */
  readonly overlap?: Overlap | undefined;
  /** At capacity: not chosen while it lasts. */
  readonly overloaded?: boolean | undefined;
  readonly taints?: ReadonlySet<string> | undefined;
}

export interface ChoiceOptions {
  readonly weights?: Partial<CostWeights> | undefined;
  /**
   * 0 = least cost. Above, a draw with p proportional to exp(-(cost - least) / (spread x
   * temperature)): 1 is nearly even, 0.1 nearly always takes the best.
   */
  readonly temperature?: number | undefined;
  /** Costs that differ by no more than this many blocks are a tie. */
  readonly tieTolerance?: number | undefined;
  /** This rank or an error. Without `dpRank`: some rank of this worker. */
  readonly pinned?: { readonly worker: string; readonly dpRank?: number | undefined } | undefined;
  /** This rank if it is eligible, else whichever costs least (session affinity). */
  readonly preferred?: WorkerRank | undefined;
  /** Only these workers. */
  readonly allowed?: ReadonlySet<string> | undefined;
  /** Only workers with all of these taints. */
  readonly requiredTaints?: readonly string[] | undefined;
  /** Weights of taints that make a worker cheaper (or, negative, dearer), within 0.37 to 2.72. */
  readonly preferredTaints?: Readonly<Record<string, number>> | undefined;
}

export interface Choice<C extends Candidate> {
  readonly candidate: C;
  readonly cost: Cost;
  readonly reason: "pinned" | "preferred" | "cost";
}

/**
 * Chooses among the candidates. Throws `no_worker` (503) when no worker passes the filters,
 * `too_many_requests` (429) when those that do are all at capacity. Which of equals wins depends on
 * `random` only, not on the order of the candidates.
 */
export function choose<C extends Candidate>(
  candidates: Iterable<C>,
  prompt: Prompt,
  options: ChoiceOptions,
  random: () => number,
): Choice<C> {
  const eligible = eligibleOf(candidates, options);
  const weights = { ...DEFAULT_WEIGHTS, ...options.weights };
  const least = weights.creditDecay === 0
    ? 0
    : eligible.reduce((min, { load }) => Math.min(min, load?.prefillTokens ?? 0), Infinity);
  const costs = eligible.map((candidate) =>
    costOf(
      candidate.load,
      candidate.overlap ?? NO_OVERLAP,
      prompt,
      weights,
      least,
      taintWeight(candidate, options.preferredTaints),
    )
  );
  const take = (at: number, reason: Choice<C>["reason"]): Choice<C> => {
    const candidate = eligible[at], cost = costs[at];
    if (candidate === undefined || cost === undefined) throw new BatonError("no_worker", NOBODY);
    return { candidate, cost, reason };
  };
  const { pinned, preferred } = options;
  if (pinned === undefined && preferred !== undefined) {
    const at = eligible.findIndex((one) => same(one, preferred));
    if (at >= 0) return take(at, "preferred");
  }
  const totals = costs.map((cost) => cost.total);
  const temperature = options.temperature ?? 0;
  const at = temperature > 0
    ? drawByTemperature(eligible, totals, temperature, random)
    : drawLeast(eligible, totals, options.tieTolerance ?? 0, random);
  return take(at, pinned === undefined ? "cost" : "pinned");
}

const NOBODY = "no worker can take this request";

function same(a: WorkerRank, b: WorkerRank): boolean {
  return a.worker === b.worker && a.dpRank === b.dpRank;
}

function eligibleOf<C extends Candidate>(candidates: Iterable<C>, options: ChoiceOptions): C[] {
  const { pinned, allowed, requiredTaints } = options;
  const passing: C[] = [];
  let full = 0;
  for (const candidate of candidates) {
    if (pinned !== undefined) {
      if (candidate.worker !== pinned.worker) continue;
      if (pinned.dpRank !== undefined && candidate.dpRank !== pinned.dpRank) continue;
    }
    if (allowed !== undefined && !allowed.has(candidate.worker)) continue;
    if (requiredTaints?.some((taint) => !candidate.taints?.has(taint))) continue;
    if (candidate.overloaded) full += 1;
    else passing.push(candidate);
  }
  if (passing.length > 0) return passing;
  if (full === 0) {
    throw new BatonError("no_worker", NOBODY, {
      detail: { reason: "no_endpoints" },
      retryAfterS: 1,
    });
  }
  const reason = pinned === undefined ? "all_workers_overloaded" : "pinned_worker_overloaded";
  throw new BatonError("too_many_requests", "every worker that could take this request is full", {
    detail: { reason },
    retryAfterS: 1,
  });
}

function taintWeight(candidate: Candidate, preferred: ChoiceOptions["preferredTaints"]): number {
  if (preferred === undefined || candidate.taints === undefined) return 0;
  let sum = 0;
  for (const taint of candidate.taints) sum += preferred[taint] ?? 0;
  return sum;
}

function byName(a: WorkerRank, b: WorkerRank): number {
  return a.worker < b.worker ? -1 : a.worker > b.worker ? 1 : a.dpRank - b.dpRank;
}

/** Index of the least cost; one of the ties, each with the same chance. */
function drawLeast(
  candidates: readonly WorkerRank[],
  costs: readonly number[],
  tolerance: number,
  random: () => number,
): number {
  const least = costs.reduce((min, cost) => Math.min(min, cost), Infinity);
  const ties: number[] = [];
  for (const [at, cost] of costs.entries()) if (cost <= least + tolerance) ties.push(at);
  if (ties.length <= 1) return ties[0] ?? 0;
  ties.sort((a, b) => byName(candidates[a] as WorkerRank, candidates[b] as WorkerRank));
  return ties[Math.min(ties.length - 1, Math.floor(random() * ties.length))] ?? 0;
}

/** Index by softmax over the costs; halved before they are subtracted, so that none overflows. */
function drawByTemperature(
  candidates: readonly WorkerRank[],
  costs: readonly number[],
  temperature: number,
  random: () => number,
): number {
  const order = [...costs.keys()]
    .sort((a, b) => byName(candidates[a] as WorkerRank, candidates[b] as WorkerRank));
  const halves = order.map((at) => (costs[at] ?? 0) / 2);
  const least = Math.min(...halves);
  const spread = Math.max(...halves) - least;
  const odds = halves.map((half) =>
    spread === 0 ? 1 : Math.exp(-(half - least) / spread / temperature)
  );
  const draw = random() * odds.reduce((sum, one) => sum + one, 0);
  let reached = 0;
  for (const [at, one] of odds.entries()) {
    reached += one;
    if (reached >= draw) return order[at] ?? 0;
  }
  return order.at(-1) ?? 0;
}
