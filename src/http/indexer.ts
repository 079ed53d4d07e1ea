/**
 * The index over HTTP, call by call as Dynamo's standalone indexer has it, and `POST /events`.
 *
 * u64 are plain JSON numbers in this API, exact both ways; counts are in tokens. Errors have Baton's
 * shape, with the indexer's status codes.
 */

import { type Context, Hono } from "hono";
import { BatonError } from "../errors.ts";
import type { EventsDoor } from "../kv/events_door.ts";
import type { IndexStore } from "../kv/create_kv_store.ts";
import type { Match } from "../kv/prefix_index.ts";
import { type Json, parseU64Json, printU64Json, toU64, workerNumber } from "../kv/u64_json.ts";
import type { KvWorkers, ListenerRow, WorkerRow } from "../kv/workers.ts";
import { byteLines, LineTooLong } from "../streams/byte_lines.ts";

/** Peers that operators add at run time; the replica's discovery may be behind it. */
export interface PeerRegister {
  list(): readonly string[];
  add(url: string): void;
  /** False if there is no such peer. */
  remove(url: string): boolean;
}

export interface IndexerApiOptions {
  readonly store: IndexStore;
  readonly workers: KvWorkers;
  readonly events: EventsDoor;
  readonly peers?: PeerRegister;
  /** Bytes of a request body at most; 8 MiB by default. Of `/events` it bounds a line. */
  readonly maxBodyBytes?: number;
  /** Mount `/test/pause_listener` and `/test/resume_listener`. */
  readonly testRoutes?: boolean;
}

const MAX_BODY_BYTES = 8 * 1024 * 1024;
const DEFAULT_GROUP = "default";

type Fields = { readonly [key: string]: Json };

/**
 * Makes the routes, to be mounted at the root of an app that turns errors into answers and that only
 * the cluster reaches.
 */
export function createIndexerApi(options: IndexerApiOptions): Hono {
  const { store, workers, events } = options;
  const peers = options.peers ?? createPeerList();
  const maxBodyBytes = options.maxBodyBytes ?? MAX_BODY_BYTES;
  const app = new Hono();

  const fieldsOf = async (context: Context): Promise<Fields> => {
    const text = await readText(context.req.raw, maxBodyBytes);
    let body: Json;
    try {
      body = parseU64Json(text);
    } catch {
      throw new BatonError("bad_request", "the body is not JSON");
    }
    if (typeof body !== "object" || body === null || Array.isArray(body)) {
      throw new BatonError("bad_request", "the body is not a JSON object");
    }
    return body as Fields;
  };

  app.get("/health", () => json({ status: "ok" }));

  app.post("/register", async (context) => {
    const fields = await fieldsOf(context);
    workers.register({
      worker: required(worker(fields), "instance_id"),
      model: required(text(fields, "model_name"), "model_name"),
      group: text(fields, "routing_group") ?? DEFAULT_GROUP,
      dpRank: rank(fields) ?? 0,
      blockSize: required(count(fields, "block_size"), "block_size"),
      endpoint: required(text(fields, "endpoint"), "endpoint"),
      replayEndpoint: text(fields, "replay_endpoint"),
    });
    return json({ status: "ok" }, 201);
  });

  app.post("/unregister", async (context) => {
    const fields = await fieldsOf(context);
    workers.unregister({
      worker: required(worker(fields), "instance_id"),
      model: required(text(fields, "model_name"), "model_name"),
      group: text(fields, "routing_group") ?? DEFAULT_GROUP,
      dpRank: rank(fields),
    });
    return json({ status: "ok" });
  });

  app.get("/workers", (context) => {
    const model = context.req.query("model_name");
    const group = context.req.query("routing_group");
    return json(workers.list({ model, group }).map(workerJson));
  });

  app.post("/query", async (context) => {
    const fields = await fieldsOf(context);
    const { index, blockSize } = partition(store, fields);
    const matches = index.match({
      tokens: tokens(fields),
      lora: text(fields, "lora_name"),
      salt: text(fields, "cache_salt"),
      eagle: fields["is_eagle"] === true,
    });
    return json(scores(matches, blockSize));
  });

  app.post("/query_by_hash", async (context) => {
    const fields = await fieldsOf(context);
    if (fields["cache_salt"] !== undefined && fields["cache_salt"] !== null) {
      throw new BatonError("bad_request", "cache_salt has no meaning for hashes: they carry it");
    }
    const { index, blockSize } = partition(store, fields);
    return json(scores(index.match({ locals: hashes(fields) }), blockSize));
  });

  app.post("/events", async (context) => {
    const body = context.req.raw.body;
    if (body === null) return json({ accepted: 0, refused: [], refused_count: 0 }, 202);
    const isGzip = context.req.header("content-encoding") === "gzip";
    const bytes = isGzip ? body.pipeThrough(new DecompressionStream("gzip")) : body;
    try {
      return json(await events.take(byteLines(bytes, { maxLineBytes: maxBodyBytes })), 202);
    } catch (error) {
      if (!(error instanceof LineTooLong)) throw error;
      throw new BatonError("body_too_large", error.message);
    }
  });

  app.post("/register_peer", async (context) => {
    peers.add(peerUrl(await fieldsOf(context)));
    return json({ status: "ok" }, 201);
  });
  app.post("/deregister_peer", async (context) => {
    const url = peerUrl(await fieldsOf(context));
    if (!peers.remove(url)) throw new BatonError("not_found", `no peer ${url}`);
    return json({ status: "ok" });
  });
  app.get("/peers", () => json(peers.list()));

  if (options.testRoutes === true) {
    app.post("/test/pause_listener", async (context) => {
      const fields = await fieldsOf(context);
      workers.pause(required(worker(fields), "instance_id"), rank(fields));
      return json({ status: "ok" });
    });
    app.post("/test/resume_listener", async (context) => {
      const fields = await fieldsOf(context);
      workers.resume(required(worker(fields), "instance_id"), rank(fields));
      return json({ status: "ok" });
    });
  }

  return app;
}

