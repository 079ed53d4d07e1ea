/**
 * KV events as JSON lines: the event fields of Mooncake's RFC 1403, plus an envelope that says whose
 * they are. docs/wire-formats.md specifies the line; this file reads one.
 */

import type { KvEvent } from "./blocks.ts";
import { tierOf } from "./event_reader.ts";
import type { LaneKey } from "./lane_key.ts";
import { type Json, parseU64Json, toU64 } from "./u64_json.ts";

/** One event of one lane. */
export interface EventLine {
  readonly key: LaneKey;
  /** Tokens in a block as the line has it; undefined = the partition's. */
  readonly blockSize: number | undefined;
  /** The publisher's number of the batch that the event belongs to; undefined = simply the next. */
  readonly seq: bigint | undefined;
  readonly epoch: string | undefined;
  readonly event: KvEvent;
}

/** A line that cannot be taken; the message says why, in words for its sender. */
export class LineRefused extends Error {
  override readonly name = "LineRefused";
}

type Fields = { readonly [key: string]: Json };

const MAX_NAME = 512;
const MOST_U32 = 2 ** 32 - 1;
const A_HASH = "a 64-bit integer: a number, or text in decimal or after 0x";

/** Reads a line. Throws `LineRefused`. `blockSizeOf` gives a known partition's block size, or 0. */
export function readEventLine(
  text: string,
  blockSizeOf: (key: LaneKey) => number,
): EventLine {
  let parsed: Json;
  try {
    parsed = parseU64Json(text);
  } catch {
    throw new LineRefused("not JSON");
  }
  if (typeof parsed !== "object" || parsed === null || Array.isArray(parsed)) {
    throw new LineRefused("not a JSON object");
  }
  const fields = parsed as Fields;
  const key: LaneKey = {
    model: name(fields, ["model", "model_name"]) ?? refuse("model_name is missing"),
    group: name(fields, ["group", "routing_group"]) ?? "default",
    worker: name(fields, ["worker", "instance_id", "backend_id"]) ?? refuse("worker is missing"),
    dpRank: whole(fields["dp_rank"] ?? 0, "dp_rank"),
  };
  const blockSize = fields["block_size"] === undefined || fields["block_size"] === null
    ? undefined
    : whole(fields["block_size"], "block_size", 1);
  const seq = sequence(fields["seq"]);
  const epoch = fields["epoch"];
  if (epoch !== undefined && epoch !== null && typeof epoch !== "string") {
    throw new LineRefused("epoch is not text");
  }
  const event = readEvent(fields, blockSize ?? blockSizeOf(key));
  return { key, blockSize, seq, epoch: epoch ?? undefined, event };
}

function readEvent(fields: Fields, blockSize: number): KvEvent {
  const medium = fields["medium"];
  if (medium !== undefined && medium !== null && typeof medium !== "string") {
    throw new LineRefused("medium is not text");
  }
  const tier = tierOf(medium ?? undefined);
  switch (fields["event_type"]) {
    case "cleared":
      return { kind: "cleared" };
    case "removed":
      return { kind: "removed", hashes: hashes(fields["seq_hashes"], "seq_hashes"), tier };
    case "stored":
      return readStored(fields, blockSize, tier);
    default:
      throw new LineRefused("event_type is not stored, removed or cleared");
  }
}

function readStored(fields: Fields, blockSize: number, tier: ReturnType<typeof tierOf>): KvEvent {
  const engines = hashes(fields["seq_hashes"], "seq_hashes");
  if (engines.length === 0) throw new LineRefused("seq_hashes is empty");
  const parent = optional(fields["parent_hash"], "parent_hash");
  if (parent !== undefined && engines.includes(parent)) {
    throw new LineRefused("a block is its own parent");
  }
  if (new Set(engines).size !== engines.length) {
    throw new LineRefused("seq_hashes names a block twice");
  }
  const locals = fields["tokens_hashes"];
  if (locals !== undefined && locals !== null) {
    const own = hashes(locals, "tokens_hashes");
    if (own.length !== engines.length) {
      throw new LineRefused("tokens_hashes and seq_hashes differ in length");
    }
    return { kind: "stored_hashed", parent, hashes: engines, locals: own, tier };
  }
  if (blockSize < 1) throw new LineRefused("block_size is missing");
  const tokens = tokenIds(fields["token_ids"]);
  if (tokens.length !== engines.length * blockSize) {
    throw new LineRefused(
      `${tokens.length} token_ids for ${engines.length} blocks of ${blockSize}`,
    );
  }
  const lora = name(fields, ["lora_name"]);
  const salt = name(fields, ["additional_salt", "cache_salt"]);
  return {
    kind: "stored",
    parent,
    hashes: engines,
    tokens,
    blockSize,
    tier,
    ...(lora === undefined ? {} : { lora }),
    ...(salt === undefined ? {} : { salt }),
  };
}

function refuse(reason: string): never {
  throw new LineRefused(reason);
}

/** The first of these fields that has text or a whole number; "" and null count as absent. */
function name(fields: Fields, keys: readonly string[]): string | undefined {
  for (const key of keys) {
    const value = fields[key];
    if (value === undefined || value === null || value === "") continue;
    if (typeof value === "bigint" || (typeof value === "number" && Number.isInteger(value))) {
      return String(value);
    }
    if (typeof value !== "string") throw new LineRefused(`${key} is not text`);
    if (value.length > MAX_NAME) throw new LineRefused(`${key} is too long`);
    return value;
  }
  return undefined;
}

function whole(value: Json, field: string, least = 0): number {
  if (typeof value === "number" && Number.isInteger(value) && value >= least && value <= MOST_U32) {
    return value;
  }
  throw new LineRefused(`${field} is not a whole number from ${least} to ${MOST_U32}`);
}

/** A batch's number, which unlike a hash is never one with a sign. */
function sequence(value: Json | undefined): bigint | undefined {
  if (value === undefined || value === null) return undefined;
  const seq = Number(value) < 0 ? undefined : toU64(value);
  return seq ?? refuse("seq is not a whole number from 0 to 2^64 - 1");
}

function optional(value: Json | undefined, field: string): bigint | undefined {
  if (value === undefined || value === null) return undefined;
  return toU64(value) ?? refuse(`${field} is not ${A_HASH}`);
}

function hashes(value: Json | undefined, field: string): BigUint64Array {
  if (!Array.isArray(value)) throw new LineRefused(`${field} is not a list`);
  const list: readonly Json[] = value;
  const out = new BigUint64Array(list.length);
  for (let i = 0; i < list.length; i++) {
    out[i] = toU64(list[i]) ?? refuse(`${field} has something that is not ${A_HASH}`);
  }
  return out;
}

function tokenIds(value: Json | undefined): Uint32Array {
  if (!Array.isArray(value)) throw new LineRefused("token_ids (or tokens_hashes) is missing");
  const list: readonly Json[] = value;
  const out = new Uint32Array(list.length);
  for (let i = 0; i < list.length; i++) out[i] = whole(list[i] ?? null, "a token id");
  return out;
}
