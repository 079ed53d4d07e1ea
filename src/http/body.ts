/** Bodies of requests to Baton's own APIs, as text. */

import { BatonError } from "../errors.ts";

/** The whole body; reads no more of it than the limit. Throws `body_too_large`. */
export async function readBody(request: Request, maxBytes: number): Promise<string> {
  const tooLarge = () => new BatonError("body_too_large", `the body is over ${maxBytes} bytes`);
  if (Number(request.headers.get("content-length") ?? 0) > maxBytes) throw tooLarge();
  const decoder = new TextDecoder();
  let bytes = 0;
  let text = "";
  for await (const chunk of request.body ?? []) {
    bytes += chunk.length;
    if (bytes > maxBytes) throw tooLarge();
    text += decoder.decode(chunk, { stream: true });
  }
  return text + decoder.decode();
}
