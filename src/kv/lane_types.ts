/** What passes in and out of a lane. */

import type { DigestState } from "./batch_digests.ts";
import type { KvEvent, LaneBlocks } from "./blocks.ts";
import type { EngineEvent } from "./engine_event.ts";
import type { LaneKey } from "./lane_key.ts";

/**
 * - `pending`: no source yet, nothing received.
 * - `subscribing`: a source is being connected; nothing proves yet that its events reach us.
 * - `buffering`: events arrive and are kept back for a snapshot.
 * - `loading`: a snapshot is being put in.
 * - `replaying`: missing batches are being fetched from the worker.
 * - `live`: what the index holds is what the publisher said, up to the cursor.
 * - `degraded`: as live, but what happened before some moment was lost; nothing held is false.
 */
export type LaneState =
  | "pending"
  | "subscribing"
  | "buffering"
  | "loading"
  | "replaying"
  | "live"
  | "degraded";

/** An event ready for the index, or one that the lane still has to make sense of. */
export type LaneEvent = KvEvent | EngineEvent;

export interface LaneBatch {
  /** The publisher's number of this batch. */
  readonly seq: bigint;
  readonly events: readonly LaneEvent[];
  /** Which incarnation of the publisher counts `seq`, where the transport says it. */
  readonly epoch?: string;
  /** `payloadDigest` of the bytes that the batch came in. */
  readonly digest?: number;
  /** Bytes that the batch occupies while it waits. */
  readonly bytes?: number;
}

/** One lane at one moment: what its cursor says is what its blocks are. */
export interface LaneCut {
  readonly key: LaneKey;
  /** Which incarnation of the publisher `cursor` counts for; "" when unknown. */
  readonly epoch: string;
  /** Number of the last batch in `blocks`; undefined when there was none, or it is not known. */
  readonly cursor: bigint | undefined;
  /**
   * What the event reader has learned: a `DecoderState`; nothing; or the error with which it could
   * not be read, for `commit` to refuse the cut.
   */
  readonly decoderState: unknown;
  readonly blocks: LaneBlocks;
  /** Why blocks may be missing from the cut; absent when it is complete. None is false either way. */
  readonly degraded?: string;
}

/** Every batch up to a number was seen; fingerprints of the last ones tell their publisher from others. */
export interface Followed {
  readonly to: bigint;
  readonly digests: DigestState;
}

export interface HoldLimits {
  readonly maxBatches: number;
  readonly maxBytes: number;
}

export interface LaneLimits {
  /** Bounds of what waits while a hole is filled (a held lane has the bounds of `hold`). */
  readonly maxBatches: number;
  readonly maxBytes: number;
  /** Requests to the ring that may bring nothing before a hole is given up. */
  readonly replayAttempts: number;
  /** Wait before a request is repeated; doubles each time, with jitter. */
  readonly replayBackoffMs: number;
}

export const LANE_LIMITS: LaneLimits = {
  maxBatches: 20_000,
  maxBytes: 32 * 1024 * 1024,
  replayAttempts: 3,
  replayBackoffMs: 250,
};

/** How a replay ended. Only after `complete` is it known that the worker has nothing newer. */
export interface ReplayEnd {
  readonly kind: "complete" | "stopped" | "timeout" | "failed";
  readonly message?: string;
}

/** Where a lane's batches come from, as far as the lane needs to know. */
export interface LaneSource {
  /**
   * Asks the worker for every batch that it still has from number `from` on. `deliver` is called in
   * the order of arrival, and returns false when no more is wanted. Never rejects.
   */
  readonly replay?:
    | ((
      from: bigint,
      deliver: (batch: LaneBatch) => boolean,
      stop: AbortSignal,
    ) => Promise<ReplayEnd>)
    | undefined;
  /**
   * Opens the lane of another rank of the same publisher, which no batch has named yet, for a copy
   * with these fingerprints. Does nothing unless they show that the copy is of this publisher.
   */
  readonly openRank?: (dpRank: number, digests: DigestState) => Promise<void>;
}

/** Why a lane is degraded whose batches have no numbers, in words for people. */
export const UNNUMBERED = "its events carry no numbers";

/** Why missing batches could not be had. */
export type GapReason =
  | "no_replay_endpoint"
  | "empty"
  | "started_after_requested"
  | "non_contiguous"
  | "ended_before_target"
  | "timeout"
  | "failed"
  | "superseded"
  | "unnumbered"
  | "closed";

/**
 * Batches `from` (inclusive) to `to` (exclusive, when known) are missing and cannot be had. If `to` is
 * `from`, none is, but nothing proves that what was before is of the same publisher.
 */
export class LaneGap extends Error {
  override readonly name = "LaneGap";
  readonly reason: GapReason;
  readonly from: bigint;
  readonly to: bigint | undefined;

  constructor(reason: GapReason, from: bigint, to: bigint | undefined, message?: string) {
    const range = to === undefined ? `from ${from} on` : `${from} to ${to - 1n}`;
    const what = to === from
      ? `whether the publisher is the one from before batch ${from} is not known`
      : `batches ${range} cannot be had`;
    super(`${what}: ${reason}${message === undefined ? "" : ` (${message})`}`);
    this.reason = reason;
    this.from = from;
    this.to = to;
  }
}
