/**
 * How busy workers were by what another replica gave them, told by its dump.
 *
 * Nobody tells us when those requests end. So what was told counts half after half a minute, a
 * quarter after a minute, and nothing after some minutes: a joiner does not take every worker for
 * idle, and what a peer says, true or not, is soon without effect.
 */

import type { Clock } from "../runtime/runtime.ts";
import type { WorkerRank } from "./choice.ts";
import { NO_LOAD, type WorkerLoad } from "./cost.ts";

const HALF_LIFE_MS = 30_000;
/** Five half-lives; less than a thirtieth is left by then. */
const EXPIRY_MS = 150_000;

interface Told {
  readonly load: WorkerLoad;
  /** Monotonic. */
  readonly at: number;
}

export class InheritedLoad {
  readonly #clock: Clock;
  readonly #told = new Map<string, Told & WorkerRank>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Takes what was told about a rank, in place of what was told before. */
  tell(rank: WorkerRank, load: WorkerLoad): void {
    this.#told.set(nameOf(rank), { ...rank, load, at: this.#clock.monotonic() });
  }

  /** What is left of it now. */
  of(rank: WorkerRank): WorkerLoad {
    if (this.#told.size === 0) return NO_LOAD;
    const name = nameOf(rank);
    const told = this.#told.get(name);
    if (told === undefined) return NO_LOAD;
    const ageMs = this.#clock.monotonic() - told.at;
    if (ageMs >= EXPIRY_MS) {
      this.#told.delete(name);
      return NO_LOAD;
    }
    const left = 0.5 ** (ageMs / HALF_LIFE_MS);
    const { prefillTokens, decodeBlocks, requests } = told.load;
    return {
      prefillTokens: prefillTokens * left,
      decodeBlocks: decodeBlocks * left,
      requests: requests * left,
    };
  }

  /** A worker that is gone, and comes back, has nothing of it. */
  forget(worker: string): void {
    for (const [name, told] of this.#told) if (told.worker === worker) this.#told.delete(name);
  }
}

function nameOf({ worker, dpRank }: WorkerRank): string {
  return `${dpRank} ${worker}`;
}
