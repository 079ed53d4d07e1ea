/**
 * The tokens of a prompt, from the cheapest source that has them: what was read of the request (its
 * own ids, or a tokenizer of ours), else a worker's `/tokenize` (vLLM's form) within a time limit.
 * Without any of them a prompt is known by its text only.
 */

import type { Clock, Http } from "../runtime/runtime.ts";
import type { PromptFacts } from "./prompt_facts.ts";

export type PromptContent =
  & { readonly salt?: string; readonly lora?: string; readonly eagle?: boolean }
  & ({ readonly tokens: Uint32Array } | { readonly text: string });

export interface PromptTokensOptions {
  readonly http: Http;
  readonly clock: Clock;
  /** The longest time that a request waits for its tokens. */
  readonly timeoutMs: number;
  /** Told where the content came from: request, local, worker, text. */
  readonly onSource?: ((source: string) => void) | undefined;
}

/** Failures in a row after which workers are left alone, and for how long. */
const FAILURES = 3;
const PAUSE_MS = 30_000;
/** Bytes of one token, for the size of a prompt that is known by its text. */
export const BYTES_PER_TOKEN = 4;

export class PromptTokens {
  readonly #options: PromptTokensOptions;
  #failures = 0;
  #pausedUntil = 0;

  constructor(options: PromptTokensOptions) {
    this.#options = options;
  }

  /** Never fails: what cannot be tokenised is taken as text. `worker` is the base URL of one. */
  async read(facts: PromptFacts, worker: string | undefined): Promise<PromptContent> {
    const salt = facts.salt === undefined ? {} : { salt: facts.salt };
    const tokens = facts.tokens ?? await this.#ask(facts, worker);
    this.#options.onSource?.(facts.source ?? (tokens === undefined ? "text" : "worker"));
    return tokens === undefined ? { text: facts.text, ...salt } : { tokens, ...salt };
  }

  async #ask(facts: PromptFacts, worker: string | undefined): Promise<Uint32Array | undefined> {
    const { http, clock, timeoutMs } = this.#options;
    if (worker === undefined || facts.tokenize === undefined) return undefined;
    if (timeoutMs === 0 || clock.monotonic() < this.#pausedUntil) return undefined;
    const timeout = new AbortController();
    const cancel = clock.after(timeoutMs, () => timeout.abort());
    try {
      const response = await http.fetch(`${worker}/tokenize`, {
        method: "POST",
        headers: { "content-type": "application/json" },
        body: facts.tokenize,
        signal: timeout.signal,
      });
      const answer: unknown = await response.json();
      const tokens = tokensOf(answer);
      if (response.status === 200 && tokens !== undefined) {
        this.#failures = 0;
        return tokens;
      }
    } catch {
      // Too slow, gone, or not JSON: the text has to do.
    } finally {
      cancel();
    }
    this.#failures += 1;
    if (this.#failures >= FAILURES) this.#pausedUntil = clock.monotonic() + PAUSE_MS;
    return undefined;
  }
}

function tokensOf(answer: unknown): Uint32Array | undefined {
  const tokens = (answer as { tokens?: unknown } | null)?.tokens;
  if (!Array.isArray(tokens) || !tokens.every((id) => Number.isInteger(id))) return undefined;
  return Uint32Array.from(tokens as number[]);
}
