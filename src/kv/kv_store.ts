/**
 * All partitions and all lanes of this process.
 *
 * A partition is one index for one model and routing group; its block size is that of its first lane
 * and goes when its last lane goes. A lane is opened once and closed once; a closed one takes nothing
 * any more, so events in flight cannot bring it back.
 */

import { BatonError } from "../errors.ts";
import { type Log, silentLog } from "../observe/log.ts";
import type { Metrics } from "../observe/metrics.ts";
import type { Clock, Random } from "../runtime/runtime.ts";
import { readDecoderState } from "./decoder_state.ts";
import type { EventReaderSettings } from "./event_reader.ts";
import { MAX_BLOCK_SIZE } from "./hash.ts";
import { createKvMeters, type KvMeters } from "./kv_meters.ts";
import { type HoldLimits, Lane, type LaneCut, type LaneLimits, type LaneState } from "./lane.ts";
import type { LaneIndex } from "./lane_content.ts";
import { isOneWorker, laneId, type LaneKey, partitionId } from "./lane_key.ts";
import { Slices } from "./slices.ts";

export interface KvStoreOptions<Index extends LaneIndex> {
  readonly clock: Clock;
  readonly random: Random;
  readonly log?: Log;
  readonly metrics?: Metrics;
  /** Makes the index of a partition, e.g. `PrefixIndex.create`. */
  readonly createIndex: (options: { blockSize: number }) => Promise<Index>;
  /** XXH3-64 (seed 0) of opaque names in events. */
  readonly hashBytes: (bytes: Uint8Array) => bigint;
  readonly imageToken?: number;
  readonly laneLimits?: Partial<LaneLimits>;
  readonly onLostEvents?: "clear" | "keep";
  /** Milliseconds of applying and decoding in one turn of the event loop. */
  readonly sliceMs?: number;
}

export interface Partition<Index extends LaneIndex> {
  readonly model: string;
  readonly group: string;
  readonly blockSize: number;
  readonly index: Index;
}

export type KvChange =
  | { readonly kind: "opened" | "closed"; readonly lane: Lane }
  | {
    readonly kind: "state";
    readonly lane: Lane;
    readonly from: LaneState;
    readonly to: LaneState;
  };

export interface OpenOptions {
  readonly blockSize: number;
  /**
   * Called with the lane before anybody else can see it, or at once if it is open already: to say
   * where its events come from.
   */
  readonly prepare?: (lane: Lane) => void;
}

/** A lane that is being opened, and all that has to be done to it then. */
interface Ticket {
  readonly promise: Promise<Lane>;
  readonly prepare: ((lane: Lane) => void)[];
  isCancelled: boolean;
}

interface Room<Index extends LaneIndex> {
  readonly blockSize: number;
  readonly ready: Promise<Index>;
  partition: Partition<Index> | undefined;
  /** Lanes that are open or being opened. */
  lanes: number;
}

/** How long a closed lane refuses to be opened by events that were still under way. */
const CLOSED_MEMORY_MS = 60_000;
/** Lanes of one worker above which a peer's copies open no further ones. */
const MAX_RANKS = 64;

export class KvStore<Index extends LaneIndex = LaneIndex> {
  readonly slices: Slices;
  readonly meters: KvMeters;
  readonly #options: KvStoreOptions<Index>;
  readonly #log: Log;
  readonly #rooms = new Map<string, Room<Index>>();
  readonly #lanes = new Map<string, Lane>();
  readonly #opening = new Map<string, Ticket>();
  /** When lanes were closed, by lane id. */
  readonly #closed = new Map<string, number>();
  readonly #listeners = new Set<(change: KvChange) => void>();
  #holdNew: HoldLimits | undefined;

  constructor(options: KvStoreOptions<Index>) {
    this.#options = options;
    this.#log = options.log ?? silentLog;
    this.meters = createKvMeters(options.metrics);
    if (options.metrics !== undefined) this.#gauges(options.metrics);
    this.slices = new Slices({
      clock: options.clock,
      ...(options.sliceMs === undefined ? {} : { budgetMs: options.sliceMs }),
    });
  }

  partitions(): Partition<Index>[] {
    const all: Partition<Index>[] = [];
    for (const room of this.#rooms.values()) {
      if (room.partition !== undefined) all.push(room.partition);
    }
    return all;
  }

  partition(model: string, group: string): Partition<Index> | undefined {
    return this.#rooms.get(partitionId({ model, group }))?.partition;
  }

