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
  /** A session or cache key. Not `user`: all requests of an application may have the same one. */
  readonly session: string | undefined;
  /** What a chat template is filled with. */
  readonly chat: ChatPrompt | undefined;
  /** The text of a completion. */
  readonly prompt: string | undefined;
  /** What a worker needs to tokenise the prompt, in vLLM's `/tokenize` form. */
  readonly tokenize: Readonly<Record<string, unknown>> | undefined;
}

export interface ChatPrompt {
  readonly messages: readonly unknown[];
  readonly tools: readonly unknown[] | undefined;
  readonly addGenerationPrompt: boolean;
  /** Further variables of the template (`chat_template_kwargs`). */
  readonly variables: Readonly<Record<string, unknown>>;
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
    session: text(request["prompt_cache_key"]) ?? sessionOf(request["metadata"]),
    chat: chatOf(request),
    prompt: typeof prompt === "string" ? prompt : undefined,
    tokenize: Array.isArray(messages)
      ? { model, messages, ...(tools === undefined ? {} : { tools }) }
      : typeof prompt === "string"
      ? { model, prompt }
      : undefined,
  };
}

/** undefined also for what a template of ours cannot know: images, or another template. */
function chatOf(request: Json): ChatPrompt | undefined {
  const { messages, tools } = request;
  if (!Array.isArray(messages) || request["chat_template"] !== undefined) return undefined;
  const isText = messages.every((message) => typeof message?.content !== "object");
  if (!isText || request["continue_final_message"] === true) return undefined;
  return {
    messages,
    tools: Array.isArray(tools) && tools.length > 0 ? tools : undefined,
    addGenerationPrompt: request["add_generation_prompt"] !== false,
    variables: record(request["chat_template_kwargs"]),
  };
}

function record(value: unknown): Json {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? value as Json : {};
}

function sessionOf(metadata: unknown): string | undefined {
  return text(record(metadata)["session_id"]);
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
