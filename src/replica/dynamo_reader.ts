/**
 * Reads Dynamo's dump, so that a replica can recover from a Dynamo indexer or router.
 *
 * The shape mixes the lanes of a partition and says nothing about where a lane's events stand, so
 * here a whole partition is held until its object ends, and the lanes are given on with an unknown
 * cursor and epoch. docs/dump-format.md says what that costs.
 */

import { TIERS } from "../kv/blocks.ts";
import { laneId, type LaneKey } from "../kv/lane_key.ts";
import { type JsonU64, NotJsonText, parseJsonU64 } from "../streams/json_u64.ts";
import { DumpBroken, type LaneLine } from "./dump_format.ts";
import type { DumpReaderOptions, DumpSink } from "./dump_reader.ts";
import { dynamoPartition, dynamoWorkerId } from "./dynamo_ids.ts";
import { DynamoLane, type DynamoRoom } from "./dynamo_lane.ts";
import { JsonDumpScanner, jsonString } from "./json_dump_scanner.ts";
import { WorkSlice } from "../kv/work_slice.ts";

export interface DynamoReaderOptions extends DumpReaderOptions {
  /**
   * The lanes that we know: only these are taken, and only by exact names. `any` takes all, with
   * names as they are guessed from the dump (a partition's name is split at its last colon).
   */
  readonly catalogue: readonly LaneKey[] | "any";
}

const TIER_OF: Readonly<Record<string, number>> = {
  device: 1 << TIERS.indexOf("device"),
  host_pinned: 1 << TIERS.indexOf("host"),
  disk: 1 << TIERS.indexOf("disk"),
  external: 1 << TIERS.indexOf("external"),
};

/** Reads to the end of the object. Throws `DumpBroken` for anything that does not fit the shape. */
export async function readDynamoDump(
  chunks: AsyncIterable<Uint8Array>,
  sink: DumpSink,
  options: DynamoReaderOptions,
): Promise<{ lanes: number; blocks: number }> {
  const catalogue = options.catalogue === "any"
    ? new AnyCatalogue()
    : new Catalogue(options.catalogue);
  const finished: Partition[] = [];
  let current: Partition | undefined;
  const scanner = new JsonDumpScanner({
    partition: (key) => {
      const room = { blocks: options.maxLaneBlocks };
      current = new Partition(catalogue.partition(jsonString(key)), room);
    },
    member: (key, value) => current?.member(key, value),
    event: (text) => current?.event(parse(text)),
    endPartition: () => {
      if (current !== undefined) finished.push(current);
    },
  });
  const slice = new WorkSlice(options.clock);
  const settled = new Set<string>();
  let lanes = 0;
  let blocks = 0;
  const give = async (lane: DynamoLane, blockSize: number): Promise<void> => {
    const head = headOf(lane, blockSize);
    settled.add(laneId(lane.key));
    if (!sink.lane(head)) return;
    const cut = lane.cut();
    lanes += 1;
    blocks += cut.blocks.count;
    await sink.commit(cut, head);
  };
  for await (const chunk of chunks) {
    // Small steps: a chunk may hold many events, and parsing them all would take too long a turn.
    for (let at = 0; at < chunk.length; at += STEP_BYTES) {
      let failure: unknown;
      try {
        scanner.push(chunk.subarray(at, at + STEP_BYTES));
      } catch (error) {
        failure = error;
      }
      // Also after a failure: what came to its end before it is whole.
      for (const partition of finished.splice(0)) {
        const blockSize = partition.blockSize;
        if (blockSize === undefined) throw new DumpBroken("a partition without its block size");
        for (const lane of partition.lanes) await give(lane, blockSize);
      }
      if (failure !== undefined) throw failure;
      const rest = slice.rest();
      if (rest !== undefined) await rest;
    }
  }
  if (!scanner.ended) throw new DumpBroken("the body ended before the dump did");
  // A lane that a whole dump does not mention holds nothing there.
  for (const key of catalogue.unambiguous()) {
    if (!settled.has(laneId(key))) await give(new DynamoLane(key, { blocks: 0 }), 0);
  }
  return { lanes, blocks };
}

const STEP_BYTES = 16 * 1024;

function headOf(lane: DynamoLane, blockSize: number): LaneLine {
  return {
    kind: "lane",
    ...lane.key,
    blockSize,
    epoch: "",
    cursor: null,
    degraded: null,
    tier: 1,
    count: lane.count,
  };
}

function parse(text: string): Record<string, JsonU64> {
  try {
    const value = parseJsonU64(text);
    if (typeof value === "object" && value !== null && !Array.isArray(value)) return value;
  } catch (error) {
    if (!(error instanceof NotJsonText)) throw error;
    throw new DumpBroken(`an event is not JSON: ${error.message}`, { cause: error });
  }
  throw new DumpBroken("an event is not an object");
}

interface KnownLanes {
  get(lane: string): LaneKey | "ambiguous" | undefined;
}

/** Known lanes by Dynamo's names for them; names that stand for two of ours stand for none. */
class Catalogue {
  readonly #partitions = new Map<string, Map<string, LaneKey | "ambiguous">>();

