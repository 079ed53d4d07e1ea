/**
 * One operating-system process with one owner.
 *
 * What may happen to it is a table: stop asks its group to end and arms the grace timer once, force
 * and the end of the grace kill the group, and only the runtime's report that the process was
 * reaped makes it `exited`. Nobody else signals a child, so "done" always means reaped.
 */

import type { ChildProcess, Clock, ProcessExit } from "../runtime/runtime.ts";

export type ProcessState = "running" | "terminating" | "killing" | "exited";
export type ProcessEvent = "stop" | "force" | "grace_expired" | "exited";
export type ProcessAction = "terminate" | "kill" | "finish";

export interface ProcessMove {
  readonly to: ProcessState;
  readonly action: ProcessAction;
}

const FINISH: ProcessMove = { to: "exited", action: "finish" };
const TERMINATE: ProcessMove = { to: "terminating", action: "terminate" };
const KILL: ProcessMove = { to: "killing", action: "kill" };

/** The whole life of a process: what is not in here does not happen. */
const MOVES: Readonly<Record<ProcessState, Partial<Record<ProcessEvent, ProcessMove>>>> = {
  running: { stop: TERMINATE, force: KILL, exited: FINISH },
  terminating: { force: KILL, grace_expired: KILL, exited: FINISH },
  killing: { exited: FINISH },
  exited: {},
};

/** The move that an event causes, or undefined when it causes none. */
export function moveProcess(state: ProcessState, event: ProcessEvent): ProcessMove | undefined {
  return MOVES[state][event];
}

/** How a process ended. */
export interface ProcessResult extends ProcessExit {
  /** True when SIGKILL was needed, by force or because the grace ran out. */
  readonly escalated: boolean;
  /** True when nobody had asked it to end. */
  readonly natural: boolean;
}

export interface SupervisedProcessOptions {
  readonly child: ChildProcess;
  readonly clock: Clock;
  /** Told of each move, in order, before the next one can happen. */
  readonly onMove?: (from: ProcessState, to: ProcessState, cause: ProcessEvent) => void;
}

export class SupervisedProcess {
  readonly pid: number;
  /** Resolves once the process was reaped; never rejects. */
  readonly exited: Promise<ProcessResult>;
  readonly #child: ChildProcess;
  readonly #clock: Clock;
  readonly #onMove: SupervisedProcessOptions["onMove"];
  #state: ProcessState = "running";
  #escalated = false;
  #asked = false;
  #cancelGrace: (() => void) | undefined;

  constructor(options: SupervisedProcessOptions) {
    this.#child = options.child;
    this.#clock = options.clock;
    this.#onMove = options.onMove;
    this.pid = options.child.pid;
    this.exited = options.child.exited.then((exit) => {
      this.#handle("exited");
      return { ...exit, escalated: this.#escalated, natural: !this.#asked };
    });
  }

  get state(): ProcessState {
    return this.#state;
  }

  /** True once SIGKILL was sent. */
  get escalated(): boolean {
    return this.#escalated;
  }

  /** SIGTERM to the group now, SIGKILL after `graceMs`. Later calls change nothing. */
  stop(graceMs: number): void {
    if (moveProcess(this.#state, "stop") === undefined) return;
    this.#cancelGrace = this.#clock.after(graceMs, () => this.#handle("grace_expired"));
    this.#handle("stop");
  }

  /** SIGKILL to the group now. */
  force(): void {
    this.#handle("force");
  }

  #handle(event: ProcessEvent): void {
    const from = this.#state;
    const move = moveProcess(from, event);
    if (move === undefined) return;
    this.#state = move.to;
    this.#act(move.action);
    this.#onMove?.(from, move.to, event);
  }

  #act(action: ProcessAction): void {
    if (action === "terminate") {
      this.#asked = true;
      this.#child.signalGroup("SIGTERM");
      return;
    }
    this.#cancelGrace?.();
    if (action === "kill") {
      this.#asked = true;
      this.#escalated = true;
    }
    // Also after the leader was reaped: what it left behind in its group goes with it, or a helper
    // that it started would hold its port and its files for ever.
    this.#child.signalGroup("SIGKILL");
  }
}
