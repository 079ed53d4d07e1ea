/**
 * Threads over `node:worker_threads`, on both runtimes.
 *
 * What is posted in one turn of the event loop leaves as one message at its end: a message costs as
 * much as some hundred of its words, and under load a turn has the news of many sockets.
 */

import { setImmediate } from "node:timers";
import { isMainThread, parentPort, Worker } from "node:worker_threads";
import type { ParentThread, Thread, Threads } from "./threads_contract.ts";

export function createThreads(): Threads {
  return { start, parent: isMainThread || parentPort === null ? undefined : parentOf(parentPort) };
}

function parentOf(port: NonNullable<typeof parentPort>): ParentThread {
  return {
    post: batched((messages) => port.postMessage(messages)),
    onMessage: (listener) => void port.on("message", oneByOne(listener)),
  };
}

function start(module: URL): Thread {
  const worker = new Worker(module);
  let error: string | undefined;
  worker.on("error", (thrown: unknown) => {
    error ??= thrown instanceof Error ? thrown.stack ?? thrown.message : String(thrown);
  });
  return {
    post: batched((messages) => worker.postMessage(messages)),
    onMessage: (listener) => void worker.on("message", oneByOne(listener)),
    onExit: (listener) => void worker.once("exit", () => listener(error)),
    terminate: async () => void await worker.terminate(),
  };
}

function batched(
  send: (messages: readonly unknown[]) => void,
): (message: unknown, isUrgent?: boolean) => void {
  let waiting: unknown[] = [];
  const flush = (): void => {
    if (waiting.length === 0) return;
    const messages = waiting;
    waiting = [];
    send(messages);
  };
  return (message, isUrgent = false) => {
    waiting.push(message);
    if (isUrgent) flush();
    else if (waiting.length === 1) setImmediate(flush);
  };
}

function oneByOne(listener: (message: unknown) => void): (messages: unknown[]) => void {
  return (messages) => {
    for (const message of messages) listener(message);
  };
}
