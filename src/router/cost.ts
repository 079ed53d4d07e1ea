/**
 * What it costs to give a request to a worker, in blocks of prefill: the work already queued there,
 * plus the part of this prompt that it does not hold, plus the load of what it is decoding.
 *
 * Terms and defaults are those of Dynamo's router (`overlap_score_credit` 1, host 0.75, disk 0.25),
 * so that its tuning carries over.
 */

export interface CostWeights {
  /** Weight of all prefill blocks. */
  readonly prefillScale: number;
  /** Weight of all credit for blocks that are held. */
  readonly creditScale: number;
  /** Credit for a block on the worker's device. */
  readonly deviceCredit: number;
  readonly hostCredit: number;
  readonly diskCredit: number;
  /** Credit for a block in external (shared) storage. */
  readonly externalCredit: number;
  /**
   * How fast the credit for device blocks fades as a worker's prefill queue grows beyond the
   * shortest one, per request length of excess; 0 = never.
   */
  readonly creditDecay: number;
  /** Weight of the blocks of requests in progress. */
  readonly decodeWeight: number;
  /** Blocks that each request in progress weighs, on top of its decode blocks. */
  readonly activeRequestWeight: number;
  /** Whether queued prefill counts at all; false for pools that only decode. */
  readonly trackPrefill: boolean;
}

export const DEFAULT_WEIGHTS: CostWeights = {
  prefillScale: 1,
  creditScale: 1,
  deviceCredit: 1,
  hostCredit: 0.75,
  diskCredit: 0.25,
  externalCredit: 0,
  creditDecay: 0,
  decodeWeight: 1,
  activeRequestWeight: 0,
  trackPrefill: true,
};

/**
 * The weights of a pool. Against the defaults, found by replaying traces (the routing bench): what is
 * being decoded delays a prompt far less than what waits for prefill, and a held block is worth more
 * than the time to compute it, since computing it elsewhere also takes a place in that cache.
 */
export function poolWeights(blockSize: number): CostWeights {
  return {
    ...DEFAULT_WEIGHTS,
    creditScale: 2,
    decodeWeight: 0.02,
    activeRequestWeight: ACTIVE_REQUEST_TOKENS / blockSize,
  };
}

/** Tokens of prefill that a request in progress weighs as much as. */
const ACTIVE_REQUEST_TOKENS = 256;

/** What a worker is busy with. */
export interface WorkerLoad {
  /** Tokens of prompts that wait for prefill or are in it, without what was cached. */
  readonly prefillTokens: number;
  /** Blocks of requests in progress. */
  readonly decodeBlocks: number;
  readonly requests: number;
}

export const NO_LOAD: WorkerLoad = { prefillTokens: 0, decodeBlocks: 0, requests: 0 };

/** How many leading blocks of a prompt a worker holds; each tier includes the faster ones. */
export interface Overlap {
  readonly device: number;
  readonly host: number;
  readonly disk: number;
  readonly external: number;
}

export const NO_OVERLAP: Overlap = { device: 0, host: 0, disk: 0, external: 0 };

export interface Prompt {
  /** Tokens of the prompt; estimated when it is not tokenised. */
  readonly tokens: number;
  readonly blockSize: number;
}

export interface Cost {
  /** Lower is better. */
  readonly total: number;
  /** Weighted blocks that need no prefill. */
  readonly credit: number;
  /** Prompt tokens to compute, by the weighted credit. */
  readonly prefillTokens: number;
  /** Decode blocks of the worker with this request. */
  readonly decodeBlocks: number;
}

/**
 * The cost of one worker. `leastPrefillTokens` is the shortest prefill queue of all candidates (only
 * needed for `creditDecay`). `taintWeight` is the sum of the weights of preferred taints it matches.
 */
export function costOf(
  load: WorkerLoad | undefined,
  overlap: Overlap,
  prompt: Prompt,
  weights: CostWeights,
  leastPrefillTokens: number,
  taintWeight: number,
): Cost {
  const { tokens, blockSize } = prompt;
  const requestBlocks = Math.ceil(tokens / blockSize);
  const queued = load?.prefillTokens ?? 0;
  let decay = 1;
  if (weights.creditDecay !== 0 && requestBlocks > 0) {
    const excess = (queued - leastPrefillTokens) / blockSize / requestBlocks;
    decay = 1 / (1 + weights.creditDecay * excess);
  }
  const credit = weights.deviceCredit * decay * overlap.device +
    weights.hostCredit * (overlap.host - overlap.device) +
    weights.diskCredit * (overlap.disk - overlap.host) +
    weights.externalCredit * (overlap.external - overlap.disk);
  const decodeBlocks = (load?.decodeBlocks ?? 0) + requestBlocks;
  const decode = weights.decodeWeight * decodeBlocks;
  const requests = weights.activeRequestWeight * (load?.requests ?? 0);
  let total: number;
  if (weights.trackPrefill) {
    const prefillBlocks = (queued + tokens) / blockSize - weights.creditScale * credit;
    total = weights.prefillScale * Math.max(0, prefillBlocks) + decode + requests;
  } else {
    total = (credit > 0 ? Math.max(0, decode - weights.creditScale * credit) : decode) + requests;
  }
  if (taintWeight !== 0) total *= Math.exp(-Math.tanh(taintWeight));
  const prefillTokens = Math.max(0, Math.round(tokens - credit * blockSize));
  return { total, credit, prefillTokens, decodeBlocks };
}
