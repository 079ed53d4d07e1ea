/**
 * Calls to a Kubernetes API server from inside a pod, with nothing but HTTP.
 */

import { LimitedBytesTransformStream, toText } from "@std/streams";
import type { Runtime } from "../runtime/runtime.ts";

export interface KubeClientOptions {
  readonly runtime: Pick<Runtime, "http" | "files" | "env" | "clock">;
  readonly apiServer?: string | undefined;
  readonly tokenFile: string;
  readonly caFile: string;
  /** Time until the head of an answer must have come. */
  readonly headTimeoutMs?: number;
}

/** The API server answered with a status that is not 2xx. */
export class KubeStatus extends Error {
  override readonly name = "KubeStatus";
  readonly status: number;
  constructor(status: number, message: string) {
    super(`the API server answered ${status}: ${message}`);
    this.status = status;
  }
}

const MAX_LIST_BYTES = 64 * 1024 * 1024;
const MAX_ERROR_BYTES = 16 * 1024;

export class KubeClient {
  readonly #options: KubeClientOptions;

  constructor(options: KubeClientOptions) {
    this.#options = options;
  }

  /** An answer with a 2xx status, its body unread. Throws `KubeStatus` or what the network throws. */
  async get(path: string, signal: AbortSignal): Promise<Response> {
    const { runtime, headTimeoutMs = 15_000 } = this.#options;
    const late = new AbortController();
    const abort = (): void => late.abort(signal.reason);
    if (signal.aborted) abort();
    signal.addEventListener("abort", abort, { once: true });
    const stopTimer = runtime.clock.after(
      headTimeoutMs,
      () => late.abort(new Error(`no answer within ${headTimeoutMs} ms`)),
    );
    const ca = await this.#ca();
    const headers: Record<string, string> = {
      "accept": "application/json",
      "accept-encoding": "identity",
    };
    const token = await this.#token();
    if (token !== undefined) headers["authorization"] = `Bearer ${token}`;
    let response: Response;
    try {
      response = await runtime.http.fetch(new URL(path, this.#base()), {
        headers,
        redirect: "manual",
        signal: late.signal,
        ...(ca === undefined ? {} : { tls: { ca } }),
      });
    } finally {
      stopTimer();
      // Afterwards only the caller's signal matters, which ends the body too.
    }
    if (response.ok) return response;
    signal.removeEventListener("abort", abort);
    throw new KubeStatus(response.status, await reason(response));
  }

  /** A whole JSON answer. */
  async json(path: string, signal: AbortSignal): Promise<unknown> {
    const response = await this.get(path, signal);
    if (response.body === null) throw new Error("an answer without a body");
    const limit = new LimitedBytesTransformStream(MAX_LIST_BYTES, { error: true });
    return JSON.parse(await toText(response.body.pipeThrough(limit)));
  }

  #base(): string {
    if (this.#options.apiServer !== undefined) return this.#options.apiServer;
    const env = this.#options.runtime.env();
    const host = env.KUBERNETES_SERVICE_HOST;
    if (host === undefined) {
      throw new Error("KUBERNETES_SERVICE_HOST is not set: not in a cluster?");
    }
    const bracketed = host.includes(":") ? `[${host}]` : host;
    return `https://${bracketed}:${env.KUBERNETES_SERVICE_PORT ?? "443"}`;
  }

  /** Read anew each time: the kubelet replaces a token long before it expires. */
  async #token(): Promise<string | undefined> {
    if ((await this.#options.runtime.files.info(this.#options.tokenFile)) === undefined) {
      return undefined;
    }
    return (await this.#options.runtime.files.readText(this.#options.tokenFile)).trim();
  }

  async #ca(): Promise<string | undefined> {
    if (!this.#base().startsWith("https:")) return undefined;
    if ((await this.#options.runtime.files.info(this.#options.caFile)) === undefined) {
      return undefined;
    }
    return await this.#options.runtime.files.readText(this.#options.caFile);
  }
}

/** The `message` of a Status object, or the start of whatever came. */
async function reason(response: Response): Promise<string> {
  try {
    const body = response.body?.pipeThrough(new LimitedBytesTransformStream(MAX_ERROR_BYTES));
    const text = body === undefined ? "" : await toText(body);
    const status: unknown = JSON.parse(text);
    if (typeof status === "object" && status !== null && "message" in status) {
      return String(status.message);
    }
    return text.slice(0, 200);
  } catch {
    return response.statusText;
  }
}
