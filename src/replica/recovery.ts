/**
 * Fills the index from peers before this replica says that it is ready.
 *
 * One attempt at a time: list, subscribe and hold, then ask candidates one after the other until
 * every lane known at the start is settled. Membership changes steer which peer comes next and never
 * touch a transfer. It always ends: with the lanes restored, with proof that nobody has more than
 * we, or by the policy once the budget is used up.
 *
 * A little longer than other files: it is one state machine, and reads best in one piece.
 */

import type { ReplicaConfig } from "../config/replica.ts";
import type { EventJournal } from "../observe/events.ts";
import type { Log } from "../observe/log.ts";
import type { FetchInit, Runtime } from "../runtime/runtime.ts";
import { AttemptOrder, sameSet } from "./attempt_order.ts";
import { Backoff } from "./backoff.ts";
import type { HeaderLine } from "./dump_format.ts";
import { fetchDump, type FetchOutcome } from "./fetch_dump.ts";
import type { LaneStore } from "./lane_port.ts";
import { type Discovery, isCandidate } from "./peer_view.ts";
import type { RecoveryMetrics } from "./recovery_metrics.ts";
import {
  type AttemptReport,
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
  /** The contents of the files in `config.tls`. */
  readonly tls?: FetchInit["tls"];
  /** The first complete listing of workers; lanes that come later do not hold up readiness. */
  readonly workersListed?: Promise<void>;
  readonly setCondition: (ok: boolean, reason: string) => void;
  /** Takes hints about active load and affinity, once, from the dump that completed first. */
  readonly importLoad?: (records: readonly unknown[]) => void;
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
  /**
   * Resolves with the state that it ended in once this replica may be ready. Rejects when it was
   * stopped, or when peers can never be listed.
   */
  readonly done: Promise<RecoveryState>;
}

/** Cycles in a row in which no candidate had an index, before we believe that none has. */
const EMPTY_CYCLES = 2;
const MAX_ATTEMPT_REPORTS = 50;
/** Longest list of lanes put into a request; beyond that the whole dump is cheaper to ask for. */
const MAX_LANE_FILTER = 32;
/** How long lanes may still replay after the last peer was asked, before readiness goes ahead. */
const REPLAY_GRACE_MS = 5000;

interface RunningDump {
  readonly sinceMs: number;
  bytes: number;
  /** Of the lanes whose line was read. */
  blocks: number;
  header?: HeaderLine;
}

class Stopped extends Error {
  override readonly name = "RecoveryStopped";
}

export function createRecovery(options: RecoveryOptions): Recovery {
  return new PeerRecovery(options);
}

class PeerRecovery implements Recovery {
  readonly done: Promise<RecoveryState>;
  readonly #options: RecoveryOptions;
  readonly #log: Log;
  readonly #backoff: Backoff;
  readonly #stop = new AbortController();
  /** Aborted by `stop`, and by the budget when the policy is to start. */
  readonly #abort = new AbortController();
  readonly #notBefore = new Map<string, number>();
  readonly #selves = new Set<string>();
  readonly #attempts: AttemptReport[] = [];
  #resolve: (state: RecoveryState) => void = () => {};
  #reject: (error: unknown) => void = () => {};
  #state: RecoveryState = "idle";
  #reason = "";
  #startedMs = 0;
  #endedMs: number | undefined;
  #lanes: WantedLanes | undefined;
  #progressMs = 0;
  #bytes = 0;
  #source: string | undefined;
  #running: RunningDump | undefined;
  #loads: unknown[] = [];
  #loadsGiven = false;
  #stopBudget: () => void = () => {};

  constructor(options: RecoveryOptions) {
    this.#options = options;
    this.#log = options.log;
    this.#backoff = new Backoff(options.runtime.random.number);
    this.done = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
    // Whoever waits sees the rejection; nobody waiting is no reason to end the process.
    this.done.catch(() => {});
  }

