/**
 * From "this sha256 of that version" to a program that may be started: its install, and what the
 * program says about itself, which is asked once.
 */

import type { VersionsConfig } from "../config/versions.ts";
import type { Runtime } from "../runtime/runtime.ts";
import type { DesiredVersion } from "./catalog.ts";
import { RolloutFailure } from "./failure.ts";
import type { Build } from "./generation.ts";
import type { Install, InstallProgress, Installs } from "./installs.ts";
import { OVERRIDE_PREFIX, type Overrides } from "./overrides.ts";
import { preflight } from "./preflight.ts";

export class Builds {
  readonly installs: Installs;
  readonly overrides: Overrides;
  readonly #runtime: Runtime;
  readonly #config: VersionsConfig;
  readonly #said = new Map<string, Build>();
  readonly #installs = new Map<string, Install>();

  constructor(runtime: Runtime, config: VersionsConfig, installs: Installs, overrides: Overrides) {
    this.#runtime = runtime;
    this.#config = config;
    this.installs = installs;
    this.overrides = overrides;
  }

  /**
   * The program on disk: an override's copy, the listed build (downloaded if it must be), or a build
   * that was installed before. Throws RolloutFailure, or the signal's reason.
   */
  async install(
    name: string,
    sha256: string,
    desired: DesiredVersion | undefined,
    signal: AbortSignal,
    onProgress: (progress: InstallProgress) => void,
  ): Promise<Install> {
    const install = await this.#find(name, sha256, desired, signal, onProgress);
    this.#installs.set(keyOf(name, sha256), install);
    return install;
  }

  async #find(
    name: string,
    sha256: string,
    desired: DesiredVersion | undefined,
    signal: AbortSignal,
    onProgress: (progress: InstallProgress) => void,
  ): Promise<Install> {
    if (sha256.startsWith(OVERRIDE_PREFIX)) return await this.overrides.prepare(name);
    if (desired?.sha256 !== sha256) {
      const found = await this.installs.find(name, sha256);
      if (found !== undefined) return found;
      throw new RolloutFailure("hash", `the install of ${sha256} is gone or was changed`);
    }
    const ensure = () => this.installs.ensure(desired, { signal, onProgress });
    return await ensure().catch((error: unknown) => {
      // It shared the work of an earlier attempt that was called off: that is not our failure.
      if (signal.aborted || error instanceof RolloutFailure) throw error;
      return ensure();
    });
  }

  /** Hashes of the complete installs of a version, newest first. */
  async installed(name: string): Promise<readonly string[]> {
    return (await this.installs.retained(name)).map((install) => install.sha256);
  }

  /** True while the files of a build that was started are what was installed. */
  async isIntact(name: string, build: Build): Promise<boolean> {
    const { sha256 } = build;
    if (sha256.startsWith(OVERRIDE_PREFIX)) {
      return await this.overrides.isCurrent(name, build).catch(() => true);
    }
    const install = this.#installs.get(keyOf(name, sha256));
    return install === undefined || (await this.installs.verify(install)).ok;
  }

  /**
   * What a build says about itself; it is asked once, until `forget`. Throws RolloutFailure of class
   * `preflight`.
   */
  async check(install: Install, signal: AbortSignal): Promise<Build> {
    const key = `${keyOf(install.name, install.sha256)} ${install.binary}`;
    const known = this.#said.get(key);
    if (known !== undefined) return known;
    const { sha256, binary, folder, name } = install;
    const said = await preflight({
      runtime: this.#runtime,
      config: this.#config,
      name,
      binary,
      signal,
    });
    const build: Build = { sha256, binary, folder, ...said };
    this.#said.set(key, build);
    return build;
  }

  /** The files of a build were replaced: what was known of it is not known any more. */
  forget(name: string, sha256: string): void {
    this.#installs.delete(keyOf(name, sha256));
    for (const key of this.#said.keys()) {
      if (key.startsWith(`${keyOf(name, sha256)} `)) this.#said.delete(key);
    }
  }
}

function keyOf(name: string, sha256: string): string {
  return `${name} ${sha256}`;
}
