/**
 * Who serves a version, and every change of that.
 *
 * Each change happens within one turn: what takes over is reachable before what leaves is retired.
 * After a switch the old generation stays warm while the new one is on probation; a canary shares
 * the requests until it is promoted or sent away. What leaves is drained in the background.
 */

import type { Lease } from "../proxy/target.ts";
import { CanaryShare } from "./canary.ts";
import type { ServiceContext } from "./context.ts";
import { Drain } from "./drain.ts";
import type { FailureClass } from "./failure.ts";
import type { Generation } from "./generation.ts";
import { Monitor } from "./monitor.ts";
import { Patience } from "./patience.ts";
import { Probation } from "./probation.ts";
import type { ProbeResult } from "./readiness.ts";

/** What the version's worker wants to hear, in the turn in which it happens. */
export interface ServingListener {
  /** The serving child ended without having been asked, and nothing took its place. */
  crashed(generation: Generation, cause: string): void;
  /**
   * A build on probation or trial did not hold. `replaced`: something else has its traffic already;
   * else it still has it, or nothing has.
   */
  failed(sha256: string, failureClass: FailureClass, cause: string, replaced: boolean): void;
  /** The serving child lives, but did not answer as it must for longer than is allowed. */
  unwell(generation: Generation, cause: string): void;
  /** A build held for its whole probation. */
  proven(generation: Generation): void;
  /** Something is worth looking at. */
  changed(): void;
}

interface Trial {
  readonly generation: Generation;
  readonly share: CanaryShare;
  readonly cancelTimer: () => void;
  failedProbes: number;
}

export class Serving {
  readonly #version: string;
  readonly #context: ServiceContext;
  readonly #listener: ServingListener;
  readonly #monitors = new Map<Generation, Monitor>();
  readonly #patience = new WeakMap<Generation, Patience>();
  #current: Generation | undefined;
  #trial: Trial | undefined;
  #probation: Probation | undefined;
  #hasServed = false;

  constructor(context: ServiceContext, version: string, listener: ServingListener) {
    this.#context = context;
    this.#version = version;
    this.#listener = listener;
  }

  /** True once anything has served. */
  get hasServed(): boolean {
    return this.#hasServed;
  }

  /** The generation that has the traffic, or most of it. */
  get current(): Generation | undefined {
    return this.#current;
  }

  get canary(): Generation | undefined {
    return this.#trial?.generation;
  }

  /** The one before, while the current one is on probation. */
  get warm(): Generation | undefined {
    return this.#probation?.old;
  }

  /** Takes a lease for one request on whichever generation is its own; undefined if none serves. */
  claim(requestId: string, header: (name: string) => string | undefined): Lease | undefined {
    const nowMs = this.#context.runtime.clock.monotonic();
    for (const generation of this.#choices(header)) {
      const lease = generation.target?.claim(requestId, nowMs);
      if (lease !== undefined) return lease;
    }
    return undefined;
  }

