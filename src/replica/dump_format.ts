/**
 * The lines of a Baton dump, version 1. docs/dump-format.md is the specification.
 *
 * A dump is NDJSON: a header; for each lane a lane line, decoder lines, run lines and a lane-end
 * line; load lines; a trailer. u64 are decimal strings, or base64 of little-endian columns: never
 * JSON numbers.
 */

import type { LaneKey } from "../kv/lane_key.ts";

export const DUMP_FORMAT = "baton-dump";
export const DUMP_VERSION = 1;
export const DUMP_CONTENT_TYPE = "application/x-ndjson";
/** How block hashes and chain keys are made; a reader with other hashes refuses the dump. */
export const HASH_ALGORITHM = "xxh3-64";
export const HASH_SEED = "1337";

/** Blocks in a run line at most. */
export const MAX_RUN_BLOCKS = 64;
/** UTF-16 units of decoder text in one decoder line at most. */
export const MAX_DECODER_PIECE = 16_384;
/** Bytes of a line at most: a decoder piece with every letter escaped still fits. */
export const MAX_LINE_BYTES = 128 * 1024;

export interface HeaderLine {
  readonly kind: "header";
  readonly format: typeof DUMP_FORMAT;
  readonly version: number;
  /** Names one run of one replica. */
  readonly replica: string;
  readonly hash: string;
  readonly seed: string;
  /** ISO 8601, UTC. */
  readonly created: string;
  /** Lanes and blocks at the start: an estimate for progress reports, not a promise. */
  readonly lanes: number;
  readonly blocks: number;
}

export interface LaneLine {
  readonly kind: "lane";
  readonly model: string;
  readonly group: string;
  readonly worker: string;
  readonly dpRank: number;
  readonly blockSize: number;
  readonly epoch: string;
  /** Decimal u64, or null when nothing was ever applied. */
  readonly cursor: string | null;
  /** Why blocks may be missing (none is false either way), or null when the lane is complete. */
  readonly degraded: string | null;
  /** Tier mask of a run line that has no `tiers` of its own. */
  readonly tier: number;
  readonly count: number;
}

export interface DecoderLine {
  readonly kind: "decoder";
  /** The next piece of the JSON text of the decoder's state. */
  readonly text: string;
}

export interface RunLine {
  readonly kind: "run";
  readonly count: number;
  readonly engines: string;
  readonly locals: string;
  /** Rows in this lane, or -1; absent: each block's parent is the block before it. */
  readonly parents?: string;
  /** Absent: the lane's `tier` for all. */
  readonly tiers?: string;
  /** Absent: 1 for all. */
  readonly copies?: string;
}

export interface LaneEndLine {
  readonly kind: "lane_end";
  readonly count: number;
  readonly digest: string;
}

/** A hint about active load or affinity, opaque to the dump; best-effort. */
export interface LoadLine {
  readonly kind: "load";
  readonly load: unknown;
}

export interface TrailerLine {
  readonly kind: "trailer";
  readonly lanes: number;
  readonly blocks: number;
}

export type DumpLine =
  | HeaderLine
  | LaneLine
  | DecoderLine
  | RunLine
  | LaneEndLine
  | LoadLine
  | TrailerLine;

/** A dump that does not keep to its format, or that ended before its trailer. */
export class DumpBroken extends Error {
  override readonly name = "DumpBroken";
}

/** A dump that is well made and still not for us (other version, other hash). */
export class DumpRefused extends Error {
  override readonly name = "DumpRefused";
}

export function keyOf(line: LaneLine): LaneKey {
  return { model: line.model, group: line.group, worker: line.worker, dpRank: line.dpRank };
}

const MOST_U64 = 2n ** 64n - 1n;
const NAME_LIMIT = 1024;
const MOST_ROWS = 2 ** 31 - 1;

/**
 * One parsed line, checked field by field. Lines of a kind that is not known here give undefined
 * and are skipped: later versions may add some.
 */
export function checkLine(value: unknown): DumpLine | undefined {
  const line = record(value);
  switch (line.kind) {
    case "header":
      return {
        kind: "header",
        format: line.format === DUMP_FORMAT ? DUMP_FORMAT : fail("format"),
        version: integer(line.version, "version", MOST_ROWS),
        replica: text(line.replica, "replica"),
        hash: text(line.hash, "hash"),
        seed: text(line.seed, "seed"),
        created: text(line.created, "created"),
        lanes: integer(line.lanes, "lanes", MOST_ROWS),
        blocks: integer(line.blocks, "blocks", Number.MAX_SAFE_INTEGER),
      };
    case "lane":
      return {
        kind: "lane",
        model: text(line.model, "model"),
        group: text(line.group, "group"),
        worker: text(line.worker, "worker"),
        dpRank: integer(line.dpRank, "dpRank", 2 ** 32 - 1),
        blockSize: integer(line.blockSize, "blockSize", MOST_ROWS),
        epoch: text(line.epoch, "epoch"),
        cursor: line.cursor === null ? null : decimal(line.cursor, "cursor"),
        degraded: line.degraded === null ? null : text(line.degraded, "degraded"),
        tier: integer(line.tier, "tier", 15),
        count: integer(line.count, "count", MOST_ROWS),
      };
    case "run":
      return {
        kind: "run",
        count: integer(line.count, "count", MAX_RUN_BLOCKS),
        engines: string(line.engines, "engines"),
        locals: string(line.locals, "locals"),
        ...optional(line, "parents"),
        ...optional(line, "tiers"),
        ...optional(line, "copies"),
      };
    case "decoder":
      return { kind: "decoder", text: string(line.text, "text") };
    case "lane_end":
      return {
        kind: "lane_end",
        count: integer(line.count, "count", MOST_ROWS),
        digest: text(line.digest, "digest"),
      };
    case "load":
      return { kind: "load", load: line.load };
    case "trailer":
      return {
        kind: "trailer",
        lanes: integer(line.lanes, "lanes", MOST_ROWS),
        blocks: integer(line.blocks, "blocks", Number.MAX_SAFE_INTEGER),
      };
    default:
      return typeof line.kind === "string" ? undefined : fail("kind");
  }
}

function fail(field: string): never {
  throw new DumpBroken(`a line has a bad or missing "${field}"`);
}

function record(value: unknown): Record<string, unknown> {
  if (typeof value === "object" && value !== null && !Array.isArray(value)) {
    return value as Record<string, unknown>;
  }
  throw new DumpBroken("a line is not a JSON object");
}

function string(value: unknown, field: string): string {
  return typeof value === "string" ? value : fail(field);
}

function text(value: unknown, field: string): string {
  return typeof value === "string" && value.length <= NAME_LIMIT ? value : fail(field);
}

function integer(value: unknown, field: string, most: number): number {
  if (typeof value === "number" && Number.isInteger(value) && value >= 0 && value <= most) {
    return value;
  }
  return fail(field);
}

function decimal(value: unknown, field: string): string {
  if (typeof value === "string" && /^(0|[1-9][0-9]{0,19})$/.test(value)) {
    if (BigInt(value) <= MOST_U64) return value;
  }
  return fail(field);
}

function optional<K extends string>(line: Record<string, unknown>, field: K) {
  const value = line[field];
  if (value === undefined) return {};
  return { [field]: string(value, field) } as { [P in K]: string };
}
