/**
 * What the recovery is doing and has done, told to everybody who should know: log, journal, metrics,
 * the readiness condition, and whoever asks for the status.
 */

import { messageOf } from "../errors.ts";
import type { EventJournal } from "../observe/events.ts";
import type { Log } from "../observe/log.ts";
import type { Clock } from "../runtime/runtime.ts";
import type { HeaderLine } from "./dump_format.ts";
import type { FetchOutcome } from "./fetch_dump.ts";
import type { RecoveryMetrics } from "./recovery_metrics.ts";
import { RecoveryStopped } from "./recovery_patience.ts";
import {
  type AttemptReport,
  isRecovered,
  NO_LANES,
  type RecoveryState,
  type RecoveryStatus,
} from "./recovery_status.ts";
import type { WantedLanes } from "./wanted_lanes.ts";

export interface LedgerOptions {
  readonly clock: Clock;
  readonly log: Log;
  readonly metrics: RecoveryMetrics;
  readonly events: Pick<EventJournal, "emit">;
  readonly setCondition: (ok: boolean, reason: string) => void;
}

/** The attempt that is running. */
interface Running {
  readonly peer: string;
  readonly sinceMs: number;
  readonly at: string;
  /** It has no whole index itself: what comes from it is no reason for others to wait for us. */
  readonly isSibling: boolean;
  bytes: number;
  /** Of the lanes whose line was read. */
  blocks: number;
  header?: HeaderLine;
}

const MAX_ATTEMPTS_KEPT = 50;
/** How often the log says how far it is. */
const PROGRESS_MS = 5000;

export class RecoveryLedger {
  readonly #options: LedgerOptions;
  readonly #attempts: AttemptReport[] = [];
  #state: RecoveryState = "idle";
  #reason = "";
  #startedMs: number | undefined;
  #endedMs: number | undefined;
  #bytes = 0;
  #running: Running | undefined;
  #lanes: WantedLanes | undefined;
  #stopTelling: () => void = () => {};

  constructor(options: LedgerOptions) {
    this.#options = options;
  }

  get state(): RecoveryState {
    return this.#state;
  }

  /** True while a dump of a recovered peer is coming in. */
  get hasSource(): boolean {
    return this.#running?.header !== undefined && !this.#running.isSibling;
  }

  get hasEnded(): boolean {
    return this.#endedMs !== undefined;
  }

  begin(): void {
    this.#startedMs = this.#now();
    this.#tellLater();
  }

