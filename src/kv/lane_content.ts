/**
 * What a lane holds: its part of the index, and the reader of its events, moved forward together.
 *
 * Batches come in already in order and are applied a few hundred blocks at a time, whenever the
 * shared `Slices` say so; `cursor` is the last batch that is in completely.
 */

import type { KvEvent, LaneBlocks } from "./blocks.ts";
import { BatchQueue } from "./batch_queue.ts";
import { EventReader, type EventReaderSettings, type EventReaderState } from "./event_reader.ts";
import type { KvMeters } from "./kv_meters.ts";
import type { RowBuilder } from "./lane_blocks.ts";
import type { LaneBatch, LaneEvent } from "./lane_types.ts";
import type { Slices, Work } from "./slices.ts";

/** The part of `PrefixIndex` that a lane writes to. */
export interface LaneIndex {
  openLane(worker: string, dpRank: number): number;
  closeLane(lane: number): void;
  /** A removal that takes more than `most` blocks along ends with `left` of its blocks not done. */
  apply(lane: number, event: KvEvent, most?: number): {
    readonly applied: number;
    readonly unknownParent: number | boolean;
    readonly unknownBlocks: number;
    readonly left?: number;
  };
  snapshot(lane: number): LaneBlocks;
  /**
   * As `snapshot`, with `pause` awaited between slices and in the memory of `rows`; undefined if the
   * lane changed meanwhile.
   */
  snapshotInSlices?(
    lane: number,
    pause: () => Promise<void>,
    rows?: RowBuilder,
  ): Promise<LaneBlocks | undefined>;
  load(lane: number, blocks: LaneBlocks): void;
  /** As `load`, with `pause` awaited between slices; until the end the lane holds what it held. */
  loadInSlices?(lane: number, blocks: LaneBlocks, pause: () => Promise<void>): Promise<void>;
  count(lane: number): number;
}

export interface LaneContentOptions {
  readonly worker: string;
  readonly dpRank: number;
  readonly index: LaneIndex;
  readonly settings: EventReaderSettings;
  readonly slices: Slices;
  readonly meters: KvMeters;
  /** The publisher hashes what it hashed before differently: everything before is void. */
  readonly publisherChanged: () => void;
  /** All blocks of the rank went away by the publisher's own word. */
  readonly cleared: () => void;
  readonly log: (event: string, fields: Record<string, unknown>) => void;
}

/** Blocks that one step applies at most. */
const STEP_BLOCKS = 512;
/** Blocks that one step takes along with those that an event removes: about 1 ms. */
const STEP_CUT = 8192;
/** Bad events that are logged; all are counted. */
const MAX_LOGGED = 3;

export class LaneContent implements Work {
  readonly #options: LaneContentOptions;
  readonly #index: LaneIndex;
  readonly #reader: EventReader;
  readonly #ready: BatchQueue;
  readonly handle: number;
  #cursor: bigint | undefined;
  /** Events of the first ready batch that are applied already. */
  #eventAt = 0;
  /** What is left of an event that is larger than a step. */
  #rest: KvEvent | undefined;
  /**
   * False after a copy that does not say where in the events it was made: a block that is stored
   * again may be the one that is there already. So one removal takes all copies: whatever was counted
   * twice would else stay for ever.
   */
  #countsCopies = true;
  /** The removal at `#rest` was applied before, and goes on for further copies. */
  #isRepeated = false;
  #logged = 0;
  /** Copies that are being made or wait for the end of a batch: nothing more is applied. */
  #copies = 0;
  /** Counts what makes a copy void: the content was thrown away. */
  #voids = 0;
  #settled: (() => void)[] = [];

  constructor(options: LaneContentOptions) {
    this.#options = options;
    this.#index = options.index;
    this.#reader = new EventReader(options.settings);
    this.#ready = new BatchQueue(options.meters);
    this.handle = options.index.openLane(options.worker, options.dpRank);
  }

  /** Number of the last batch that is applied completely. */
  get cursor(): bigint | undefined {
    return this.#cursor;
  }

  /** Blocks held. */
  get count(): number {
    return this.#index.count(this.handle);
  }

  /** Bytes that are in order and wait to be applied. */
  get waitingBytes(): number {
    return this.#ready.bytes;
  }

  /** Takes the next batch in order. */
  push(batch: LaneBatch): void {
    this.#ready.push(batch);
    this.#options.slices.submit(this, "urgent");
  }

