/**
 * File and environment -> one frozen Config, or every problem at once.
 */

import { messageOf } from "../errors.ts";
import * as v from "valibot";
import { FileMissing, type Runtime } from "../runtime/runtime.ts";
import { readEnvironment, withValue } from "./environment.ts";
import { jsonFault } from "./json_error.ts";
import { ConfigError, type Problem, problemsOf, withSource } from "./problems.ts";
import { brokenRules } from "./rules.ts";
import { type Config, configSchema } from "./schema.ts";
import { readSecret, type Secret } from "./secret.ts";
import { shapeProblems } from "./shape.ts";
import { asksFor, overlapRule } from "./versions.ts";
import { startedAsVersiond } from "./versiond_env.ts";
import { type WithoutFile, withoutFile } from "./without_file.ts";

export interface LoadOptions {
  /** `--config`; before `BATON_CONFIG`, before `baton.json` in the working folder. */
  readonly path?: string;
  /** What the command line says in place of variables, which wins over everything. */
  readonly overrides?: Readonly<Record<string, Override>>;
}

/** The value of a variable, and the option that it was written as. */
export interface Override {
  readonly value: string;
  readonly option: string;
}

export interface LoadedConfig {
  readonly config: Config;
  /** The file, or undefined when everything came from the environment and the defaults. */
  readonly path: string | undefined;
  /** Worth a line in the log; none of them stops the start. */
  readonly warnings: readonly string[];
}

/** Loads the configuration and reads every secret once. Throws ConfigError with all problems. */
export async function loadConfig(
  runtime: Pick<Runtime, "env" | "files">,
  options: LoadOptions = {},
): Promise<LoadedConfig> {
  const overrides = Object.entries(options.overrides ?? {});
  const environment = {
    ...runtime.env(),
    ...Object.fromEntries(overrides.map(([name, { value }]) => [name, value])),
  };
  const file = await readFile(runtime, options.path ?? named(environment, "BATON_CONFIG"));
  const alone = file === undefined ? withoutFile(environment) : undefined;
  const writtenAs = new Map(overrides.map(([name, { option }]) => [name, option]));
  const config = parseConfig(file === undefined ? {} : file.value, environment, alone, writtenAs);
  const problems = await missingSecrets(runtime, config);
  if (problems.length > 0) throw new ConfigError(problems);
  const warnings = [
    ...warningsOf(environment, file?.path, alone),
    ...doubtsAbout(config, environment),
  ];
  return { config, path: file?.path, warnings };
}

/**
 * The pure part: a file's value and an environment -> Config. `alone` is what stands for the file
 * where there is none; `writtenAs` names the options that stand for variables. Throws ConfigError.
 */
export function parseConfig(
  file: unknown,
  environment: Readonly<Record<string, string>> = {},
  alone?: WithoutFile,
  writtenAs: ReadonlyMap<string, string> = new Map(),
): Config {
  if (typeof file !== "object" || file === null || Array.isArray(file)) {
    throw new ConfigError([{ key: "the configuration", allowed: "must be an object, { ... }" }]);
  }
  let written: unknown = alone?.file ?? file;
  const read = readEnvironment(environment, written, alone?.names);
  const problems: Problem[] = [...(alone?.problems ?? []), ...read.problems];
  const sources = new Map<string, string>();
  for (const { path, name, value } of [...(alone?.values ?? []), ...read.values]) {
    written = withValue(written, path, value);
    sources.set(JSON.stringify(path), writtenAs.get(name) ?? name);
  }
  problems.push(...shapeProblems(written));
  const result = v.safeParse(configSchema, written);
  if (!result.success) {
    problems.push(...problemsOf(result.issues, sources));
    throw new ConfigError(problems);
  }
  const config = freeze(result.output) as Config;
  problems.push(...brokenRules(config).map((problem) => withSource(problem, sources)));
  if (problems.length > 0) throw new ConfigError(problems);
  return config;
}