  /** Says in the log how far it is, again and again until it has ended. */
  #tellLater(): void {
    const { clock, log } = this.#options;
    this.#stopTelling = clock.after(PROGRESS_MS, () => {
      const { attempts, laneReports: _, ...progress } = this.status();
      log.info("recovery_progress", { ...progress, attempts: attempts.length });
      this.#tellLater();
    });
  }

  /** The lanes that it is about are known now. */
  lanesKnown(lanes: WantedLanes, peers: number): void {
    this.#lanes = lanes;
    const fields = { lanes: lanes.size, peers };
    this.#options.log.info("recovery_started", fields);
    this.#options.events.emit("recovery_started", fields);
  }

  /** Once stuck it stays so for everybody to see, whatever the attempts are doing, until it ends. */
  become(state: RecoveryState, reason = this.#reason): void {
    this.#reason = reason;
    const isOver = isRecovered(state) || state === "failed";
    const shown = this.#state === "stuck" && !isOver ? "stuck" : state;
    if (shown === this.#state) return;
    this.#state = shown;
    this.#options.metrics.state(shown);
    if (!isOver) this.#options.setCondition(false, `${shown}: ${reason}`);
  }

  budgetSpent(policy: string): void {
    const lanes = this.#lanes?.count();
    this.#options.log.error("recovery_budget_spent", { policy, lanes });
    this.#options.events.emit("recovery_budget_spent", { policy });
  }

  attemptBegins(peer: string, isSibling = false): void {
    const { clock } = this.#options;
    const at = new Date(clock.now()).toISOString();
    this.#running = { peer, sinceMs: this.#now(), at, isSibling, bytes: 0, blocks: 0 };
    this.become("fetching", `asking ${peer}`);
  }

  dumpBegins(header: HeaderLine): void {
    if (this.#running === undefined) return;
    this.#running.header = header;
    this.become("fetching", `receiving the dump of ${this.#running.peer}`);
  }

  received(more: { readonly bytes?: number; readonly blocks?: number }): void {
    this.#bytes += more.bytes ?? 0;
    if (this.#running === undefined) return;
    this.#running.bytes += more.bytes ?? 0;
    this.#running.blocks += more.blocks ?? 0;
  }

  attemptEnds(
    outcome: FetchOutcome | { readonly kind: "spent" },
    committed: { readonly lanes: number; readonly blocks: number },
  ): void {
    const running = this.#running;
    if (running === undefined) return;
    this.#running = undefined;
    const report: AttemptReport = {
      peer: running.peer,
      at: running.at,
      ms: Math.round(this.#now() - running.sinceMs),
      outcome: outcome.kind,
      ...("reason" in outcome ? { reason: outcome.reason } : {}),
      ...committed,
      bytes: running.bytes,
    };
    this.#attempts.push(report);
    if (this.#attempts.length > MAX_ATTEMPTS_KEPT) this.#attempts.shift();
    const { log, metrics, events } = this.#options;
    metrics.attempt(report);
    events.emit("recovery_attempt", { ...report });
    // A list may well name ourselves.
    const isGood = ["complete", "some_lanes", "self"].includes(report.outcome);
    log[isGood ? "info" : "warn"]("recovery_attempt", { ...report });
    this.become("waiting", `last attempt (${running.peer}): ${outcome.kind}`);
  }

  /** It may be ready now. */
  end(state: RecoveryState, reason = this.#reason): void {
    this.#stopTelling();
    this.#endedMs = this.#now();
    this.become(state, reason);
    const ms = Math.round(this.#endedMs - (this.#startedMs ?? this.#endedMs));
    const { log, metrics, events, setCondition } = this.#options;
    metrics.finished(ms);
    const lanes = this.#lanes?.count();
    const blocks = this.#lanes?.blocks ?? 0;
    const fields = { state, ms, blocks, bytes: this.#bytes, lanes, reason };
    // Starting with nothing although there are peers must be heard; so must lanes left behind.
    const isGood = state === "recovered" || state === "recovery_disabled";
    log[isGood ? "info" : "warn"]("recovery_finished", fields);
    events.emit("recovery_finished", fields);
    setCondition(true, state);
  }

  fail(error: unknown): void {
    this.#stopTelling();
    this.#endedMs = this.#now();
    const { log, events, setCondition } = this.#options;
    const reason = messageOf(error);
    this.become("failed", reason);
    setCondition(false, reason);
    // Who stops us while we recover has his reasons: nothing has gone wrong.
    const isStopped = error instanceof RecoveryStopped;
    const event = isStopped ? "recovery_stopped" : "recovery_failed";
    if (isStopped) log.info(event, { lanes: this.#lanes?.count() });
    else log.error(event, { error });
    events.emit(event, { reason });
  }

  status(): RecoveryStatus {
    const now = this.#now();
    const elapsedMs = (this.#endedMs ?? now) - (this.#startedMs ?? now);
    const blocks = this.#lanes?.blocks ?? 0;
    const etaMs = this.#etaMs();
    return {
      state: this.#state,
      reason: this.#reason,
      elapsedMs: Math.round(elapsedMs),
      lanes: this.#lanes?.count() ?? NO_LANES,
      blocks,
      bytes: this.#bytes,
      blocksPerS: elapsedMs > 0 ? Math.round(blocks / (elapsedMs / 1000)) : 0,
      ...(etaMs === undefined ? {} : { etaMs }),
      ...(this.#running?.header === undefined ? {} : { source: this.#running.peer }),
      attempts: this.#attempts,
      laneReports: this.#lanes?.reports() ?? [],
    };
  }

  /** By what the header announced and the pace so far. */
  #etaMs(): number | undefined {
    const running = this.#running;
    if (running?.header === undefined || running.blocks === 0) return undefined;
    const left = Math.max(0, running.header.blocks - running.blocks);
    return Math.round((this.#now() - running.sinceMs) * left / running.blocks);
  }

  #now(): number {
    return this.#options.clock.monotonic();
  }
}