/** Peers kept in memory only. */
export function createPeerList(): PeerRegister {
  const urls = new Set<string>();
  return {
    list: () => [...urls],
    add: (url) => void urls.add(url),
    remove: (url) => urls.delete(url),
  };
}

// ------------------------------------------------------------------------------------- answers

function json(value: unknown, status = 200): Response {
  return new Response(printU64Json(value), {
    status,
    headers: { "content-type": "application/json", "cache-control": "no-store" },
  });
}

/** Counts of an instance are those of its best rank; tiers include the faster ones. */
function scores(matches: readonly Match[], blockSize: number) {
  const scoresOf: Record<string, Record<string, number>> = {};
  const instances: Record<string, {
    longest_matched: number;
    gpu: number;
    dp: Record<string, number>;
    cpu: number;
    disk: number;
  }> = {};
  for (const { worker, dpRank, device, host, disk } of matches) {
    const onDisk = disk * blockSize;
    if (onDisk === 0) continue;
    const onDevice = device * blockSize;
    const instance = instances[worker] ??= {
      longest_matched: 0,
      gpu: 0,
      dp: {},
      cpu: 0,
      disk: 0,
    };
    instance.gpu = Math.max(instance.gpu, onDevice);
    instance.cpu = Math.max(instance.cpu, host * blockSize);
    instance.disk = Math.max(instance.disk, onDisk);
    instance.longest_matched = Math.max(instance.gpu, instance.cpu, instance.disk);
    instance.dp[dpRank] = onDevice;
    if (onDevice > 0) (scoresOf[worker] ??= {})[dpRank] = onDevice;
  }
  return { scores: scoresOf, frequencies: [], instances };
}

function workerJson(row: WorkerRow) {
  const endpoints: Record<string, string> = {};
  const listeners: Record<string, unknown> = {};
  for (const [dpRank, listener] of row.listeners) {
    if (listener.endpoint !== undefined) endpoints[dpRank] = listener.endpoint;
    listeners[dpRank] = listenerJson(listener);
  }
  return {
    instance_id: workerNumber(row.worker),
    source: row.source,
    status: row.status,
    model_name: row.model,
    routing_group: row.group,
    block_size: row.blockSize,
    endpoints,
    listeners,
  };
}

