/** Small requests to a child's own endpoints on loopback: readiness, drain, drain status. */

import type { Runtime } from "../runtime/runtime.ts";

export interface ChildRequest {
  readonly port: number;
  readonly path: string;
  readonly method?: "GET" | "POST";
  /** For the whole exchange, body included. */
  readonly timeoutMs: number;
}

/**
 * Sends one request to 127.0.0.1 and hands the response to `read`; what `read` leaves of the body
 * is dropped. Redirects are answers like any other. Throws on a transport error or at the timeout.
 */
export async function childRequest<T>(
  runtime: Pick<Runtime, "http" | "clock">,
  request: ChildRequest,
  read: (response: Response) => T | Promise<T>,
): Promise<T> {
  const controller = new AbortController();
  let stop = (): void => {};
  const late = new Promise<never>((_, reject) => {
    stop = runtime.clock.after(request.timeoutMs, () => {
      const error = new Error(`no answer within ${request.timeoutMs} ms`);
      reject(error);
      controller.abort(error);
    });
  });
  const exchange = async (): Promise<T> => {
    const response = await runtime.http.fetch(`http://127.0.0.1:${request.port}${request.path}`, {
      method: request.method ?? "GET",
      redirect: "manual",
      // A probe's connection must not be one that a draining child keeps open for us.
      headers: { connection: "close" },
      signal: controller.signal,
    });
    try {
      return await read(response);
    } finally {
      if (!response.bodyUsed) response.body?.cancel().catch(() => {});
    }
  };
  try {
    return await Promise.race([exchange(), late]);
  } finally {
    stop();
  }
}

/** The body as text; throws when it is longer than `limitBytes`. */
export async function readBounded(response: Response, limitBytes: number): Promise<string> {
  if (response.body === null) return "";
  const decoder = new TextDecoder();
  let text = "";
  let size = 0;
  for await (const chunk of response.body) {
    size += chunk.length;
    if (size > limitBytes) throw new Error(`the child's answer is longer than ${limitBytes} bytes`);
    text += decoder.decode(chunk, { stream: true });
  }
  return text + decoder.decode();
}
