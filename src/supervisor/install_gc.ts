/**
 * Removes installs that nothing needs, and what broken work left behind.
 *
 * A candidate is a folder with a readable install.json whose name and recorded hash are both outside
 * the keep set. The newest few of each version stay, for a rollback without network. The program goes
 * first and the marker last, so that a removal which is interrupted is a candidate again.
 */

import { messageOf } from "../errors.ts";
import type { VersionsConfig } from "../config/versions.ts";
import type { Log } from "../observe/log.ts";
import type { Runtime } from "../runtime/runtime.ts";
import { FileMissing } from "../runtime/runtime.ts";
import { isSha256, isVersionName } from "./catalog.ts";
import { canonicalPaths, flatPaths, readRecord } from "./install_layout.ts";

export interface InstallGcOptions {
  readonly runtime: Pick<Runtime, "files" | "clock">;
  readonly log: Log;
  readonly binDir: string;
  readonly config: Pick<
    VersionsConfig,
    "binaryName" | "retainInstalls" | "retainRemovedMs" | "downloadTimeoutMs"
  >;
}

/** A committed install that is not necessarily in use. */
export interface KeptInstall {
  readonly sha256: string;
  /** When it was committed, ms since 1970. */
  readonly installedAt: number;
  readonly folder: string;
}

export interface Collector {
  list(name: string): Promise<KeptInstall[]>;
  /** Returns the folders and files that were removed. */
  collect(keep: readonly { readonly name: string; readonly sha256: string }[]): Promise<string[]>;
}

const HOUR_MS = 3_600_000;

export function collectInstalls(options: InstallGcOptions): Collector {
  return {
    list: (name) => listInstalls(options, name),
    collect: (keep) => new Collection(options, keep).run(),
  };
}

/** Newest first; of equal age the higher hash first, so the order is always the same. */
async function listInstalls(options: InstallGcOptions, name: string): Promise<KeptInstall[]> {
  const { runtime, binDir, config } = options;
  const { files } = runtime;
  const found: KeptInstall[] = [];
  for (const entry of await listOrNothing(options, `${binDir}/${name}`)) {
    if (!isSha256(entry)) continue;
    const paths = canonicalPaths(binDir, name, entry, config.binaryName);
    const record = await readRecord(files, paths.record);
    const info = await files.info(paths.record);
    if (record === undefined || info === undefined) continue;
    found.push({ sha256: record.archiveSha256, installedAt: info.mtimeMs, folder: paths.folder });
  }
  return found.sort((a, b) =>
    b.installedAt - a.installedAt || (a.sha256 < b.sha256 ? 1 : a.sha256 > b.sha256 ? -1 : 0)
  );
}

async function listOrNothing(options: InstallGcOptions, folder: string): Promise<string[]> {
  try {
    return await options.runtime.files.list(folder);
  } catch (error) {
    if (error instanceof FileMissing) return [];
    throw error;
  }
}

class Collection {
  readonly #options: InstallGcOptions;
  readonly #kept = new Map<string, Set<string>>();
  readonly #removed: string[] = [];

  constructor(
    options: InstallGcOptions,
    keep: readonly { readonly name: string; readonly sha256: string }[],
  ) {
    this.#options = options;
    for (const { name, sha256 } of keep) {
      const hashes = this.#kept.get(name) ?? new Set();
      hashes.add(sha256.toLowerCase());
      this.#kept.set(name, hashes);
    }
  }

  /** One version's trouble does not keep the others from being tidied. */
  async run(): Promise<string[]> {
    for (const name of await listOrNothing(this.#options, this.#options.binDir)) {
      if (!isVersionName(name)) continue;
      try {
        await this.#sweep(name);
        const kept = this.#kept.get(name);
        if (kept === undefined) await this.#unused(name);
        else await this.#beyondRetained(name, kept);
      } catch (error) {
        this.#options.log.warn("install_gc_failed", { version: name, error: messageOf(error) });
      }
    }
    if (this.#removed.length > 0) {
      this.#options.log.info("installs_removed", { paths: this.#removed });
    }
    return this.#removed;
  }

  async #beyondRetained(name: string, kept: ReadonlySet<string>): Promise<void> {
    const candidates = (await listInstalls(this.#options, name)).filter((install) =>
      !kept.has(install.sha256) && !kept.has(folderHash(install))
    );
    for (const install of candidates.slice(this.#options.config.retainInstalls)) {
      await this.#remove(name, install);
    }
  }

  /** A version that nothing lists or runs: its newest installs stay until they are old. */
  async #unused(name: string): Promise<void> {
    const { retainInstalls, retainRemovedMs } = this.#options.config;
    const now = this.#options.runtime.clock.now();
    const installs = await listInstalls(this.#options, name);
    for (const [index, install] of installs.entries()) {
      const old = now - install.installedAt > retainRemovedMs;
      if (index >= retainInstalls || old) await this.#remove(name, install);
    }
    await this.#removeOldFlat(name, now - retainRemovedMs);
  }

  /** A flat install (with its marker) of an unused version; an override's copy has none. */
  async #removeOldFlat(name: string, olderThan: number): Promise<void> {
    const { files } = this.#options.runtime;
    const flat = flatPaths(this.#options.binDir, name, this.#options.config.binaryName);
    const info = await files.info(flat.record);
    if (info === undefined || info.mtimeMs >= olderThan) return;
    await files.remove(flat.binary);
    await files.remove(flat.record);
    this.#removed.push(flat.binary);
    await this.#removeIfEmpty(flat.folder);
  }

  async #remove(name: string, install: KeptInstall): Promise<void> {
    const { runtime, binDir, config } = this.#options;
    const { files } = runtime;
    const paths = canonicalPaths(binDir, name, folderHash(install), config.binaryName);
    await files.remove(paths.binary);
    for (const entry of await listOrNothing(this.#options, paths.folder)) {
      if (entry.startsWith("tree-")) await files.remove(`${paths.folder}/${entry}`);
    }
    await files.remove(paths.record);
    await this.#removeIfEmpty(paths.folder);
    this.#removed.push(paths.folder);
  }

  /** Work in progress that is older than any work may take. */
  async #sweep(name: string): Promise<void> {
    const { files, clock } = this.#options.runtime;
    const folder = `${this.#options.binDir}/${name}`;
    const oldest = clock.now() - this.#options.config.downloadTimeoutMs - HOUR_MS;
    for (const entry of await listOrNothing(this.#options, folder)) {
      if (!/^\.[0-9a-f]{64}\..*\b(tmp|part)$/.test(entry)) continue;
      const info = await files.info(`${folder}/${entry}`);
      if (info === undefined || info.mtimeMs >= oldest) continue;
      await files.remove(`${folder}/${entry}`);
      this.#removed.push(`${folder}/${entry}`);
    }
  }

  async #removeIfEmpty(folder: string): Promise<void> {
    const entries = await listOrNothing(this.#options, folder);
    if (entries.length === 0) await this.#options.runtime.files.remove(folder);
  }
}

function folderHash(install: KeptInstall): string {
  return install.folder.slice(install.folder.lastIndexOf("/") + 1);
}
