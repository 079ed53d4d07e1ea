/**
 * Fills the index from peers before this replica says that it is ready.
 *
 * One attempt at a time: list, subscribe and hold, then ask candidates one after the other until
 * every lane known at the start is settled. Membership changes steer which peer comes next and never
 * touch a transfer. It always ends: with the lanes restored, with proof that nobody has more than
 * we, or by the policy once the budget is used up.
 *
 * Over 400 lines: when to ask whom again, and when nobody is left to ask, is one decision.
 */

import type { ReplicaConfig } from "../config/replica.ts";
import type { EventJournal } from "../observe/events.ts";
import type { Log } from "../observe/log.ts";
import type { FetchInit, Runtime } from "../runtime/runtime.ts";
import { AttemptOrder, sameSet } from "./attempt_order.ts";
import { Backoff } from "./backoff.ts";
import { fetchDump, type FetchOutcome } from "./fetch_dump.ts";
import type { LaneStore, RecoverableLane } from "./lane_port.ts";
import type { LoadProvider } from "./load_provider.ts";
import { type Discovery, isCandidate, NoListingYet } from "./peer_view.ts";
import { RecoveryLedger } from "./recovery_ledger.ts";
import type { RecoveryMetrics } from "./recovery_metrics.ts";
import { RecoveryPatience, TurnOver } from "./recovery_patience.ts";
import {
  isRecovered,
  NO_LANES,
  type RecoveryState,
  type RecoveryStatus,
} from "./recovery_status.ts";
import { WantedLanes } from "./wanted_lanes.ts";

export interface RecoveryOptions {
  readonly runtime: Pick<Runtime, "clock" | "random" | "http">;
  readonly log: Log;
  readonly metrics: RecoveryMetrics;
  readonly events: Pick<EventJournal, "emit">;
  readonly store: LaneStore;
  readonly discovery: Discovery;
  readonly config: ReplicaConfig;
  /** Names this run of this replica; the same as the dump handler's. */
  readonly replica: string;
  /** Reads the token that peers want; asked for each attempt, so that a rotated one is taken. */
  readonly readToken?: () => Promise<string>;
  /** Reads the files of `config.tls`; asked for each attempt, as the token. */
  readonly readTls?: () => Promise<FetchInit["tls"]>;
  /** The first complete listing of workers; lanes that come later do not hold up readiness. */
  readonly workersListed?: Promise<void>;
  readonly setCondition: (ok: boolean, reason: string) => void;
  /** Members of `discovery` that are asked first, in this order, without waiting for its listing. */
  readonly predecessors?: readonly string[];
  /** Takes hints about active load and affinity, once, from the dump that completed first. */
  readonly importLoad?: LoadProvider["importLoad"];
}

export interface Recovery {
  start(): void;
  /** Ends the attempts; `done` rejects if it has not resolved yet. */
  stop(): void;
  status(): RecoveryStatus;
  /** True from the moment on that this replica may serve and be a source. */
  readonly recovered: boolean;
  /** True while a recovered peer's dump is coming in. */
  readonly hasSource: boolean;
  /** Whether others that recover may have this lane of us although we have not recovered. */
  offers(lane: RecoverableLane): boolean;
  /**
   * Resolves with the state that it ended in once this replica may be ready. Rejects when it was
   * stopped, or when peers can never be listed.
   */
  readonly done: Promise<RecoveryState>;
}

/** Cycles in a row in which no candidate had an index, before we believe that none has. */
const EMPTY_CYCLES = 2;
/** Longest list of lanes put into a request; beyond that the whole dump is cheaper to ask for. */
const MAX_LANE_FILTER = 32;
/** A cycle is held up at most this long by peers that asked to be left alone. */
const SHORT_WAIT_MS = 2000;
/** How long lanes may still replay after the last peer was asked, before readiness goes ahead. */
const REPLAY_GRACE_MS = 5000;
/** Until what lists the peers is looked for again. */
const LISTING_RETRY_MS = 2000;
const NEVER_LISTED = "peers or workers were never listed";

interface Asked {
  readonly url: string;
  readonly outcome: FetchOutcome;
}

export function createRecovery(options: RecoveryOptions): Recovery {
  return new PeerRecovery(options);
}

