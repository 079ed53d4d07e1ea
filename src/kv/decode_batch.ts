/**
 * A batch of engine events from MessagePack: `[timestamp, [event...], rank?]`, or the same as a map.
 *
 * The work can be done a few events at a time (`BatchDecoder.step`), so that a large batch need not
 * hold the event loop. A batch counts only when all of it has been read: bytes that are not
 * MessagePack make it undecodable as a whole, while a single unusable event costs only itself.
 */

import { decodeEvent } from "./decode_event.ts";
import type { EngineBatch, EngineEvent } from "./engine_event.ts";
import { MsgpackBroken, MsgpackReader, UnexpectedValue } from "./msgpack_reader.ts";

/** The payload as a whole cannot be read; nothing of it may be applied. */
export class BatchUndecodable extends Error {
  override readonly name = "BatchUndecodable";
}

/** Reasons kept of the unusable events of one batch. */
const MAX_REASONS = 20;

/** What a batch may name its parts by when it is a map; SGLang says `attn_dp_rank`. */
const RANK_KEYS: readonly string[] = ["data_parallel_rank", "attn_dp_rank", "dp_rank"];

export class BatchDecoder {
  readonly #reader: MsgpackReader;
  readonly #events: EngineEvent[] = [];
  readonly #refused: string[] = [];
  readonly #isMap: boolean;
  /** Slots (array) or pairs (map) of the batch that are not read yet. */
  #slots: number;
  #slot = 0;
  /** Events of the list being read that are not read yet. */
  #pending = 0;
  #hasEvents = false;
  #timestamp = 0;
  #rank: number | undefined;

  /** Throws `BatchUndecodable` when the first bytes are no batch. */
  constructor(payload: Uint8Array) {
    this.#reader = new MsgpackReader(payload);
    const reader = this.#reader;
    [this.#isMap, this.#slots] = guard(() => {
      const kind = reader.peek();
      if (kind === "map") return [true, reader.mapLength()];
      return [false, reader.arrayLength()];
    });
  }

  /**
   * Reads events of at most about `maxBytes` of payload; true when the batch is complete. Throws
   * `BatchUndecodable`.
   */
  step(maxBytes = Infinity): boolean {
    return guard(() => this.#step(maxBytes));
  }

  /** The batch, once `step` has returned true. */
  get batch(): EngineBatch {
    return {
      events: this.#events,
      rank: this.#rank,
      timestamp: this.#timestamp,
      refused: this.#refused,
    };
  }

  #step(maxBytes: number): boolean {
    const reader = this.#reader;
    const until = reader.at + maxBytes;
    for (;;) {
      while (this.#pending > 0) {
        if (reader.at >= until) return false;
        this.#pending -= 1;
        this.#readEvent();
      }
      if (this.#slot === this.#slots) break;
      this.#slot += 1;
      if (this.#isMap) this.#openPair();
      else this.#openSlot(this.#slot - 1);
    }
    if (!this.#hasEvents) throw new BatchUndecodable("a batch without a list of events");
    if (!reader.isAtEnd) throw new BatchUndecodable("bytes after the batch");
    return true;
  }

  #openSlot(slot: number): void {
    if (slot === 0) this.#readTimestamp();
    else if (slot === 1) this.#openEvents();
    else if (slot === 2) this.#readRank();
    else this.#reader.skip();
  }

  #openPair(): void {
    const reader = this.#reader;
    const key = reader.peek() === "string" ? reader.string() : (reader.skip(), "");
    if (key === "ts" || key === "timestamp") this.#readTimestamp();
    else if (key === "events") this.#openEvents();
    else if (RANK_KEYS.includes(key)) this.#readRank();
    else reader.skip();
  }

  #openEvents(): void {
    this.#pending = this.#reader.arrayLength();
    this.#hasEvents = true;
  }

  #readTimestamp(): void {
    const kind = this.#reader.peek();
    if (kind === "float" || kind === "int") this.#timestamp = this.#reader.number();
    else this.#reader.skip();
  }

  #readRank(): void {
    if (this.#reader.peek() !== "int") {
      this.#reader.skip();
      return;
    }
    const rank = this.#reader.number();
    // As a C cast would: a rank is an unsigned 32-bit number everywhere else.
    this.#rank = rank >>> 0;
  }

  #readEvent(): void {
    const reader = this.#reader;
    const start = reader.at;
    try {
      const event = decodeEvent(reader);
      if (event !== undefined) this.#events.push(event);
    } catch (error) {
      if (!(error instanceof UnexpectedValue)) throw error;
      if (this.#refused.length < MAX_REASONS) this.#refused.push(error.message);
      reader.at = start;
      reader.skip();
    }
  }
}

/** Reads a whole batch at once. Throws `BatchUndecodable`. */
export function decodeBatch(payload: Uint8Array): EngineBatch {
  const decoder = new BatchDecoder(payload);
  decoder.step();
  return decoder.batch;
}

function guard<T>(work: () => T): T {
  try {
    return work();
  } catch (error) {
    if (error instanceof MsgpackBroken || error instanceof UnexpectedValue) {
      throw new BatchUndecodable(error.message);
    }
    throw error;
  }
}
