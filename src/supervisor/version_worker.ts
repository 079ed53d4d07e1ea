/**
 * The one owner of a version: it decides which build should serve, and makes it so.
 *
 * Each version has a worker of its own, so a download, a readiness wait or a drain of one never
 * holds another. The worker looks at what is wanted and what is there, does one thing about the
 * difference, and looks again; whatever changes meanwhile (another list, an operator, a crash)
 * wakes it, or calls the rollout under way off. Who serves is changed by serving.ts alone.
 *
 * Over 400 lines: the order of these decisions is the subject, and belongs in one place.
 */

import { messageOf } from "../errors.ts";
import { overlapRule } from "../config/versions.ts";
import type { Lease, Target } from "../proxy/target.ts";
import { Attempts } from "./attempts.ts";
import type { DesiredVersion } from "./catalog.ts";
import type { ServiceContext } from "./context.ts";
import type { Drain } from "./drain.ts";
import { type FailureClass, RolloutFailure } from "./failure.ts";
import type { Build, Generation, GenerationMove } from "./generation.ts";
import { chooseGoal, type Goal, type GoalInput, rollbackGoal } from "./goal.ts";
import { overlapAllowed } from "./overlap.ts";
import { OVERRIDE_PREFIX } from "./overrides.ts";
import { Rescue } from "./rescue.ts";
import { Rollout } from "./rollout.ts";
import { Serving } from "./serving.ts";
import { CalledOff, orCalledOff } from "./wait.ts";

/** What a request that cannot be served at once may expect. */
export type Outlook =
  | { readonly kind: "soon"; readonly timeoutMs: number }
  | { readonly kind: "not_soon"; readonly retryAfterMs: number; readonly reason: string };

/** The longest wait that a request is told when nothing is known. */
const LONG_MS = 60_000;
const MAX_SLEEP_MS = 3_600_000;

export class VersionWorker {
  readonly name: string;
  readonly #context: ServiceContext;
  readonly #serving: Serving;
  readonly #attempts: Attempts;
  readonly #rescue: Rescue;
  #desired: DesiredVersion | undefined;
  /** `override:<hash>` of a local file that goes before every published build. */
  #override: string | undefined;
  #installed: readonly string[] = [];
  #rollout: Rollout | undefined;
  /** Why a new process of the build that serves is wanted, if it is. */
  #freshWanted: string | undefined;
  #lastError: { message: string; at: number } | undefined;
  #checkFiles = false;
  #dirty = false;
  #running = false;
  #cancelWake: (() => void) | undefined;

