/**
 * Whose a state folder is. Two Batons in one folder would end each other's children as orphans, so a
 * host that supervises programs refuses to start while another live one owns the folder.
 *
 * The owner is recorded as pid and start time, which together name one process for ever: the record
 * of a Baton that crashed means nothing.
 */

import { FileMissing, type Runtime } from "../runtime/runtime.ts";

export interface Ownership {
  /** The live process that owned the folder before us, if there is one: then it is not ours. */
  readonly otherPid: number | undefined;
  /** Gives the folder up, if it is ours. */
  release(): Promise<void>;
}

type OwnerRuntime = Pick<Runtime, "files" | "processes" | "pid">;

/** Takes the folder unless another live process has it. */
export async function takeOwnership(runtime: OwnerRuntime, folder: string): Promise<Ownership> {
  const path = `${folder}/owner.json`;
  const before = await readOwner(runtime, path);
  if (before !== undefined && before.pid !== runtime.pid) {
    const alive = await runtime.processes.startTime(before.pid);
    if (alive !== undefined && alive === before.startTime) {
      return { otherPid: before.pid, release: () => Promise.resolve() };
    }
  }
  const startTime = await runtime.processes.startTime(runtime.pid);
  await runtime.files.writeAtomic(path, JSON.stringify({ pid: runtime.pid, startTime }) + "\n");
  return {
    otherPid: undefined,
    release: async () => {
      const now = await readOwner(runtime, path);
      if (now?.pid === runtime.pid) await runtime.files.remove(path);
    },
  };
}

async function readOwner(
  runtime: OwnerRuntime,
  path: string,
): Promise<{ pid: number; startTime: string } | undefined> {
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
