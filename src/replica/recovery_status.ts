/**
 * What the recovery tells about itself: for the log, `/api/v1/recovery`, metrics and `baton status`.
 */

import type { LaneKey } from "../kv/lane_key.ts";

/**
 * - `idle`: not started.
 * - `listing`: waiting for the first complete listing of peers and workers.
 * - `subscribing`: waiting for the subscriptions to the workers to be proven.
 * - `fetching`: a peer's dump is coming in.
 * - `waiting`: between two cycles, or until a peer may be asked again.
 * - `recovered`: every lane known at the start came from a peer.
 * - `empty_bootstrap`: there was no peer with an index, so this replica started without.
 * - `degraded`: ready, and some lanes started empty although a peer may have had them.
 * - `stuck`: the budget is used up and the policy is to stay unready; attempts go on.
 * - `recovery_disabled`: there are no peers in the configuration, and none is registered.
 * - `failed`: it was stopped, or there can never be a listing.
 */
export const RECOVERY_STATES = [
  "idle",
  "listing",
  "subscribing",
  "fetching",
  "waiting",
  "recovered",
  "empty_bootstrap",
  "degraded",
  "stuck",
  "recovery_disabled",
  "failed",
] as const;

export type RecoveryState = (typeof RECOVERY_STATES)[number];

/** States in which this replica may serve, and be a source for others. */
export function isRecovered(state: RecoveryState): boolean {
  return state === "recovered" || state === "empty_bootstrap" || state === "degraded" ||
    state === "recovery_disabled";
}

/**
 * - `pending`, `committing`: not settled yet.
 * - `restored`: taken over from a peer, complete.
 * - `partial`: taken over from a peer that lacks some of its blocks itself.
 * - `cold`: nobody has it; it begins with what the worker's replay ring still has.
 * - `degraded`: as cold, but a peer may have had it.
 * - `gone`: the worker left meanwhile.
 */
export type LaneOutcome =
  | "pending"
  | "committing"
  | "restored"
  | "partial"
  | "cold"
  | "degraded"
  | "gone";

export const NO_LANES: Readonly<Record<LaneOutcome, number>> = {
  pending: 0,
  committing: 0,
  restored: 0,
  partial: 0,
  cold: 0,
  degraded: 0,
  gone: 0,
};

export interface LaneReport extends LaneKey {
  readonly outcome: LaneOutcome;
  readonly blocks: number;
  /** Decimal u64. */
  readonly cursor?: string;
  /** The peer that it came from. */
  readonly source?: string;
  readonly reason?: string;
}

export interface AttemptReport {
  readonly peer: string;
  /** ISO 8601, UTC. */
  readonly at: string;
  readonly ms: number;
  readonly outcome: string;
  readonly reason?: string;
  readonly lanes: number;
  readonly blocks: number;
  readonly bytes: number;
}

export interface RecoveryStatus {
  readonly state: RecoveryState;
  readonly reason: string;
  /** Milliseconds since the start, or that it took in all. */
  readonly elapsedMs: number;
  readonly lanes: Readonly<Record<LaneOutcome, number>>;
  readonly blocks: number;
  readonly bytes: number;
  readonly blocksPerS: number;
  /** Milliseconds that the running dump will still take, by its own estimate. */
  readonly etaMs?: number;
  /** The peer whose dump is coming in. */
  readonly source?: string;
  readonly attempts: readonly AttemptReport[];
  readonly laneReports: readonly LaneReport[];
}
