/**
 * The parts of the record that are the same on Node and on Deno.
 *
 * Deno implements `node:*` so closely that one file serves both wherever test/runtime passes on both;
 * what still differs is levelled where it shows: errors of bind (net_listen.ts), a name server's
 * failure told as "not found" (dns.ts), made-up exit codes (deno_launch.ts), programs that libc would
 * hand to a shell (command.ts). Only children and, for their speed, sockets have a file per runtime.
 */

import process from "node:process";
import { setImmediate } from "node:timers";
import { createClock } from "./clock.ts";
import { createDns } from "./dns.ts";
import { fetchOnce } from "./fetch.ts";
import { createFiles } from "./files.ts";
import type { TryLock } from "./folder_locks.ts";
import { latin1 } from "./latin1.ts";
import { createMessageParser } from "./llhttp.ts";
import { flushPrinted, print, printSoon } from "./print.ts";
import { createRandom } from "./random.ts";
import type { Runtime } from "./runtime.ts";
import { serveApp } from "./serve.ts";
import { createThreads } from "./threads.ts";
import { createTls } from "./tls.ts";

/** Everything but the runtime's name, its sockets and its children. */
export function createBase(
  tryLock: TryLock,
): Omit<Runtime, "name" | "version" | "net" | "processes"> {
  return {
    pid: process.pid,
    args: process.argv.slice(2),
    env() {
      const copy: Record<string, string> = {};
      for (const [name, value] of Object.entries(process.env)) {
        if (value !== undefined) copy[name] = value;
      }
      return copy;
    },
    clock: createClock(),
    random: createRandom(),
    files: createFiles(tryLock),
    dns: createDns(),
    http: { serve: serveApp, fetch: fetchOnce },
    tls: createTls(),
    threads: createThreads(),
    wire: {
      latin1,
      // After the sockets that are ready now, and before timers: what they caused goes together.
      soon: (action) => void setImmediate(action),
      messageParser: createMessageParser,
    },
    print,
    printSoon,
    flushPrinted,
    onSignal(signal, listener) {
      process.on(signal, listener);
      return () => process.off(signal, listener);
    },
    exit: (code) => process.exit(code),
  };
}
