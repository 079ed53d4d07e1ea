/**
 * A pool's choice for others who forward the requests themselves: select, reserve, report, release.
 *
 * What is reserved is load like that of the requests that we forward, in the same book.
 */

import { BatonError } from "../errors.ts";
import type { ChoiceOptions } from "./choice.ts";
import type { Cost } from "./cost.ts";
import { NO_OVERLAP, type Overlap } from "./cost.ts";
import type { LoadBook } from "./load.ts";
import type { PoolMembers } from "./pool_members.ts";
import type { PoolWorker } from "./pool_worker.ts";
import type { Reservations, Selection } from "./reservations.ts";
import { type ChoiceContent, promptTokens, type WorkerChoice } from "./worker_choice.ts";

export interface SelectorOptions {
  readonly model: string;
  readonly group: string;
  readonly blockSize: number;
  readonly members: PoolMembers;
  readonly choice: WorkerChoice;
  readonly load: LoadBook;
  readonly reservations: Reservations;
}

export interface Selected {
  readonly worker: PoolWorker;
  readonly overlap: Overlap;
  readonly cost: Cost;
  readonly promptTokens: number;
  readonly blockSize: number;
}

export class Selector {
  readonly model: string;
  readonly group: string;
  readonly blockSize: number;
  readonly reservations: Reservations;
  readonly load: LoadBook;
  readonly #members: PoolMembers;
  readonly #choice: WorkerChoice;

  constructor(options: SelectorOptions) {
    this.model = options.model;
    this.group = options.group;
    this.blockSize = options.blockSize;
    this.reservations = options.reservations;
    this.load = options.load;
    this.#members = options.members;
    this.#choice = options.choice;
  }

  /** Chooses and books nothing; with a name the selection can be reserved later. */
  select(content: ChoiceContent, options: ChoiceOptions, id?: string): Selected {
    const selected = this.#choose(content, options);
    if (id !== undefined) this.reservations.remember(id, selectionOf(selected, content));
    return selected;
  }

  /** Chooses and books in one step. Throws `conflict` for a name that is booked. */
  selectAndReserve(content: ChoiceContent, options: ChoiceOptions, id: string): Selected {
    const selected = this.#choose(content, options);
    this.reservations.reserve(id, selectionOf(selected, content));
    this.#choice.remember(selected.worker, content);
    return selected;
  }

  /** The worker of a rank that is to be booked. Throws `not_found` for one that is not there. */
  worker(id: string): PoolWorker {
    const worker = this.#members.get(id);
    if (worker?.available) return worker;
    throw new BatonError("not_found", "no such worker that can take requests");
  }

  /** All workers with their load and what they hold of the content, by name. */
  ranked(content: ChoiceContent | undefined) {
    const workers = this.#members.list();
    return this.#choice.ranked(content, workers).sort((a, b) => a.worker < b.worker ? -1 : 1);
  }

  #choose(content: ChoiceContent, options: ChoiceOptions): Selected {
    const { candidate, cost } = this.#choice.choose(content, new Set(), options);
    return {
      worker: candidate.at,
      overlap: candidate.overlap ?? NO_OVERLAP,
      cost,
      promptTokens: promptTokens(content),
      blockSize: this.blockSize,
    };
  }
}

function selectionOf(selected: Selected, content: ChoiceContent): Selection {
  const { worker, cost, blockSize } = selected;
  return {
    rank: { worker: worker.id, dpRank: worker.dpRank },
    promptTokens: selected.promptTokens,
    size: {
      prefillTokens: cost.prefillTokens,
      promptBlocks: Math.ceil(selected.promptTokens / blockSize),
    },
    ...("locals" in content ? { keys: content.locals } : {}),
  };
}
