/**
 * What a bench gets and what it gives back.
 *
 * A bench is a file in scripts/benches that exports `run(context)`. It measures Baton and the
 * systems it is compared with in one run, on this machine, and returns medians.
 */

import { execFileSync } from "node:child_process";
import { existsSync } from "node:fs";
import { join } from "node:path";

export type RuntimeName = "node" | "deno";

/** `[operator, number]`: the figure must stand in that relation to the number. */
export type Limit = readonly ["<=" | ">=" | "==", number];

export interface BenchResult {
  /** Named for what is measured, with units: `node_rps_over_caddy`, `deno_p99_ms`, `failed`. */
  readonly figures: Readonly<Record<string, number>>;
  readonly limits: Readonly<Record<string, Limit>>;
  /** Raw medians of each system, for the reader. */
  readonly systems?: Readonly<Record<string, Readonly<Record<string, number>>>>;
}

export interface BenchContext {
  readonly runtimes: readonly RuntimeName[];
  /** The checkout's folder. */
  readonly root: string;
  /** Arguments that the frame does not know. */
  readonly args: readonly string[];
  /** The command line that starts a TypeScript file on a runtime. */
  command(runtime: RuntimeName, file: string, ...args: string[]): string[];
  /** Progress for people, on standard error. */
  say(line: string): void;
}

export interface Bench {
  run(context: BenchContext): Promise<BenchResult>;
}

/** Command line prefix that runs TypeScript on a runtime, from the checkout's own node_modules. */
export function runtimeCommand(root: string, runtime: RuntimeName): string[] {
  const bin = join(root, "node_modules/.bin", runtime);
  return runtime === "node" ? [bin] : [
    bin,
    "run",
    "-A",
    "--no-check",
    "--quiet",
    "--config",
    join(root, "deno.json"),
  ];
}

/** Installs Debian packages whose program is not on the PATH. Throws if that cannot be done. */
export function needPrograms(packages: Readonly<Record<string, string>>): void {
  const missing = Object.entries(packages).filter(([program]) => !onPath(program));
  if (missing.length === 0) return;
  const names = missing.map(([, name]) => name);
  const options = {
    stdio: ["ignore", "ignore", "inherit"] as ["ignore", "ignore", "inherit"],
    env: { ...process.env, DEBIAN_FRONTEND: "noninteractive" },
  };
  execFileSync("apt-get", ["update", "-qq"], options);
  execFileSync("apt-get", ["install", "-y", "-qq", "--no-install-recommends", ...names], options);
}

function onPath(program: string): boolean {
  const folders = [...(process.env["PATH"] ?? "").split(":"), "/usr/sbin", "/sbin"];
  return folders.some((folder) => folder !== "" && existsSync(join(folder, program)));
}

/**
 * Processor time of this process so far, all threads together, in milliseconds. On a core of its own
 * it goes as the clock does; on a shared one it leaves out what others took.
 */
export function cpuMs(): number {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1000;
}

/** The middle value (the mean of the two middle ones for an even count). */
export function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  const upper = sorted[middle] ?? NaN;
  return sorted.length % 2 === 1 ? upper : (upper + (sorted[middle - 1] ?? NaN)) / 2;
}

/** The value below which `share` (0 to 1) of the values lie. */
export function percentile(values: readonly number[], share: number): number {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? NaN;
}
