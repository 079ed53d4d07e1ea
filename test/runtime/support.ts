/** What the runtime's contract tests share. */

import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { until as untilTrue } from "../support/until.ts";

/** As the other `until`, with the name first. */
export function until(name: string, condition: () => boolean | Promise<boolean>): Promise<void> {
  return untilTrue(condition, name);
}

/** Runs with a fresh folder that is removed afterwards. */
export async function inFolder(action: (folder: string) => Promise<void>): Promise<void> {
  const folder = await mkdtemp(join(tmpdir(), "baton-runtime-"));
  try {
    await action(folder);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

/** Command and arguments that run a program of test/runtime/programs on the runtime under test. */
export function program(name: string, ...args: string[]): { command: string; args: string[] } {
  const file = fileURLToPath(new URL(`./programs/${name}`, import.meta.url));
  const runtimeArgs = "Deno" in globalThis ? ["run", "-A", file] : [file];
  return { command: process.execPath, args: [...runtimeArgs, ...args] };
}

/** The environment of the test itself, for children that need PATH, HOME and the like. */
export function ownEnv(): Record<string, string> {
  return Object.fromEntries(
    Object.entries(process.env).filter((entry): entry is [string, string] =>
      entry[1] !== undefined
    ),
  );
}

/** The rejection of a promise; throws if there is none. */
export async function rejection(promise: Promise<unknown>): Promise<Error> {
  let value: unknown;
  try {
    value = await promise;
  } catch (error) {
    if (error instanceof Error) return error;
    throw new Error(`rejected with something that is no error: ${String(error)}`);
  }
  throw new Error(`was not rejected but gave ${String(value)}`);
}
