import process from "node:process";
import { errorCode } from "./error_code.ts";
import type { Signal } from "./runtime.ts";

/**
 * Signals every process of a group. False if the group has no process any more; one that we may not
 * signal exists, so that is an error and not an absence.
 */
export function signalGroup(group: number, signal: Signal | 0): boolean {
  // kill(2) gives 0 and -1 the meanings "my own group" and "everybody".
  if (!Number.isInteger(group) || group <= 1) throw new RangeError(`no process group: ${group}`);
  return send(-group, signal);
}

/** Whether a process with this pid exists (a zombie counts). */
export function processExists(pid: number): boolean {
  return send(pid, 0);
}

function send(target: number, signal: Signal | 0): boolean {
  try {
    process.kill(target, signal);
    return true;
  } catch (error) {
    if (errorCode(error) === "ESRCH") return false;
    // Asking (signal 0) about one that we may not signal: it exists.
    if (signal === 0 && errorCode(error) === "EPERM") return true;
    throw error;
  }
}
