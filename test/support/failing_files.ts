/** File systems that count what is done to them, and fail when a test says so. */

import type { Files } from "../../src/runtime/runtime.ts";

/** Calls `changed` with a running count after each change of the disk; what it throws is thrown. */
export function counted(files: Files, changed: (count: number) => void): Files {
  let count = 0;
  const after = async <T>(action: Promise<T>): Promise<T> => {
    const value = await action;
    changed(++count);
    return value;
  };
  return {
    ...files,
    writeAtomic: (...args) => after(files.writeAtomic(...args)),
    makeFolder: (...args) => after(files.makeFolder(...args)),
    rename: (...args) => after(files.rename(...args)),
    copy: (...args) => after(files.copy(...args)),
    remove: (...args) => after(files.remove(...args)),
    chmod: (...args) => after(files.chmod(...args)),
    symlink: (...args) => after(files.symlink(...args)),
    syncFolder: (...args) => after(files.syncFolder(...args)),
    openWrite: async (...args) => {
      const writer = await after(files.openWrite(...args));
      return {
        write: (bytes) => after(writer.write(bytes)),
        sync: () => after(writer.sync()),
        close: () => writer.close(),
      };
    },
  };
}

/** Lets so many changes through; from then on every change fails, as if the power were gone. */
export function dyingAfter(files: Files, changes: number): Files {
  let left = changes;
  const gone = (): Promise<never> => Promise.reject(new Error("EIO: gone"));
  const before = <T>(action: () => Promise<T>): Promise<T> => left-- > 0 ? action() : gone();
  return {
    ...files,
    writeAtomic: (...args) => before(() => files.writeAtomic(...args)),
    makeFolder: (...args) => before(() => files.makeFolder(...args)),
    rename: (...args) => before(() => files.rename(...args)),
    copy: (...args) => before(() => files.copy(...args)),
    remove: (...args) => before(() => files.remove(...args)),
    chmod: (...args) => before(() => files.chmod(...args)),
    symlink: (...args) => before(() => files.symlink(...args)),
    syncFolder: (...args) => before(() => files.syncFolder(...args)),
    openWrite: (...args) =>
      before(async () => {
        const writer = await files.openWrite(...args);
        return {
          write: (bytes) =>
            before(() => writer.write(bytes)).catch(async (error) => {
              // A write that is cut in the middle.
              await writer.write(bytes.subarray(0, bytes.length >> 1)).catch(() => {});
              throw error;
            }),
          sync: () => before(() => writer.sync()),
          close: () => writer.close(),
        };
      }),
  };
}

/** A disk that is full while `isFull()`: nothing grows, what is there can be read, moved and removed. */
export function fullWhile(files: Files, isFull: () => boolean): Files {
  const full = (path: string): Error =>
    Object.assign(new Error(`ENOSPC: no space left on device, ${path}`), { code: "ENOSPC" });
  const orFull = <T>(path: string, action: () => Promise<T>): Promise<T> =>
    isFull() ? Promise.reject(full(path)) : action();
  return {
    ...files,
    writeAtomic: (path, ...rest) => orFull(path, () => files.writeAtomic(path, ...rest)),
    copy: (from, to, mode) => orFull(to, () => files.copy(from, to, mode)),
    symlink: (target, path) => orFull(path, () => files.symlink(target, path)),
    makeFolder: async (path, mode) => {
      if (isFull() && await files.info(path) === undefined) throw full(path);
      await files.makeFolder(path, mode);
    },
    openWrite: async (path, options) => {
      if (isFull() && await files.info(path) === undefined) throw full(path);
      const writer = await files.openWrite(path, options);
      return { ...writer, write: (bytes) => orFull(path, () => writer.write(bytes)) };
    },
  };
}
