/**
 * The states of a process that serves, and the moves between them.
 *
 * ```
 * starting -> serving -> announcing -> draining -> stopping -> stopped
 *    \_________________________________^   (never served: nothing to announce)
 * any of them but stopped -> forcing -> stopped
 * ```
 *
 * Nothing goes back: a process that began to drain takes no request ever again, also if it only
 * becomes able to serve in that moment.
 */

export const HOST_STATES = [
  "starting",
  "serving",
  "announcing",
  "draining",
  "stopping",
  "forcing",
  "stopped",
] as const;
export type HostState = (typeof HOST_STATES)[number];

/** What can happen to a host. `drain` carries whether there is a balancer to tell first. */
export type HostEvent =
  | { readonly kind: "available" }
  | { readonly kind: "drain"; readonly announce: boolean }
  | { readonly kind: "announced" }
  | { readonly kind: "stop" }
  | { readonly kind: "force" }
  | { readonly kind: "reaped" };

const MOVES: Readonly<Record<HostState, readonly HostState[]>> = {
  starting: ["serving", "draining", "forcing"],
  serving: ["announcing", "draining", "forcing"],
  announcing: ["draining", "forcing"],
  draining: ["stopping", "forcing"],
  stopping: ["stopped", "forcing"],
  forcing: ["stopped"],
  stopped: [],
};

/** True when a host may go from one state to the other in one step. */
export function mayMove(from: HostState, to: HostState): boolean {
  return MOVES[from].includes(to);
}

/** New work is let in. */
export function isAccepting(state: HostState): boolean {
  return state === "serving" || state === "announcing";
}

/** As far as the state goes, a balancer may send new work. */
export function isServing(state: HostState): boolean {
  return state === "serving";
}

/** The drain was begun, whatever came of it. */
export function isDraining(state: HostState): boolean {
  return state !== "starting" && state !== "serving";
}

/** The state after an event; the same state when the event changes nothing there. */
export function nextHostState(state: HostState, event: HostEvent): HostState {
  const wanted = wantedState(state, event);
  return wanted !== undefined && mayMove(state, wanted) ? wanted : state;
}

function wantedState(state: HostState, event: HostEvent): HostState | undefined {
  switch (event.kind) {
    case "available":
      return state === "starting" ? "serving" : undefined;
    case "drain":
      if (state === "serving" && event.announce) return "announcing";
      return state === "starting" || state === "serving" ? "draining" : undefined;
    case "announced":
      return state === "announcing" ? "draining" : undefined;
    case "stop":
      return "stopping";
    case "force":
      return "forcing";
    case "reaped":
      return "stopped";
  }
}
