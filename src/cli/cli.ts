/**
 * argv -> verb -> exit code.
 */

import { ConfigError } from "../config/problems.ts";
import type { Runtime } from "../runtime/runtime.ts";
import { parseArguments, UsageError } from "./arguments.ts";
import { check } from "./check.ts";
import { controls } from "./control.ts";
import { drain } from "./drain.ts";
import { dump } from "./dump.ts";
import { events } from "./events.ts";
import { logs } from "./logs.ts";
import { publish } from "./publish.ts";
import { serve } from "./serve.ts";
import { status } from "./status.ts";
import { EXIT, type Verb } from "./verb.ts";
import { version } from "./version.ts";

const VERBS: readonly Verb[] = [
  serve,
  check,
  publish,
  status,
  logs,
  events,
  dump,
  ...controls,
  drain,
  version,
];

/** Runs the verb that the arguments name (`serve` if they name none) and returns its exit code. */
export async function runCli(runtime: Runtime): Promise<number> {
  const [first = "serve", ...others] = runtime.args;
  const named = !first.startsWith("-");
  const words = named ? others : runtime.args;
  if (first === "help" || first === "--help" || first === "-h" || words.includes("--help")) {
    runtime.print("stdout", named && first !== "help" ? helpFor(first) : help());
    return EXIT.ok;
  }
  const name = first === "--version" ? "version" : named ? first : "serve";
  const verb = VERBS.find((one) => one.name === name);
  if (verb === undefined) {
    runtime.print("stderr", `baton: there is no verb ${JSON.stringify(name)}; see baton help`);
    return EXIT.usage;
  }
  try {
    const given = parseArguments(name === "version" ? [] : words, verb);
    return await verb.run(name === "serve" ? runtime : strict(runtime), given);
  } catch (error) {
    if (error instanceof UsageError) {
      runtime.print("stderr", `baton ${name}: ${error.message}\n${helpFor(name)}`);
      return EXIT.usage;
    }
    if (error instanceof ConfigError) {
      runtime.print("stderr", `baton ${name}: the configuration is not valid\n${error.message}`);
      return EXIT.usage;
    }
    const message = error instanceof Error ? error.message : String(error);
    runtime.print("stderr", `baton ${name}: ${message}`);
    return EXIT.failed;
  }
}

/**
 * What a verb prints is what it was called for: if standard output does not take all of it (a full
 * disk, a reader that has gone), the verb has failed, and goes on no further. A server is not ended by
 * that.
 */
function strict(runtime: Runtime): Runtime {
  return {
    ...runtime,
    print: (stream, line) => {
      const isWhole = runtime.print(stream, line);
      if (!isWhole && stream === "stdout") {
        throw new Error("standard output did not take all of it");
      }
      return isWhole;
    },
  };
}

function help(): string {
  const width = Math.max(...VERBS.map((verb) => verb.name.length));
  const lines = VERBS.map((verb) => `  ${verb.name.padEnd(width)}  ${verb.summary}`);
  return `usage: baton [verb] [options]\n\n${lines.join("\n")}\n\n` +
    "`baton <verb> --help` shows a verb's options. Without a verb it serves.\n" +
    "docs/operations.md explains them.";
}

function helpFor(name: string): string {
  const verb = VERBS.find((one) => one.name === name);
  return verb === undefined ? help() : `usage: baton ${verb.name} ${verb.usage}\n${verb.summary}`;
}
