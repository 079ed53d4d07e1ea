/**
 * Installs of published builds: found, promoted from an older layout, or downloaded; checked before
 * every use.
 *
 * The commit marker (install.json) is written last, after everything else is synced, so whatever
 * instant the power fails at, an install is either complete or not there. Work in progress has
 * names of its own, so two managers may share the folder; both may finish, and either result counts.
 */

import { messageOf } from "../errors.ts";
import type { VersionsConfig } from "../config/versions.ts";
import type { Log } from "../observe/log.ts";
import type { Runtime } from "../runtime/runtime.ts";
import { isLoopbackHost } from "../config/values.ts";
import { printableUrl } from "./address.ts";
import { unpack } from "./archive.ts";
import { onDisk } from "./archive_entry.ts";
import type { DesiredVersion } from "./catalog.ts";
import { download } from "./download.ts";
import { RolloutFailure, throwIfAborted } from "./failure.ts";
import { collectInstalls, type KeptInstall } from "./install_gc.ts";
import {
  canonicalPaths,
  flatPaths,
  HashCache,
  type InstallPaths,
  type InstallRecord,
  readRecord,
  writeRecord,
} from "./install_layout.ts";
import { Slots } from "./slots.ts";

/** A build on disk that can be started. */
export interface Install {
  readonly name: string;
  /** Of the artifact; this is what identifies a build. For an override: `override:<hash>`. */
  readonly sha256: string;
  readonly binarySha256: string;
  /** Path of the program. */
  readonly binary: string;
  readonly folder: string;
  /** `flat`: an older layout that could not be promoted; `override`: a local program's copy. */
  readonly layout: "canonical" | "flat" | "override";
}

export type InstallProgress =
  | { readonly step: "waiting" | "unpacking" }
  | { readonly step: "downloading"; readonly bytes: number; readonly total?: number };

export interface InstallsOptions {
  readonly runtime: Pick<Runtime, "files" | "http" | "clock" | "random">;
  readonly log: Log;
  readonly binDir: string;
  readonly config: Pick<
    VersionsConfig,
    | "binaryName"
    | "entryPoint"
    | "maxDownloadBytes"
    | "maxExtractedBytes"
    | "maxArchiveEntries"
    | "downloadTimeoutMs"
    | "downloadStallMs"
    | "parallelDownloads"
    | "allowInsecure"
    | "retainInstalls"
    | "retainRemovedMs"
  >;
}

export interface EnsureOptions {
  readonly signal?: AbortSignal;
  readonly onProgress?: (progress: InstallProgress) => void;
}

/** The outcome of checking an install against what it should be. */
export interface Verification {
  readonly ok: boolean;
  readonly expected: string;
  /** undefined: there is no file. */
  readonly actual: string | undefined;
}

export class Installs {
  readonly #options: InstallsOptions;
  readonly #hashes: HashCache;
  readonly #slots: Slots;
  readonly #underway = new Map<string, Promise<Install>>();

  constructor(options: InstallsOptions) {
    this.#options = options;
    this.#hashes = new HashCache(options.runtime.files, options.runtime.clock);
    this.#slots = new Slots(options.config.parallelDownloads);
  }

  /**
   * The build, installed: what is there and verified is used (also an older flat layout), and only
   * else something is downloaded. Throws `RolloutFailure`, or the signal's reason. Two calls for one
   * build share the work, and the first one's signal and progress.
   */
  ensure(desired: DesiredVersion, options: EnsureOptions = {}): Promise<Install> {
    const key = `${desired.name} ${desired.sha256}`;
    const known = this.#underway.get(key);
    if (known !== undefined) return known;
    const work = this.#ensure(desired, options).finally(() => this.#underway.delete(key));
    this.#underway.set(key, work);
    return work;
  }

  /** The build if it is installed and intact (promoting a flat layout), without any network. */
  async find(name: string, sha256: string): Promise<Install | undefined> {
    return await this.#canonical(name, sha256) ?? await this.#promoted(name, sha256);
  }

  /** Is what lies on disk still what was installed? Reads the file only if it has changed. */
  async verify(install: Install): Promise<Verification> {
    const actual = await this.#hashes.sha256(install.binary);
    return { ok: actual === install.binarySha256, expected: install.binarySha256, actual };
  }

