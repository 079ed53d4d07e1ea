/**
 * Filling holes of a lane from its worker's replay ring.
 *
 * The worker is asked in rounds for exactly what is missing, until nothing is, or until a round
 * brings nothing. After a doubt about the publisher the last batch is asked for too, to compare.
 */

import type { Log } from "../observe/log.ts";
import type { Clock, Random } from "../runtime/runtime.ts";
import type { KvMeters } from "./kv_meters.ts";
import type { LaneContent } from "./lane_content.ts";
import type { LaneOrder, StartOver } from "./lane_order.ts";
import {
  type GapReason,
  type LaneBatch,
  LaneGap,
  type LaneLimits,
  type LaneSource,
  type ReplayEnd,
} from "./lane_types.ts";

export interface HoleFillerOptions {
  readonly order: LaneOrder;
  readonly content: LaneContent;
  readonly clock: Clock;
  readonly random: Random;
  readonly log: Log;
  readonly meters: KvMeters;
  readonly limits: LaneLimits;
  readonly onLostEvents: "clear" | "keep";
  /** How to ask the worker at present; undefined = it cannot be asked. */
  readonly replay: () => LaneSource["replay"];
  readonly startOver: StartOver;
  /** Events were lost, or never to be had: the lane is not complete. */
  readonly degrade: (reason: string) => void;
  /** The worker answered. */
  readonly proven: () => void;
  readonly failed: (reason: string) => void;
  readonly changed: () => void;
}

/** Failures that another request may get over. */
const MAY_PASS: ReadonlySet<GapReason> = new Set([
  "non_contiguous",
  "ended_before_target",
  "timeout",
  "failed",
]);
const NO_REPLAY = "no replay endpoint";
const ROOM_POLL_MS = 5;

export class HoleFiller {
  readonly #options: HoleFillerOptions;
  /** Names the filling that is going on; 0 = none. */
  #current = 0;
  #count = 0;
  #stop: (() => void) | undefined;
  /** Counts the times that the source came up. */
  #connections = 0;
  #isClosed = false;

  constructor(options: HoleFillerOptions) {
    this.#options = options;
  }

  get isFilling(): boolean {
    return this.#current !== 0;
  }

  /** Answers that are under way are those of an earlier connection from now on. */
  connected(): void {
    this.#connections += 1;
  }

  /** Ends a filling that is going on; its caller gets the gap `superseded`. */
  abort(): void {
    this.#current = 0;
    this.#stop?.();
    this.#stop = undefined;
  }

  close(): void {
    this.#isClosed = true;
    this.abort();
  }

  /**
   * Asks for what is missing; `mustAsk` asks even when no hole is known. `isStrict` gives up at the
   * first hole that cannot be filled and returns it; otherwise what was lost is dealt with by
   * `onLostEvents`, and the lane goes on. Resolves with undefined when nothing is missing any more.
   */
  async fill(mustAsk: boolean, isStrict: boolean): Promise<LaneGap | undefined> {
    const id = ++this.#count;
    this.#current = id;
    const stop = new AbortController();
    this.#stop = () => stop.abort();
    this.#options.changed();
    try {
      return await this.#rounds(id, mustAsk, isStrict, stop.signal);
    } finally {
      if (this.#current === id) {
        this.#current = 0;
        this.#stop = undefined;
      }
    }
  }

