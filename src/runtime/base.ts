/** The parts of the record that are the same on Node and on Deno. */

import process from "node:process";
import { createClock } from "./clock.ts";
import { createDns } from "./dns.ts";
import { createFiles } from "./files.ts";
import { latin1 } from "./latin1.ts";
import { createMessageParser } from "./llhttp.ts";
import { print } from "./print.ts";
import { createRandom } from "./random.ts";
import type { Runtime } from "./runtime.ts";

/** Everything but what names the runtime, sockets, children and HTTP. */
export function createBase(): Omit<Runtime, "name" | "version" | "net" | "processes" | "http"> {
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
    files: createFiles(),
    dns: createDns(),
    wire: { latin1, messageParser: createMessageParser },
    print,
    onSignal(signal, listener) {
      process.on(signal, listener);
      return () => process.off(signal, listener);
    },
    exit: (code) => process.exit(code),
  };
}
