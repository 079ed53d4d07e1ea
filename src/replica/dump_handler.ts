/**
 * `GET /dump` on the peer listener.
 *
 * Until this replica has recovered the answer is 503: an index that is still being filled must not
 * be taken for a whole one. Who asks for no more than that may have the lanes that it has restored,
 * so that replicas whose only source died can give each other what each of them got. At most a few
 * dumps run at once, so that many joiners cannot take the processor from the requests that this
 * replica routes.
 */

import { type Context, Hono } from "hono";
import { BatonError, errorResponse } from "../errors.ts";
import type { Admission } from "../lifecycle/admission.ts";
import type { Log } from "../observe/log.ts";
import type { Runtime } from "../runtime/runtime.ts";
import { acceptsGzip, prefersJson } from "./accept.ts";
import { dumpBody, type DumpEnd } from "./dump_body.ts";
import { DUMP_CONTENT_TYPE } from "./dump_format.ts";
import type { DumpMetrics } from "./dump_metrics.ts";
import { dumpSlices, type DumpSource } from "./dump_writer.ts";
import { dynamoLeastBytes, dynamoSlices } from "./dynamo_writer.ts";
import { laneId } from "../kv/lane_key.ts";
import { PATIENT_TURN_MS } from "../kv/turns.ts";
import { WorkSlice } from "../kv/work_slice.ts";
import type { LaneStore, RecoverableLane } from "./lane_port.ts";
import type { LoadProvider } from "./load_provider.ts";

export interface DumpHandlerOptions {
  readonly runtime: Pick<Runtime, "clock" | "random">;
  readonly log: Log;
  readonly metrics: DumpMetrics;
  readonly store: LaneStore;
  /** Names this run of this replica; the same as the recovery's. */
  readonly replica: string;
  /** False until this replica may be a source. */
  readonly recovered: () => boolean;
  /** True while a dump of a recovered peer is coming in: who waits for us waits with reason. */
  readonly hasSource?: () => boolean;
  /** Whether this lane may be given away before this replica has recovered. None when absent. */
  readonly offers?: (lane: RecoverableLane) => boolean;
  readonly exportLoad?: LoadProvider["exportLoad"];
  /** Dumps that may run at once. */
  readonly maxDumps?: number;
  readonly idleTimeoutMs?: number;
  /** Counts each dump from its begin to its end, so that a host that goes down can wait for them. */
  readonly running?: Pick<Admission, "enter">;
}

/** Header that names the answering replica, so that one can tell oneself from others. */
export const REPLICA_HEADER = "baton-replica";
/** Header of a dump that is not of all lanes because this replica recovers itself. */
export const SCOPE_HEADER = "baton-dump-scope";

type Slice = Uint8Array<ArrayBuffer>;
type Wanted = (lane: RecoverableLane) => boolean;

interface AskedDump {
  /** In Dynamo's shape. */
  readonly json: boolean;
  readonly wanted: Wanted;
  readonly exportLoad?: LoadProvider["exportLoad"];
  readonly maxBytes?: number;
}

const LANE_ID_SHAPE = '["model","group","worker",dpRank] as JSON';
const MOST_LANE_FILTERS = 256;

/**
 * An app with the one route `GET /dump`, to be mounted on the peer listener, which asks for the
 * token before anything gets here.
 */
