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
import { printU64Json, workerNumber } from "../kv/u64_json.ts";
import type { KvWorkers, ListenerRow, WorkerRow } from "../kv/workers.ts";
import { RegisteredPeers } from "../replica/registered_peers.ts";
import { byteLines, LineTooLong } from "../streams/byte_lines.ts";
import {
  count,
  DEFAULT_GROUP,
  type Fields,
  hashes,
  MAX_BODY_BYTES,
  rank,
  readFields,
  required,
  text,
  tokens,
  worker,
} from "./json_fields.ts";

/** Peers that operators add at run time; the replica's discovery may be behind it. */
export interface PeerRegister {
  list(): readonly string[];
  /** Throws `bad_request` for what is not a peer's address, `conflict` when there are too many. */
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

/**
 * Makes the routes, to be mounted at the root of an app that turns errors into answers and that only
 * the cluster reaches.
 */
export function createIndexerApi(options: IndexerApiOptions): Hono {
  const { store, workers, events } = options;
  const peers = options.peers ?? new RegisteredPeers();
  const maxBodyBytes = options.maxBodyBytes ?? MAX_BODY_BYTES;
  const app = new Hono();

  const fieldsOf = (context: Context): Promise<Fields> => readFields(context.req.raw, maxBodyBytes);

  app.get("/health", () => json({ status: "ok" }));

  app.post("/register", async (context) => {
    const fields = await fieldsOf(context);
    void workers.register({
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
    const bytes = plainBytes(body, context.req.header("content-encoding") ?? "identity");
    try {
      return json(await events.take(byteLines(bytes, { maxLineBytes: maxBodyBytes })), 202);
    } catch (error) {
      if (!(error instanceof LineTooLong)) throw error;
      throw new BatonError("body_too_large", error.message);
    }
  });

  app.post("/register_peer", async (context) => {
    peers.add(required(text(await fieldsOf(context), "url"), "url"));
    return json({ status: "ok" }, 201);
  });
  app.post("/deregister_peer", async (context) => {
    const url = required(text(await fieldsOf(context), "url"), "url");
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

/** Unpacks a body. What it fails with is the sender's fault, or the sender is gone. */
async function* plainBytes(
  body: ReadableStream<Uint8Array<ArrayBuffer>>,
  encoding: string,
): AsyncGenerator<Uint8Array, void> {
  const name = encoding.trim().toLowerCase();
  if (name !== "gzip" && name !== "identity") {
    throw new BatonError("bad_request", `content-encoding ${encoding} is not understood`);
  }
  try {
    if (name === "gzip") yield* body.pipeThrough(new DecompressionStream("gzip"));
    else yield* body;
  } catch (cause) {
    const what = name === "gzip" ? "is not gzip, or broke off" : "broke off";
    throw new BatonError("bad_request", `the body ${what}`, { cause });
  }
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

function partition(store: IndexStore, fields: Fields) {
  const model = required(text(fields, "model_name"), "model_name");
  const group = text(fields, "routing_group") ?? DEFAULT_GROUP;
  const found = store.partition(model, group);
  if (found !== undefined) return found;
  throw new BatonError("not_found", `no index for model ${model}, group ${group}`);
}
