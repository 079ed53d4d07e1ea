/**
 * One worker's event socket, and the lanes that it feeds.
 *
 * A publisher numbers its batches once for all its data-parallel ranks; a batch says whose it is, and
 * belongs to the registered rank if it does not. So every lane of the publisher gets every number, and
 * only the lane of the batch's rank gets its events: holes are then holes for all of them. While a
 * recovery goes on the numbers are kept for ranks whose lane opens late: a batch that named another
 * rank is known to have had nothing for them.
 */

import { messageOf } from "../errors.ts";
import { type Log, silentLog } from "../observe/log.ts";
import type { Clock, Net, Random } from "../runtime/runtime.ts";
import type { DigestState } from "./batch_digests.ts";
import { BatchIntake, type DecodedBatch, type IntakeLimits } from "./batch_intake.ts";
import { BatchQueue } from "./batch_queue.ts";
import type { KvStore } from "./kv_store.ts";
import type { Followed, Lane, LaneBatch, LaneSource, ReplayEnd } from "./lane.ts";
import type { LaneKey } from "./lane_key.ts";
import { readSeq, type ReplayLimits } from "./replay.ts";
import { askRing } from "./ring.ts";
import type { ZmtpConnection, ZmtpLimits } from "./zmtp.ts";
import { type ReconnectLimits, ZmqSocket } from "./zmq_socket.ts";

export type ListenerStatus = "pending" | "active" | "paused" | "failed";

export interface SubscriptionOptions {
  readonly store: KvStore;
  readonly net: Net;
  readonly clock: Clock;
  readonly random: Random;
  readonly log?: Log;
  /** The worker; `dpRank` is that of batches that name none. */
  readonly key: LaneKey;
  readonly blockSize: number;
  /** Where the worker publishes. */
  readonly endpoint: string;
  /** Where it replays; without one lost events cost the lane its blocks. */
  readonly replayEndpoint?: string;
  /** Bind `endpoint` and let the worker connect. */
  readonly bind?: boolean;
  /** Only messages whose topic starts with this; all by default. */
  readonly topic?: string;
  readonly limits?: Partial<SubscriptionLimits>;
}

export interface SubscriptionLimits {
  readonly intake: IntakeLimits;
  readonly replay: Partial<ReplayLimits>;
  readonly zmtp: Partial<ZmtpLimits>;
  readonly reconnect: Partial<ReconnectLimits>;
  /** Ranks that batches may name beside the registered one. */
  readonly maxRanks: number;
  /** Silence after which the worker's ring is asked whether anything was missed. */
  readonly idleCheckMs: number;
}

const LIMITS: SubscriptionLimits = {
  intake: { maxBatches: 100_000, maxBytes: 64 * 1024 * 1024 },
  replay: {},
  zmtp: {},
  reconnect: {},
  maxRanks: 64,
  idleCheckMs: 15_000,
};

export class Subscription {
  readonly #options: SubscriptionOptions;
  readonly #limits: SubscriptionLimits;
  readonly #log: Log;
  readonly #lanes = new Map<number, Lane>();
  readonly #intake: BatchIntake;
  #socket: ZmqSocket | undefined;
  #status: ListenerStatus = "pending";
  #lastError: string | undefined;
  #hasBeenUp = false;
  #isStopped = false;
  #dropped = 0;
  #heardSinceCheck = false;
  #cancelCheck = (): void => {};
  /** Ranks without a lane for which replays of other ranks had events: nobody took those. */
  readonly #passedOver = new Set<number>();
  /** What a lane that opens late in a recovery would have kept back: batches without its events. */
  readonly #heard: BatchQueue;
  /** The connection broke during the recovery that goes on. */
  #brokeWhileHeld = false;

