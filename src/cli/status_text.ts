/**
 * The admin API's answers as text for people.
 */

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
  }
  lines.push(...table("versions", view.versions.versions));
  lines.push(...table("owing answers", view.drain.targets));
  lines.push(...table("workers", view.workers.workers));
  lines.push(...table("peers", view.peers.peers));
  const recovery = Object.entries(view.recovery).filter(([, value]) => isPlain(value));
  if (recovery.length > 0) {
    lines.push("", "recovery", `  ${recovery.map(([key, value]) => `${key} ${value}`).join(", ")}`);
  }
  return lines.join("\n");
}

/** Rows with their plain fields as columns; nested ones are left to the API. */
function table(title: string, rows: readonly Row[]): string[] {
  if (rows.length === 0) return [];
  const columns = [...new Set(rows.flatMap((row) => Object.keys(row)))]
    .filter((column) => rows.some((row) => isPlain(row[column])));
  const cells = [
    columns,
    ...rows.map((row) => columns.map((column) => cell(row[column]))),
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

function cell(value: unknown): string {
  if (!isPlain(value)) return "-";
  const text = String(value);
  return text.length <= 40 ? text : `${text.slice(0, 37)}...`;
}
