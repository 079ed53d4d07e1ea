/**
 * Locks on folders, held by the kernel (flock on the folder itself).
 *
 * Such a lock belongs to an open file: it cannot be deleted by mistake, is given up whichever way its
 * process ends, and is the same for all containers that a kernel runs. Node cannot ask for one, but
 * the program `flock` (util-linux, busybox) can for a file that it is handed: the lock stays with the
 * open file, which is ours, when the program has ended.
 */

import { spawn } from "node:child_process";
import { closeSync, constants, openSync, statSync } from "node:fs";
import { errorText } from "./error_code.ts";
import type { FolderLock } from "./runtime.ts";

/** Asks the kernel once for the lock; `close` gives it up. */
export type TryLock = (path: string) => Promise<
  | { readonly kind: "locked"; close(): void }
  | { readonly kind: "held" }
  | { readonly kind: "unavailable"; readonly reason: string }
>;

interface Held {
  uses: number;
  close(): void;
}

/** See `Files.lockFolder`. Two open files of one process would lock each other out, so it counts. */
export function createFolderLocks(tryLock: TryLock): (path: string) => Promise<FolderLock> {
  const locks = new Map<string, Held>();
  let last: Promise<unknown> = Promise.resolve();
  const lock = async (path: string): Promise<FolderLock> => {
    let key: string;
    try {
      const { dev, ino } = statSync(path);
      key = `${dev} ${ino}`;
    } catch (error) {
      return { kind: "unavailable", reason: errorText(error) };
    }
    let held = locks.get(key);
    if (held === undefined) {
      const tried = await tryLock(path);
      if (tried.kind !== "locked") return tried;
      held = { uses: 0, close: () => tried.close() };
      locks.set(key, held);
    }
    const mine = held;
    mine.uses += 1;
    let released = false;
    return {
      kind: "locked",
      release: () => {
        if (released) return;
        released = true;
        mine.uses -= 1;
        if (mine.uses > 0) return;
        locks.delete(key);
        mine.close();
      },
    };
  };
  // One after another, or two calls for one folder would both ask the kernel.
  return (path) => {
    const next = last.then(() => lock(path));
    last = next.catch(() => {});
    return next;
  };
}

/** The exit code of `flock -n` when somebody else has the lock. */
const HELD = 1;

/** By way of the program `flock`. */
export const tryLockByProgram: TryLock = (path) => {
  let file: number;
  try {
    file = openSync(path, constants.O_RDONLY | constants.O_DIRECTORY);
  } catch (error) {
    return Promise.resolve({ kind: "unavailable", reason: errorText(error) });
  }
  return new Promise((resolve) => {
    const giveUp = (reason: string): void => {
      closeSync(file);
      resolve({ kind: "unavailable", reason });
    };
    const child = spawn("flock", ["-x", "-n", "3"], { stdio: ["ignore", "ignore", "pipe", file] });
    let said = "";
    child.stderr?.on("data", (chunk: Uint8Array) => (said += String(chunk)));
    let failed = false;
    child.on("error", (error) => {
      failed = true;
      giveUp(`the program flock cannot be run: ${errorText(error)}`);
    });
    child.on("close", (code) => {
      if (failed) return;
      if (code === 0) return resolve({ kind: "locked", close: () => closeSync(file) });
      if (code !== HELD) return giveUp(`flock: ${said.trim() || `exit code ${code}`}`);
      closeSync(file);
      resolve({ kind: "held" });
    });
  });
};
