/**
 * The one owner of a version: it decides which of its generations serves, and makes it so.
 *
 * Each version has a worker of its own, so a download, a readiness wait or a drain of one never
 * holds another. The worker looks at what is wanted and what is there, does one thing about the
 * difference, and looks again; whatever changes meanwhile (another list, an operator, a crash)
 * wakes it or calls the rollout under way off. All changes of who serves happen in `#switchTo` and
 * `#withdraw`, each within one turn: the new target is reachable before the old one is retired.
 *
 * Over 400 lines: the decisions share this state, and splitting it would hide their order.
 */

import { overlapRule } from "../config/versions.ts";
import type { Lease } from "../proxy/target.ts";
import { CanaryShare } from "./canary.ts";
import type { DesiredVersion } from "./catalog.ts";
import type { ServiceContext } from "./context.ts";
import { Drain } from "./drain.ts";
import { messageOf, RolloutFailure } from "./failure.ts";
import type { Build, Generation, GenerationMove } from "./generation.ts";
import { chooseGoal, type Goal, type GoalInput, rollbackGoal } from "./goal.ts";
import { Monitor } from "./monitor.ts";
import { overlapAllowed } from "./overlap.ts";
import { Probation } from "./probation.ts";
import { maxWindowMs, nextWindowMs } from "./ready_window.ts";
import { Rollout } from "./rollout.ts";
import { CalledOff, orCalledOff } from "./wait.ts";

/** What a request that cannot be served at once may expect. */
export type Outlook =
  | { readonly kind: "soon"; readonly timeoutMs: number }
  | { readonly kind: "not_soon"; readonly retryAfterMs: number; readonly reason: string };

export class VersionWorker {
  readonly name: string;
  readonly #context: ServiceContext;
  #desired: DesiredVersion | undefined;
  /** `override:<hash>` of a local file that goes before every published build. */
  #override: string | undefined;
  #installed: readonly string[] = [];
  #current: Generation | undefined;
  #canary: { generation: Generation; share: CanaryShare; cancelTimer: () => void } | undefined;
  #probation: Probation | undefined;
  #rollout: Rollout | undefined;
  readonly #monitors = new Map<Generation, Monitor>();
  #freshWanted: string | undefined;
  #notBeforeMs = 0;
  #backoffMs: number;
  #windowMs: number;
  #readinessFailures = 0;
  #lastError: { message: string; at: number } | undefined;
  #dirty = false;
  #running = false;
  #cancelWake: (() => void) | undefined;
  #checkFiles = false;

  constructor(context: ServiceContext, name: string) {
    this.#context = context;
    this.name = name;
    this.#backoffMs = context.config.restartBackoffMs;
    this.#windowMs = context.config.readyTimeoutMs;
  }

  // ------------------------------------------------------------------------- what is wanted

  /** True while the version is wanted: its requests are held rather than refused. */
  get known(): boolean {
    return this.#desired !== undefined || this.#override !== undefined;
  }

  /** True when nothing of it is left. */
  get idle(): boolean {
    return !this.known && !this.#running && this.#context.generations.of(this.name).length === 0;
  }

  /** The oracle's word, at each of its reports; undefined when it does not list the version. */
  setDesired(desired: DesiredVersion | undefined, override: string | undefined): void {
    const wasKnown = this.known;
    const before = this.#desired?.sha256;
    this.#desired = desired;
    this.#override = override;
    if (desired !== undefined && desired.sha256 !== before) this.#listed(desired.sha256);
    // A removed version is gone for clients in this turn; its drain takes what it takes.
    if (wasKnown && !this.known) this.#removeAll();
    this.#checkFiles = true;
    this.wake();
  }

  get desired(): DesiredVersion | undefined {
    return this.#desired;
  }

  get overrideIdentity(): string | undefined {
    return this.#override;
  }

