/**
 * Asks a build about itself before it is started: it is run with print flags, one after another.
 *
 * A build may not know a flag (older ones do not); that is accepted only when it says so: it exited
 * by itself, with a non-zero status, and its output holds a usage error that flag parsers print.
 * A signal, any other failure or an empty answer blames the build. A time-out does not (on a busy
 * host a good build may be slow): it is asked again later, and not started before it has answered.
 */

import { messageOf } from "../errors.ts";
import type { VersionsConfig } from "../config/versions.ts";
import { isDevshardBinary } from "../config/versions.ts";
import type { Clock, Files, Processes, ProcessExit } from "../runtime/runtime.ts";
import { FileMissing, NotExecutable } from "../runtime/runtime.ts";
import { inheritedEnv, parseHa } from "./child_env.ts";
import { abortReason, type FailureClass, RolloutFailure, throwIfAborted } from "./failure.ts";

/** What a build said about itself. */
export interface PreflightResult {
  /** Its build id, or the version's name if it has none. */
  readonly buildId: string;
  /** It has an admin listener of its own (lifecycle calls go there). */
  readonly adminApi: boolean;
  /** `postgres`, `hybrid`, ...; "" when it does not say: then it never overlaps where asked. */
  readonly storageMode: string;
  /** Devshard only: the value of GONKA_HA for this child. */
  readonly ha?: boolean;
}

export interface PreflightOptions {
  readonly runtime: {
    readonly processes: Processes;
    readonly clock: Clock;
    readonly files: Files;
    env(): Record<string, string>;
  };
  readonly config: Pick<
    VersionsConfig,
    "binaryName" | "printFlags" | "printTimeoutMs" | "envAllow" | "ha" | "nonHaVersions"
  >;
  readonly name: string;
  readonly binary: string;
  readonly signal?: AbortSignal;
}

/** Output that flag parsers print for a flag they do not know, in lower case. */
const UNSUPPORTED = [
  "unknown flag",
  "flag provided but not defined",
  "unknown shorthand flag",
  "unrecognized option",
];

const MAX_ANSWER_BYTES = 64 * 1024;
/** A program that another thread still holds open for writing at the moment of a fork. */
const TEXT_BUSY = /ETXTBSY|text file busy/i;

/**
 * Runs the print flags. Throws `RolloutFailure` of class `preflight` when the build is refused or
 * `transient` when it could not be asked, and CalledOff when that was called off.
 */
export async function preflight(options: PreflightOptions): Promise<PreflightResult> {
  const { config, name, binary, runtime } = options;
  if (await runtime.files.info(binary) === undefined) {
    throw new RolloutFailure("preflight", `${binary} does not exist`);
  }
  const devshard = isDevshardBinary(config.binaryName);
  const ha = devshard ? haFor(config, name) : undefined;
  if (config.printFlags === "never") {
    requirePostgres(ha, "", name);
    return { buildId: name, adminApi: false, storageMode: "", ...(devshard ? { ha } : {}) };
  }

  const buildId = await ask(options, "--print-binary-version") ?? name;
  const protocol = await ask(options, "--print-protocol-version");
  if (protocol !== undefined && protocol !== name) {
    throw new RolloutFailure(
      "preflight",
      `the build speaks protocol version ${protocol}, but is listed as ${name}`,
    );
  }
  if (!devshard) return { buildId, adminApi: false, storageMode: "" };
  const adminApi = await ask(options, "--print-admin-api-version") !== undefined;
  const storageMode = await ask(options, "--print-storage-mode") ?? "";
  requirePostgres(ha, storageMode, name);
  return { buildId, adminApi, storageMode, ha };
}

function haFor(config: PreflightOptions["config"], name: string): boolean {
  try {
    return parseHa(config.ha) && !config.nonHaVersions.includes(name);
  } catch (error) {
    throw new RolloutFailure("preflight", messageOf(error));
  }
}

function requirePostgres(ha: boolean | undefined, storageMode: string, name: string): void {
  if (ha !== true || storageMode === "postgres") return;
  throw new RolloutFailure(
    "preflight",
    `GONKA_HA is on and ${name} ${
      storageMode === "" ? "does not report its storage mode" : `reports storage ${storageMode}`
    }: only postgres may run`,
  );
}

