/**
 * Whose the state folder of a host is, on record. A host that finds it taken leaves it alone and keeps
 * its journal in memory: two routers may share a folder while one hands over to the other. A versions
 * service, which has a folder of its own in it, does not start then (supervisor/children.ts).
 */

import type { Log } from "../observe/log.ts";
import { FileMissing, isDiskFull, type Runtime } from "../runtime/runtime.ts";
import { holdFolder, type OwnerRecord } from "../supervisor/folder_owner.ts";

export interface Ownership {
  /** Who has the folder, for people, if not we. */
  readonly other: string | undefined;
  /** Gives the folder up, if it is ours. */
  release(): Promise<void>;
}

type OwnerRuntime = Pick<Runtime, "files" | "processes" | "pid">;

/** Takes the folder unless another live process has it. A full disk costs the record alone. */
export async function takeOwnership(
  runtime: OwnerRuntime,
  log: Log,
  folder: string,
): Promise<Ownership> {
  const path = `${folder}/owner.json`;
  const hold = await holdFolder(runtime, log, folder, await readOwner(runtime, path));
  if (hold.kind === "other") return { other: hold.by, release: () => Promise.resolve() };
  const startTime = await runtime.processes.startTime(runtime.pid);
  try {
    await runtime.files.writeAtomic(path, JSON.stringify({ pid: runtime.pid, startTime }) + "\n");
  } catch (error) {
    if (!isDiskFull(error)) {
      hold.release();
      throw error;
    }
    log.error("owner_not_recorded", { folder, error });
  }
  return {
    other: undefined,
    release: async () => {
      const now = await readOwner(runtime, path);
      if (now?.pid === runtime.pid) await runtime.files.remove(path);
      hold.release();
    },
  };
}

async function readOwner(runtime: OwnerRuntime, path: string): Promise<OwnerRecord | undefined> {
  try {
    const value: unknown = JSON.parse(await runtime.files.readText(path));
    const { pid, startTime } = (value ?? {}) as Record<string, unknown>;
    return typeof pid === "number" && typeof startTime === "string"
      ? { pid, startTime }
      : undefined;
  } catch (error) {
    // None, or torn by a crash: nobody's.
    if (error instanceof FileMissing || error instanceof SyntaxError) return undefined;
    throw error;
  }
}
