/**
 * versiond's environment variables as other names for keys of ours, so that a host can switch by
 * changing the program that it starts.
 *
 * Where versiond would start with a default after a typing error, this refuses; where it accepts
 * what Baton would not (plain http), this accepts it too, with a warning.
 */

import type { EnvironmentValues, Path } from "./environment.ts";
import type { Problem } from "./problems.ts";
import { DEFAULT_CHILD_ENV, VERSIOND_CHILD_ENV } from "./versions.ts";
import { parseDuration, parseNameList, parseSwitch } from "./versiond_values.ts";

export interface VersiondEnvironment {
  readonly values: EnvironmentValues["values"];
  readonly warnings: readonly string[];
  readonly problems: readonly Problem[];
}

const PREFIX = "VERSIOND_";
const OVERRIDE_PREFIX = "VERSIOND_OVERRIDE_";
const DEFAULT_BIN_DIR = "/opt/versiond/bin";
const DEFAULT_DATA_DIR = "/opt/versiond/data";

/** Where a variable goes: keys of the versions service, or (with a dot) of the whole config. */
type Target = readonly string[];

const TEXTS: Readonly<Record<string, Target>> = {
  VERSIOND_ORACLE_URL: ["oracle"],
  VERSIOND_BIN_DIR: ["binDir"],
  VERSIOND_DATA_DIR: ["dataDir"],
  VERSIOND_BINARY_NAME: ["binaryName"],
  VERSIOND_READY_PATH: ["readyPath"],
  VERSIOND_DRAIN_PATH: ["drainPath"],
  VERSIOND_DRAIN_STATUS_PATH: ["drainStatusPath"],
  VERSIOND_LISTEN_ADDR: ["listen.traffic"],
};

const DURATIONS: Readonly<Record<string, { readonly to: Target; readonly zero?: true }>> = {
  VERSIOND_POLL_INTERVAL: { to: ["pollIntervalMs"] },
  VERSIOND_READY_TIMEOUT: { to: ["readyTimeoutMs"] },
  VERSIOND_READY_MAX_WAIT: { to: ["readyMaxWaitMs"] },
  VERSIOND_RECOVERY_TIMEOUT: { to: ["recoveryTimeoutMs"] },
  VERSIOND_DRAIN_TIMEOUT: { to: ["drainTimeoutMs"] },
  VERSIOND_DRAIN_POLL_INTERVAL: { to: ["drainPollMs"] },
  VERSIOND_DRAIN_KILL_GRACE: { to: ["killGraceMs", "drainCushionMs"] },
  DEVSHARD_SHUTDOWN_GRACE: { to: ["childGraceMs"] },
  // Only this one may be nothing: there is no balancer in front.
  VERSIOND_DRAIN_ANNOUNCE: { to: ["shutdown.announceMs"], zero: true },
  VERSIOND_HOST_SHUTDOWN_BUDGET: { to: ["shutdown.budgetMs"] },
};

/** Read by something else around versiond (its compose file, its router), or without meaning here. */
const ELSEWHERE = /^VERSIOND_(STOP_GRACE_PERIOD|ROUTING_\w+|VERSIONS|HOSTS|PORT|IMAGE|BUILD\w*)$/;
const CONSENSUS = /^VERSIOND_CONSENSUS_(PARAMS|STATUS)_URL$/;

/** True when any of versiond's own variables is set. */
export function startedAsVersiond(environment: Readonly<Record<string, string>>): boolean {
  return Object.entries(environment).some(([name, value]) =>
    name.startsWith(PREFIX) && !ELSEWHERE.test(name) && value.trim() !== ""
  );
}

/**
 * What versiond's variables say, as values for config keys below `services.<service>.versions` and
 * for the shutdown. `oracleGiven`: the oracle's address comes from elsewhere.
 */
export function versiondAliases(
  environment: Readonly<Record<string, string>>,
  service: string,
  oracleGiven = false,
): VersiondEnvironment {
  const reading = new Reading(environment, service);
  reading.texts();
  reading.durations();
  reading.lists();
  reading.defaults(oracleGiven);
  reading.unknown();
  return reading;
}

class Reading implements VersiondEnvironment {
  readonly values: { path: Path; name: string; value: unknown }[] = [];
  readonly warnings: string[] = [];
  readonly problems: Problem[] = [];
  readonly #environment: Readonly<Record<string, string>>;
  readonly #service: string;
  readonly #overrides: Record<string, string> = {};

  constructor(environment: Readonly<Record<string, string>>, service: string) {
    this.#environment = environment;
    this.#service = service;
  }

  texts(): void {
    for (const [name, to] of Object.entries(TEXTS)) {
      const value = this.#get(name);
      if (value !== "") this.#set(name, to, value);
    }
  }

