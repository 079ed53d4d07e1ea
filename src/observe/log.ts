/**
 * One JSON line per event, on one stream, with stable field names.
 *
 * Fields that every line has: `ts` (ISO 8601, UTC), `level`, `event` (snake_case, one per kind of
 * thing that happens). Everything else is named by the caller; values are plain JSON.
 */

export type Level = "debug" | "info" | "warn" | "error";
export type Fields = Readonly<Record<string, unknown>>;

const ORDER: Record<Level, number> = { debug: 10, info: 20, warn: 30, error: 40 };

export interface Log {
  debug(event: string, fields?: Fields): void;
  info(event: string, fields?: Fields): void;
  warn(event: string, fields?: Fields): void;
  error(event: string, fields?: Fields): void;
  /** A log whose lines all carry these fields too. */
  with(fields: Fields): Log;
}

export interface LogOptions {
  /** `isUrgent` for warnings and errors: to be written at once, others may wait for a moment. */
  readonly write: (line: string, isUrgent: boolean) => void;
  readonly now: () => number;
  readonly level?: Level;
}

/** Makes a log. `bigint` values are printed as strings, errors as their message. */
export function createLog(options: LogOptions, bound: Fields = {}): Log {
  const least = ORDER[options.level ?? "info"];
  const emit = (level: Level, event: string, fields?: Fields): void => {
    if (ORDER[level] < least) return;
    const line = { ts: new Date(options.now()).toISOString(), level, event, ...bound, ...fields };
    // A replacer makes `stringify` several times slower, and most lines need none.
    const text = isFlat(line) ? JSON.stringify(line) : JSON.stringify(line, printable);
    options.write(text, ORDER[level] >= ORDER.warn);
  };
  return {
    debug: (event, fields) => emit("debug", event, fields),
    info: (event, fields) => emit("info", event, fields),
    warn: (event, fields) => emit("warn", event, fields),
    error: (event, fields) => emit("error", event, fields),
    with: (fields) => createLog(options, { ...bound, ...fields }),
  };
}

/** Whether all values are ones that JSON has, and none has others in it. */
function isFlat(line: Fields): boolean {
  for (const name in line) {
    const value = line[name];
    if (typeof value === "bigint" || (typeof value === "object" && value !== null)) return false;
  }
  return true;
}

function printable(_key: string, value: unknown): unknown {
  if (typeof value === "bigint") return value.toString();
  if (value instanceof Error) return value.message;
  return value;
}

/** A log that keeps nothing, for tests and for library users. */
export const silentLog: Log = createLog({ write: () => {}, now: () => 0, level: "error" });
