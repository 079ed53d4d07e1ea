/** What a versions service says of itself: every version, the health array, conditions, gauges. */

import type { ServiceContext } from "./context.ts";
import type { Gauges } from "./reports.ts";
import {
  type Conditions,
  conditionsOf,
  healthEntries,
  type HealthEntry,
  type VersionStatus,
  versionStatus,
} from "./version_status.ts";
import type { VersionWorker } from "./version_worker.ts";
import type { Wanted } from "./wanted.ts";

export class ServiceStatus {
  readonly #context: ServiceContext;
  readonly #workers: ReadonlyMap<string, VersionWorker>;
  readonly #wanted: Wanted;
  #converged = false;

  constructor(
    context: ServiceContext,
    workers: ReadonlyMap<string, VersionWorker>,
    wanted: Wanted,
  ) {
    this.#context = context;
    this.#workers = workers;
    this.#wanted = wanted;
  }

  /** The entries of versiond's `/healthz`. */
  healthz(): readonly (HealthEntry & { readonly [field: string]: unknown })[] {
    return healthEntries(this.#context.generations).map((entry) => ({ ...entry }));
  }

  /** Every version, and every one that is gone but still has a generation. */
  list(): VersionStatus[] {
    const { generations, quarantine, memory } = this.#context;
    this.#wanted.forgetIdle();
    return [...this.#workers.values()].map((worker) =>
      versionStatus(worker, {
        generations: generations.of(worker.name),
        quarantined: quarantine.list(worker.name),
        operator: memory.of(worker.name),
        ...this.#moment(),
      })
    );
  }

  conditions(): Conditions {
    const conditions = conditionsOf(this.#workers.values(), this.#context.generations, {
      ...this.#moment(),
      error: this.#wanted.error,
      converged: this.#converged,
      heard: this.#wanted.heard,
    });
    this.#converged = conditions.converged;
    return conditions;
  }

  gauges(): Gauges {
    const { generations, holds, memory, quarantine } = this.#context;
    const quarantined = new Map<string, number>();
    for (const { name } of quarantine.list()) {
      quarantined.set(name, (quarantined.get(name) ?? 0) + 1);
    }
    return {
      generations: [...generations].map((one) => ({
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
      held: holds.count,
      unsaved: !memory.saved || !quarantine.saved,
    };
  }

  #moment(): { readonly nowMs: number; readonly staleMs: number } {
    const { runtime, config } = this.#context;
    return { nowMs: runtime.clock.monotonic(), staleMs: config.monitorStaleMs };
  }
}
