/**
 * Local programs that run instead of published builds.
 *
 * The operator's file is copied (never linked) to the version's flat place, so that it can be
 * rebuilt while the copy runs. What identifies it is its content: `override:<sha256>`.
 */

import { messageOf } from "../errors.ts";
import type { VersionsConfig } from "../config/versions.ts";
import type { Runtime } from "../runtime/runtime.ts";
import type { DesiredVersion } from "./catalog.ts";
import { RolloutFailure } from "./failure.ts";
import { flatPaths, HashCache } from "./install_layout.ts";
import type { Install } from "./installs.ts";

export const OVERRIDE_PREFIX = "override:";

export interface OverridesOptions {
  readonly runtime: Pick<Runtime, "files" | "random" | "clock">;
  readonly binDir: string;
  readonly config: Pick<VersionsConfig, "binaryName" | "overrides" | "force">;
}

/** What runs now, as far as an override has to know it. */
export interface Running {
  readonly sha256: string;
  readonly binary: string;
}

export class Overrides {
  readonly #options: OverridesOptions;
  readonly #hashes: HashCache;

  constructor(options: OverridesOptions) {
    this.#options = options;
    this.#hashes = new HashCache(options.runtime.files, options.runtime.clock);
  }

  /** The local file configured for a version. */
  sourceFor(name: string): string | undefined {
    const { overrides } = this.#options.config;
    return Object.hasOwn(overrides, name) ? overrides[name] : undefined;
  }

  /** Versions that run although no list names them: forced, and with an override to run. */
  forced(listed: readonly DesiredVersion[]): string[] {
    const known = new Set(listed.map((version) => version.name));
    return [...new Set(this.#options.config.force)].filter((name) =>
      !known.has(name) && this.sourceFor(name) !== undefined
    );
  }

  /** The identity that the override has now, by the content of the operator's file. */
  async identity(name: string): Promise<string> {
    const source = this.sourceFor(name);
    if (source === undefined) throw new Error(`${name} has no override`);
    const hash = await this.#hashes.sha256(source).catch((error: unknown) => {
      throw unreadable(source, error);
    });
    if (hash === undefined) throw unreadable(source, new Error("there is no such file"));
    return OVERRIDE_PREFIX + hash;
  }

  /**
   * Must a running child be replaced? Path, identity and bytes must all be those of the override: a
   * published build that happens to equal the file is still not the override.
   */
  async isCurrent(name: string, running: Running): Promise<boolean> {
    const flat = this.#flat(name);
    if (running.binary !== flat.binary) return false;
    const identity = await this.identity(name);
    if (running.sha256 !== identity) return false;
    const copy = await this.#hashes.sha256(flat.binary);
    return copy !== undefined && OVERRIDE_PREFIX + copy === identity;
  }

  /** Copies the operator's file to the flat place, mode 0755, in one step. */
  async prepare(name: string): Promise<Install> {
    const { files, random } = this.#options.runtime;
    const source = this.sourceFor(name);
    if (source === undefined) throw new Error(`${name} has no override`);
    const flat = this.#flat(name);
    const temporary = `${flat.folder}/.override.${random.uuid()}.tmp`;
    try {
      await files.makeFolder(flat.folder, 0o755);
      await files.copy(source, temporary, 0o755);
      // Of the copy: the operator's file may change while it is read.
      const hash = await files.sha256(temporary);
      await files.rename(temporary, flat.binary);
      await files.syncFolder(flat.folder);
      return {
        name,
        sha256: OVERRIDE_PREFIX + hash,
        binarySha256: hash,
        binary: flat.binary,
        folder: flat.folder,
        layout: "override",
      };
    } catch (error) {
      await files.remove(temporary).catch(() => {});
      throw new RolloutFailure("transient", `the override ${source} cannot be copied`, {
        cause: error,
      });
    }
  }

  #flat(name: string) {
    return flatPaths(this.#options.binDir, name, this.#options.config.binaryName);
  }
}

function unreadable(source: string, cause: unknown): RolloutFailure {
  return new RolloutFailure(
    "transient",
    `the override ${source} cannot be read: ${messageOf(cause)}`,
    { cause },
  );
}
