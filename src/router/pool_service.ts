/**
 * A pool: several workers behind one model. Each request goes to the worker where it costs least,
 * by what the worker's cache holds of the prompt and by what it is busy with.
 *
 * Reading the prompt takes time; choosing does not: from the look-up to the lease and the booking
 * there is no `await`, so the choice is true when it is made.
 */

import { BatonError } from "../errors.ts";
import type { ApproximateIndex } from "../kv/approximate.ts";
import { withSpeculation } from "../kv/approximate.ts";
import type { IndexStore } from "../kv/create_kv_store.ts";
import type { Match } from "../kv/prefix_index.ts";
import type { Exchange, Forward } from "../proxy/exchange.ts";
import type { Service } from "../proxy/routes.ts";
import type { Lease } from "../proxy/target.ts";
import type { Clock, Http, Random } from "../runtime/runtime.ts";
import { SessionAffinity, type SessionLease } from "./affinity.ts";
import { type Candidate, choose, type WorkerRank } from "./choice.ts";
import { type CostWeights, poolWeights } from "./cost.ts";
import { type Booking, LoadBook } from "./load.ts";
import { mergedModels } from "./models_route.ts";
import { openAiErrorResponse } from "./openai_error.ts";
import { type OpenAiRequest, readOpenAiRequest } from "./openai_request.ts";
import type { PoolWorker } from "./pool_worker.ts";
import { BYTES_PER_TOKEN, type PromptContent, type PromptTokens } from "./prompt_tokens.ts";

export interface PoolServiceOptions {
  readonly name: string;
  readonly mounts: readonly string[];
  readonly model: string;
  readonly group: string;
  readonly blockSize: number;
  readonly maxBodyBytes: number;
  readonly weights?: Partial<CostWeights>;
  readonly clock: Clock;
  readonly random: Random;
  readonly http: Http;
  /** Blocks that workers say they hold. */
  readonly store: IndexStore;
  /** Blocks that were routed a moment ago, until events confirm them. */
  readonly speculative: ApproximateIndex;
  /** Text of prompts whose tokens are not known. */
  readonly texts: ApproximateIndex;
  readonly prompts: PromptTokens;
  readonly workers: () => Iterable<PoolWorker>;
}

/** Workers that one request is tried on, as long as none of them has seen anything of it. */
const MAX_TRIES = 3;
const SESSION_TTL_MS = 600_000;

interface Claim {
  readonly worker: PoolWorker;
  readonly lease: Lease;
  readonly booking: Booking;
  readonly session: SessionLease | undefined;
}

export class PoolService implements Service {
  readonly name: string;
  readonly mounts: readonly string[];
  readonly load = new LoadBook();
  readonly #options: PoolServiceOptions;
  readonly #sessions: SessionAffinity;

  constructor(options: PoolServiceOptions) {
    this.name = options.name;
    this.mounts = options.mounts;
    this.#options = options;
    this.#sessions = new SessionAffinity({ clock: options.clock, ttlMs: SESSION_TTL_MS });
  }

  /** Every error of our own is answered in OpenAI's shape. */
  async handle(exchange: Exchange, forward: Forward): Promise<void> {
    try {
      if (exchange.method === "POST") await this.#complete(exchange, forward);
      else await this.#forwardPlain(exchange, forward);
    } catch (error) {
      exchange.respond(openAiErrorResponse(error));
    }
  }

  async #complete(exchange: Exchange, forward: Forward): Promise<void> {
    const body = await exchange.readBody(this.#options.maxBodyBytes);
    const request = readOpenAiRequest(body);
    this.#checkModel(request);
    const [any] = this.#usable(new Set());
    const content = await this.#options.prompts.read(request, any?.url);
    const tried = new Set<string>();
    for (let attempt = 1; !exchange.finished; attempt += 1) {
      const claim = this.#claim(exchange, request, content, tried);
      const { worker, booking, session } = claim;
      let isFirst = true;
      const outcome = await forward(exchange, claim.lease, {
        body,
        returnFailure: true,
        onBody: () => {
          if (isFirst) booking.prefillComplete();
          isFirst = false;
        },
      }).finally(() => {
        booking.release();
        session?.release();
      });
      if (outcome.result === "complete") worker.answered();
      if (outcome.result !== "upstream_failed") return;
      worker.failed(outcome.reason ?? "upstream_failed");
      if (outcome.status !== 0) return;
      if (!outcome.retriable || attempt >= MAX_TRIES) throw failure(outcome.reason);
      tried.add(worker.id);
    }
  }