async function readFile(
  runtime: Pick<Runtime, "files">,
  asked: string | undefined,
): Promise<{ path: string; value: unknown } | undefined> {
  const path = asked ?? "baton.json";
  let text: string;
  try {
    text = await runtime.files.readText(path);
  } catch (error) {
    if (asked === undefined && error instanceof FileMissing) return undefined;
    const why = error instanceof FileMissing ? "there is no such file" : "cannot be read";
    throw new ConfigError([{ key: path, allowed: why }]);
  }
  const json = text.replace(/^\uFEFF/, "");
  const fault = jsonFault(json);
  if (fault !== undefined) throw new ConfigError([{ key: path, allowed: fault }]);
  return { path, value: JSON.parse(json) as unknown };
}

/** A secret that cannot be read stops the start, not the first request that needs it. */
async function missingSecrets(
  runtime: Pick<Runtime, "env" | "files">,
  config: Config,
): Promise<Problem[]> {
  const problems: Problem[] = [];
  const check = async (key: string, reference: Secret | undefined): Promise<void> => {
    if (reference === undefined) return;
    try {
      await readSecret(runtime, reference);
    } catch (error) {
      problems.push({ key, allowed: messageOf(error) });
    }
  };
  await check("admin.token", config.admin.token);
  await check("replica.token", config.replica?.token);
  return problems;
}

function warningsOf(
  environment: Readonly<Record<string, string>>,
  path: string | undefined,
  alone: WithoutFile | undefined,
): readonly string[] {
  if (alone !== undefined) return alone.warnings;
  return path !== undefined && startedAsVersiond(environment)
    ? [`versiond's variables have no effect: the configuration is ${path}`]
    : [];
}

/** What is allowed and does not do what it seems to be there for. */
function doubtsAbout(
  config: Config,
  environment: Readonly<Record<string, string>>,
): readonly string[] {
  return [
    ...threadDoubts(config),
    ...versionDoubts(config),
    ...proxyDoubts(config, environment),
  ];
}

function threadDoubts({ traffic: { workers }, listen }: Config): readonly string[] {
  if (workers === 1) return [];
  const isUnix = listen.descriptor === undefined && listen.traffic.kind === "unix";
  const what = isUnix ? "the unix socket of listen.traffic" : "listen.descriptor";
  if (!isUnix && listen.descriptor === undefined) return [];
  return [`traffic.workers is ${workers}, and the main thread alone can accept from ${what}`];
}

function versionDoubts(config: Config): readonly string[] {
  return Object.entries(config.services).flatMap(([name, { versions }]) => {
    if (versions === undefined || !asksFor(versions, "peerPort")) return [];
    const rule = overlapRule(versions);
    return rule === "always" ? [] : [
      `services.${name}.versions.overlap is ${rule}: where builds may not overlap, a new generation ` +
      "starts once the one before has ended, and {peerPort} leads to nobody whose state it could take",
    ];
  });
}

function proxyDoubts(
  config: Config,
  environment: Readonly<Record<string, string>>,
): readonly string[] {
  const isFetched = Object.values(config.services).some(({ versions }) =>
    versions !== undefined && !versions.oracle.startsWith("file:")
  );
  const set = ["ALL_PROXY", "all_proxy"].find((name) => named(environment, name) !== undefined);
  return !isFetched || set === undefined
    ? []
    : [`${set} is for children only: oracles and artifacts take HTTPS_PROXY and HTTP_PROXY`];
}

function named(environment: Readonly<Record<string, string>>, name: string): string | undefined {
  const value = environment[name]?.trim();
  return value === undefined || value === "" ? undefined : value;
}

function freeze<T>(value: T): T {
  if (typeof value === "object" && value !== null && !Object.isFrozen(value)) {
    for (const inner of Object.values(value)) freeze(inner);
    Object.freeze(value);
  }
  return value;
}
