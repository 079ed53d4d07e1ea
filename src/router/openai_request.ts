/**
 * What the router reads of an OpenAI request: enough to know the prompt and whose cache it needs.
 * The body itself is forwarded byte for byte.
 */

import { BatonError } from "../errors.ts";

export interface OpenAiRequest {
  readonly model: string | undefined;
  /** Token ids, where the client sent them. */
  readonly tokens: Uint32Array | undefined;
  /** The prompt, messages and tools as one text, for workers whose tokeniser is not known here. */
  readonly text: string;
  readonly salt: string | undefined;
  readonly session: string | undefined;
  /** What a worker needs to tokenise the prompt, in vLLM's `/tokenize` form. */
  readonly tokenize: Readonly<Record<string, unknown>> | undefined;
}

type Json = Readonly<Record<string, unknown>>;

/** Throws `bad_request` for a body that is not a JSON object. */
export function readOpenAiRequest(body: Uint8Array): OpenAiRequest {
  let parsed: unknown;
  try {
    parsed = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(body));
  } catch {
    throw new BatonError("bad_request", "the body is not JSON");
  }
  if (typeof parsed !== "object" || parsed === null || Array.isArray(parsed)) {
    throw new BatonError("bad_request", "the body is not a JSON object");
  }
  const request = parsed as Json;
  const { model, prompt, messages, tools } = request;
  return {
    model: text(model),
    tokens: tokenIds(prompt),
    text: promptText(request),
    salt: text(request["cache_salt"]),
    session: text(request["prompt_cache_key"]) ?? text(request["user"]),
    tokenize: Array.isArray(messages)
      ? { model, messages, ...(tools === undefined ? {} : { tools }) }
      : typeof prompt === "string"
      ? { model, prompt }
      : undefined,
  };
}

function text(value: unknown): string | undefined {
  return typeof value === "string" && value !== "" ? value : undefined;
}

function tokenIds(prompt: unknown): Uint32Array | undefined {
  if (!Array.isArray(prompt) || prompt.length === 0) return undefined;
  if (!prompt.every((id) => Number.isInteger(id) && id >= 0 && id < 2 ** 32)) return undefined;
  return Uint32Array.from(prompt as number[]);
}

/** Everything that decides the prompt, in the order in which a chat template would put it. */
function promptText({ prompt, messages, tools, input }: Json): string {
  const parts = [tools, messages, prompt, input].filter((part) => part !== undefined);
  return parts.map((part) => typeof part === "string" ? part : JSON.stringify(part)).join("\n");
}
