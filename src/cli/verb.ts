/**
 * What a verb of the command line is: one file each.
 */

import type { Runtime } from "../runtime/runtime.ts";
import type { Arguments } from "./arguments.ts";

/** Exit codes of all verbs; docs/operations.md lists them. */
export const EXIT = {
  /** Done; for `serve`: stopped in good order, nothing was cut. */
  ok: 0,
  /** It did not work; the reason is on standard error. */
  failed: 1,
  /** The command line or the configuration is wrong. */
  usage: 2,
  /** `serve` stopped and had to cut something that was still running. */
  cut: 3,
} as const;

export interface Verb {
  readonly name: string;
  /** The arguments as the help shows them, e.g. `<name> <file> [--service <name>]`. */
  readonly usage: string;
  /** One line for the list of verbs. */
  readonly summary: string;
  /** Options that take a value, by name without the dashes. */
  readonly options?: readonly string[];
  /** Options that take none. */
  readonly flags?: readonly string[];
  /** Least and most number of plain arguments; [0, 0] if absent. */
  readonly plain?: readonly [number, number];
  /** Returns the exit code. A thrown UsageError or ConfigError becomes 2, any other error 1. */
  run(runtime: Runtime, given: Arguments): Promise<number>;
}

export function pause(runtime: Pick<Runtime, "clock">, ms: number): Promise<void> {
  return new Promise((resolve) => runtime.clock.after(ms, resolve));
}
