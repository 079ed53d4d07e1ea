/**
 * Errors in OpenAI's shape, for routes whose clients are OpenAI SDKs. Codes and statuses are those of
 * the one table; only the body differs.
 */

import { BatonError } from "../errors.ts";

/** OpenAI's names where they have one; SDKs compare them. */
const OPENAI_CODES: Readonly<Record<string, string>> = { unknown_model: "model_not_found" };

/** The answer for any thrown value; what is not a BatonError becomes a detail-free 500. */
export function openAiErrorResponse(error: unknown): Response {
  const known = error instanceof BatonError ? error : new BatonError("internal", "internal error");
  const headers = new Headers({ "content-type": "application/json", "cache-control": "no-store" });
  if (known.retryAfterS !== undefined) headers.set("retry-after", String(known.retryAfterS));
  const body = {
    message: known.message,
    type: known.status < 500 ? "invalid_request_error" : "server_error",
    param: null,
    code: OPENAI_CODES[known.code] ?? known.code,
    ...known.detail,
  };
  return new Response(JSON.stringify({ error: body }) + "\n", { status: known.status, headers });
}
