import { errorText } from "./error_code.ts";
import type { TryLock } from "./folder_locks.ts";

/** Deno asks for the lock itself. */
export const tryLockOnDeno: TryLock = async (path) => {
  let folder: Deno.FsFile | undefined;
  try {
    const file = await Deno.open(path, { read: true });
    folder = file;
    if (await file.tryLock(true)) return { kind: "locked", close: () => file.close() };
    file.close();
    return { kind: "held" };
  } catch (error) {
    folder?.close();
    return { kind: "unavailable", reason: errorText(error) };
  }
};
