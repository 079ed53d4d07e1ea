/** How far a recovery is, in two lines for people. */

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
  return [`${state}${said}${from}`, figures.join("; ")];
}

function number(value: unknown): number {
  return typeof value === "number" ? value : 0;
}

function seconds(ms: unknown): string {
  return `${(number(ms) / 1000).toFixed(1)} s`;
}
