/**
 * One versions service as a whole: the oracle's word becomes workers, each worker its generations;
 * and the way down again.
 *
 * `createSupervisor` reads what is on disk and finds what an earlier Baton left; `start` follows the
 * oracle; `quiesce`, `drain`, `stop` and `kill` are the steps of the host's shutdown.
 */

import type { VersionsConfig } from "../config/versions.ts";
import { overlapRule } from "../config/versions.ts";
import { BatonError, messageOf } from "../errors.ts";
import type { Log } from "../observe/log.ts";
import type { Metrics } from "../observe/metrics.ts";
import type { Exchange, Forward } from "../proxy/exchange.ts";
import type { Service } from "../proxy/routes.ts";
import type { Target } from "../proxy/target.ts";
import type { Runtime } from "../runtime/runtime.ts";
import { Builds } from "./builds.ts";
import { ChildLogs } from "./child_log.ts";
import { Children } from "./children.ts";
import type { ServiceContext } from "./context.ts";
import { type SupervisorFolders, supervisorFolders } from "./folders.ts";
import type { Generation } from "./generation.ts";
import { Generations } from "./generations.ts";
import { Holds } from "./hold.ts";
import { Installs } from "./installs.ts";
import { Launcher } from "./launcher.ts";
import { Memory } from "./memory.ts";
import { operate, type OperatorOptions, type OperatorVerb } from "./operators.ts";
import { createOracle, type Oracle } from "./oracle.ts";
import { findOrphans, type Orphan, Orphans } from "./orphans.ts";
import { Overrides } from "./overrides.ts";
import { osPortCheck, PortPool } from "./ports.ts";
import { throughProxies } from "./proxies.ts";
import { Quarantine } from "./quarantine.ts";
import { type EventSink, Reports } from "./reports.ts";
import { Slots } from "./slots.ts";
import { stopGraceMs } from "./stop_grace.ts";
import { ServiceStatus } from "./service_status.ts";
import type { Conditions, HealthEntry, VersionStatus } from "./version_status.ts";
import { VersionsService } from "./versions_service.ts";
import type { VersionWorker } from "./version_worker.ts";
import { Wanted } from "./wanted.ts";
import { WayDown } from "./way_down.ts";

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
  await children.keepOnly(orphans);
  const generations = new Generations();
  for (const record of left) generations.startAfter(record.name, record.generation);
  for (const orphan of orphans) generations.startAfter(orphan.version, orphan.generation);
  return new Supervisor(options, {
    log,
    folders,
    children,
    generations,
    quarantine,
    memory,
    orphans,
    reports: new Reports({ service, log, events, metrics }),
    oracle: createOracle({
      runtime: { ...runtime, http: throughProxies(runtime) },
      log,
      config,
      catalogFile: `${folders.state}/catalog.json`,
    }),
  });
}

interface Parts {
  readonly log: Log;
  readonly folders: SupervisorFolders;
  readonly children: Children;
  readonly generations: Generations;
  readonly quarantine: Quarantine;
  readonly memory: Memory;
  readonly orphans: readonly Orphan[];
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
  readonly #wanted: Wanted;
  readonly #wayDown: WayDown;
  readonly #status: ServiceStatus;
  readonly #orphans: Orphans;
  readonly #targetListeners = new Set<() => void>();
  readonly #background = new Set<Promise<unknown>>();
  #collecting: Promise<unknown> | undefined;

