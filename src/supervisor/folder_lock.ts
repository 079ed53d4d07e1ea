/**
 * A lock between processes on one host, made of nothing but a rename.
 *
 * A folder with its owner's name in it is renamed to the lock's path; that fails while another such
 * folder is there, since a rename replaces a folder only if that is empty. A lock whose owner is no
 * longer alive is moved aside. Pids of another container cannot be judged: a lock is
 * then waited for like a living one, until the time is over.
 */

import type { Clock, Files, Processes, Random } from "../runtime/runtime.ts";
import { FileMissing } from "../runtime/runtime.ts";
import { sleep } from "./wait.ts";

export interface LockOptions {
  readonly runtime: {
    readonly pid: number;
    readonly files: Files;
    readonly clock: Clock;
    readonly random: Random;
    readonly processes: Processes;
  };
  readonly path: string;
  readonly timeoutMs: number;
}

const RETRY_MS = 20;
const OWNER_FILE = "owner.json";

/** Runs the action while no other process runs one under the same lock. Throws on time-out. */
export async function withFolderLock<Value>(
  options: LockOptions,
  action: () => Promise<Value>,
): Promise<Value> {
  const { runtime, path, timeoutMs } = options;
  const { files, clock, random, processes } = runtime;
  const owner = JSON.stringify({
    pid: runtime.pid,
    startTime: await processes.startTime(runtime.pid) ?? "",
    id: random.uuid(),
  });
  const mine = `${path}.${random.uuid()}`;
  await files.makeFolder(mine, 0o755);
  try {
    await files.writeAtomic(`${mine}/${OWNER_FILE}`, owner);
    const deadline = clock.monotonic() + timeoutMs;
    while (!await tryRename(files, mine, path)) {
      const abandoned = await abandonedOwner(options);
      if (abandoned !== undefined) await moveAside(options, abandoned);
      if (clock.monotonic() > deadline) throw new Error(`${path} is held by another process`);
      await sleep(clock, RETRY_MS * (1 + random.number()));
    }
  } catch (error) {
    await files.remove(mine).catch(() => {});
    throw error;
  }
  try {
    return await action();
  } finally {
    if (await readOwner(files, path) === owner) await moveAside(options, owner);
  }
}

async function tryRename(files: Files, from: string, to: string): Promise<boolean> {
  try {
    await files.rename(from, to);
    return true;
  } catch (error) {
    if (error instanceof FileMissing) throw error;
    if (await files.info(to) === undefined) return await tryOnce(files, from, to);
    return false;
  }
}

/** The holder let go between the rename and the look: once more, and then an error is an error. */
async function tryOnce(files: Files, from: string, to: string): Promise<boolean> {
  try {
    await files.rename(from, to);
    return true;
  } catch (error) {
    if (await files.info(to) !== undefined) return false;
    throw error;
  }
}

async function readOwner(files: Files, path: string): Promise<string | undefined> {
  try {
    return await files.readText(`${path}/${OWNER_FILE}`);
  } catch (error) {
    if (error instanceof FileMissing) return undefined;
    throw error;
  }
}

/** The lock's owner if that was a process of this host that has ended. */
async function abandonedOwner(options: LockOptions): Promise<string | undefined> {
  const { files, processes } = options.runtime;
  const text = await readOwner(files, options.path);
  if (text === undefined) return undefined;
  const { pid, startTime } = JSON.parse(text) as { pid: unknown; startTime: unknown };
  if (typeof pid !== "number" || typeof startTime !== "string" || startTime === "") {
    return undefined;
  }
  return await processes.startTime(pid) === startTime ? undefined : text;
}

/**
 * Takes the lock away from `owner`, in one step: emptying it in place would let another one in while
 * it is being emptied. Should it have changed hands meanwhile, it is given back.
 */
async function moveAside(options: LockOptions, owner: string): Promise<void> {
  const { files, random } = options.runtime;
  const aside = `${options.path}.${random.uuid()}`;
  try {
    await files.rename(options.path, aside);
  } catch (error) {
    if (error instanceof FileMissing) return;
    throw error;
  }
  if (await readOwner(files, aside) === owner) await files.remove(aside);
  else await tryRename(files, aside, options.path);
}
