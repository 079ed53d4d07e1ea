/** What is remembered of each version over restarts: the operators' hand and the builds that served. */

import type { Log } from "../observe/log.ts";
import type { Files } from "../runtime/runtime.ts";
import {
  KeptState,
  type OperatorEntry,
  operatorSchema,
  type OperatorState,
  StateFile,
} from "./state.ts";

/** How many builds that served are remembered for each version. */
const MAX_PROVEN = 10;

export class Memory {
  readonly #versions: Map<string, OperatorEntry>;
  readonly #kept: KeptState<OperatorState>;

  private constructor(log: Log, file: StateFile<OperatorState>, state: OperatorState) {
    this.#versions = new Map(Object.entries(state.versions));
    this.#kept = new KeptState(file, log, "operator_state", () => ({
      versions: Object.fromEntries(this.#versions),
    }));
  }

  /** Reads `<folder>/operator.json`; a damaged file is set aside and means that nothing is known. */
  static async open(files: Files, log: Log, folder: string): Promise<Memory> {
    const file = new StateFile({
      files,
      log,
      path: `${folder}/operator.json`,
      schema: operatorSchema,
      empty: () => ({ versions: {} }),
    });
    return new Memory(log, file, await file.load());
  }

  of(version: string): OperatorEntry {
    return this.#versions.get(version) ?? {};
  }

  /** See KeptState. */
  get saved(): boolean {
    return this.#kept.saved;
  }

  /** Changes some fields (undefined removes one). In memory at once; resolves when it was written. */
  async update(version: string, change: Partial<OperatorEntry>): Promise<void> {
    const entry = Object.fromEntries(
      Object.entries({ ...this.of(version), ...change }).filter(([, value]) => value !== undefined),
    );
    this.#versions.set(version, entry);
    await this.#kept.save();
  }

  /** See KeptState. */
  saveAgain(): Promise<void> {
    return this.#kept.saveAgain();
  }

  /** The build has served well: it goes first among those that a fallback may use. */
  prove(version: string, sha256: string): Promise<void> {
    const proven = this.of(version).proven ?? [];
    if (proven[0] === sha256) return Promise.resolve();
    return this.update(version, {
      proven: [sha256, ...proven.filter((other) => other !== sha256)].slice(0, MAX_PROVEN),
    });
  }
}
