/**
 * How versiond writes values in its environment: durations, switches, lists of names.
 */

const UNIT_MS: Readonly<Record<string, number>> = {
  ns: 1e-6,
  us: 1e-3,
  "\u00b5s": 1e-3,
  "\u03bcs": 1e-3,
  ms: 1,
  s: 1_000,
  m: 60_000,
  h: 3_600_000,
};

const PART = "(\\d+\\.?\\d*|\\.\\d+)(ns|us|\u00b5s|\u03bcs|ms|s|m|h)";
const WHOLE = new RegExp(`^([+-]?)(?:${PART})+$`);
const PARTS = new RegExp(PART, "g");

/**
 * A duration in Go's form (`1h30m`, `250ms`, `1.5s`, `0`) in whole milliseconds; less than one, but
 * not nothing, is one. undefined if it is no duration.
 */
export function parseDuration(text: string): number | undefined {
  if (/^[+-]?0$/.test(text)) return 0;
  const sign = WHOLE.exec(text)?.[1];
  if (sign === undefined) return undefined;
  let ms = 0;
  for (const [, number, unit] of text.matchAll(PARTS)) {
    ms += Number(number) * (UNIT_MS[unit ?? ""] ?? 0);
  }
  const whole = ms > 0 && ms < 1 ? 1 : Math.round(ms);
  return sign === "-" ? -whole : whole;
}

/**
 * A switch: empty, 0, f, false, no, off; or 1, t, true, yes, on; trimmed, in any case. undefined for
 * anything else.
 */
export function parseSwitch(text: string): boolean | undefined {
  switch (text.trim().toLowerCase()) {
    case "":
    case "0":
    case "f":
    case "false":
    case "no":
    case "off":
      return false;
    case "1":
    case "t":
    case "true":
    case "yes":
    case "on":
      return true;
    default:
      return undefined;
  }
}

/** Names separated by commas, semicolons or spaces. */
export function parseNameList(text: string): string[] {
  return text.split(/[,;\s]+/).filter((name) => name !== "");
}