  durations(): void {
    for (const [name, { to, zero }] of Object.entries(DURATIONS)) {
      const text = this.#get(name);
      if (text === "") continue;
      const ms = parseDuration(text);
      if (ms === undefined || ms < 0 || (ms === 0 && zero !== true)) {
        this.problems.push({
          key: name,
          value: JSON.stringify(text),
          allowed: `a duration${zero === true ? "" : " above 0"} such as 30s, 10m or 1h30m`,
        });
      } else {
        this.#set(name, to, ms);
      }
    }
  }

  lists(): void {
    for (const [name, value] of Object.entries(this.#environment)) {
      const version = name.startsWith(OVERRIDE_PREFIX) ? name.slice(OVERRIDE_PREFIX.length) : "";
      if (version === "" || value.trim() === "") continue;
      // A variable's name cannot hold the dots of a version.
      this.#overrides[version.replaceAll("_", ".")] = value.trim();
    }
    if (Object.keys(this.#overrides).length > 0) {
      this.#set(`${OVERRIDE_PREFIX}*`, ["overrides"], this.#overrides);
    }
    const force = this.#get("VERSIOND_FORCE").split(",").map((one) => one.trim()).filter((one) =>
      one !== ""
    );
    if (force.length > 0) this.#set("VERSIOND_FORCE", ["force"], force);
    const nonHa = parseNameList(this.#get("VERSIOND_NON_HA_VERSIONS"));
    if (nonHa.length > 0) this.#set("VERSIOND_NON_HA_VERSIONS", ["nonHaVersions"], nonHa);
    this.#ha();
  }

  #ha(): void {
    const text = this.#get("GONKA_HA");
    if (text === "") return;
    const on = parseSwitch(text);
    if (on === undefined) {
      this.problems.push({
        key: "GONKA_HA",
        value: JSON.stringify(text),
        allowed: "1/t/true/yes/on or 0/f/false/no/off",
      });
      return;
    }
    this.#set("GONKA_HA", ["ha"], text);
    if (on && Object.keys(this.#overrides).length > 0) {
      this.problems.push({
        key: `${OVERRIDE_PREFIX}${Object.keys(this.#overrides)[0]?.replaceAll(".", "_")}`,
        allowed: "to be unset while GONKA_HA is on: replicas must run the same published build",
      });
    }
  }

  /** What holds for a host that was set up for versiond, where nothing else is said. */
  defaults(oracleGiven: boolean): void {
    const oracle = this.#get("VERSIOND_ORACLE_URL");
    if (oracle === "" && !oracleGiven) {
      this.problems.push({ key: "VERSIOND_ORACLE_URL", allowed: "this variable is required" });
    }
    if (this.#get("VERSIOND_BIN_DIR") === "") this.#set("(versiond)", ["binDir"], DEFAULT_BIN_DIR);
    const dataDir = this.#get("VERSIOND_DATA_DIR") || DEFAULT_DATA_DIR;
    this.#set("(versiond)", ["dataDir"], dataDir);
    // No version's name begins with a dot, so none can have this folder.
    this.#set("(versiond)", ["stateDir."], `${dataDir}/.baton`);
    this.#set("(versiond)", ["envAllow"], [...DEFAULT_CHILD_ENV, ...VERSIOND_CHILD_ENV]);
    this.#set("(versiond)", ["allowInsecure"], true);
    if (/^http:/i.test(oracle)) {
      this.warnings.push(
        `VERSIOND_ORACLE_URL is not encrypted: whoever is on the way to it decides what this host runs. ` +
          `It is taken because versiond's hosts use it.`,
      );
    }
  }

  unknown(): void {
    const known = new Set([
      ...Object.keys(TEXTS),
      ...Object.keys(DURATIONS),
      "VERSIOND_FORCE",
      "VERSIOND_NON_HA_VERSIONS",
    ]);
    for (const name of Object.keys(this.#environment).sort()) {
      if (!name.startsWith(PREFIX) || name.startsWith(OVERRIDE_PREFIX) || known.has(name)) continue;
      if (CONSENSUS.test(name) && this.#get(name) !== "") {
        this.warnings.push(
          `${name} has no effect: Baton does not compare the oracle's list with a chain's state.`,
        );
      } else if (!ELSEWHERE.test(name) && this.#get(name) !== "") {
        this.warnings.push(`${name} is not a variable that versiond or Baton reads.`);
      }
    }
  }

  #get(name: string): string {
    return this.#environment[name]?.trim() ?? "";
  }

  #set(name: string, to: Target, value: unknown): void {
    for (const key of to) {
      const path = key.includes(".")
        ? key.split(".").filter((part) => part !== "")
        : ["services", this.#service, "versions", key];
      this.values.push({ path, name, value });
    }
  }
}