  constructor(options: SubscriptionOptions) {
    this.#options = options;
    this.#limits = { ...LIMITS, ...options.limits };
    this.#log = (options.log ?? silentLog).with({ worker: options.key.worker });
    const { slices, meters } = options.store;
    this.#heard = new BatchQueue(meters);
    this.#intake = new BatchIntake({
      slices,
      meters,
      limits: this.#limits.intake,
      deliver: (decoded) => this.#deliver(decoded),
      undecodable: (seq, reason) => {
        this.#note(`batch ${seq} cannot be decoded: ${reason}`);
        this.#log.warn("kv_batch_undecodable", { seq, reason });
      },
    });
  }

  get key(): LaneKey {
    return this.#options.key;
  }

  get endpoint(): string {
    return this.#options.endpoint;
  }

  get status(): ListenerStatus {
    return this.#status;
  }

  get lastError(): string | undefined {
    return this.#lastError;
  }

  get isStopped(): boolean {
    return this.#isStopped;
  }

  /** Lanes by rank, those that batches named included. */
  get lanes(): ReadonlyMap<number, Lane> {
    return this.#lanes;
  }

  /** Opens the lane and the socket. Throws `BadEndpoint`, `conflict`. */
  async start(): Promise<void> {
    const { store, blockSize } = this.#options;
    await store.open(this.key, { blockSize, prepare: (lane) => this.#adopt(lane) });
    if (this.#isStopped) {
      store.close(this.key);
      return;
    }
    this.#openSocket();
    this.#watchSilence();
  }

  /** Stops listening, and keeps what the lanes hold. */
  pause(): void {
    if (this.#isStopped) return;
    this.#status = "paused";
    const socket = this.#socket;
    this.#socket = undefined;
    void socket?.close();
    for (const lane of this.#lanes.values()) lane.sourceDown("paused");
  }

  resume(): void {
    if (this.#isStopped || this.#socket !== undefined) return;
    this.#status = "pending";
    this.#openSocket();
  }

  /** Ends everything; the lanes are closed, and empty in every answer from now on. */
  async stop(): Promise<void> {
    if (this.#isStopped) return;
    this.#isStopped = true;
    this.#cancelCheck();
    this.#intake.close();
    this.#heard.clear();
    for (const lane of this.#lanes.values()) this.#options.store.close(lane.key);
    if (this.#lanes.size === 0) this.#options.store.close(this.key);
    this.#lanes.clear();
    const socket = this.#socket;
    this.#socket = undefined;
    await socket?.close();
  }

  #watchSilence(): void {
    this.#cancelCheck = this.#options.clock.after(this.#limits.idleCheckMs, () => {
      if (!this.#heardSinceCheck && this.#status === "active") {
        for (const lane of this.#lanes.values()) lane.check();
      }
      this.#heardSinceCheck = false;
      this.#watchSilence();
    });
  }

  #openSocket(): void {
    const { net, clock, random, endpoint, bind } = this.#options;
    const socket: ZmqSocket = new ZmqSocket({
      net,
      clock,
      random,
      log: this.#log,
      type: "SUB",
      endpoint,
      ...(bind === undefined ? {} : { bind }),
      limits: this.#limits.zmtp,
      reconnect: this.#limits.reconnect,
      handlers: {
        up: (peer) => {
          if (this.#socket === socket) this.#up(socket, peer);
        },
        down: (reason) => {
          if (this.#socket === socket) this.#down(reason);
        },
        message: (frames) => {
          if (this.#socket === socket) this.#message(frames);
        },
      },
    });
    this.#socket = socket;
  }

  #up(socket: ZmqSocket, peer: ZmtpConnection): void {
    // On a bound endpoint a new connection is the worker's new process: the old one is over.
    for (const other of socket.peers) if (other !== peer) other.close();
    peer.subscribe(new TextEncoder().encode(this.#options.topic ?? ""));
    this.#status = "active";
    this.#lastError = undefined;
    const isReconnect = this.#hasBeenUp;
    this.#hasBeenUp = true;
    if (isReconnect) {
      this.#heard.clear();
      this.#brokeWhileHeld = this.#options.store.holdsNew !== undefined;
    }
    for (const lane of this.#lanes.values()) lane.sourceUp(isReconnect);
  }

  #down(reason: string): void {
    const peers = this.#socket?.peers.size ?? 0;
    if (peers > 0) return;
    this.#status = this.#hasBeenUp ? "failed" : "pending";
    this.#note(reason);
    for (const lane of this.#lanes.values()) lane.sourceDown(reason);
  }

  #message(frames: readonly Uint8Array[]): void {
    this.#heardSinceCheck = true;
    const [, seq, payload] = frames;
    if (frames.length !== 3 || seq?.length !== 8 || payload === undefined) {
      this.#options.store.meters.event("batch", "bad_frames");
      this.#note(`a message of ${frames.length} frames, sequence of ${seq?.length ?? 0} bytes`);
      return;
    }
    if (this.#intake.push(readSeq(seq), payload)) return;
    this.#options.store.meters.overflow("frames", 1);
    this.#dropped += 1;
    this.#note(`${this.#dropped} batches dropped: more came than could be decoded in time`);
  }

  #deliver(decoded: DecodedBatch): boolean {
    const rank = decoded.batch.rank ?? this.key.dpRank;
    if (!this.#lanes.has(rank) && decoded.batch.events.length > 0) {
      void this.#learnRank(rank, decoded);
      return false;
    }
    this.#hand(rank, decoded);
    return true;
  }

  #hand(rank: number, decoded: DecodedBatch): void {
    for (const [laneRank, lane] of this.#lanes) lane.receive(batchFor(laneRank, rank, decoded));
    const limits = this.#options.store.holdsNew;
    if (limits === undefined) {
      this.#forgetHeard();
      return;
    }
    this.#heard.push(batchFor(undefined, rank, decoded));
    while (this.#heard.length > limits.maxBatches || this.#heard.bytes > limits.maxBytes) {
      this.#heard.shift();
    }
  }

  /** The recovery is over. */
  #forgetHeard(): void {
    if (this.#heard.length > 0) this.#heard.clear();
    this.#brokeWhileHeld = false;
  }

  /** A batch names a rank for the first time: its lane opens, then the batch goes on its way. */
  async #learnRank(rank: number, decoded: DecodedBatch): Promise<void> {
    const { store } = this.#options;
    try {
      const isKnown = store.lane({ ...this.key, dpRank: rank }) !== undefined;
      if (this.#lanes.size > this.#limits.maxRanks || isKnown) {
        this.#note(`rank ${rank} is another listener's, or one rank too many`);
        store.meters.event("batch", "foreign_rank");
      } else await this.#open(rank, decoded.seq);
    } catch (error) {
      this.#note(messageOf(error));
    }
    if (this.#isStopped) return;
    this.#hand(rank, decoded);
    this.#intake.resume();
  }

  /** Opens the lane of a rank that is not registered; `first` is the first batch that names it. */
  async #open(rank: number, first?: bigint): Promise<void> {
    const { store, blockSize } = this.#options;
    const key = { ...this.key, dpRank: rank };
    await store.open(key, {
      blockSize,
      prepare: (lane) => {
        if (this.#lanes.has(rank)) return;
        const nothing = this.#nothingFor(rank);
        if (nothing !== undefined && first !== undefined && nothing.to < first) lane.begin(nothing);
        this.#adopt(lane);
        if (this.#status === "active") lane.sourceUp(lane.isHeld && this.#brokeWhileHeld);
        if (lane.isHeld) { for (const batch of this.#heard) lane.receive(batch); }
      },
    });
    if (this.#isStopped) store.close(key);
  }

  /**
   * The batches that had nothing for a rank without a lane: all came live through the registered
   * rank's. What a peer's snapshot of that stands for may have had batches of others, and so may a
   * replay. undefined = that is not known.
   */
  #nothingFor(rank: number): Followed | undefined {
    const isPassedOver = this.#passedOver.has(rank) ||
      this.#passedOver.size > this.#limits.maxRanks;
    return isPassedOver ? undefined : this.#lanes.get(this.key.dpRank)?.followed;
  }

  /** A peer has a copy of a rank that no batch has named yet. */
  async #openRank(rank: number, digests: DigestState): Promise<void> {
    const registered = this.#lanes.get(this.key.dpRank);
    let isShown = false;
    for (const [text, digest] of digests) {
      const seq = BigInt(text);
      const known = this.#heard.find(seq)?.digest ?? registered?.digestOf(seq);
      if (known === undefined) continue;
      if (known !== digest) return;
      isShown = true;
    }
    if (isShown && !this.#isStopped) await this.#open(rank);
  }

  /** Before anybody sees the lane: one that seems to have no source has nothing to prove. */
  #adopt(lane: Lane): void {
    if (this.#isStopped) return;
    const { dpRank } = lane.key;
    this.#lanes.set(dpRank, lane);
    const canReplay = this.#options.replayEndpoint !== undefined;
    const replay: LaneSource["replay"] = (from, deliver, stop) =>
      this.#replay(dpRank, from, deliver, stop);
    lane.attach({
      replay: canReplay ? replay : undefined,
      openRank: (rank, digests) => this.#openRank(rank, digests),
    });
  }

  async #replay(
    laneRank: number,
    from: bigint,
    deliver: (batch: LaneBatch) => boolean,
    stop: AbortSignal,
  ): Promise<ReplayEnd> {
    const { store, net, clock, replayEndpoint } = this.#options;
    if (replayEndpoint === undefined) return { kind: "failed", message: "no replay endpoint" };
    const ring = {
      net,
      clock,
      store,
      log: this.#log,
      endpoint: replayEndpoint,
      limits: this.#limits,
    };
    return await askRing(ring, from, (decoded) => {
      const rank = decoded.batch.rank ?? this.key.dpRank;
      const isTaken = this.#lanes.has(rank) || decoded.batch.events.length === 0;
      if (!isTaken && this.#passedOver.size <= this.#limits.maxRanks) this.#passedOver.add(rank);
      return deliver(batchFor(laneRank, rank, decoded));
    }, stop);
  }

  #note(problem: string): void {
    this.#lastError = problem;
  }
}

/** What a batch of `rank` is to a lane: to that of another rank, its number. */
function batchFor(laneRank: number | undefined, rank: number, decoded: DecodedBatch): LaneBatch {
  const { seq, digest } = decoded;
  if (laneRank !== rank) return { seq, digest, events: [], bytes: 64 };
  return { seq, digest, events: decoded.batch.events, bytes: decoded.bytes };
}
