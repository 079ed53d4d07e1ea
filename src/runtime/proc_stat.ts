/** What Linux says about processes that are not our children: `/proc/<pid>/stat`, see proc(5). */

import { readdir, readFile } from "node:fs/promises";

export interface ProcStat {
  readonly state: string;
  readonly group: number;
  /** Clock ticks since boot. */
  readonly startTime: string;
}

/** undefined if there is no such process. */
export async function readProcStat(pid: number): Promise<ProcStat | undefined> {
  let text: string;
  try {
    text = await readFile(`/proc/${pid}/stat`, "utf8");
  } catch {
    return undefined;
  }
  return parseProcStat(text);
}

/** Field 2, the program's name, may hold spaces and parentheses: the others start after the last one. */
export function parseProcStat(text: string): ProcStat | undefined {
  const [state, , group, ...rest] = text.slice(text.lastIndexOf(")") + 2).split(" ");
  const startTime = rest[16];
  if (state === undefined || group === undefined || startTime === undefined) return undefined;
  return { state, group: Number(group), startTime };
}

/** Whether the state letter is that of a process that has ended and only waits to be reaped. */
export function isEnded(state: string): boolean {
  return state === "Z" || state === "X" || state === "x";
}

/** The pids of all live (not zombie) processes in a group. */
export async function groupMembers(group: number): Promise<number[]> {
  const pids = (await readdir("/proc")).filter((name) => /^\d+$/.test(name)).map(Number);
  const members: number[] = [];
  for (const pid of pids) {
    const stat = await readProcStat(pid);
    if (stat !== undefined && stat.group === group && !isEnded(stat.state)) members.push(pid);
  }
  return members;
}