  #choices(header: (name: string) => string | undefined): Generation[] {
    const canary = this.#trial?.generation;
    const current = this.#current;
    if (canary === undefined) return current === undefined ? [] : [current];
    if (current === undefined) return [canary];
    return this.#trial?.share.takes(header) === true ? [canary, current] : [current];
  }

  // ------------------------------------------------------------------------------ switching

  /** All traffic to a generation that is ready; `how` is start, restart, swap or promote. */
  switchTo(generation: Generation, how: string): void {
    const { config, memory, holds, reports } = this.#context;
    const old = this.#current;
    const { sha256 } = generation.build;
    generation.move("running", how);
    generation.role = "current";
    this.#current = generation;
    this.#hasServed = true;
    this.#publish(generation);
    old?.withdraw();
    this.#closeProbation("superseded");
    const isChange = old !== undefined && old.build.sha256 !== sha256;
    const warm = isChange && config.bakeMs > 0 ? old : undefined;
    if (warm !== undefined) warm.role = "warm";
    else if (old !== undefined) this.#leave(old, how === "swap" ? "replaced" : how);
    this.#watch(generation);
    this.#probation = this.#probationOf(generation, warm);
    this.#context.background(memory.update(this.#version, { serving: sha256 }));
    reports.switched(this.#version, how, {
      generation: generation.number,
      sha256,
      from: old?.number,
    });
    holds.release(this.#version);
    this.#context.changed(generation);
  }

  #switchBack(old: Generation, cause: string): void {
    const { memory, holds, reports } = this.#context;
    const failed = this.#current;
    old.role = "current";
    this.#current = old;
    this.#publish(old);
    failed?.withdraw();
    this.#context.background(memory.update(this.#version, { serving: old.build.sha256 }));
    reports.switched(this.#version, "switch_back", {
      generation: old.number,
      sha256: old.build.sha256,
      from: failed?.number,
      cause,
    });
    holds.release(this.#version);
    if (failed !== undefined) this.#leave(failed, `switched back: ${cause}`);
    this.#context.changed(old);
  }

  /** Takes everything that serves out of the way: gone for clients in this turn, drained behind. */
  clear(cause: string): void {
    this.#closeProbation(cause);
    this.dropCanary(cause);
    const current = this.#current;
    this.#current = undefined;
    if (current !== undefined) this.#leave(current, cause);
  }

  /** Takes the routes away and nothing else: the shutdown sees to the drains. */
  withdrawAll(): void {
    const gone = [this.#current, this.#trial?.generation];
    this.#current = undefined;
    this.#trial = undefined;
    this.#context.holds.dismiss(this.#version);
    for (const generation of gone) if (generation !== undefined) this.#context.changed(generation);
  }

  /** No verdict and no promotion happens by itself any more. */
  freeze(): void {
    this.#closeProbation("shutdown");
    this.#trial?.cancelTimer();
  }

  #publish(generation: Generation): void {
    const target = generation.publish(this.#context.runtime.clock.monotonic());
    target.onConnectFailure(() => this.#connectFailed(generation));
  }

  /** Sends a generation on its way out: drained, stopped, reaped, in the background. */
  #leave(generation: Generation, cause: string): void {
    generation.role = "leaving";
    generation.withdraw();
    // What a child that leaves says about its readiness is of no use to anybody.
    this.#unwatch(generation);
    this.#context.changed(generation);
    if (generation.phase !== "stopped") this.drain(generation, cause);
  }

  /** The generation's drain, begun by the first call, reported when it is over. */
  drain(generation: Generation, cause: string): Drain {
    if (generation.drain !== undefined) return generation.drain;
    const { config, runtime, reports, stopGraceMs } = this.#context;
    const options = {
      drainPath: config.drainPath,
      drainStatusPath: config.drainStatusPath,
      timeoutMs: config.drainTimeoutMs,
      pollMs: config.drainPollMs,
      cushionMs: config.drainCushionMs,
      tunnelTimeoutMs: config.drainTunnelMs,
      graceMs: stopGraceMs,
    };
    const drain = new Drain(
      runtime,
      generation,
      options,
      reports.log,
      cause,
      (from, to, event) =>
        reports.tell("debug", "drain_moved", this.#version, {
          generation: generation.number,
          from,
          to,
          cause: event,
        }),
    );
    generation.drain = drain;
    this.#context.background(drain.run().then((report) => reports.drained(report)));
    return drain;
  }

  // ------------------------------------------------------------------------------ probation

  #probationOf(generation: Generation, old: Generation | undefined): Probation {
    const { config, runtime } = this.#context;
    return new Probation(generation, old, {
      clock: runtime.clock,
      bakeMs: config.bakeMs,
      probeFailures: config.bakeProbeFailures,
      connectErrors: config.bakeConnectErrors,
      onPassed: () => this.#passed(generation),
      onFailed: (cause) => this.#probationFailed(generation, cause),
    });
  }

  #passed(generation: Generation): void {
    const old = this.#probation?.old;
    this.#probation = undefined;
    if (this.#current !== generation) return;
    this.#listener.proven(generation);
    if (old !== undefined) this.#leave(old, "replaced");
    this.#listener.changed();
  }

  /** The new generation did not hold: traffic goes back in this turn, if there is where to. */
  #probationFailed(generation: Generation, cause: string): void {
    const old = this.#probation?.old;
    this.#probation = undefined;
    if (this.#current !== generation) return;
    const { sha256 } = generation.build;
    const failureClass = generation.alive ? "readiness" : "crash";
    const isWarm = old?.alive === true;
    if (isWarm) this.#switchBack(old, cause);
    this.#listener.failed(sha256, failureClass, cause, isWarm);
    this.#listener.changed();
  }

  #closeProbation(cause: string): void {
    const probation = this.#probation;
    this.#probation = undefined;
    if (probation?.close() === true && probation.old !== undefined) {
      this.#leave(probation.old, cause);
    }
  }

  // --------------------------------------------------------------------------------- canary

  /** A part of the traffic to a generation that is ready; the rest stays where it is. */
  startCanary(generation: Generation): void {
    const { config, runtime, reports, holds } = this.#context;
    this.dropCanary("superseded");
    generation.move("running", "canary");
    generation.role = "canary";
    this.#publish(generation);
    this.#trial = {
      generation,
      share: new CanaryShare({ percent: config.canaryPercent, header: config.canaryHeader }),
      cancelTimer: config.canaryMs > 0
        ? runtime.clock.after(config.canaryMs, () => this.promote())
        : () => {},
      failedProbes: 0,
    };
    this.#watch(generation);
    reports.tell("info", "canary_started", this.#version, {
      generation: generation.number,
      sha256: generation.build.sha256,
      percent: config.canaryPercent,
    });
    holds.release(this.#version);
    this.#context.changed(generation);
  }

  /** All traffic to the canary; false if there is none. */
  promote(): boolean {
    const trial = this.#trial;
    if (trial === undefined || !trial.generation.alive) return false;
    trial.cancelTimer();
    this.#trial = undefined;
    this.switchTo(trial.generation, "promote");
    return true;
  }

  /** Sends the canary away; false if there is none. */
  dropCanary(cause: string): boolean {
    const trial = this.#trial;
    if (trial === undefined) return false;
    trial.cancelTimer();
    this.#trial = undefined;
    this.#leave(trial.generation, cause);
    return true;
  }

  #canaryFailed(failureClass: FailureClass, cause: string): void {
    const generation = this.#trial?.generation;
    if (generation === undefined) return;
    this.dropCanary(cause);
    this.#listener.failed(generation.build.sha256, failureClass, `canary: ${cause}`, true);
    this.#listener.changed();
  }

  // -------------------------------------------------------------------- what children do

  /** A process was reaped: what takes its place does so in this turn, then it is withdrawn. */
  ended(generation: Generation, cause: string): void {
    this.#unwatch(generation);
    if (this.#current === generation) this.#currentEnded(generation, cause);
    else if (this.#trial?.generation === generation) this.#canaryFailed("crash", cause);
    else if (this.#probation?.old === generation) {
      this.#probation.old = undefined;
      this.#context.reports.crashed(this.#version, {
        generation: generation.number,
        role: "warm",
        cause,
      });
    }
    generation.withdraw();
    this.#context.changed(generation);
  }

  #currentEnded(generation: Generation, cause: string): void {
    const { runtime, reports } = this.#context;
    const nowMs = runtime.clock.monotonic();
    const ranMs = Math.round(nowMs - (generation.publishedAtMs ?? nowMs));
    reports.crashed(this.#version, { generation: generation.number, ranMs, cause });
    if (this.#probation?.generation === generation) {
      this.#probation.fail(`the child ended: ${cause}`);
    }
    if (this.#current !== generation) return;
    this.#current = undefined;
    this.#listener.crashed(generation, cause);
  }

  /** A connection to the generation was refused, before anything of a request was sent. */
  #connectFailed(generation: Generation): void {
    generation.connectErrors += 1;
    const { connectErrors } = generation;
    if (this.#probation?.generation === generation) this.#probation.connectFailed();
    if (this.#trial?.generation !== generation) return;
    if (connectErrors < this.#context.config.bakeConnectErrors) return;
    this.#canaryFailed("crash", `${connectErrors} refused connections`);
  }

  #watch(generation: Generation): void {
    if (this.#monitors.has(generation)) return;
    const { config, runtime } = this.#context;
    const monitor = new Monitor(runtime, generation.probeTarget(config), {
      intervalMs: config.monitorIntervalMs,
      timeoutMs: config.monitorTimeoutMs,
      onResult: (ready, result) => this.#probed(generation, ready, result),
    });
    this.#monitors.set(generation, monitor);
    this.#patience.set(generation, new Patience(config));
  }

  #unwatch(generation: Generation): void {
    void this.#monitors.get(generation)?.stop();
    this.#monitors.delete(generation);
  }

  #probed(generation: Generation, ready: boolean, result: ProbeResult): void {
    const { config, reports, runtime } = this.#context;
    const was = generation.live?.ready;
    const detail = `${result.class}: ${result.detail}`;
    generation.live = { ready, atMs: runtime.clock.monotonic(), detail };
    if (was !== ready) {
      reports.tell(ready ? "info" : "warn", "live_readiness", this.#version, {
        generation: generation.number,
        ready,
        detail,
      });
    }
    const cause = this.#patience.get(generation)?.probed(result, generation.live.atMs);
    if (this.#probation?.generation === generation) this.#probation.probed(ready, detail);
    else if (cause !== undefined && this.#current === generation) {
      this.#listener.unwell(generation, `${cause} (${detail})`);
    }
    const trial = this.#trial;
    if (trial?.generation !== generation) return;
    trial.failedProbes = ready ? 0 : trial.failedProbes + 1;
    if (trial.failedProbes < config.bakeProbeFailures) return;
    this.#canaryFailed("readiness", `${trial.failedProbes} failed probes in a row (${detail})`);
  }
}