  #listed(sha256: string): void {
    const { quarantine, memory } = this.#context;
    void quarantine.artifactChanged(this.name, sha256);
    this.#resetAttempts();
    const { rolledBackFrom } = memory.of(this.name);
    if (rolledBackFrom !== undefined && rolledBackFrom !== sha256) {
      void memory.update(this.name, { rolledBackFrom: undefined, rolledBackTo: undefined });
    }
  }

  /** A new build, or an operator, deserves a fresh try without the waits of earlier failures. */
  #resetAttempts(): void {
    this.#notBeforeMs = 0;
    this.#backoffMs = this.#context.config.restartBackoffMs;
    this.#windowMs = this.#context.config.readyTimeoutMs;
    this.#readinessFailures = 0;
  }

  goalInput(): GoalInput {
    const { config, memory, quarantine } = this.#context;
    const serving = this.#current?.build.sha256;
    return {
      overlaps: overlapRule(config) === "always",
      ...(this.#desired === undefined ? {} : { listed: this.#desired.sha256 }),
      ...(this.#override === undefined ? {} : { override: this.#override }),
      ...(serving === undefined ? {} : { serving }),
      operator: memory.of(this.name),
      installed: this.#installed,
      isBlocked: (sha256) => quarantine.blocks(this.name, sha256) !== undefined,
    };
  }

  goal(): Goal {
    return chooseGoal(this.goalInput());
  }

  // ------------------------------------------------------------------------------ traffic

  /** Takes a lease for one request, or undefined when it has to wait. Synchronous. */
  claim(
    requestId: string,
    header: (name: string) => string | undefined,
  ): { lease: Lease; generation: Generation } | undefined {
    if (this.#context.memory.of(this.name).trafficPaused === true) return undefined;
    const nowMs = this.#context.runtime.clock.monotonic();
    for (const generation of this.#choices(header)) {
      const lease = generation.target?.claim(requestId, nowMs);
      if (lease !== undefined) return { lease, generation };
    }
    return undefined;
  }

  #choices(header: (name: string) => string | undefined): Generation[] {
    const canary = this.#canary?.generation;
    const current = this.#current;
    if (canary === undefined) return current === undefined ? [] : [current];
    if (current === undefined) return [canary];
    return this.#canary?.share.takes(header) === true ? [canary, current] : [current];
  }

  /** What a request that got no lease may expect. */
  outlook(): Outlook {
    const { config, memory, quarantine, runtime } = this.#context;
    if (memory.of(this.name).trafficPaused === true) {
      return { kind: "soon", timeoutMs: config.pauseHoldMs };
    }
    const goal = this.goal();
    if (goal.kind !== "run") {
      const blocked = goal.kind === "nothing"
        ? quarantine.blocks(this.name, goal.blocked)
        : undefined;
      const waitMs = blocked?.retryAt === undefined
        ? 60_000
        : blocked.retryAt - runtime.clock.now();
      if (waitMs > config.holdTimeoutMs) {
        return {
          kind: "not_soon",
          retryAfterMs: waitMs,
          reason: blocked?.message ?? "no build of it may run",
        };
      }
    }
    const waitMs = this.#notBeforeMs - runtime.clock.monotonic();
    if (waitMs > config.holdTimeoutMs) {
      const reason = this.#lastError?.message ?? "it waits before its next start";
      return { kind: "not_soon", retryAfterMs: waitMs, reason };
    }
    return { kind: "soon", timeoutMs: config.holdTimeoutMs };
  }

  // ---------------------------------------------------------------------------- the loop

  /** Makes the worker look again; at most one look is under way. */
  wake(): void {
    this.#dirty = true;
    this.#reviewRollout();
    if (this.#running) return;
    this.#running = true;
    queueMicrotask(() => void this.#run());
  }

  async #run(): Promise<void> {
    while (this.#dirty) {
      this.#dirty = false;
      this.#cancelWake?.();
      try {
        await this.#look();
      } catch (error) {
        // Nothing is known to throw here; if something does, this version must not stay dead.
        this.#note(messageOf(error));
        this.#context.reports.tell("error", "version_worker_failed", this.name, {
          error: messageOf(error),
        });
        this.#wakeIn(this.#context.config.restartBackoffMs);
      }
    }
    this.#running = false;
  }

  #wakeIn(delayMs: number): void {
    this.#cancelWake?.();
    const delay = Math.min(Math.max(1, delayMs), 3_600_000);
    this.#cancelWake = this.#context.runtime.clock.after(delay, () => this.wake());
  }

  /** Compares what is wanted with what is there, and does the next thing. */
  async #look(): Promise<void> {
    const { builds, runtime, quarantine } = this.#context;
    if (!this.#context.mayStart()) return;
    this.#installed = await builds.installed(this.name);
    await this.#checkRunningFiles();
    if (!this.#context.mayStart()) return;
    const goal = this.goal();
    if (goal.kind === "none") return this.#removeAll();
    this.#wakeForRetries();
    if (goal.kind === "nothing") {
      const blocked = quarantine.blocks(this.name, goal.blocked);
      if (blocked?.retryAt === undefined) this.#context.holds.dismiss(this.name);
      return;
    }
    const fresh = this.#freshWanted;
    const current = this.#current;
    if (current?.alive === true && current.build.sha256 === goal.sha256 && fresh === undefined) {
      if (this.#canary !== undefined) this.#endCanary("no longer wanted");
      return;
    }
    if (this.#canary?.generation.build.sha256 === goal.sha256 && fresh === undefined) return;
    const waitMs = this.#notBeforeMs - runtime.clock.monotonic();
    if (waitMs > 0) return this.#wakeIn(waitMs);
    if (this.#mustWait()) return;
    await this.#bring(goal, fresh);
  }

  /** A transient failure blocks a build only for a time: look again when that is over. */
  #wakeForRetries(): void {
    const nowMs = this.#context.runtime.clock.now();
    let nextMs = Infinity;
    for (const entry of this.#context.quarantine.list(this.name)) {
      if (entry.retryAt !== undefined && entry.retryAt > nowMs) {
        nextMs = Math.min(nextMs, entry.retryAt - nowMs);
      }
    }
    if (Number.isFinite(nextMs)) this.#wakeIn(nextMs + 1);
  }

  /** Withdrawn generations of it still drain, or its orphans still live: two would share its data. */
  #mustWait(): boolean {
    const { generations, orphansOf } = this.#context;
    if (orphansOf(this.name).length > 0) return true;
    return generations.of(this.name).some((generation) => generation.removed);
  }

  /** Files that were changed under a running child are a build nobody published: install again. */
  async #checkRunningFiles(): Promise<void> {
    const current = this.#current;
    if (!this.#checkFiles || current === undefined) return;
    this.#checkFiles = false;
    const { builds, reports } = this.#context;
    const { sha256 } = current.build;
    // Another build is wanted, or another local file: no damage, and the worker sees to it anyway.
    if ((this.#override ?? sha256) !== sha256) return;
    if (await builds.isIntact(this.name, current.build)) return;
    if (this.#current !== current) return;
    reports.tell("error", "install_changed_on_disk", this.name, { sha256 });
    builds.forget(this.name, sha256);
    const wanted = this.#override ?? this.#desired?.sha256;
    if (wanted === sha256) this.#freshWanted ??= "the installed files were changed";
  }

  // --------------------------------------------------------------------------- a rollout

  async #bring(goal: Goal & { kind: "run" }, fresh: string | undefined): Promise<void> {
    const { builds, config, reports, runtime } = this.#context;
    const current = this.#current;
    const isSwap = current !== undefined && current.build.sha256 !== goal.sha256;
    const rollout = new Rollout({
      context: this.#context,
      version: this.name,
      sha256: goal.sha256,
      reason: fresh ?? goal.reason,
      install: (signal, onProgress) =>
        builds.install(this.name, goal.sha256, this.#desired, signal, onProgress),
      staggerMs: isSwap && goal.reason === "listed"
        ? Math.floor(runtime.random.number() * config.staggerMs)
        : 0,
      clearTheWay: (build, signal) => this.#clearTheWay(build, signal),
      readyWindowMs: this.#windowMs,
      serving: () => this.#current,
      onMove: this.#onMove,
    });
    this.#rollout = rollout;
    reports.tell("info", "rollout_started", this.name, {
      sha256: goal.sha256,
      reason: rollout.reason,
      serving: current?.build.sha256,
    });
    try {
      const generation = await rollout.run();
      // One turn from the last check of the rollout to the end of the switch.
      this.#rollout = undefined;
      if (fresh !== undefined && this.#freshWanted === fresh) this.#freshWanted = undefined;
      this.#windowMs = config.readyTimeoutMs;
      this.#readinessFailures = 0;
      if (this.#wantsCanary(goal, fresh)) this.#startCanary(generation);
      else this.#switchTo(generation, current === undefined ? "start" : "swap");
    } catch (error) {
      this.#rollout = undefined;
      if (error instanceof CalledOff) {
        reports.tell("info", "rollout_called_off", this.name, {
          sha256: goal.sha256,
          reason: error.message,
        });
        this.#dirty = true;
      } else {
        if (fresh !== undefined) this.#freshWanted = undefined;
        this.#failed(goal.sha256, error);
      }
    }
  }

  /** Calls the rollout under way off if it is not what is wanted any more. */
  #reviewRollout(): void {
    const rollout = this.#rollout;
    if (rollout === undefined) return;
    const goal = this.goal();
    if (!this.#context.mayStart()) rollout.callOff("the service is going down");
    else if (goal.kind !== "run") rollout.callOff("the version is not wanted any more");
    else if (goal.sha256 !== rollout.sha256) rollout.callOff(`${goal.sha256} is wanted instead`);
    else if (rollout.generation === undefined && this.#mustWait()) {
      rollout.callOff("an earlier generation still drains");
    }
  }

  /** Where builds may not overlap: everything that runs is drained before the new one starts. */
  async #clearTheWay(build: Build, signal: AbortSignal): Promise<void> {
    const blocks = (generation: Generation): boolean =>
      generation !== this.#rollout?.generation && !this.#mayOverlap(generation.build, build);
    const current = this.#current;
    if (current !== undefined && blocks(current)) {
      // The requests that come from now on wait for the new generation.
      this.#closeProbation("stop/start swap");
      if (this.#canary !== undefined) this.#endCanary("stop/start swap");
      this.#current = undefined;
      this.#leave(current, "stop/start swap");
    }
    const inTheWay = this.#context.generations.of(this.name).filter(blocks);
    await orCalledOff(Promise.all(inTheWay.map((generation) => generation.ended)), signal);
  }

  #mayOverlap(current: Build, incoming: Build): boolean {
    // A local file is put in the place of the one that runs: versiond never overlaps these.
    if (incoming.sha256.startsWith("override:") || current.sha256.startsWith("override:")) {
      return false;
    }
    return overlapAllowed(this.#context.config, current, incoming);
  }

  /** Remembers a failed rollout, and decides when the build may be tried again. */
  #failed(sha256: string, error: unknown): void {
    const { quarantine, reports, runtime, config } = this.#context;
    const failure = error instanceof RolloutFailure
      ? error
      : new RolloutFailure("transient", messageOf(error), { cause: error });
    this.#note(failure.message);
    const blames = failure.class === "readiness" || failure.class === "crash";
    if (failure.class === "readiness") {
      this.#readinessFailures += 1;
      this.#windowMs = nextWindowMs(
        this.#windowMs,
        maxWindowMs(config.readyTimeoutMs, config.readyMaxWaitMs),
      );
    }
    const restarts = this.#current?.build.sha256 === sha256;
    if (blames && !restarts && !this.#hasFallback(sha256)) {
      // Nothing else could serve: giving up would make an outage out of a slow start.
      const delayMs = this.#nextBackoff();
      reports.failed(this.name, failure.class, {
        sha256,
        error: failure.message,
        retryInMs: delayMs,
      });
      this.#wakeIn(delayMs);
      return;
    }
    // A restart of what serves well says nothing against the build; an operator sees the failure.
    if (restarts) {
      reports.failed(this.name, failure.class, { sha256, error: failure.message });
      return;
    }
    const retry = failure.class === "transient" ||
      (failure.class === "readiness" && this.#readinessFailures < config.readyAttempts);
    void quarantine.record(this.name, sha256, failure.class, failure.message, retry);
    const entry = quarantine.blocks(this.name, sha256);
    const retryInMs = entry?.retryAt === undefined
      ? undefined
      : Math.max(0, Math.round(entry.retryAt - runtime.clock.now()));
    reports.failed(this.name, failure.class, { sha256, error: failure.message, retryInMs });
    this.#dirty = true;
  }

  /** True when something else than `sha256` serves or can be started without network. */
  #hasFallback(sha256: string): boolean {
    const current = this.#current?.build.sha256;
    if (current !== undefined && current !== sha256) return true;
    const input = this.goalInput();
    const goal = chooseGoal({
      ...input,
      isBlocked: (other) => other === sha256 || input.isBlocked(other),
    });
    return goal.kind === "run";
  }

  /** True for a build that has not served well yet, where one that has is on disk. */
  #hasProvenFallback(sha256: string): boolean {
    const { operator, installed, isBlocked } = this.goalInput();
    const proven = operator.proven ?? [];
    return !proven.includes(sha256) &&
      proven.some((other) => installed.includes(other) && !isBlocked(other));
  }

  #nextBackoff(): number {
    const { config, runtime } = this.#context;
    const delayMs = this.#backoffMs;
    this.#backoffMs = Math.min(delayMs * 2, config.restartBackoffMaxMs);
    this.#notBeforeMs = runtime.clock.monotonic() + delayMs;
    return delayMs;
  }

  // ----------------------------------------------------------------- who serves: one turn each

  #switchTo(generation: Generation, how: string): void {
    const { config, memory, holds, reports } = this.#context;
    const old = this.#current;
    const from = old?.build.sha256;
    const { sha256 } = generation.build;
    generation.move("running", how);
    generation.role = "current";
    this.#current = generation;
    this.#publish(generation);
    old?.withdraw();
    this.#closeProbation("superseded");
    const isChange = from !== sha256;
    const warm = old !== undefined && isChange && config.bakeMs > 0 ? old : undefined;
    if (warm !== undefined) warm.role = "warm";
    else if (old !== undefined) this.#leave(old, how === "swap" ? "replaced" : how);
    this.#watch(generation);
    this.#onProbation(generation, warm);
    void memory.update(this.name, { serving: sha256 });
    reports.switched(this.name, how, {
      generation: generation.number,
      sha256,
      from: old?.number,
    });
    holds.release(this.name);
    this.#context.changed(generation);
  }

  #publish(generation: Generation): void {
    const target = generation.publish(this.#context.runtime.clock.monotonic());
    target.onConnectFailure(() => this.#connectFailed(generation));
  }

  /** A connection to the generation was refused, before anything of a request was sent. */
  #connectFailed(generation: Generation): void {
    generation.connectErrors += 1;
    if (this.#probation?.generation === generation) this.#probation.connectFailed();
    if (
      this.#canary?.generation === generation &&
      generation.connectErrors >= this.#context.config.bakeConnectErrors
    ) {
      this.#canaryFailed("crash", `${generation.connectErrors} refused connections`);
    }
  }

  #onProbation(generation: Generation, old: Generation | undefined): void {
    const { config, runtime } = this.#context;
    this.#probation = new Probation(generation, old, {
      clock: runtime.clock,
      bakeMs: config.bakeMs,
      probeFailures: config.bakeProbeFailures,
      connectErrors: config.bakeConnectErrors,
      onPassed: () => this.#passed(generation),
      onFailed: (cause) => this.#probationFailed(generation, cause),
    });
  }

  #passed(generation: Generation): void {
    const { memory, quarantine, reports } = this.#context;
    const old = this.#probation?.old;
    this.#probation = undefined;
    if (this.#current !== generation) return;
    const { sha256 } = generation.build;
    void memory.prove(this.name, sha256);
    void quarantine.succeeded(this.name, sha256);
    reports.tell("info", "build_proven", this.name, { generation: generation.number, sha256 });
    if (old !== undefined) this.#leave(old, "replaced");
    this.wake();
  }

  /** The new generation did not hold: traffic goes back in this turn, if there is where to. */
  #probationFailed(generation: Generation, cause: string): void {
    const { quarantine, reports, holds, memory } = this.#context;
    const old = this.#probation?.old;
    this.#probation = undefined;
    if (this.#current !== generation) return;
    const { sha256 } = generation.build;
    const failureClass = generation.alive ? "readiness" : "crash";
    this.#note(cause);
    if (old?.alive === true) {
      old.role = "current";
      this.#current = old;
      this.#publish(old);
      generation.withdraw();
      void quarantine.record(this.name, sha256, failureClass, cause, false);
      void memory.update(this.name, { serving: old.build.sha256 });
      reports.failed(this.name, failureClass, { sha256, error: cause });
      reports.switched(this.name, "switch_back", {
        generation: old.number,
        sha256: old.build.sha256,
        from: generation.number,
        cause,
      });
      holds.release(this.name);
      this.#leave(generation, `switched back: ${cause}`);
      this.#context.changed(old);
    } else if (this.#hasProvenFallback(sha256)) {
      // No warm one, but a build that served well is on disk: the worker brings it, as a swap.
      void quarantine.record(this.name, sha256, failureClass, cause, false);
      reports.failed(this.name, failureClass, { sha256, error: cause });
    }
    this.wake();
  }

  #closeProbation(cause: string): void {
    const probation = this.#probation;
    this.#probation = undefined;
    if (probation?.close() === true && probation.old !== undefined) {
      this.#leave(probation.old, cause);
    }
  }

  /** Nothing of the version is wanted: gone for clients in this turn, drained behind them. */
  #removeAll(): void {
    const { holds, generations } = this.#context;
    this.#rollout?.callOff("the version is not wanted any more");
    this.#closeProbation("withdrawn");
    if (this.#canary !== undefined) this.#endCanary("withdrawn");
    const current = this.#current;
    this.#current = undefined;
    if (current !== undefined) this.#leave(current, "withdrawn");
    for (const generation of generations.of(this.name)) generation.removed = true;
    holds.dismiss(this.name);
  }

  /** Sends a generation on its way out: drained, stopped, reaped, in the background. */
  #leave(generation: Generation, cause: string): void {
    generation.role = "leaving";
    generation.withdraw();
    // What a child that leaves says about its readiness is of no use to anybody.
    void this.#monitors.get(generation)?.stop();
    this.#monitors.delete(generation);
    this.#context.changed(generation);
    if (generation.phase === "stopped") return;
    void this.drain(generation, cause).run();
  }

  /** The generation's drain; begun by the caller, reported here. */
  drain(generation: Generation, cause: string): Drain {
    if (generation.drain !== undefined) return generation.drain;
    const { config, runtime, reports, stopGraceMs } = this.#context;
    const drain = new Drain(
      runtime,
      generation,
      {
        drainPath: config.drainPath,
        drainStatusPath: config.drainStatusPath,
        timeoutMs: config.drainTimeoutMs,
        pollMs: config.drainPollMs,
        cushionMs: config.drainCushionMs,
        tunnelTimeoutMs: config.drainTunnelMs,
        graceMs: stopGraceMs,
      },
      reports.log,
      cause,
      (from, to, event) =>
        reports.tell("debug", "drain_moved", this.name, {
          generation: generation.number,
          from,
          to,
          cause: event,
        }),
    );
    generation.drain = drain;
    void drain.run().then((report) => reports.drained(report));
    return drain;
  }

  // ------------------------------------------------------------------------------- canary

  #wantsCanary(goal: Goal & { kind: "run" }, fresh: string | undefined): boolean {
    const { config } = this.#context;
    return (config.canaryPercent > 0 || config.canaryHeader !== "") && fresh === undefined &&
      goal.reason === "listed" && this.#current?.alive === true &&
      this.#current.build.sha256 !== goal.sha256;
  }

  #startCanary(generation: Generation): void {
    const { config, runtime, reports } = this.#context;
    if (this.#canary !== undefined) this.#endCanary("superseded");
    generation.move("running", "canary");
    generation.role = "canary";
    this.#publish(generation);
    this.#canary = {
      generation,
      share: new CanaryShare({ percent: config.canaryPercent, header: config.canaryHeader }),
      cancelTimer: config.canaryMs > 0
        ? runtime.clock.after(config.canaryMs, () => this.promote("canary time over"))
        : () => {},
    };
    this.#watch(generation);
    reports.tell("info", "canary_started", this.name, {
      generation: generation.number,
      sha256: generation.build.sha256,
      percent: config.canaryPercent,
    });
    this.#context.holds.release(this.name);
    this.#context.changed(generation);
  }

  /** All traffic to the canary; false if there is none. */
  promote(_cause: string): boolean {
    const canary = this.#canary;
    if (canary === undefined || !canary.generation.alive) return false;
    canary.cancelTimer();
    this.#canary = undefined;
    this.#switchTo(canary.generation, "promote");
    return true;
  }

  #endCanary(cause: string): void {
    const canary = this.#canary;
    if (canary === undefined) return;
    canary.cancelTimer();
    this.#canary = undefined;
    this.#leave(canary.generation, cause);
  }

  #canaryFailed(failureClass: "crash" | "readiness", cause: string): void {
    const generation = this.#canary?.generation;
    if (generation === undefined) return;
    const { quarantine, reports } = this.#context;
    const { sha256 } = generation.build;
    void quarantine.record(this.name, sha256, failureClass, cause, false);
    reports.failed(this.name, failureClass, { sha256, error: `canary: ${cause}` });
    this.#endCanary(cause);
    this.wake();
  }

  // --------------------------------------------------------------------- what children do

  readonly #onMove = (generation: Generation, move: GenerationMove, refused: boolean): void => {
    this.#context.reports.moved(generation, move, refused, this.#phaseSince(generation));
    if (!refused && move.to === "stopped") this.#stopped(generation, move);
  };

  readonly #enteredAt = new WeakMap<Generation, number>();
  #phaseSince(generation: Generation): number {
    const since = this.#enteredAt.get(generation) ?? generation.createdAt;
    this.#enteredAt.set(generation, this.#context.runtime.clock.now());
    return since;
  }

  #stopped(generation: Generation, move: GenerationMove): void {
    void this.#monitors.get(generation)?.stop();
    this.#monitors.delete(generation);
    // First what takes its place, if anything does; then it is withdrawn.
    if (this.#current === generation) this.#crashed(generation, move.cause);
    else if (this.#canary?.generation === generation) this.#canaryFailed("crash", move.cause);
    else if (this.#probation?.old === generation) {
      this.#probation.old = undefined;
      this.#context.reports.crashed(this.name, {
        generation: generation.number,
        role: "warm",
        cause: move.cause,
      });
    }
    generation.withdraw();
    this.#context.changed(generation);
    this.wake();
  }

  /** The serving child is gone without having been asked: its requests wait for the next one. */
  #crashed(generation: Generation, cause: string): void {
    const { config, reports, runtime } = this.#context;
    const nowMs = runtime.clock.monotonic();
    const ranMs = nowMs - (generation.publishedAtMs ?? nowMs);
    const message = `the child ended: ${cause}`;
    this.#note(message);
    reports.crashed(this.name, { generation: generation.number, ranMs: Math.round(ranMs), cause });
    if (this.#probation?.generation === generation) this.#probation.fail(message);
    if (this.#current !== generation) return;
    this.#current = undefined;
    if (!this.#context.mayStart()) return;
    if (ranMs > config.restartResetMs) this.#backoffMs = config.restartBackoffMs;
    // A quarantined build is not restarted: what comes instead need not wait for it.
    if (this.#context.quarantine.blocks(this.name, generation.build.sha256) !== undefined) return;
    const delayMs = this.#nextBackoff();
    reports.tell("warn", "restart_planned", this.name, { delayMs });
  }

  #watch(generation: Generation): void {
    if (this.#monitors.has(generation)) return;
    const { config, runtime } = this.#context;
    const monitor = new Monitor(runtime, generation.probeTarget(config), {
      intervalMs: config.monitorIntervalMs,
      timeoutMs: config.monitorTimeoutMs,
      onResult: (ready, result) => {
        const was = generation.live?.ready;
        const detail = `${result.class}: ${result.detail}`;
        generation.live = { ready, atMs: runtime.clock.monotonic(), detail };
        if (was !== ready) {
          this.#context.reports.tell(ready ? "info" : "warn", "live_readiness", this.name, {
            generation: generation.number,
            ready,
            detail,
          });
        }
        if (this.#probation?.generation === generation) this.#probation.probed(ready, detail);
        if (this.#canary?.generation === generation) this.#canaryProbed(ready, detail);
      },
    });
    this.#monitors.set(generation, monitor);
  }

  #canaryMisses = 0;
  #canaryProbed(ready: boolean, detail: string): void {
    this.#canaryMisses = ready ? 0 : this.#canaryMisses + 1;
    if (this.#canaryMisses < this.#context.config.bakeProbeFailures) return;
    this.#canaryMisses = 0;
    this.#canaryFailed("readiness", `failed probes in a row (${detail})`);
  }

  #note(message: string): void {
    this.#lastError = { message, at: this.#context.runtime.clock.now() };
  }

  // ------------------------------------------------------------------ for operators and status

  get current(): Generation | undefined {
    return this.#current;
  }

  get canary(): Generation | undefined {
    return this.#canary?.generation;
  }

  get warm(): Generation | undefined {
    return this.#probation?.old;
  }

  get rollout(): Rollout | undefined {
    return this.#rollout;
  }

  get lastError(): { message: string; at: number } | undefined {
    return this.#lastError;
  }

  get installed(): readonly string[] {
    return this.#installed;
  }

  /** Milliseconds until the next start that a back-off allows, 0 if none is waited for. */
  get backoffLeftMs(): number {
    return Math.max(0, this.#notBeforeMs - this.#context.runtime.clock.monotonic());
  }

  /** Where a rollback would go. */
  async rollbackTarget(): Promise<string | undefined> {
    this.#installed = await this.#context.builds.installed(this.name);
    return rollbackGoal(this.goalInput(), this.#current?.build.sha256 ?? this.#desired?.sha256);
  }

  /** Goes back from the canary; false if there is none. */
  dropCanary(cause: string): boolean {
    if (this.#canary === undefined) return false;
    this.#endCanary(cause);
    return true;
  }

  /** A new process of the build that serves. */
  restart(cause: string): void {
    this.#freshWanted = cause;
    this.#resetAttempts();
    this.wake();
  }

  /** An operator changed something: earlier failures do not delay what follows. */
  reconsider(): void {
    this.#resetAttempts();
    this.wake();
  }

  /** For the shutdown: nothing is started or switched any more. */
  stop(): void {
    this.#cancelWake?.();
    this.#closeProbation("shutdown");
    this.#canary?.cancelTimer();
    this.#reviewRollout();
    // Those who wait for a start would wait in vain.
    if (this.#current === undefined) this.#context.holds.dismiss(this.name);
  }

  /** Takes away all routes of it, in this turn. */
  withdrawAll(): void {
    this.#current = undefined;
    this.#canary = undefined;
    this.#context.holds.dismiss(this.name);
  }
}
