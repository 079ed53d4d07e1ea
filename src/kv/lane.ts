/**
 * A lane: order, incarnation and recovery in front of one worker rank's part of the index.
 *
 * Batches carry the publisher's sequence numbers. Those that follow each other are applied; a hole is
 * filled from the worker's replay ring with exactly what is missing; a number that was used before
 * for other content means that the publisher started over, which clears the lane. What can neither be
 * had nor proved is forgotten and reported (`degraded`): empty is safe, ghosts are not.
 *
 * While it is held (a replica that recovers), a lane keeps batches back until a peer's cut is put in.
 *
 * Longer than others because all that can happen to a lane is decided here, in one place; what it
 * decides with is in lane_order.ts, hole_filler.ts and lane_content.ts.
 */

import type { Log } from "../observe/log.ts";
import type { Clock, Random } from "../runtime/runtime.ts";
import { type DecoderState, readDecoderState } from "./decoder_state.ts";
import type { EventReaderSettings } from "./event_reader.ts";
import { HoleFiller } from "./hole_filler.ts";
import type { KvMeters } from "./kv_meters.ts";
import type { RowBuilder } from "./lane_blocks.ts";
import { LaneContent, type LaneIndex } from "./lane_content.ts";
import { laneId, type LaneKey } from "./lane_key.ts";
import { LaneOrder, type StartOver } from "./lane_order.ts";
import {
  type Followed,
  type HoldLimits,
  LANE_LIMITS,
  type LaneBatch,
  type LaneCut,
  LaneGap,
  type LaneLimits,
  type LaneSource,
  type LaneState,
  UNNUMBERED,
} from "./lane_types.ts";
import type { Slices } from "./slices.ts";
import { PATIENT_TURN_MS } from "./turns.ts";

