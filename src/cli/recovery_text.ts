/** How far a recovery is, and what keeps it, in a few lines for people. */

type Row = Readonly<Record<string, unknown>>;

const IS_OVER: readonly string[] = ["recovered", "degraded", "empty_bootstrap"];

export function recoveryText(recovery: Row): string[] {
  const { state, reason, source } = recovery;
  const said = typeof reason === "string" && reason !== "" ? `: ${reason}` : "";
  const from = typeof source === "string" && !said.includes(source) ? `, from ${source}` : "";
  const lanes = Object.entries(recovery.lanes ?? {})
    .filter(([, count]) => Number(count) > 0)
    .map(([outcome, count]) => `${count} ${outcome}`);
  const figures = [
    `lanes ${lanes.length > 0 ? lanes.join(", ") : "none"}`,
    `${number(recovery.blocks)} blocks`,
    `${(number(recovery.bytes) / 1e6).toFixed(1)} MB`,
    `${number(recovery.blocksPerS)} blocks/s`,
    IS_OVER.includes(String(state))
      ? `took ${seconds(recovery.elapsedMs)}`
      : `${seconds(recovery.elapsedMs)} so far`,
  ];
  if (recovery.etaMs !== undefined) figures.push(`${seconds(recovery.etaMs)} left`);
  return [`${state}${said}${from}`, figures.join("; "), ...troubles(recovery)];
}

/** Why the last attempt that failed did so, and why lanes are degraded; nothing of what is over. */
function troubles({ state, attempts, laneReports }: Row): string[] {
  const failed = rows(attempts).findLast((attempt) => attempt.reason !== undefined);
  const lines = failed === undefined || state === "recovered" || state === "empty_bootstrap"
    ? []
    : [`last failure: ${failed.peer}: ${String(failed.reason).trim()}`];
  const lanes = rows(laneReports).filter((lane) => lane.outcome === "degraded");
  for (const reason of new Set(lanes.map((lane) => lane.reason))) {
    const count = lanes.filter((lane) => lane.reason === reason).length;
    if (reason !== undefined) lines.push(`${count} degraded: ${reason}`);
  }
  return lines;
}

function rows(value: unknown): readonly Row[] {
  return Array.isArray(value) ? value : [];
}

function number(value: unknown): number {
  return typeof value === "number" ? value : 0;
}

function seconds(ms: unknown): string {
  return `${(number(ms) / 1000).toFixed(1)} s`;
}
