/** Finding out what would run before it is run, and why it did not. */

import { access, constants, open, stat } from "node:fs/promises";
import { join, resolve } from "node:path";
import { errorCode, errorText } from "./error_code.ts";
import { FileMissing, NotExecutable, type SpawnOptions } from "./runtime.ts";

/** An ELF header's part that says for which machine it is: e_ident, e_type, e_machine (elf(5)). */
const ELF_HEAD_BYTES = 20;
/** e_machine of the 32-bit programs that a 64-bit kernel also runs: i386 on x86-64, ARM on AArch64. */
const ALSO_RUNS = new Map([[62, 3], [183, 40]]);

/**
 * The path of the program that a command names: a command without a slash is looked up in the PATH of
 * the child's own environment, the same on both runtimes. Throws `FileMissing` or `NotExecutable`.
 *
 * The file must start as a `#!` file or as an ELF file for this machine does. The kernel refuses
 * others (ENOEXEC), but libc's `execvp`, which both runtimes use, would then have a shell read them,
 * and a child that is half a download would look like one that starts and exits.
 */
export async function resolveCommand(options: SpawnOptions): Promise<string> {
  const path = await locate(options);
  let head: Uint8Array;
  try {
    if (!(await stat(path)).isFile()) throw new Error("not a regular file");
    await access(path, constants.X_OK);
    head = await firstBytes(path, ELF_HEAD_BYTES);
  } catch (error) {
    throw new NotExecutable(`${path}: ${errorText(error)}`, { cause: error });
  }
  const isScript = head[0] === 0x23 && head[1] === 0x21;
  if (!isScript && !(await isOwnElf(head))) {
    throw new NotExecutable(`${path}: neither a program for this machine nor a #! script`);
  }
  return path;
}

async function isOwnElf(head: Uint8Array): Promise<boolean> {
  const machine = elfMachine(head);
  if (machine === undefined) return false;
  const ours = elfMachine(await firstBytes("/proc/self/exe", ELF_HEAD_BYTES));
  return ours === undefined || machine === ours || machine === ALSO_RUNS.get(ours);
}

function elfMachine(head: Uint8Array): number | undefined {
  const [a, b, c, d] = head;
  if (a !== 0x7f || b !== 0x45 || c !== 0x4c || d !== 0x46) return undefined;
  const isBigEndian = head[5] === 2;
  if (head.length < ELF_HEAD_BYTES) return undefined;
  return new DataView(head.buffer, head.byteOffset).getUint16(18, !isBigEndian);
}

/** What the kernel says of a program itself (execve(2)), not of the state of the machine. */
const REFUSALS = new Set(["EACCES", "EPERM", "ENOENT", "ENOEXEC", "EINVAL", "ELOOP", "ENOTDIR"]);

/**
 * Turns the system's refusal to start a resolved command into one of the contract's errors; what is
 * no fault of the program (no memory, no descriptors, arguments too long) stays as it is.
 */
export async function explainRefusal(
  path: string,
  cwd: string | undefined,
  cause: unknown,
): Promise<unknown> {
  if (cwd !== undefined && !(await exists(cwd))) {
    return new FileMissing(`${cwd}: no such working folder`, { cause });
  }
  if (!(await exists(path))) return new FileMissing(`${path}: no such program`, { cause });
  if (!REFUSALS.has(errorCode(cause) ?? "")) return cause;
  return new NotExecutable(`${path}: ${errorText(cause)}`, { cause });
}

async function locate(options: SpawnOptions): Promise<string> {
  const { command, env } = options;
  if (command.includes("/")) {
    // exec comes after chdir, so that is what a relative path is relative to.
    const path = resolve(options.cwd ?? ".", command);
    if (!(await exists(path))) throw new FileMissing(`${path}: no such program`);
    return path;
  }
  for (const folder of (env.PATH ?? "/usr/local/bin:/usr/bin:/bin").split(":")) {
    const path = join(resolve(options.cwd ?? ".", folder), command);
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
