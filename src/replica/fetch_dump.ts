/**
 * Asks one peer for its dump, and says in one word what came of it.
 */

import { ConnectFailed, type FetchInit, NameUnknown, type Runtime } from "../runtime/runtime.ts";
import { patientReader } from "../streams/patient_reader.ts";
import { DUMP_CONTENT_TYPE, DumpBroken, DumpRefused } from "./dump_format.ts";
import { REPLICA_HEADER, SCOPE_HEADER } from "./dump_handler.ts";
import { type DumpSink, readDump } from "./dump_reader.ts";
import { readDynamoDump } from "./dynamo_reader.ts";
import { gunzip } from "./gunzip.ts";
import type { LaneKey } from "../kv/lane_key.ts";

export interface FetchDumpOptions {
  readonly runtime: Pick<Runtime, "http" | "clock">;
  readonly url: string;
  /** Our own replica's name: whoever answers with it is ourselves. */
  readonly replica: string;
  readonly readToken?: (() => Promise<string>) | undefined;
  readonly readTls?: (() => Promise<FetchInit["tls"]>) | undefined;
  readonly gzip: boolean;
  /** Ids of the lanes to ask for; all when absent. Peers that do not know the filter send all. */
  readonly lanes?: readonly string[];
  /** Ask a peer that recovers itself for the lanes that it has restored already. */
  readonly restoredOnly?: boolean;
  readonly sink: DumpSink;
  /** For Dynamo's shape: finds the keys of lanes that are wanted. */
  readonly catalogue: () => readonly LaneKey[];
  readonly maxLaneBlocks: number;
  readonly idleTimeoutMs: number;
  readonly signal: AbortSignal;
  readonly onBytes?: (bytes: number) => void;
}

export type FetchOutcome =
  /** Read to its verified end. */
  | { readonly kind: "complete"; readonly lanes: number; readonly blocks: number }
  /** Those lanes of a peer that recovers itself which it has restored, to their verified end. */
  | { readonly kind: "some_lanes"; readonly lanes: number; readonly blocks: number }
  /**
   * It has no index yet itself; `hasSource` if it is getting one just now. `restored`: lanes that it
   * has restored and would give.
   */
  | {
    readonly kind: "not_recovered";
    readonly hasSource: boolean;
    readonly restored: number;
    readonly retryAfterMs: number;
  }
  /** Asked to come back later. */
  | { readonly kind: "busy"; readonly retryAfterMs: number }
  /** It is us. */
  | { readonly kind: "self" }
  /** Nobody listens there. */
  | { readonly kind: "absent"; readonly reason: string }
  /** Anything else; lanes that were verified before stay. */
  | { readonly kind: "failed"; readonly reason: string };

/** Fewer bytes than this within `idleTimeoutMs` of waiting is no progress. */
const LEAST_BYTES_PER_WINDOW = 4096;
const MAX_ERROR_BYTES = 4096;
/** A dump shrinks to three quarters; what unpacks to more than this many times its bytes is none. */
const MOST_UNPACKED = 100;
/** Packed bytes that are unpacked at a time: what comes of them waits in memory. */
const UNPACK_BYTES = 4096;
const LONGEST_RETRY_AFTER_MS = 300_000;

/** Never rejects, except with the reason of `signal`. */
export async function fetchDump(options: FetchDumpOptions): Promise<FetchOutcome> {
  try {
    const response = await head(options);
    if (response.headers.get(REPLICA_HEADER) === options.replica) {
      await response.body?.cancel();
      return { kind: "self" };
    }
    if (response.status !== 200) return await refusal(response, options);
    return await body(response, options);
  } catch (error) {
    options.signal.throwIfAborted();
    const nobody = error instanceof NameUnknown || (error instanceof ConnectFailed &&
      (error.reason === "refused" || error.reason === "missing"));
    return { kind: nobody ? "absent" : "failed", reason: explain(error) };
  }
}

async function head(options: FetchDumpOptions): Promise<Response> {
  const { runtime, signal } = options;
  const url = new URL("/dump", options.url);
  for (const lane of options.lanes ?? []) url.searchParams.append("lane", lane);
  if (options.restoredOnly === true) url.searchParams.set("restored", "1");
  const late = new AbortController();
  const abort = (): void => late.abort(signal.reason);
  signal.addEventListener("abort", abort, { once: true });
  if (signal.aborted) abort();
  const stopTimer = runtime.clock.after(
    options.idleTimeoutMs,
    () => late.abort(new Error(`no answer within ${options.idleTimeoutMs} ms`)),
  );
  try {
    const token = await options.readToken?.();
    const tls = await options.readTls?.();
    return await runtime.http.fetch(url, {
      headers: {
        "accept": `${DUMP_CONTENT_TYPE}, application/json;q=0.5`,
        "accept-encoding": options.gzip ? "gzip" : "identity",
        ...(token === undefined ? {} : { authorization: `Bearer ${token}` }),
      },
      redirect: "manual",
      signal: late.signal,
      ...(tls === undefined ? {} : { tls }),
    });
  } finally {
    stopTimer();
    signal.removeEventListener("abort", abort);
  }
}

