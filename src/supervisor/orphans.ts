/**
 * Children that an earlier Baton left running.
 *
 * Found by the record (pid and start time name one process for ever) and by the mark in the
 * environment of every live process, which also finds one that was never recorded and helpers whose
 * leader is gone. They are ended, not adopted: their output goes to pipes that nobody holds any
 * more, so they would die of their next log line.
 */

import { messageOf } from "../errors.ts";
import type { Log } from "../observe/log.ts";
import type { Runtime } from "../runtime/runtime.ts";
import { CHILD_VARIABLE, type Children } from "./children.ts";
import type { Reports } from "./reports.ts";
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

/** The orphans of one service, until each has ended. */
export class Orphans {
  readonly #runtime: OrphanRuntime;
  readonly #reports: Reports;
  readonly #children: Children;
  readonly #left: Set<Orphan>;
  #graceMs: number;

  constructor(
    runtime: OrphanRuntime,
    reports: Reports,
    children: Children,
    found: readonly Orphan[],
    graceMs: number,
  ) {
    this.#runtime = runtime;
    this.#reports = reports;
    this.#children = children;
    this.#left = new Set(found);
    this.#graceMs = graceMs;
    if (found.length > 0) reports.orphans(found.length);
  }

  of(version: string): Orphan[] {
    return [...this.#left].filter((orphan) => orphan.version === version);
  }

  /** Ends all of them side by side; `onEnd` is told of each version that one is gone from. */
  async endAll(onEnd: (version: string) => void): Promise<void> {
    await Promise.all([...this.#left].map(async (orphan) => {
      this.#reports.tell("warn", "orphan_found", orphan.version, { ...orphan });
      const ended = await this.#end(orphan.group).catch(() => false);
      const level = ended ? "info" : "error";
      this.#reports.tell(level, "orphan_ended", orphan.version, { ...orphan, ended });
      this.#left.delete(orphan);
      await this.#children.remove(orphan.version, orphan.generation);
      onEnd(orphan.version);
    }));
  }

  /** Those that are still there get SIGKILL now: Baton itself is about to end. */
  hurry(): void {
    this.#graceMs = 0;
    for (const { group } of this.#left) send(this.#runtime, group, "SIGKILL");
  }

  /** SIGTERM to the group, SIGKILL after the grace. True when no process of it is left. */
  async #end(group: number): Promise<boolean> {
    const { clock, processes } = this.#runtime;
    const startMs = clock.monotonic();
    send(this.#runtime, group, "SIGTERM");
    let killed = false;
    while ((await processes.groupMembers(group)).length > 0) {
      const waitedMs = clock.monotonic() - startMs;
      if (!killed && waitedMs >= this.#graceMs) {
        send(this.#runtime, group, "SIGKILL");
        killed = true;
      }
      if (killed && waitedMs >= this.#graceMs + KILL_WAIT_MS) return false;
      await sleep(clock, POLL_MS);
    }
    return true;
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
    return { version, generation: Number(number) || 0, group: Number(group) };
  } catch {
    // Gone meanwhile, or another user's process, which no child of ours is.
    return undefined;
  }
}