  get recovered(): boolean {
    return isRecovered(this.#state);
  }

  get hasSource(): boolean {
    return this.#source !== undefined;
  }

  start(): void {
    this.#startedMs = this.#now();
    this.#progressMs = this.#startedMs;
    void this.#run();
  }

  stop(): void {
    if (this.#endedMs !== undefined) return;
    const reason = new Stopped("the recovery was stopped");
    this.#stop.abort(reason);
    this.#abort.abort(reason);
  }

  status(): RecoveryStatus {
    const elapsedMs = this.#state === "idle" ? 0 : (this.#endedMs ?? this.#now()) - this.#startedMs;
    const blocks = this.#lanes?.blocks ?? 0;
    const eta = this.#eta();
    return {
      state: this.#state,
      reason: this.#reason,
      elapsedMs: Math.round(elapsedMs),
      lanes: this.#lanes?.count() ?? NO_LANES,
      blocks,
      bytes: this.#bytes,
      blocksPerS: elapsedMs > 0 ? Math.round(blocks / (elapsedMs / 1000)) : 0,
      ...(eta === undefined ? {} : { etaMs: eta }),
      ...(this.#source === undefined ? {} : { source: this.#source }),
      attempts: this.#attempts,
      laneReports: this.#lanes?.reports() ?? [],
    };
  }

  async #run(): Promise<void> {
    try {
      const state = await this.#recover();
      this.#options.store.releaseAll();
      await this.#replaysEnd();
      this.#end(state);
      this.#resolve(state);
    } catch (error) {
      this.#stopBudget();
      this.#endedMs = this.#now();
      const reason = error instanceof Error ? error.message : String(error);
      this.#become("failed", reason);
      this.#options.setCondition(false, reason);
      this.#log.error("recovery_failed", { error });
      this.#options.events.emit("recovery_failed", { reason });
      this.#reject(error);
    }
  }

  async #recover(): Promise<RecoveryState> {
    const { config, discovery, store, log } = this.#options;
    const isDisabled = Array.isArray(config.peers) && config.peers.length === 0;
    if (isDisabled) {
      await this.#unlessStopped(this.#options.workersListed ?? Promise.resolve());
      return "recovery_disabled";
    }
    this.#become("listing", "waiting for the first listing of workers and peers");
    const limits = { maxBatches: config.maxBufferedBatches, maxBytes: config.maxBufferedBytes };
    store.holdAll(limits);
    this.#armBudget();
    const listed = Promise.all([discovery.start(), this.#options.workersListed]);
    if (!await this.#withinBudget(listed)) {
      // Without a listing nobody is known to be absent; the policy decides.
      if (this.#isAborted()) return "degraded";
      await this.#unlessStopped(listed);
    }
    const lanes = new WantedLanes({
      store,
      limits,
      log,
      onSettled: (outcome) => {
        this.#progressMs = this.#now();
        this.#options.metrics.lane(outcome);
      },
      onLoad: (load) => this.#loads.push(load),
    });
    this.#lanes = lanes;
    this.#options.events.emit("recovery_started", {
      lanes: lanes.size,
      peers: discovery.current().length,
    });
    log.info("recovery_started", { lanes: lanes.size, peers: discovery.current().length });
    if (this.#candidates().size === 0) return this.#startEmpty("no peer is a candidate");
    if (lanes.size > 0) await this.#subscribed();
    return await this.#cycles(lanes);
  }

  /** Cycle after cycle over the candidates until there is nothing left to wait for. */
  async #cycles(lanes: WantedLanes): Promise<RecoveryState> {
    let emptyCycles = 0;
    let before = new Set<string>();
    for (;;) {
      const candidates = this.#candidates();
      if (candidates.size === 0) return this.#startEmpty("no peer is a candidate any more");
      if (!sameSet(candidates, before)) this.#backoff.reset();
      before = candidates;
      const outcomes = await this.#cycle(candidates, lanes);
      if (lanes.size === 0) return this.#withoutLanes(outcomes);
      if (outcomes === "spent") {
        const why = "the recovery's budget is used up";
        lanes.giveUp("degraded", why);
        return "degraded";
      }
      if (lanes.pending.length === 0) {
        return lanes.count().degraded > 0 ? "degraded" : "recovered";
      }
      const hasComplete = outcomes.some(({ outcome }) => outcome.kind === "complete");
      const isOver = outcomes.every(({ url, outcome }) => this.#knowsNothing(url, outcome));
      if (hasComplete && !lanes.gapped && outcomes.every(({ outcome }) => isAnswer(outcome))) {
        // Whole dumps of all candidates, and these lanes are in none of them.
        lanes.giveUp("cold", "no peer has this lane");
        return lanes.count().degraded > 0 ? "degraded" : "recovered";
      }
      emptyCycles = isOver && !hasComplete ? emptyCycles + 1 : 0;
      const onlySelf = outcomes.length > 0 &&
        outcomes.every(({ outcome }) => outcome.kind === "self");
      if (emptyCycles >= EMPTY_CYCLES || onlySelf) {
        return this.#startEmpty("no peer has an index");
      }
      await this.#pause(this.#backoff.next(), this.#candidates());
    }
  }

  /** One attempt for each candidate, or until all lanes are settled, or the budget is used up. */
  async #cycle(candidates: ReadonlySet<string>, lanes: WantedLanes) {
    const { clock, random } = this.#options.runtime;
    const order = new AttemptOrder(candidates, random.number);
    const outcomes: { url: string; outcome: FetchOutcome }[] = [];
    const forget = this.#options.discovery.onChange(() =>
      order.update(this.#candidates(), random.number)
    );
    try {
      for (;;) {
        if (this.#isAborted()) return "spent";
        const now = clock.monotonic();
        const url = order.take((one) => (this.#notBefore.get(one) ?? 0) <= now);
        if (url === undefined) {
          if (order.waiting.length === 0) return outcomes;
          // Only peers are left that asked to be left alone for a while.
          const until = Math.min(...order.waiting.map((one) => this.#notBefore.get(one) ?? now));
          await this.#pause(until - now, this.#candidates());
          continue;
        }
        const outcome = await this.#attempt(url, lanes, () => order.waiting.length > 0);
        if (outcome === "spent") return "spent";
        outcomes.push({ url, outcome });
        if (lanes.size === 0 ? outcome.kind === "complete" : lanes.pending.length === 0) {
          return outcomes;
        }
      }
    } finally {
      forget();
    }
  }

  async #attempt(
    url: string,
    lanes: WantedLanes,
    isChoosy: () => boolean,
  ): Promise<FetchOutcome | "spent"> {
    const { runtime, config, replica, readToken, tls } = this.#options;
    const sinceMs = this.#now();
    const running: RunningDump = { sinceMs, bytes: 0, blocks: 0 };
    this.#running = running;
    this.#loads = [];
    this.#become("fetching", `asking ${url}`);
    const sink = lanes.sink(url, isChoosy);
    const keys = lanes.keys();
    const isPart = keys.length < lanes.size && keys.length <= MAX_LANE_FILTER;
    let outcome: FetchOutcome | "spent";
    try {
      outcome = await fetchDump({
        runtime,
        url,
        replica,
        readToken,
        tls,
        gzip: config.gzip,
        ...(isPart ? { lanes: lanes.pending } : {}),
        sink: {
          ...sink,
          header: (header) => {
            running.header = header;
            this.#source = url;
            this.#become("fetching", `receiving the dump of ${url}`);
          },
          lane: (head) => {
            running.blocks += head.count;
            return sink.lane(head);
          },
        },
        catalogue: () => lanes.keys(),
        maxLaneBlocks: config.maxLaneBlocks,
        idleTimeoutMs: config.idleTimeoutMs,
        signal: this.#abort.signal,
        onBytes: (bytes) => {
          running.bytes += bytes;
          this.#bytes += bytes;
        },
      });
      if (!await this.#withinBudget(sink.settled())) outcome = "spent";
    } catch (error) {
      this.#throwIfStopped();
      if (!this.#isAborted()) throw error;
      outcome = "spent";
    } finally {
      this.#source = undefined;
      this.#running = undefined;
    }
    const told = outcome === "spent" ? { kind: "spent" } as const : outcome;
    const report: AttemptReport = {
      peer: url,
      at: new Date(runtime.clock.now()).toISOString(),
      ms: Math.round(this.#now() - sinceMs),
      outcome: told.kind,
      ...("reason" in told ? { reason: told.reason } : {}),
      ...sink.committed,
      bytes: running.bytes,
    };
    this.#report(report);
    if (outcome !== "spent") this.#after(url, outcome);
    this.#become("waiting", `after ${told.kind} from ${url}`);
    return outcome;
  }

  #after(url: string, outcome: FetchOutcome): void {
    if (outcome.kind === "self") this.#selves.add(url);
    if ("retryAfterMs" in outcome && outcome.retryAfterMs > 0) {
      this.#notBefore.set(url, this.#now() + outcome.retryAfterMs);
    }
    if (outcome.kind === "complete" && !this.#loadsGiven) {
      this.#loadsGiven = true;
      try {
        this.#options.importLoad?.(this.#loads);
      } catch (error) {
        this.#log.warn("recovery_load_refused", { peer: url, error });
      }
    }
  }

  /** No worker is known yet: there was nothing to restore but load hints, so one cycle is enough. */
  #withoutLanes(outcomes: readonly { readonly outcome: FetchOutcome }[] | "spent"): RecoveryState {
    const isAnswered = outcomes !== "spent" &&
      outcomes.some(({ outcome }) => outcome.kind === "complete");
    return isAnswered ? "recovered" : this.#startEmpty("no worker is known, no peer answered");
  }

  /** True when this outcome proves that the peer has no index that we could wait for. */
  #knowsNothing(url: string, outcome: FetchOutcome): boolean {
    if (outcome.kind === "self") return true;
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

  #startEmpty(reason: string): RecoveryState {
    const { restored, partial } = this.#lanes?.count() ?? NO_LANES;
    const hasSome = restored + partial > 0;
    this.#lanes?.giveUp(hasSome ? "degraded" : "cold", reason);
    if (hasSome) return "degraded";
    this.#reason = reason;
    return "empty_bootstrap";
  }

  /** Waits until each held lane's subscription is proven, or for as long as the configuration says. */
  async #subscribed(): Promise<void> {
    const { store, config, runtime } = this.#options;
    this.#become("subscribing", "waiting for the workers' events");
    const isProven = (): boolean =>
      store.lanes().every((lane) => lane.state !== "pending" && lane.state !== "subscribing");
    await this.#until(
      isProven,
      (listener) => store.onChange(listener),
      runtime.clock.monotonic() + config.subscribeTimeoutMs,
    );
  }

  /** Lanes that were let go ask their worker's ring: readiness waits for that, within bounds. */
  async #replaysEnd(): Promise<void> {
    const { store, runtime } = this.#options;
    const isQuiet = (): boolean =>
      store.lanes().every((lane) => lane.state !== "replaying" && lane.state !== "loading");
    await this.#until(
      isQuiet,
      (listener) => store.onChange(listener),
      runtime.clock.monotonic() + REPLAY_GRACE_MS,
    );
  }

  /** Resolves when `isTrue` (asked again at every change), at the deadline or when aborted. */
  async #until(
    isTrue: () => boolean,
    onChange: (listener: () => void) => () => void,
    deadlineMs: number,
  ): Promise<void> {
    if (isTrue()) return;
    await new Promise<void>((resolve) => {
      const finish = (): void => {
        stopTimer();
        forget();
        this.#abort.signal.removeEventListener("abort", finish);
        resolve();
      };
      const stopTimer = this.#options.runtime.clock.after(deadlineMs - this.#now(), finish);
      const forget = onChange(() => {
        if (isTrue()) finish();
      });
      this.#abort.signal.addEventListener("abort", finish, { once: true });
    });
    this.#throwIfStopped();
  }

  /** Sleeps; wakes up early when the set of candidates becomes another one, or when aborted. */
  async #pause(ms: number, candidates: ReadonlySet<string>): Promise<void> {
    const { discovery, runtime } = this.#options;
    if (this.#state !== "stuck") this.#become("waiting", this.#reason);
    const isOther = (): boolean => !sameSet(candidates, this.#candidates());
    await this.#until(
      isOther,
      (listener) => discovery.onChange(listener),
      runtime.clock.monotonic() + ms,
    );
  }

  #armBudget(): void {
    const { clock } = this.#options.runtime;
    const { recoveryBudgetMs, recoveryMaxMs } = this.#options.config;
    const endMs = (): number =>
      Math.min(this.#progressMs + recoveryBudgetMs, this.#startedMs + recoveryMaxMs);
    const check = (): void => {
      const leftMs = endMs() - this.#now();
      if (leftMs > 0) this.#stopBudget = clock.after(leftMs, check);
      else this.#spend();
    };
    this.#stopBudget = clock.after(endMs() - this.#now(), check);
  }

  #spend(): void {
    const policy = this.#options.config.onRecoveryFailure;
    this.#log.error("recovery_budget_spent", { policy, lanes: this.#lanes?.count() });
    this.#options.events.emit("recovery_budget_spent", { policy });
    if (policy === "start-degraded") {
      this.#abort.abort(new Error("the recovery's budget is used up"));
      return;
    }
    this.#become("stuck", "the budget is used up; attempts go on");
  }

