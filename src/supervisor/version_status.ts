/** What is told of versions: the admin API's status, versiond's health array, and conditions. */

import type { Generation } from "./generation.ts";
import { healthLabel } from "./phase.ts";
import type { QuarantineEntry } from "./quarantine.ts";
import type { OperatorEntry } from "./state.ts";
import { versionNotes } from "./version_notes.ts";
import type { VersionWorker } from "./version_worker.ts";

/** One entry of `/healthz`, with versiond's names. */
export interface HealthEntry {
  readonly name: string;
  readonly port: number;
  readonly status: string;
  readonly sha256?: string;
  readonly binary_version?: string;
}

/** Serving and leaving generations, in versiond's form and order. */
export function healthEntries(generations: Iterable<Generation>): HealthEntry[] {
  const entries: HealthEntry[] = [];
  for (const generation of generations) {
    const { port, phase, build, role } = generation;
    if (port === undefined || phase === "stopped" || phase === "failed") continue;
    // A candidate that fails was never announced; versiond lists what serves or has served.
    if (role === "candidate" && phase !== "preparing" && phase !== "starting") continue;
    entries.push({
      name: generation.version,
      port,
      // One that is kept warm behind its successor takes no new requests.
      status: role === "warm" ? "draining" : healthLabel(phase),
      sha256: build.sha256,
      binary_version: build.buildId,
    });
  }
  return entries.sort((a, b) =>
    compare(a.name, b.name) || compare(a.status, b.status) || a.port - b.port
  );
}

export interface GenerationStatus {
  readonly generation: number;
  readonly role: string;
  readonly phase: string;
  /** When it entered the phase, ISO 8601, and why. */
  readonly since: string;
  readonly cause: string;
  readonly sha256: string;
  readonly buildId: string;
  readonly storageMode?: string;
  readonly pid?: number;
  readonly port?: number;
  readonly adminPort?: number;
  readonly peerPort?: number;
  readonly ready: boolean;
  readonly lastProbe?: string;
  readonly leases: number;
  readonly streams: number;
  readonly tunnels: number;
  readonly lastError?: string;
  readonly drain?: DrainStatus;
}

export interface DrainStatus {
  readonly phase: string;
  readonly cause: string;
  readonly startedAt: string;
  readonly deadline: string;
  readonly childInflight?: number;
  readonly cut: number;
}

function generationStatus(
  generation: Generation,
  nowMs: number,
  staleMs: number,
): GenerationStatus {
  const { build, process, port, adminPort, peerPort, lastError, drain, live } = generation;
  return {
    generation: generation.number,
    role: generation.role,
    phase: generation.phase,
    since: iso(generation.since),
    cause: generation.cause,
    sha256: build.sha256,
    buildId: build.buildId,
    ...(build.storageMode === "" ? {} : { storageMode: build.storageMode }),
    ...(process === undefined ? {} : { pid: process.pid }),
    ...(port === undefined ? {} : { port }),
    ...(adminPort === undefined ? {} : { adminPort }),
    ...(peerPort === undefined ? {} : { peerPort }),
    ready: generation.servesAt(nowMs, staleMs),
    ...(live === undefined ? {} : { lastProbe: live.detail }),
    leases: generation.leases,
    streams: generation.countLeases("stream"),
    tunnels: generation.countLeases("tunnel"),
    ...(lastError === undefined ? {} : { lastError }),
    ...(drain === undefined ? {} : {
      drain: {
        phase: drain.phase,
        cause: drain.cause,
        startedAt: iso(drain.startedAt),
        deadline: iso(drain.deadline),
        ...(drain.childInflight === undefined ? {} : { childInflight: drain.childInflight }),
        cut: drain.cutCount,
      },
    }),
  };
}

export interface VersionStatus {
  readonly name: string;
  readonly desired?: { readonly sha256: string; readonly url: string };
  readonly override?: string;
  /** What the worker is after, and why. */
  readonly goal: string;
  readonly serving: boolean;
  /** What an operator should know, in sentences, and what to do about it. */
  readonly notes: readonly string[];
  readonly generations: readonly GenerationStatus[];
  readonly rollout?: Readonly<Record<string, unknown>>;
  readonly backoffMs?: number;
  readonly quarantined: readonly Readonly<Record<string, unknown>>[];
  readonly operator: Readonly<Record<string, unknown>>;
  readonly installed: readonly string[];
  readonly lastError?: { readonly message: string; readonly at: string };
  readonly [field: string]: unknown;
}

