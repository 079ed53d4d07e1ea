/**
 * A pool: several workers behind one model. Each request goes to the worker where it costs least,
 * by what the worker's cache holds of the prompt and by what it is busy with.
 *
 * Reading the prompt takes time; choosing does not (worker_choice.ts). A request of which no worker
 * has seen anything goes on to another; one that a worker has seen is never sent again.
 */

import { BatonError } from "../errors.ts";
import type { Exchange, Forward, ForwardOutcome } from "../proxy/exchange.ts";
import type { Service } from "../proxy/routes.ts";
import { upstreamFailure } from "../proxy/upstream_failure.ts";
import type { Clock, Http } from "../runtime/runtime.ts";
import { MAX_SESSION_BYTES } from "./affinity.ts";
import { mergedModels } from "./models_route.ts";
import { openAiErrorResponse } from "./openai_error.ts";
import { bytesOf, type PoolBytes, type ReadingOptions } from "./pool_bytes.ts";
import type { PoolMembers } from "./pool_members.ts";
import type { PromptFacts } from "./prompt_facts.ts";
import type { PromptContent, PromptTokens } from "./prompt_tokens.ts";
import type { RouteMetrics } from "./route_metrics.ts";
import type { Claim, WorkerChoice } from "./worker_choice.ts";
import type { WorkerWait } from "./worker_wait.ts";

export interface PoolServiceOptions extends ReadingOptions {
  readonly name: string;
  readonly mounts: readonly string[];
  readonly model: string;
  /** LoRA adapters that requests may name in place of the model. */
  readonly adapters: ReadonlySet<string>;
  /** Workers that one request is tried on, as long as none of them has seen anything of it. */
  readonly tries: number;
  readonly sessionHeaders: readonly string[];
  readonly clock: Clock;
  readonly http: Http;
  readonly members: PoolMembers;
  readonly choice: WorkerChoice;
  readonly wait: WorkerWait;
  readonly prompts: PromptTokens;
  readonly metrics: RouteMetrics;
}

/** Before workers that all refused a request are tried again; longer each time. */
const REFUSED_PAUSE_MS = 100;
/** Statuses by which a worker, or what stands before it, says that it cannot serve now. */
const ILL_STATUSES: ReadonlySet<number> = new Set([502, 503, 504]);

export class PoolService implements Service {
  readonly name: string;
  readonly mounts: readonly string[];
  readonly #options: PoolServiceOptions;

  constructor(options: PoolServiceOptions) {
    this.name = options.name;
    this.mounts = options.mounts;
    this.#options = options;
  }

  /** Before there is any worker a request waits as it does for a worker. */
  startHoldMs(): number {
    return this.#options.wait.timeoutMs;
  }

  /** Every error of our own is answered in OpenAI's shape. */
  async handle(exchange: Exchange, forward: Forward): Promise<void> {
    try {
      const bytes = bytesOf(exchange, forward, this.#options);
      if (exchange.method === "POST") await this.#complete(exchange, bytes);
      else await this.#forwardPlain(exchange, bytes);
    } catch (error) {
      this.#options.metrics.refused(error instanceof BatonError ? error.code : "internal");
      exchange.respond(openAiErrorResponse(error));
    }
  }

  async #complete(exchange: Exchange, bytes: PoolBytes): Promise<void> {
    const { prompts, choice, wait } = this.#options;
    const deadlineMs = wait.deadline();
    // Before the body is read: what waits stays in the client's socket.
    await this.#someWorker(exchange, deadlineMs);
    const facts = await bytes.readPrompt();
    const lora = this.#adapterOf(facts);
    const [any] = choice.usable();
    const content = { ...await prompts.read(facts, any?.url), ...lora };
    const session = this.#sessionOf(exchange, facts);
    await this.#forwardToSome(exchange, bytes, { deadlineMs, content, session });
  }

