/**
 * Small JSON files that survive a crash.
 *
 * Written by temp, fsync, rename, fsync of the folder; so a reader finds the old value or the new
 * one. A file that cannot be read as what it should be is put aside as `<file>.corrupt`, reported,
 * and the start goes on with the value given for "nothing known".
 */

import { messageOf } from "../errors.ts";
import * as v from "valibot";
import type { Log } from "../observe/log.ts";
import type { Files } from "../runtime/runtime.ts";
import { FileMissing } from "../runtime/runtime.ts";

export interface StateFileOptions<Value> {
  readonly files: Files;
  readonly log: Log;
  readonly path: string;
  /** Checks what was read; extra keys are dropped or refused as the schema says. */
  readonly schema: v.GenericSchema<unknown, Value>;
  /** The value when nothing (usable) is on disk. */
  readonly empty: () => Value;
  readonly mode?: number;
}

export class StateFile<Value> {
  readonly path: string;
  readonly #options: StateFileOptions<Value>;
  #writing: Promise<void> | undefined;
  #next:
    | { text: string; done: Promise<void>; resolve: () => void; reject: (e: unknown) => void }
    | undefined;

  constructor(options: StateFileOptions<Value>) {
    this.#options = options;
    this.path = options.path;
  }

  /** Reads the file. Never throws: what is torn, foreign or unreadable is reported and set aside. */
  async load(): Promise<Value> {
    const { files, log, schema, empty } = this.#options;
    let text: string;
    try {
      text = await files.readText(this.path);
    } catch (error) {
      if (!(error instanceof FileMissing)) {
        log.error("state_unreadable", { path: this.path, error: messageOf(error) });
      }
      return empty();
    }
    try {
      return v.parse(schema, JSON.parse(text));
    } catch (error) {
      await this.#setAside(messageOf(error));
      return empty();
    }
  }

  /**
   * Writes the value; resolves when it is durable. Calls that come while a write is under way are
   * merged: only the newest value is written, and all their promises follow that one write.
   */
  save(value: Value): Promise<void> {
    const text = JSON.stringify(value, null, 1) + "\n";
    if (this.#writing === undefined) return this.#start(text);
    if (this.#next === undefined) {
      let resolve = (): void => {};
      let reject = (_error: unknown): void => {};
      const done = new Promise<void>((res, rej) => {
        resolve = res;
        reject = rej;
      });
      this.#next = { text, done, resolve, reject };
    } else {
      this.#next.text = text;
    }
    return this.#next.done;
  }

  #start(text: string): Promise<void> {
    const write = this.#write(text);
    const settled = write.then(() => {}, () => {}).then(() => {
      this.#writing = undefined;
      const next = this.#next;
      this.#next = undefined;
      if (next !== undefined) this.#start(next.text).then(next.resolve, next.reject);
    });
    this.#writing = settled;
    return write;
  }

  async #write(text: string): Promise<void> {
    const { files, mode } = this.#options;
    const folder = parentOf(this.path);
    if (folder !== undefined) await files.makeFolder(folder, 0o750);
    await files.writeAtomic(this.path, text, mode ?? 0o600);
  }

  async #setAside(reason: string): Promise<void> {
    const { files, log } = this.#options;
    const aside = `${this.path}.corrupt`;
    try {
      await files.rename(this.path, aside);
      log.error("state_corrupt", { path: this.path, keptAs: aside, error: reason });
    } catch (error) {
      log.error("state_corrupt", {
        path: this.path,
        error: reason,
        keepFailed: messageOf(error),
      });
    }
  }
}

/**
 * What memory holds and a file is to hold too. A disk that refuses stops nothing that is decided
 * already: it is said, and written as soon as there is room.
 */
export class KeptState<Value> {
  readonly #file: StateFile<Value> | undefined;
  readonly #log: Log;
  readonly #name: string;
  readonly #read: () => Value;
  #saved = true;

  /** Without a file it is kept in memory only. `name` is what the log calls it. */
  constructor(
    file: StateFile<Value> | undefined,
    log: Log,
    name: string,
    read: () => Value,
  ) {
    this.#file = file;
    this.#log = log;
    this.#name = name;
    this.#read = read;
  }

  /** False while the disk holds less than memory does, since it refused the last write. */
  get saved(): boolean {
    return this.#saved;
  }

  /** Writes what there is now; never rejects. */
  async save(): Promise<void> {
    try {
      await this.#file?.save(this.#read());
      if (!this.#saved) this.#log.info(`${this.#name}_saved`);
      this.#saved = true;
    } catch (error) {
      this.#saved = false;
      this.#log.error(`${this.#name}_not_saved`, { error: messageOf(error) });
    }
  }

  /** Writes what the disk refused before, if anything. */
  async saveAgain(): Promise<void> {
    if (!this.#saved) await this.save();
  }
}

/** The folder that holds a path, or undefined for a bare name. */
export function parentOf(path: string): string | undefined {
  const cut = path.lastIndexOf("/");
  if (cut < 0) return undefined;
  return cut === 0 ? "/" : path.slice(0, cut);
}

// -------------------------------------------------------------------------- what is kept in them

/** A child that was running: enough to find it again after a crash of Baton, and to know it is it. */
const childRecord = v.object({
  name: v.string(),
  generation: v.pipe(v.number(), v.integer()),
  pid: v.pipe(v.number(), v.integer(), v.minValue(2)),
  /** With the pid, names one process for ever (runtime.processes.startTime). */
  startTime: v.string(),
  port: v.pipe(v.number(), v.integer()),
  adminPort: v.optional(v.pipe(v.number(), v.integer())),
  peerPort: v.optional(v.pipe(v.number(), v.integer())),
  sha256: v.string(),
  binary: v.string(),
  buildId: v.optional(v.string()),
  storageMode: v.optional(v.string()),
  /** What it was for when the record was written. */
  phase: v.string(),
});

export type ChildRecord = v.InferOutput<typeof childRecord>;

/** All children that may be alive, and whose: should the record of the owner be lost. */
export const childrenSchema = v.object({
  owner: v.optional(v.string()),
  children: v.array(childRecord),
});
export type ChildrenState = v.InferOutput<typeof childrenSchema>;

/** What operators asked for, per version; kept until they take it back. */
const operatorEntry = v.object({
  paused: v.optional(v.boolean()),
  /** Requests are held instead of forwarded. */
  trafficPaused: v.optional(v.boolean()),
  /** Stay on this build whatever the oracle says. */
  pinned: v.optional(v.string()),
  /** The listed build that was rolled back from: it is not followed until the list changes. */
  rolledBackFrom: v.optional(v.string()),
  /** The build that was rolled back to. */
  rolledBackTo: v.optional(v.string()),
  /** Builds that served well, newest first: where a rollback or a fallback goes. */
  proven: v.optional(v.array(v.string())),
  /** The build that was serving last. */
  serving: v.optional(v.string()),
  /** The highest generation number used. */
  generation: v.optional(v.pipe(v.number(), v.integer())),
  /** Who or what asked, and when (ms since 1970), for the status page. */
  since: v.optional(v.number()),
  reason: v.optional(v.string()),
});

export type OperatorEntry = v.InferOutput<typeof operatorEntry>;

export const operatorSchema = v.object({ versions: v.record(v.string(), operatorEntry) });
export type OperatorState = v.InferOutput<typeof operatorSchema>;
