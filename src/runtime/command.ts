/** Finding out what would run before it is run, and why it did not. */

import { access, constants, open, stat } from "node:fs/promises";
import { join } from "node:path";
import { errorText } from "./error_code.ts";
import { FileMissing, NotExecutable, type SpawnOptions } from "./runtime.ts";

/**
 * The path of the program that a command names: a command without a slash is looked up in the PATH of
 * the child's own environment, the same on both runtimes.
 *
 * The file must start as an ELF or a `#!` file does. The kernel refuses others (ENOEXEC), but libc's
 * `execvp`, which both runtimes use, would then run them as shell scripts; half a download would be one.
 */
export async function resolveCommand(options: SpawnOptions): Promise<string> {
  const path = await locate(options);
  let magic: Uint8Array;
  try {
    if (!(await stat(path)).isFile()) throw new Error("not a regular file");
    await access(path, constants.X_OK);
    magic = await firstBytes(path, 4);
  } catch (error) {
    throw new NotExecutable(`${path}: ${errorText(error)}`, { cause: error });
  }
  const isElf = magic[0] === 0x7f && magic[1] === 0x45 && magic[2] === 0x4c && magic[3] === 0x46;
  const isScript = magic[0] === 0x23 && magic[1] === 0x21;
  if (!isElf && !isScript) throw new NotExecutable(`${path}: neither a program nor a #! script`);
  return path;
}

/** Turns the system's refusal to start a resolved command into one of the contract's errors. */
export async function explainRefusal(path: string, cwd: string | undefined, cause: unknown) {
  if (cwd !== undefined && !(await exists(cwd))) {
    return new FileMissing(`${cwd}: no such working folder`, { cause });
  }
  if (!(await exists(path))) return new FileMissing(`${path}: no such program`, { cause });
  return new NotExecutable(`${path}: ${errorText(cause)}`, { cause });
}

async function locate(options: SpawnOptions): Promise<string> {
  const { command, env } = options;
  if (command.includes("/")) {
    // exec comes after chdir, so that is what a relative path is relative to.
    const path = command.startsWith("/") ? command : join(options.cwd ?? ".", command);
    if (!(await exists(path))) throw new FileMissing(`${path}: no such program`);
    return command;
  }
  for (const folder of (env.PATH ?? "/usr/local/bin:/usr/bin:/bin").split(":")) {
    const path = join(folder === "" ? "." : folder, command);
    if (await isRunnable(path)) return path;
  }
  throw new FileMissing(`${command}: not found in PATH`);
}

async function exists(path: string): Promise<boolean> {
  return await stat(path).then(() => true, () => false);
}

async function isRunnable(path: string): Promise<boolean> {
  return await access(path, constants.X_OK).then(() => true, () => false);
}

async function firstBytes(path: string, count: number): Promise<Uint8Array> {
  const bytes = new Uint8Array(count);
  const file = await open(path, "r");
  try {
    const { bytesRead } = await file.read(bytes, 0, count, 0);
    return bytes.subarray(0, bytesRead);
  } finally {
    await file.close();
  }
}
