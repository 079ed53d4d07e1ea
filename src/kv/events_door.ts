/**
 * The second door for KV events: JSON lines over HTTP, for workers without ZMQ.
 *
 * Lines go through the same lanes as batches from sockets. Consecutive lines of one lane and one
 * `seq` are one batch. A lane that is not known is opened, unless its owner closed it a short while
 * ago: lines that were under way must not bring a removed worker back.
 */

import { BatonError } from "../errors.ts";
import type { Clock } from "../runtime/runtime.ts";
import { payloadDigest } from "./batch_digests.ts";
import type { KvEvent } from "./blocks.ts";
import type { KvStore } from "./kv_store.ts";
import type { Lane } from "./lane.ts";
import { laneId } from "./lane_key.ts";
import { type EventLine, LineRefused, readEventLine } from "./mooncake.ts";

export interface DoorAnswer {
  /** Lines that were taken (duplicates of batches seen before included). */
  readonly accepted: number;
  /** The first lines that were not, counted from 1, with the reason. */
  readonly refused: readonly { readonly line: number; readonly reason: string }[];
  /** Lines that were not taken, listed or not. */
  readonly refused_count: number;
}

/** Refusals that an answer lists. */
const MAX_LISTED = 100;
/** Events of lines without `seq` that are taken together. */
const MAX_UNNUMBERED = 256;
/** Bytes of the lines of one numbered batch: all of it waits in memory until it is complete. */
const MAX_BATCH_BYTES = 16 * 1024 * 1024;
/** Bytes waiting in a lane above which the sender is slowed down. */
const SLOW_DOWN_BYTES = 4 * 1024 * 1024;
const SLOW_DOWN_POLL_MS = 5;

/** Partitions and lanes in all above which lines open no further ones: each takes memory for good. */
export interface DoorLimits {
  readonly partitions: number;
  readonly lanes: number;
}

const LIMITS: DoorLimits = { partitions: 256, lanes: 16_384 };

interface Batch {
  readonly lane: Lane;
  readonly seq: bigint | undefined;
  readonly epoch: string | undefined;
  readonly events: KvEvent[];
  bytes: number;
  digest: number;
}

export class EventsDoor {
  readonly #store: KvStore;
  readonly #clock: Clock;
  readonly #limits: DoorLimits;
  #lastLane: Lane | undefined;

  constructor(
    options: { readonly store: KvStore; readonly clock: Clock; readonly limits?: DoorLimits },
  ) {
    this.#limits = options.limits ?? LIMITS;
    this.#store = options.store;
    this.#clock = options.clock;
  }

  /** Takes groups of lines (without line feeds) as they come; blank lines are skipped. */
  async take(groups: AsyncIterable<readonly Uint8Array[]>): Promise<DoorAnswer> {
    const decoder = new TextDecoder();
    const refused: { line: number; reason: string }[] = [];
    let accepted = 0;
    let refusedCount = 0;
    let number = 0;
    let batch: Batch | undefined;
    for await (const lines of groups) {
      for (const bytes of lines) {
        number += 1;
        if (bytes.length === 0) continue;
        const text = decoder.decode(bytes).trim();
        if (text === "") continue;
        try {
          const line = readEventLine(text, (key) => this.#store.blockSize(key));
          const lane = this.#store.lane(line.key) ?? await this.#open(line);
          if (lane.source !== undefined) throw new LineRefused("the worker's events come over ZMQ");
          this.#store.checkBlockSize(line.key, line.blockSize ?? this.#store.blockSize(line.key));
          if (batch === undefined || !belongs(batch, lane, line)) {
            if (batch !== undefined) this.#deliver(batch);
            batch = { lane, seq: line.seq, epoch: line.epoch, events: [], bytes: 0, digest: 0 };
          }
          if (batch.bytes + bytes.length > MAX_BATCH_BYTES) {
            throw new LineRefused("the batch is too large");
          }
          batch.events.push(line.event);
          batch.bytes += bytes.length;
          batch.digest = (batch.digest * 31 + payloadDigest(bytes)) % Number.MAX_SAFE_INTEGER;
          accepted += 1;
        } catch (error) {
          if (!(error instanceof LineRefused) && !(error instanceof BatonError)) throw error;
          refusedCount += 1;
          if (refused.length < MAX_LISTED) refused.push({ line: number, reason: error.message });
          this.#store.meters.event("line", "refused");
        }
      }
      // A batch with a number may go on in the next group; others need not wait for it.
      if (batch !== undefined && batch.seq === undefined) {
        this.#deliver(batch);
        batch = undefined;
      }
      await this.#slowDown();
    }
    if (batch !== undefined) this.#deliver(batch);
    return { accepted, refused, refused_count: refusedCount };
  }

  async #open(line: EventLine): Promise<Lane> {
    if (this.#store.wasClosed(line.key)) throw new LineRefused("the worker was removed");
    const blockSize = line.blockSize ?? this.#store.blockSize(line.key);
    if (blockSize === 0) throw new LineRefused("block_size is missing");
    const isNewPartition = this.#store.blockSize(line.key) === 0;
    const { partitions, lanes } = this.#limits;
    if (isNewPartition && this.#store.partitions().length >= partitions) {
      throw new LineRefused(`there are ${partitions} models and groups already`);
    }
    if (this.#store.lanes().length >= lanes) {
      throw new LineRefused(`there are ${lanes} workers and ranks already`);
    }
    const lane = await this.#store.open(line.key, { blockSize });
    return lane;
  }

  #deliver(batch: Batch): void {
    const { lane, seq, epoch, events, bytes, digest } = batch;
    const content = { events, bytes, digest, ...(epoch === undefined ? {} : { epoch }) };
    if (seq === undefined) lane.receiveNext(content);
    else lane.receive({ seq, ...content });
    this.#lastLane = lane;
  }

  /** Lets the lanes catch up before more of the body is read. */
  async #slowDown(): Promise<void> {
    const lane = this.#lastLane;
    if (lane === undefined) return;
    while (!lane.isClosed && !lane.isHeld && lane.waiting.bytes > SLOW_DOWN_BYTES) {
      await new Promise<void>((resolve) => {
        this.#clock.after(SLOW_DOWN_POLL_MS, resolve);
      });
    }
  }
}

function belongs(batch: Batch, lane: Lane, line: EventLine): boolean {
  if (laneId(batch.lane.key) !== laneId(lane.key) || batch.lane !== lane) return false;
  if (batch.seq !== line.seq || batch.epoch !== line.epoch) return false;
  return line.seq !== undefined || batch.events.length < MAX_UNNUMBERED;
}
