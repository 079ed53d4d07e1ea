/**
 * Did somebody else get a child's port?
 *
 * A port is looked at before a child is told of it, and the child binds it some time later: in
 * between another process may take it. The child then ends, or waits, and what answers the probes is
 * a stranger. None of that says anything about the build, so the start is tried on another port.
 */

import type { Runtime } from "../runtime/runtime.ts";
import { CHILD_VARIABLE } from "./children.ts";

/** The child was told to use a port that it could not get. */
export class PortClash extends Error {
  override readonly name = "PortClash";
}

export interface PortOwner {
  /** The process group, whose number is the child's pid. */
  readonly group: number;
  /** The child's mark in its environment, which its helpers have too. */
  readonly mark: string;
  /** Clock ticks since boot, as `Processes.startTime` has it; undefined once the child has ended. */
  readonly startTime: string | undefined;
}

/**
 * The pid of a process that listens on the port and is nothing of the child's; undefined where there
 * is none, or none that is known for certain. A process that is older than the child is a stranger,
 * and so is another child; a younger one may serve for it (a container that the child started).
 */
export async function strangerOn(
  runtime: Pick<Runtime, "processes" | "files">,
  port: number,
  owner: PortOwner,
): Promise<number | undefined> {
  const { processes } = runtime;
  const holders = await processes.portHolders(port, owner.group);
  if (holders.length === 0 || holders.includes(owner.group)) return undefined;
  const members = await processes.groupMembers(owner.group);
  if (holders.some((pid) => members.includes(pid))) return undefined;
  for (const pid of holders) {
    const mark = await markOf(runtime, pid);
    if (mark === owner.mark) return undefined;
    if (mark !== undefined || owner.startTime === undefined) return pid;
    const startTime = await processes.startTime(pid);
    if (startTime !== undefined && BigInt(startTime) < BigInt(owner.startTime)) return pid;
  }
  return undefined;
}

async function markOf(runtime: Pick<Runtime, "files">, pid: number): Promise<string | undefined> {
  try {
    const environ = await runtime.files.readText(`/proc/${pid}/environ`);
    const prefix = `${CHILD_VARIABLE}=`;
    return environ.split("\0").find((line) => line.startsWith(prefix))?.slice(prefix.length);
  } catch {
    return undefined;
  }
}

/** How programs say that a port is taken: strerror(EADDRINUSE), its name, and common wordings. */
const COMPLAINT = /EADDRINUSE|address (?:is )?(?:already )?in use/i;
/** What a program says about its port it says early. */
const MAX_READ_BYTES = 262_144;
const OVERLAP_CHARS = 40;

/** Listens to a starting child's output for the complaint that its port is taken. */
export class PortComplaint {
  readonly #decoder = new TextDecoder("latin1");
  #heard = false;
  #readBytes = 0;
  #tail = "";

  get heard(): boolean {
    return this.#heard;
  }

  read(chunk: Uint8Array): void {
    if (this.#heard || this.#readBytes >= MAX_READ_BYTES) return;
    this.#readBytes += chunk.length;
    const text = this.#tail + this.#decoder.decode(chunk);
    this.#heard = COMPLAINT.test(text);
    this.#tail = text.slice(-OVERLAP_CHARS);
  }
}
