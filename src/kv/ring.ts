/**
 * A worker's replay ring, asked for what it still has.
 *
 * Payloads go through an intake of their own: a ring of thousands is decoded in slices too.
 */

import type { Log } from "../observe/log.ts";
import type { Clock, Net } from "../runtime/runtime.ts";
import { BatchIntake, type DecodedBatch, type IntakeLimits } from "./batch_intake.ts";
import type { KvStore } from "./kv_store.ts";
import type { ReplayEnd } from "./lane_types.ts";
import { type ReplayLimits, requestReplay } from "./replay.ts";
import type { ZmtpLimits } from "./zmtp.ts";

export interface RingOptions {
  readonly net: Net;
  readonly clock: Clock;
  readonly store: Pick<KvStore, "slices" | "meters">;
  readonly log: Log;
  readonly endpoint: string;
  readonly limits: {
    readonly intake: IntakeLimits;
    readonly replay: Partial<ReplayLimits>;
    readonly zmtp: Partial<ZmtpLimits>;
  };
}

/**
 * Asks for every batch from number `from` on. `deliver` gets them in the order of arrival, and returns
 * false when no more is wanted. Never rejects.
 */
export async function askRing(
  options: RingOptions,
  from: bigint,
  deliver: (decoded: DecodedBatch) => boolean,
  stop: AbortSignal,
): Promise<ReplayEnd> {
  const { net, clock, store, log, endpoint, limits } = options;
  let drained = (): void => {};
  let isRefused = false;
  const intake = new BatchIntake({
    slices: store.slices,
    meters: store.meters,
    limits: limits.intake,
    deliver: (decoded) => {
      if (isRefused || !deliver(decoded)) isRefused = true;
      return true;
    },
    undecodable: (seq, reason) => {
      log.warn("kv_batch_undecodable", { seq, reason, replayed: true });
    },
    drained: () => drained(),
  });
  const request = { net, clock, endpoint, limits: limits.replay, zmtp: limits.zmtp };
  const end = await requestReplay(request, from, (seq, payload) => {
    if (isRefused) return false;
    if (intake.push(seq, payload)) return true;
    store.meters.overflow("replay", 1);
    return false;
  }, stop);
  if (intake.waitingBatches > 0) {
    await new Promise<void>((resolve) => {
      drained = resolve;
      if (stop.aborted) resolve();
      else stop.addEventListener("abort", () => resolve(), { once: true });
    });
  }
  intake.close();
  return isRefused && end.kind === "complete" ? { kind: "stopped" } : end;
}