export * from "./lane_types.ts";

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
  readonly #order: LaneOrder;
  readonly #filler: HoleFiller;
  readonly #log: Log;
  #source: LaneSource | undefined;
  #isUp = false;
  #epoch: string;
  /** Bounds of the pending batches while the lane is held; undefined = not held. */
  #hold: HoldLimits | undefined;
  /** The connection broke during the hold: what was kept back may be of an earlier publisher. */
  #brokeWhileHeld = false;
  #degraded: string | undefined;
  #lastError: string | undefined;
  #isLoading = false;
  /** Counts the loads; a higher number than its own makes a load void. */
  #loads = 0;
  /** Resolves when the last load has ended, one way or the other. */
  #lastLoad: Promise<void> = Promise.resolve();
  /** The copy that is being made; batches are kept back meanwhile. */
  #cutting: Promise<LaneCut | undefined> | undefined;
  /** Whose memory that copy is in; undefined = its own. */
  #cuttingRows: RowBuilder | undefined;
  #isProven = false;
  #isUnnumbered = false;
  /** A batch of the present publisher did not come through here: it was lost, or a cut stands for it. */
  #hasSkipped = false;
  /** The worker is asked although no hole is known: nothing to speak of unless it finds one. */
  #isChecking = false;
  #isClosed = false;
  #reported: LaneState = "pending";

  constructor(options: LaneOptions) {
    const { key, index, settings, slices, meters, clock, random } = options;
    this.key = key;
    this.#options = options;
    this.#limits = { ...LANE_LIMITS, ...options.limits };
    this.#epoch = random.uuid();
    this.#log = options.log.with({ lane: laneId(key) });
    this.#content = new LaneContent({
      worker: key.worker,
      dpRank: key.dpRank,
      index,
      settings,
      slices,
      meters,
      publisherChanged: () => this.#publisherChanged(),
      cleared: () => this.#recovered(),
      log: (event, fields) => this.#log.warn(event, fields),
    });
    const startOver: StartOver = (reason, epoch, keepsPending) =>
      this.#startOver(reason, epoch, keepsPending);
    this.#order = new LaneOrder(this.#content, meters, startOver);
    this.#filler = new HoleFiller({
      order: this.#order,
      content: this.#content,
      clock,
      random,
      log: this.#log,
      meters,
      limits: this.#limits,
      onLostEvents: options.onLostEvents ?? "clear",
      replay: () => this.#source?.replay,
      startOver,
      degrade: (reason) => this.#degrade(reason),
      proven: () => void (this.#isProven = true),
      failed: (reason) => void (this.#lastError = reason),
      changed: () => this.#report(),
    });
  }

  get state(): LaneState {
    if (this.#isLoading) return "loading";
    if (this.#filler.isFilling && !this.#isChecking) return "replaying";
    if (this.#hold !== undefined) {
      // Without a subscription (events are posted to us) there is nothing to prove.
      return this.#isProven || this.#source === undefined ? "buffering" : "subscribing";
    }
    if (this.#degraded !== undefined) return "degraded";
    if (this.#isProven) return "live";
    return this.#source === undefined ? "pending" : "subscribing";
  }

  /** How far every batch of the present publisher, from its first on, came through; undefined = not so. */
  get followed(): Followed | undefined {
    const { admitted, digests } = this.#order;
    if (this.state !== "live" || this.#hasSkipped || admitted === undefined) return undefined;
    return { to: admitted, digests: digests.state(admitted) };
  }

  get epoch(): string {
    return this.#epoch;
  }

  /** Number of the last batch that is in the index; undefined where batches have none. */
  get cursor(): bigint | undefined {
    return this.#isUnnumbered ? undefined : this.#content.cursor;
  }

  /**
   * Its publisher does not number what it sends. Nobody can say then where a copy of this lane stands
   * in its events, so none can be joined to them, and what came before the first one heard is not
   * known: the lane is degraded until its publisher says that it has no blocks.
   */
  get isUnnumbered(): boolean {
    return this.#isUnnumbered;
  }

  /** The subscription that feeds it; undefined = events are posted to it. */
  get source(): LaneSource | undefined {
    return this.#source;
  }

  /** `payloadDigest` of a batch that came before; undefined if it is not remembered. */
  digestOf(seq: bigint): number | undefined {
    return this.#order.digests.of(seq);
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
      batches: this.#order.pending.length,
      bytes: this.#order.pending.bytes + this.#content.waitingBytes,
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

  /**
   * Resolves when the blocks of the last cut that was put in, or was to be, are not read any more. A
   * lane that starts over, or is let go, during a load still reads them for a while.
   */
  get loaded(): Promise<void> {
    return this.#lastLoad;
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
    if (this.#isChecking) this.#abortFill();
    this.#filler.connected();
    this.#lastError = undefined;
    const canReplay = this.#source?.replay !== undefined;
    // What waits may be of an earlier publisher; of the same one, the ring has it too.
    if (isReconnect && canReplay && this.#hold === undefined) this.#order.pending.clear();
    if (isReconnect) this.#order.connectionBroke();
    // Also at first: a peer's cut may have been put in before the connection stood.
    if (canReplay && this.#order.admitted !== undefined) this.#order.isUnverified = true;
    const isDoubtful = isReconnect
      ? this.#order.admitted !== undefined
      : this.#content.cursor !== undefined;
    if (isDoubtful && !canReplay && this.#options.onLostEvents !== "keep") {
      // Connections mostly break because processes end, and nothing can be proved here.
      this.#startOver("reconnected_without_replay", undefined, false);
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

  /** Says that no batch so far concerns this lane. No effect once it has begun. */
  begin(followed: Followed): void {
    if (this.#order.admitted !== undefined || this.#order.pending.length > 0) return;
    this.#order.admitted = followed.to;
    this.#order.digests.restore(followed.digests);
  }

  /** Takes a live batch: applied now or soon, kept back, or dropped as a duplicate. */
  receive(batch: LaneBatch): void {
    if (this.#isClosed) return;
    if (this.#isUnnumbered) {
      this.#isUnnumbered = false;
      this.#startOver("numbers_began", batch.epoch, false);
    }
    this.#take(batch);
  }

  /** Takes a batch of a publisher that does not number them: it is simply the next. */
  receiveNext(batch: Omit<LaneBatch, "seq">): void {
    if (this.#isClosed) return;
    if (!this.#isUnnumbered) this.#loseNumbers();
    this.#take({ ...batch, seq: (this.#order.last ?? -1n) + 1n });
  }

  #take(batch: LaneBatch): void {
    this.#isProven = true;
    this.#accept(batch);
    this.#report();
  }

  /** What is held, or being put in, cannot be joined to what comes without a number. */
  #loseNumbers(): void {
    const { admitted, pending } = this.#order;
    this.#isUnnumbered = true;
    const holdsSome = admitted !== undefined || pending.length > 0 || this.#content.count > 0;
    if (holdsSome || this.#isLoading) this.#startOver("numbers_ended", undefined, false);
    this.#degrade(UNNUMBERED);
  }

  #accept(batch: LaneBatch): void {
    if (this.#isChecking) this.#abortFill();
    if (batch.epoch !== undefined && batch.epoch !== this.#epoch) {
      const isKnown = this.#order.admitted !== undefined || this.#order.pending.length > 0;
      if (isKnown) this.#startOver("new_epoch", batch.epoch, false);
      else this.#epoch = batch.epoch;
    }
    const judged = this.#order.judge(batch);
    if (judged === "seen") {
      this.#options.meters.event("batch", "duplicate");
      return;
    }
    if (judged === "restarted") this.#startOver("sequence_regressed", batch.epoch, false);
    const isBusy = this.#hold !== undefined || this.#filler.isFilling ||
      this.#cutting !== undefined;
    if (isBusy || this.#order.isUnverified) {
      this.#keep(batch);
      if (!isBusy) this.#startFill(false);
      return;
    }
    const admitted = this.#order.admitted;
    if (admitted === undefined ? this.#isFirst(batch) : batch.seq === admitted + 1n) {
      this.#order.admit(batch);
      return;
    }
    if (admitted !== undefined) this.#options.meters.gap("live", batch.seq - admitted - 1n);
    this.#keep(batch);
    this.#startFill(false);
  }

  /** May this batch be the first one? Batch 0 is; so is any other once earlier ones are given up. */
  #isFirst(batch: LaneBatch): boolean {
    if (batch.seq === 0n || this.#order.takesAny) return true;
    if (this.#source?.replay !== undefined) return false;
    this.#degrade(`joined at batch ${batch.seq} without a replay endpoint`);
    return true;
  }

  /** Puts a batch aside, within bounds. What is dropped for room is a hole, to be filled like others. */
  #keep(batch: LaneBatch): void {
    const dropped = this.#order.keep(batch, this.#hold ?? this.#limits);
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
    if (this.#isLoading) this.#order.empty();
    this.#endLoad();
    this.#endHold();
    this.#resume();
    this.#report();
  }

  /** An exact copy of the lane, made synchronously. */
  cut(): LaneCut {
    const { blocks, state } = this.#content.copy();
    const { digests, ...head } = this.#cutHead();
    return { ...head, decoderState: { reader: state, digests }, blocks };
  }

  /**
   * An exact copy of the lane, made in slices of the event loop; batches that come meanwhile are kept
   * back within the lane's limits and applied afterwards. It is in the memory of `rows` if they are
   * given, and good until those are used again. One copy is made at a time: who asks meanwhile gets
   * the same one, or one of its own after it if there is memory of somebody's that it is in. Resolves
   * with undefined when the lane was closed, or lost its content, before the end.
   */
  cutInSlices(rows?: RowBuilder): Promise<LaneCut | undefined> {
    if (this.#isClosed) return Promise.resolve(undefined);
    const cutting = this.#cutting;
    if (cutting !== undefined) {
      if (rows === undefined && this.#cuttingRows === undefined) return cutting;
      const again = (): Promise<LaneCut | undefined> => this.cutInSlices(rows);
      return cutting.then(again, again);
    }
    this.#cuttingRows = rows;
    this.#cutting = this.#cutNow(rows).finally(() => {
      this.#cutting = undefined;
      this.#cuttingRows = undefined;
      this.#afterCut();
    });
    return this.#cutting;
  }

  async #cutNow(rows: RowBuilder | undefined): Promise<LaneCut | undefined> {
    const pause = this.#options.slices.breather(PATIENT_TURN_MS);
    const copy = await this.#content.copyInSlices(pause, () => this.#cutHead(), rows);
    if (copy === undefined || this.#isClosed) return undefined;
    const { digests, ...head } = copy.noted;
    return { ...head, decoderState: { reader: copy.state, digests }, blocks: copy.blocks };
  }

  /** What belongs to a cut beside the content: all of it of one moment. */
  #cutHead(): Omit<LaneCut, "blocks" | "decoderState"> & Pick<DecoderState, "digests"> {
    const { cursor } = this;
    const digests = this.#order.digests.state(cursor);
    const head = { key: this.key, epoch: this.#epoch, cursor, digests };
    return this.#degraded === undefined ? head : { ...head, degraded: this.#degraded };
  }

  /** Goes on with what was kept back while a copy was made. */
  #afterCut(): void {
    const { first } = this.#order.pending;
    const waits = this.#hold !== undefined || this.#filler.isFilling;
    if (this.#isClosed || waits || first === undefined) return;
    if (this.#order.admitted === undefined && this.#isFirst(first)) this.#order.skipToPending();
    this.#order.drain();
    if (this.#order.pending.length > 0) this.#startFill(false);
    this.#report();
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
    if (this.#isUnnumbered) throw new LaneGap("unnumbered", 0n, undefined);
    const { reader, digests } = readDecoderState(cut.decoderState);
    this.#hold ??= this.#limits;
    this.#abortFill();
    await this.#load(cut, reader, digests);
    const canProve = this.#source?.replay !== undefined ||
      this.#order.pending.first?.epoch !== undefined;
    if (this.#brokeWhileHeld && !canProve) {
      // Nobody can say whether the cut is of the publisher that is there now.
      throw this.#refused();
    }
    this.#degraded = cut.degraded;
    this.#hasSkipped = true;
    this.#order.takesAny = false;
    this.#order.isUnverified = false;
    const named = this.#order.pending.first?.epoch;
    if (named !== undefined && cut.epoch !== "" && named !== cut.epoch) {
      this.#startOver("epoch_changed", named, true);
    } else if (cut.epoch !== "") this.#epoch = cut.epoch;
    if (cut.cursor === undefined && cut.blocks.count > 0 && named === undefined) {
      // Another system's dump, which does not say where it is cut: kept batches are applied over it,
      // which repeats some and may miss some.
      this.#order.skipToPending();
      this.#lastError = "recovered from a dump without a cursor";
    }
    const hadPending = this.#order.pending.length > 0;
    this.#order.confirmed = cut.cursor === undefined ? "by_content" : "no";
    // Where the worker can be asked, nothing is put on the cut before it is known to be of this
    // publisher: by a kept batch that is in the cut too, or by the ring.
    this.#order.isUnverified = this.#source?.replay !== undefined &&
      this.#order.admitted !== undefined;
    this.#order.drain();
    if (this.#order.confirmed === "by_content" && !this.#brokeWhileHeld) {
      this.#order.isUnverified = false;
      this.#order.drain();
    }
    const isDoubtful = hadPending && !canProve && this.#order.confirmed !== "by_content";
    if (isDoubtful && this.#order.pending.length === 0) {
      // Nothing of what came since we listen is in the cut: it may be of an earlier publisher.
      throw this.#refused();
    }
    const isProven = hadPending && this.#order.confirmed === "by_content" && !this.#brokeWhileHeld;
    const { first } = this.#order.pending;
    const missing = first === undefined ? 0n : first.seq - this.#order.firstMissing;
    if (missing > 0n) this.#options.meters.gap("hand_off", missing);
    const mustAsk = this.#order.pending.length > 0 ||
      (this.#source?.replay !== undefined && !isProven);
    if (mustAsk) {
      this.#order.isUnverified = this.#order.admitted !== undefined;
      const gap = await this.#filler.fill(true, true);
      if (gap?.reason === "superseded" || gap?.reason === "closed") throw gap;
      // A worker that does not answer proves nothing: without a hole the cursor stays what it is.
      const isSilent = this.#order.pending.length === 0 &&
        (gap?.reason === "timeout" || gap?.reason === "failed");
      if (gap !== undefined && !isSilent) {
        this.#order.empty();
        this.#report();
        throw gap;
      }
    }
    this.#hold = undefined;
    this.#brokeWhileHeld = false;
    this.#resume();
    this.#report();
  }

  /** A cut that nothing proves: it is taken out again. */
  #refused(): LaneGap {
    this.#order.empty();
    this.#report();
    return new LaneGap("no_replay_endpoint", this.#order.firstMissing, undefined);
  }

  /** Puts the cut's content in, in slices; whatever happens to the lane meanwhile makes it void. */
  async #load(
    cut: LaneCut,
    reader: DecoderState["reader"],
    digests: DecoderState["digests"],
  ): Promise<void> {
    const load = ++this.#loads;
    this.#isLoading = true;
    this.#order.admitted = undefined;
    this.#report();
    const before = this.#lastLoad;
    let done = (): void => {};
    this.#lastLoad = new Promise((resolve) => done = resolve);
    try {
      await before;
      await this.#content.load(cut.cursor, cut.blocks, reader, this.#options.slices.breather());
    } catch (error) {
      if (this.#isClosed) throw new LaneGap("closed", 0n, undefined);
      if (this.#loads === load) this.#order.empty();
      throw error;
    } finally {
      if (this.#loads === load) this.#isLoading = false;
      done();
    }
    if (this.#isClosed) throw new LaneGap("closed", 0n, undefined);
    if (this.#loads !== load) {
      this.#order.empty();
      throw new LaneGap("superseded", 0n, undefined);
    }
    this.#order.digests.restore(digests);
    this.#order.admitted = cut.cursor;
  }

  /** Forgets everything, and goes on from the next batch. */
  degrade(reason: string): void {
    if (this.#isClosed) return;
    this.#endLoad();
    this.#abortFill();
    this.#endHold();
    this.#order.empty();
    this.#degrade(reason);
    this.#order.isUnverified = false;
    this.#order.skipToPending();
    this.#resume();
    this.#report();
  }

  /** Gone from the index at once; whatever still arrives is ignored. */
  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#filler.close();
    this.#order.pending.clear();
    this.#content.close();
  }

  /** After a hold or a degradation: apply what fits, ask for what does not. */
  #resume(): void {
    this.#order.drain();
    if (this.#order.pending.length > 0) this.#startFill(false);
    else if (this.#order.admitted === undefined && !this.#order.takesAny) {
      if (this.#source?.replay !== undefined && this.#isUp) this.#startFill(true);
    }
  }

  /**
   * Asks the worker whether there is more than was received: the last batches before a silence may
   * have been lost without a next one to show it, and the worker may be another one by now. A worker
   * that does not answer is left in peace, and the next live batch ends the question.
   */
  check(): void {
    const isIdle = !this.#isClosed && this.#hold === undefined && !this.#filler.isFilling;
    if (!isIdle || !this.#isUp || this.#source?.replay === undefined) return;
    if (this.#order.admitted === undefined || this.#order.isUnverified) return;
    this.#order.isUnverified = true;
    this.#isChecking = true;
    void this.#filler.fill(true, false).then(() => {
      if (this.#isChecking) this.#endCheck();
      this.#report();
    });
  }

  #endCheck(): void {
    this.#isChecking = false;
    this.#order.isUnverified = false;
  }

  /** Without a cut that is proven: what came before the connection broke may be another process's. */
  #endHold(): void {
    if (this.#brokeWhileHeld) this.#order.dropFromBefore();
    this.#hold = undefined;
    this.#brokeWhileHeld = false;
  }

  #endLoad(): void {
    this.#loads += 1;
    this.#isLoading = false;
  }

  #abortFill(): void {
    this.#filler.abort();
    if (this.#isChecking) this.#endCheck();
  }

  /** Begins to fill what is missing; `mustAsk` asks even when no hole is known. */
  #startFill(mustAsk: boolean): void {
    if (this.#filler.isFilling) return;
    void this.#filler.fill(mustAsk, false).then(() => {
      this.#report();
    });
  }

  async #probe(): Promise<void> {
    const end = await this.#source?.replay?.(PROBE, () => true, new AbortController().signal);
    if (this.#isClosed || end?.kind !== "complete") return;
    this.#isProven = true;
    this.#report();
  }

  // ------------------------------------------------------------------------------ what is not kept

  /** Another publisher: nothing that was held is worth anything. */
  #startOver(reason: string, epoch: string | undefined, keepsPending: boolean): void {
    this.#options.meters.restart(reason);
    this.#log.warn("kv_lane_restarted", { reason, cursor: this.cursor, blocks: this.blocks });
    this.#endLoad();
    if (!keepsPending) this.#filler.abort();
    this.#order.startOver(keepsPending);
    this.#degraded = this.#isUnnumbered ? UNNUMBERED : undefined;
    this.#hasSkipped = false;
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

  #degrade(reason: string): void {
    this.#degraded = reason;
    this.#hasSkipped = true;
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
