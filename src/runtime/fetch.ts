/**
 * Calls to other services, over undici's `Client` on both runtimes.
 *
 * The built-in `fetch` of either decodes bodies and leaves headers that then lie, joins set headers,
 * hides why a connection failed, and on Deno may send a POST twice. One `Client` per call does none
 * of that, and leaves no idle connection behind to go stale.
 */

import { Client, type Dispatcher, ProxyAgent } from "undici";
import { errorCode, errorText } from "./error_code.ts";
import { connectReason } from "./net_connect_error.ts";
import { ConnectFailed, type FetchInit } from "./runtime.ts";

const DEFAULT_CONNECT_TIMEOUT_MS = 10_000;
const MAX_REDIRECTS = 10;
const BODY_BUFFER_BYTES = 64 * 1024;
const MAX_HEAD_BYTES = 128 * 1024;

/** See `Http.fetch` and `FetchInit`. */
export async function fetchOnce(url: string | URL, init: FetchInit = {}): Promise<Response> {
  // The standard asks for `duplex` with a stream as body and knows one value for it.
  const standard: RequestInit & { duplex: "half" } = { duplex: "half", ...init };
  let request = new Request(url, { ...standard, redirect: "manual" });
  let response = await send(request, init);
  for (let hops = 0; init.redirect === "follow" || init.redirect === "error"; hops++) {
    const next = redirection(request, response);
    if (next === undefined) break;
    await response.body?.cancel();
    if (init.redirect === "error") throw new TypeError(`${request.url}: redirected to ${next.url}`);
    if (hops === MAX_REDIRECTS) throw new TypeError(`${url}: more than ${MAX_REDIRECTS} redirects`);
    request = next;
    response = await send(request, init);
  }
  return response;
}

/** The request that a redirect asks for (RFC 9110 15.4); undefined if the answer is not one. */
function redirection(request: Request, response: Response): Request | undefined {
  const location = response.headers.get("location");
  if (location === null || ![301, 302, 303, 307, 308].includes(response.status)) return undefined;
  const from = new URL(request.url);
  const to = new URL(location, from);
  if (to.protocol !== "http:" && to.protocol !== "https:") return undefined;
  // A body is a stream that is gone by now: only what has none can be sent again.
  const keepsMethod = request.method === "GET" || request.method === "HEAD";
  if (!keepsMethod && response.status !== 303) return undefined;
  const headers = new Headers(request.headers);
  if (to.origin !== from.origin) {
    for (const name of ["authorization", "cookie", "proxy-authorization"]) headers.delete(name);
  }
  if (!keepsMethod) headers.delete("content-type");
  const method = keepsMethod ? request.method : "GET";
  return new Request(to, { method, headers, signal: request.signal });
}

async function send(request: Request, init: FetchInit): Promise<Response> {
  const { signal } = request;
  signal.throwIfAborted();
  const url = new URL(request.url);
  const client = dispatcher(url, init);
  const body = request.body === null ? null : await requestBody(request, init);
  return await new Promise<Response>((resolve, reject) => {
    const exchange = new Exchange(client, request.method, signal, resolve, reject);
    try {
      client.dispatch({
        origin: url.origin,
        path: url.pathname + url.search,
        // undici's own type names the common methods only; its parser takes any token.
        method: request.method as Dispatcher.HttpMethod,
        headers: Object.fromEntries(request.headers),
        body: body as Dispatcher.DispatchOptions["body"],
      }, exchange);
    } catch (error) {
      exchange.fail(error);
    }
  });
}

/** What carries one request: straight there, or by way of a proxy. */
function dispatcher(url: URL, init: FetchInit): Dispatcher {
  const connectTimeout = init.connectTimeoutMs ?? DEFAULT_CONNECT_TIMEOUT_MS;
  const shared = {
    pipelining: 0,
    headersTimeout: 0,
    bodyTimeout: 0,
    maxHeaderSize: MAX_HEAD_BYTES,
    connectTimeout,
    allowH2: false,
  };
  if (init.proxy !== undefined) {
    return new ProxyAgent({ ...shared, uri: init.proxy, requestTls: { ...init.tls } });
  }
  return new Client(url.origin, { ...shared, socketPath: init.unixPath, connect: { ...init.tls } });
}

