/**
 * Payloads on their way to the lanes: kept as they came, decoded a little at a time.
 *
 * The socket is always read, whatever the lanes do: what cannot wait within the bounds is dropped,
 * newest first, and counted; the hole that this leaves in the sequence is then filled by replay.
 */

import { payloadDigest } from "./batch_digests.ts";
import { BatchDecoder, BatchUndecodable } from "./decode_batch.ts";
import type { EngineBatch } from "./engine_event.ts";
import type { KvMeters } from "./kv_meters.ts";
import type { Slices, Work } from "./slices.ts";

/** A decoded batch and what is known of its bytes. */
export interface DecodedBatch {
  readonly seq: bigint;
  readonly batch: EngineBatch;
  readonly digest: number;
  readonly bytes: number;
}

export interface IntakeLimits {
  readonly maxBatches: number;
  readonly maxBytes: number;
}

export interface BatchIntakeOptions {
  readonly slices: Slices;
  readonly meters: KvMeters;
  readonly limits: IntakeLimits;
  /** Called in order. False = keep the rest until `resume`. */
  readonly deliver: (decoded: DecodedBatch) => boolean;
  readonly undecodable: (seq: bigint, reason: string) => void;
  /** Everything that was put in is out again. */
  readonly drained?: () => void;
}

/** Payload bytes that one step decodes, give or take one event. */
const STEP_BYTES = 32 * 1024;

export class BatchIntake implements Work {
  readonly #options: BatchIntakeOptions;
  #items: { readonly seq: bigint; readonly payload: Uint8Array }[] = [];
  #head = 0;
  #bytes = 0;
  #decoder: BatchDecoder | undefined;
  #isPaused = false;
  #isClosed = false;

  constructor(options: BatchIntakeOptions) {
    this.#options = options;
  }

  get waitingBytes(): number {
    return this.#bytes;
  }

  get waitingBatches(): number {
    return this.#items.length - this.#head;
  }

  /** False if there is no room: the batch is dropped. */
  push(seq: bigint, payload: Uint8Array): boolean {
    if (this.#isClosed) return false;
    const { limits, meters, slices } = this.#options;
    const isFull = this.waitingBatches >= limits.maxBatches ||
      this.#bytes + payload.length > limits.maxBytes && this.#bytes > 0;
    if (isFull) return false;
    this.#items.push({ seq, payload });
    this.#bytes += payload.length;
    meters.buffered(payload.length);
    if (!this.#isPaused) slices.submit(this, "other");
    return true;
  }

  pause(): void {
    this.#isPaused = true;
  }

  resume(): void {
    if (!this.#isPaused || this.#isClosed) return;
    this.#isPaused = false;
    this.#options.slices.submit(this, "other");
  }

  /** Drops what waits; nothing is delivered any more. */
  close(): void {
    this.#isClosed = true;
    this.#options.slices.withdraw(this);
    this.#options.meters.buffered(-this.#bytes);
    this.#bytes = 0;
    this.#items = [];
    this.#head = 0;
    this.#decoder = undefined;
  }

  step(): boolean {
    if (this.#isPaused || this.#isClosed) return false;
    const item = this.#items[this.#head];
    if (item === undefined) {
      this.#options.drained?.();
      return false;
    }
    const { seq, payload } = item;
    try {
      this.#decoder ??= new BatchDecoder(payload);
      if (!this.#decoder.step(STEP_BYTES)) return true;
      const { batch } = this.#decoder;
      this.#shift(payload);
      this.#count(batch);
      const wantsMore = this.#options.deliver({
        seq,
        batch,
        digest: payloadDigest(payload),
        bytes: payload.length + 64 * batch.events.length,
      });
      if (!wantsMore) this.#isPaused = true;
    } catch (error) {
      if (!(error instanceof BatchUndecodable)) throw error;
      this.#shift(payload);
      this.#options.meters.event("batch", "undecodable");
      this.#options.undecodable(seq, error.message);
    }
    return !this.#isPaused && !this.#isClosed;
  }

  #shift(payload: Uint8Array): void {
    this.#decoder = undefined;
    this.#head += 1;
    if (this.#head > 64 && this.#head * 2 > this.#items.length) {
      this.#items = this.#items.slice(this.#head);
      this.#head = 0;
    }
    this.#bytes -= payload.length;
    this.#options.meters.buffered(-payload.length);
  }

  #count(batch: EngineBatch): void {
    if (batch.refused.length > 0) {
      this.#options.meters.event("unknown", "unusable", batch.refused.length);
    }
  }
}
