/**
 * What a child is started with: its command line from the template, and its environment.
 *
 * The environment is an allow-list over Baton's own, so no secret of the supervisor reaches a child
 * that was not meant to have it. What is said to one child of itself (its admin address, where its
 * predecessors are) is set for each and never inherited: two children that bound one inherited admin
 * address would collide.
 */

import type { VersionsConfig } from "../config/versions.ts";
import { isDevshardBinary } from "../config/versions.ts";
import { parseSwitch } from "../config/versiond_values.ts";

/** The child's loopback admin address; set only for a child that said it has such a listener. */
const ADMIN_ADDRESS_VARIABLE = "DEVSHARD_ADMIN_ADDR";
/** The build id that a child prints in its log lines. */
const LOG_VERSION_VARIABLE = "DEVSHARD_BINARY_LOG_VERSION";
/** Whether the host runs several replicas over one database. */
const HA_VARIABLE = "GONKA_HA";

/**
 * Where the generations before this one have their peer listeners, as a JSON list of `host:port`; set
 * for every child that gets a peer port, the first one included (`[]`). It is the environment's form
 * of a key that Baton itself has, so that a Baton under Baton needs nothing else.
 */
const PREDECESSORS_VARIABLE = "BATON_REPLICA_PREDECESSORS";

/** What a start knows; `undefined` where the child has no such thing. */
export interface ChildStart {
  readonly name: string;
  /** Absolute path of the program. */
  readonly binary: string;
  /** The folder of its install. */
  readonly folder: string;
  readonly dataDir: string;
  readonly port: number;
  readonly adminPort?: number;
  readonly peerPort?: number;
  /** With a peer port: where predecessors have theirs, as `host:port`. */
  readonly predecessors?: readonly string[];
  /** From preflight; "" when the build does not know its own. */
  readonly buildId: string;
  /** Devshard only: from preflight. */
  readonly ha?: boolean;
}

export interface ChildCommand {
  readonly command: string;
  readonly args: readonly string[];
  readonly env: Readonly<Record<string, string>>;
}

type Options = Pick<VersionsConfig, "command" | "env" | "envAllow" | "binaryName">;

/** The command line and environment for one child. `own` is Baton's environment. */
export function childCommand(
  config: Options,
  own: Readonly<Record<string, string>>,
  start: ChildStart,
): ChildCommand {
  const [command, ...args] = config.command.map((part) => fill(part, start));
  return { command: command ?? start.binary, args, env: childEnv(config, own, start) };
}

/** The environment for one child. */
export function childEnv(
  config: Omit<Options, "command">,
  own: Readonly<Record<string, string>>,
  start: ChildStart,
): Record<string, string> {
  const env = inheritedEnv(config, own);
  for (const [name, value] of Object.entries(config.env)) env[name] = fill(value, start);
  env[LOG_VERSION_VARIABLE] = start.buildId === "" ? start.name : start.buildId;
  if (start.adminPort !== undefined) {
    env[ADMIN_ADDRESS_VARIABLE] = `127.0.0.1:${start.adminPort}`;
  }
  if (start.peerPort !== undefined) {
    env[PREDECESSORS_VARIABLE] = JSON.stringify(start.predecessors ?? []);
  }
  if (isDevshardBinary(config.binaryName) && start.ha !== undefined) {
    env[HA_VARIABLE] = String(start.ha);
  }
  return env;
}

/** What of Baton's environment a child (or a print flag's run) inherits. */
export function inheritedEnv(
  config: Pick<VersionsConfig, "envAllow">,
  own: Readonly<Record<string, string>>,
): Record<string, string> {
  const env: Record<string, string> = {};
  for (const [name, value] of Object.entries(own)) {
    if (name === ADMIN_ADDRESS_VARIABLE || name === PREDECESSORS_VARIABLE) continue;
    if (config.envAllow.some((pattern) => matches(pattern, name))) env[name] = value;
  }
  return env;
}

function matches(pattern: string, name: string): boolean {
  return pattern.endsWith("*") ? name.startsWith(pattern.slice(0, -1)) : name === pattern;
}

/** Fills the placeholders in; a word in braces that is none of them stays as it is. */
function fill(template: string, start: ChildStart): string {
  const values: Record<string, string> = {
    binary: start.binary,
    folder: start.folder,
    name: start.name,
    dataDir: start.dataDir,
    port: String(start.port),
    adminPort: start.adminPort === undefined ? "" : String(start.adminPort),
    peerPort: start.peerPort === undefined ? "" : String(start.peerPort),
  };
  return template.replace(
    /\{([A-Za-z]+)\}/g,
    (whole, word: string) => Object.hasOwn(values, word) ? values[word] ?? whole : whole,
  );
}

/** GONKA_HA as versiond reads it. Throws for what is neither on nor off. */
export function parseHa(text: string): boolean {
  const on = parseSwitch(text);
  if (on !== undefined) return on;
  throw new Error(
    `${HA_VARIABLE} is ${JSON.stringify(text)}: allowed are 1/t/true/yes/on, 0/f/false/no/off`,
  );
}
