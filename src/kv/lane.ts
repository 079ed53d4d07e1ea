/**
 * A lane: order, incarnation and recovery in front of one worker rank's part of the index.
 *
 * Batches carry the publisher's sequence numbers. Those that follow each other are applied; a hole is
 * filled from the worker's replay ring with exactly what is missing; a number that was used before
 * for other content means that the publisher started over, which clears the lane. What can neither be
 * had nor proved is forgotten and reported (`degraded`): empty is safe, ghosts are not.
 *
 * While it is held (a replica that recovers), a lane keeps batches back until a peer's cut is put in.
 */

import type { Log } from "../observe/log.ts";
import type { Clock, Random } from "../runtime/runtime.ts";
import { batchDigest, BatchDigests, type DigestState, REMEMBERED } from "./batch_digests.ts";
import { BatchQueue } from "./batch_queue.ts";
import type { EventReaderSettings, EventReaderState } from "./event_reader.ts";
import type { KvMeters } from "./kv_meters.ts";
import { LaneContent, type LaneIndex } from "./lane_content.ts";
import { laneId, type LaneKey } from "./lane_key.ts";
import {
  type GapReason,
  type HoldLimits,
  type LaneBatch,
  type LaneCut,
  LaneGap,
  type LaneSource,
  type LaneState,
  type ReplayEnd,
} from "./lane_types.ts";
import type { Slices } from "./slices.ts";

export * from "./lane_types.ts";

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

export interface LaneOptions {
  readonly key: LaneKey;
  readonly index: LaneIndex;
  readonly settings: EventReaderSettings;
  readonly slices: Slices;
  readonly clock: Clock;
  readonly random: Random;
  readonly log: Log;
  readonly meters: KvMeters;
  readonly limits?: Partial<LaneLimits>;
  /**
   * What becomes of a lane's blocks when events were lost for good: `clear` (the default; nothing
   * false is held) or `keep` (removals that were lost leave blocks that are not there any more).
   */
  readonly onLostEvents?: "clear" | "keep";
  /** Called after the state changed. */
  readonly changed?: (lane: Lane, from: LaneState, to: LaneState) => void;
}

/** The highest number that can be asked for: a ring answers with its end only. */
const PROBE = 2n ** 64n - 2n;

export class Lane {
  readonly key: LaneKey;
  readonly #options: LaneOptions;
  readonly #limits: LaneLimits;
  readonly #content: LaneContent;
  readonly #digests = new BatchDigests();
  /** Batches that came and cannot be applied yet. */
  readonly #pending: BatchQueue;
  readonly #log: Log;
  #source: LaneSource | undefined;
  #epoch: string;
  /** Number of the last batch that was given to the content, applied or waiting. */
  #admitted: bigint | undefined;
  /** Bounds of the pending batches while the lane is held; undefined = not held. */
  #hold: HoldLimits | undefined;
  #degraded: string | undefined;
  #lastError: string | undefined;
  #isLoading = false;
  #isProven = false;
  /** Pending batches, the oldest ones, that came before the connection broke. */
  #fromBefore = 0;
  /** Counts the times that the source came up. */
  #connections = 0;
  /** The connection broke during the hold: what was kept back may be of an earlier publisher. */
  #brokeWhileHeld = false;
  /** Is the cut that was put in of the publisher that is there? A number that fits may be chance. */
  #confirmed: "no" | "by_number" | "by_content" = "by_content";
  #isClosed = false;
  /** The next batch is taken whatever its number: what came before is given up. */
  #takesAny = false;
  /** The connection broke since the last batch: the publisher may be another one. */
  #isUnverified = false;
  #isUp = false;
  /** Names the filling of a hole that is going on; 0 = none. */
  #filling = 0;
  #fills = 0;
  #stopFill: (() => void) | undefined;
  #reported: LaneState = "pending";

