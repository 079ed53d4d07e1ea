/** Batches in order, with the bytes that they stand for. */

import type { KvMeters } from "./kv_meters.ts";
import type { LaneBatch } from "./lane_types.ts";

export class BatchQueue {
  readonly #meters: KvMeters;
  #items: LaneBatch[] = [];
  #head = 0;
  #bytes = 0;

  constructor(meters: KvMeters) {
    this.#meters = meters;
  }

  get length(): number {
    return this.#items.length - this.#head;
  }

  get bytes(): number {
    return this.#bytes;
  }

  get first(): LaneBatch | undefined {
    return this.#items[this.#head];
  }

  get last(): LaneBatch | undefined {
    return this.length === 0 ? undefined : this.#items[this.#items.length - 1];
  }

  push(batch: LaneBatch): void {
    this.#items.push(batch);
    this.#count(batchBytes(batch));
  }

  shift(): LaneBatch | undefined {
    const batch = this.#items[this.#head];
    if (batch === undefined) return undefined;
    this.#head += 1;
    // The space before the head is given back in strides, not at each step.
    if (this.#head > 64 && this.#head * 2 > this.#items.length) {
      this.#items = this.#items.slice(this.#head);
      this.#head = 0;
    }
    this.#count(-batchBytes(batch));
    return batch;
  }

  *[Symbol.iterator](): Iterator<LaneBatch> {
    for (let at = this.#head; at < this.#items.length; at++) yield this.#items[at] as LaneBatch;
  }

  /** The batch with this sequence number; the queue's numbers must ascend. */
  find(seq: bigint): LaneBatch | undefined {
    let low = this.#head;
    let high = this.#items.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      const item = this.#items[middle];
      if (item === undefined) return undefined;
      if (item.seq === seq) return item;
      if (item.seq < seq) low = middle + 1;
      else high = middle;
    }
    return undefined;
  }

  clear(): void {
    this.#items = [];
    this.#head = 0;
    this.#count(-this.#bytes);
  }

  #count(bytes: number): void {
    this.#bytes += bytes;
    this.#meters.buffered(bytes);
  }
}

/** What a batch without its own figure is taken to weigh. */
function batchBytes(batch: LaneBatch): number {
  return batch.bytes ?? 64 + 256 * batch.events.length;
}
