/**
 * Baton itself as a process, on the runtime that runs the test: started with a configuration, its
 * ports read from its log.
 */

import { type ChildProcess, spawn } from "node:child_process";
import { writeFile } from "node:fs/promises";
import { createInterface } from "node:readline";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { runCli } from "../../src/cli/cli.ts";
import { runtime } from "./runtime.ts";
import { DEADLINE_MS } from "./until.ts";

export { basePort } from "./base_port.ts";

const MAIN = fileURLToPath(new URL("../../src/main.ts", import.meta.url));
const ROOT = fileURLToPath(new URL("../../", import.meta.url));

/** The command line that runs Baton with these arguments on this test's runtime. */
export function batonCommand(args: readonly string[]): { command: string; args: string[] } {
  const onDeno = "Deno" in globalThis;
  const before = onDeno ? ["run", "-A", "--no-check", "--quiet", `--config=${ROOT}deno.json`] : [];
  return { command: process.execPath, args: [...before, MAIN, ...args] };
}

/** One listener for all that a test starts, however many. */
const atExit = new Set<() => void>();
process.on("exit", () => {
  for (const end of atExit) end();
});

/** Calls `end` when this process exits; the function that it returns takes that back. */
export function onExit(end: () => void): () => void {
  atExit.add(end);
  return () => void atExit.delete(end);
}

/**
 * What a child gets of our environment: nothing of Baton's or versiond's. `TEST_WORKERS=2` runs every
 * Baton of a test with as many threads.
 */
export function plainEnvironment(more: Record<string, string> = {}): Record<string, string> {
  const { PATH = "", HOME = "", TMPDIR, TEST_WORKERS, NODE_COMPILE_CACHE } = process.env;
  return {
    PATH,
    HOME,
    ...(TMPDIR === undefined ? {} : { TMPDIR }),
    ...(NODE_COMPILE_CACHE === undefined ? {} : { NODE_COMPILE_CACHE }),
    ...(TEST_WORKERS === undefined ? {} : { BATON_TRAFFIC_WORKERS: TEST_WORKERS }),
    ...more,
  };
}

export interface Finished {
  readonly code: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

/**
 * Runs a verb to its end in this process: the same code as from a shell, without the start of another
 * process each time.
 */
export async function runVerb(
  args: readonly string[],
  env: Record<string, string> = {},
): Promise<Finished> {
  let stdout = "";
  let stderr = "";
  const print = (stream: "stdout" | "stderr", line: string): boolean => {
    if (stream === "stdout") stdout += `${line}\n`;
    else stderr += `${line}\n`;
    return true;
  };
  const code = await runCli({
    ...runtime,
    args,
    env: () => plainEnvironment(env),
    print,
    printSoon: print,
  });
  return { code, stdout, stderr };
}

/** Runs a verb to its end, as a process. */
export function runBaton(
  args: readonly string[],
  options: {
    env?: Record<string, string>;
    cwd?: string;
    /** Called with all of the output so far, each time there is more. */
    onOutput?: (stdout: string, stderr: string) => void;
    /** Ends the process, which then has no exit code. */
    signal?: AbortSignal;
  } = {},
): Promise<Finished> {
  const { command, args: all } = batonCommand(args);
  const child = spawn(command, all, {
    env: plainEnvironment(options.env),
    cwd: options.cwd ?? ROOT,
    stdio: ["ignore", "pipe", "pipe"],
  });
  let stdout = "";
  let stderr = "";
  child.stdout.on("data", (chunk) => {
    stdout += chunk;
    options.onOutput?.(stdout, stderr);
  });
  child.stderr.on("data", (chunk) => {
    stderr += chunk;
    options.onOutput?.(stdout, stderr);
  });
  const end = (): void => void child.kill("SIGKILL");
  const isOver = onExit(end);
  options.signal?.addEventListener("abort", end);
  return new Promise((resolve) => {
    child.on("close", (code) => {
      isOver();
      resolve({ code, stdout, stderr });
    });
  });
}

export type LogLine = Readonly<Record<string, unknown>> & { readonly event: string };

export interface BatonProcess {
  readonly child: ChildProcess;
  readonly log: readonly LogLine[];
  /** Standard error that is no log line. */
  readonly noise: readonly string[];
  /** Base URLs of the listeners. */
  readonly traffic: string;
  readonly admin: string;
  readonly peer: string | undefined;
  /** The exit code (null after a signal). */
  readonly exited: Promise<number | null>;
  signal(name: "SIGTERM" | "SIGINT" | "SIGKILL" | "SIGHUP"): void;
  /** SIGTERM, and the exit code; SIGKILL after the deadline of tests. */
  stop(): Promise<number | null>;
}

/** Starts `serve` with the configuration (ports default to free ones) and waits for its listeners. */
export async function startBatonProcess(
  folder: string,
  config: Record<string, unknown>,
  options: { env?: Record<string, string>; args?: readonly string[] } = {},
): Promise<BatonProcess> {
  const file = `${folder}/baton.json`;
  const listen = { traffic: "127.0.0.1:0", admin: "127.0.0.1:0", ...config.listen as object };
  const whole = { stateDir: `${folder}/state`, ...config, listen };
  await writeFile(file, JSON.stringify(whole));
  const { command, args } = batonCommand(["serve", "--config", file, ...options.args ?? []]);
  const child = spawn(command, args, {
    env: plainEnvironment(options.env),
    cwd: folder,
    stdio: ["ignore", "ignore", "pipe"],
  });
  const log: LogLine[] = [];
  const noise: string[] = [];
  const found = new Map<string, string>();
  let ended = false;
  const exited = new Promise<number | null>((resolve) => {
    child.on("close", (code) => {
      ended = true;
      resolve(code);
    });
  });
  await new Promise<void>((resolve, reject) => {
    createInterface({ input: child.stderr }).on("line", (text) => {
      try {
        const line = JSON.parse(text) as LogLine;
        log.push(line);
        if (line.event !== "listening") return;
        found.set(String(line.listener), `http://${line.address}`);
        if (line.listener === "traffic") resolve();
      } catch {
        noise.push(text);
      }
    });
    exited.then((code) => reject(new Error(`exited with ${code}: ${noise.join("\n")}`)));
  });
  // Not child.kill: after that Deno reports every exit as one by the signal.
  const signal = (name: "SIGTERM" | "SIGINT" | "SIGKILL" | "SIGHUP"): void => {
    if (child.pid !== undefined && !ended) process.kill(child.pid, name);
  };
  // A test that fails half-way must not leave it running.
  onExit(() => signal("SIGKILL"));
  return {
    child,
    log,
    noise,
    traffic: found.get("traffic") ?? "",
    admin: found.get("admin") ?? "",
    peer: found.get("peer"),
    exited,
    signal,
    stop: () => {
      signal("SIGTERM");
      const timer = setTimeout(() => signal("SIGKILL"), DEADLINE_MS);
      return exited.finally(() => clearTimeout(timer));
    },
  };
}
