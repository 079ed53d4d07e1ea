/**
 * The admin API's answers as text for people.
 */

import { recoveryText } from "./recovery_text.ts";

type Row = Readonly<Record<string, unknown>>;

export interface StatusView {
  readonly url: string;
  readonly ready: {
    readonly ready: boolean;
    readonly draining: boolean;
    readonly inflight: number;
    readonly conditions: readonly { name: string; ok: boolean; reason: string }[];
  };
  readonly drain: { readonly targets: readonly Row[] };
  readonly versions: { readonly versions: readonly Row[] };
  readonly workers: { readonly workers: readonly Row[] };
  readonly peers: { readonly peers: readonly Row[] };
  readonly recovery: Row;
}

export function statusText(view: StatusView): string {
  const { ready } = view;
  const state = ready.draining ? "draining" : ready.ready ? "ready" : "not ready";
  const lines = [`baton at ${view.url}: ${state}, ${ready.inflight} in flight`];
  for (const { name, ok, reason } of ready.conditions) {
    if (!ok) lines.push(`  waiting for ${name}: ${reason}`);
    // The first line says already that it serves.
    else if (name !== "serving") lines.push(`  ${name}: ${reason}`);
  }
  lines.push(...table("versions", view.versions.versions.flatMap(versionRows)));
  for (const { service, name, notes } of view.versions.versions) {
    for (const note of notes as readonly string[] | undefined ?? []) {
      lines.push(`  ${service} ${name}: ${note}`);
    }
  }
  lines.push(...table("owing answers", view.drain.targets.filter((one) => one.leases !== 0)));
  lines.push(...table("workers", view.workers.workers.flatMap(workerRows)));
  lines.push(...table("peers", view.peers.peers));
  if (view.recovery.state !== "recovery_disabled") {
    lines.push("", "recovery", ...recoveryText(view.recovery).map((line) => `  ${line}`));
  }
  return lines.join("\n");
}

/** One row for each generation, or one that says what is wanted while there is none. */
function versionRows(version: Row): Row[] {
  const { service, name } = version;
  const generations = version.generations as readonly Row[] | undefined ?? [];
  if (generations.length === 0) {
    return [{
      service,
      version: name,
      goal: String(version.goal).replace(/\b[0-9a-f]{64}\b/, short),
    }];
  }
  return generations.map((one) => ({
    service,
    version: name,
    generation: one.generation,
    role: one.role,
    phase: one.phase,
    ready: one.ready,
    build: buildOf(name, one),
    leases: one.leases,
    streams: one.streams,
    pid: one.pid,
    port: one.port,
    since: one.since,
  }));
}

/** What a build calls itself, if that says more than the version, and enough of its hash. */
function buildOf(version: unknown, { buildId, sha256 }: Row): string {
  return `${buildId === version ? "" : buildId} ${short(String(sha256))}`.trim();
}

function short(sha256: string): string {
  return sha256.slice(0, 12);
}

/** One row for each lane of a worker. */
function workerRows(worker: Row): Row[] {
  const { service, url, healthy, leases, lastError } = worker;
  const load = worker.load as Row | undefined;
  const common = {
    service,
    worker: worker.worker,
    url,
    healthy,
    leases,
    "queued tokens": load?.prefillTokens,
  };
  const lanes = worker.lanes as readonly Row[] | undefined ?? [];
  if (lanes.length === 0) return [{ ...common, "last error": lastError }];
  return lanes.map((lane) => ({
    ...common,
    rank: lane.dpRank,
    lane: lane.state,
    cursor: lane.cursor,
    blocks: lane.blocks,
    "last error": lane.lastError ?? lastError,
  }));
}

/** Rows with their plain fields as columns; nested ones are left to the API. */
function table(title: string, rows: readonly Row[]): string[] {
  if (rows.length === 0) return [];
  const columns = [...new Set(rows.flatMap((row) => Object.keys(row)))]
    .filter((column) => rows.some((row) => isPlain(row[column])));
  const cells = [
    columns,
    ...rows.map((row) => columns.map((column, at) => cell(row[column], at === columns.length - 1))),
  ];
  const widths = columns.map((_, at) => Math.max(...cells.map((row) => (row[at] ?? "").length)));
  return [
    "",
    title,
    ...cells.map((row) =>
      `  ${row.map((text, at) => text.padEnd(widths[at] ?? 0)).join("  ")}`.trimEnd()
    ),
  ];
}

function isPlain(value: unknown): boolean {
  return ["string", "number", "boolean"].includes(typeof value);
}

/** What is long is cut, but for the last column, where it is in nobody's way. */
function cell(value: unknown, isLast: boolean): string {
  if (!isPlain(value)) return "-";
  const text = String(value);
  return isLast || text.length <= 60 ? text : `${text.slice(0, 57)}...`;
}
