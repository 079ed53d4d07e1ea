/**
 * The one program in a zip: the first entry, in the order of its directory, whose base name is the
 * binary's. Where the entry claims to be does not matter, so `../` leads nowhere.
 */

import { type Entry, type FileEntry, Reader, ZipReader } from "@zip.js/zip.js";
import type { Files } from "../runtime/runtime.ts";
import {
  badArchive,
  onDisk,
  programEntry,
  type UnpackOptions,
  writeEntry,
} from "./archive_entry.ts";
import { RolloutFailure } from "./failure.ts";

/** The directory of a zip is read in one piece; no honest one is near this. */
const MAX_PIECE_BYTES = 64 * 2 ** 20;

/** See `unpack`. */
export async function unpackZip(options: UnpackOptions): Promise<void> {
  const { files, archive, signal } = options;
  const size = (await files.info(archive))?.size ?? 0;
  const zip = new ZipReader(new FileReader({ files, path: archive, size }), {
    useWebWorkers: false,
    ...(signal === undefined ? {} : { signal }),
  });
  try {
    const entry = await findProgram(zip, options);
    if (entry.uncompressedSize > options.maxExtractedBytes) {
      throw new RolloutFailure(
        "download",
        `${entry.filename} says it unpacks to ${entry.uncompressedSize} bytes; at most ${options.maxExtractedBytes} are taken`,
      );
    }
    const pipe = new TransformStream<Uint8Array, Uint8Array>();
    const taken = writeEntry(options, programEntry(options), pipe.readable);
    // Whichever side fails first ends the other: the pipe carries the error both ways.
    const [, written] = await Promise.allSettled([
      entry.getData(pipe.writable, { checkSignature: true, useWebWorkers: false }).catch(
        async (error) => {
          await pipe.writable.abort(error).catch(() => {});
          throw error;
        },
      ),
      taken,
    ]);
    if (written.status === "rejected") throw written.reason;
  } catch (error) {
    throw badArchive(error, signal);
  } finally {
    await zip.close().catch(() => {});
  }
}

async function findProgram(zip: ZipReader<unknown>, options: UnpackOptions): Promise<FileEntry> {
  let seen = 0;
  // Only base names count here: where an entry claims to be is nothing to object to.
  for await (const entry of zip.getEntriesGenerator({ filenameValidation: "tolerant" })) {
    seen += 1;
    if (seen > options.maxArchiveEntries) {
      throw new RolloutFailure("download", `more than ${options.maxArchiveEntries} entries`);
    }
    if (!isFile(entry) || baseName(entry.filename) !== options.binaryName) continue;
    if (entry.symlink) {
      throw new RolloutFailure("download", `${entry.filename} is a link, not a program`);
    }
    if (entry.encrypted) throw new RolloutFailure("download", `${entry.filename} is encrypted`);
    return entry;
  }
  throw new RolloutFailure("download", `there is no ${options.binaryName} in the zip`);
}

function isFile(entry: Entry): entry is FileEntry {
  return !entry.directory;
}

function baseName(path: string): string {
  return path.slice(path.lastIndexOf("/") + 1);
}

interface Source {
  readonly files: Files;
  readonly path: string;
  readonly size: number;
}

/** Reads pieces of a file on disk, so that no archive is ever held in memory. */
class FileReader extends Reader<Source> {
  readonly #source: Source;

  constructor(source: Source) {
    super(source);
    this.#source = source;
    this.size = source.size;
  }

  override async readUint8Array(index: number, length: number): Promise<Uint8Array> {
    const wanted = Math.max(0, Math.min(length, this.#source.size - index));
    if (wanted > MAX_PIECE_BYTES) throw new Error(`its directory takes ${wanted} bytes`);
    const bytes = new Uint8Array(wanted);
    if (wanted === 0) return bytes;
    const reader = (await onDisk(this.#source.files.stream(this.#source.path, index))).getReader();
    let filled = 0;
    while (filled < wanted) {
      const { done, value } = await onDisk(reader.read());
      if (done) throw new Error("the file became shorter");
      const piece = value.subarray(0, wanted - filled);
      bytes.set(piece, filled);
      filled += piece.length;
    }
    await reader.cancel();
    return bytes;
  }
}
