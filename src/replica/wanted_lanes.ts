/**
 * The lanes that the recovery is about: those known when it began, and ranks of their workers that a
 * peer's dump brings to light. Others that come later start cold and do not hold up readiness.
 */

import { messageOf } from "../errors.ts";
import { isOneWorker, laneId, type LaneKey, partitionId } from "../kv/lane_key.ts";
import type { Log } from "../observe/log.ts";
import { keyOf, type LaneLine } from "./dump_format.ts";
import type { DumpSink } from "./dump_reader.ts";
import {
  dumpable,
  type HoldLimits,
  type LaneCut,
  type LaneStore,
  type RecoverableLane,
  UNNUMBERED,
} from "./lane_port.ts";
import { type LaneOutcome, type LaneReport, NO_LANES } from "./recovery_status.ts";

interface Wanted {
  readonly lane: RecoverableLane;
  readonly id: string;
  outcome: LaneOutcome;
  source?: string;
  reason?: string;
  blocks: number;
  cursor?: bigint;
  /** A peer has it, in a way that cannot be taken over; `reason` says which. */
  isRefused?: boolean;
  /** The last peer that has some of it and was passed over because others might have all. */
  leftAt?: string;
  /** Snapshots that could not be joined to the live events. */
  gaps: number;
  /** Only a cut beyond this cursor can help, as long as the epoch is the same. */
  beyond?: { readonly epoch: string; readonly cursor: bigint };
}

/** Lanes that may be put in while the next ones are read, where they keep what they are given. */
const MAX_COMMITS = 8;
/** Snapshots tried for one lane before it is given up. */
const MAX_GAPS = 3;

export interface WantedLanesOptions {
  readonly store: LaneStore;
  readonly limits: HoldLimits;
  /** Blocks that one lane of a peer may have. */
  readonly maxLaneBlocks: number;
  readonly log: Log;
  /** Told after a lane has found its outcome. */
  readonly onSettled: (outcome: LaneOutcome) => void;
  readonly onLoad?: ((load: unknown) => void) | undefined;
}

export class WantedLanes {
  readonly #options: WantedLanesOptions;
  readonly #wanted = new Map<string, Wanted>();
  readonly #refused = new Set<string>();
  /** What is still coming in is not waited for any more. */
  #isOver = false;

  /** Holds every lane that the store knows now. */
  constructor(options: WantedLanesOptions) {
    this.#options = options;
    for (const lane of options.store.lanes()) {
      lane.hold(options.limits);
      this.#add(lane);
    }
  }

