/**
 * A mock inference worker: an OpenAI-compatible server with a prefix cache, and no model.
 *
 * It answers `/v1/completions`, `/v1/chat/completions` (plain and streaming), `/v1/models`,
 * `/tokenize` (as vLLM has it) and `/health`. One UTF-8 byte is one token, so anybody can compute
 * what it will have cached. Prefill costs time for tokens that are not cached, decode costs time a
 * token. `/mock/stats` tells what really happened: executions by request id, prompt and cached
 * tokens. KV events go to the `events` it is given.
 */

import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { type CacheEvents, PrefixCache } from "./prefix_cache.ts";

export interface MockWorkerOptions {
  readonly id: string;
  readonly model: string;
  readonly port?: number;
  readonly blockSize?: number;
  readonly capacityBlocks?: number;
  /** Tokens that are not cached, prefilled a second. */
  readonly prefillTokensPerS?: number;
  readonly decodeMsPerToken?: number;
  readonly events: CacheEvents;
}

export interface MockStats {
  readonly requests: number;
  readonly promptTokens: number;
  readonly cachedTokens: number;
  /** Streams and answers that the other side cut before their end. */
  readonly aborted: number;
  readonly active: number;
  readonly blocks: number;
  /** How often each `x-request-id` was executed. */
  readonly executed: Readonly<Record<string, number>>;
}

export interface MockWorker {
  readonly url: string;
  stats(): MockStats;
  close(): Promise<void>;
}

interface CompletionRequest {
  readonly model?: string;
  readonly prompt?: string | number[];
  readonly messages?: readonly { role: string; content: unknown }[];
  readonly max_tokens?: number;
  readonly max_completion_tokens?: number;
  readonly stream?: boolean;
  readonly stream_options?: { include_usage?: boolean };
}

const encoder = new TextEncoder();

/** The tokens of a prompt: its UTF-8 bytes; a chat is one line `role: content` a message. */
export function mockTokens(request: Pick<CompletionRequest, "prompt" | "messages">): number[] {
  if (Array.isArray(request.prompt)) return request.prompt;
  if (request.messages === undefined) return [...encoder.encode(request.prompt ?? "")];
  const text = request.messages.map(({ role, content }) =>
    `${role}: ${typeof content === "string" ? content : JSON.stringify(content)}\n`
  );
  return [...encoder.encode(text.join(""))];
}