  constructor(keys: readonly LaneKey[]) {
    const owner = new Map<string, string>();
    for (const key of keys) {
      const name = dynamoPartition(key);
      const exact = JSON.stringify([key.model, key.group]);
      const first = owner.get(name);
      if (first === undefined) owner.set(name, exact);
      const lanes = this.#partitions.get(name) ?? new Map<string, LaneKey | "ambiguous">();
      this.#partitions.set(name, lanes);
      const lane = laneName(dynamoWorkerId(key.worker), key.dpRank);
      const clash = lanes.has(lane) || (first !== undefined && first !== exact);
      lanes.set(lane, clash ? "ambiguous" : key);
    }
    for (const [name, exact] of owner) {
      const two = keys.some((key) =>
        dynamoPartition(key) === name && JSON.stringify([key.model, key.group]) !== exact
      );
      if (two) this.#partitions.delete(name);
    }
  }

  partition(name: string): KnownLanes {
    return this.#partitions.get(name) ?? new Map();
  }

  unambiguous(): LaneKey[] {
    return [...this.#partitions.values()].flatMap((lanes) => [...lanes.values()]).filter(
      (key) => key !== "ambiguous",
    );
  }
}

class AnyCatalogue {
  partition(name: string): KnownLanes {
    const colon = name.lastIndexOf(":");
    const model = colon === -1 ? name : name.slice(0, colon);
    const group = colon === -1 ? "default" : name.slice(colon + 1);
    return {
      get(lane) {
        const [worker = "", dpRank = "0"] = lane.split("/");
        return { model, group, worker, dpRank: Number(dpRank) };
      },
    };
  }

  unambiguous(): LaneKey[] {
    return [];
  }
}

function laneName(worker: bigint, dpRank: number): string {
  return `${worker}/${dpRank}`;
}

class Partition {
  readonly #known: KnownLanes;
  readonly #room: DynamoRoom;
  readonly #lanes = new Map<string, DynamoLane>();
  blockSize: number | undefined;

  constructor(known: KnownLanes, room: DynamoRoom) {
    this.#known = known;
    this.#room = room;
  }

  get lanes(): Iterable<DynamoLane> {
    return this.#lanes.values();
  }

  member(key: string, value: string): void {
    if (key === "error") throw new DumpBroken(`an error inside the dump: ${value.slice(0, 200)}`);
    if (key !== "block_size") return;
    const size = Number(value.trim());
    if (!Number.isInteger(size) || size < 1) throw new DumpBroken("a bad block size");
    this.blockSize = size;
  }

  event(routed: Record<string, JsonU64>): void {
    const inner = routed.event;
    if (!isRecord(inner)) throw new DumpBroken("an event without its event");
    // Another residency domain than the worker's, or one not known, is not for the worker's lane.
    if ("residency_domain" in routed && routed.residency_domain !== "worker") return;
    const tier = TIER_OF[String(routed.storage_tier ?? "device")];
    if (tier === undefined) return;
    const dpRank = inner.dp_rank ?? 0;
    if (typeof dpRank !== "number") throw new DumpBroken("a bad dp_rank");
    const lane = this.#lane(u64(routed.worker_id, "worker_id"), dpRank);
    if (lane === undefined) return;
    const data = inner.data;
    if (!isRecord(data) || !isRecord(data.stored)) {
      throw new DumpBroken("a dump holds stored events only");
    }
    const { parent_hash, blocks, start_position } = data.stored;
    if (!Array.isArray(blocks)) throw new DumpBroken("a stored event without blocks");
    const parent = parent_hash === null || parent_hash === undefined
      ? undefined
      : u64(parent_hash, "parent_hash");
    // A position without a parent says where in a sequence, and not in which one.
    if (parent === undefined && typeof start_position === "number" && start_position > 0) return;
    lane.stored(parent, tier, blocks.map(hashes));
  }

  #lane(worker: bigint, dpRank: number): DynamoLane | undefined {
    const name = laneName(worker, dpRank);
    const known = this.#known.get(name);
    if (known === undefined || known === "ambiguous") return undefined;
    let lane = this.#lanes.get(name);
    if (lane === undefined) {
      lane = new DynamoLane(known, this.#room);
      this.#lanes.set(name, lane);
    }
    return lane;
  }
}

function hashes(block: JsonU64): { engine: bigint; local: bigint } {
  if (!isRecord(block)) throw new DumpBroken("a block is not an object");
  return {
    engine: u64(block.block_hash, "block_hash"),
    local: u64(block.tokens_hash, "tokens_hash"),
  };
}

function u64(value: JsonU64 | undefined, field: string): bigint {
  if (typeof value === "bigint" || (typeof value === "number" && Number.isSafeInteger(value))) {
    const number = BigInt(value);
    // The selection API writes the same hashes as signed numbers; both mean the same 64 bits.
    if (number >= -(2n ** 63n) && number < 2n ** 64n) return BigInt.asUintN(64, number);
  }
  throw new DumpBroken(`a bad "${field}"`);
}

function isRecord(value: JsonU64 | undefined): value is { [key: string]: JsonU64 } {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
