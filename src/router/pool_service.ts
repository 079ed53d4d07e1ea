/**
 * A pool: several workers behind one model. Each request goes to the worker where it costs least,
 * by what the worker's cache holds of the prompt and by what it is busy with.
 *
 * Reading the prompt takes time; choosing does not (worker_choice.ts). A request of which no worker
 * has seen anything goes on to another; one that a worker has seen is never sent again.
 */

import { BatonError } from "../errors.ts";
import type { Exchange, Forward, ForwardOutcome, HeaderLines } from "../proxy/exchange.ts";
import type { Service } from "../proxy/routes.ts";
import { upstreamFailure } from "../proxy/upstream_failure.ts";
import type { Clock, Http } from "../runtime/runtime.ts";
import { MAX_SESSION_BYTES } from "./affinity.ts";
import { mergedModels } from "./models_route.ts";
import { openAiErrorResponse } from "./openai_error.ts";
import { type OpenAiRequest, readOpenAiRequest } from "./openai_request.ts";
import type { PoolMembers } from "./pool_members.ts";
import type { PromptContent, PromptTokens } from "./prompt_tokens.ts";
import type { RouteMetrics } from "./route_metrics.ts";
import { UsageReader } from "./usage_reader.ts";
import type { Claim, WorkerChoice } from "./worker_choice.ts";
import type { WorkerWait } from "./worker_wait.ts";

export interface PoolServiceOptions {
  readonly name: string;
  readonly mounts: readonly string[];
  readonly model: string;
  /** LoRA adapters that requests may name in place of the model. */
  readonly adapters: ReadonlySet<string>;
  readonly maxBodyBytes: number;
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
      if (exchange.method === "POST") await this.#complete(exchange, forward);
      else await this.#forwardPlain(exchange, forward);
    } catch (error) {
      this.#options.metrics.refused(error instanceof BatonError ? error.code : "internal");
      exchange.respond(openAiErrorResponse(error));
    }
  }

  async #complete(exchange: Exchange, forward: Forward): Promise<void> {
    const { maxBodyBytes, prompts, choice, wait } = this.#options;
    const deadlineMs = wait.deadline();
    // Before the body is read: what waits stays in the client's socket.
    await this.#someWorker(exchange, deadlineMs);
    const body = await exchange.readBody(maxBodyBytes);
    const request = readOpenAiRequest(body);
    const lora = this.#adapterOf(request);
    const [any] = choice.usable();
    const content = { ...await prompts.read(request, any?.url), ...lora };
    const session = this.#sessionOf(exchange, request);
    await this.#forwardToSome(exchange, forward, { deadlineMs, body, content, session });
  }

  /** What has no body to choose by; other than the models it goes to the least busy worker. */
  async #forwardPlain(exchange: Exchange, forward: Forward): Promise<void> {
    if (exchange.method === "GET" && exchange.path.endsWith("/models")) {
      const { http, clock, model, choice } = this.#options;
      const options = { http, clock, model, path: exchange.path };
      return exchange.respond(await mergedModels(options, choice.usable()));
    }
    const deadlineMs = this.#options.wait.deadline();
    const session = this.#sessionOf(exchange, undefined);
    await this.#forwardToSome(exchange, forward, { deadlineMs, session });
  }

  async #forwardToSome(
    exchange: Exchange,
    forward: Forward,
    wish: {
      readonly deadlineMs: number;
      readonly session: string | undefined;
      readonly body?: Uint8Array;
      readonly content?: PromptContent;
    },
  ): Promise<void> {
    const { choice, tries, metrics, clock } = this.#options;
    const { session, content, body } = wish;
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
      const outcome = await this.#forwardTo(exchange, forward, claim, body);
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
    exchange: Exchange,
    forward: Forward,
    { worker, lease, booking, session, cachedTokens }: Claim,
    body: Uint8Array | undefined,
  ): Promise<ForwardOutcome> {
    let status = 0;
    let usage: UsageReader | undefined;
    let isFirst = true;
    const outcome = await forward(exchange, lease, {
      ...(body === undefined ? {} : { body }),
      returnFailure: true,
      onHead: (found, headers) => {
        status = found;
        if (body !== undefined && found === 200 && isPlain(headers)) usage = new UsageReader();
      },
      onBody: (chunk) => {
        if (isFirst) booking.prefillComplete();
        isFirst = false;
        usage?.add(chunk);
      },
    }).finally(() => {
      booking.release();
      session?.release();
    });
    if (outcome.result === "upstream_failed") {
      const reason = outcome.reason ?? "upstream_failed";
      worker.failed(reason);
      if (reason === "upstream_connect_failed") this.#options.choice.forgetSupposed(worker.id);
    } else if (ILL_STATUSES.has(status)) worker.failed(`status_${status}`);
    else if (outcome.result === "complete") worker.answered();
    const reported = outcome.result === "complete" ? usage?.cachedTokens() : undefined;
    if (reported !== undefined) this.#options.metrics.reported(reported, cachedTokens);
    return outcome;
  }

  /** Returns at once while there is a worker, or no client; throws `no_worker` after the deadline. */
  async #someWorker(exchange: Exchange, deadlineMs: number): Promise<void> {
    const { members, wait } = this.#options;
    while (!members.anyAvailable && !exchange.finished) await wait.wait(exchange, deadlineMs);
  }

  #adapterOf({ model }: OpenAiRequest): { lora?: string } {
    if (model === undefined || model === this.#options.model) return {};
    if (this.#options.adapters.has(model)) return { lora: model };
    throw new BatonError("unknown_model", `the model ${model} does not exist`, {
      detail: { param: "model" },
    });
  }

  /** An id that is too long to be remembered names no session. */
  #sessionOf(exchange: Exchange, request: OpenAiRequest | undefined): string | undefined {
    let session = request?.session;
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

function isPlain(headers: HeaderLines): boolean {
  for (let at = 0; at < headers.length; at += 2) {
    if (headers[at]?.toLowerCase() === "content-encoding") return false;
  }
  return true;
}