class PeerRecovery implements Recovery {
  readonly done: Promise<RecoveryState>;
  readonly #options: RecoveryOptions;
  readonly #ledger: RecoveryLedger;
  readonly #backoff: Backoff;
  readonly #notBefore = new Map<string, number>();
  /** URLs that turned out to be ours. */
  readonly #selves = new Set<string>();
  #patience: RecoveryPatience | undefined;
  #resolve: (state: RecoveryState) => void = () => {};
  #reject: (error: unknown) => void = () => {};
  #lanes: WantedLanes | undefined;
  /** Hints of the running attempt; undefined once those of a whole dump were taken. */
  #loads: unknown[] | undefined = [];

  constructor(options: RecoveryOptions) {
    this.#options = options;
    this.#ledger = new RecoveryLedger({ ...options, clock: options.runtime.clock });
    this.#backoff = new Backoff(options.runtime.random.number);
    this.done = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
    // Whoever waits sees the rejection; nobody waiting is no reason to end the process.
    this.done.catch(() => {});
  }

  get recovered(): boolean {
    return isRecovered(this.#ledger.state);
  }

  get hasSource(): boolean {
    return this.#ledger.hasSource;
  }

  offers(lane: RecoverableLane): boolean {
    return this.#lanes?.offers(lane) ?? false;
  }

  start(): void {
    const { config, runtime } = this.#options;
    const policy = config.onRecoveryFailure;
    const patience = new RecoveryPatience({
      clock: runtime.clock,
      budgetMs: config.recoveryBudgetMs,
      maxMs: config.recoveryMaxMs,
      onSpent: () => {
        this.#ledger.budgetSpent(policy);
        if (policy === "start-degraded") return true;
        this.#ledger.become("stuck", "the budget is used up; attempts go on");
        return false;
      },
    });
    this.#patience = patience;
    this.#ledger.begin();
    void this.#run(patience);
  }

  stop(): void {
    if (!this.#ledger.hasEnded) this.#patience?.stop();
  }

  status(): RecoveryStatus {
    return this.#ledger.status();
  }

  async #run(patience: RecoveryPatience): Promise<void> {
    try {
      const [state, reason] = await this.#recover(patience);
      this.#options.store.releaseAll();
      await this.#replaysEnd(patience);
      this.#ledger.end(state, reason);
      this.#resolve(state);
    } catch (error) {
      this.#ledger.fail(error);
      this.#reject(error);
    } finally {
      patience.disarm();
    }
  }

  async #recover(patience: RecoveryPatience): Promise<[RecoveryState, reason?: string]> {
    const { config, discovery, store, log, metrics, workersListed } = this.#options;
    const { predecessors } = this.#options;
    const isAlone = Array.isArray(config.peers) && config.peers.length === 0;
    if (isAlone && predecessors === undefined && discovery.current().length === 0) {
      await patience.within(workersListed ?? Promise.resolve());
      return ["recovery_disabled"];
    }
    this.#ledger.become("listing", "waiting for the first listing of workers and peers");
    const limits = { maxBatches: config.maxBufferedBatches, maxBytes: config.maxBufferedBytes };
    store.holdAll(limits);
    patience.arm();
    const hasEarly = predecessors !== undefined && predecessors.length > 0;
    const listing = this.#listPeers();
    // If it is not waited for yet, or never, its failure is nobody's error.
    listing.catch(() => {});
    // Without a listing nobody is known to be absent: only the budget ends this wait.
    const listed = hasEarly ? workersListed : Promise.all([listing, workersListed]);
    if (!await patience.within(Promise.resolve(listed))) return ["degraded", NEVER_LISTED];
    const lanes = new WantedLanes({
      store,
      limits,
      maxLaneBlocks: config.maxLaneBlocks,
      log,
      onSettled: (outcome) => {
        patience.progress();
        metrics.lane(outcome);
      },
      onLoad: (load) => this.#loads?.push(load),
    });
    this.#lanes = lanes;
    this.#ledger.lanesKnown(lanes, discovery.current().length);
    if (hasEarly) {
      const end = await this.#early(patience, lanes, listing);
      if (end !== undefined) return end;
    }
    if (this.#candidates().size === 0) return this.#startEmpty("no peer is a candidate");
    if (lanes.size > 0 && !hasEarly) await this.#subscribed(patience);
    return await this.#cycles(patience, lanes);
  }

  /** The first listing of peers. What lists them may come later than we do: that is waited for. */
  async #listPeers(): Promise<void> {
    const { discovery, runtime, log } = this.#options;
    for (;;) {
      try {
        return await discovery.start();
      } catch (error) {
        if (!(error instanceof NoListingYet) || this.#ledger.hasEnded) throw error;
        if (this.#ledger.state === "listing") this.#ledger.become("listing", error.message);
        log.error("peers_not_listed", { error, retryMs: LISTING_RETRY_MS });
        await new Promise<void>((resolve) => runtime.clock.after(LISTING_RETRY_MS, resolve));
      }
    }
  }

  /**
   * A cycle over those that are known without a listing, predecessors first: with what they have we
   * may be done. Undefined if lanes are left for whoever is listed then.
   */
  async #early(
    patience: RecoveryPatience,
    lanes: WantedLanes,
    listing: Promise<void>,
  ): Promise<[RecoveryState, reason?: string] | undefined> {
    if (lanes.size > 0) await this.#subscribed(patience);
    const asked = await this.#cycle(patience, this.#candidates(), lanes);
    const isDone = lanes.size > 0
      ? lanes.pending.length === 0
      : asked.some(({ outcome }) => outcome.kind === "complete");
    if (isDone) return this.#allSettled(lanes);
    if (patience.isSpent || await patience.within(listing)) return undefined;
    lanes.giveUp("degraded", NEVER_LISTED);
    return ["degraded", NEVER_LISTED];
  }

  /** Cycle after cycle over the candidates until there is nothing left to wait for. */
  async #cycles(
    patience: RecoveryPatience,
    lanes: WantedLanes,
  ): Promise<[RecoveryState, reason?: string]> {
    let emptyCycles = 0;
    let before = new Set<string>();
    for (;;) {
      const candidates = this.#candidates();
      if (candidates.size === 0) return this.#startEmpty("no peer is a candidate any more");
      if (!sameSet(candidates, before)) this.#backoff.reset();
      before = candidates;
      const wasPending = lanes.pending.length;
      const asked = await this.#cycle(patience, candidates, lanes);
      const hasComplete = asked.some(({ outcome }) => outcome.kind === "complete");
      if (lanes.size === 0) {
        // No worker is known yet: only load hints could be had, so one cycle is enough.
        return hasComplete ? ["recovered"] : this.#startEmpty("no worker is known yet");
      }
      if (patience.isSpent) {
        const reason = "the recovery's budget is used up";
        lanes.giveUp("degraded", reason);
        return ["degraded", reason];
      }
      const isAnswered = asked.every(({ url, outcome }) =>
        outcome.kind === "complete" || this.#hasNothing(url, outcome)
      );
      if (hasComplete && isAnswered && !lanes.gapped) {
        // Whole dumps of all candidates, and what is still pending is in none of them.
        lanes.giveUp("cold", "no peer has this lane");
      }
      if (lanes.pending.length === 0) return this.#allSettled(lanes);
      const isStill = lanes.pending.length === wasPending;
      emptyCycles = isAnswered && isStill && !hasComplete ? emptyCycles + 1 : 0;
      const onlySelf = asked.length > 0 && asked.every(({ outcome }) => outcome.kind === "self");
      if (emptyCycles >= EMPTY_CYCLES || onlySelf) return this.#startEmpty("no peer has an index");
      await this.#pause(patience, this.#backoff.next());
    }
  }

