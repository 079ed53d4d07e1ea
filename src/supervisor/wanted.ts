/**
 * What is wanted of each version: the oracle's list, forced versions and local overrides, told to the
 * workers in one turn. An error, or an empty list that nobody asked for, changes nothing that runs.
 */

import { messageOf } from "../errors.ts";
import type { DesiredVersion } from "./catalog.ts";
import type { ServiceContext } from "./context.ts";
import type { OracleReport } from "./oracle.ts";
import { VersionWorker } from "./version_worker.ts";

const EMPTY = "the oracle lists nothing; ignored while children run (allowEmpty)";

export class Wanted {
  readonly #context: ServiceContext;
  readonly #workers: Map<string, VersionWorker>;
  readonly #overrides = new Map<string, string>();
  #listed: ReadonlyMap<string, DesiredVersion> | undefined;
  #error: string | undefined;

  constructor(context: ServiceContext, workers: Map<string, VersionWorker>) {
    this.#context = context;
    this.#workers = workers;
  }

  /** Why the last report was not followed, if it was not. */
  get error(): string | undefined {
    return this.#error;
  }

  /** True until the oracle's first answer, or first failure. */
  get pending(): boolean {
    return this.#listed === undefined && this.#error === undefined;
  }

  /** False until the first list. */
  get heard(): boolean {
    return this.#listed !== undefined;
  }

  report(report: OracleReport): void {
    const { config, generations, reports } = this.#context;
    reports.polled(report.kind === "catalog");
    if (report.kind === "error") {
      this.#refuse("oracle_failed", report.error.message);
    } else {
      const { versions, withdrawn } = report;
      // Known from the list on disk counts as running: its children may be about to start.
      const some = generations.size > 0 || (this.#listed?.size ?? 0) > 0;
      if (versions.length === 0 && some && !config.allowEmpty && withdrawn.length === 0) {
        return this.#refuse("oracle_empty", EMPTY);
      }
      this.#error = undefined;
      this.#listed = new Map(versions.map((version) => [version.name, version]));
      this.#apply();
    }
    // Local files change without any list.
    if (Object.keys(config.overrides).length > 0) void this.#lookAtOverrides();
  }

  /** Drops the workers of versions of which nothing is left. */
  forgetIdle(): void {
    for (const [name, worker] of this.#workers) if (worker.idle) this.#workers.delete(name);
  }

  #refuse(event: string, error: string): void {
    if (this.#error !== error) this.#context.reports.tell("warn", event, "", { error });
    this.#error = error;
  }

  #apply(): void {
    const { overrides } = this.#context.builds;
    const listed = this.#listed ?? new Map<string, DesiredVersion>();
    const forced = overrides.forced([...listed.values()]);
    for (const name of new Set([...listed.keys(), ...forced, ...this.#workers.keys()])) {
      const override = this.#overrides.get(name);
      const isWanted = listed.has(name) || forced.includes(name);
      // Until its override was looked at, the published build must not start in its place.
      if (isWanted && overrides.sourceFor(name) !== undefined && override === undefined) continue;
      let worker = this.#workers.get(name);
      if (worker === undefined) {
        worker = new VersionWorker(this.#context, name);
        this.#workers.set(name, worker);
      }
      worker.setDesired(listed.get(name), isWanted ? override : undefined);
    }
    this.forgetIdle();
  }

  async #lookAtOverrides(): Promise<void> {
    const { builds, config, reports } = this.#context;
    for (const name of Object.keys(config.overrides)) {
      try {
        this.#overrides.set(name, await builds.overrides.identity(name));
      } catch (error) {
        reports.tell("error", "override_unreadable", name, { error: messageOf(error) });
      }
    }
    if (this.#context.mayStart()) this.#apply();
  }
}
