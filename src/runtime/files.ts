/** Files over `node:fs`, which both runtimes implement alike (the contract suite holds them to it). */

import { constants } from "node:fs";
import * as fs from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import { errorCode, errorText } from "./error_code.ts";
import { createHasher, sha256OfFile } from "./file_hash.ts";
import { watchPath } from "./file_watch.ts";
import { createFolderLocks, type TryLock } from "./folder_locks.ts";
import { type FileInfo, FileMissing, type Files, type FileWriter } from "./runtime.ts";

const STREAM_CHUNK_BYTES = 64 * 1024;

/** The real file system; what asks the kernel for a lock differs between the runtimes. */
export function createFiles(tryLock: TryLock): Files {
  return {
    read: (path) => orMissing(path, async () => plainBytes(await fs.readFile(path))),
    readText: (path) => orMissing(path, () => fs.readFile(path, "utf8")),
    stream: (path, start) => orMissing(path, () => streamFile(path, start ?? 0)),
    writeAtomic,
    openWrite: (path, options) => orMissing(path, () => openWriter(path, options)),
    sha256: (path) => orMissing(path, () => sha256OfFile(path)),
    hasher: createHasher,
    info,
    list: (folder) => orMissing(folder, () => fs.readdir(folder)),
    async makeFolder(path, mode) {
      await fs.mkdir(path, { recursive: true, mode });
    },
    rename: (from, to) => orMissing(from, () => fs.rename(from, to)),
    copy: (from, to, mode) => orMissing(from, () => copyFile(from, to, mode)),
    remove: (path) => fs.rm(path, { recursive: true, force: true }),
    chmod: (path, mode) => orMissing(path, () => fs.chmod(path, mode)),
    symlink: (target, path) => orMissing(path, () => fs.symlink(target, path)),
    syncFolder: (path) => orMissing(path, () => syncFolder(path)),
    watch: watchPath,
    lockFolder: createFolderLocks(tryLock),
  };
}

async function orMissing<T>(path: string, action: () => Promise<T>): Promise<T> {
  try {
    return await action();
  } catch (error) {
    if (isMissing(error)) throw new FileMissing(`${path}: no such file`, { cause: error });
    throw error;
  }
}

/** ENOTDIR means that a parent is a file, so nothing can exist at the path either. */
function isMissing(error: unknown): boolean {
  const code = errorCode(error);
  return code === "ENOENT" || code === "ENOTDIR";
}

function plainBytes(buffer: Uint8Array): Uint8Array {
  return new Uint8Array(buffer.buffer, buffer.byteOffset, buffer.byteLength);
}

async function info(path: string): Promise<FileInfo | undefined> {
  try {
    const found = await fs.lstat(path);
    return {
      kind: found.isFile()
        ? "file"
        : found.isDirectory()
        ? "folder"
        : found.isSymbolicLink()
        ? "link"
        : "other",
      size: found.size,
      mtimeMs: found.mtimeMs,
      inode: found.ino,
      mode: found.mode & 0o7777,
    };
  } catch (error) {
    if (isMissing(error)) return undefined;
    throw error;
  }
}

async function streamFile(path: string, start: number): Promise<ReadableStream<Uint8Array>> {
  const file = await fs.open(path, "r");
  let position = start;
  return new ReadableStream<Uint8Array>({
    async pull(controller) {
      try {
        const buffer = new Uint8Array(STREAM_CHUNK_BYTES);
        const { bytesRead } = await file.read(buffer, 0, buffer.length, position);
        if (bytesRead === 0) {
          await file.close();
          controller.close();
          return;
        }
        position += bytesRead;
        controller.enqueue(buffer.subarray(0, bytesRead));
      } catch (error) {
        await file.close().catch(() => {});
        throw error;
      }
    },
    cancel: () => file.close(),
  }, { highWaterMark: 0 });
}

async function writeAtomic(
  path: string,
  content: Uint8Array | string,
  mode?: number,
): Promise<void> {
  const bytes = typeof content === "string" ? new TextEncoder().encode(content) : content;
  const folder = dirname(path);
  const temporary = join(folder, `.${basename(path)}.${crypto.randomUUID()}.tmp`);
  try {
    const file = await orMissing(folder, () => fs.open(temporary, "wx", mode));
    try {
      await writeAll(file, path, bytes);
      // The mode given to open is cut by the umask; this one is exact.
      if (mode !== undefined) await file.chmod(mode);
      await file.sync();
    } finally {
      await file.close();
    }
    await fs.rename(temporary, path);
  } catch (error) {
    await fs.rm(temporary, { force: true }).catch(() => {});
    throw error;
  }
  await syncFolder(folder);
}

/** An error of a write (a full disk) does not say by itself what was written: here it names the path. */
async function writeAll(file: fs.FileHandle, path: string, bytes: Uint8Array): Promise<void> {
  try {
    for (let done = 0; done < bytes.length;) {
      const { bytesWritten } = await file.write(bytes, done, bytes.length - done);
      done += bytesWritten;
    }
  } catch (error) {
    const named = new Error(`${path}: ${errorText(error)}`, { cause: error });
    throw Object.assign(named, { code: errorCode(error) });
  }
}

async function syncFolder(path: string): Promise<void> {
  const folder = await fs.open(path, constants.O_RDONLY | constants.O_DIRECTORY);
  try {
    await folder.sync();
  } finally {
    await folder.close();
  }
}

async function openWriter(
  path: string,
  options: { append?: boolean; mode?: number } = {},
): Promise<FileWriter> {
  const file = await fs.open(path, options.append ? "a" : "w", options.mode);
  return {
    write: (bytes) => writeAll(file, path, bytes),
    sync: () => file.sync(),
    close: () => file.close(),
  };
}

async function copyFile(from: string, to: string, mode?: number): Promise<void> {
  await fs.copyFile(from, to);
  const file = await fs.open(to, "r+");
  try {
    if (mode !== undefined) await file.chmod(mode);
    await file.sync();
  } finally {
    await file.close();
  }
}
