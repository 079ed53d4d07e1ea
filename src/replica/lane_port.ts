/**
 * What the dump and the recovery ask of lanes and of the store of them.
 *
 * src/kv satisfies these by shape; they are spelled out here so that one can see in one place what
 * the hand-off rests on, and so that a test can put a small model in the place of the real ones.
 */

import type { RowBuilder } from "../kv/lane_blocks.ts";
import type { LaneKey } from "../kv/lane_key.ts";
import type { HoldLimits, LaneCut, LaneState } from "../kv/lane_types.ts";

export type { HoldLimits, LaneCut, LaneState };
export { UNNUMBERED } from "../kv/lane_types.ts";

export interface RecoverableLane {
  readonly key: LaneKey;
  readonly state: LaneState;
  readonly epoch: string;
  readonly cursor: bigint | undefined;
  /** Its events have no numbers: no copy of it can be joined to them. */
  readonly isUnnumbered: boolean;
  /** Blocks that the lane holds now. */
  readonly blocks: number;
  /** Buffer batches instead of applying them; over the limits the lane needs another snapshot. */
  hold(limits: HoldLimits): void;
  /**
   * An exact copy, made in slices while the lane keeps batches back. Its blocks may be in the memory
   * of `rows`: then they are good until `rows` begin another lane. Resolves with undefined when the
   * lane was closed, or lost its content, before the copy was complete.
   */
  cutInSlices(rows?: RowBuilder): Promise<LaneCut | undefined>;
  /**
   * Replaces what the lane holds by the cut, drops buffered batches up to its cursor, closes a gap
   * by the worker's replay, and goes live. Rejects with an error named `LaneGap` when the gap cannot
   * be closed: the lane then still holds back, and another cut with a higher cursor may be tried.
   */
  commit(cut: LaneCut): Promise<void>;
  /**
   * To be asked after `commit` was called: resolves when the blocks of that cut are not read any
   * more, whatever becomes of the lane meanwhile. Lanes without it keep what they are given.
   */
  readonly loaded?: Promise<void>;
  /** Ends a hold without a snapshot: the lane asks the worker's replay ring for what it can get. */
  release(): void;
  /** Forgets everything, and goes on from the next live batch. */
  degrade(reason: string): void;
}

export interface LaneStore {
  lanes(): RecoverableLane[];
  lane(key: LaneKey): RecoverableLane | undefined;
  /**
   * Opens the lane of a rank that nobody has registered, for a copy of it. Resolves with undefined
   * unless its worker is known and the copy is one of what is listened to. Rejects when its decoder
   * state is not well made.
   */
  openRank(cut: LaneCut): Promise<RecoverableLane | undefined>;
  /** Tokens in a block of the lane's partition. */
  blockSize(key: LaneKey): number;
  /** Holds all lanes, and those to come as soon as they open. */
  holdAll(limits: HoldLimits): void;
  /** Ends the holds that are left, and of lanes to come. */
  releaseAll(): void;
  /** Calls `listener` after a lane was opened, closed or changed its state. */
  onChange(listener: () => void): () => void;
}

/**
 * True for lanes whose cut says something that a joiner can go on from. A lane that is held for its
 * own snapshot, or that has not seen a numbered batch, has nothing to give to others.
 */
export function dumpable(lane: RecoverableLane): boolean {
  return lane.cursor !== undefined && isSettled(lane);
}

/** True for lanes that others should hear of, although they cannot go on from what we have. */
export function tellable(lane: RecoverableLane): boolean {
  return lane.isUnnumbered && isSettled(lane);
}

function isSettled(lane: RecoverableLane): boolean {
  return lane.state !== "buffering" && lane.state !== "loading";
}
