/**
 * Which build of a version should serve, decided from everything that is known at one moment.
 *
 * In the order of preference: what an operator pinned, what the oracle lists (unless rollouts are
 * paused or it was rolled back), what serves now, and builds that served well before. A build that
 * is quarantined or denied is passed over; nothing is removed merely because its successor is bad.
 */

import type { OperatorEntry } from "./state.ts";

export interface GoalInput {
  /** The sha256 that the oracle lists; absent when it does not list the version. */
  readonly listed?: string;
  /** The identity of a local override, which goes before everything else. */
  readonly override?: string;
  readonly operator: OperatorEntry;
  /** The build that serves now. */
  readonly serving?: string;
  /** Builds on disk, newest first. */
  readonly installed: readonly string[];
  readonly isBlocked: (sha256: string) => boolean;
  /** Nothing has served since Baton started, and builds may overlap: one that served well goes first. */
  readonly provenFirst: boolean;
}

export type GoalReason =
  | "override"
  | "pinned"
  | "rolled_back"
  | "listed"
  | "paused"
  | "proven_first"
  | "serving"
  | "fallback";

export type Goal =
  /** Not wanted: whatever runs is to be drained. */
  | { readonly kind: "none" }
  /** Wanted, but there is no build that may run. */
  | { readonly kind: "nothing"; readonly blocked: string }
  | { readonly kind: "run"; readonly sha256: string; readonly reason: GoalReason };

/** The build to run; pure. */
export function chooseGoal(input: GoalInput): Goal {
  const { listed, operator, serving, installed, isBlocked } = input;
  if (input.override !== undefined) {
    // A published build never stands in for a local file that was asked for.
    if (isBlocked(input.override)) return { kind: "nothing", blocked: input.override };
    return { kind: "run", sha256: input.override, reason: "override" };
  }
  if (listed === undefined) return { kind: "none" };
  for (const [sha256, reason] of preferences(input)) {
    if (isBlocked(sha256)) continue;
    if (sha256 !== listed && sha256 !== serving && !installed.includes(sha256)) continue;
    return { kind: "run", sha256, reason };
  }
  return { kind: "nothing", blocked: operator.pinned ?? listed };
}

function* preferences(input: GoalInput): Generator<[string, GoalReason]> {
  const { listed, operator, serving } = input;
  if (operator.pinned !== undefined) yield [operator.pinned, "pinned"];
  const rolledBack = listed !== undefined && listed === operator.rolledBackFrom;
  if (rolledBack && operator.rolledBackTo !== undefined) {
    yield [operator.rolledBackTo, "rolled_back"];
  }
  if (operator.paused === true) {
    const frozen = serving ?? operator.serving;
    if (frozen !== undefined) yield [frozen, "paused"];
  }
  const proven = operator.proven ?? [];
  const isNew = listed !== undefined && !proven.includes(listed) && !input.isBlocked(listed);
  if (isNew && serving === undefined && input.provenFirst) {
    // A build that nobody has seen work does not begin as the only one.
    for (const sha256 of proven) yield [sha256, "proven_first"];
  }
  if (listed !== undefined && !rolledBack) yield [listed, "listed"];
  if (serving !== undefined) yield [serving, "serving"];
  for (const sha256 of proven) if (sha256 !== listed) yield [sha256, "fallback"];
}

/**
 * Where a rollback from `serving` goes: the newest build on disk that served well before, or else the
 * newest on disk; undefined when there is none that may run.
 */
export function rollbackGoal(
  input: Pick<GoalInput, "operator" | "installed" | "isBlocked">,
  serving: string | undefined,
): string | undefined {
  const usable = (sha256: string): boolean =>
    sha256 !== serving && input.installed.includes(sha256) && !input.isBlocked(sha256);
  return (input.operator.proven ?? []).find(usable) ?? input.installed.find(usable);
}