  /** What has no body to choose by; other than the models it goes to the least busy worker. */
  async #forwardPlain(exchange: Exchange, forward: Forward): Promise<void> {
    if (exchange.method === "GET" && exchange.path.endsWith("/models")) {
      const { http, clock, model } = this.#options;
      const options = { http, clock, model, path: exchange.path };
      return exchange.respond(await mergedModels(options, this.#usable(new Set())));
    }
    const { lease, booking } = this.#take(exchange, { tokens: 0, matches: [], tried: new Set() });
    await forward(exchange, lease).finally(() => booking.release());
  }

  #checkModel({ model }: OpenAiRequest): void {
    if (model === undefined || model === this.#options.model) return;
    throw new BatonError("unknown_model", `the model ${model} does not exist`, {
      detail: { param: "model" },
    });
  }

  #claim(
    exchange: Exchange,
    request: OpenAiRequest,
    content: PromptContent,
    tried: ReadonlySet<string>,
  ): Claim {
    const matches = this.#matches(content);
    const tokens = "tokens" in content
      ? content.tokens.length
      : Math.ceil(content.text.length / BYTES_PER_TOKEN);
    const session = exchange.header("x-session-id") ?? request.session;
    const claim = this.#take(exchange, { tokens, matches, tried, session });
    const { id, dpRank } = claim.worker;
    const rank = { worker: id, dpRank };
    if ("tokens" in content) this.#options.speculative.insert(rank, content);
    else this.#options.texts.insert(rank, content);
    return claim;
  }

  #matches(content: PromptContent): Match[] {
    const { store, model, group, speculative, texts } = this.#options;
    if (!("tokens" in content)) return texts.match(content);
    const known = store.partition(model, group)?.index.match(content) ?? [];
    return withSpeculation(known, speculative.match(content));
  }

  /** Chooses, claims and books in one step. */
  #take(
    exchange: Exchange,
    { tokens, matches, tried, session }: {
      tokens: number;
      matches: readonly Match[];
      tried: ReadonlySet<string>;
      session?: string | undefined;
    },
  ): Claim {
    const { blockSize, weights, clock, random } = this.#options;
    const overlaps = new Map(matches.map((match) => [rankKey(match), match]));
    const candidates = this.#usable(tried).map((worker): Candidate & { at: PoolWorker } => {
      const rank = { worker: worker.id, dpRank: worker.dpRank };
      return {
        ...rank,
        at: worker,
        load: this.load.load(rank),
        overlap: overlaps.get(rankKey(rank)),
      };
    });
    const preferred = session === undefined ? undefined : this.#sessions.preferred(session);
    const { candidate, cost, reason } = choose(
      candidates,
      { tokens, blockSize },
      { weights: { ...poolWeights(blockSize), ...weights }, preferred },
      () => random.number(),
    );
    const lease = candidate.at.target.claim(exchange.requestId, clock.monotonic());
    if (lease === undefined) throw new BatonError("no_worker", "the worker is going away");
    const booking = this.load.book(candidate, {
      prefillTokens: cost.prefillTokens,
      promptBlocks: Math.ceil(tokens / blockSize),
    });
    exchange.note({
      worker: candidate.worker,
      choice: reason,
      prompt_tokens: tokens,
      cached_blocks: candidate.overlap?.device ?? 0,
    });
    return {
      worker: candidate.at,
      lease,
      booking,
      session: session === undefined ? undefined : this.#sessions.hold(session, candidate),
    };
  }

  /** Workers that may be chosen; all that are left when every one of them seems to be ill. */
  #usable(tried: ReadonlySet<string>): PoolWorker[] {
    const left = [...this.#options.workers()].filter((worker) =>
      !tried.has(worker.id) && !worker.target.retired
    );
    const healthy = left.filter((worker) => worker.healthy);
    return healthy.length > 0 ? healthy : left;
  }
}

function rankKey({ worker, dpRank }: WorkerRank): string {
  return `${dpRank} ${worker}`;
}

function failure(reason: string | undefined): BatonError {
  switch (reason) {
    case "upstream_connect_failed":
    case "upstream_timeout":
    case "upstream_bad_response":
      return new BatonError(reason, "the worker did not answer");
    default:
      return new BatonError("upstream_reset", "the worker ended the connection");
  }
}
