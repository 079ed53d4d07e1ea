/**
 * The phases of a generation, which only go forward.
 *
 * A request for an earlier phase counts as satisfied: two parties that both want a child gone need
 * not agree on who asked first. `failed` has no rank; it is where a start that did not work waits.
 */

export const PHASES = [
  "preparing",
  "starting",
  "running",
  "retiring",
  "draining",
  "stopping",
  "stopped",
  "failed",
] as const;

export type Phase = typeof PHASES[number];

const TARGETS: Readonly<Record<Phase, readonly Phase[]>> = {
  preparing: ["starting", "retiring", "stopping", "failed", "stopped"],
  starting: ["running", "retiring", "stopping", "failed", "stopped"],
  running: ["retiring", "stopping", "failed", "stopped"],
  retiring: ["draining", "stopping", "stopped"],
  draining: ["stopping", "stopped"],
  stopping: ["stopped"],
  failed: ["starting", "retiring", "stopping", "stopped"],
  stopped: [],
};

/** The phase's place in the order, or undefined for `failed`. */
export function phaseRank(phase: Phase): number | undefined {
  return phase === "failed" ? undefined : PHASES.indexOf(phase);
}

/** True for the moves of the table and for staying where one is. */
export function phaseAllows(from: string, to: string): boolean {
  if (!isPhase(from) || !isPhase(to)) return false;
  return from === to || TARGETS[from].includes(to);
}

/** The phases that can follow. */
export function phaseTargets(from: Phase): readonly Phase[] {
  return TARGETS[from];
}

export type PhaseAnswer = "moved" | "satisfied" | "refused";

/** What asking for `to` does in phase `from`. */
export function askPhase(from: Phase, to: Phase): PhaseAnswer {
  if (from === to) return "satisfied";
  if (TARGETS[from].includes(to)) return "moved";
  const fromRank = phaseRank(from);
  const toRank = phaseRank(to);
  // A stopped generation never runs again: that request is a mistake, not one come too late.
  if (from === "stopped" && to !== "retiring" && to !== "draining" && to !== "stopping") {
    return "refused";
  }
  if (fromRank !== undefined && toRank !== undefined && toRank < fromRank) return "satisfied";
  return "refused";
}

/** The word that `/healthz` has for a phase (versiond's). */
export function healthLabel(phase: string): "starting" | "running" | "draining" | "stopped" {
  switch (phase) {
    case "preparing":
    case "starting":
      return "starting";
    case "running":
      return "running";
    case "retiring":
    case "draining":
    case "stopping":
      return "draining";
    default:
      return "stopped";
  }
}

function isPhase(value: string): value is Phase {
  return (PHASES as readonly string[]).includes(value);
}
