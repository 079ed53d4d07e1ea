/** Child processes: everything but the launch itself, which `node_launch` and `deno_launch` do. */

import { explainRefusal, resolveCommand } from "./command.ts";
import type { Launch, Launched } from "./launch.ts";
import { portHolders } from "./port_holders.ts";
import { groupMembers, isEnded, readProcStat } from "./proc_stat.ts";
import { processExists, signalGroup } from "./process_group.ts";
import type { ChildProcess, Processes, ProcessExit, Signal, SpawnOptions } from "./runtime.ts";

/** Pipes that stay open after the exit (a grandchild holds them) are dropped once quiet for so long, */
const QUIET_PIPE_MS = 250;
/** and however busy, after so long. */
const BUSY_PIPE_MS = 2_000;
const DEFAULT_MAX_OUTPUT_BYTES = 1024 * 1024;

/** Child processes over one runtime's way of starting them. */
export function createProcesses(launch: Launch): Processes {
  const spawn = (options: SpawnOptions) => spawnChild(launch, options);
  return {
    spawn,
    run: (options) => runToEnd(spawn, options),
    async startTime(pid) {
      const stat = await readProcStat(pid);
      return stat === undefined || isEnded(stat.state) ? undefined : stat.startTime;
    },
    signalGroup,
    groupMembers,
    portHolders,
  };
}

async function spawnChild(launch: Launch, options: SpawnOptions): Promise<ChildProcess> {
  const command = await resolveCommand(options);
  let lastOutputAt = performance.now();
  const output = (stream: "stdout" | "stderr", chunk: Uint8Array): void => {
    lastOutputAt = performance.now();
    try {
      options.onOutput?.(stream, chunk);
    } catch {
      // An owner that throws must not stop the reading: the child would block.
    }
  };
  let launched: Launched;
  try {
    launched = await launch({ ...options, command }, output);
  } catch (error) {
    throw await explainRefusal(command, options.cwd, error);
  }
  const { pid } = launched;
  let isReaped = false;
  let isGone = false;
  const finish = async (): Promise<ProcessExit> => {
    const exit = await launched.reaped;
    isReaped = true;
    isGone = !signalGroup(pid, 0);
    await pipesEndedOrQuiet(launched, () => lastOutputAt);
    return exit;
  };
  return {
    pid,
    exited: finish(),
    signalGroup(signal: Signal): boolean {
      // Once the group is empty its number may be given to strangers, and a process with the
      // reaped child's pid is one.
      if (isReaped && !isGone && processExists(pid)) isGone = true;
      if (!isGone && !signalGroup(pid, signal)) isGone = isReaped;
      return !isGone;
    },
  };
}

async function pipesEndedOrQuiet(launched: Launched, lastOutputAt: () => number): Promise<void> {
  const reapedAt = performance.now();
  let timer: ReturnType<typeof setTimeout> | undefined;
  const givenUp = new Promise<void>((resolve) => {
    const check = () => {
      const now = performance.now();
      const quietSince = Math.max(reapedAt, lastOutputAt());
      if (now - quietSince >= QUIET_PIPE_MS || now - reapedAt >= BUSY_PIPE_MS) resolve();
      else timer = setTimeout(check, QUIET_PIPE_MS / 5);
    };
    timer = setTimeout(check, QUIET_PIPE_MS);
  });
  await Promise.race([launched.pipesEnded, givenUp]);
  clearTimeout(timer);
  launched.dropPipes();
}

async function runToEnd(
  spawn: Processes["spawn"],
  options: Parameters<Processes["run"]>[0],
): ReturnType<Processes["run"]> {
  const maxBytes = options.maxOutputBytes ?? DEFAULT_MAX_OUTPUT_BYTES;
  const kept = { stdout: new BoundedOutput(maxBytes), stderr: new BoundedOutput(maxBytes) };
  const child = await spawn({
    ...options,
    onOutput(stream, chunk) {
      kept[stream].add(chunk);
      options.onOutput?.(stream, chunk);
    },
  });
  let timedOut = false;
  const timer = setTimeout(() => {
    timedOut = true;
    child.signalGroup("SIGKILL");
  }, options.timeoutMs);
  const exit = await child.exited;
  clearTimeout(timer);
  // What the program left running in its group ends with it: nobody would ever stop it.
  child.signalGroup("SIGKILL");
  return { ...exit, stdout: kept.stdout.text(), stderr: kept.stderr.text(), timedOut };
}

/** The first bytes of an output; the rest is counted out. */
class BoundedOutput {
  readonly #chunks: Uint8Array[] = [];
  #roomBytes: number;

  constructor(maxBytes: number) {
    this.#roomBytes = maxBytes;
  }

  add(chunk: Uint8Array): void {
    if (this.#roomBytes === 0) return;
    const part = chunk.slice(0, this.#roomBytes);
    this.#roomBytes -= part.length;
    this.#chunks.push(part);
  }

  text(): string {
    const decoder = new TextDecoder();
    return this.#chunks.map((chunk) => decoder.decode(chunk, { stream: true })).join("") +
      decoder.decode();
  }
}
