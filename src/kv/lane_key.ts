/**
 * A lane: one stream of KV events, from one data-parallel rank of one worker, in one partition.
 *
 * Names may contain any character, `:` too, so keys are built by JSON and never by joining.
 */

export interface LaneKey {
  readonly model: string;
  /** The routing group; `default` unless the operator says otherwise. */
  readonly group: string;
  readonly worker: string;
  readonly dpRank: number;
}

/** A string that is equal for equal keys and for no others. */
export function laneId(key: LaneKey): string {
  return JSON.stringify([key.model, key.group, key.worker, key.dpRank]);
}

/** Are these lanes of ranks of the same worker? */
export function isOneWorker(one: LaneKey, other: LaneKey): boolean {
  return one.worker === other.worker && partitionId(one) === partitionId(other);
}

/** The partition (one index each) of a lane. */
export function partitionId(key: { readonly model: string; readonly group: string }): string {
  return JSON.stringify([key.model, key.group]);
}