  constructor(options: LaneOptions) {
    this.key = options.key;
    this.#options = options;
    this.#limits = { ...LANE_LIMITS, ...options.limits };
    this.#pending = new BatchQueue(options.meters);
    this.#epoch = options.random.uuid();
    this.#log = options.log.with({ lane: laneId(options.key) });
    this.#content = new LaneContent({
      worker: options.key.worker,
      dpRank: options.key.dpRank,
      index: options.index,
      settings: options.settings,
      slices: options.slices,
      meters: options.meters,
      publisherChanged: () => this.#publisherChanged(),
      cleared: () => this.#recovered(),
      log: (event, fields) => this.#log.warn(event, fields),
    });
  }

  get state(): LaneState {
    if (this.#isLoading) return "loading";
    if (this.#filling !== 0) return "replaying";
    if (this.#hold !== undefined) return this.#isProven ? "buffering" : "subscribing";
    if (this.#degraded !== undefined) return "degraded";
    if (this.#isProven) return "live";
    return this.#source === undefined ? "pending" : "subscribing";
  }

  get epoch(): string {
    return this.#epoch;
  }

  /** Number of the last batch that is in the index. */
  get cursor(): bigint | undefined {
    return this.#content.cursor;
  }

  /** Why the lane is degraded, or what went wrong last. */
  get lastError(): string | undefined {
    return this.#degraded ?? this.#lastError;
  }

  /** Its handle in the partition's index. */
  get handle(): number {
    return this.#content.handle;
  }

  /** Blocks held in the index. */
  get blocks(): number {
    return this.#content.count;
  }

  /** Batches and bytes that wait, for a hole to be filled or for a snapshot. */
  get waiting(): { readonly batches: number; readonly bytes: number } {
    return {
      batches: this.#pending.length,
      bytes: this.#pending.bytes + this.#content.waitingBytes,
    };
  }

  /** Whether it is certain that the publisher's events reach this lane. */
  get isProven(): boolean {
    return this.#isProven;
  }

  get isHeld(): boolean {
    return this.#hold !== undefined;
  }

  get isClosed(): boolean {
    return this.#isClosed;
  }

  // ------------------------------------------------------------------------------- from the source

  /** Says where batches come from. Call `sourceUp` once it is connected. */
  attach(source: LaneSource | undefined): void {
    this.#source = source;
    this.#report();
  }

  /** The source is connected; `isReconnect` if it was connected before. */
  sourceUp(isReconnect: boolean): void {
    if (this.#isClosed) return;
    this.#isUp = true;
    this.#connections += 1;
    this.#lastError = undefined;
    const canReplay = this.#source?.replay !== undefined;
    // What waits may be of an earlier publisher; of the same one, the ring has it too.
    if (isReconnect && canReplay && this.#hold === undefined) this.#pending.clear();
    if (isReconnect) this.#fromBefore = this.#pending.length;
    const isDoubtful = isReconnect && this.#admitted !== undefined;
    // Also at first: a peer's cut may have been put in before the connection stood.
    if (canReplay && this.#admitted !== undefined) this.#isUnverified = true;
    if (isDoubtful && !canReplay && this.#options.onLostEvents !== "keep") {
      // Connections mostly break because processes end, and nothing can be proved here.
      this.#startOver("reconnected_without_replay", undefined);
    }
    if (this.#hold !== undefined) {
      if (isReconnect) this.#brokeWhileHeld = true;
      if (canReplay && !this.#isProven) void this.#probe();
    } else if (canReplay) {
      // At first: whatever the ring still has. Later: is it the same publisher, and what was missed?
      this.#startFill(true);
    }
    this.#report();
  }

  sourceDown(message: string): void {
    if (this.#isClosed) return;
    this.#isUp = false;
    this.#lastError = message;
    this.#report();
  }

  /** Says that nothing before batch `seq` concerns this lane. No effect once it has begun. */
  begin(seq: bigint): void {
    if (this.#admitted === undefined && this.#pending.length === 0) this.#admitted = seq - 1n;
  }

  /** Takes a live batch: applied now or soon, kept back, or dropped as a duplicate. */
  receive(batch: LaneBatch): void {
    if (this.#isClosed) return;
    this.#isProven = true;
    this.#accept(batch);
    this.#report();
  }

  /** Takes a batch of a publisher that does not number them: it is simply the next. */
  receiveNext(batch: Omit<LaneBatch, "seq">): void {
    const last = this.#pending.last?.seq ?? this.#admitted ?? -1n;
    this.receive({ ...batch, seq: last + 1n });
  }

  #accept(batch: LaneBatch): void {
    if (batch.epoch !== undefined && batch.epoch !== this.#epoch) {
      const isKnown = this.#admitted !== undefined || this.#pending.length > 0;
      if (isKnown) this.#startOver("new_epoch", batch.epoch);
      else this.#epoch = batch.epoch;
    }
    if (this.#isStale(batch)) {
      this.#options.meters.event("batch", "duplicate");
      return;
    }
    if (this.#hold !== undefined || this.#filling !== 0 || this.#isUnverified) {
      this.#keep(batch);
      if (this.#hold === undefined && this.#filling === 0) this.#startFill(false);
      return;
    }
    const admitted = this.#admitted;
    if (admitted === undefined ? this.#isFirst(batch) : batch.seq === admitted + 1n) {
      this.#admit(batch);
      return;
    }
    if (admitted !== undefined) this.#options.meters.gap();
    this.#keep(batch);
    this.#startFill(false);
  }

  /** May this batch be the first one? Batch 0 is; so is any other once earlier ones are given up. */
  #isFirst(batch: LaneBatch): boolean {
    if (batch.seq === 0n || this.#takesAny) return true;
    if (this.#source?.replay !== undefined) return false;
    this.#degrade(`joined at batch ${batch.seq} without a replay endpoint`);
    return true;
  }

  /**
   * True for a batch that was seen before. A number that was used for other content, or one that is
   * far behind, is from a publisher that started over: then the lane is cleared and the batch is new.
   */
  #isStale(batch: LaneBatch): boolean {
    const last = this.#pending.last?.seq ?? this.#admitted;
    if (last === undefined || batch.seq > last) return false;
    const waiting = this.#pending.find(batch.seq);
    const known = waiting === undefined
      ? this.#digests.compare(batch)
      : batchDigest(waiting) === batchDigest(batch)
      ? "same"
      : "different";
    if (known === "same") return true;
    const wasAdmitted = this.#admitted !== undefined && batch.seq <= this.#admitted;
    const mayBeOld = this.#confirmed !== "no" && last - batch.seq < REMEMBERED;
    if (known === "unknown" && wasAdmitted && mayBeOld) return true;
    this.#startOver("sequence_regressed", batch.epoch);
    return false;
  }

  #admit(batch: LaneBatch): void {
    this.#admitted = batch.seq;
    this.#takesAny = false;
    if (this.#confirmed === "no") this.#confirmed = "by_number";
    this.#digests.note(batch);
    this.#content.push(batch);
  }

  /** Puts a batch aside, within bounds. What is dropped for room is a hole, to be filled like others. */
  #keep(batch: LaneBatch): void {
    const limits = this.#hold ?? this.#limits;
    this.#pending.push(batch);
    this.#digests.note(batch);
    let dropped = 0;
    while (this.#pending.length > limits.maxBatches || this.#pending.bytes > limits.maxBytes) {
      if (this.#shiftPending() === undefined) break;
      dropped += 1;
    }
    if (dropped === 0) return;
    this.#options.meters.overflow("lane", dropped);
    if (this.#lastError !== OVERFLOW) this.#log.warn("kv_lane_buffer_overflow", { dropped });
    this.#lastError = OVERFLOW;
  }

  // ------------------------------------------------------------------------------------ recovery

  /** From now on keep batches back instead of applying them. Over the limits the oldest are dropped. */
  hold(limits: HoldLimits): void {
    if (this.#isClosed) return;
    this.#hold = limits;
    this.#abortFill();
    this.#report();
  }

  /** Ends a hold without a snapshot: goes on with what the lane had and what was kept back. */
  release(): void {
    if (this.#isClosed || this.#hold === undefined) return;
    this.#hold = undefined;
    this.#brokeWhileHeld = false;
    this.#resume();
    this.#report();
  }

  /** An exact copy of the lane, made synchronously. */
  cut(): LaneCut {
    const { blocks, state } = this.#content.copy();
    const cursor = this.#content.cursor;
    const decoderState: DecoderState = { reader: state, digests: this.#digests.state(cursor) };
    const cut: LaneCut = { key: this.key, epoch: this.#epoch, cursor, decoderState, blocks };
    return this.#degraded === undefined ? cut : { ...cut, degraded: this.#degraded };
  }

  /**
   * Replaces what the lane holds by the cut, drops kept batches up to its cursor, closes a hole by
   * the worker's replay, and goes live. Rejects with `LaneGap` when the hole cannot be closed: the
   * lane is then empty and still held, so another cut may be tried, or `degrade`. Rejects with
   * `TypeError` when the cut's decoder state is not well made.
   */
  async commit(cut: LaneCut): Promise<void> {
    if (this.#isClosed) throw new LaneGap("closed", 0n, undefined);
    if (laneId(cut.key) !== laneId(this.key)) throw new TypeError("the cut is of another lane");
    const { reader, digests } = readDecoderState(cut.decoderState);
    const canProve = this.#source?.replay !== undefined ||
      this.#pending.first?.epoch !== undefined;
    if (this.#brokeWhileHeld && !canProve) {
      // Nobody can say whether the cut is of the publisher that is there now.
      throw new LaneGap("no_replay_endpoint", this.#firstMissing(), undefined);
    }
    this.#hold ??= this.#limits;
    this.#abortFill();
    this.#isLoading = true;
    this.#report();
    try {
      this.#content.load(cut.cursor, cut.blocks, reader);
      this.#digests.restore(digests);
    } catch (error) {
      this.#empty();
      throw error;
    } finally {
      this.#isLoading = false;
    }
    this.#admitted = cut.cursor;
    this.#degraded = cut.degraded;
    this.#takesAny = false;
    this.#isUnverified = false;
    const named = this.#pending.first?.epoch;
    if (named !== undefined && cut.epoch !== "" && named !== cut.epoch) {
      this.#startOver("epoch_changed", named, true);
    } else if (cut.epoch !== "") this.#epoch = cut.epoch;
    if (cut.cursor === undefined && named === undefined) this.#joinWithoutCursor();
    const hadPending = this.#pending.length > 0;
    this.#confirmed = cut.cursor === undefined ? "by_content" : "no";
    // Where the worker can be asked, nothing is put on the cut before it is known to be of this
    // publisher: by a kept batch that is in the cut too, or by the ring.
    this.#isUnverified = this.#source?.replay !== undefined && this.#admitted !== undefined;
    this.#drain();
    if (this.#confirmed === "by_content" && !this.#brokeWhileHeld) {
      this.#isUnverified = false;
      this.#drain();
    }
    const isDoubtful = hadPending && !canProve && this.#confirmed !== "by_content";
    if (isDoubtful && this.#pending.length === 0) {
      // Nothing of what came since we listen is in the cut: it may be of an earlier publisher.
      this.#empty();
      this.#report();
      throw new LaneGap("no_replay_endpoint", this.#firstMissing(), undefined);
    }
    const isProven = hadPending && this.#confirmed === "by_content" && !this.#brokeWhileHeld;
    const mustAsk = this.#pending.length > 0 ||
      (this.#source?.replay !== undefined && !isProven);
    if (mustAsk) {
      this.#isUnverified = this.#admitted !== undefined;
      const gap = await this.#fill(true, true);
      if (gap?.reason === "superseded" || gap?.reason === "closed") throw gap;
      // A worker that does not answer proves nothing: without a hole the cursor stays what it is.
      const isSilent = this.#pending.length === 0 &&
        (gap?.reason === "timeout" || gap?.reason === "failed");
      if (gap !== undefined && !isSilent) {
        this.#empty();
        this.#report();
        throw gap;
      }
    }
    this.#hold = undefined;
    this.#brokeWhileHeld = false;
    this.#resume();
    this.#report();
  }

  /** Forgets everything, and goes on from the next batch. */
  degrade(reason: string): void {
    if (this.#isClosed) return;
    this.#abortFill();
    this.#hold = undefined;
    this.#brokeWhileHeld = false;
    this.#empty();
    this.#degrade(reason);
    this.#takesAny = true;
    this.#isUnverified = false;
    const first = this.#pending.first;
    if (first !== undefined) this.#admitted = first.seq - 1n;
    this.#resume();
    this.#report();
  }

  /** Gone from the index at once; whatever still arrives is ignored. */
  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#abortFill();
    this.#pending.clear();
    this.#content.close();
  }

  /**
   * A cut that does not say where it is cut (another system's dump): kept batches are applied over
   * it, which repeats some and may miss some.
   */
  #joinWithoutCursor(): void {
    const first = this.#pending.first;
    this.#takesAny = true;
    if (first !== undefined) this.#admitted = first.seq - 1n;
    this.#lastError = "recovered from a dump without a cursor";
  }

  /** After a hold or a degradation: apply what fits, ask for what does not. */
  #resume(): void {
    this.#drain();
    if (this.#pending.length > 0) this.#startFill(false);
    else if (this.#admitted === undefined && !this.#takesAny) {
      if (this.#source?.replay !== undefined && this.#isUp) this.#startFill(true);
    }
  }

  /** Applies pending batches as long as they follow; drops those that are in already. */
  #drain(): void {
    for (let batch = this.#pending.first; batch !== undefined; batch = this.#pending.first) {
      const admitted = this.#admitted;
      if (admitted === undefined) {
        if (batch.seq !== 0n) return;
      } else if (batch.seq <= admitted) {
        const known = this.#digests.compare(batch);
        if (known === "different") {
          this.#startOver("replay_differs", batch.epoch, true);
          continue;
        }
        if (known === "same") this.#confirmed = "by_content";
        this.#shiftPending();
        continue;
      } else if (batch.seq !== admitted + 1n || this.#isUnverified) {
        return;
      }
      this.#shiftPending();
      this.#admit(batch);
    }
  }

  #shiftPending(): LaneBatch | undefined {
    if (this.#fromBefore > 0) this.#fromBefore -= 1;
    return this.#pending.shift();
  }

  async #probe(): Promise<void> {
    const end = await this.#source?.replay?.(PROBE, () => true, new AbortController().signal);
    if (this.#isClosed || end?.kind !== "complete") return;
    this.#isProven = true;
    this.#report();
  }

  // ------------------------------------------------------------------------------- filling of holes

  /** Begins to fill what is missing; `mustAsk` asks even when no hole is known. */
  #startFill(mustAsk: boolean): void {
    if (this.#filling !== 0) return;
    void this.#fill(mustAsk, false).then(() => {
      this.#report();
    });
  }

  #abortFill(): void {
    this.#filling = 0;
    this.#stopFill?.();
    this.#stopFill = undefined;
  }

  /**
   * Asks the worker for what is missing, in rounds, until nothing is. `isStrict` gives up at the
   * first hole that cannot be filled and returns it; otherwise what was lost is dealt with by
   * `onLostEvents` and the lane goes on.
   */
  async #fill(mustAsk: boolean, isStrict: boolean): Promise<LaneGap | undefined> {
    const id = ++this.#fills;
    this.#filling = id;
    const stop = new AbortController();
    this.#stopFill = () => stop.abort();
    let failures = 0;
    let mustAskNow = mustAsk;
    this.#report();
    try {
      for (;;) {
        this.#drain();
        const target = this.#pending.first?.seq;
        if (target === undefined && !mustAskNow) return undefined;
        const round = new Round(this.#admitted, this.#isUnverified, isStrict);
        const connection = this.#connections;
        const end = await this.#ask(round, id, stop.signal);
        if (this.#isClosed) return new LaneGap("closed", round.from, target);
        if (this.#filling !== id) return new LaneGap("superseded", round.from, target);
        if (connection !== this.#connections) {
          // The answer may be that of a publisher that is gone: it proves nothing about the new one.
          this.#isUnverified = this.#admitted !== undefined;
          mustAskNow = true;
          continue;
        }
        if (round.restarted !== undefined) {
          this.#startOver(round.restarted, undefined, true);
          mustAskNow = true;
          continue;
        }
        if (end.kind === "complete" || round.admitted > 0) this.#isProven = true;
        if (round.isVerified) this.#isUnverified = false;
        this.#drain();
        const isClosed = this.#pending.length === 0 && end.kind === "complete" &&
          round.refusedAt === undefined;
        if (isClosed) {
          this.#isUnverified = false;
          return undefined;
        }
        if (round.admitted > 0 || round.isFull) {
          if (round.isFull) await this.#room(id);
          if (this.#filling !== id) return new LaneGap("superseded", round.from, target);
          failures = 0;
          mustAskNow = true;
          continue;
        }
        const reason = round.reason(end, this.#pending.first?.seq);
        this.#options.meters.replay(reason);
        failures += 1;
        if (MAY_PASS.has(reason) && failures < this.#limits.replayAttempts) {
          await this.#pause(failures);
          if (this.#filling !== id) return new LaneGap("superseded", round.from, target);
          continue;
        }
        const next = round.refusedAt ?? this.#pending.first?.seq;
        const gap = new LaneGap(reason, this.#firstMissing(), next, end.message);
        this.#lastError = gap.message;
        // Without a hole there is only doubt, and it is tried again with the next batch.
        if (isStrict || next === undefined) return gap;
        this.#lose(gap, next);
        failures = 0;
        mustAskNow = round.refusedAt !== undefined;
      }
    } finally {
      if (this.#filling === id) {
        this.#filling = 0;
        this.#stopFill = undefined;
      }
    }
  }

  async #ask(round: Round, id: number, stop: AbortSignal): Promise<ReplayEnd> {
    const replay = this.#source?.replay;
    if (replay === undefined) return { kind: "failed", message: NO_REPLAY };
    this.#log.info("kv_replay_requested", { from: round.from, verify: round.isVerifying });
    const connection = this.#connections;
    const end = await replay(round.from, (batch) => {
      if (this.#filling !== id || this.#isClosed || connection !== this.#connections) return false;
      return this.#replayed(round, batch);
    }, stop);
    if (round.admitted > 0) this.#options.meters.replayed(round.admitted);
    if (round.isVerifying && !round.isVerified && round.seen === 0 && end.kind === "complete") {
      // The ring always has the newest batch: it has none as new as the one that we hold.
      round.restarted = "ring_behind_cursor";
    }
    return end;
  }

  /** One batch of the ring; false = enough. */
  #replayed(round: Round, batch: LaneBatch): boolean {
    round.seen += 1;
    const admitted = this.#admitted;
    if (admitted !== undefined && batch.seq <= admitted) {
      if (this.#digests.compare(batch) === "different") {
        round.restarted = "replay_differs";
        return false;
      }
      if (batch.seq === admitted) round.isVerified = true;
      return true;
    }
    const follows = admitted === undefined ? batch.seq === 0n : batch.seq === admitted + 1n;
    // A number that fits is no proof when the batch before it, which would be one, is not there.
    const isNext = follows && (!round.isVerifying || round.isVerified);
    if (!isNext) {
      if (admitted !== undefined || round.isStrict) {
        round.refusedAt ??= batch.seq;
        return false;
      }
      // Joining late: the ring begins after the worker did.
      this.#degrade(`the replay ring starts at batch ${batch.seq}`);
    }
    if (this.#content.waitingBytes > this.#limits.maxBytes) {
      round.isFull = true;
      return false;
    }
    this.#isUnverified = false;
    round.admitted += 1;
    this.#admit(batch);
    return true;
  }

  /** Batches up to `next` are gone for good. */
  #lose(gap: LaneGap, next: bigint): void {
    const from = this.#firstMissing();
    this.#options.meters.lost(Number(next - from));
    this.#log.warn("kv_events_lost", { from, to: next - 1n, reason: gap.reason });
    const isKept = this.#options.onLostEvents === "keep" && this.#admitted !== undefined;
    if (!isKept) this.#content.forgetBlocks(next - 1n);
    this.#admitted = next - 1n;
    this.#isUnverified = false;
    this.#degrade(gap.message);
  }

  #firstMissing(): bigint {
    return this.#admitted === undefined ? 0n : this.#admitted + 1n;
  }

  /** Waits until at least half of what waits to be applied is applied. */
  async #room(id: number): Promise<void> {
    while (this.#filling === id && this.#content.waitingBytes * 2 > this.#limits.maxBytes) {
      await new Promise<void>((resolve) => {
        this.#options.clock.after(ROOM_POLL_MS, resolve);
      });
    }
  }

  #pause(failures: number): Promise<void> {
    const { clock, random } = this.#options;
    const backoffMs = this.#limits.replayBackoffMs * 2 ** (failures - 1) *
      (0.5 + random.number());
    return new Promise((resolve) => {
      clock.after(backoffMs, resolve);
    });
  }

  // ------------------------------------------------------------------------------ what is not kept

  /** Another publisher: nothing that was held is worth anything. */
  #startOver(reason: string, epoch: string | undefined, keepPending = false): void {
    this.#options.meters.restart(reason);
    this.#log.warn("kv_lane_restarted", { reason, cursor: this.cursor, blocks: this.blocks });
    if (keepPending) {
      // What came before the connection broke came from the publisher that is gone.
      while (this.#fromBefore > 0 && this.#shiftPending() !== undefined);
    } else {
      this.#pending.clear();
      this.#abortFill();
    }
    this.#fromBefore = 0;
    this.#empty();
    this.#degraded = undefined;
    this.#takesAny = false;
    this.#confirmed = "by_content";
    this.#isUnverified = false;
    this.#epoch = epoch ?? this.#options.random.uuid();
  }

  /** The publisher changed without its numbers showing it; what follows is counted on as before. */
  #publisherChanged(): void {
    this.#options.meters.restart("hashes_changed");
    this.#log.warn("kv_lane_restarted", { reason: "hashes_changed", cursor: this.cursor });
    this.#epoch = this.#options.random.uuid();
    this.#degrade("the publisher was replaced: block hashes changed");
    this.#report();
  }

  /** By its own word the publisher has no blocks: whatever was missed before does not matter. */
  #recovered(): void {
    if (this.#degraded === undefined) return;
    this.#degraded = undefined;
    this.#report();
  }

  #empty(): void {
    this.#content.clear(undefined);
    this.#digests.clear();
    this.#admitted = undefined;
  }

  #degrade(reason: string): void {
    this.#degraded = reason;
    this.#log.warn("kv_lane_degraded", { reason });
  }

  #report(): void {
    const from = this.#reported;
    const to = this.state;
    if (from === to || this.#isClosed) return;
    this.#reported = to;
    this.#log.debug("kv_lane_state", { from, to });
    this.#options.changed?.(this, from, to);
  }
}

const OVERFLOW = "the buffer of waiting batches was full";
const NO_REPLAY = "no replay endpoint";
const ROOM_POLL_MS = 5;

/** Failures that another request may get over. */
const MAY_PASS: ReadonlySet<GapReason> = new Set([
  "non_contiguous",
  "ended_before_target",
  "timeout",
  "failed",
]);

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
  constructor(admitted: bigint | undefined, isUnverified: boolean, isStrict: boolean) {
    this.isVerifying = isUnverified && admitted !== undefined;
    this.from = admitted === undefined ? 0n : this.isVerifying ? admitted : admitted + 1n;
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

interface DecoderState {
  readonly reader: EventReaderState;
  readonly digests: DigestState;
}

/** What `cut` wrote; a peer of another make may give nothing, which is an empty state. */
function readDecoderState(value: unknown): DecoderState {
  if (value === undefined || value === null) return { reader: { groups: [] }, digests: [] };
  const state = value as Partial<DecoderState>;
  const groups = state.reader?.groups ?? [];
  const digests = state.digests ?? [];
  const isGood = Array.isArray(groups) &&
    groups.every((row) => Array.isArray(row) && typeof row[0] === "number") &&
    Array.isArray(digests) &&
    digests.every((row) => Array.isArray(row) && /^[0-9]{1,20}$/.test(String(row[0])));
  if (!isGood) throw new TypeError("the cut's decoder state is not well made");
  return { reader: { ...state.reader, groups }, digests };
}