  #add(lane: RecoverableLane): Wanted {
    const id = laneId(lane.key);
    const wanted: Wanted = { lane, id, outcome: "pending", blocks: 0, gaps: 0 };
    this.#wanted.set(id, wanted);
    return wanted;
  }

  get size(): number {
    return this.#wanted.size;
  }

  /** Lanes without an outcome. Those that the store has closed meanwhile do not count any more. */
  get pending(): readonly string[] {
    this.#dropClosed();
    return [...this.#wanted.values()].filter((wanted) =>
      wanted.outcome === "pending" || wanted.outcome === "committing"
    ).map((wanted) => wanted.id);
  }

  /** Keys of the lanes that still want a snapshot. */
  keys(): LaneKey[] {
    this.#dropClosed();
    return [...this.#wanted.values()].filter((wanted) => wanted.outcome === "pending").map(
      (wanted) => wanted.lane.key,
    );
  }

  /** Lanes that a snapshot was found for and could not be joined: worth another one. */
  get gapped(): boolean {
    return [...this.#wanted.values()].some((wanted) =>
      wanted.outcome === "pending" && wanted.gaps > 0
    );
  }

  /** Whether a lane without an outcome was left at this peer for others. */
  leftAt(peer: string): boolean {
    return [...this.#wanted.values()].some((wanted) =>
      wanted.outcome === "pending" && wanted.leftAt === peer
    );
  }

  /**
   * Takes what one peer's dump brings. `isChoosy`: leave lanes that are degraded there to others.
   * `settled` resolves when all replays have ended.
   */
  sink(
    peer: string,
    isChoosy: () => boolean,
  ): DumpSink & {
    readonly committed: { lanes: number; blocks: number };
    settled(): Promise<void>;
  } {
    const running = new Set<Promise<void>>();
    const committed = { lanes: 0, blocks: 0 };
    // Before it is asked: what is proven later may have begun after the copy was made.
    const unproven = new Set(
      [...this.#wanted.values()].filter(({ lane }) =>
        lane.state === "subscribing" || lane.state === "pending"
      ),
    );
    const begin = (wanted: Wanted, cut: LaneCut): Promise<boolean> | undefined => {
      if (wanted.outcome !== "pending") return undefined;
      wanted.outcome = "committing";
      const done: Promise<void> = this.#commit(wanted, cut, peer, committed).finally(() =>
        running.delete(done)
      );
      running.add(done);
      // The next lane comes when nobody reads this one's columns any more. Its replay may go on
      // then: a worker that is slow must not stop the rest of the dump.
      const { loaded } = wanted.lane;
      if (loaded !== undefined) return Promise.race([loaded, done]).then(() => true);
      return running.size < MAX_COMMITS ? undefined : Promise.race(running).then(() => false);
    };
    return {
      committed,
      lane: (head) => this.#wants(head, peer, isChoosy, unproven),
      commit: (cut, head) => {
        const wanted = this.#wanted.get(laneId(keyOf(head)));
        if (wanted !== undefined) return begin(wanted, cut);
        return this.#addRank(cut, peer).then((added) =>
          added === undefined ? true : begin(added, cut)
        );
      },
      load: (load) => this.#options.onLoad?.(load),
      settled: async () => {
        await Promise.all(running);
      },
    };
  }

  /**
   * Ends the wait of every lane without an outcome: they go on with what their worker replays. None
   * is cold that some peer had, though not in a way that we could take.
   */
  giveUp(outcome: "cold" | "degraded", reason: string): void {
    this.#isOver = true;
    this.#dropClosed();
    for (const wanted of this.#wanted.values()) {
      if (wanted.outcome === "pending" || wanted.outcome === "committing") {
        const wasHad = wanted.isRefused === true || wanted.leftAt !== undefined || wanted.gaps > 0;
        this.#giveUp(wanted, wasHad ? "degraded" : outcome, reason);
      }
    }
  }

  /** How many lanes are degraded, and why the first of them is; undefined when none is. */
  degradation(): string | undefined {
    const degraded = [...this.#wanted.values()].filter(({ outcome }) => outcome === "degraded");
    const [first] = degraded;
    if (first === undefined) return undefined;
    const lanes = degraded.length === 1 ? "1 lane is" : `${degraded.length} lanes are`;
    return `${lanes} degraded: ${first.reason ?? "for no known reason"}`;
  }

  /**
   * Whether this lane may be given to others that recover although we are not ready: it came whole
   * from a peer and nothing of it was lost since, so what its cursor says is what its blocks are.
   */
  offers(lane: RecoverableLane): boolean {
    const wanted = this.#wanted.get(laneId(lane.key));
    const isWhole = wanted?.lane === lane && wanted.outcome === "restored";
    return isWhole && dumpable(lane) && lane.state !== "degraded";
  }

  count(): Record<LaneOutcome, number> {
    const counts = { ...NO_LANES };
    for (const wanted of this.#wanted.values()) counts[wanted.outcome] += 1;
    return counts;
  }

  get blocks(): number {
    let blocks = 0;
    for (const wanted of this.#wanted.values()) blocks += wanted.blocks;
    return blocks;
  }

  reports(): LaneReport[] {
    return [...this.#wanted.values()].map((wanted) => ({
      ...wanted.lane.key,
      outcome: wanted.outcome,
      blocks: wanted.blocks,
      ...(wanted.cursor === undefined ? {} : { cursor: wanted.cursor.toString() }),
      ...(wanted.source === undefined ? {} : { source: wanted.source }),
      ...(wanted.reason === undefined ? {} : { reason: wanted.reason }),
    }));
  }

  #wants(
    head: LaneLine,
    peer: string,
    isChoosy: () => boolean,
    unproven: ReadonlySet<Wanted>,
  ): boolean {
    const { store, log } = this.#options;
    const key = keyOf(head);
    const wanted = this.#wanted.get(laneId(key));
    const blockSize = store.blockSize(key);
    if (wanted === undefined) {
      const isOfOurs = store.lanes().some((lane) => isOneWorker(lane.key, key));
      return isOfOurs && head.cursor !== null && head.blockSize === blockSize;
    }
    if (wanted.outcome !== "pending" || store.lane(key) !== wanted.lane) return false;
    if (head.blockSize !== 0 && head.blockSize !== blockSize) {
      const where = `${peer} ${partitionId(key)}`;
      if (!this.#refused.has(where)) {
        this.#refused.add(where);
        const { model, group } = key;
        log.error("recovery_block_size_mismatch", {
          peer,
          model,
          group,
          theirs: head.blockSize,
          ours: blockSize,
        });
      }
      wanted.isRefused = true;
      wanted.reason = `block size ${head.blockSize} at ${peer}, ${blockSize} here`;
      return false;
    }
    if (head.count > this.#options.maxLaneBlocks) {
      wanted.isRefused = true;
      wanted.reason = `${head.count} blocks at ${peer}, more than maxLaneBlocks`;
      return false;
    }
    if (wanted.lane.isUnnumbered) {
      this.#giveUp(wanted, "degraded", UNNUMBERED);
      return false;
    }
    if (head.cursor === null && head.degraded !== null) {
      // The peer tells of it, and why it cannot give it.
      wanted.isRefused = true;
      wanted.reason = head.degraded;
      return false;
    }
    if (head.cursor === null && head.count > 0 && unproven.has(wanted)) {
      // A removal may have been missed between the copy and our subscription, and nothing shows it.
      wanted.isRefused = true;
      wanted.reason = "a dump without a cursor, and the worker's events are not proven to reach us";
      return false;
    }
    if (head.degraded !== null && isChoosy()) {
      // What is there is not false, but it is not all: another peer may have all of it.
      wanted.leftAt = peer;
      wanted.reason = head.degraded;
      return false;
    }
    const { beyond } = wanted;
    if (beyond === undefined || head.cursor === null || head.epoch !== beyond.epoch) return true;
    return BigInt(head.cursor) > beyond.cursor;
  }

  /** A rank that nobody has registered becomes one of ours; undefined if it cannot be one. */
  async #addRank(cut: LaneCut, peer: string): Promise<Wanted | undefined> {
    const { store, limits, log } = this.#options;
    let reason = "no batch shows that it is of the publisher that is listened to";
    try {
      const lane = this.#isOver ? undefined : await store.openRank(cut);
      if (lane !== undefined && !this.#isOver) {
        lane.hold(limits);
        return this.#add(lane);
      }
    } catch (error) {
      reason = messageOf(error);
    }
    log.warn("recovery_rank_not_taken", { ...cut.key, peer, reason });
    return undefined;
  }

  async #commit(
    wanted: Wanted,
    cut: LaneCut,
    peer: string,
    committed: { lanes: number; blocks: number },
  ): Promise<void> {
    try {
      await wanted.lane.commit(cut);
    } catch (error) {
      if (wanted.outcome !== "committing") return;
      if (wanted.lane.isUnnumbered) {
        wanted.outcome = "pending";
        this.#giveUp(wanted, "degraded", UNNUMBERED);
        return;
      }
      wanted.gaps += 1;
      wanted.reason = messageOf(error);
      this.#options.log.warn("recovery_lane_not_joined", {
        ...wanted.lane.key,
        peer,
        cursor: cut.cursor,
        error,
      });
      if (cut.cursor !== undefined && error instanceof Error && error.name === "LaneGap") {
        wanted.beyond = { epoch: cut.epoch, cursor: cut.cursor };
      }
      if (wanted.gaps >= MAX_GAPS) {
        wanted.outcome = "pending";
        this.#giveUp(wanted, "degraded", "no snapshot joins the live events");
        return;
      }
      wanted.outcome = "pending";
      // Whatever state the failure left it in, it waits for the next snapshot now.
      wanted.lane.hold(this.#options.limits);
      return;
    }
    // Given up while it was replaying: its outcome is told already.
    if (wanted.outcome !== "committing") return;
    wanted.outcome = cut.degraded === undefined ? "restored" : "partial";
    wanted.source = peer;
    wanted.blocks = cut.blocks.count;
    if (cut.degraded === undefined) delete wanted.reason;
    else wanted.reason = cut.degraded;
    if (cut.cursor !== undefined) wanted.cursor = cut.cursor;
    committed.lanes += 1;
    committed.blocks += cut.blocks.count;
    this.#options.onSettled(wanted.outcome);
  }

  #giveUp(wanted: Wanted, outcome: "cold" | "degraded", reason: string): void {
    const wasCommitting = wanted.outcome === "committing";
    wanted.outcome = outcome;
    wanted.reason = wanted.reason === undefined ? reason : `${reason}; ${wanted.reason}`;
    // A replay that is under way is cut short; a lane that still waits asks its worker's ring.
    if (wasCommitting) wanted.lane.degrade(wanted.reason);
    else wanted.lane.release();
    this.#options.onSettled(outcome);
  }

  #dropClosed(): void {
    for (const wanted of this.#wanted.values()) {
      const open = wanted.outcome === "pending" || wanted.outcome === "committing";
      if (open && this.#options.store.lane(wanted.lane.key) !== wanted.lane) {
        wanted.outcome = "gone";
      }
    }
  }
}
