/**
 * The memory of builds that failed, so that no host tries the same bad one every poll for ever.
 *
 * An entry belongs to one (version, sha256). A transient cause is tried again after a wait that
 * doubles; any other class blocks until the list names another artifact or an operator allows it.
 * A denied build is blocked until it is allowed, whatever the list says. Entries are durable.
 */

import * as v from "valibot";
import type { Log } from "../observe/log.ts";
import type { Clock, Files, Random } from "../runtime/runtime.ts";
import type { FailureClass } from "./failure.ts";
import { KeptState, StateFile } from "./state.ts";

const entrySchema = v.object({
  name: v.string(),
  sha256: v.string(),
  class: v.picklist(["download", "hash", "preflight", "crash", "readiness", "transient", "denied"]),
  message: v.string(),
  failures: v.pipe(v.number(), v.integer(), v.minValue(1)),
  /** When it last failed, ms since 1970. */
  at: v.number(),
  /** When it may be tried again, ms since 1970; absent: not by itself. */
  retryAt: v.optional(v.number()),
});

export type QuarantineEntry = Readonly<v.InferOutput<typeof entrySchema>>;

const fileSchema = v.object({ quarantined: v.array(entrySchema) });

export interface QuarantineOptions {
  readonly files: Files;
  readonly clock: Clock;
  readonly random: Random;
  readonly log: Log;
  /** Where the memory is kept; absent: in memory only. */
  readonly path?: string;
  readonly retryBackoffMs: number;
  readonly retryBackoffMaxMs: number;
}

export class Quarantine {
  readonly #options: QuarantineOptions;
  readonly #entries = new Map<string, QuarantineEntry>();
  readonly #kept: KeptState<v.InferOutput<typeof fileSchema>>;

  private constructor(
    options: QuarantineOptions,
    file: StateFile<v.InferOutput<typeof fileSchema>> | undefined,
  ) {
    this.#options = options;
    this.#kept = new KeptState(file, options.log, "quarantine", () => ({
      quarantined: this.list(),
    }));
  }

  /** Reads what was remembered; a damaged file means nothing was (and is reported). */
  static async open(options: QuarantineOptions): Promise<Quarantine> {
    const { path, ...rest } = options;
    const file = path === undefined ? undefined : new StateFile({
      ...rest,
      path,
      schema: fileSchema,
      empty: () => ({ quarantined: [] }),
    });
    const stored = await file?.load();
    const quarantine = new Quarantine(options, file);
    for (const entry of stored?.quarantined ?? []) {
      quarantine.#entries.set(key(entry.name, entry.sha256), entry);
    }
    return quarantine;
  }

  /**
   * Remembers a failure and says when (if ever) the build may be tried again. `retry` overrules the
   * class: a build that was merely slow to get ready has more than one attempt.
   */
  async record(
    name: string,
    sha256: string,
    failureClass: FailureClass,
    message: string,
    retry: boolean = failureClass === "transient",
  ): Promise<QuarantineEntry> {
    const { clock, random, retryBackoffMs, retryBackoffMaxMs } = this.#options;
    const previous = this.#entries.get(key(name, sha256));
    const failures = (previous?.failures ?? 0) + 1;
    const at = clock.now();
    const entry: QuarantineEntry = {
      name,
      sha256,
      class: previous?.class === "denied" ? "denied" : failureClass,
      message: message.slice(0, 2_000),
      failures,
      at,
      // Up to a fifth more at random: hosts that failed together do not come back together.
      ...(retry && previous?.class !== "denied"
        ? {
          retryAt: at +
            Math.min(retryBackoffMaxMs, retryBackoffMs * 2 ** Math.min(failures - 1, 30)) *
              (1 + random.number() / 5),
        }
        : {}),
    };
    await this.#put(entry);
    return entry;
  }

  /**
   * The entry that forbids trying this build now, or undefined if it may be tried. A transient entry
   * whose time has come no longer blocks, but is kept so that the next wait is longer.
   */
  blocks(name: string, sha256: string): QuarantineEntry | undefined {
    const entry = this.#entries.get(key(name, sha256));
    if (entry === undefined) return undefined;
    if (entry.retryAt !== undefined && entry.retryAt <= this.#options.clock.now()) return undefined;
    return entry;
  }

  /** An operator forbids a build. */
  async deny(name: string, sha256: string, reason: string): Promise<QuarantineEntry> {
    const entry: QuarantineEntry = {
      name,
      sha256,
      class: "denied",
      message: reason,
      failures: this.#entries.get(key(name, sha256))?.failures ?? 1,
      at: this.#options.clock.now(),
    };
    await this.#put(entry);
    return entry;
  }

  /** An operator allows a build (or every build of the version); true if anything was blocked. */
  async allow(name: string, sha256?: string): Promise<boolean> {
    let found = false;
    for (const entry of [...this.#entries.values()]) {
      if (entry.name !== name || (sha256 !== undefined && entry.sha256 !== sha256)) continue;
      this.#entries.delete(key(entry.name, entry.sha256));
      found = true;
    }
    if (found) await this.#kept.save();
    return found;
  }

  /** The build came into service: what was held against it is forgotten. */
  async succeeded(name: string, sha256: string): Promise<void> {
    const entry = this.#entries.get(key(name, sha256));
    if (entry === undefined || entry.class === "denied") return;
    this.#entries.delete(key(name, sha256));
    await this.#kept.save();
  }

  /**
   * The list now names `listed` for this version: failures of builds that it no longer names are
   * forgotten, so a build that is listed again later gets a fresh try. Denials stay.
   */
  async artifactChanged(name: string, listed: string): Promise<void> {
    let changed = false;
    for (const entry of [...this.#entries.values()]) {
      if (entry.name !== name || entry.sha256 === listed || entry.class === "denied") continue;
      this.#entries.delete(key(entry.name, entry.sha256));
      changed = true;
    }
    if (changed) await this.#kept.save();
  }

  /** All entries, or those of one version. */
  list(name?: string): QuarantineEntry[] {
    const all = [...this.#entries.values()];
    return name === undefined ? all : all.filter((entry) => entry.name === name);
  }

  async #put(entry: QuarantineEntry): Promise<void> {
    this.#entries.set(key(entry.name, entry.sha256), entry);
    await this.#kept.save();
  }

  /** See KeptState. */
  get saved(): boolean {
    return this.#kept.saved;
  }

  /** See KeptState. */
  saveAgain(): Promise<void> {
    return this.#kept.saveAgain();
  }
}

function key(name: string, sha256: string): string {
  return `${name} ${sha256}`;
}