export function versionStatus(
  worker: VersionWorker,
  parts: {
    readonly generations: readonly Generation[];
    readonly quarantined: readonly QuarantineEntry[];
    readonly operator: OperatorEntry;
    readonly nowMs: number;
    readonly staleMs: number;
  },
): VersionStatus {
  const { desired, rollout, lastError, backoffLeftMs } = worker;
  const goal = worker.goal();
  const { proven: _proven, generation: _generation, serving: _serving, ...operator } =
    parts.operator;
  return {
    name: worker.name,
    ...(desired === undefined ? {} : { desired: { sha256: desired.sha256, url: desired.url } }),
    ...(worker.overrideIdentity === undefined ? {} : { override: worker.overrideIdentity }),
    goal: goal.kind === "run" ? `${goal.reason} ${goal.sha256}` : goal.kind,
    serving: worker.current?.target !== undefined || worker.canary?.target !== undefined,
    notes: versionNotes({
      name: worker.name,
      desired,
      rollout,
      quarantined: parts.quarantined,
      operator: parts.operator,
      lastError,
      backoffLeftMs,
      servingSince: worker.current?.since,
    }),
    generations: parts.generations.map((one) => generationStatus(one, parts.nowMs, parts.staleMs)),
    ...(rollout === undefined ? {} : {
      rollout: {
        sha256: rollout.sha256,
        reason: rollout.reason,
        stage: rollout.stage,
        startedAt: iso(rollout.startedAt),
        ...(rollout.progress === undefined ? {} : { progress: rollout.progress }),
      },
    }),
    ...(backoffLeftMs > 0 ? { backoffMs: Math.round(backoffLeftMs) } : {}),
    quarantined: parts.quarantined.map(({ name: _name, at, retryAt, ...entry }) => ({
      ...entry,
      at: iso(at),
      ...(retryAt === undefined ? {} : { retryAt: iso(retryAt) }),
    })),
    operator,
    installed: worker.installed,
    ...(lastError === undefined
      ? {}
      : { lastError: { message: lastError.message, at: iso(lastError.at) } }),
  };
}

/** How a whole service stands. */
export interface Conditions {
  /** At least one version has a route. */
  readonly available: boolean;
  /** At least one version's child answered a live probe lately. */
  readonly serving: boolean;
  /** Something is being brought, or is on its way out. */
  readonly progressing: boolean;
  /** Exactly what is wanted runs. */
  readonly reconciled: boolean;
  /** The last report of the oracle was an error, or a wanted version does not run because it failed. */
  readonly degraded: boolean;
  /** Every wanted version was brought, or failed, once; stays true then (a latch). */
  readonly converged: boolean;
  readonly desired: number;
  readonly running: number;
  readonly error?: string;
}

export function conditionsOf(
  workers: Iterable<VersionWorker>,
  generations: Iterable<Generation>,
  options: {
    readonly nowMs: number;
    readonly staleMs: number;
    readonly error: string | undefined;
    readonly converged: boolean;
    /** False until the oracle was heard for the first time: nothing is wanted yet, and that is no end. */
    readonly heard: boolean;
  },
): Conditions {
  let desired = 0;
  let running = 0;
  let matching = 0;
  let settled = 0;
  let serving = false;
  let rollouts = 0;
  let failing = 0;
  for (const worker of workers) {
    if (worker.rollout !== undefined) rollouts += 1;
    if (!worker.known) continue;
    desired += 1;
    const { current } = worker;
    const goal = worker.goal();
    if (current?.target !== undefined) running += 1;
    if (current?.servesAt(options.nowMs, options.staleMs) === true) serving = true;
    const wanted = worker.overrideIdentity ?? worker.desired?.sha256;
    const serves = current?.alive === true ? current.build.sha256 : undefined;
    if (serves !== undefined && serves === wanted) matching += 1;
    else if (goal.kind !== "run" || goal.sha256 !== wanted || worker.backoffLeftMs > 0) {
      failing += 1;
    }
    const hasFailed = goal.kind === "nothing" || worker.backoffLeftMs > 0;
    if (hasFailed || (goal.kind === "run" && goal.sha256 === serves)) settled += 1;
  }
  let leaving = 0;
  for (const generation of generations) if (generation.role === "leaving") leaving += 1;
  const { error, heard } = options;
  const reconciled = heard && matching === desired && rollouts === 0 && error === undefined;
  return {
    available: running > 0,
    serving,
    progressing: rollouts > 0 || leaving > 0 || matching < desired,
    reconciled,
    degraded: error !== undefined || failing > 0,
    // A version that failed has had its chance: it must not keep the host from serving the others.
    converged: options.converged || (heard && settled === desired),
    desired,
    running,
    ...(error === undefined ? {} : { error }),
  };
}

function iso(ms: number): string {
  return new Date(ms).toISOString();
}

function compare(a: string, b: string): number {
  return a < b ? -1 : a > b ? 1 : 0;
}
