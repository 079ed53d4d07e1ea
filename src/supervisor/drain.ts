/**
 * Ends one generation without dropping what it owes.
 *
 * Leases first (nothing is said to the child while a request may still be on its way to it), then
 * POST drain, then its status until nothing is in flight, then SIGTERM and after the grace SIGKILL.
 * One deadline bounds all phases before the signals, the cushion for children without a drain
 * status included. Tunnels have a deadline of their own, since they may never end by themselves.
 */

import { messageOf } from "../errors.ts";
import type { Lease } from "../proxy/target.ts";
import type { Log } from "../observe/log.ts";
import type { Runtime } from "../runtime/runtime.ts";
import { drainStatus, requestDrain } from "./drain_endpoints.ts";
import { type DrainEvent, type DrainPhase, moveDrain } from "./drain_phase.ts";
import type { Generation } from "./generation.ts";
import type { ProcessResult } from "./process.ts";
import { settledWithin, sleep } from "./wait.ts";

export interface DrainOptions {
  readonly drainPath: string;
  readonly drainStatusPath: string;
  /** From the begin of the drain to SIGTERM at the latest. */
  readonly timeoutMs: number;
  readonly pollMs: number;
  /** How long a child without a drain status is left alone, within the deadline. */
  readonly cushionMs: number;
  /** After this long upgraded connections are cut. */
  readonly tunnelTimeoutMs: number;
  /** SIGTERM to SIGKILL. */
  readonly graceMs: number;
}

/** One exchange that did not come to its end. */
export interface CutExchange {
  readonly requestId: string;
  readonly kind: string;
  readonly ageMs: number;
  readonly reason: string;
}

/** What a drain came to: an event, a log line and a metric are made of it. */
export interface DrainReport {
  readonly service: string;
  readonly version: string;
  readonly generation: number;
  readonly cause: string;
  readonly durationMs: number;
  /** Leases that were open when the drain began. */
  readonly leases: number;
  readonly finished: number;
  readonly cut: number;
  /** The first hundred of those that were cut. */
  readonly cutExchanges: readonly CutExchange[];
  /** The child's last own count, if it told one. */
  readonly childInflight?: number;
  readonly legacy: boolean;
  readonly deadlineReached: boolean;
  readonly exit?: ProcessResult;
}

const MAX_LISTED = 100;
/** What clients have at least, after the child's end, to take what it had sent. */
const LAST_BYTES_MS = 1_000;
/** WebSockets get their Close frame this long before they are cut. */
const TUNNEL_WARNING_MS = 5_000;

type DrainRuntime = Pick<Runtime, "http" | "clock">;

export class Drain {
  readonly cause: string;
  /** Milliseconds since 1970. */
  readonly startedAt: number;
  readonly #runtime: DrainRuntime;
  readonly #generation: Generation;
  readonly #options: DrainOptions;
  readonly #log: Log;
  readonly #onMove: (from: DrainPhase, to: DrainPhase, cause: DrainEvent) => void;
  readonly #startMs: number;
  /** Requests that were open at the begin and are not known to have failed. */
  readonly #leasesAtStart: number;
  readonly #cut = new Map<string, CutExchange>();
  #phase: DrainPhase = "leases";
  #deadlineMs: number;
  #graceMs: number;
  #wakeDeadline: (() => void) | undefined;
  #skipCushion = false;
  #childInflight: number | undefined;
  #legacy = false;
  #deadlineReached = false;
  #forced = false;
  #result: Promise<DrainReport> | undefined;
  /** Resolves when only the signals are left to do, or nothing. */
  readonly idle: Promise<void>;
  #resolveIdle: () => void = () => {};

  constructor(
    runtime: DrainRuntime,
    generation: Generation,
    options: DrainOptions,
    log: Log,
    cause: string,
    onMove: (from: DrainPhase, to: DrainPhase, cause: DrainEvent) => void,
  ) {
    this.cause = cause;
    this.#onMove = onMove;
    this.#runtime = runtime;
    this.#generation = generation;
    this.#options = options;
    this.#log = log.with({ version: generation.version, generation: generation.number });
    this.startedAt = runtime.clock.now();
    this.#startMs = runtime.clock.monotonic();
    this.#deadlineMs = this.#startMs + options.timeoutMs;
    this.#graceMs = options.graceMs;
    this.#leasesAtStart = generation.leases;
    this.idle = new Promise((resolve) => {
      this.#resolveIdle = resolve;
    });
  }

  get phase(): DrainPhase {
    return this.#phase;
  }

