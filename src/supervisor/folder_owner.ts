/**
 * Whose a folder is. Two Batons in one folder would end each other's children as orphans and overwrite
 * each other's records.
 *
 * The kernel's lock on the folder decides: it ends with its process, and holds between containers
 * whose pids mean nothing to each other. The record of pid and start time is for people, and for where
 * there is no such lock; there it tells only processes of one pid namespace apart.
 */

import type { Log } from "../observe/log.ts";
import type { FolderLock, Runtime } from "../runtime/runtime.ts";

/** The last owner's record; pid and start time together name one process for ever. */
export interface OwnerRecord {
  readonly pid: number;
  readonly startTime: string;
}

export type FolderHold =
  | { readonly kind: "ours"; release(): void }
  /** `by` describes the other one. */
  | { readonly kind: "other"; readonly by: string };

type OwnerRuntime = Pick<Runtime, "files" | "processes" | "pid">;

/** Takes a folder unless another live process has it. The caller then writes the record. */
export async function holdFolder(
  runtime: OwnerRuntime,
  log: Log,
  folder: string,
  last: OwnerRecord | undefined,
): Promise<FolderHold> {
  const lock = await runtime.files.lockFolder(folder);
  const isAlive = last !== undefined && last.pid !== runtime.pid && last.startTime !== "" &&
    await runtime.processes.startTime(last.pid) === last.startTime;
  if (isAlive) {
    // Also with the lock ours: a Baton that could not lock, or knew nothing of locks, has it.
    release(lock);
    return { kind: "other", by: `process ${last.pid}` };
  }
  if (lock.kind === "held") {
    const record = last === undefined ? "it left no record" : `its record says process ${last.pid}`;
    return { kind: "other", by: `another process, perhaps of another container (${record})` };
  }
  if (lock.kind === "unavailable") {
    log.warn("folder_not_locked", { folder, reason: lock.reason });
  }
  return { kind: "ours", release: () => release(lock) };
}

function release(lock: FolderLock): void {
  if (lock.kind === "locked") lock.release();
}