  /** One attempt for each candidate, or until all lanes are settled, or the budget is used up. */
  async #cycle(
    patience: RecoveryPatience,
    candidates: ReadonlySet<string>,
    lanes: WantedLanes,
  ): Promise<readonly Asked[]> {
    const { clock, random } = this.#options.runtime;
    const order = new AttemptOrder(candidates, random.number, this.#options.predecessors);
    const asked: Asked[] = [];
    const forget = this.#options.discovery.onChange(() =>
      order.update(this.#candidates(), random.number)
    );
    try {
      while (!patience.isSpent) {
        const now = clock.monotonic();
        const url = order.take((one) => (this.#notBefore.get(one) ?? 0) <= now);
        if (url === undefined) {
          if (order.waiting.length === 0) break;
          // Only peers are left that asked to be left alone for a while. Longer than the others can
          // do without being asked again we do not wait for them.
          const left = order.waiting.map((one) => (this.#notBefore.get(one) ?? now) - now);
          const waitMs = Math.min(...left);
          if (asked.length > 0 && waitMs > SHORT_WAIT_MS) {
            const outcome = { kind: "busy", retryAfterMs: 0 } as const;
            return [...asked, ...order.waiting.map((one) => ({ url: one, outcome }))];
          }
          await this.#pause(patience, waitMs);
          continue;
        }
        const outcome = await this.#attempt(patience, url, lanes, () => order.waiting.length > 0);
        if (outcome.kind === "spent") break;
        asked.push({ url, outcome });
        if (lanes.size === 0 ? outcome.kind === "complete" : lanes.pending.length === 0) break;
      }
      asked.push(...await this.#siblings(patience, asked, lanes));
      return [...asked, ...await this.#leftovers(patience, asked, lanes)];
    } finally {
      forget();
    }
  }

  /**
   * Asks those that recover too, and have no source just now either, for the lanes that they have
   * restored: each of them is as exact as a source's. A cycle's last resort.
   */
  async #siblings(
    patience: RecoveryPatience,
    asked: readonly Asked[],
    lanes: WantedLanes,
  ): Promise<readonly Asked[]> {
    const more: Asked[] = [];
    for (const { url, outcome } of asked) {
      const isSibling = outcome.kind === "not_recovered" && !outcome.hasSource;
      if (!isSibling || outcome.restored === 0 || lanes.keys().length === 0) continue;
      if (patience.isSpent) break;
      const given = await this.#attempt(patience, url, lanes, () => false, true);
      if (given.kind === "spent") break;
      more.push({ url, outcome: given });
    }
    return more;
  }

  /**
   * Lanes that were left to others who turned out not to have the whole of them are taken from where
   * they were left: some of it is better than nothing. Unless others are about to have it.
   */
  async #leftovers(
    patience: RecoveryPatience,
    asked: readonly Asked[],
    lanes: WantedLanes,
  ): Promise<readonly Asked[]> {
    const more: Asked[] = [];
    const isWorthWaiting = asked.some(({ outcome }) =>
      outcome.kind === "busy" || (outcome.kind === "not_recovered" && outcome.hasSource)
    );
    if (isWorthWaiting) return more;
    for (const { url } of asked) {
      if (patience.isSpent) break;
      if (!lanes.leftAt(url)) continue;
      const given = await this.#attempt(patience, url, lanes, () => false);
      if (given.kind === "spent") break;
      more.push({ url, outcome: given });
    }
    return more;
  }

  async #attempt(
    patience: RecoveryPatience,
    url: string,
    lanes: WantedLanes,
    isChoosy: () => boolean,
    restoredOnly = false,
  ): Promise<FetchOutcome | { readonly kind: "spent" }> {
    const ledger = this.#ledger;
    ledger.attemptBegins(url, restoredOnly);
    if (this.#loads !== undefined) this.#loads = [];
    const sink = lanes.sink(url, isChoosy);
    const keys = lanes.keys();
    const { runtime, store, config, replica, readToken, readTls } = this.#options;
    // Ranks that only batches name are in no list: whoever has some asks for all that there is.
    const isListed = store.lanes().length <= lanes.size;
    const isPart = (restoredOnly || keys.length < lanes.size) && isListed &&
      keys.length <= MAX_LANE_FILTER;
    // With all lanes settled only hints could still come.
    const turn = patience.turn(() => isChoosy() || lanes.pending.length === 0);
    let outcome: FetchOutcome | { readonly kind: "spent" } = { kind: "spent" };
    try {
      let fetched: FetchOutcome | undefined;
      const fetching = fetchDump({
        runtime,
        url,
        replica,
        readToken,
        readTls,
        gzip: config.gzip,
        ...(isPart ? { lanes: lanes.pending } : {}),
        restoredOnly,
        sink: {
          ...sink,
          header: (header) => ledger.dumpBegins(header),
          lane: (head) => {
            ledger.received({ blocks: head.count });
            return sink.lane(head);
          },
        },
        catalogue: () => lanes.keys(),
        maxLaneBlocks: config.maxLaneBlocks,
        idleTimeoutMs: config.idleTimeoutMs,
        signal: turn.signal,
        onBytes: (bytes) => ledger.received({ bytes }),
      }).catch((error: unknown): FetchOutcome => {
        if (error instanceof TurnOver) return { kind: "failed", reason: error.message };
        throw error;
      }).then(async (done) => {
        // Lanes whose replay is under way are settled before anybody else is asked for them.
        await sink.settled();
        fetched = done;
      });
      if (await patience.within(fetching) && fetched !== undefined) outcome = fetched;
    } catch (error) {
      if (!patience.isSpent) throw error;
    } finally {
      turn.end();
      ledger.attemptEnds(outcome, sink.committed);
    }
    if (outcome.kind !== "spent") this.#after(url, outcome);
    return outcome;
  }

  #after(url: string, outcome: FetchOutcome): void {
    if (outcome.kind === "self") this.#selves.add(url);
    if ("retryAfterMs" in outcome && outcome.retryAfterMs > 0) {
      this.#notBefore.set(url, this.#options.runtime.clock.monotonic() + outcome.retryAfterMs);
    }
    const loads = this.#loads;
    if (outcome.kind !== "complete" || loads === undefined) return;
    this.#loads = undefined;
    try {
      this.#options.importLoad?.(loads);
    } catch (error) {
      this.#options.log.warn("recovery_load_refused", { peer: url, error });
    }
  }

  /** True when this outcome proves that the peer has no index that we could wait for. */
  #hasNothing(url: string, outcome: FetchOutcome): boolean {
    if (outcome.kind === "self" || outcome.kind === "some_lanes") return true;
    if (outcome.kind === "not_recovered") return !outcome.hasSource;
    if (outcome.kind !== "absent") return false;
    // Listed as serving and refusing connections contradict each other: then nothing is proven.
    const peer = this.#options.discovery.current().find((one) => one.url === url);
    return peer?.serving !== true;
  }

  #candidates(): Set<string> {
    const urls = new Set<string>();
    for (const peer of this.#options.discovery.current()) {
      if (isCandidate(peer) && !this.#selves.has(peer.url)) urls.add(peer.url);
    }
    return urls;
  }

  #allSettled(lanes: WantedLanes): [RecoveryState, reason?: string] {
    const lost = lanes.degradation();
    return lost === undefined ? ["recovered"] : ["degraded", lost];
  }

  #startEmpty(reason: string): [RecoveryState, reason: string] {
    const { restored, partial } = this.#lanes?.count() ?? NO_LANES;
    const hasSome = restored + partial > 0;
    this.#lanes?.giveUp(hasSome ? "degraded" : "cold", reason);
    // Also with nothing restored: what a peer had and we could not take is no empty cluster.
    const lost = this.#lanes?.degradation();
    if (lost !== undefined) return ["degraded", lost];
    return [hasSome ? "recovered" : "empty_bootstrap", reason];
  }

  /** Waits until each held lane's subscription is proven, or for as long as the configuration says. */
  async #subscribed(patience: RecoveryPatience): Promise<void> {
    const { store, config } = this.#options;
    this.#ledger.become("subscribing", "waiting for the workers' events");
    const isProven = (): boolean =>
      store.lanes().every((lane) => lane.state !== "pending" && lane.state !== "subscribing");
    const onChange = (listener: () => void) => store.onChange(listener);
    await patience.until(isProven, onChange, config.subscribeTimeoutMs);
  }

  /** Lanes that were let go ask their worker's ring: readiness waits for that, within bounds. */
  async #replaysEnd(patience: RecoveryPatience): Promise<void> {
    const { store } = this.#options;
    const isQuiet = (): boolean =>
      store.lanes().every((lane) => lane.state !== "replaying" && lane.state !== "loading");
    await patience.until(isQuiet, (listener) => store.onChange(listener), REPLAY_GRACE_MS);
  }

  /** Sleeps; wakes up early when the set of candidates becomes another one, or at the end. */
  async #pause(patience: RecoveryPatience, ms: number): Promise<void> {
    const candidates = this.#candidates();
    this.#ledger.become("waiting");
    const isOther = (): boolean => !sameSet(candidates, this.#candidates());
    await patience.until(isOther, (listener) => this.#options.discovery.onChange(listener), ms);
  }
}
