/**
 * Unpacks an artifact whose hash has been verified: a zip, a tar.gz tree, or a bare program.
 *
 * Nothing in it is trusted for where or how it is written: a program from a zip goes to one fixed
 * name; paths of a tree are checked part by part; stored permission bits are reduced to "runs" or
 * "does not"; and sizes are counted as they come, not as they are announced.
 */

import type { Files, FileWriter } from "../runtime/runtime.ts";
import { abortReason, messageOf, RolloutFailure, throwIfAborted } from "./failure.ts";
import { unpackTree } from "./archive_tar.ts";
import { unpackZip } from "./archive_zip.ts";

export interface UnpackOptions {
  readonly files: Files;
  readonly archive: string;
  /** An empty folder that takes what is unpacked. */
  readonly into: string;
  readonly binaryName: string;
  /** For trees: the program inside; absent: the first file whose base name is `binaryName`. */
  readonly entryPoint?: string;
  readonly maxExtractedBytes: number;
  readonly maxArchiveEntries: number;
  readonly signal?: AbortSignal;
}

export interface Unpacked {
  /** The program, relative to `into`. */
  readonly program: string;
  /** A tree is installed as a whole; otherwise only the program. */
  readonly tree: boolean;
}

type Format = "zip" | "tar.gz" | "program";

/**
 * Unpacks and syncs to disk; the program is mode 0755. Throws `RolloutFailure` of class `download`
 * for a bad archive, `transient` for a disk that refuses, or the signal's reason. What was written
 * until then is left for the caller to remove with the folder.
 */
export async function unpack(options: UnpackOptions): Promise<Unpacked> {
  throwIfAborted(options.signal);
  switch (await formatOf(options.files, options.archive)) {
    case "zip":
      await unpackZip(options);
      return { program: options.binaryName, tree: false };
    case "tar.gz":
      return { program: await unpackTree(options), tree: true };
    case "program": {
      const body = await options.files.stream(options.archive);
      await writeEntry(options, programEntry(options), body);
      return { program: options.binaryName, tree: false };
    }
  }
}

/** Where a single program goes. */
export function programEntry(options: UnpackOptions) {
  return {
    relative: options.binaryName,
    mode: 0o755,
    allowance: new Allowance(options.maxExtractedBytes),
  };
}

/** By the first bytes, since an address or a name may say anything. */
async function formatOf(files: Files, path: string): Promise<Format> {
  const head = await readStart(files, path, 4);
  const text = String.fromCharCode(...head);
  if (text === "PK\x03\x04" || text === "PK\x05\x06") return "zip";
  if (text.startsWith("\x1f\x8b")) return "tar.gz";
  const machO = ["\xcf\xfa\xed\xfe", "\xca\xfe\xba\xbe"];
  if (text === "\x7fELF" || text.startsWith("#!") || machO.includes(text)) return "program";
  throw new RolloutFailure("download", "the artifact is no zip, no tar.gz and no program");
}

async function readStart(files: Files, path: string, length: number): Promise<number[]> {
  const reader = (await files.stream(path)).getReader();
  const bytes: number[] = [];
  while (bytes.length < length) {
    const { done, value } = await reader.read();
    if (done) return bytes;
    bytes.push(...value.subarray(0, length - bytes.length));
  }
  await reader.cancel();
  return bytes;
}

/** The bytes that one unpacking may still write, over all its files. */
export class Allowance {
  readonly #max: number;
  #left: number;

  constructor(max: number) {
    this.#max = max;
    this.#left = max;
  }

  /** Takes from what is left; throws when that is not enough. */
  spend(bytes: number): void {
    this.#left -= bytes;
    if (this.#left >= 0) return;
    throw new RolloutFailure("download", `the artifact unpacks to more than ${this.#max} bytes`);
  }
}

/**
 * Writes one file of an artifact: counted, synced, closed on every path. `relative` has been checked
 * by the caller. Throws what the body throws; a disk's error as a `transient` failure.
 */
export async function writeEntry(
  options: UnpackOptions,
  entry: { readonly relative: string; readonly mode: number; readonly allowance: Allowance },
  body: ReadableStream<Uint8Array>,
): Promise<void> {
  const { files, signal } = options;
  const path = `${options.into}/${entry.relative}`;
  const reader = body.getReader();
  let writer: FileWriter | undefined;
  try {
    writer = await onDisk(files.openWrite(path, { mode: entry.mode }));
    while (true) {
      if (signal?.aborted === true) throw abortReason(signal);
      const { done, value } = await reader.read();
      if (done) break;
      entry.allowance.spend(value.length);
      await onDisk(writer.write(value));
    }
    await onDisk(writer.sync());
  } catch (error) {
    // Whoever feeds the body must learn that nobody reads on.
    await reader.cancel(error).catch(() => {});
    throw error;
  } finally {
    await writer?.close();
  }
  // The mode given to open is cut by the umask.
  await onDisk(files.chmod(path, entry.mode));
}

/** A disk's error (full, read-only, broken) says nothing about the build: it is transient. */
export async function onDisk<Value>(action: Promise<Value>): Promise<Value> {
  try {
    return await action;
  } catch (error) {
    if (error instanceof RolloutFailure) throw error;
    throw new RolloutFailure("transient", `disk: ${messageOf(error)}`, { cause: error });
  }
}

/** What an archive's reader threw, as a failure of the artifact. */
export function badArchive(error: unknown, signal: AbortSignal | undefined): Error {
  if (signal?.aborted === true) return abortReason(signal);
  if (error instanceof RolloutFailure) return error;
  return new RolloutFailure("download", `the artifact cannot be unpacked: ${messageOf(error)}`, {
    cause: error,
  });
}
