/** Threads over `node:worker_threads`, on both runtimes. */

import { isMainThread, parentPort, Worker } from "node:worker_threads";
import type { ParentThread, Thread, Threads } from "./threads_contract.ts";

export function createThreads(): Threads {
  return { start, parent: isMainThread || parentPort === null ? undefined : parentOf(parentPort) };
}

function parentOf(port: NonNullable<typeof parentPort>): ParentThread {
  return {
    post: (message) => port.postMessage(message),
    onMessage: (listener) => void port.on("message", listener),
  };
}

function start(module: URL): Thread {
  const worker = new Worker(module);
  let error: string | undefined;
  worker.on("error", (thrown: unknown) => {
    error ??= thrown instanceof Error ? thrown.stack ?? thrown.message : String(thrown);
  });
  return {
    post: (message) => worker.postMessage(message),
    onMessage: (listener) => void worker.on("message", listener),
    onExit: (listener) => void worker.once("exit", () => listener(error)),
    terminate: async () => void await worker.terminate(),
  };
}