  constructor(context: ServiceContext, name: string) {
    this.#context = context;
    this.name = name;
    this.#attempts = new Attempts(context.runtime.clock, context.config);
    this.#serving = new Serving(context, name, {
      crashed: (generation, cause) => this.#crashed(generation, cause),
      failed: (sha256, failureClass, cause, replaced) => {
        // Where nothing was kept warm the build is only given up for one that is known to work.
        if (replaced || this.#hasProvenFallback(sha256)) {
          this.#blame(sha256, failureClass, cause, false);
        } else this.#note(cause);
      },
      unwell: (generation, cause) => this.#unwell(generation, cause),
      proven: (generation) => this.#proven(generation),
      changed: () => this.wake(),
    });
    this.#rescue = new Rescue({
      context,
      version: name,
      attempts: this.#attempts,
      install: (sha256) => (signal, onProgress) =>
        context.builds.install(name, sha256, this.#desired, signal, onProgress),
      onMove: (generation, move, refused) => this.#onMove(generation, move, refused),
      isWanted: (sha256) => this.#isRescueWanted(sha256),
      switchTo: (generation) => this.#serving.switchTo(generation, "restart"),
      ended: () => this.wake(),
    });
  }

  // --------------------------------------------------------------------------- what is wanted

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
    if (wasKnown && !this.known) this.#remove();
    this.#checkFiles = true;
    this.wake();
  }

  #listed(sha256: string): void {
    const { background, quarantine, memory } = this.#context;
    background(quarantine.artifactChanged(this.name, sha256));
    this.#attempts.reset();
    const { rolledBackFrom } = memory.of(this.name);
    if (rolledBackFrom !== undefined && rolledBackFrom !== sha256) {
      background(
        memory.update(this.name, { rolledBackFrom: undefined, rolledBackTo: undefined }),
      );
    }
  }

  /** Everything that the choice of a build depends on, as it is now. */
  goalInput(): GoalInput {
    const { config, memory, quarantine } = this.#context;
    const serving = this.current?.build.sha256;
    return {
      provenFirst: overlapRule(config) === "always" && !this.#serving.hasServed,
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

  // ---------------------------------------------------------------------------------- traffic

  /** Takes a lease for one request, or undefined when it has to wait. Synchronous. */
  claim(requestId: string, header: (name: string) => string | undefined): Lease | undefined {
    if (this.#context.memory.of(this.name).trafficPaused === true) return undefined;
    return this.#serving.claim(requestId, header);
  }

  /** The target of every request, as long as there is nothing to decide. */
  get direct(): Target | undefined {
    const isPlain = this.#context.memory.of(this.name).trafficPaused !== true &&
      this.#serving.canary === undefined;
    return isPlain ? this.#serving.current?.target : undefined;
  }

  /** What a request that got no lease may expect. */
  outlook(): Outlook {
    const { config, memory, quarantine, runtime } = this.#context;
    const soon = (timeoutMs: number): Outlook => ({ kind: "soon", timeoutMs });
    const within = (waitMs: number, reason = "no build of it may run"): Outlook =>
      waitMs > config.holdTimeoutMs
        ? { kind: "not_soon", retryAfterMs: Math.min(waitMs, LONG_MS), reason }
        : soon(config.holdTimeoutMs);
    if (memory.of(this.name).trafficPaused === true) return soon(config.pauseHoldMs);
    const goal = this.goal();
    if (goal.kind === "none") return within(Infinity);
    if (goal.kind === "nothing") {
      const blocked = quarantine.blocks(this.name, goal.blocked);
      const waitMs = (blocked?.retryAt ?? Infinity) - runtime.clock.now();
      return within(waitMs, blocked?.message);
    }
    return within(this.#attempts.waitMs, this.#lastError?.message);
  }

  // --------------------------------------------------------------------------------- the loop

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
    const delay = Math.min(Math.max(1, delayMs), MAX_SLEEP_MS);
    this.#cancelWake = this.#context.runtime.clock.after(delay, () => this.wake());
  }

  /** Compares what is wanted with what is there, and does the next thing. */
  async #look(): Promise<void> {
    const { builds, quarantine, holds } = this.#context;
    if (!this.#context.mayStart()) return;
    this.#installed = await builds.installed(this.name);
    await this.#checkRunningFiles();
    if (!this.#context.mayStart()) return;
    const goal = this.goal();
    if (goal.kind === "none") return this.#remove();
    this.#wakeForRetries();
    if (goal.kind === "nothing") {
      const blocked = quarantine.blocks(this.name, goal.blocked);
      if (blocked?.retryAt === undefined) holds.dismiss(this.name);
      return;
    }
    const fresh = this.#freshWanted;
    const { current, canary } = this;
    if (current?.alive === true && current.build.sha256 === goal.sha256 && fresh === undefined) {
      this.#serving.dropCanary("no longer wanted");
      return;
    }
    if (canary?.build.sha256 === goal.sha256 && fresh === undefined) return;
    if (this.#rescue.sha256 === goal.sha256) return;
    if (this.#attempts.waitMs > 0) return this.#wakeIn(this.#attempts.waitMs);
    if (this.#mustWait()) return;
    await this.#bring(goal, fresh);
  }

  /** A transient failure blocks a build only for a time: look again when that is over. */
  #wakeForRetries(): void {
    const nowMs = this.#context.runtime.clock.now();
    const retries = this.#context.quarantine.list(this.name)
      .flatMap(({ retryAt }) => retryAt !== undefined && retryAt > nowMs ? [retryAt - nowMs] : []);
    if (retries.length > 0) this.#wakeIn(Math.min(...retries) + 1);
  }

  /** Withdrawn generations of it still drain, or its orphans still live: two would share its data. */
  #mustWait(): boolean {
    const { generations, orphansOf } = this.#context;
    if (orphansOf(this.name).length > 0) return true;
    return generations.of(this.name).some((generation) => generation.removed);
  }

  /** Files that were changed under a running child are a build nobody published: install again. */
  async #checkRunningFiles(): Promise<void> {
    const { current } = this;
    if (!this.#checkFiles || current === undefined) return;
    this.#checkFiles = false;
    const { builds, reports } = this.#context;
    const { sha256 } = current.build;
    // Another build is wanted, or another local file: no damage, and the worker sees to it anyway.
    if ((this.#override ?? sha256) !== sha256) return;
    if (await builds.isIntact(this.name, current.build)) return;
    if (this.current !== current) return;
    reports.tell("error", "install_changed_on_disk", this.name, { sha256 });
    builds.forget(this.name, sha256);
    const wanted = this.#override ?? this.#desired?.sha256;
    if (wanted === sha256) this.#freshWanted ??= "the installed files were changed";
  }

  /** Nothing of the version is wanted: gone for clients in this turn, drained behind them. */
  #remove(): void {
    this.#rollout?.callOff("the version is not wanted any more");
    this.#serving.clear("withdrawn");
    for (const generation of this.#context.generations.of(this.name)) generation.removed = true;
    this.#context.holds.dismiss(this.name);
  }

  // -------------------------------------------------------------------------------- a rollout

  async #bring(goal: Goal & { kind: "run" }, fresh: string | undefined): Promise<void> {
    const { builds, config, reports, runtime } = this.#context;
    const { current } = this;
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
      onReady: (generation) => {
        this.#rollout = undefined;
        if (this.#freshWanted === fresh) this.#freshWanted = undefined;
        this.#attempts.becameReady();
        if (this.#wantsCanary(goal, fresh)) this.#serving.startCanary(generation);
        else this.#serving.switchTo(generation, this.current === undefined ? "start" : "swap");
      },
      readyWindowMs: this.#attempts.windowMs,
      serving: () => this.current,
      onMove: this.#onMove,
    });
    this.#rollout = rollout;
    reports.tell("info", "rollout_started", this.name, {
      sha256: goal.sha256,
      reason: rollout.reason,
      serving: current?.build.sha256,
    });
    try {
      await rollout.run();
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
        this.#rolloutFailed(goal.sha256, error);
      }
    }
  }

  #wantsCanary(goal: Goal & { kind: "run" }, fresh: string | undefined): boolean {
    const { config } = this.#context;
    const { current } = this;
    return (config.canaryPercent > 0 || config.canaryHeader !== "") && fresh === undefined &&
      goal.reason === "listed" && current?.alive === true && current.build.sha256 !== goal.sha256;
  }

  /** The build that crashed may be brought back as long as something else is being brought. */
  #isRescueWanted(sha256: string): boolean {
    const { mayStart, quarantine } = this.#context;
    const goal = this.goal();
    const isOther = this.#rollout !== undefined && this.#rollout.sha256 !== sha256;
    return mayStart() && this.known && this.current === undefined && !this.#mustWait() &&
      quarantine.blocks(this.name, sha256) === undefined &&
      (isOther || (goal.kind === "run" && goal.sha256 === sha256));
  }

  /** Calls the rollouts under way off if they are not what is wanted any more. */
  #reviewRollout(): void {
    const rescued = this.#rescue.sha256;
    if (rescued !== undefined && !this.#isRescueWanted(rescued)) {
      this.#rescue.callOff("nothing is to be brought back any more");
    }
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
    // The requests that come from now on wait for the new generation.
    if (this.current !== undefined && blocks(this.current)) this.#serving.clear("stop/start swap");
    const inTheWay = this.#context.generations.of(this.name).filter(blocks);
    await orCalledOff(Promise.all(inTheWay.map((generation) => generation.ended)), signal);
  }

  #mayOverlap(current: Build, incoming: Build): boolean {
    // A local file is put in the place of the one that runs: versiond never overlaps these.
    if ([incoming, current].some((build) => build.sha256.startsWith(OVERRIDE_PREFIX))) return false;
    return overlapAllowed(this.#context.config, current, incoming);
  }

  // --------------------------------------------------------------------------------- failures

  /** Remembers a failed rollout, and decides when the build may be tried again. */
  #rolloutFailed(sha256: string, error: unknown): void {
    const { reports, config } = this.#context;
    const failure = error instanceof RolloutFailure
      ? error
      : new RolloutFailure("transient", messageOf(error), { cause: error });
    const mayBeChance = failure.class === "readiness" || failure.killed;
    if (mayBeChance) this.#attempts.didNotGetReady();
    const fields = { sha256, error: failure.message };
    if (this.current?.build.sha256 === sha256) {
      // A restart of what serves well says nothing against the build; an operator sees the failure.
      this.#note(failure.message);
      return reports.failed(this.name, failure.class, fields);
    }
    const blames = failure.class === "readiness" || failure.class === "crash";
    if (blames && !this.#hasFallback(sha256)) {
      // Nothing else could serve: giving up would make an outage out of a slow start.
      this.#note(failure.message);
      const retryInMs = this.#attempts.backOff();
      reports.failed(this.name, failure.class, { ...fields, retryInMs });
      return this.#wakeIn(retryInMs);
    }
    const retry = failure.class === "transient" ||
      (mayBeChance && this.#attempts.unready < config.readyAttempts);
    this.#blame(sha256, failure.class, failure.message, retry);
    this.#dirty = true;
  }

  /** Quarantines a build. In memory at once; on disk as soon as can be. */
  #blame(sha256: string, failureClass: FailureClass, message: string, retry: boolean): void {
    const { background, quarantine, reports, runtime } = this.#context;
    this.#note(message);
    background(quarantine.record(this.name, sha256, failureClass, message, retry));
    const retryAt = quarantine.blocks(this.name, sha256)?.retryAt;
    reports.failed(this.name, failureClass, {
      sha256,
      error: message,
      ...(retryAt === undefined
        ? {}
        : { retryInMs: Math.max(0, Math.round(retryAt - runtime.clock.now())) }),
    });
  }

  /** True when something else than `sha256` serves or can be started. */
  #hasFallback(sha256: string): boolean {
    const input = this.goalInput();
    if (input.serving !== undefined && input.serving !== sha256) return true;
    const isBlocked = (other: string): boolean => other === sha256 || input.isBlocked(other);
    return chooseGoal({ ...input, isBlocked }).kind === "run";
  }

  /** True for a build that has not served well yet, where one that has is on disk. */
  #hasProvenFallback(sha256: string): boolean {
    const { operator, installed, isBlocked } = this.goalInput();
    const proven = operator.proven ?? [];
    return !proven.includes(sha256) &&
      proven.some((other) => installed.includes(other) && !isBlocked(other));
  }

  #proven(generation: Generation): void {
    const { background, memory, quarantine, reports } = this.#context;
    const { sha256 } = generation.build;
    background(memory.prove(this.name, sha256));
    background(quarantine.succeeded(this.name, sha256));
    reports.tell("info", "build_proven", this.name, { generation: generation.number, sha256 });
  }

  /**
   * The serving child lives but does not serve. Another process of its build is started beside it; where
   * two may not run at once it stays, since its streams may still go on, and an operator decides.
   */
  #unwell(generation: Generation, cause: string): void {
    const { mayStart, reports } = this.#context;
    const { build, number } = generation;
    const goal = this.goal();
    const isWanted = goal.kind === "run" && goal.sha256 === build.sha256;
    // What is being brought already takes its place; what is wanted instead is not to be hurried.
    if (!mayStart() || !isWanted || this.#rollout !== undefined) return;
    const replaced = this.#mayOverlap(build, build);
    this.#note(cause);
    reports.unwell(this.name, { generation: number, cause, replaced });
    if (!replaced) return;
    this.#freshWanted ??= cause;
    this.wake();
  }

  /** The serving child is gone without having been asked: its requests wait for the next one. */
  #crashed(generation: Generation, cause: string): void {
    const { config, reports, runtime, quarantine } = this.#context;
    this.#note(`the child ended: ${cause}`);
    if (!this.#context.mayStart()) return;
    const nowMs = runtime.clock.monotonic();
    this.#attempts.ranFor(nowMs - (generation.publishedAtMs ?? nowMs));
    // A quarantined build is not restarted: what comes instead need not wait for it.
    if (quarantine.blocks(this.name, generation.build.sha256) !== undefined) return;
    reports.tell("warn", "restart_planned", this.name, { delayMs: this.#attempts.backOff() });
    const { sha256 } = generation.build;
    const isOther = this.#rollout !== undefined && this.#rollout.sha256 !== sha256;
    if (isOther && overlapRule(config) === "always") this.#rescue.plan(sha256);
  }

  readonly #onMove = (generation: Generation, move: GenerationMove, refused: boolean): void => {
    this.#context.reports.moved(generation, move, refused);
    if (refused || move.to !== "stopped") return;
    this.#serving.ended(generation, move.cause);
    this.wake();
  };

  #note(message: string): void {
    this.#lastError = { message, at: this.#context.runtime.clock.now() };
  }

  // ------------------------------------------------------------------ for operators and status

  get desired(): DesiredVersion | undefined {
    return this.#desired;
  }

  get overrideIdentity(): string | undefined {
    return this.#override;
  }

  get current(): Generation | undefined {
    return this.#serving.current;
  }

  get canary(): Generation | undefined {
    return this.#serving.canary;
  }

  get warm(): Generation | undefined {
    return this.#serving.warm;
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
    return this.#attempts.waitMs;
  }

  /** Where a rollback would go. */
  async rollbackTarget(): Promise<string | undefined> {
    this.#installed = await this.#context.builds.installed(this.name);
    return rollbackGoal(this.goalInput(), this.current?.build.sha256 ?? this.#desired?.sha256);
  }

  /** All traffic to the canary; false if there is none. */
  promote(): boolean {
    return this.#serving.promote();
  }

  /** Goes back from the canary; false if there is none. */
  dropCanary(cause: string): boolean {
    return this.#serving.dropCanary(cause);
  }

  /** A new process of the build that serves. */
  restart(cause: string): void {
    this.#freshWanted = cause;
    this.reconsider();
  }

  /** An operator changed something: earlier failures do not delay what follows. */
  reconsider(): void {
    this.#attempts.reset();
    this.wake();
  }

  // ------------------------------------------------------------------------- for the shutdown

  /** Nothing is started or switched any more. */
  stop(): void {
    this.#cancelWake?.();
    this.#rescue.callOff("the service is going down");
    this.#serving.freeze();
    this.#reviewRollout();
    // Those who wait for a start would wait in vain.
    if (this.current === undefined) this.#context.holds.dismiss(this.name);
  }

  /** Takes away all routes of it, in this turn. */
  withdrawAll(): void {
    this.#serving.withdrawAll();
  }

  drain(generation: Generation, cause: string): Drain {
    return this.#serving.drain(generation, cause);
  }
}