  lanes(): Lane[] {
    return [...this.#lanes.values()];
  }

  lane(key: LaneKey): Lane | undefined {
    return this.#lanes.get(laneId(key));
  }

  /** Tokens in a block of the lane's partition, 0 if there is no such partition. */
  blockSize(key: { readonly model: string; readonly group: string }): number {
    return this.#rooms.get(partitionId(key))?.blockSize ?? 0;
  }

  /**
   * Opens a lane, or gives the one that is open. Rejects with `conflict` when the partition has
   * another block size.
   */
  open(key: LaneKey, options: OpenOptions): Promise<Lane> {
    const id = laneId(key);
    const room = this.#room(key, options.blockSize);
    if (room instanceof BatonError) return Promise.reject(room);
    this.#closed.delete(id);
    const open = this.#lanes.get(id);
    if (open !== undefined) {
      options.prepare?.(open);
      return Promise.resolve(open);
    }
    const opening = this.#opening.get(id);
    if (opening !== undefined && !opening.isCancelled) {
      if (options.prepare !== undefined) opening.prepare.push(options.prepare);
      return opening.promise;
    }
    room.lanes += 1;
    const ticket: Ticket = {
      prepare: options.prepare === undefined ? [] : [options.prepare],
      promise: room.ready.then((index) => {
        if (ticket.isCancelled) throw new BatonError("conflict", "closed while it was opened");
        this.#opening.delete(id);
        return this.#add(key, index, options.blockSize, ticket.prepare);
      }, (error) => {
        this.#opening.delete(id);
        this.#leave(key, room);
        throw error;
      }),
      isCancelled: false,
    };
    this.#opening.set(id, ticket);
    return ticket.promise;
  }

  /**
   * Throws `bad_request` for a block size that no partition can have, `conflict` if a lane with this
   * one would not fit its partition.
   */
  checkBlockSize(key: { readonly model: string; readonly group: string }, blockSize: number): void {
    if (!isBlockSize(blockSize)) throw badBlockSize(blockSize);
    const room = this.#rooms.get(partitionId(key));
    if (room !== undefined && room.blockSize !== blockSize) {
      throw mismatch(room.blockSize, blockSize);
    }
  }

  /** Closes a lane: gone from matches at once. Returns false if it was not open. */
  close(key: LaneKey): boolean {
    const id = laneId(key);
    this.#rememberClosed(id);
    const opening = this.#opening.get(id);
    if (opening !== undefined) {
      opening.isCancelled = true;
      opening.promise.catch(() => {});
      this.#opening.delete(id);
      this.#leave(key);
      return true;
    }
    const lane = this.#lanes.get(id);
    if (lane === undefined) return false;
    this.#lanes.delete(id);
    lane.close();
    this.#leave(key);
    this.#tell({ kind: "closed", lane });
    return true;
  }

  /** Was this lane closed a short while ago, and not opened by its owner since? */
  wasClosed(key: LaneKey): boolean {
    const at = this.#closed.get(laneId(key));
    return at !== undefined && this.#options.clock.monotonic() - at < CLOSED_MEMORY_MS;
  }

  /**
   * Opens the lane of a rank that nobody has registered, for a peer's copy of it: some engines number
   * their ranks themselves, and their workers are not known by all of them. Resolves with undefined
   * where the worker has no other lane here, or nothing shows that the copy is of the same publisher:
   * then nobody would hear that its blocks are gone. Throws `TypeError` for a decoder state that is
   * not well made.
   */
  async openRank(cut: LaneCut): Promise<Lane | undefined> {
    const { key } = cut;
    const open = this.lane(key);
    if (open !== undefined) return open;
    const ofWorker = this.lanes().filter((lane) => isOneWorker(lane.key, key));
    if (ofWorker.length === 0 || ofWorker.length >= MAX_RANKS || this.wasClosed(key)) {
      return undefined;
    }
    const heard = ofWorker.filter((lane) => lane.source !== undefined);
    // Ranks whose events are posted are numbered each for itself, and open with their first event.
    if (heard.length === 0) return await this.open(key, { blockSize: this.blockSize(key) });
    const { digests } = readDecoderState(cut.decoderState);
    for (const lane of heard) {
      await lane.source?.openRank?.(key.dpRank, digests);
      const opened = this.lane(key);
      if (opened !== undefined) return opened;
    }
    return undefined;
  }

  /** The limits of lanes that open now, while a recovery goes on; undefined = they are not held. */
  get holdsNew(): HoldLimits | undefined {
    return this.#holdNew;
  }

  /** Holds all lanes, and those to come as soon as they open, for a recovery. */
  holdAll(limits: HoldLimits): void {
    this.#holdNew = limits;
    for (const lane of this.#lanes.values()) lane.hold(limits);
  }

  /** Ends the holds: lanes to come start at once, and those still held go on without a snapshot. */
  releaseAll(): void {
    this.#holdNew = undefined;
    for (const lane of this.#lanes.values()) lane.release();
  }

  /** Calls `listener` after a lane opened, closed or changed its state, in a turn of its own. */
  onChange(listener: (change: KvChange) => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** Closes all lanes. */
  closeAll(): void {
    for (const lane of this.#lanes.values()) this.close(lane.key);
  }

  #gauges(metrics: Metrics): void {
    metrics.gauge("baton_kv_lanes", "Lanes by state.", ["state"]).collect((gauge) => {
      for (const lane of this.#lanes.values()) gauge.add(1, { state: lane.state });
    });
    metrics.gauge("baton_kv_blocks", "Blocks held, by model and group.", ["model", "group"])
      .collect((gauge) => {
        for (const lane of this.#lanes.values()) {
          gauge.add(lane.blocks, { model: lane.key.model, group: lane.key.group });
        }
      });
  }

  #room(key: LaneKey, blockSize: number): Room<Index> | BatonError {
    if (!isBlockSize(blockSize)) return badBlockSize(blockSize);
    const id = partitionId(key);
    const known = this.#rooms.get(id);
    if (known !== undefined) {
      return known.blockSize === blockSize ? known : mismatch(known.blockSize, blockSize);
    }
    const ready = this.#options.createIndex({ blockSize });
    const room: Room<Index> = { blockSize, ready, partition: undefined, lanes: 0 };
    this.#rooms.set(id, room);
    ready.then((index) => {
      room.partition = { model: key.model, group: key.group, blockSize, index };
    }, (error) => {
      this.#log.error("kv_index_failed", { model: key.model, group: key.group, error });
    });
    return room;
  }

  #add(key: LaneKey, index: Index, blockSize: number, prepare: Ticket["prepare"]): Lane {
    const { clock, random, hashBytes, imageToken, laneLimits, onLostEvents } = this.#options;
    const settings: EventReaderSettings = {
      blockSize,
      hashBytes,
      ...(imageToken === undefined ? {} : { imageToken }),
    };
    const lane = new Lane({
      key,
      index,
      settings,
      slices: this.slices,
      clock,
      random,
      log: this.#log,
      meters: this.meters,
      ...(laneLimits === undefined ? {} : { limits: laneLimits }),
      ...(onLostEvents === undefined ? {} : { onLostEvents }),
      changed: (changed, from, to) => this.#tell({ kind: "state", lane: changed, from, to }),
    });
    if (this.#holdNew !== undefined) lane.hold(this.#holdNew);
    this.#lanes.set(laneId(key), lane);
    this.#tell({ kind: "opened", lane });
    for (const one of prepare) one(lane);
    return lane;
  }

  /** The last lane takes the partition with it. */
  #leave(key: LaneKey, room = this.#rooms.get(partitionId(key))): void {
    if (room === undefined) return;
    room.lanes -= 1;
    if (room.lanes > 0 || this.#rooms.get(partitionId(key)) !== room) return;
    this.#rooms.delete(partitionId(key));
  }

  #rememberClosed(id: string): void {
    const now = this.#options.clock.monotonic();
    for (const [old, at] of this.#closed) {
      if (now - at < CLOSED_MEMORY_MS) break;
      this.#closed.delete(old);
    }
    this.#closed.delete(id);
    this.#closed.set(id, now);
  }

  /** Listeners may call the lane: never from inside of one of its own steps. */
  #tell(change: KvChange): void {
    queueMicrotask(() => {
      for (const listener of this.#listeners) listener(change);
    });
  }
}

function isBlockSize(size: number): boolean {
  return Number.isInteger(size) && size >= 1 && size <= MAX_BLOCK_SIZE;
}

function badBlockSize(size: number): BatonError {
  return new BatonError(
    "bad_request",
    `a block size of ${size}: it is a whole number from 1 to ${MAX_BLOCK_SIZE}`,
  );
}

function mismatch(has: number, wanted: number): BatonError {
  return new BatonError(
    "conflict",
    `the partition has blocks of ${has} tokens, not ${wanted}`,
    { detail: { block_size: has } },
  );
}
