/**
 * What a choice needs of a request's body, as plain data: it may come from another thread.
 */

import { BatonError } from "../errors.ts";
import type { LocalTokenizer } from "./local_tokenizer.ts";
import { readOpenAiRequest } from "./openai_request.ts";

export interface PromptFacts {
  readonly model: string | undefined;
  readonly session: string | undefined;
  readonly salt: string | undefined;
  /** Token ids, as the client sent them or as a tokenizer of ours made them. */
  readonly tokens: Uint32Array | undefined;
  readonly source: "request" | "local" | undefined;
  /** The prompt as one text; empty once its tokens are known. */
  readonly text: string;
  /** The JSON that a worker needs to tokenise it, as long as its tokens are not known. */
  readonly tokenize: string | undefined;
}

export interface PromptReading {
  readonly tokenizer: Pick<LocalTokenizer, "tokens"> | undefined;
  /** Workers may be asked for tokens. */
  readonly asksWorkers: boolean;
}

/** Throws `bad_request` for a body that is not a JSON object, or one that is nested too deeply. */
export function readPromptFacts(body: Uint8Array, reading: PromptReading): PromptFacts {
  try {
    return factsOf(body, reading);
  } catch (error) {
    // What `JSON.parse` takes may be too deep for `JSON.stringify`, and for a chat template.
    if (!(error instanceof RangeError)) throw error;
    throw new BatonError("bad_request", "the body is nested too deeply");
  }
}

function factsOf(body: Uint8Array, { tokenizer, asksWorkers }: PromptReading): PromptFacts {
  const request = readOpenAiRequest(body);
  const { model, session, salt } = request;
  const local = request.tokens === undefined ? tokenizer?.tokens(request) : undefined;
  const tokens = request.tokens ?? local;
  if (tokens === undefined) {
    const { text } = request;
    const tokenize = asksWorkers && request.tokenize !== undefined
      ? JSON.stringify(request.tokenize)
      : undefined;
    return { model, session, salt, tokens, source: undefined, text, tokenize };
  }
  const source = local === undefined ? "request" : "local";
  return { model, session, salt, tokens, source, text: "", tokenize: undefined };
}
