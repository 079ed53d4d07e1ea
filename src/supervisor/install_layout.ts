/**
 * Where installs lie and what marks one as complete.
 *
 *     <binDir>/<name>/<sha256>/<binary>       the program, mode 0755
 *     <binDir>/<name>/<sha256>/tree-<id>/...  instead of it, for an artifact that is a tree
 *     <binDir>/<name>/<sha256>/install.json   written last: without it there is no install
 *     <binDir>/<name>/<binary>                an override's copy, or an older, flat install
 *     <binDir>/<name>/install.json            (with this beside it)
 *
 * Names that begin with a dot are work in progress. The layout is versiond's, so that either program
 * can take over the folder; `entry` in install.json is ours, and for trees only.
 */

import * as v from "valibot";
import type { Clock, Files } from "../runtime/runtime.ts";
import { FileMissing } from "../runtime/runtime.ts";

const RECORD_FILE = "install.json";

const recordSchema = v.object({
  archive_sha256: v.pipe(v.string(), v.nonEmpty(), v.toLowerCase()),
  binary_sha256: v.pipe(v.string(), v.nonEmpty(), v.toLowerCase()),
  entry: v.optional(v.pipe(v.string(), v.regex(/^(?!\/)(?!.*(^|\/)\.\.(\/|$))[^\0]+$/))),
});

/** What install.json says. */
export interface InstallRecord {
  readonly archiveSha256: string;
  readonly binarySha256: string;
  /** The program, relative to the folder; absent: the binary's name. */
  readonly entry?: string;
}

export interface InstallPaths {
  readonly folder: string;
  readonly record: string;
  readonly binary: string;
}

/** The canonical place of a build. Name and hash must have been checked (catalog.ts). */
export function canonicalPaths(
  binDir: string,
  name: string,
  sha256: string,
  binaryName: string,
): InstallPaths {
  return pathsIn(`${binDir}/${name}/${sha256}`, binaryName);
}

/** The place of an override's copy or a flat install. */
export function flatPaths(binDir: string, name: string, binaryName: string): InstallPaths {
  return pathsIn(`${binDir}/${name}`, binaryName);
}

function pathsIn(folder: string, binaryName: string): InstallPaths {
  return { folder, record: `${folder}/${RECORD_FILE}`, binary: `${folder}/${binaryName}` };
}

/** The record at a path, or undefined if there is none that can be read as one. */
export async function readRecord(files: Files, path: string): Promise<InstallRecord | undefined> {
  let text: string;
  try {
    text = await files.readText(path);
  } catch (error) {
    if (error instanceof FileMissing) return undefined;
    throw error;
  }
  try {
    const { archive_sha256, binary_sha256, entry } = v.parse(recordSchema, JSON.parse(text));
    return {
      archiveSha256: archive_sha256,
      binarySha256: binary_sha256,
      ...(entry === undefined ? {} : { entry }),
    };
  } catch {
    return undefined;
  }
}

/** Writes the commit marker, durably. Everything that it speaks of must be on disk before. */
export async function writeRecord(
  files: Files,
  path: string,
  record: InstallRecord,
): Promise<void> {
  const { archiveSha256, binarySha256, entry } = record;
  await files.writeAtomic(
    path,
    JSON.stringify({
      archive_sha256: archiveSha256,
      binary_sha256: binarySha256,
      ...(entry === undefined ? {} : { entry }),
    }),
    0o644,
  );
}

/**
 * Hashes of files, remembered for as long as inode, size and mtime stay the same: a poll must not
 * read hundreds of megabytes to learn that nothing changed.
 */
export class HashCache {
  readonly #files: Files;
  readonly #clock: Clock;
  readonly #known = new Map<string, { identity: string; sha256: string }>();

  constructor(files: Files, clock: Clock) {
    this.#files = files;
    this.#clock = clock;
  }

  /** SHA-256 of the file, or undefined if there is no file at the path. */
  async sha256(path: string): Promise<string | undefined> {
    const info = await this.#files.info(path);
    if (info?.kind !== "file") {
      this.#known.delete(path);
      return undefined;
    }
    const identity = `${info.inode}:${info.size}:${info.mtimeMs}`;
    const known = this.#known.get(path);
    if (known?.identity === identity) return known.sha256;
    let sha256: string;
    try {
      sha256 = await this.#files.sha256(path);
    } catch (error) {
      if (error instanceof FileMissing) return undefined;
      throw error;
    }
    // A file that was written a moment ago may be written again within the same tick of its mtime.
    if (this.#clock.now() - info.mtimeMs > SETTLED_MS) this.#known.set(path, { identity, sha256 });
    else this.#known.delete(path);
    return sha256;
  }

  forget(path: string): void {
    this.#known.delete(path);
  }
}

/** Coarser than the mtime of any file system in use. */
const SETTLED_MS = 2_000;