export function createDumpHandler(options: DumpHandlerOptions): Hono {
  const { runtime, log, metrics, store } = options;
  const maxDumps = options.maxDumps ?? 2;
  const idleTimeoutMs = options.idleTimeoutMs ?? 30_000;
  let running = 0;

  const refuse = (error: BatonError): Response => {
    metrics.refused(error.code);
    const response = errorResponse(error);
    response.headers.set(REPLICA_HEADER, options.replica);
    return response;
  };

  const dump = async (c: Context): Promise<Response> => {
    try {
      return await answer(c);
    } catch (error) {
      if (error instanceof BatonError) return refuse(error);
      log.error("dump_failed", { error });
      return refuse(new BatonError("internal", "no dump"));
    }
  };

  const answer = async (c: Context): Promise<Response> => {
    const isWhole = options.recovered();
    if (!isWhole) checkOffers(c);
    const json = prefersJson(c.req.header("accept"));
    const headers = new Headers({
      "content-type": json ? "application/json" : DUMP_CONTENT_TYPE,
      "cache-control": "no-store",
      "vary": "accept, accept-encoding",
      [REPLICA_HEADER]: options.replica,
      ...(isWhole ? {} : { [SCOPE_HEADER]: "restored" }),
    });
    if (c.req.method === "HEAD") return new Response(null, { headers });
    const wanted = wantedLanes(c, isWhole);
    const maxBytes = byteBound(c.req.query("max_bytes"));
    if (maxBytes !== undefined && leastBytes(json, wanted) > maxBytes) {
      throw new BatonError("body_too_large", `the dump has over ${maxBytes} bytes`);
    }
    if (running >= maxDumps) {
      throw new BatonError("overloaded", `${running} dumps are running already`, {
        // Spread, so that those who were turned away do not come back together.
        retryAfterS: 1 + Math.floor(runtime.random.number() * 3),
      });
    }
    const body = await begin({
      json,
      wanted,
      ...(isWhole && options.exportLoad !== undefined ? { exportLoad: options.exportLoad } : {}),
      ...(maxBytes === undefined ? {} : { maxBytes }),
    });
    if (!acceptsGzip(c.req.header("accept-encoding"))) return new Response(body, { headers });
    headers.set("content-encoding", "gzip");
    return new Response(body.pipeThrough(new CompressionStream("gzip")), { headers });
  };

  /** Throws `not_ready` unless the caller asks for what was restored so far, and something was. */
  const checkOffers = (c: Context): void => {
    const { offers } = options;
    const restored = offers === undefined ? 0 : store.lanes().filter(offers).length;
    if (restored > 0 && c.req.query("restored") !== undefined) return;
    throw new BatonError("not_ready", "this replica has not recovered its index yet", {
      retryAfterS: 1,
      detail: { hasSource: options.hasSource?.() ?? false, restored },
    });
  };

  const wantedLanes = (c: Context, isWhole: boolean): Wanted => {
    const named = laneFilter(c.req.queries("lane") ?? []);
    if (isWhole) return named;
    return (lane) => options.offers?.(lane) === true && named(lane);
  };

  /** The body of a dump, which counts as running from now to its end. Rejects with what fails at once. */
  const begin = async (asked: AskedDump): Promise<ReadableStream<Slice>> => {
    const { json, wanted, exportLoad, maxBytes } = asked;
    const startedMs = runtime.clock.monotonic();
    let lanes = 0;
    let blocks = 0;
    const work = new WorkSlice(runtime.clock, PATIENT_TURN_MS);
    const source: DumpSource = {
      store,
      mustRest: () => work.isSpent,
      replica: options.replica,
      nowMs: runtime.clock.now(),
      onLane: (cut) => {
        lanes += 1;
        blocks += cut.blocks.count;
      },
      wanted,
      ...(exportLoad === undefined ? {} : { exportLoad }),
    };
    const leaveHost = options.running?.enter();
    running += 1;
    const leave = (): void => {
      running -= 1;
      leaveHost?.();
    };
    const onEnd = (end: DumpEnd, bytes: number, error?: unknown): void => {
      leave();
      const ms = runtime.clock.monotonic() - startedMs;
      metrics.ended(end, bytes, blocks, ms);
      const fields = { end, lanes, blocks, bytes, ms: Math.round(ms) };
      if (end === "complete") log.info("dump_served", fields);
      else log.warn("dump_broken_off", { ...fields, error });
    };
    const slices = json ? dynamoSlices(source) : dumpSlices(source);
    // What fails at once can still be said with a status; later only a broken body says it.
    let first: IteratorResult<Slice, void>;
    try {
      first = await slices.next();
    } catch (error) {
      leave();
      throw error;
    }
    metrics.started();
    return dumpBody(first.done === true ? slices : resumed(first.value, slices), {
      clock: runtime.clock,
      work,
      idleTimeoutMs,
      onEnd,
      ...(maxBytes === undefined ? {} : { maxBytes }),
    });
  };

  const leastBytes = (json: boolean, wanted: Wanted): number => {
    let blocks = 0;
    for (const lane of store.lanes()) if (wanted(lane)) blocks += lane.blocks;
    // Two hashes of 8 bytes as base64 are the least that a block takes.
    return json ? dynamoLeastBytes(blocks) : 100 + blocks * 21;
  };

  return new Hono().get("/dump", dump);
}

async function* resumed(
  first: Slice,
  rest: AsyncGenerator<Slice, void>,
): AsyncGenerator<Slice, void> {
  yield first;
  yield* rest;
}

/** The lanes of these ids; all if there is none. Throws `bad_request` for what is no lane's id. */
function laneFilter(ids: readonly string[]): Wanted {
  if (ids.length === 0) return () => true;
  const wanted = new Set(ids.slice(0, MOST_LANE_FILTERS).map(readLaneId));
  return (lane) => wanted.has(laneId(lane.key));
}

function readLaneId(text: string): string {
  let parts: unknown;
  try {
    parts = JSON.parse(text);
  } catch {
    throw badQuery("lane", LANE_ID_SHAPE, text);
  }
  const isId = Array.isArray(parts) && parts.length === 4 && Number.isSafeInteger(parts[3]) &&
    parts.slice(0, 3).every((part) => typeof part === "string");
  if (!isId) throw badQuery("lane", LANE_ID_SHAPE, text);
  return JSON.stringify(parts);
}

/** Undefined for no bound. Throws `bad_request` for what is no number. */
function byteBound(value: string | undefined): number | undefined {
  if (value === undefined) return undefined;
  if (!/^\d{1,15}$/.test(value)) throw badQuery("max_bytes", "a whole number of bytes", value);
  return Number(value) || undefined;
}

function badQuery(name: string, allowed: string, value: string): BatonError {
  return new BatonError("bad_request", `${name} must be ${allowed}, not ${value.slice(0, 100)}`);
}
