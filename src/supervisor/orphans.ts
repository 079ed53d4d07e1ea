/**
 * Children that an earlier Baton left running.
 *
 * Found by the record (pid and start time name one process for ever) and by the mark in the
 * environment of every live process, which also finds one that was never recorded and helpers whose
 * leader is gone. They are ended, not adopted: their output goes to pipes that nobody holds any
 * more, so they would die of their next log line.
 */

import type { Log } from "../observe/log.ts";
import type { Runtime } from "../runtime/runtime.ts";
import { CHILD_VARIABLE } from "./children.ts";
import { messageOf } from "./failure.ts";
import type { ChildRecord } from "./state.ts";
import { sleep } from "./wait.ts";

export interface Orphan {
  readonly version: string;
  readonly generation: number;
  /** The process group: the pid that the child had. */
  readonly group: number;
}

type OrphanRuntime = Pick<Runtime, "files" | "processes" | "clock" | "pid">;

const POLL_MS = 50;
/** After SIGKILL only a process that the kernel holds (a dead disk) is still there. */
const KILL_WAIT_MS = 10_000;

/** Looks for everything that an owner's children left behind. Never throws. */
export async function findOrphans(
  runtime: OrphanRuntime,
  log: Log,
  owner: string,
  left: readonly ChildRecord[],
): Promise<Orphan[]> {
  const byGroup = new Map<number, Orphan>();
  for (const record of left) {
    if (await runtime.processes.startTime(record.pid) !== record.startTime) continue;
    const { name: version, generation, pid: group } = record;
    byGroup.set(group, { version, generation, group });
  }
  try {
    for (const entry of await runtime.files.list("/proc")) {
      const orphan = await marked(runtime, Number(entry), owner);
      if (orphan !== undefined && !byGroup.has(orphan.group)) byGroup.set(orphan.group, orphan);
    }
  } catch (error) {
    // A system without /proc: the records are all there is.
    log.debug("orphan_scan_unavailable", { error: messageOf(error) });
  }
  return [...byGroup.values()];
}

/** Ends an orphan's group: SIGTERM, SIGKILL after the grace. True when no process of it is left. */
export async function endOrphan(
  runtime: OrphanRuntime,
  log: Log,
  orphan: Orphan,
  graceMs: number,
): Promise<boolean> {
  const { group } = orphan;
  log.warn("orphan_found", { ...orphan });
  const startMs = runtime.clock.monotonic();
  send(runtime, group, "SIGTERM");
  let killed = false;
  for (;;) {
    if ((await runtime.processes.groupMembers(group)).length === 0) {
      log.info("orphan_ended", { ...orphan, killed });
      return true;
    }
    const waitedMs = runtime.clock.monotonic() - startMs;
    if (!killed && waitedMs >= graceMs) {
      send(runtime, group, "SIGKILL");
      killed = true;
    }
    if (killed && waitedMs >= graceMs + KILL_WAIT_MS) {
      log.error("orphan_not_ended", { ...orphan });
      return false;
    }
    await sleep(runtime.clock, POLL_MS);
  }
}

function send(runtime: OrphanRuntime, group: number, signal: "SIGTERM" | "SIGKILL"): void {
  try {
    runtime.processes.signalGroup(group, signal);
  } catch {
    // Not ours to signal: the wait above reports that it stays.
  }
}

async function marked(
  runtime: OrphanRuntime,
  pid: number,
  owner: string,
): Promise<Orphan | undefined> {
  if (!Number.isInteger(pid) || pid === runtime.pid) return undefined;
  try {
    const environ = await runtime.files.readText(`/proc/${pid}/environ`);
    const prefix = `${CHILD_VARIABLE}=${owner}/`;
    const mark = environ.split("\0").find((line) => line.startsWith(prefix));
    if (mark === undefined) return undefined;
    const [version, number] = mark.slice(prefix.length).split("/");
    const stat = await runtime.files.readText(`/proc/${pid}/stat`);
    // The fields after the program's name, which may hold spaces: state, parent, group.
    const [state, , group] = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
    if (version === undefined || state === "Z" || group === undefined) return undefined;
    return { version, generation: Number(number), group: Number(group) };
  } catch {
    // Gone meanwhile, or another user's process, which no child of ours is.
    return undefined;
  }
}
