import { spawn } from "node:child_process";
import { once } from "node:events";
import type { Readable } from "node:stream";
import type { Launch } from "./launch.ts";
import type { ProcessExit } from "./runtime.ts";

/** Starts a child with `node:child_process`. */
export const launchOnNode: Launch = async (options, output) => {
  const child = spawn(options.command, options.args, {
    cwd: options.cwd,
    env: options.env,
    detached: true,
    stdio: ["ignore", "pipe", "pipe"],
  });
  const reaped = new Promise<ProcessExit>((resolve) => {
    child.once("exit", (code, signal) => {
      resolve(signal !== null ? { signal } : code !== null ? { code } : {});
    });
  });
  const pipes: Readable[] = [child.stdout, child.stderr];
  child.stdout.on("data", (chunk: Uint8Array) => output("stdout", chunk));
  child.stderr.on("data", (chunk: Uint8Array) => output("stderr", chunk));
  const pipesEnded = Promise.all(pipes.map((pipe) =>
    new Promise<void>((resolve) => {
      pipe.once("error", () => {});
      pipe.once("close", resolve);
    })
  )).then(() => {});
  // Rejects with the error of a command that could not be run: "error" comes instead of "spawn".
  await once(child, "spawn");
  child.on("error", () => {});
  if (child.pid === undefined) throw new Error(`${options.command}: started without a pid`);
  return {
    pid: child.pid,
    reaped,
    pipesEnded,
    dropPipes: () => pipes.forEach((pipe) => pipe.destroy()),
  };
};
