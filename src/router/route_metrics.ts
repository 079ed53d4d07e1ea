/**
 * What a pool's choices come to, as metrics. Made once for all pools; each counts under its name.
 */

import type { Metrics } from "../observe/metrics.ts";
import type { LoadBook } from "./load.ts";
import type { PoolWorker } from "./pool_worker.ts";

export interface RouteMetrics {
  /** A worker was chosen, and why. */
  decided(reason: string): void;
  /** A request was answered with an error of ours. */
  refused(code: string): void;
  /** A request goes on to another worker. */
  retried(reason: string): void;
  /** Where a prompt's content came from: request, local, worker, text. */
  read(source: string): void;
  /** Tokens of the prompt, and how many of them the chosen worker was taken to hold. */
  predicted(promptTokens: number, cachedTokens: number): void;
  /** How many of the prompt's tokens were cached, as the worker says; beside what was predicted. */
  reported(cachedTokens: number, predictedTokens: number): void;
}

/** `load` is read at each scrape. */
export function createRouteMetrics(
  metrics: Metrics,
  service: string,
  load: Pick<LoadBook, "loads">,
): RouteMetrics {
  const decisions = metrics.counter(
    "baton_route_decisions_total",
    "Requests that were given to a worker, by what decided.",
    ["service", "reason"],
  );
  const refusals = metrics.counter(
    "baton_route_refusals_total",
    "Requests of a pool that Baton answered with an error of its own, by code.",
    ["service", "code"],
  );
  const retries = metrics.counter(
    "baton_route_retries_total",
    "Requests that went on to another worker, by what the last one did.",
    ["service", "reason"],
  );
  const prompts = metrics.counter(
    "baton_route_prompts_total",
    "Prompts by where their tokens came from; text: they are not known.",
    ["service", "source"],
  );
  const prompt = metrics.counter(
    "baton_route_prompt_tokens_total",
    "Tokens of the prompts that were given to workers (estimated where only the text is known).",
    ["service"],
  );
  const cached = metrics.counter(
    "baton_route_cached_tokens_total",
    "Tokens of prompts that were cached: predicted at the choice, reported by the worker's usage, " +
      "and predicted for just those answers that reported.",
    ["service", "source"],
  );
  metrics.gauge(
    "baton_route_load",
    "What a worker is busy with: prefill_tokens, decode_blocks, requests.",
    ["service", "worker", "kind"],
  ).collect((gauge) => {
    for (const { worker, prefillTokens, decodeBlocks, requests } of load.loads()) {
      gauge.add(prefillTokens, { service, worker, kind: "prefill_tokens" });
      gauge.add(decodeBlocks, { service, worker, kind: "decode_blocks" });
      gauge.add(requests, { service, worker, kind: "requests" });
    }
  });
  return {
    decided: (reason) => decisions.inc({ service, reason }),
    refused: (code) => refusals.inc({ service, code }),
    retried: (reason) => retries.inc({ service, reason }),
    read: (source) => prompts.inc({ service, source }),
    predicted: (promptTokens, cachedTokens) => {
      prompt.inc({ service }, promptTokens);
      cached.inc({ service, source: "predicted" }, cachedTokens);
    },
    reported: (cachedTokens, predictedTokens) => {
      cached.inc({ service, source: "reported" }, cachedTokens);
      cached.inc({ service, source: "predicted_of_reported" }, predictedTokens);
    },
  };
}

/** Which workers of a pool are well; `workers` is read at each scrape. */
export function observeWorkers(
  metrics: Metrics,
  service: string,
  workers: () => Iterable<Pick<PoolWorker, "id" | "healthy">>,
): void {
  metrics.gauge(
    "baton_route_worker_healthy",
    "1 for a worker that seems to be well, 0 for one that is left out.",
    ["service", "worker"],
  ).collect((gauge) => {
    for (const { id, healthy } of workers()) gauge.set(healthy ? 1 : 0, { service, worker: id });
  });
}
