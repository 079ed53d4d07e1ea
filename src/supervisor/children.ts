/**
 * The written record of children that may be alive, and who their Baton is.
 *
 * Each child is recorded with its pid and start time, and carries a mark in its environment that
 * names this state folder: whatever moment a Baton is killed at, also between the fork and the
 * record, the next one finds what was left running. A folder belongs to one Baton at a time.
 */

import * as v from "valibot";
import type { Log } from "../observe/log.ts";
import type { Runtime } from "../runtime/runtime.ts";
import { messageOf } from "./failure.ts";
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

  private constructor(
    runtime: ChildrenRuntime,
    log: Log,
    owner: string,
    file: StateFile<ChildrenState>,
  ) {
    this.#runtime = runtime;
    this.#log = log;
    this.owner = owner;
    this.#file = file;
  }

  /**
   * Takes the folder over and reads what an earlier Baton left; `left` are its children's records.
   * Throws StateInUse when that Baton is still alive.
   */
  static async open(
    runtime: ChildrenRuntime,
    log: Log,
    folder: string,
  ): Promise<{ children: Children; left: readonly ChildRecord[] }> {
    const { files } = runtime;
    const ownerFile = new StateFile({
      files,
      log,
      path: `${folder}/owner.json`,
      schema: ownerSchema,
      empty: () => ({ owner: runtime.random.uuid(), pid: 0, startTime: "" }),
    });
    const last = await ownerFile.load();
    if (last.pid > 0 && last.pid !== runtime.pid && last.startTime !== "") {
      if (await runtime.processes.startTime(last.pid) === last.startTime) {
        throw new StateInUse(`${folder} is in use by process ${last.pid}`);
      }
    }
    const startTime = await runtime.processes.startTime(runtime.pid) ?? "";
    await ownerFile.save({ owner: last.owner, pid: runtime.pid, startTime });
    const file = new StateFile({
      files,
      log,
      path: `${folder}/children.json`,
      schema: childrenSchema,
      empty: () => ({ children: [] }),
    });
    const left = (await file.load()).children;
    const children = new Children(runtime, log, last.owner, file);
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

  /** Resolves when no write is under way. */
  async flushed(): Promise<void> {
    while (this.#saving.size > 0) await Promise.all(this.#saving);
  }

  readonly #saving = new Set<Promise<void>>();

  async #save(): Promise<void> {
    const saving = this.#file.save({ children: [...this.#records.values()] })
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