async function body(response: Response, options: FetchDumpOptions): Promise<FetchOutcome> {
  const type = (response.headers.get("content-type") ?? "").split(";")[0]?.trim();
  if (response.body === null) return { kind: "failed", reason: "an answer without a body" };
  const chunks = patientReader(response.body, {
    clock: options.runtime.clock,
    idleTimeoutMs: options.idleTimeoutMs,
    leastBytesPerWindow: LEAST_BYTES_PER_WINDOW,
    signal: options.signal,
    ...(options.onBytes === undefined ? {} : { onBytes: options.onBytes }),
  });
  const plain = response.headers.get("content-encoding") === "gzip" ? unpack(chunks) : chunks;
  const reader = {
    clock: options.runtime.clock,
    maxLaneBlocks: options.maxLaneBlocks,
  };
  if (type === DUMP_CONTENT_TYPE) {
    const { lanes, blocks } = await readDump(plain, options.sink, reader);
    const isPart = response.headers.get(SCOPE_HEADER) !== null;
    return { kind: isPart ? "some_lanes" : "complete", lanes, blocks };
  }
  if (type === "application/json") {
    const catalogue = options.catalogue();
    const totals = await readDynamoDump(plain, options.sink, { ...reader, catalogue });
    return { kind: "complete", ...totals };
  }
  await chunks.return();
  return { kind: "failed", reason: `an answer of type ${type}` };
}

/** Unpacks, in small pieces and within a bound: a few packed bytes may stand for very many. */
async function* unpack(chunks: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array, void> {
  let packed = 0;
  let unpacked = 0;
  const pieces = async function* (): AsyncGenerator<Uint8Array, void> {
    for await (const chunk of chunks) {
      for (let at = 0; at < chunk.length; at += UNPACK_BYTES) {
        const piece = chunk.subarray(at, at + UNPACK_BYTES);
        packed += piece.length;
        yield piece;
      }
    }
  };
  for await (const chunk of gunzip(pieces())) {
    unpacked += chunk.length;
    if (unpacked > MOST_UNPACKED * Math.max(packed, UNPACK_BYTES)) {
      throw new DumpBroken(`it unpacks to over ${MOST_UNPACKED} times its size`);
    }
    yield chunk;
  }
}

async function refusal(response: Response, options: FetchDumpOptions): Promise<FetchOutcome> {
  const retryAfterMs = retryAfter(response.headers.get("retry-after"));
  const text = await beginning(response, options);
  const error = errorOf(text);
  if (response.status === 503 && error?.code === "not_ready") {
    const restored = typeof error.restored === "number" ? error.restored : 0;
    return { kind: "not_recovered", hasSource: error.hasSource === true, restored, retryAfterMs };
  }
  if (response.status === 503 || response.status === 429) return { kind: "busy", retryAfterMs };
  return { kind: "failed", reason: `status ${response.status}: ${text.slice(0, 200)}` };
}

/** What an error says, as far as it comes in time; where it does not, the status alone has to do. */
async function beginning(response: Response, options: FetchDumpOptions): Promise<string> {
  if (response.body === null) return "";
  const decoder = new TextDecoder();
  let text = "";
  try {
    const chunks = patientReader(response.body, {
      clock: options.runtime.clock,
      idleTimeoutMs: options.idleTimeoutMs,
      leastBytesPerWindow: MAX_ERROR_BYTES,
      maxBytes: MAX_ERROR_BYTES,
      signal: options.signal,
    });
    for await (const chunk of chunks) text += decoder.decode(chunk, { stream: true });
  } catch {
    options.signal.throwIfAborted();
  }
  return text;
}

function errorOf(text: string): Record<string, unknown> | undefined {
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value !== "object" || value === null || !("error" in value)) return undefined;
    const { error } = value;
    return typeof error === "object" && error !== null
      ? error as Record<string, unknown>
      : undefined;
  } catch {
    return undefined;
  }
}

/** Milliseconds of a Retry-After in seconds; 0 when absent or a date (RFC 9110, 10.2.3). */
function retryAfter(value: string | null): number {
  const seconds = Number(value ?? "");
  if (!Number.isFinite(seconds) || seconds <= 0) return 0;
  return Math.min(seconds * 1000, LONGEST_RETRY_AFTER_MS);
}

function explain(error: unknown): string {
  if (error instanceof DumpRefused) return `refused: ${error.message}`;
  if (!(error instanceof Error)) return String(error);
  // What a decompressor throws has its reason only in the cause.
  const message = error.message === "" && error.cause instanceof Error
    ? error.cause.message
    : error.message;
  return message === "" ? error.name : `${error.name}: ${message}`;
}