  /** When the child gets SIGTERM at the latest, milliseconds since 1970. */
  get deadline(): number {
    return Math.round(this.startedAt + this.#deadlineMs - this.#startMs);
  }

  get childInflight(): number | undefined {
    return this.#childInflight;
  }

  get cutCount(): number {
    return this.#cut.size;
  }

  /** Brings the deadline (monotonic) and the grace forward; never puts them off. */
  shorten(deadlineMs: number, graceMs: number, skipCushion: boolean): void {
    this.#deadlineMs = Math.min(this.#deadlineMs, deadlineMs);
    this.#graceMs = Math.min(this.#graceMs, graceMs);
    this.#skipCushion ||= skipCushion;
    this.#wakeDeadline?.();
  }

  /** SIGKILL now, whatever phase this is in. */
  force(): void {
    this.#forced = true;
    this.#generation.process?.force();
  }

  /** An exchange on this generation that failed while it drained. */
  recordCut(lease: Lease, reason: string): void {
    if (this.#cut.has(lease.requestId)) return;
    this.#cut.set(lease.requestId, {
      requestId: lease.requestId,
      kind: lease.kind,
      ageMs: Math.round(this.#runtime.clock.monotonic() - lease.since),
      reason,
    });
  }

  /** Runs the drain once; resolves with its report when the process was reaped. Never rejects. */
  run(): Promise<DrainReport> {
    this.#result ??= this.#run();
    return this.#result;
  }

  async #run(): Promise<DrainReport> {
    const generation = this.#generation;
    generation.withdraw();
    generation.move("retiring", this.cause);
    const process = generation.process;
    let exit: ProcessResult | undefined;
    const exited = new AbortController();
    const gone = process === undefined ? Promise.resolve() : process.exited.then((result) => {
      exit = result;
      this.#step("exited");
      exited.abort(new Error("the child ended"));
    });
    const stopTunnels = this.#watchTunnels();
    try {
      if (process === undefined) this.#step("exited");
      else await this.#untilStopping(exited.signal);
    } catch (error) {
      // Only the exit may end the phases early; anything else is ours, and must not keep a child.
      if (!exited.signal.aborted) {
        this.#log.error("drain_failed", { phase: this.#phase, error: messageOf(error) });
      }
    }
    this.#resolveIdle();
    if (process !== undefined && process.state !== "exited") {
      this.#deadlineReached ||= generation.leases > 0;
      this.#phase = "stopping";
      generation.move("stopping", this.#deadlineReached ? "drain deadline" : "drained");
      process.stop(this.#graceMs);
    }
    await gone;
    await generation.ended;
    await this.#lastBytes();
    stopTunnels();
    return this.#report(exit);
  }

  /**
   * The child is gone; what it sent may still be on its way to slow clients. Exchanges that it left
   * unfinished end by themselves, since their connection to it is broken.
   */
  async #lastBytes(): Promise<void> {
    const { clock } = this.#runtime;
    const drained = this.#generation.drained();
    const leftMs = Math.max(LAST_BYTES_MS, this.#deadlineMs - clock.monotonic());
    if (!this.#forced && await settledWithin(clock, drained, leftMs)) return;
    this.#cutOpen(this.#forced ? "forced" : "the child ended", () => true);
    await settledWithin(clock, drained, LAST_BYTES_MS);
  }

  /** Everything before the signals. Returns when the child may be stopped; throws on its exit. */
  async #untilStopping(exited: AbortSignal): Promise<void> {
    const generation = this.#generation;
    await this.#leasesOrDeadline(exited);
    if (generation.move("draining", "leases ended")) await this.#ask();
    this.#step("asked");
    while (this.#phase === "polling") {
      if (this.#isLate()) {
        this.#deadlineReached = true;
        this.#step("deadline");
        return;
      }
      await this.#pollOnce();
      if (this.#phase === "polling") await this.#sleepWithinDeadline(this.#options.pollMs, exited);
    }
    if (this.#phase === "cushion") {
      const sinceMs = this.#runtime.clock.monotonic();
      while (!this.#isLate() && !this.#skipCushion) {
        const leftMs = this.#options.cushionMs - (this.#runtime.clock.monotonic() - sinceMs);
        if (leftMs <= 0) break;
        await this.#sleepWithinDeadline(leftMs, exited);
      }
      this.#step("cushion_over");
    }
  }

  async #leasesOrDeadline(exited: AbortSignal): Promise<void> {
    let drained = false;
    const ended = this.#generation.drained().then(() => {
      drained = true;
      this.#wakeDeadline?.();
    });
    while (!drained && !this.#isLate()) {
      await this.#sleepWithinDeadline(Number.MAX_SAFE_INTEGER, exited, ended);
    }
    if (!drained) this.#deadlineReached = true;
    this.#step(drained ? "leases_ended" : "deadline");
  }