/** The trimmed answer to one flag; undefined when the build says it does not know the flag. */
async function ask(options: PreflightOptions, flag: string): Promise<string | undefined> {
  const answer = await runOnce(options, flag);
  const refuse = (what: string, failureClass: FailureClass = "preflight"): RolloutFailure =>
    new RolloutFailure(failureClass, `${flag}: ${what}${quote(answer.output)}`);
  if (answer.timedOut) {
    throw refuse(
      `no answer within ${options.config.printTimeoutMs} ms (a program that does not know such flags needs printFlags "never")`,
      "transient",
    );
  }
  if (answer.exit.code === undefined) throw refuse(`ended by ${answer.exit.signal ?? "a signal"}`);
  if (answer.exit.code !== 0) {
    if (isUnsupported(answer.output)) return undefined;
    throw refuse(`exit code ${answer.exit.code}`);
  }
  const text = answer.stdout.trim();
  if (text === "") throw refuse("empty answer");
  return text;
}

/** Case-insensitive search for a flag parser's usage error. */
export function isUnsupported(output: string): boolean {
  const lower = output.toLowerCase();
  return UNSUPPORTED.some((phrase) => lower.includes(phrase));
}

interface Answer {
  readonly exit: ProcessExit;
  readonly stdout: string;
  /** Both streams, in the order of arrival. */
  readonly output: string;
  readonly timedOut: boolean;
}

async function runOnce(options: PreflightOptions, flag: string): Promise<Answer> {
  const { runtime, config, signal } = options;
  throwIfAborted(signal);
  const stdout = new BoundedText(MAX_ANSWER_BYTES);
  const output = new BoundedText(MAX_ANSWER_BYTES);
  const start = () =>
    runtime.processes.spawn({
      command: options.binary,
      args: [flag],
      env: inheritedEnv(config, runtime.env()),
      onOutput: (stream, chunk) => {
        if (stream === "stdout") stdout.add(chunk);
        output.add(chunk);
      },
    });
  let child;
  try {
    child = await start().catch(async (error) => {
      if (!TEXT_BUSY.test(messageOf(error))) throw error;
      await new Promise<void>((resolve) => runtime.clock.after(50, resolve));
      return await start();
    });
  } catch (error) {
    // What is wrong with the file is known for certain; a host out of processes says nothing of it.
    const blamed = error instanceof FileMissing || error instanceof NotExecutable;
    throw new RolloutFailure(
      blamed ? "preflight" : "transient",
      `${options.binary} cannot be run: ${messageOf(error)}`,
      { cause: error },
    );
  }
  let timedOut = false;
  const cancelTimer = runtime.clock.after(config.printTimeoutMs, () => {
    timedOut = true;
    child.signalGroup("SIGKILL");
  });
  const onAbort = (): void => {
    child.signalGroup("SIGKILL");
  };
  signal?.addEventListener("abort", onAbort);
  if (signal?.aborted === true) onAbort();
  try {
    const exit = await child.exited;
    if (signal?.aborted === true) throw abortReason(signal);
    return { exit, stdout: stdout.text(), output: output.text(), timedOut };
  } finally {
    cancelTimer();
    signal?.removeEventListener("abort", onAbort);
    // A flag's run may leave helpers behind in its group; nothing of it may outlive the question.
    child.signalGroup("SIGKILL");
  }
}

/** Collects output up to a limit and drops the rest. */
class BoundedText {
  readonly #max: number;
  #bytes = 0;
  readonly #chunks: Uint8Array[] = [];

  constructor(max: number) {
    this.#max = max;
  }

  add(chunk: Uint8Array): void {
    const room = this.#max - this.#bytes;
    if (room <= 0) return;
    const kept = chunk.slice(0, room);
    this.#chunks.push(kept);
    this.#bytes += kept.length;
  }

  text(): string {
    const decoder = new TextDecoder();
    return this.#chunks.map((chunk) => decoder.decode(chunk, { stream: true })).join("") +
      decoder.decode();
  }
}

function quote(output: string): string {
  const text = output.trim();
  return text === "" ? "" : ` (${JSON.stringify(text.slice(0, 300))})`;
}