/** Bytes when they are at hand (sent with their length), else the stream (sent in chunks). */
async function requestBody(request: Request, init: FetchInit): Promise<unknown> {
  if (init.body instanceof ReadableStream) return request.body;
  return new Uint8Array(await request.arrayBuffer());
}

/** One request and its answer; every way out of it ends in `#finish`, once. */
class Exchange implements Dispatcher.DispatchHandler {
  readonly #client: Dispatcher;
  readonly #method: string;
  readonly #signal: AbortSignal;
  readonly #resolve: (response: Response) => void;
  readonly #reject: (error: unknown) => void;
  readonly #onAbort = () => this.fail(this.#signal.reason);
  #connection: Dispatcher.DispatchController | undefined;
  #body: ReadableStreamDefaultController<Uint8Array> | undefined;
  #isFinished = false;

  constructor(
    client: Dispatcher,
    method: string,
    signal: AbortSignal,
    resolve: (response: Response) => void,
    reject: (error: unknown) => void,
  ) {
    this.#client = client;
    this.#method = method;
    this.#signal = signal;
    this.#resolve = resolve;
    this.#reject = reject;
    signal.addEventListener("abort", this.#onAbort, { once: true });
  }

  onRequestStart(controller: Dispatcher.DispatchController): void {
    this.#connection = controller;
  }

  onResponseStart(
    controller: Dispatcher.DispatchController,
    status: number,
    _headers: unknown,
    statusText?: string,
  ): void {
    if (status < 200) return;
    this.#connection = controller;
    const hasBody = this.#method !== "HEAD" && status !== 204 && status !== 205 && status !== 304;
    const stream = new ReadableStream<Uint8Array>({
      start: (body) => {
        this.#body = body;
      },
      pull: () => {
        if (controller.paused) controller.resume();
      },
      cancel: (reason) => this.fail(reason ?? new DOMException("cancelled", "AbortError")),
    }, new ByteLengthQueuingStrategy({ highWaterMark: BODY_BUFFER_BYTES }));
    try {
      const headers = headersOf(controller.rawHeaders);
      this.#resolve(new Response(hasBody ? stream : null, { status, statusText, headers }));
    } catch (error) {
      // A status over 599, say: no Response can carry it.
      this.#body = undefined;
      this.fail(error);
    }
  }

  onResponseData(controller: Dispatcher.DispatchController, chunk: Uint8Array): void {
    // undici hands out empty chunks when it is resumed, and they would resume it again for ever.
    if (chunk.length === 0 || this.#isFinished || this.#body === undefined) return;
    this.#body.enqueue(chunk);
    if ((this.#body.desiredSize ?? 0) <= 0) controller.pause();
  }

  onResponseEnd(): void {
    if (this.#isFinished) return;
    this.#finish();
    this.#body?.close();
  }

  onResponseError(_controller: Dispatcher.DispatchController, error: Error): void {
    this.fail(error);
  }

  fail(reason: unknown): void {
    if (this.#isFinished) return;
    const error = this.#isConnected ? reason : this.#connectFailure(reason);
    this.#finish();
    if (this.#body !== undefined) this.#body.error(error);
    else this.#reject(error);
  }

  get #isConnected(): boolean {
    return this.#connection !== undefined;
  }

  #connectFailure(reason: unknown): unknown {
    if (reason === this.#signal.reason && this.#signal.aborted) return reason;
    if (errorCode(reason) === undefined) return reason;
    return new ConnectFailed(connectReason(reason), errorText(reason));
  }

  #finish(): void {
    this.#isFinished = true;
    this.#signal.removeEventListener("abort", this.#onAbort);
    // Closes the connection; without this a cancelled body would keep it until the answer ends.
    this.#client.destroy().catch(() => {});
  }
}

function headersOf(raw: unknown): Headers {
  const headers = new Headers();
  if (!Array.isArray(raw)) return headers;
  for (let i = 0; i + 1 < raw.length; i += 2) headers.append(latin1(raw[i]), latin1(raw[i + 1]));
  return headers;
}

function latin1(value: unknown): string {
  return value instanceof Uint8Array
    ? String.fromCharCode.apply(null, Array.from(value))
    : String(value);
}