  /** Sleeps until the time is over, the deadline comes or is moved, or `other` is settled. */
  async #sleepWithinDeadline(
    delayMs: number,
    exited: AbortSignal,
    other?: Promise<void>,
  ): Promise<void> {
    const leftMs = Math.max(0, this.#deadlineMs - this.#runtime.clock.monotonic());
    const woken = new Promise<void>((resolve) => {
      this.#wakeDeadline = resolve;
    });
    const over = new AbortController();
    const slept = sleep(
      this.#runtime.clock,
      Math.min(delayMs, leftMs, MAX_TIMER_MS),
      AbortSignal.any([exited, over.signal]),
    );
    // Its end by `over` below is nobody's error.
    slept.catch(() => {});
    try {
      await Promise.race(other === undefined ? [slept, woken] : [slept, woken, other]);
    } finally {
      this.#wakeDeadline = undefined;
      over.abort();
    }
  }

  async #ask(): Promise<void> {
    const port = this.#generation.lifecyclePort;
    if (port === undefined) return;
    const { drainPath } = this.#options;
    try {
      const status = await requestDrain(this.#runtime, port, drainPath);
      if (status < 200 || status > 299) {
        this.#log.info("drain_request_refused", { path: drainPath, status });
      }
    } catch (error) {
      this.#log.warn("drain_request_failed", { error: messageOf(error) });
    }
  }

  async #pollOnce(): Promise<void> {
    const port = this.#generation.lifecyclePort;
    if (port === undefined) return this.#step("child_legacy");
    try {
      const inflight = await drainStatus(this.#runtime, port, this.#options.drainStatusPath);
      if (inflight === "absent") {
        this.#legacy = true;
        return this.#step("child_legacy");
      }
      this.#childInflight = inflight;
      if (inflight === 0) this.#step("child_idle");
    } catch (error) {
      this.#log.debug("drain_status_failed", { error: messageOf(error) });
    }
  }

  #step(event: DrainEvent): void {
    const from = this.#phase;
    const next = moveDrain(from, event);
    if (next === undefined) return;
    this.#phase = next;
    this.#onMove(from, next, event);
  }

  #isLate(): boolean {
    return this.#runtime.clock.monotonic() >= this.#deadlineMs;
  }

  /** Tells tunnels that the end is near, and cuts those that are still open at their deadline. */
  #watchTunnels(): () => void {
    const { clock } = this.#runtime;
    let cancel = (): void => {};
    const warned = new Set<Lease>();
    const check = (): void => {
      const endMs = Math.min(this.#startMs + this.#options.tunnelTimeoutMs, this.#deadlineMs);
      const leftMs = endMs - clock.monotonic();
      // Where there is not that much time, half of it.
      const warningMs = Math.min(TUNNEL_WARNING_MS, (endMs - this.#startMs) / 2);
      if (leftMs <= 0) this.#cutOpen("tunnel deadline", isTunnel);
      else if (leftMs <= warningMs) {
        for (const lease of this.#generation.openLeases()) {
          if (!isTunnel(lease) || warned.has(lease)) continue;
          warned.add(lease);
          lease.warn?.();
        }
      }
      // Again and again: a request may become a tunnel later, and the deadline may come closer.
      if (this.#generation.leases === 0) return;
      const nextMs = leftMs > warningMs ? leftMs - warningMs : leftMs;
      cancel = clock.after(Math.max(10, Math.min(1_000, nextMs)), check);
    };
    cancel = clock.after(0, check);
    return () => cancel();
  }

  #cutOpen(reason: string, which: (lease: Lease) => boolean): void {
    for (const lease of this.#generation.openLeases()) {
      // Its owner releases it with the reason, which is recorded then.
      if (which(lease)) lease.cut?.(reason);
    }
  }

  #report(exit: ProcessResult | undefined): DrainReport {
    const { service, version, number } = this.#generation;
    return {
      service,
      version,
      generation: number,
      cause: this.cause,
      durationMs: Math.round(this.#runtime.clock.monotonic() - this.#startMs),
      leases: this.#leasesAtStart,
      finished: Math.max(0, this.#leasesAtStart - this.#cut.size),
      cut: this.#cut.size,
      cutExchanges: [...this.#cut.values()].slice(0, MAX_LISTED),
      ...(this.#childInflight === undefined ? {} : { childInflight: this.#childInflight }),
      legacy: this.#legacy,
      deadlineReached: this.#deadlineReached,
      ...(exit === undefined ? {} : { exit }),
    };
  }
}

function isTunnel(lease: Lease): boolean {
  return lease.kind === "tunnel";
}

/** The longest delay that timers of both runtimes take. */
const MAX_TIMER_MS = 2_147_483_647;
