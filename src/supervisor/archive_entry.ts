/**
 * One file of an artifact on its way to the disk, whatever archive it comes from.
 */

import { messageOf } from "../errors.ts";
import type { Files, FileWriter } from "../runtime/runtime.ts";
import { abortReason, RolloutFailure } from "./failure.ts";

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

/** Where a single program goes. */
export function programEntry(options: UnpackOptions) {
  return {
    relative: options.binaryName,
    mode: 0o755,
    allowance: new Allowance(options.maxExtractedBytes),
  };
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
