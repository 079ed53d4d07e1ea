/**
 * The command line: `baton <verb> [plain...] [--option value] [--option=value] [--flag]`.
 */

import { didYouMean } from "../config/nearest.ts";

/** The command line is not what the verb takes. */
export class UsageError extends Error {
  override readonly name = "UsageError";
}

export interface Arguments {
  readonly plain: readonly string[];
  /** The value of an option (the last one given), or undefined. */
  option(name: string): string | undefined;
  /** As `option`, as a whole number within bounds. Throws UsageError otherwise. */
  whole(name: string, least: number, most: number): number | undefined;
  flag(name: string): boolean;
}

export interface ArgumentRules {
  readonly options?: readonly string[];
  readonly flags?: readonly string[];
  readonly plain?: readonly [number, number];
}

/** Throws UsageError for anything that the rules do not name. `--` ends the options. */
export function parseArguments(words: readonly string[], rules: ArgumentRules): Arguments {
  const options = new Map<string, string>();
  const flags = new Set<string>();
  const plain: string[] = [];
  let onlyPlain = false;
  for (let index = 0; index < words.length; index += 1) {
    const word = words[index] ?? "";
    if (onlyPlain || !word.startsWith("--")) {
      if (!onlyPlain && word.length > 1 && word.startsWith("-")) {
        throw new UsageError(`unknown option ${word}`);
      }
      plain.push(word);
      continue;
    }
    if (word === "--") {
      onlyPlain = true;
      continue;
    }
    const equals = word.indexOf("=");
    const name = word.slice(2, equals < 0 ? undefined : equals);
    if (rules.flags?.includes(name) === true) {
      if (equals >= 0) throw new UsageError(`--${name} takes no value`);
      flags.add(name);
    } else if (rules.options?.includes(name) === true) {
      const value = equals >= 0 ? word.slice(equals + 1) : words[++index] ?? "";
      // The next option is no value; one that begins like it is written with an equals sign.
      const isNext = equals < 0 && value.startsWith("--");
      if (value.trim() === "" || isNext) throw new UsageError(`--${name} needs a value`);
      options.set(name, value);
    } else {
      const known = [...rules.flags ?? [], ...rules.options ?? []].map((one) => `--${one}`);
      throw new UsageError(`unknown option --${name}${didYouMean(`--${name}`, known)}`);
    }
  }
  const [least, most] = rules.plain ?? [0, 0];
  if (plain.length < least) throw new UsageError("an argument is missing");
  if (plain.length > most) throw new UsageError(`unexpected argument ${plain[most]}`);
  return {
    plain,
    option: (name) => options.get(name),
    whole: (name, from, to) => {
      const text = options.get(name);
      if (text === undefined) return undefined;
      const value = Number(text);
      if (/^\d+$/.test(text) && value >= from && value <= to) return value;
      throw new UsageError(`--${name} must be a whole number from ${from} to ${to}`);
    },
    flag: (name) => flags.has(name),
  };
}