  /** Waits for `wanted` or for the end of the budget; false for the latter. */
  async #withinBudget(wanted: Promise<unknown>): Promise<boolean> {
    const { signal } = this.#abort;
    const spent = new Promise<boolean>((resolve) => {
      signal.addEventListener("abort", () => resolve(false), { once: true });
    });
    const isDone = await Promise.race([wanted.then(() => true), spent]);
    this.#throwIfStopped();
    return isDone;
  }

  async #unlessStopped(wanted: Promise<unknown>): Promise<void> {
    await this.#withinBudget(wanted);
  }

  #isAborted(): boolean {
    this.#throwIfStopped();
    return this.#abort.signal.aborted;
  }

  #throwIfStopped(): void {
    if (this.#stop.signal.aborted) throw this.#stop.signal.reason;
  }

  #become(state: RecoveryState, reason: string): void {
    // Once the budget is used up everybody should see that, whatever the attempts are doing.
    const shown = this.#state === "stuck" && !isRecovered(state) && state !== "failed"
      ? "stuck"
      : state;
    const isNew = shown !== this.#state;
    this.#state = shown;
    this.#reason = reason;
    if (!isNew) return;
    this.#options.metrics.state(shown);
    if (!isRecovered(shown) && shown !== "failed") {
      this.#options.setCondition(false, `${shown}: ${reason}`);
    }
  }

  #end(state: RecoveryState): void {
    this.#stopBudget();
    this.#endedMs = this.#now();
    const ms = Math.round(this.#endedMs - this.#startedMs);
    this.#become(state, this.#reason);
    this.#options.metrics.finished(ms);
    const lanes = this.#lanes?.count();
    const blocks = this.#lanes?.blocks ?? 0;
    const fields = { state, ms, blocks, bytes: this.#bytes, lanes, reason: this.#reason };
    // Starting with nothing although there are peers must be heard; so must lanes left behind.
    if (state === "recovered" || state === "recovery_disabled") {
      this.#log.info("recovery_finished", fields);
    } else this.#log.warn("recovery_finished", fields);
    this.#options.events.emit("recovery_finished", fields);
    this.#options.setCondition(true, state);
  }

  #report(report: AttemptReport): void {
    this.#attempts.push(report);
    if (this.#attempts.length > MAX_ATTEMPT_REPORTS) this.#attempts.shift();
    this.#options.metrics.attempt(report);
    this.#options.events.emit("recovery_attempt", { ...report });
    if (report.outcome === "complete") this.#log.info("recovery_attempt", { ...report });
    else this.#log.warn("recovery_attempt", { ...report });
  }

  #eta(): number | undefined {
    const running = this.#running;
    if (running?.header === undefined || running.blocks === 0) return undefined;
    const left = Math.max(0, running.header.blocks - running.blocks);
    return Math.round((this.#now() - running.sinceMs) * left / running.blocks);
  }

  #now(): number {
    return this.#options.runtime.clock.monotonic();
  }
}

/** True for an answer that leaves nothing to hope for from this peer in the next cycle. */
function isAnswer(outcome: FetchOutcome): boolean {
  return outcome.kind === "complete" || outcome.kind === "self" || outcome.kind === "absent" ||
    (outcome.kind === "not_recovered" && !outcome.hasSource);
}
