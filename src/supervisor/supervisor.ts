/**
 * One versions service as a whole: the oracle's word becomes workers, each worker its generations;
 * and the way down again.
 *
 * `createSupervisor` reads what is on disk and finds what an earlier Baton left; `start` follows the
 * oracle; `quiesce`, `drain`, `stop` and `kill` are the steps of the host's shutdown.
 */

import type { VersionsConfig } from "../config/versions.ts";
import { isDevshardBinary } from "../config/versions.ts";
import { BatonError } from "../errors.ts";
import type { Log } from "../observe/log.ts";
import type { Metrics } from "../observe/metrics.ts";
import type { Exchange, Forward } from "../proxy/exchange.ts";
import type { Service } from "../proxy/routes.ts";
import type { Target } from "../proxy/target.ts";
import type { Runtime } from "../runtime/runtime.ts";
import { Builds } from "./builds.ts";
import type { DesiredVersion } from "./catalog.ts";
import { ChildLogs } from "./child_log.ts";
import { Children } from "./children.ts";
import type { ServiceContext } from "./context.ts";
import { messageOf } from "./failure.ts";
import { type SupervisorFolders, supervisorFolders } from "./folders.ts";
import type { Generation } from "./generation.ts";
import { Generations } from "./generations.ts";
import { Holds } from "./hold.ts";
import { Installs } from "./installs.ts";
import { Launcher } from "./launcher.ts";
import { Memory } from "./memory.ts";
import { operate, type OperatorOptions, type OperatorVerb } from "./operators.ts";
import { createOracle, type Oracle, type OracleReport } from "./oracle.ts";
import { endOrphan, findOrphans, type Orphan } from "./orphans.ts";
import { Overrides } from "./overrides.ts";
import { osPortCheck, PortPool } from "./ports.ts";
import { Quarantine } from "./quarantine.ts";
import { type EventSink, Reports } from "./reports.ts";
import { Slots } from "./slots.ts";
import { stopGraceMs } from "./stop_grace.ts";
import {
  type Conditions,
  conditionsOf,
  healthEntries,
  type HealthEntry,
  type VersionStatus,
  versionStatus,
} from "./version_status.ts";
import { VersionsService } from "./versions_service.ts";
import { VersionWorker } from "./version_worker.ts";
import { settledWithin } from "./wait.ts";

export interface SupervisorOptions {
  readonly runtime: Runtime;
  readonly log: Log;
  readonly metrics: Metrics;
  readonly events: EventSink;
  /** The service's name in the configuration. */
  readonly service: string;
  readonly mounts: readonly string[];
  readonly config: VersionsConfig;
  /** Of the whole Baton; this service keeps its things in `<stateDir>/<service>`. */
  readonly stateDir: string;
  /** Ports that no child may get: Baton's own listeners. */
  readonly reservedPorts?: readonly number[];
}

/** Makes the service; nothing runs before `start`. Throws StateInUse, InsecureAddress. */
export async function createSupervisor(options: SupervisorOptions): Promise<Supervisor> {
  const { runtime, config, service, events, metrics } = options;
  const log = options.log.with({ service });
  const folders = supervisorFolders(options);
  const { children, left } = await Children.open(runtime, log, folders.state);
  const [quarantine, memory, orphans] = await Promise.all([
    Quarantine.open({
      files: runtime.files,
      clock: runtime.clock,
      random: runtime.random,
      log,
      path: `${folders.state}/quarantine.json`,
      retryBackoffMs: config.retryBackoffMs,
      retryBackoffMaxMs: config.retryBackoffMaxMs,
    }),
    Memory.open(runtime.files, log, folders.state),
    findOrphans(runtime, log, children.owner, left),
  ]);
  return new Supervisor(options, {
    log,
    folders,
    children,
    quarantine,
    memory,
    orphans,
    left: left.map((record) => ({ version: record.name, generation: record.generation })),
    reports: new Reports({ service, log, events, metrics }),
    oracle: createOracle({
      runtime,
      log,
      config,
      catalogFile: `${folders.state}/catalog.json`,
    }),
  });
}

