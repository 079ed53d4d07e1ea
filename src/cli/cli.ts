/**
 * argv -> verb -> exit code.
 */

import { messageOf } from "../errors.ts";
import { ConfigError } from "../config/problems.ts";
import { didYouMean } from "../config/nearest.ts";
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
  const { name, words, isHelp } = commandOf(runtime.args);
  const verb = VERBS.find((one) => one.name === name);
  if (verb === undefined && !(isHelp && name === "")) {
    const near = didYouMean(name, VERBS.map((one) => one.name));
    const said = `there is no verb ${JSON.stringify(name)}${near}`;
    runtime.print("stderr", `baton: ${said}${near === "" ? "; " : " "}see baton help`);
    return EXIT.usage;
  }
  if (verb === undefined || isHelp) {
    runtime.print("stdout", verb === undefined ? help() : helpFor(verb));
    return EXIT.ok;
  }
  try {
    const given = parseArguments(words, verb);
    return await verb.run(name === "serve" ? runtime : strict(runtime), given);
  } catch (error) {
    if (error instanceof UsageError) {
      runtime.print("stderr", `baton ${name}: ${error.message}\n${helpFor(verb)}`);
      return EXIT.usage;
    }
    if (error instanceof ConfigError) {
      runtime.print("stderr", `baton ${name}: the configuration is not valid\n${error.message}`);
      return EXIT.usage;
    }
    const message = messageOf(error);
    runtime.print("stderr", `baton ${name}: ${message}`);
    return EXIT.failed;
  }
}

/** The verb that is meant (none: `serve`, or "" for help about all), and the words after it. */
function commandOf(
  args: readonly string[],
): { name: string; words: readonly string[]; isHelp: boolean } {
  const [first = "", ...rest] = args;
  if (["help", "--help", "-h"].includes(first)) {
    return { name: rest[0] ?? "", words: [], isHelp: true };
  }
  if (first === "--version") return { name: "version", words: rest, isHelp: false };
  const isNamed = args.length > 0 && !first.startsWith("-");
  const words = isNamed ? rest : args;
  const end = words.indexOf("--");
  const options = end < 0 ? words : words.slice(0, end);
  const isHelp = options.includes("--help") || options.includes("-h");
  return { name: isNamed ? first : "serve", words, isHelp };
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

function helpFor(verb: Verb): string {
  return `usage: baton ${verb.name} ${verb.usage}`.trimEnd() + `\n${verb.summary}`;
}
