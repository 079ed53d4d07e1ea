/**
 * One process started under a version, from before it exists until it was reaped.
 *
 * Its phase is moved only here, by the table of phase.ts, and every move is reported with its cause.
 * A generation may be published more than once (traffic switched back to it while it was kept warm):
 * each time it gets a fresh target, and its leases are those of all its targets.
 */

import { type Lease, type LeaseKind, Target } from "../proxy/target.ts";
import type { Clock } from "../runtime/runtime.ts";
import type { Drain } from "./drain.ts";
import { askPhase, type Phase, phaseRank } from "./phase.ts";
import type { ProcessResult, SupervisedProcess } from "./process.ts";
import type { ProbeTarget } from "./readiness.ts";

/** What a generation runs: the build's identity and what is known of it before it starts. */
export interface Build {
  /** The archive's sha256, or `override:<sha256>` of a local file. */
  readonly sha256: string;
  readonly binary: string;
  /** Folder of the install. */
  readonly folder: string;
  readonly buildId: string;
  /** "" when unknown. */
  readonly storageMode: string;
  readonly adminApi: boolean;
  /** Extra environment that the preflight decided on. */
  readonly ha?: boolean;
}

/** What a generation is for at the moment; its phase says how far it has come. */
export type Role = "candidate" | "canary" | "current" | "warm" | "leaving";

export interface GenerationMove {
  readonly from: Phase;
  readonly to: Phase;
  readonly cause: string;
  /** Time spent in `from`. */
  readonly afterMs: number;
}

export interface GenerationOptions {
  readonly service: string;
  readonly version: string;
  readonly number: number;
  readonly build: Build;
  readonly clock: Clock;
  /** What the traffic to it speaks (default HTTP/1.1). */
  readonly protocol?: "http/1.1" | "h2c";
  /** Told of each move, also of a refused one (`refused` true), in order. */
  readonly onMove: (generation: Generation, move: GenerationMove, refused: boolean) => void;
}

export class Generation {
  readonly service: string;
  readonly version: string;
  readonly number: number;
  readonly build: Build;
  /** Milliseconds since 1970. */
  readonly createdAt: number;
  role: Role = "candidate";
  port: number | undefined;
  adminPort: number | undefined;
  /** Where it talks to the generations before and after it, if the command asks for such a port. */
  peerPort: number | undefined;
  process: SupervisedProcess | undefined;
  /** How the process ended. */
  exit: ProcessResult | undefined;
  /** Set once a drain was begun; its progress is part of the status. */
  drain: Drain | undefined;
  lastError: string | undefined;
  /** Why it ended before it served, if that was because somebody else had its port. */
  portClash: string | undefined;
  /** The last live probe: what it said and when (monotonic). */
  live: { readonly ready: boolean; readonly atMs: number; readonly detail: string } | undefined;
  /** When it was last published (monotonic). */
  publishedAtMs: number | undefined;
  /** Connections refused to it since it was published. */
  connectErrors = 0;
  /** True when the version itself was withdrawn: nothing may start beside it. */
  removed = false;
  /** Resolves when the generation is stopped: reaped, its ports free. */
  readonly ended: Promise<void>;
  readonly #options: GenerationOptions;
  readonly #targets = new Set<Target>();
  #phase: Phase = "preparing";
  #since: number;
  #sinceMs: number;
  #cause = "created";
  #target: Target | undefined;
  #resolveEnded: () => void = () => {};

  constructor(options: GenerationOptions) {
    this.#options = options;
    this.service = options.service;
    this.version = options.version;
    this.number = options.number;
    this.build = options.build;
    this.createdAt = options.clock.now();
    this.#since = this.createdAt;
    this.#sinceMs = options.clock.monotonic();
    this.ended = new Promise((resolve) => {
      this.#resolveEnded = resolve;
    });
  }

  /** `service/version#number`, for logs. */
  get label(): string {
    return `${this.service}/${this.version}#${this.number}`;
  }

