/**
 * What is wrong with a configuration: all of it at once, each with key, value and what is allowed.
 */

import type * as v from "valibot";
import { configKeys } from "./json_schema.ts";
import { didYouMean } from "./nearest.ts";

export interface Problem {
  /** The key (`listen.traffic`) or the environment variable that the value came from. */
  readonly key: string;
  /** The value as JSON, shortened; undefined when there is none, or when it must not be shown. */
  readonly value?: string;
  /** What is allowed there, or what to do. */
  readonly allowed: string;
}

/** Stops the start. Its message is the list of problems, one a line. */
export class ConfigError extends Error {
  override readonly name = "ConfigError";
  readonly problems: readonly Problem[];

  constructor(problems: readonly Problem[]) {
    super(problems.map(printProblem).join("\n"));
    this.problems = problems;
  }
}

function printProblem(problem: Problem): string {
  return problem.value === undefined
    ? `${problem.key}: ${problem.allowed}`
    : `${problem.key} = ${problem.value}: allowed is ${problem.allowed}`;
}

const SECRET_KEY = /token|secret|password|credential/i;

/** A value for a message: JSON, shortened, and never that of a key that names a secret. */
export function showValue(path: readonly (string | number)[], value: unknown): string {
  if (path.some((key) => SECRET_KEY.test(String(key)))) return "(not shown)";
  const text = JSON.stringify(value, (key, inner: unknown) => {
    if (SECRET_KEY.test(key)) return "(not shown)";
    return typeof inner === "number" && !Number.isFinite(inner) ? String(inner) : inner;
  }) ?? "nothing";
  return text.length <= 120 ? text : `${text.slice(0, 117)}...`;
}

/** `services.chat.pool.workers[0].url` */
export function printPath(path: readonly (string | number)[]): string {
  let text = "";
  for (const key of path) {
    if (typeof key === "number") text += `[${key}]`;
    else if (/^[A-Za-z_$][\w$-]*$/.test(key)) text += text === "" ? key : `.${key}`;
    else text += `[${JSON.stringify(key)}]`;
  }
  return text === "" ? "the configuration" : text;
}

type Issue = v.BaseIssue<unknown>;

/**
 * The problems behind valibot's issues. `sources` tells which environment variable set a path, so
 * that the message names what the operator wrote.
 */
export function problemsOf(
  issues: readonly Issue[],
  sources: ReadonlyMap<string, string>,
): Problem[] {
  const problems: Problem[] = [];
  for (const issue of issues) collect(issue, [], sources, problems);
  return problems;
}

/** The problem of a key that a variable set (itself, or something in it), named after both. */
export function withSource(problem: Problem, sources: ReadonlyMap<string, string>): Problem {
  for (const [path, name] of sources) {
    const key = printPath(JSON.parse(path));
    if (key === problem.key || key.startsWith(`${problem.key}.`)) {
      return { ...problem, key: `${name} (${problem.key})` };
    }
  }
  return problem;
}

function collect(
  issue: Issue,
  above: readonly (string | number)[],
  sources: ReadonlyMap<string, string>,
  problems: Problem[],
): void {
  const path = [...above, ...(issue.path ?? []).map((item) => item.key as string | number)];
  const meant = issue.type === "union" ? meantBranch(issue) : [];
  if (meant.length > 0) {
    for (const inner of meant) collect(inner, path, sources, problems);
    return;
  }
  const source = nearestSource(path, sources);
  const key = source === undefined ? printPath(path) : `${source} (${printPath(path)})`;
  const unknownKey = issue.type === "strict_object" && issue.expected === "never";
  if (unknownKey) {
    const value = showValue(path, issue.path?.at(-1)?.value);
    const near = didYouMean(String(path.at(-1)), keysBeside(path));
    add(problems, { key, value, allowed: `nothing: there is no such key${near}` });
  } else if (issue.input === undefined) {
    add(problems, { key, allowed: "this key is required" });
  } else {
    add(problems, { key, value: showValue(path, issue.input), allowed: allowedBy(issue) });
  }
}

/** The keys that there are where `path` ends. */
function keysBeside(path: readonly (string | number)[]): string[] {
  const isThere = (key: string, at: number): boolean =>
    key === (typeof path[at] === "number" ? "[]" : path[at]) || key === "*";
  return configKeys().flatMap((one) => {
    const name = one.path.at(-1) ?? "";
    const isBeside = one.path.length === path.length && one.path.slice(0, -1).every(isThere);
    return isBeside && name !== "*" && name !== "[]" ? [name] : [];
  });
}

function add(problems: Problem[], problem: Problem): void {
  const same = (one: Problem) => one.key === problem.key && one.allowed === problem.allowed;
  if (!problems.some(same)) problems.push(problem);
}

/**
 * A union reports what every alternative missed. Only the problems of the alternative that the value
 * was evidently meant to be help: of a list those of its items, of an object those further inside.
 */
function meantBranch(issue: Issue): Issue[] {
  const inner = issue.issues ?? [];
  if (Array.isArray(issue.input)) {
    return inner.filter((one) => typeof one.path?.[0]?.key === "number");
  }
  return inner.filter((one) => (one.path?.length ?? 0) >= 2);
}

/** The schema's own words, or valibot's for what it expected. */
function allowedBy(issue: Issue): string {
  if (!issue.message.startsWith("Invalid ")) return issue.message;
  const expected = issue.expected ?? issue.message;
  if (expected === "Object") return "an object, { ... }";
  if (expected === "Array") return "a list, [ ... ]";
  return expected.replace(/^>=/, "at least ").replace(/^<=/, "at most ");
}

/** The environment variable that set the path, something above it, or else something in it. */
function nearestSource(
  path: readonly (string | number)[],
  sources: ReadonlyMap<string, string>,
): string | undefined {
  for (let length = path.length; length > 0; length -= 1) {
    const source = sources.get(JSON.stringify(path.slice(0, length)));
    if (source !== undefined) return source;
  }
  const inside = `${JSON.stringify(path).slice(0, -1)},`;
  for (const [below, name] of sources) if (below.startsWith(inside)) return name;
  return undefined;
}