  constructor(options: SupervisorOptions, parts: Parts) {
    const { runtime, config, service } = options;
    const { log, folders } = parts;
    this.name = service;
    this.mounts = options.mounts;
    this.folders = folders;
    this.#options = options;
    this.#parts = parts;
    this.logs = new ChildLogs({ runtime, log, folder: folders.logs, config });
    const outward = { ...runtime, http: throughProxies(runtime) };
    this.#installs = new Installs({ runtime: outward, log, binDir: folders.bin, config });
    const overrides = new Overrides({ runtime, binDir: folders.bin, config });
    const grace = stopGraceMs(config);
    const mayStart = (): boolean => !this.#wayDown.begun;
    this.#orphans = new Orphans(runtime, parts.reports, parts.children, parts.orphans, grace);
    this.#context = {
      service,
      runtime,
      config,
      reports: parts.reports,
      generations: parts.generations,
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
        generations: parts.generations,
        dataDir: folders.data,
        output: (generation) => this.logs.open(generation.version, generation.number),
        mayStart,
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
      mayStart,
      orphansOf: (version) => this.#orphansOf(version),
      background: (work) => this.#inBackground(work),
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
      unheardHoldMs: () => this.#wanted.pending ? config.holdTimeoutMs : 0,
      mayHold: mayStart,
    });
    this.#wanted = new Wanted(this.#context, this.#workers);
    this.#wayDown = new WayDown(this.#context, this.#workers, parts.oracle);
    this.#status = new ServiceStatus(this.#context, this.#workers, this.#wanted);
    parts.reports.collect(() => this.#status.gauges());
  }

  // --------------------------------------------------------------------------- the way up

  /** Ends orphans and follows the oracle; resolves after the first report. */
  async start(): Promise<void> {
    void this.#orphans.endAll((version) => this.#workers.get(version)?.wake());
    await this.#parts.oracle.start((report) => {
      if (this.#wayDown.begun) return;
      this.#wanted.report(report);
      this.#collectGarbage();
      this.#inBackground(this.#parts.memory.saveAgain());
      this.#inBackground(this.#parts.quarantine.saveAgain());
    });
  }

  /** Polls the oracle now; resolves after its report. */
  pollNow(): Promise<void> {
    return this.#parts.oracle.pollNow();
  }

  /** Orphans that share the data folder with what would start; none where builds may overlap. */
  #orphansOf(version: string): readonly Orphan[] {
    return overlapRule(this.#options.config) === "always" ? [] : this.#orphans.of(version);
  }

  #collectGarbage(): void {
    if (this.#collecting !== undefined) return;
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

  startHoldMs(exchange: Pick<Exchange, "path">, mount: string): number {
    return this.#traffic.startHoldMs(exchange, mount);
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

  /** Versions of which every request goes to one target now, and that target. */
  direct(): (readonly [version: string, target: Target])[] {
    return [...this.#workers.values()].flatMap((worker) => {
      const target = worker.known ? worker.direct : undefined;
      return target === undefined ? [] : [[worker.name, target] as const];
    });
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
    return this.#status.healthz();
  }

  /** Every version, and every one that is gone but still has a generation. */
  list(): VersionStatus[] {
    return this.#status.list();
  }

  conditions(): Conditions {
    return this.#status.conditions();
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
    try {
      return await operate(this.#context, worker, verb, options);
    } finally {
      // A pause changes where requests go without any target having changed.
      this.#tellTargets();
    }
  }

  #nowMs(): number {
    return this.#options.runtime.clock.monotonic();
  }

  // --------------------------------------------------------------------------- the way down

  /** Nothing is started, switched or restarted from this turn on; resolves when it has unwound. */
  quiesce(): Promise<void> {
    return this.#wayDown.quiesce();
  }

  /** Takes all routes away and drains every child; resolves when all are idle. */
  drain(deadlineMs: number): Promise<void> {
    return this.#wayDown.drain(deadlineMs);
  }

  /** Exchanges that were cut on the way down. */
  get cut(): number {
    return this.#wayDown.cut;
  }

  /** SIGTERM for all; resolves when all are reaped. SIGKILL at the deadline (monotonic). */
  async stop(deadlineMs: number): Promise<void> {
    await this.#wayDown.stop(deadlineMs);
    await this.#close();
  }

  /** SIGKILL for all; resolves when all are reaped. */
  async kill(): Promise<void> {
    await this.#wayDown.kill();
    await this.#close();
  }

  /** The whole way down in one call, for where no host does it. */
  async shutdown(options: { budgetMs: number; force?: AbortSignal }): Promise<void> {
    await this.#wayDown.whole(options);
    await this.#close();
  }

  #inBackground(work: Promise<unknown>): void {
    const settled = work.catch((error: unknown) =>
      this.#parts.log.error("background_failed", { error: messageOf(error) })
    );
    this.#background.add(settled);
    settled.then(() => this.#background.delete(settled));
  }

  async #close(): Promise<void> {
    this.#orphans.hurry();
    await this.#collecting;
    while (this.#background.size > 0) await Promise.all(this.#background);
    await this.logs.close();
    // Last: from here on the folder may be another Baton's.
    await this.#parts.children.close();
  }
}