export async function startMockWorker(options: MockWorkerOptions): Promise<MockWorker> {
  const { prefillTokensPerS = 50_000, decodeMsPerToken = 5 } = options;
  const cache = new PrefixCache({
    blockSize: options.blockSize ?? 16,
    capacityBlocks: options.capacityBlocks ?? 2_000,
    events: options.events,
  });
  const executed = new Map<string, number>();
  const totals = { requests: 0, promptTokens: 0, cachedTokens: 0, aborted: 0, active: 0 };
  /** Prefills run one after another, as on one GPU. */
  let prefillFreeAt = 0;

  async function complete(request: IncomingMessage, response: ServerResponse, chat: boolean) {
    const body: CompletionRequest = JSON.parse(await readAll(request));
    const requestId = String(request.headers["x-request-id"] ?? "");
    executed.set(requestId, (executed.get(requestId) ?? 0) + 1);
    const tokens = mockTokens(body);
    const cached = cache.admit(tokens);
    totals.requests += 1;
    totals.promptTokens += tokens.length;
    totals.cachedTokens += cached;
    totals.active += 1;
    let gone = false;
    response.on("close", () => {
      totals.active -= 1;
      if (!response.writableFinished) {
        gone = true;
        totals.aborted += 1;
      }
    });

    const now = performance.now();
    prefillFreeAt = Math.max(now, prefillFreeAt) +
      (tokens.length - cached) / prefillTokensPerS * 1000;
    await pause(prefillFreeAt - now, response);

    const count = body.max_tokens ?? body.max_completion_tokens ?? 16;
    const usage = {
      prompt_tokens: tokens.length,
      completion_tokens: count,
      total_tokens: tokens.length + count,
      prompt_tokens_details: { cached_tokens: cached },
    };
    const shape = answerShape(options.model, requestId, chat);
    if (body.stream !== true) {
      await pause(count * decodeMsPerToken, response);
      const text = Array.from({ length: count }, (_, n) => `t${n} `).join("");
      return json(response, 200, { ...shape.whole(text), usage });
    }
    response.writeHead(200, { "content-type": "text/event-stream", "cache-control": "no-cache" });
    for (let n = 0; n < count && !gone; n += 1) {
      if (!response.write(`data: ${JSON.stringify(shape.part(`t${n} `))}\n\n`)) {
        await new Promise<void>((resolve) => {
          response.once("drain", resolve);
          response.once("close", resolve);
        });
      }
      await pause(decodeMsPerToken, response);
    }
    if (gone) return;
    if (body.stream_options?.include_usage === true) {
      response.write(`data: ${JSON.stringify({ ...shape.part(""), choices: [], usage })}\n\n`);
    }
    response.end("data: [DONE]\n\n");
  }

  async function answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const path = (request.url ?? "/").split("?")[0];
    if (path === "/health") return json(response, 200, { status: "ok" });
    if (path === "/mock/stats") return json(response, 200, stats());
    if (path === "/v1/models") {
      const model = {
        id: options.model,
        object: "model",
        owned_by: "mock",
        max_model_len: 131_072,
      };
      return json(response, 200, { object: "list", data: [model] });
    }
    if (request.method !== "POST") return json(response, 405, { error: { message: "POST only" } });
    if (path === "/tokenize") {
      const tokens = mockTokens(JSON.parse(await readAll(request)));
      return json(response, 200, { tokens, count: tokens.length, max_model_len: 131_072 });
    }
    if (path === "/v1/completions") return await complete(request, response, false);
    if (path === "/v1/chat/completions") return await complete(request, response, true);
    json(response, 404, { error: { message: `no route ${path}` } });
  }

  function stats(): MockStats {
    return { ...totals, blocks: cache.size, executed: Object.fromEntries(executed) };
  }

  const server = createServer((request, response) => {
    answer(request, response).catch((error: Error) => {
      if (response.headersSent) response.destroy();
      else {json(response, 400, {
          error: { message: error.message, type: "invalid_request_error" },
        });}
    });
  });
  server.keepAliveTimeout = 65_000;
  await new Promise<void>((resolve) => server.listen(options.port ?? 0, "127.0.0.1", resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    stats,
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}

function answerShape(model: string, id: string, chat: boolean) {
  const kind = chat ? "chat.completion" : "text_completion";
  const base = { id: `${chat ? "chatcmpl" : "cmpl"}-${id}`, created: 0, model };
  return {
    whole: (text: string) => ({
      ...base,
      object: kind,
      choices: [{
        index: 0,
        finish_reason: "length",
        ...(chat ? { message: { role: "assistant", content: text } } : { text }),
      }],
    }),
    part: (text: string) => ({
      ...base,
      object: chat ? `${kind}.chunk` : kind,
      choices: [{
        index: 0,
        finish_reason: null,
        ...(chat ? { delta: { content: text } } : { text }),
      }],
    }),
  };
}

function json(response: ServerResponse, status: number, body: unknown): void {
  response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(body));
}

async function readAll(request: IncomingMessage): Promise<string> {
  const chunks: Uint8Array[] = [];
  for await (const chunk of request) chunks.push(chunk);
  return Buffer.concat(chunks).toString();
}

/** Waits, but no longer than somebody waits for the answer. */
function pause(ms: number, response: ServerResponse): Promise<void> {
  return new Promise((resolve) => {
    if (response.closed) return resolve();
    const end = () => {
      clearTimeout(timer);
      response.off("close", end);
      resolve();
    };
    const timer = setTimeout(end, Math.max(0, ms));
    response.on("close", end);
  });
}