  get phase(): Phase {
    return this.#phase;
  }

  /** When the phase was entered, milliseconds since 1970, and why. */
  get since(): number {
    return this.#since;
  }

  get cause(): string {
    return this.#cause;
  }

  /** Asks for a phase; false only if that was refused (which is reported). */
  move(to: Phase, cause: string): boolean {
    const from = this.#phase;
    const nowMs = this.#options.clock.monotonic();
    const move = { from, to, cause, afterMs: Math.round(nowMs - this.#sinceMs) };
    const answer = askPhase(from, to);
    if (answer === "satisfied") return true;
    if (answer === "refused") {
      this.#options.onMove(this, move, true);
      return false;
    }
    this.#phase = to;
    this.#since = this.#options.clock.now();
    this.#sinceMs = nowMs;
    this.#cause = cause;
    this.#options.onMove(this, move, false);
    if (to === "stopped") this.#resolveEnded();
    return true;
  }

  /** True while a process may still be started for it: nobody has asked it to go. */
  get mayStart(): boolean {
    const rank = phaseRank(this.#phase);
    return rank === undefined || rank < (phaseRank("retiring") as number);
  }

  /** True when it can take traffic: running, and its process has not been asked to end. */
  get alive(): boolean {
    return this.#phase === "running" && this.process?.state === "running";
  }

  /** The target that takes new leases, if it is published. */
  get target(): Target | undefined {
    return this.#target;
  }

  /** Makes a fresh target for new leases. The caller makes it reachable in the same turn. */
  publish(nowMs: number): Target {
    if (this.port === undefined) throw new Error(`${this.label} has no port`);
    this.withdraw();
    const target = new Target({
      service: this.service,
      version: this.version,
      generation: this.number,
      address: { kind: "tcp", host: "127.0.0.1", port: this.port },
      protocol: this.#options.protocol ?? "http/1.1",
    });
    target.onCut((lease, failure) => this.drain?.recordCut(lease, failure));
    this.#target = target;
    this.#targets.add(target);
    this.publishedAtMs = nowMs;
    this.connectErrors = 0;
    return target;
  }

  /** No new leases from now on; those that were taken go on. */
  withdraw(): void {
    const target = this.#target;
    if (target === undefined) return;
    this.#target = undefined;
    target.retire().then(() => this.#targets.delete(target));
  }

  /** Resolves when no lease is open on any of its targets; only of use once withdrawn. */
  async drained(): Promise<void> {
    while (this.#targets.size > 0) {
      const targets = [...this.#targets];
      await Promise.all(targets.map((target) => target.retire()));
      for (const target of targets) this.#targets.delete(target);
    }
  }

  /** Open leases over all its targets. */
  get leases(): number {
    let leases = 0;
    for (const target of this.#targets) leases += target.leases;
    return leases;
  }

  countLeases(kind: LeaseKind): number {
    let leases = 0;
    for (const target of this.#targets) leases += target.count(kind);
    return leases;
  }

  openLeases(): Lease[] {
    return [...this.#targets].flatMap((target) => target.open());
  }

  /** A live probe that is good and fresh. */
  servesAt(nowMs: number, staleMs: number): boolean {
    return this.alive && this.live?.ready === true && nowMs - this.live.atMs <= staleMs;
  }

  /** Where it is probed. Only once its ports are known. */
  probeTarget(paths: { readonly readyPath: string; readonly healthPath: string }): ProbeTarget {
    if (this.port === undefined) throw new Error(`${this.label} has no port`);
    const target = { port: this.port, readyPath: paths.readyPath, healthPath: paths.healthPath };
    return this.adminPort === undefined ? target : { ...target, adminPort: this.adminPort };
  }

  /** The port for lifecycle calls: the private one if it has one. */
  get lifecyclePort(): number | undefined {
    return this.adminPort ?? this.port;
  }
}
