/**
 * One attempt to bring one build of a version up to the point where traffic may go to it.
 *
 * Install, questions to the program, start, readiness, warmth, in this order; each may take long and
 * all can be called off. What it started and did not hand over is stopped and reaped.
 */

import { messageOf } from "../errors.ts";
import type { ServiceContext } from "./context.ts";
import { RolloutFailure } from "./failure.ts";
import { type Build, Generation } from "./generation.ts";
import type { Install, InstallProgress } from "./installs.ts";
import { PortClash } from "./port_clash.ts";
import { NotReady, waitReady } from "./readiness.ts";
import { NotWarm, waitWarm } from "./warm_up.ts";
import { CalledOff, orCalledOff, sleep, throwIfCalledOff } from "./wait.ts";

export type RolloutStage =
  | "installing"
  | "checking"
  | "staggering"
  | "clearing"
  | "starting"
  | "warming"
  | "ready";

/** Starts on ports that others took, until the host is thought to be the trouble. */
const MAX_CLASHES = 5;

export interface RolloutOptions {
  readonly context: ServiceContext;
  readonly version: string;
  readonly sha256: string;
  readonly reason: string;
  /** Finds or downloads the build. */
  readonly install: (
    signal: AbortSignal,
    onProgress: (progress: InstallProgress) => void,
  ) => Promise<Install>;
  readonly staggerMs: number;
  /** Makes room where builds cannot overlap; may take as long as a drain. */
  readonly clearTheWay: (build: Build, signal: AbortSignal) => Promise<void>;
  readonly readyWindowMs: number;
  /** The generation that serves meanwhile, if any. */
  readonly serving: () => Generation | undefined;
  /** Hands the ready generation over, in the same turn in which it was last checked. */
  readonly onReady: (generation: Generation) => void;
  readonly onMove: ConstructorParameters<typeof Generation>[0]["onMove"];
}

export class Rollout {
  readonly sha256: string;
  readonly reason: string;
  /** Milliseconds since 1970. */
  readonly startedAt: number;
  stage: RolloutStage = "installing";
  progress: InstallProgress | undefined;
  generation: Generation | undefined;
  readonly #options: RolloutOptions;
  readonly #abort = new AbortController();

  constructor(options: RolloutOptions) {
    this.#options = options;
    this.sha256 = options.sha256;
    this.reason = options.reason;
    this.startedAt = options.context.runtime.clock.now();
  }

  get signal(): AbortSignal {
    return this.#abort.signal;
  }

  callOff(reason: string): void {
    this.#abort.abort(new Error(reason));
  }

  /**
   * Runs it, up to and with the call of `onReady`. Throws RolloutFailure, or CalledOff.
   */
  async run(): Promise<void> {
    const { context, clearTheWay, version, onReady } = this.#options;
    try {
      const build = await this.#prepare();
      this.stage = "clearing";
      await clearTheWay(build, this.signal);
      throwIfCalledOff(this.signal);
      const generation = await this.#startOnFreePort(build);
      this.stage = "warming";
      await this.#warm(generation);
      throwIfCalledOff(this.signal);
      if (!context.mayStart()) throw new CalledOff("the service is going down");
      if (generation.process?.state !== "running") {
        throw new RolloutFailure("crash", `ended when it was ready: ${generation.cause}`);
      }
      this.stage = "ready";
      onReady(generation);
    } catch (error) {
      const generation = this.generation;
      if (generation?.role === "candidate" && generation.phase !== "stopped") {
        generation.lastError = messageOf(error);
        generation.move("stopping", generation.lastError);
        generation.process?.stop(context.stopGraceMs);
      }
      throw this.#classified(error, version);
    }
  }

