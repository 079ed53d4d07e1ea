/**
 * Calls to a Kubernetes API server from inside a pod, with nothing but HTTP.
 */

import { LimitedBytesTransformStream, toText } from "@std/streams";
import type { Runtime } from "../runtime/runtime.ts";
import { patientReader } from "../streams/patient_reader.ts";

export interface KubeClientOptions {
  readonly runtime: Pick<Runtime, "http" | "files" | "env" | "clock">;
  readonly apiServer?: string | undefined;
  readonly tokenFile: string;
  readonly caFile: string;
  /** Time until the head of an answer must have come, and longest silence within a whole one. */
  readonly timeoutMs?: number;
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
const TIMEOUT_MS = 15_000;

export class KubeClient {
  readonly #options: KubeClientOptions;

  constructor(options: KubeClientOptions) {
    this.#options = options;
  }

  /**
   * What `use` makes of an answer with a 2xx status, its body unread; `signal` ends that too. Throws
   * `KubeStatus`, or what the network or `use` throws.
   */
  async get<T>(
    path: string,
    signal: AbortSignal,
    use: (response: Response) => T | Promise<T>,
  ): Promise<T> {
    const { runtime } = this.#options;
    const late = new AbortController();
    const abort = (): void => late.abort(signal.reason);
    if (signal.aborted) abort();
    signal.addEventListener("abort", abort, { once: true });
    const stopTimer = runtime.clock.after(
      this.#timeoutMs,
      () => late.abort(new Error(`no answer within ${this.#timeoutMs} ms`)),
    );
    try {
      const response = await this.#fetch(path, late.signal);
      stopTimer();
      if (response.ok) return await use(response);
      throw new KubeStatus(response.status, await this.#reason(response, signal));
    } finally {
      stopTimer();
      signal.removeEventListener("abort", abort);
    }
  }

  /** A whole JSON answer. */
  json(path: string, signal: AbortSignal): Promise<unknown> {
    return this.get(path, signal, async (response) => {
      const limit = new LimitedBytesTransformStream(MAX_LIST_BYTES, { error: true });
      return JSON.parse(await toText(this.#body(response, signal).pipeThrough(limit))) as unknown;
    });
  }

  get #timeoutMs(): number {
    return this.#options.timeoutMs ?? TIMEOUT_MS;
  }

  async #fetch(path: string, signal: AbortSignal): Promise<Response> {
    const ca = await this.#ca();
    const headers: Record<string, string> = {
      "accept": "application/json",
      "accept-encoding": "identity",
    };
    const token = await this.#token();
    if (token !== undefined) headers["authorization"] = `Bearer ${token}`;
    return await this.#options.runtime.http.fetch(new URL(path, this.#base()), {
      headers,
      redirect: "manual",
      signal,
      ...(ca === undefined ? {} : { tls: { ca } }),
    });
  }

  /** A server that falls silent in the middle of an answer may be gone. */
  #body(response: Response, signal: AbortSignal): ReadableStream<Uint8Array> {
    if (response.body === null) throw new Error("an answer without a body");
    const { clock } = this.#options.runtime;
    const bounds = { clock, idleTimeoutMs: this.#timeoutMs, signal };
    return ReadableStream.from(patientReader(response.body, bounds));
  }

  /** The `message` of a Status object, or the start of whatever came. */
  async #reason(response: Response, signal: AbortSignal): Promise<string> {
    try {
      const limit = new LimitedBytesTransformStream(MAX_ERROR_BYTES);
      const text = await toText(this.#body(response, signal).pipeThrough(limit));
      const status: unknown = JSON.parse(text);
      if (typeof status === "object" && status !== null && "message" in status) {
        return String(status.message);
      }
      return text.slice(0, 200);
    } catch {
      return response.statusText;
    }
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
