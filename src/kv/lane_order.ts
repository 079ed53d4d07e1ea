/**
 * The order of a lane's batches: which of them may be applied now, which wait, which were seen.
 *
 * `admitted` is the number of the last batch that went on to the content; batches that cannot follow
 * it yet are pending, with ascending numbers.
 */

import { batchDigest, BatchDigests, REMEMBERED } from "./batch_digests.ts";
import { BatchQueue } from "./batch_queue.ts";
import type { KvMeters } from "./kv_meters.ts";
import type { LaneContent } from "./lane_content.ts";
import type { HoldLimits, LaneBatch } from "./lane_types.ts";

/** Called when a batch proves that the publisher is another one; what is admitted is void. */
export type StartOver = (
  reason: string,
  epoch: string | undefined,
  keepsPending: boolean,
) => void;

export class LaneOrder {
  readonly #content: LaneContent;
  readonly #startOver: StartOver;
  readonly digests = new BatchDigests();
  /** Batches that came and cannot be applied yet. */
  readonly pending: BatchQueue;
  admitted: bigint | undefined;
  /** The next batch is taken whatever its number: what came before is given up. */
  takesAny = false;
  /** The connection broke since the last batch: the publisher may be another one. */
  isUnverified = false;
  /** Is the cut that was put in of the publisher that is there? A number that fits may be chance. */
  confirmed: "no" | "by_number" | "by_content" = "by_content";
  /** Pending batches, the oldest ones, that came before the connection broke. */
  #fromBefore = 0;

  constructor(content: LaneContent, meters: KvMeters, startOver: StartOver) {
    this.#content = content;
    this.#startOver = startOver;
    this.pending = new BatchQueue(meters);
  }

  /** The number that has to come next. */
  get firstMissing(): bigint {
    return this.admitted === undefined ? 0n : this.admitted + 1n;
  }

  /** The highest number seen. */
  get last(): bigint | undefined {
    return this.pending.last?.seq ?? this.admitted;
  }

  /**
   * `seen` for a batch that came before. A number that was used for other content, or one that is far
   * below, is from a publisher that started over.
   */
  judge(batch: LaneBatch): "new" | "seen" | "restarted" {
    const { last } = this;
    if (last === undefined || batch.seq > last) return "new";
    const waiting = this.pending.find(batch.seq);
    const known = waiting === undefined
      ? this.digests.compare(batch)
      : batchDigest(waiting) === batchDigest(batch)
      ? "same"
      : "different";
    if (known === "same") return "seen";
    const wasAdmitted = this.admitted !== undefined && batch.seq <= this.admitted;
    const mayBeOld = this.confirmed !== "no" && last - batch.seq < REMEMBERED;
    return known === "unknown" && wasAdmitted && mayBeOld ? "seen" : "restarted";
  }

  /** Gives a batch to the content. */
  admit(batch: LaneBatch): void {
    this.admitted = batch.seq;
    this.takesAny = false;
    if (this.confirmed === "no") this.confirmed = "by_number";
    this.digests.note(batch);
    this.#content.push(batch);
  }

  /** Puts a batch aside within bounds; returns how many old ones were let go for it. */
  keep(batch: LaneBatch, limits: HoldLimits): number {
    this.pending.push(batch);
    this.digests.note(batch);
    let dropped = 0;
    while (this.pending.length > limits.maxBatches || this.pending.bytes > limits.maxBytes) {
      if (this.#shift() === undefined) break;
      dropped += 1;
    }
    return dropped;
  }

  /** Admits pending batches as long as they follow; drops those that are in already. */
  drain(): void {
    for (let batch = this.pending.first; batch !== undefined; batch = this.pending.first) {
      const { admitted } = this;
      if (admitted === undefined) {
        if (batch.seq !== 0n) return;
      } else if (batch.seq <= admitted) {
        const known = this.digests.compare(batch);
        if (known === "different") {
          this.#startOver("replay_differs", batch.epoch, true);
          continue;
        }
        if (known === "same") this.confirmed = "by_content";
        this.#shift();
        continue;
      } else if (batch.seq !== admitted + 1n || this.isUnverified) {
        return;
      }
      this.#shift();
      this.admit(batch);
    }
  }

  /** The connection broke: what is pending may be of an earlier publisher. */
  connectionBroke(): void {
    this.#fromBefore = this.pending.length;
  }

  /** Lets go of pending batches that came before the connection broke. */
  dropFromBefore(): void {
    while (this.#fromBefore > 0 && this.#shift() !== undefined);
  }

  /** Forgets what was admitted; pending batches of the present connection stay if `keepsPending`. */
  startOver(keepsPending: boolean): void {
    if (keepsPending) this.dropFromBefore();
    else this.pending.clear();
    this.#fromBefore = 0;
    this.empty();
    this.takesAny = false;
    this.confirmed = "by_content";
    this.isUnverified = false;
  }

  /** Empties the content; the next batch is the first. */
  empty(): void {
    this.#content.clear(undefined);
    this.digests.clear();
    this.admitted = undefined;
  }

  /** Gives up what is missing before the first pending batch. */
  skipToPending(): void {
    const { first } = this.pending;
    this.takesAny = true;
    if (first !== undefined) this.admitted = first.seq - 1n;
  }

  #shift(): LaneBatch | undefined {
    if (this.#fromBefore > 0) this.#fromBefore -= 1;
    return this.pending.shift();
  }
}