  /** Committed installs of a version, newest first; not verified until they are used. */
  async retained(name: string): Promise<KeptInstall[]> {
    return await this.#collector().list(name);
  }

  /**
   * Removes installs beyond the newest `retainInstalls` of each version, and leftovers of broken
   * work. `keep` names everything that is desired, running or draining: (name, sha256).
   */
  async collectGarbage(
    keep: Iterable<{ readonly name: string; readonly sha256: string }>,
  ): Promise<string[]> {
    const busy = [...this.#underway.keys()].map((key) => {
      const [name = "", sha256 = ""] = key.split(" ");
      return { name, sha256 };
    });
    return await this.#collector().collect([...keep, ...busy]);
  }

  #collector() {
    const { runtime, log, binDir, config } = this.#options;
    return collectInstalls({ runtime, log, binDir, config });
  }

  async #ensure(desired: DesiredVersion, options: EnsureOptions): Promise<Install> {
    const { name, sha256 } = desired;
    throwIfAborted(options.signal);
    const found = await this.find(name, sha256);
    if (found !== undefined) return found;
    options.onProgress?.({ step: "waiting" });
    const release = await this.#slots.take(options.signal);
    try {
      return await this.#download(desired, options);
    } finally {
      release();
    }
  }

  /** A committed canonical install whose program is intact. A broken one is left alone. */
  async #canonical(name: string, sha256: string): Promise<Install | undefined> {
    const { runtime, binDir, config } = this.#options;
    const paths = canonicalPaths(binDir, name, sha256, config.binaryName);
    return await this.#committed(
      paths,
      name,
      sha256,
      await readRecord(runtime.files, paths.record),
    );
  }

  async #committed(
    paths: InstallPaths,
    name: string,
    sha256: string,
    record: InstallRecord | undefined,
  ): Promise<Install | undefined> {
    if (record === undefined || record.archiveSha256 !== sha256) return undefined;
    const binary = record.entry === undefined ? paths.binary : `${paths.folder}/${record.entry}`;
    const actual = await this.#hashes.sha256(binary);
    if (actual !== record.binarySha256) {
      this.#options.log.warn("install_damaged", {
        version: name,
        binary,
        expected: record.binarySha256,
        actual: actual ?? "missing",
      });
      return undefined;
    }
    return {
      name,
      sha256,
      binarySha256: record.binarySha256,
      binary,
      folder: paths.folder,
      layout: "canonical",
    };
  }

  /**
   * A verified flat install, copied to its canonical place. If that cannot be done the flat file is
   * used where it is, once more verified; it is never removed here, since an older program that
   * shares the folder may run it.
   */
  async #promoted(name: string, sha256: string): Promise<Install | undefined> {
    const { runtime, log, binDir, config } = this.#options;
    const { files } = runtime;
    const flat = flatPaths(binDir, name, config.binaryName);
    const record = await readRecord(files, flat.record);
    if (record === undefined || record.entry !== undefined) return undefined;
    const install = await this.#committed(flat, name, sha256, record);
    if (install === undefined) return undefined;
    const paths = canonicalPaths(binDir, name, sha256, config.binaryName);
    const copy = this.#temporary(name, sha256);
    try {
      await files.makeFolder(paths.folder, 0o755);
      await files.copy(flat.binary, copy, 0o755);
      await this.#publish(copy, paths, record);
      log.info("install_promoted", { version: name, sha256 });
      return await this.#canonical(name, sha256);
    } catch (error) {
      await files.remove(copy).catch(() => {});
      log.warn("install_not_promoted", { version: name, sha256, error: messageOf(error) });
      // Hashed anew: what is about to run is this file, whatever happened since it was looked at.
      this.#hashes.forget(flat.binary);
      const again = await this.#committed(flat, name, sha256, record);
      return again === undefined ? undefined : { ...again, layout: "flat" };
    }
  }

  async #download(desired: DesiredVersion, options: EnsureOptions): Promise<Install> {
    const { runtime, log, binDir, config } = this.#options;
    const { files } = runtime;
    const { name, sha256 } = desired;
    const { signal, onProgress } = options;
    const paths = canonicalPaths(binDir, name, sha256, config.binaryName);
    const folder = `${binDir}/${name}`;
    await onDisk(files.makeFolder(folder, 0o755));
    if (isUnencrypted(desired.url)) {
      // Its hash comes from the oracle, so it cannot be replaced on the way; but it can be seen.
      log.warn("artifact_not_encrypted", { version: name, url: printableUrl(desired.url) });
    }
    log.info("download_started", { version: name, sha256, url: printableUrl(desired.url) });
    const archive = await download({
      runtime,
      url: desired.url,
      sha256,
      folder,
      maxDownloadBytes: config.maxDownloadBytes,
      downloadTimeoutMs: config.downloadTimeoutMs,
      downloadStallMs: config.downloadStallMs,
      allowInsecure: config.allowInsecure,
      ...(signal === undefined ? {} : { signal }),
      onProgress: (bytes, total) =>
        onProgress?.({ step: "downloading", bytes, ...(total === undefined ? {} : { total }) }),
    });
    const into = this.#temporary(name, sha256);
    try {
      onProgress?.({ step: "unpacking" });
      await onDisk(files.makeFolder(into, 0o755));
      const { program, tree } = await unpack({
        files,
        archive,
        into,
        binaryName: config.binaryName,
        ...entryPointOf(desired, config.entryPoint),
        maxExtractedBytes: config.maxExtractedBytes,
        maxArchiveEntries: config.maxArchiveEntries,
        ...(signal === undefined ? {} : { signal }),
      });
      throwIfAborted(signal);
      const binarySha256 = await onDisk(files.sha256(`${into}/${program}`));
      await onDisk(files.makeFolder(paths.folder, 0o755));
      const record: InstallRecord = { archiveSha256: sha256, binarySha256 };
      if (tree) {
        const name = `tree-${runtime.random.uuid()}`;
        await onDisk(
          this.#publishTree(into, paths, { ...record, entry: `${name}/${program}` }, name),
        );
      } else {
        await onDisk(this.#publish(`${into}/${program}`, paths, record));
      }
    } finally {
      await files.remove(into).catch(() => {});
      await files.remove(archive).catch(() => {});
    }
    const install = await this.#canonical(name, sha256);
    if (install === undefined) {
      throw new RolloutFailure("transient", `${paths.folder} was changed while it was installed`);
    }
    log.info("installed", { version: name, sha256, binarySha256: install.binarySha256 });
    return install;
  }

  /** Moves a synced program to its place, then commits. */
  async #publish(program: string, paths: InstallPaths, record: InstallRecord): Promise<void> {
    const { files } = this.#options.runtime;
    await files.rename(program, paths.binary);
    await files.syncFolder(paths.folder);
    await this.#commit(paths, record);
  }

  /** The same for a tree; its name is new, so a half-removed or rival one is never mixed with it. */
  async #publishTree(
    tree: string,
    paths: InstallPaths,
    record: InstallRecord,
    name: string,
  ): Promise<void> {
    const { files } = this.#options.runtime;
    await files.rename(tree, `${paths.folder}/${name}`);
    await files.syncFolder(paths.folder);
    await this.#commit(paths, record);
  }

  async #commit(paths: InstallPaths, record: InstallRecord): Promise<void> {
    const { files } = this.#options.runtime;
    const { binDir } = this.#options;
    await writeRecord(files, paths.record, record);
    await files.syncFolder(paths.folder.slice(0, paths.folder.lastIndexOf("/")));
    await files.syncFolder(binDir);
  }

  /** Work in progress; found by its leading dot and its age if we die. */
  #temporary(name: string, sha256: string): string {
    const { binDir, runtime } = this.#options;
    return `${binDir}/${name}/.${sha256}.${runtime.random.uuid()}.tmp`;
  }
}

function entryPointOf(
  desired: DesiredVersion,
  configured: string | undefined,
): { entryPoint?: string } {
  const entryPoint = desired.entryPoint ?? configured;
  return entryPoint === undefined ? {} : { entryPoint };
}

function isUnencrypted(url: string): boolean {
  return url.startsWith("http:") && !isLoopbackHost(new URL(url).hostname);
}