  async #prepare(): Promise<Build> {
    const { context, install, staggerMs } = this.#options;
    const found = await orCalledOff(
      install(this.signal, (progress) => {
        this.progress = progress;
      }),
      this.signal,
    );
    this.progress = undefined;
    this.stage = "checking";
    const build = await orCalledOff(context.builds.check(found, this.signal), this.signal);
    if (staggerMs > 0) {
      this.stage = "staggering";
      await sleep(context.runtime.clock, staggerMs, this.signal);
    }
    return build;
  }

  #create(build: Build): Generation {
    const { context, version, onMove } = this.#options;
    const { memory, generations, runtime } = context;
    const last = memory.of(version).generation ?? 0;
    const number = generations.nextNumber(version, last);
    context.background(memory.update(version, { generation: number }));
    const generation = new Generation({
      service: context.service,
      version,
      number,
      build,
      clock: runtime.clock,
      protocol: context.config.childProtocol,
      onMove,
    });
    generations.add(generation);
    return generation;
  }

  /** Starts it, on other ports if somebody else takes the first ones. */
  async #startOnFreePort(build: Build): Promise<Generation> {
    const { context, version } = this.#options;
    for (let clashes = 1;; clashes++) {
      const generation = this.#create(build);
      this.generation = generation;
      this.stage = "starting";
      try {
        await this.#start(generation);
        return generation;
      } catch (error) {
        const clash = await this.#clashOf(generation, error);
        if (clash === undefined) throw error;
        context.reports.tell("warn", "port_clash", version, {
          generation: generation.number,
          port: generation.port,
          detail: clash,
        });
        if (clashes === MAX_CLASHES) {
          throw new RolloutFailure("transient", `no port for it: ${clash}`, { cause: error });
        }
        generation.lastError = clash;
        generation.move("stopping", clash);
        generation.process?.stop(context.stopGraceMs);
        await orCalledOff(generation.ended, this.signal);
      }
    }
  }

  async #clashOf(generation: Generation, error: unknown): Promise<string | undefined> {
    if (error instanceof PortClash) return error.message;
    if (!(error instanceof NotReady)) return undefined;
    if (error.class !== "exited") return await this.#options.context.launcher.clash(generation);
    // Its last words are judged before its ports are given back, and it has stopped after that.
    await generation.ended;
    return generation.portClash;
  }

  async #start(generation: Generation): Promise<void> {
    const { context, readyWindowMs, version } = this.#options;
    const { config, runtime, starts, launcher, reports } = context;
    const giveBack = await starts.take(this.signal);
    // A child that initialises for half an hour must not keep others from starting.
    const cancel = runtime.clock.after(config.readyTimeoutMs, giveBack);
    try {
      reports.started(version);
      const startMs = runtime.clock.monotonic();
      await launcher.launch(generation);
      const process = generation.process;
      if (process === undefined) throw new RolloutFailure("crash", "it has no process");
      let legacyTold = false;
      const result = await waitReady(runtime, generation.probeTarget(config), {
        windowMs: readyWindowMs,
        maxWindowMs: config.readyMaxWaitMs,
        intervalMs: config.readyIntervalMs,
        probeTimeoutMs: config.readyProbeTimeoutMs,
        passes: config.readyPasses,
        signal: this.signal,
        exited: process.exited,
        onProbe: (probe) => {
          generation.live = {
            ready: false,
            atMs: runtime.clock.monotonic(),
            detail: `${probe.class}: ${probe.detail}`,
          };
          if (!probe.legacy || legacyTold) return;
          legacyTold = true;
          reports.tell("info", "readiness_fallback", version, {
            generation: generation.number,
            detail: probe.detail,
          });
        },
      });
      // What answered may be a stranger, while the child has yet to find out.
      const clash = await launcher.clash(generation);
      if (clash !== undefined) throw new PortClash(clash);
      const nowMs = runtime.clock.monotonic();
      // Set before the route can be seen: a balancer that asks at that moment gets the truth.
      generation.live = { ready: true, atMs: nowMs, detail: result.detail };
      reports.ready(version, nowMs - startMs);
    } finally {
      cancel();
      giveBack();
    }
  }

  async #warm(generation: Generation): Promise<void> {
    const { context, serving, version } = this.#options;
    const { config, runtime, reports } = context;
    if (serving() === undefined) return;
    const process = generation.process;
    const end = await orEnded(
      waitWarm(runtime, {
        port: generation.lifecyclePort,
        path: config.readyPath,
        field: config.warmField,
        timeoutMs: config.recoveryTimeoutMs,
        intervalMs: config.readyIntervalMs,
        probeTimeoutMs: config.monitorTimeoutMs,
        isOldAlive: () => serving()?.alive === true,
        signal: this.signal,
      }),
      process?.exited,
    );
    generation.live = {
      ready: true,
      atMs: runtime.clock.monotonic(),
      detail: generation.live?.detail ?? "",
    };
    if (end !== "not_told") {
      reports.tell("info", "warm_up_ended", version, { generation: generation.number, end });
    }
  }

  #classified(error: unknown, version: string): unknown {
    if (this.signal.aborted || error instanceof CalledOff || error instanceof RolloutFailure) {
      return error instanceof RolloutFailure && !this.signal.aborted
        ? error
        : new CalledOff(String(this.signal.reason ?? error));
    }
    if (error instanceof NotReady) {
      const { cause = "", exit } = this.generation ?? {};
      const killed = exit?.natural === true && exit.signal === "SIGKILL";
      return error.class === "exited"
        ? new RolloutFailure("crash", `${error.message}: ${cause}`, { cause: error, killed })
        : new RolloutFailure("readiness", error.message, { cause: error });
    }
    if (error instanceof NotWarm) {
      return new RolloutFailure("transient", error.message, { cause: error });
    }
    const message = messageOf(error);
    return new RolloutFailure("transient", `${version}: ${message}`, { cause: error });
  }
}

/** `work`, or RolloutFailure of class crash when the process ends first. */
async function orEnded<T>(work: Promise<T>, exited: Promise<unknown> | undefined): Promise<T> {
  if (exited === undefined) return await work;
  let over = false;
  const ended = exited.then((): Promise<T> => {
    if (over) return new Promise(() => {});
    return Promise.reject(new RolloutFailure("crash", "it ended while it warmed up"));
  });
  ended.catch(() => {});
  try {
    return await Promise.race([work, ended]);
  } finally {
    over = true;
    work.catch(() => {});
  }
}