const KILL_AGAIN_MS = 50;

interface Parts {
  readonly log: Log;
  readonly folders: SupervisorFolders;
  readonly children: Children;
  readonly quarantine: Quarantine;
  readonly memory: Memory;
  readonly orphans: readonly Orphan[];
  readonly left: readonly { version: string; generation: number }[];
  readonly reports: Reports;
  readonly oracle: Oracle;
}

export class Supervisor implements Service {
  readonly name: string;
  readonly mounts: readonly string[];
  readonly logs: ChildLogs;
  readonly folders: SupervisorFolders;
  readonly #options: SupervisorOptions;
  readonly #parts: Parts;
  readonly #context: ServiceContext;
  readonly #traffic: VersionsService;
  readonly #installs: Installs;
  readonly #workers = new Map<string, VersionWorker>();
  readonly #overrideIdentities = new Map<string, string>();
  readonly #orphans: Set<Orphan>;
  readonly #targetListeners = new Set<() => void>();
  #listed: ReadonlyMap<string, DesiredVersion> | undefined;
  #oracleError: string | undefined;
  #converged = false;
  #goingDown = false;
  #collecting: Promise<unknown> | undefined;

  constructor(options: SupervisorOptions, parts: Parts) {
    const { runtime, config, service } = options;
    const { log, folders } = parts;
    this.name = service;
    this.mounts = options.mounts;
    this.folders = folders;
    this.#options = options;
    this.#parts = parts;
    this.#orphans = new Set(parts.orphans);
    this.logs = new ChildLogs({ runtime, log, folder: folders.logs, config });
    this.#installs = new Installs({ runtime, log, binDir: folders.bin, config });
    const overrides = new Overrides({ runtime, binDir: folders.bin, config });
    const grace = stopGraceMs(config);
    this.#context = {
      service,
      runtime,
      config,
      reports: parts.reports,
      generations: new Generations(),
      launcher: new Launcher({
        runtime,
        log,
        config,
        ports: new PortPool({
          base: config.basePort,
          last: config.lastPort,
          reserved: options.reservedPorts ?? [],
          isFree: osPortCheck(runtime.net),
        }),
        children: parts.children,
        dataDir: folders.data,
        output: (generation) => this.logs.open(generation.version, generation.number),
        mayStart: () => !this.#goingDown,
        stopGraceMs: grace,
      }),
      builds: new Builds(runtime, config, this.#installs, overrides),
      starts: new Slots(config.parallelStarts),
      holds: new Holds({
        clock: runtime.clock,
        maxRequests: config.holdMaxRequests,
        maxBytes: config.holdMaxBytes,
      }),
      quarantine: parts.quarantine,
      memory: parts.memory,
      stopGraceMs: grace,
      mayStart: () => !this.#goingDown,
      orphansOf: (version) => this.#orphansOf(version),
      changed: () => this.#tellTargets(),
    };
    this.#traffic = new VersionsService({
      name: service,
      mounts: options.mounts,
      drainPaths: [config.drainPath, config.drainStatusPath],
      clock: runtime.clock,
      holds: this.#context.holds,
      reports: parts.reports,
      worker: (version) => this.#workers.get(version),
      mayHold: () => !this.#goingDown,
    });
    parts.reports.collect(() => this.#gauges());
  }

  // --------------------------------------------------------------------------- the way up

  /** Ends orphans and follows the oracle; resolves after the first report. */
  async start(): Promise<void> {
    const { reports, children, left, oracle } = this.#parts;
    if (this.#orphans.size > 0) reports.orphans(this.#orphans.size);
    // The records of those that are gone are of no more use.
    for (const { version, generation } of left) {
      if (![...this.#orphans].some((one) => isOrphan(one, version, generation))) {
        await children.remove(version, generation);
      }
    }
    for (const orphan of this.#orphans) void this.#endOrphan(orphan);
    await oracle.start((report) => this.#onReport(report));
  }

  /** Polls the oracle now; resolves after its report. */
  pollNow(): Promise<void> {
    return this.#parts.oracle.pollNow();
  }

  async #endOrphan(orphan: Orphan): Promise<void> {
    const { runtime } = this.#options;
    const { log, reports, children } = this.#parts;
    reports.tell("warn", "orphan_found", orphan.version, { ...orphan });
    const ended = await endOrphan(runtime, log, orphan, this.#context.stopGraceMs);
    reports.tell(ended ? "info" : "error", "orphan_ended", orphan.version, { ...orphan, ended });
    this.#orphans.delete(orphan);
    await children.remove(orphan.version, orphan.generation);
    this.#workers.get(orphan.version)?.wake();
  }

  /** Orphans that share the data folder with what would start; none where builds may overlap. */
  #orphansOf(version: string): Orphan[] {
    const { config } = this.#options;
    const rule = config.overlap ?? (isDevshardBinary(config.binaryName) ? "ask" : "always");
    if (rule === "always") return [];
    return [...this.#orphans].filter((orphan) => orphan.version === version);
  }

  #onReport(report: OracleReport): void {
    if (this.#goingDown) return;
    const { reports } = this.#parts;
    reports.polled(report.kind === "catalog");
    if (report.kind === "error") {
      if (this.#oracleError !== report.error.message) {
        this.#parts.reports.tell("warn", "oracle_failed", "", { error: report.error.message });
      }
      this.#oracleError = report.error.message;
      this.#applyOverrides();
      return;
    }
    const { versions } = report;
    // Known from the list on disk counts as running: its children may be about to start.
    const some = this.#context.generations.size > 0 || (this.#listed?.size ?? 0) > 0;
    if (versions.length === 0 && some) {
      if (!this.#options.config.allowEmpty && report.withdrawn.length === 0) {
        const error = "the oracle lists nothing; ignored while children run (allowEmpty)";
        if (this.#oracleError !== error) reports.tell("warn", "oracle_empty", "", { error });
        this.#oracleError = error;
        return;
      }
    }
    this.#oracleError = undefined;
    this.#listed = new Map(versions.map((version) => [version.name, version]));
    this.#apply();
    this.#applyOverrides();
    this.#collectGarbage();
  }

  /** Tells each worker what is wanted of it, all in one turn. */
  #apply(): void {
    const { overrides } = this.#context.builds;
    const listed = this.#listed ?? new Map<string, DesiredVersion>();
    const forced = overrides.forced([...listed.values()]);
    for (const name of new Set([...listed.keys(), ...forced, ...this.#workers.keys()])) {
      const identity = this.#overrideIdentities.get(name);
      const wanted = listed.has(name) || forced.includes(name);
      // Until its override was looked at, the published build must not start in its place.
      if (wanted && overrides.sourceFor(name) !== undefined && identity === undefined) continue;
      let worker = this.#workers.get(name);
      if (worker === undefined) {
        worker = new VersionWorker(this.#context, name);
        this.#workers.set(name, worker);
      }
      worker.setDesired(listed.get(name), wanted ? identity : undefined);
    }
    this.#forgetIdle();
  }

  #applyOverrides(): void {
    const { overrides } = this.#context.builds;
    const names = Object.keys(this.#options.config.overrides);
    if (names.length === 0) return;
    void (async () => {
      for (const name of names) {
        try {
          this.#overrideIdentities.set(name, await overrides.identity(name));
        } catch (error) {
          this.#parts.reports.tell("error", "override_unreadable", name, {
            error: messageOf(error),
          });
        }
      }
      if (!this.#goingDown) this.#apply();
    })();
  }

  #forgetIdle(): void {
    for (const [name, worker] of this.#workers) if (worker.idle) this.#workers.delete(name);
  }

  #collectGarbage(): void {
    if (this.#collecting !== undefined || this.#goingDown) return;
    const { log, memory } = this.#parts;
    const keep = [...this.#context.generations].map((generation) => ({
      name: generation.version,
      sha256: generation.build.sha256,
    }));
    for (const [name, worker] of this.#workers) {
      const { pinned, rolledBackTo, proven } = memory.of(name);
      const wanted = [worker.desired?.sha256, worker.rollout?.sha256, pinned, rolledBackTo];
      for (const sha256 of [...wanted, proven?.[0]]) {
        if (sha256 !== undefined) keep.push({ name, sha256 });
      }
    }
    this.#collecting = this.#installs.collectGarbage(keep)
      .catch((error) => log.warn("install_gc_failed", { error: messageOf(error) }))
      .finally(() => {
        this.#collecting = undefined;
      });
  }

  // ------------------------------------------------------------------------------ traffic

  handle(exchange: Exchange, forward: Forward, mount: string): void | Promise<void> {
    return this.#traffic.handle(exchange, forward, mount);
  }

  /** True when the version's current generation takes requests and answered a live probe lately. */
  serves(version: string): boolean {
    const current = this.#workers.get(version)?.current;
    return current?.target !== undefined &&
      current.servesAt(this.#nowMs(), this.#options.config.monitorStaleMs);
  }

  /** True once at least one version has a route: from then on the host may call itself serving. */
  get available(): boolean {
    return [...this.#workers.values()].some((worker) => worker.current?.target !== undefined);
  }

  /** The targets that take new requests now: one a version, two with a canary. */
  targets(): Target[] {
    return [...this.#workers.values()].flatMap((worker) =>
      [worker.current, worker.canary].flatMap((generation) => generation?.target ?? [])
    );
  }

  /** Called whenever `targets` may have changed; the returned function ends that. */
  onTargets(listener: () => void): () => void {
    this.#targetListeners.add(listener);
    return () => this.#targetListeners.delete(listener);
  }

  #tellTargets(): void {
    for (const listener of this.#targetListeners) {
      try {
        listener();
      } catch (error) {
        // A listener's trouble must not stop a switch half-way.
        this.#parts.log.error("target_listener_failed", { error: messageOf(error) });
      }
    }
  }

  // ------------------------------------------------------------------------------- status

  get service(): string {
    return this.name;
  }

  healthz(): readonly (HealthEntry & { readonly [field: string]: unknown })[] {
    return healthEntries(this.#context.generations).map((entry) => ({ ...entry }));
  }

  /** Every version, and every one that is gone but still has a generation. */
  list(): VersionStatus[] {
    this.#forgetIdle();
    return [...this.#workers.values()].map((worker) => this.#statusOf(worker));
  }

  #statusOf(worker: VersionWorker): VersionStatus {
    return versionStatus(worker, {
      generations: this.#context.generations.of(worker.name),
      quarantined: this.#context.quarantine.list(worker.name),
      operator: this.#context.memory.of(worker.name),
      nowMs: this.#nowMs(),
      staleMs: this.#options.config.monitorStaleMs,
    });
  }

  conditions(): Conditions {
    const conditions = conditionsOf(this.#workers.values(), this.#context.generations, {
      nowMs: this.#nowMs(),
      staleMs: this.#options.config.monitorStaleMs,
      error: this.#oracleError,
      converged: this.#converged,
      heard: this.#listed !== undefined,
    });
    this.#converged = conditions.converged;
    return conditions;
  }

  /** All generations, for the drain status: with leases, phase, deadline and what was cut. */
  generations(): Generation[] {
    return [...this.#context.generations];
  }

  /** An operator's call. Throws BatonError `unknown_version`, or `conflict` with the reason. */
  async control(
    name: string,
    verb: OperatorVerb,
    options: OperatorOptions = {},
  ): Promise<Record<string, unknown>> {
    const worker = this.#workers.get(name);
    if (worker === undefined) {
      throw new BatonError("unknown_version", `there is no version ${JSON.stringify(name)}`);
    }
    return await operate(this.#context, worker, verb, options);
  }

  #gauges() {
    const quarantined = new Map<string, number>();
    for (const entry of this.#context.quarantine.list()) {
      quarantined.set(entry.name, (quarantined.get(entry.name) ?? 0) + 1);
    }
    return {
      generations: [...this.#context.generations].map((one) => ({
        version: one.version,
        number: one.number,
        phase: one.phase,
        role: one.role,
        leases: {
          request: one.countLeases("request"),
          stream: one.countLeases("stream"),
          tunnel: one.countLeases("tunnel"),
        },
      })),
      quarantined,
      held: this.#context.holds.count,
    };
  }

  #nowMs(): number {
    return this.#options.runtime.clock.monotonic();
  }

  // --------------------------------------------------------------------------- the way down

  /** Nothing is started, switched or restarted from this turn on; resolves when it has unwound. */
  async quiesce(): Promise<void> {
    this.#goingDown = true;
    this.#parts.oracle.stop();
    for (const worker of this.#workers.values()) worker.stop();
    const unpublished = this.generations().filter((one) => one.role === "candidate");
    await Promise.all(unpublished.map((generation) => generation.ended));
  }

  /** Takes all routes away and drains every child; resolves when all are idle. */
  async drain(deadlineMs: number): Promise<void> {
    this.#goingDown = true;
    await Promise.all(this.#beginDrains(deadlineMs).map((drain) => drain.idle));
  }

  /** SIGTERM for all; resolves when all are reaped. SIGKILL at the deadline (monotonic). */
  async stop(deadlineMs: number): Promise<void> {
    this.#goingDown = true;
    this.#beginDrains(this.#nowMs());
    const { clock } = this.#options.runtime;
    const cancel = clock.after(
      Math.max(0, deadlineMs - this.#nowMs()),
      () => this.#killAll(),
    );
    await this.#allEnded();
    cancel();
    await this.#close();
  }

  /** SIGKILL for all; resolves when all are reaped. */
  async kill(): Promise<void> {
    void this.quiesce();
    // Again and again: one may just have been forked.
    while (this.#context.generations.size > 0) {
      this.#killAll();
      await settledWithin(this.#options.runtime.clock, this.#allEnded(), KILL_AGAIN_MS);
    }
    await this.#close();
  }

  /** The whole way down in one call, for where no host does it. */
  async shutdown(options: { budgetMs: number; force?: AbortSignal }): Promise<void> {
    const deadlineMs = this.#nowMs() + options.budgetMs;
    const force = new Promise<void>((resolve) => {
      options.force?.addEventListener("abort", () => resolve(), { once: true });
      if (options.force?.aborted) resolve();
    });
    const forced = force.then(() => this.kill());
    const orderly = async (): Promise<void> => {
      const quiet = this.quiesce();
      const drainUntilMs = Math.max(this.#nowMs(), deadlineMs - this.#context.stopGraceMs);
      await this.drain(drainUntilMs);
      await this.stop(deadlineMs);
      await quiet;
    };
    await Promise.race([orderly(), forced]);
    await this.#allEnded();
  }

  #beginDrains(deadlineMs: number) {
    const drains = [];
    for (const worker of this.#workers.values()) worker.withdrawAll();
    for (const generation of this.#context.generations) {
      // What was not published yet is stopped by its rollout, which was called off.
      if (generation.role === "candidate") continue;
      const worker = this.#workers.get(generation.version);
      const drain = generation.drain ?? worker?.drain(generation, "shutdown");
      if (drain === undefined) continue;
      // Without routes nothing new can come: a child without a drain status needs no cushion now.
      drain.shorten(deadlineMs, this.#context.stopGraceMs, true);
      drains.push(drain);
    }
    return drains;
  }

  #killAll(): void {
    for (const generation of this.#context.generations) {
      if (generation.drain === undefined) generation.process?.force();
      else generation.drain.force();
    }
  }

  async #allEnded(): Promise<void> {
    while (this.#context.generations.size > 0) {
      await Promise.all(this.generations().map((generation) => generation.ended));
    }
  }

  async #close(): Promise<void> {
    await this.#collecting;
    await this.#parts.children.flushed();
    await this.logs.close();
  }
}

function isOrphan(orphan: Orphan, version: string, generation: number): boolean {
  return orphan.version === version && orphan.generation === generation;
}
