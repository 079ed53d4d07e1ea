/**
 * The phases of one drain.
 *
 * First the leases that the proxy holds, then the child's own count, then the signals; one deadline
 * bounds everything before the signals. The child's exit ends a drain in any phase.
 */

export type DrainPhase = "leases" | "asking" | "polling" | "cushion" | "stopping" | "done";
export type DrainEvent =
  /** The last lease was released. */
  | "leases_ended"
  /** The child answered the request to drain, or did not in time. */
  | "asked"
  /** The child says that nothing is in flight. */
  | "child_idle"
  /** The child has no drain status. */
  | "child_legacy"
  | "cushion_over"
  /** The shared deadline has come, or somebody wants the drain over with. */
  | "deadline"
  | "exited";

const MOVES: Readonly<Record<DrainPhase, Partial<Record<DrainEvent, DrainPhase>>>> = {
  // Also at the deadline the child is asked before it is signalled: a child that knows how can then
  // refuse new work and use the grace that follows.
  leases: { leases_ended: "asking", deadline: "asking", exited: "done" },
  asking: { asked: "polling", exited: "done" },
  polling: {
    child_idle: "stopping",
    child_legacy: "cushion",
    deadline: "stopping",
    exited: "done",
  },
  cushion: { cushion_over: "stopping", deadline: "stopping", exited: "done" },
  stopping: { exited: "done" },
  done: {},
};

/** The phase that follows, or undefined when the event changes nothing. */
export function moveDrain(phase: DrainPhase, event: DrainEvent): DrainPhase | undefined {
  return MOVES[phase][event];
}
