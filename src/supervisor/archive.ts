/**
 * Unpacks an artifact whose hash has been verified: a zip, a tar.gz tree, or a bare program.
 *
 * Nothing in it is trusted for where or how it is written: a program from a zip goes to one fixed
 * name; paths of a tree are checked part by part; stored permission bits are reduced to "runs" or
 * "does not"; and sizes are counted as they come, not as they are announced.
 */

import type { Files } from "../runtime/runtime.ts";
import { programEntry, type UnpackOptions, writeEntry } from "./archive_entry.ts";
import { RolloutFailure, throwIfAborted } from "./failure.ts";
import { unpackTree } from "./archive_tar.ts";
import { unpackZip } from "./archive_zip.ts";

export type { UnpackOptions } from "./archive_entry.ts";

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
