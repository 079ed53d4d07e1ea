/** What the tests of lanes stand on: a worker with a ring, a real index, a clock that stands still. */
import type { KvEvent } from "../../src/kv/blocks.ts";
import { BlockHasher } from "../../src/kv/hash.ts";
import { createKvMeters, type KvMeters } from "../../src/kv/kv_meters.ts";
import {
  Lane,
  type LaneBatch,
  type LaneEvent,
  type LaneLimits,
  type LaneSource,
  type ReplayEnd,
} from "../../src/kv/lane.ts";
import { PrefixIndex } from "../../src/kv/prefix_index.ts";
import { Slices } from "../../src/kv/slices.ts";
import { silentLog } from "../../src/observe/log.ts";
import { createMetrics } from "../../src/observe/metrics.ts";
import type { Random } from "../../src/runtime/runtime.ts";
import { StillClock } from "../support/still_clock.ts";

export const BLOCK_SIZE = 2;
const hasher = await BlockHasher.create();

/** A store of one-token-pair blocks whose content follows from `names`, hashes from `incarnation`. */
export function store(
  names: readonly number[],
  options: { parent?: number; incarnation?: number; salt?: string; lora?: string } = {},
): KvEvent {
  const { parent, incarnation = 0, salt, lora } = options;
  return {
    kind: "stored",
    parent: parent === undefined ? undefined : hashOf(parent, incarnation),
    hashes: BigUint64Array.from(names, (name) => hashOf(name, incarnation)),
    tokens: Uint32Array.from(names.flatMap((name) => [name, name + 1])),
    blockSize: BLOCK_SIZE,
    tier: "device",
    ...(salt === undefined ? {} : { salt }),
    ...(lora === undefined ? {} : { lora }),
  };
}

export function remove(names: readonly number[], incarnation = 0): KvEvent {
  const hashes = BigUint64Array.from(names, (name) => hashOf(name, incarnation));
  return { kind: "removed", hashes, tier: "device" };
}

export const clear: KvEvent = { kind: "cleared" };

export function hashOf(name: number, incarnation = 0): bigint {
  return (BigInt(incarnation + 1) << 40n) | BigInt(name);
}

let stamp = 1;

/** A batch; each call makes another one, as a publisher's clock would have it. */
export function batch(seq: number | bigint, ...events: LaneEvent[]): LaneBatch {
  return { seq: BigInt(seq), events, digest: stamp++, bytes: 100 };
}

/** A worker's replay ring. */
export class Ring {
  batches: LaneBatch[] = [];
  readonly requests: bigint[] = [];
  mode: "normal" | "silent" | "refused" | "cut" | "holes" = "normal";
  /** Holds answers back until `go` is called. */
  gate: Promise<void> | undefined;
  readonly clock: StillClock;

  constructor(clock: StillClock, ...batches: LaneBatch[]) {
    this.clock = clock;
    this.batches = batches;
  }

  source(): LaneSource {
    return { replay: (from, deliver, stop) => this.#replay(from, deliver, stop) };
  }

  async #replay(
    from: bigint,
    deliver: (batch: LaneBatch) => boolean,
    stop: AbortSignal,
  ): Promise<ReplayEnd> {
    this.requests.push(from);
    await this.gate;
    if (this.mode === "refused") return { kind: "failed", message: "refused" };
    if (this.mode === "silent") {
      await new Promise<void>((resolve) => this.clock.after(5_000, resolve));
      return { kind: "timeout" };
    }
    const wanted = this.batches.filter((item) => item.seq >= from);
    let count = 0;
    for (const item of wanted) {
      count += 1;
      if (stop.aborted) return { kind: "stopped" };
      if (this.mode === "cut" && count > wanted.length / 2) break;
      if (this.mode === "holes" && count % 3 === 2) continue;
      if (!deliver(item)) return { kind: "stopped" };
    }
    return { kind: "complete" };
  }
}

export interface World {
  readonly clock: StillClock;
  readonly index: PrefixIndex;
  readonly lane: Lane;
  readonly ring: Ring;
  readonly meters: KvMeters;
  /** Names of the blocks that the index holds for the lane. */
  held(incarnation?: number): number[];
  metrics(): Promise<string>;
}

export interface WorldOptions {
  /** Without a ring lost batches are gone. */
  readonly hasRing?: boolean;
  readonly onLostEvents?: "clear" | "keep";
  readonly limits?: Partial<LaneLimits>;
  readonly clock?: StillClock;
  readonly ring?: Ring;
  /** An index that several worlds share; by default each has its own. */
  readonly index?: PrefixIndex;
}

let ids = 0;
const random: Random = {
  number: () => 0.5,
  uuid: () => `epoch-${ids++}`,
  bytes: (length) => new Uint8Array(length),
};

/** A lane that is connected, with nothing received. */
export async function createWorld(options: WorldOptions = {}): Promise<World> {
  const clock = options.clock ?? new StillClock();
  const ring = options.ring ?? new Ring(clock);
  const index = options.index ?? await PrefixIndex.create({ blockSize: BLOCK_SIZE });
  const metrics = createMetrics();
  const meters = createKvMeters(metrics);
  const lane = new Lane({
    key: { model: "m:1", group: "default", worker: "w", dpRank: 0 },
    index,
    settings: { blockSize: BLOCK_SIZE, hashBytes: (bytes) => hasher.bytes(bytes, 0n) },
    slices: new Slices({ clock }),
    clock,
    random,
    log: silentLog,
    meters,
    ...(options.limits === undefined ? {} : { limits: options.limits }),
    ...(options.onLostEvents === undefined ? {} : { onLostEvents: options.onLostEvents }),
  });
  if (options.hasRing === true) lane.attach(ring.source());
  return {
    clock,
    index,
    lane,
    ring,
    meters,
    held: (incarnation = 0) =>
      [...index.snapshot(lane.handle).engines]
        .map((hash) =>
          Number(hash & 0xffffffffffn) * (hash >> 40n === BigInt(incarnation + 1) ? 1 : -1)
        )
        .sort((a, b) => a - b),
    metrics: () => metrics.text(),
  };
}