  async #rounds(
    id: number,
    mustAsk: boolean,
    isStrict: boolean,
    stop: AbortSignal,
  ): Promise<LaneGap | undefined> {
    const { order, limits, meters } = this.#options;
    const ended = (): LaneGap | undefined => {
      if (this.#current === id) return undefined;
      const reason = this.#isClosed ? "closed" : "superseded";
      return new LaneGap(reason, order.firstMissing, order.pending.first?.seq);
    };
    let failures = 0;
    for (;;) {
      order.drain();
      if (order.pending.first === undefined && !mustAsk) return undefined;
      const round = new Round(order, isStrict);
      const connection = this.#connections;
      const end = await this.#ask(round, id, stop);
      if (this.#current !== id) return ended();
      mustAsk = true;
      if (connection !== this.#connections) {
        // The answer may be that of a publisher that is gone: it proves nothing about the new one.
        order.isUnverified = order.admitted !== undefined;
        continue;
      }
      if (round.restarted !== undefined) {
        this.#options.startOver(round.restarted, undefined, true);
        continue;
      }
      if (end.kind === "complete" || round.admitted > 0) this.#options.proven();
      if (round.isVerified) order.isUnverified = false;
      const before = order.firstMissing;
      order.drain();
      const target = order.pending.first?.seq;
      if (target === undefined && end.kind === "complete" && round.refusedAt === undefined) {
        order.isUnverified = false;
        return undefined;
      }
      if (round.isFull) await this.#room(id);
      if (round.admitted > 0 || round.isFull) {
        failures = 0;
        if (this.#current !== id) return ended();
        continue;
      }
      const { refusedAt } = round;
      if (
        refusedAt !== undefined && before < order.firstMissing && refusedAt <= order.firstMissing
      ) {
        // The ring had let go of what came live while it was asked: nothing is missing there.
        failures = 0;
        continue;
      }
      const reason = round.reason(end, target);
      meters.replay(reason);
      failures += 1;
      if (MAY_PASS.has(reason) && failures < limits.replayAttempts) {
        await this.#pause(failures);
        if (this.#current !== id) return ended();
        continue;
      }
      // What came live before the first batch that the ring still has is not lost.
      const next = earlier(refusedAt, target);
      const gap = new LaneGap(reason, order.firstMissing, next, end.message);
      this.#options.failed(gap.message);
      // Without a hole there is only doubt, and it is tried again with the next batch.
      if (isStrict || next === undefined) return gap;
      this.#lose(gap, next);
      failures = 0;
      mustAsk = refusedAt !== undefined;
    }
  }

  async #ask(round: Round, id: number, stop: AbortSignal): Promise<ReplayEnd> {
    const { log, meters } = this.#options;
    const replay = this.#options.replay();
    if (replay === undefined) return { kind: "failed", message: NO_REPLAY };
    log.debug("kv_replay_requested", { from: round.from, verify: round.isVerifying });
    const connection = this.#connections;
    const end = await replay(round.from, (batch) => {
      if (this.#current !== id || connection !== this.#connections) return false;
      return this.#replayed(round, batch);
    }, stop);
    if (round.admitted > 0) meters.replayed(round.admitted);
    if (round.isVerifying && !round.isVerified && round.seen === 0 && end.kind === "complete") {
      // The ring always has the newest batch: it has none as new as the one that we hold.
      round.restarted ??= "ring_behind_cursor";
    }
    return end;
  }

  /** One batch of the ring; false = enough. */
  #replayed(round: Round, batch: LaneBatch): boolean {
    const { order, content, limits } = this.#options;
    round.seen += 1;
    // The first batches of all may have come live meanwhile, and be out of the ring by now.
    if (order.admitted === undefined) order.drain();
    const { admitted } = order;
    if (admitted !== undefined && batch.seq <= admitted) {
      if (order.digests.compare(batch) === "different") {
        round.restarted = "replay_differs";
        return false;
      }
      if (batch.seq === admitted) round.isVerified = true;
      return true;
    }
    // A number that fits is no proof when the batch before it, which would be one, is not there.
    const isNext = batch.seq === order.firstMissing && (!round.isVerifying || round.isVerified);
    if (!isNext) {
      if (admitted !== undefined || round.isStrict) {
        round.refusedAt ??= batch.seq;
        return false;
      }
      // Joining late: the ring begins after the worker did.
      this.#options.degrade(`the replay ring starts at batch ${batch.seq}`);
    }
    if (content.waitingBytes > limits.maxBytes) {
      round.isFull = true;
      return false;
    }
    order.isUnverified = false;
    round.admitted += 1;
    order.admit(batch);
    return true;
  }

  /** Batches up to `next` are gone for good. */
  #lose(gap: LaneGap, next: bigint): void {
    const { order, content, meters, log, onLostEvents } = this.#options;
    const from = order.firstMissing;
    // With nothing in between it is only not known whether the publisher is the same.
    if (next > from) {
      meters.lost(Number(next - from));
      log.warn("kv_events_lost", { from, to: next - 1n, reason: gap.reason });
    }
    const isKept = onLostEvents === "keep" && order.admitted !== undefined;
    if (!isKept) content.forgetBlocks(next - 1n);
    order.admitted = next - 1n;
    order.isUnverified = false;
    this.#options.degrade(gap.message);
  }

  /** Waits until at least half of what waits to be applied is applied. */
  async #room(id: number): Promise<void> {
    const { content, limits, clock } = this.#options;
    while (this.#current === id && content.waitingBytes * 2 > limits.maxBytes) {
      await new Promise<void>((resolve) => {
        clock.after(ROOM_POLL_MS, resolve);
      });
    }
  }

  #pause(failures: number): Promise<void> {
    const { clock, random, limits } = this.#options;
    const waitMs = limits.replayBackoffMs * 2 ** (failures - 1) * (0.5 + random.number());
    return new Promise((resolve) => {
      clock.after(waitMs, resolve);
    });
  }
}

function earlier(one: bigint | undefined, other: bigint | undefined): bigint | undefined {
  return one === undefined || (other !== undefined && other < one) ? other : one;
}

/** One request to a ring and what came of it. */
class Round {
  readonly from: bigint;
  readonly isVerifying: boolean;
  readonly isStrict: boolean;
  isVerified = false;
  seen = 0;
  admitted = 0;
  /** Number of a batch that came after a hole in the answer. */
  refusedAt: bigint | undefined;
  restarted: string | undefined;
  /** More was on offer than can wait to be applied. */
  isFull = false;

  /** When the publisher may have changed, the last batch is asked for again, to compare. */
  constructor(order: LaneOrder, isStrict: boolean) {
    this.isVerifying = order.isUnverified && order.admitted !== undefined;
    this.from = this.isVerifying ? order.firstMissing - 1n : order.firstMissing;
    this.isStrict = isStrict;
  }

  reason(end: ReplayEnd, target: bigint | undefined): GapReason {
    if (end.message === NO_REPLAY) return "no_replay_endpoint";
    if (this.refusedAt !== undefined) {
      return this.seen > 1 ? "non_contiguous" : "started_after_requested";
    }
    if (end.kind === "timeout") return "timeout";
    if (end.kind === "failed" || end.kind === "stopped") return "failed";
    return this.seen === 0 || target === undefined ? "empty" : "ended_before_target";
  }
}