  /** What has no body to choose by; other than the models it goes to the least busy worker. */
  async #forwardPlain(exchange: Exchange, bytes: PoolBytes): Promise<void> {
    if (exchange.method === "GET" && exchange.path.endsWith("/models")) {
      const { http, clock, model, choice } = this.#options;
      const options = { http, clock, model, path: exchange.path };
      return exchange.respond(await mergedModels(options, choice.usable()));
    }
    const deadlineMs = this.#options.wait.deadline();
    const session = this.#sessionOf(exchange, undefined);
    await this.#forwardToSome(exchange, bytes, { deadlineMs, session });
  }

  async #forwardToSome(
    exchange: Exchange,
    bytes: PoolBytes,
    wish: {
      readonly deadlineMs: number;
      readonly session: string | undefined;
      readonly content?: PromptContent;
    },
  ): Promise<void> {
    const { choice, tries, metrics, clock } = this.#options;
    const { session, content } = wish;
    const tried = new Set<string>();
    for (let attempt = 1; !exchange.finished; attempt += 1) {
      await this.#someWorker(exchange, wish.deadlineMs);
      if (exchange.finished) return;
      const claim = choice.claim(exchange.requestId, { content, session, tried });
      exchange.note({
        worker: claim.worker.id,
        choice: claim.reason,
        ...(content === undefined ? {} : {
          prompt_tokens: claim.promptTokens,
          cached_tokens: claim.cachedTokens,
        }),
      });
      const outcome = await this.#forwardTo(bytes, claim);
      if (outcome.result !== "upstream_failed" || outcome.status !== 0) return;
      const reason = outcome.reason ?? "upstream_reset";
      if (!outcome.retriable) throw upstreamFailure(reason, "the worker");
      if (attempt >= tries) {
        throw new BatonError("no_worker", "no worker takes connections", { retryAfterS: 1 });
      }
      metrics.retried(reason);
      tried.add(claim.worker.id);
      if (choice.usable(tried).length > 0) continue;
      // All of them refused: a restart may have come between, so the same are asked once more.
      await new Promise<void>((resolve) => void clock.after(REFUSED_PAUSE_MS * attempt, resolve));
      tried.clear();
    }
  }

  /** One try; what it holds is released, and what it says about the worker is noted. */
  async #forwardTo(
    bytes: PoolBytes,
    { worker, lease, booking, session, cachedTokens }: Claim,
  ): Promise<ForwardOutcome> {
    const moved = await bytes.move(lease, () => booking.prefillComplete()).finally(() => {
      booking.release();
      session?.release();
    });
    const { outcome, status } = moved;
    if (outcome.result === "upstream_failed") {
      const reason = outcome.reason ?? "upstream_failed";
      worker.failed(reason);
      if (reason === "upstream_connect_failed") this.#options.choice.forgetSupposed(worker.id);
    } else if (ILL_STATUSES.has(status)) worker.failed(`status_${status}`);
    else if (outcome.result === "complete") worker.answered();
    if (moved.cachedTokens !== undefined) {
      this.#options.metrics.reported(moved.cachedTokens, cachedTokens);
    }
    return outcome;
  }

  /** Returns at once while there is a worker, or no client; throws `no_worker` after the deadline. */
  async #someWorker(exchange: Exchange, deadlineMs: number): Promise<void> {
    const { members, wait } = this.#options;
    while (!members.anyAvailable && !exchange.finished) await wait.wait(exchange, deadlineMs);
  }

  #adapterOf({ model }: PromptFacts): { lora?: string } {
    if (model === undefined || model === this.#options.model) return {};
    if (this.#options.adapters.has(model)) return { lora: model };
    throw new BatonError("unknown_model", `the model ${model} does not exist`, {
      detail: { param: "model" },
    });
  }

  /** An id that is too long to be remembered names no session. */
  #sessionOf(exchange: Exchange, facts: PromptFacts | undefined): string | undefined {
    let session = facts?.session;
    for (const name of this.#options.sessionHeaders) {
      const value = exchange.header(name);
      if (value === undefined || value === "") continue;
      session = value;
      break;
    }
    if (session === undefined || session.length > MAX_SESSION_BYTES) return undefined;
    const { length } = new TextEncoder().encode(session);
    return length <= MAX_SESSION_BYTES ? session : undefined;
  }
}
