/**
 * What an operator should know of a version, in sentences with what to do about it. Made in one
 * place, so that `baton status`, the status page and the API say the same.
 */

import type { QuarantineEntry } from "./quarantine.ts";
import type { OperatorEntry } from "./state.ts";

export interface NotedVersion {
  readonly name: string;
  /** The build that is listed. */
  readonly desired: { readonly sha256: string } | undefined;
  /** The roll-out that is under way. */
  readonly rollout: { readonly sha256: string } | undefined;
  readonly quarantined: readonly QuarantineEntry[];
  readonly operator: OperatorEntry;
  readonly lastError: { readonly message: string; readonly at: number } | undefined;
  /** How long its next start is put off, after crashes. */
  readonly backoffLeftMs: number;
  /** When what serves came into service, ms since 1970: older errors are over. */
  readonly servingSince: number | undefined;
}

/** Failures after which the child's own output tells more. */
const OF_THE_CHILD: readonly string[] = ["preflight", "crash", "readiness"];

/** The sentences, the most important first; none if there is nothing to say. */
export function versionNotes(version: NotedVersion): string[] {
  const { name, operator, desired, lastError } = version;
  const notes: string[] = [];
  const wanted = operator.pinned ?? desired?.sha256;
  const blocked = version.quarantined.find(({ sha256 }) => sha256 === wanted);
  if (blocked !== undefined) notes.push(blockedNote(version, blocked));
  const isNew = lastError !== undefined && lastError.at > (version.servingSince ?? -Infinity);
  if (isNew && lastError.message !== blocked?.message) {
    const wait = Math.ceil(version.backoffLeftMs / 1000);
    const next = wait > 0 ? `; it is started again in ${wait} s` : "";
    notes.push(`${lastError.message} (${iso(lastError.at)})${next}`);
  }
  const why = operator.reason === undefined ? "" : ` (${operator.reason})`;
  if (operator.paused) {
    const held = operator.trafficPaused ? ", and new requests wait" : "";
    notes.push(
      `paused by an operator${why}: no build is brought${held}, until \`baton resume ${name}\``,
    );
  }
  if (operator.pinned !== undefined) {
    notes.push(
      `pinned by an operator to ${short(operator.pinned)}${why}, whatever is listed, until ` +
        `\`baton unpin ${name}\``,
    );
  }
  if (operator.rolledBackFrom !== undefined && operator.rolledBackFrom === desired?.sha256) {
    notes.push(
      `rolled back by an operator from ${short(operator.rolledBackFrom)}${why}: it is not tried ` +
        `until the list names another build, or \`baton allow ${name}\``,
    );
  }
  return notes;
}

function blockedNote(version: NotedVersion, entry: QuarantineEntry): string {
  const { name } = version;
  if (entry.class === "denied") {
    return `build ${short(entry.sha256)} is denied by an operator (${entry.message}), until ` +
      `\`baton allow ${name}\``;
  }
  const next = version.rollout?.sha256 === entry.sha256
    ? "it is being tried again"
    : entry.retryAt !== undefined
    ? `it is tried again at ${iso(entry.retryAt)}`
    : `it is not tried again: list another build, or \`baton allow ${name}\``;
  const output = OF_THE_CHILD.includes(entry.class)
    ? `; \`baton logs ${name}\` has what it said`
    : "";
  return `build ${short(entry.sha256)} failed (${entry.class}): ${entry.message}; ${next}${output}`;
}

/** Enough of a hash to know a build by. */
function short(sha256: string): string {
  return sha256.slice(0, 12);
}

function iso(ms: number): string {
  return new Date(ms).toISOString();
}