function listenerJson({ endpoint, status, lastError, lane }: ListenerRow) {
  return {
    ...(endpoint === undefined ? {} : { endpoint }),
    status,
    ...(lastError === undefined ? {} : { last_error: lastError }),
    ...(lane === undefined ? {} : {
      state: lane.state,
      epoch: lane.epoch,
      cursor: lane.cursor ?? null,
      blocks: lane.blocks,
      waiting_batches: lane.waiting.batches,
      waiting_bytes: lane.waiting.bytes,
    }),
  };
}

// ------------------------------------------------------------------------------------ requests

async function readText(request: Request, maxBytes: number): Promise<string> {
  const declared = Number(request.headers.get("content-length") ?? 0);
  const tooLarge = () => new BatonError("body_too_large", `a body of over ${maxBytes} bytes`);
  if (declared > maxBytes) throw tooLarge();
  const decoder = new TextDecoder();
  let size = 0;
  let body = "";
  for await (const chunk of request.body ?? []) {
    size += chunk.length;
    if (size > maxBytes) throw tooLarge();
    body += decoder.decode(chunk, { stream: true });
  }
  return body + decoder.decode();
}

function partition(store: IndexStore, fields: Fields) {
  const model = required(text(fields, "model_name"), "model_name");
  const group = text(fields, "routing_group") ?? DEFAULT_GROUP;
  const found = store.partition(model, group);
  if (found !== undefined) return found;
  throw new BatonError("not_found", `no index for model ${model}, group ${group}`);
}

function required<T>(value: T | undefined, field: string): T {
  if (value === undefined) throw new BatonError("bad_request", `${field} is missing`);
  return value;
}

function bad(field: string, wanted: string): BatonError {
  return new BatonError("bad_request", `${field} is not ${wanted}`);
}

/** Text; null and "" count as absent. */
function text(fields: Fields, field: string): string | undefined {
  const value = fields[field];
  if (value === undefined || value === null || value === "") return undefined;
  if (typeof value !== "string") throw bad(field, "text");
  return value;
}

/** A worker's name; numbers are u64 and stand for their digits. */
function worker(fields: Fields): string | undefined {
  const value = fields["instance_id"];
  if (value === undefined || value === null || value === "") return undefined;
  if (typeof value === "string") return value;
  const number = typeof value === "number" && value < 0 ? undefined : toU64(value);
  if (number === undefined) throw bad("instance_id", "a u64 or text");
  return number.toString();
}

function count(fields: Fields, field: string): number | undefined {
  const value = fields[field];
  if (value === undefined || value === null) return undefined;
  if (typeof value === "number" && Number.isInteger(value) && value >= 1 && value < 2 ** 31) {
    return value;
  }
  throw bad(field, "a whole number above 0");
}

function rank(fields: Fields): number | undefined {
  const value = fields["dp_rank"];
  if (value === undefined || value === null) return undefined;
  if (typeof value === "number" && Number.isInteger(value) && value >= 0 && value < 2 ** 32) {
    return value;
  }
  throw bad("dp_rank", "a whole number");
}

function list(fields: Fields, field: string): readonly Json[] {
  const value = fields[field];
  if (!Array.isArray(value)) throw bad(field, "a list");
  return value;
}

function tokens(fields: Fields): Uint32Array {
  const values = list(fields, "token_ids");
  const out = new Uint32Array(values.length);
  for (let i = 0; i < values.length; i++) {
    const value = values[i];
    if (typeof value !== "number" || value >>> 0 !== value) throw bad("token_ids", "u32 only");
    out[i] = value;
  }
  return out;
}

function hashes(fields: Fields): BigUint64Array {
  const values = list(fields, "block_hashes");
  const out = new BigUint64Array(values.length);
  for (let i = 0; i < values.length; i++) {
    const hash = toU64(values[i]);
    if (hash === undefined) throw bad("block_hashes", "64-bit numbers only");
    out[i] = hash;
  }
  return out;
}

function peerUrl(fields: Fields): string {
  const url = required(text(fields, "url"), "url");
  if (!/^https?:\/\//.test(url) || !URL.canParse(url)) throw bad("url", "an http or https URL");
  return url;
}
