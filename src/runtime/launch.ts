/** The part of starting a child that differs between the runtimes. */

import type { ProcessExit, SpawnOptions } from "./runtime.ts";

export interface Launched {
  readonly pid: number;
  /** Resolves once the child was reaped. */
  readonly reaped: Promise<ProcessExit>;
  /** Resolves once both pipes have ended. */
  readonly pipesEnded: Promise<void>;
  /** Closes our ends of the pipes. */
  dropPipes(): void;
}

/**
 * Starts `options.command` (an absolute path) as the leader of a new
 * process group with nothing inherited but `options.env`. Rejects with the system's error.
 */
export type Launch = (
  options: SpawnOptions,
  output: (stream: "stdout" | "stderr", chunk: Uint8Array) => void,
) => Promise<Launched>;