  step(): boolean {
    const batch = this.#ready.first;
    if (batch === undefined || (this.#copies > 0 && !this.#isInBatch)) return false;
    let budget = STEP_BLOCKS;
    while (budget > 0) {
      if (this.#rest !== undefined) {
        budget -= this.#applySome(this.#rest, budget);
        continue;
      }
      const event = batch.events[this.#eventAt];
      if (event === undefined) break;
      this.#eventAt += 1;
      this.#rest = this.#read(event);
      budget -= 1;
    }
    if (this.#rest !== undefined || this.#eventAt < batch.events.length) return true;
    // Reading an event may have thrown the queue away (a new publisher): then this is another one.
    if (this.#ready.first === batch) {
      this.#ready.shift();
      this.#eventAt = 0;
      this.#cursor = batch.seq;
    }
    this.#tellSettled();
    return this.#ready.length > 0;
  }

  /** Is the first batch that waits applied in part? */
  get #isInBatch(): boolean {
    return this.#eventAt > 0 || this.#rest !== undefined;
  }

  #tellSettled(): void {
    if (this.#settled.length === 0 || this.#isInBatch) return;
    for (const tell of this.#settled.splice(0)) tell();
  }

  /** Completes the batch that is half applied, so that what the cursor says is true. */
  settle(): void {
    const batch = this.#ready.first;
    while (this.#isInBatch && this.#ready.first === batch) {
      this.step();
    }
  }

  /** An exact copy; the reader's state belongs to the same moment. */
  copy(): { blocks: LaneBlocks; state: EventReaderState } {
    this.settle();
    return { blocks: this.#told(this.#index.snapshot(this.handle)), state: this.#reader.state() };
  }

  /** Copies that were not counted are not told either: one of each is there. */
  #told(blocks: LaneBlocks): LaneBlocks {
    if (!this.#countsCopies) blocks.copies.fill(1);
    return blocks;
  }

  /**
   * As `copy`, in slices: the batch that is half applied is completed, then nothing is applied until
   * the copy is made. `note` is called at the moment that it is a copy of. Resolves with undefined
   * when the content was thrown away meanwhile.
   */
  async copyInSlices<Noted>(
    pause: () => Promise<void>,
    note: () => Noted,
    rows?: RowBuilder,
  ): Promise<{ blocks: LaneBlocks; state: EventReaderState; noted: Noted } | undefined> {
    const voids = this.#voids;
    this.#copies += 1;
    try {
      while (this.#isInBatch) await new Promise<void>((resolve) => this.#settled.push(resolve));
      if (this.#voids !== voids) return undefined;
      const noted = note();
      const state = await this.#reader.stateInSlices(pause);
      if (this.#voids !== voids) return undefined;
      const blocks = this.#index.snapshotInSlices === undefined
        ? this.#index.snapshot(this.handle)
        : await this.#index.snapshotInSlices(this.handle, pause, rows);
      if (blocks === undefined || this.#voids !== voids) return undefined;
      return { blocks: this.#told(blocks), state, noted };
    } finally {
      this.#copies -= 1;
      if (this.#ready.length > 0) this.#options.slices.submit(this, "urgent");
    }
  }

  /**
   * Replaces everything; the lane is empty until all is in. Rejects when the state or the blocks are
   * not well made. Nothing may be pushed meanwhile.
   */
  async load(
    cursor: bigint | undefined,
    blocks: LaneBlocks,
    state: EventReaderState,
    pause: () => Promise<void>,
  ): Promise<void> {
    this.clear(undefined);
    await this.#reader.restoreInSlices(state, pause);
    if (this.#index.loadInSlices === undefined) this.#index.load(this.handle, blocks);
    else await this.#index.loadInSlices(this.handle, blocks, pause);
    this.#cursor = cursor;
    this.#countsCopies = cursor !== undefined || blocks.count === 0;
  }

  /** Forgets blocks, waiting batches and what the reader learned. */
  clear(cursor: bigint | undefined): void {
    this.#dropWaiting();
    this.#reader.reset();
    this.#index.apply(this.handle, { kind: "cleared" });
    this.#cursor = cursor;
  }

  /** As `clear`, but keeps what the reader knows of cache groups: the publisher is the same. */
  forgetBlocks(cursor: bigint | undefined): void {
    this.#dropWaiting();
    this.#reader.cleared();
    this.#index.apply(this.handle, { kind: "cleared" });
    this.#cursor = cursor;
  }

  close(): void {
    this.#options.slices.withdraw(this);
    this.#dropWaiting();
    this.#index.closeLane(this.handle);
  }

  #dropWaiting(): void {
    this.#voids += 1;
    this.#ready.clear();
    this.#eventAt = 0;
    this.#rest = undefined;
    this.#isRepeated = false;
    this.#countsCopies = true;
    this.#tellSettled();
  }

  /** As `#understand`; an event that the reader chokes on costs only itself. */
  #read(event: LaneEvent): KvEvent | undefined {
    try {
      return this.#understand(event);
    } catch (error) {
      this.#failed(event.kind, error);
      return undefined;
    }
  }

  #failed(kind: string, error: unknown): void {
    this.#options.meters.event(kind, "failed");
    if (this.#logged >= MAX_LOGGED) return;
    this.#logged += 1;
    this.#options.log("kv_event_failed", { kind, error });
  }

  /** What an event asks of the index; undefined = nothing. */
  #understand(event: LaneEvent): KvEvent | undefined {
    const { meters } = this.#options;
    if (event.kind === "engine_stored") {
      if (this.#reader.contradicts(event)) {
        this.#index.apply(this.handle, { kind: "cleared" });
        this.#reader.reset();
        this.#options.publisherChanged();
      }
      return this.#taken("stored", this.#reader.stored(event));
    }
    if (event.kind === "engine_removed") {
      return this.#taken("removed", this.#reader.removed(event));
    }
    if (event.kind === "engine_cleared" || event.kind === "cleared") {
      this.#reader.cleared();
      this.#countsCopies = true;
      meters.event("cleared", "ok");
      this.#options.cleared();
      return { kind: "cleared" };
    }
    if (event.kind === "stored" && event.blockSize !== this.#options.settings.blockSize) {
      return this.#taken("stored", "block_size_mismatch");
    }
    return event;
  }

  #taken(type: string, read: KvEvent | string): KvEvent | undefined {
    if (typeof read !== "string") return read;
    this.#options.meters.event(type, read);
    if (this.#logged < MAX_LOGGED) {
      this.#logged += 1;
      this.#options.log("kv_event_ignored", { type, reason: read });
    }
    return undefined;
  }

  /** Applies up to `budget` blocks of an event and keeps the rest of it; returns how many. */
  #applySome(event: KvEvent, budget: number): number {
    const [now, later] = split(event, budget);
    this.#rest = later;
    let result: ReturnType<LaneIndex["apply"]>;
    try {
      result = this.#index.apply(this.handle, now, STEP_CUT);
    } catch (error) {
      this.#failed(now.kind, error);
      return STEP_BLOCKS;
    }
    const { meters } = this.#options;
    switch (now.kind) {
      case "stored":
      case "stored_hashed":
        meters.event("stored", Number(result.unknownParent) > 0 ? "parent_not_found" : "ok");
        return now.hashes.length;
      case "removed":
        if (result.left !== undefined && result.left > 0 && event.kind === "removed") {
          const done = now.hashes.length - result.left;
          this.#rest = { ...event, hashes: event.hashes.subarray(done) };
          return STEP_BLOCKS;
        }
        if (!this.#isRepeated) {
          meters.event("removed", result.unknownBlocks > 0 ? "block_not_found" : "ok");
        }
        this.#isRepeated = !this.#countsCopies && result.applied > 0;
        if (!this.#isRepeated) return now.hashes.length;
        this.#rest = event;
        return STEP_BLOCKS;
      case "cleared":
        return 1;
    }
  }
}

/** Cuts an event into one of at most `blocks` blocks and the rest, which goes on where it ends. */
function split(event: KvEvent, blocks: number): [now: KvEvent, later: KvEvent | undefined] {
  if (event.kind === "cleared" || event.hashes.length <= blocks) return [event, undefined];
  const now = event.hashes.subarray(0, blocks);
  const later = event.hashes.subarray(blocks);
  if (event.kind === "removed") {
    return [{ ...event, hashes: now }, { ...event, hashes: later }];
  }
  const parent = now[blocks - 1];
  if (event.kind === "stored_hashed") {
    return [
      { ...event, hashes: now, locals: event.locals.subarray(0, blocks) },
      { ...event, parent, hashes: later, locals: event.locals.subarray(blocks) },
    ];
  }
  const at = blocks * event.blockSize;
  const overlap = event.eagle === true ? 1 : 0;
  const { multimodal } = event;
  return [
    {
      ...event,
      hashes: now,
      tokens: event.tokens.subarray(0, at + overlap),
      ...(multimodal === undefined ? {} : { multimodal: multimodal.slice(0, blocks) }),
    },
    {
      ...event,
      parent,
      hashes: later,
      tokens: event.tokens.subarray(at),
      ...(multimodal === undefined ? {} : { multimodal: multimodal.slice(blocks) }),
    },
  ];
}
