import type { Launch } from "./launch.ts";

/** Starts a child with `Deno.Command`. */
// deno-lint-ignore require-await -- `spawn` throws; the contract is a rejection.
export const launchOnDeno: Launch = async (options, output) => {
  const child = new Deno.Command(options.command, {
    args: [...options.args],
    cwd: options.cwd,
    env: { ...options.env },
    clearEnv: true,
    detached: true,
    stdin: "null",
    stdout: "piped",
    stderr: "piped",
  }).spawn();
  const readers = [child.stdout.getReader(), child.stderr.getReader()] as const;
  const pipesEnded = Promise.all([
    drain(readers[0], (chunk) => output("stdout", chunk)),
    drain(readers[1], (chunk) => output("stderr", chunk)),
  ]).then(() => {});
  return {
    pid: child.pid,
    // On a signal Deno also makes up a code (128 + n), which the child never gave.
    reaped: child.status.then(({ code, signal }) => signal !== null ? { signal } : { code }),
    pipesEnded,
    dropPipes: () => readers.forEach((reader) => void reader.cancel().catch(() => {})),
  };
};

async function drain(
  reader: ReadableStreamDefaultReader<Uint8Array>,
  output: (chunk: Uint8Array) => void,
): Promise<void> {
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      output(value);
    }
  } catch {
    // A broken pipe is an ended one.
  }
}
