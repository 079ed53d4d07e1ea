/**
 * The written record of children that may be alive, and who their Baton is.
 *
 * Each child is recorded with its pid and start time, and carries a mark in its environment that
 * names this state folder: whatever moment a Baton is killed at, also between the fork and the
 * record, the next one finds what was left running. A folder belongs to one Baton at a time.
 */

import { messageOf } from "../errors.ts";
import * as v from "valibot";
import type { Log } from "../observe/log.ts";
import { isDiskFull, type Runtime } from "../runtime/runtime.ts";
import { holdFolder } from "./folder_owner.ts";
import type { Generation } from "./generation.ts";
import { type ChildRecord, childrenSchema, type ChildrenState, StateFile } from "./state.ts";

/** The variable that marks a child: `<owner>/<version>/<generation>`. */
export const CHILD_VARIABLE = "BATON_CHILD";

const ownerSchema = v.object({
  owner: v.string(),
  pid: v.pipe(v.number(), v.integer()),
  startTime: v.string(),
});

/** Another Baton that is alive uses the folder. */
export class StateInUse extends Error {
  override readonly name = "StateInUse";
}

type ChildrenRuntime = Pick<Runtime, "files" | "processes" | "random" | "pid">;

export class Children {
  /** Names this state folder for ever; part of every child's mark. */
  readonly owner: string;
  readonly #log: Log;
  readonly #runtime: ChildrenRuntime;
  readonly #file: StateFile<ChildrenState>;
  readonly #records = new Map<string, ChildRecord>();
  readonly #release: () => void;

  private constructor(
    runtime: ChildrenRuntime,
    log: Log,
    owner: string,
    file: StateFile<ChildrenState>,
    release: () => void,
  ) {
    this.#release = release;
    this.#runtime = runtime;
    this.#log = log;
    this.owner = owner;
    this.#file = file;
  }

  /**
   * Takes the folder over and reads what an earlier Baton left; `left` are its children's records.
   * Throws StateInUse when another Baton that is alive has it. A full disk costs the record of who has
   * it, not the start.
   */
  static async open(
    runtime: ChildrenRuntime,
    log: Log,
    folder: string,
  ): Promise<{ children: Children; left: readonly ChildRecord[] }> {
    const { files } = runtime;
    const orFull = (error: unknown): void => {
      if (!isDiskFull(error)) throw error;
      log.error("owner_not_recorded", { folder, error: messageOf(error) });
    };
    await files.makeFolder(folder, 0o750).catch(orFull);
    const ownerFile = new StateFile<v.InferOutput<typeof ownerSchema> | undefined>({
      files,
      log,
      path: `${folder}/owner.json`,
      schema: ownerSchema,
      empty: () => undefined,
    });
    const last = await ownerFile.load();
    const hold = await holdFolder(runtime, log, folder, last);
    if (hold.kind === "other") throw new StateInUse(`${folder} is in use by ${hold.by}`);
    const file = new StateFile({
      files,
      log,
      path: `${folder}/children.json`,
      schema: childrenSchema,
      empty: () => ({ children: [] }),
    });
    const found = await file.load();
    const owner = last?.owner ?? found.owner ?? runtime.random.uuid();
    const startTime = await runtime.processes.startTime(runtime.pid) ?? "";
    await ownerFile.save({ owner, pid: runtime.pid, startTime }).catch((error: unknown) => {
      if (!isDiskFull(error)) hold.release();
      orFull(error);
    });
    const left = found.children;
    const children = new Children(runtime, log, owner, file, hold.release);
    for (const record of left) children.#records.set(keyOf(record.name, record.generation), record);
    return { children, left };
  }

  /** The mark of one child. */
  mark(version: string, generation: number): string {
    return `${this.owner}/${version}/${generation}`;
  }

  /** Records a child that was just started. A disk that refuses is reported, not thrown. */
  async add(generation: Generation): Promise<void> {
    const pid = generation.process?.pid;
    if (pid === undefined || generation.port === undefined) return;
    const startTime = await this.#runtime.processes.startTime(pid);
    // It may have ended meanwhile: then there is nothing to find.
    if (startTime === undefined || generation.phase === "stopped") return;
    const { build } = generation;
    this.#records.set(keyOf(generation.version, generation.number), {
      name: generation.version,
      generation: generation.number,
      pid,
      startTime,
      port: generation.port,
      ...(generation.adminPort === undefined ? {} : { adminPort: generation.adminPort }),
      ...(generation.peerPort === undefined ? {} : { peerPort: generation.peerPort }),
      sha256: build.sha256,
      binary: build.binary,
      buildId: build.buildId,
      storageMode: build.storageMode,
      phase: generation.phase,
    });
    await this.#save();
  }

  /** Of what an earlier Baton recorded only those that were found alive are of further use. */
  async keepOnly(
    alive: readonly { readonly version: string; readonly generation: number }[],
  ): Promise<void> {
    const keys = new Set(alive.map((one) => keyOf(one.version, one.generation)));
    const gone = [...this.#records.keys()].filter((key) => !keys.has(key));
    for (const key of gone) this.#records.delete(key);
    if (gone.length > 0) await this.#save();
  }

  /** Forgets a child that was reaped. */
  async remove(version: string, generation: number): Promise<void> {
    if (this.#records.delete(keyOf(version, generation))) await this.#save();
  }

  /** Gives the folder up; resolves when no write is under way any more. */
  async close(): Promise<void> {
    while (this.#saving.size > 0) await Promise.all(this.#saving);
    this.#release();
  }

  readonly #saving = new Set<Promise<void>>();

  async #save(): Promise<void> {
    const saving = this.#file.save({ owner: this.owner, children: [...this.#records.values()] })
      .catch((error: unknown) =>
        this.#log.error("children_not_saved", { error: messageOf(error) })
      );
    this.#saving.add(saving);
    await saving;
    this.#saving.delete(saving);
  }
}

function keyOf(version: string, generation: number): string {
  return `${version}#${generation}`;
}
