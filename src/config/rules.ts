/**
 * What a schema of single keys cannot say: rules that join keys.
 */

import type { Address } from "../runtime/runtime.ts";
import type { PoolConfig } from "./pool.ts";
import type { Problem } from "./problems.ts";
import type { Config } from "./schema.ts";
import { mountsOf } from "./service.ts";
import { isLoopback, isLoopbackHost, isPublic, printAddress } from "./values.ts";
import { parseSwitch } from "./versiond_values.ts";

/** Every broken rule. `config` already satisfies the schema. */
export function brokenRules(config: Config): Problem[] {
  return [
    ...mountRules(config),
    ...poolRules(config),
    ...listenRules(config),
    ...shutdownRules(config),
    ...versionsRules(config),
  ];
}

/** Where the peer listener is, or undefined while it is off. */
export function peerAddress(config: Config): Address | undefined {
  if (config.listen.peer !== undefined) return config.listen.peer;
  return config.replica === undefined ? undefined : { kind: "tcp", host: "0.0.0.0", port: 8082 };
}

function* mountRules(config: Config): Iterable<Problem> {
  const owners = new Map<string, string>();
  for (const [name, service] of Object.entries(config.services)) {
    for (const mount of mountsOf(service)) {
      const owner = owners.get(mount);
      if (owner !== undefined) {
        yield {
          key: `services.${name}.mount`,
          value: JSON.stringify(mount),
          allowed: `a path of its own: ${owner} is mounted there`,
        };
      }
      owners.set(mount, name);
    }
  }
}

function* poolRules(config: Config): Iterable<Problem> {
  const partitions = new Map<string, string>();
  const listened = new Map<string, string>();
  for (const [name, { pool }] of Object.entries(config.services)) {
    if (pool === undefined) continue;
    const partition = JSON.stringify([pool.model, pool.group]);
    const other = partitions.get(partition);
    if (other !== undefined) {
      yield {
        key: `services.${name}.pool.group`,
        value: JSON.stringify(pool.group),
        allowed: `a group of its own: ${other} has this model and group (a service may have ` +
          "several mounts)",
      };
    }
    partitions.set(partition, name);
    yield* replayRules(`services.${name}.pool.workers`, pool.workers);
    if ("versions" in pool.workers) {
      const wanted = pool.workers.versions;
      if (config.services[wanted]?.versions === undefined) {
        yield {
          key: `services.${name}.pool.workers.versions`,
          value: JSON.stringify(wanted),
          allowed: "the name of a service that has versions",
        };
      }
    } else if (Array.isArray(pool.workers)) {
      const ids = new Set<string>();
      for (const worker of pool.workers) {
        if (ids.has(worker.id)) {
          yield {
            key: `services.${name}.pool.workers`,
            value: JSON.stringify(worker.id),
            allowed: "an id that no other worker has",
          };
        }
        ids.add(worker.id);
        if (worker.kvEvents === undefined) continue;
        const listener = listened.get(worker.id);
        if (listener !== undefined && listener !== name) {
          yield {
            key: `services.${name}.pool.workers`,
            value: JSON.stringify(worker.id),
            allowed: `an id that no worker with kvEvents of another pool has: ${listener} has it`,
          };
        }
        listened.set(worker.id, name);
      }
    }
  }
}

/** What is missed is asked for where it is listened to: replays alone bring nothing. */
function* replayRules(key: string, workers: PoolConfig["workers"]): Iterable<Problem> {
  const needed = (replay: string, events: string): Problem => ({
    key: `${key}${replay}`,
    allowed: `only together with ${events}, whose missed events are asked for there`,
  });
  if (Array.isArray(workers)) {
    for (const [at, { kvEvents, replay }] of workers.entries()) {
      if (replay !== undefined && kvEvents === undefined) {
        yield needed(`[${at}].replay`, "kvEvents");
      }
    }
  } else if ("versions" in workers) {
    const { kvEventsPortOffset, replayPortOffset } = workers;
    if (replayPortOffset !== undefined && kvEventsPortOffset === undefined) {
      yield needed(".replayPortOffset", "kvEventsPortOffset");
    }
  } else {
    const { kvEventsPort, replayPort } = workers.kubernetes;
    if (replayPort !== undefined && kvEventsPort === undefined) {
      yield needed(".kubernetes.replayPort", "kvEventsPort");
    }
  }
}

function* listenRules(config: Config): Iterable<Problem> {
  const { traffic, admin } = config.listen;
  const peer = peerAddress(config);
  if (!isLoopback(admin) && config.admin.token === undefined) {
    yield {
      key: "listen.admin",
      value: JSON.stringify(printAddress(admin)),
      allowed: "a loopback address, or any address once admin.token is set",
    };
  }
  const { token, tls } = config.replica ?? {};
  if ((tls?.cert === undefined) !== (tls?.key === undefined)) {
    yield { key: "replica.tls", allowed: "cert and key go together" };
  }
  const mutualTls = tls?.ca !== undefined && tls.cert !== undefined;
  const isGuarded = token !== undefined || mutualTls || config.listen.allowOpenPeer;
  if (peer !== undefined && isPublic(peer) && !isGuarded) {
    yield {
      key: "listen.peer",
      value: JSON.stringify(printAddress(peer)),
      allowed:
        "a loopback or private address; or set replica.token, or all of replica.tls; or, on a " +
        "network that is closed by other means, listen.allowOpenPeer",
    };
  }
  const seen = new Map<string, string>();
  for (const [name, address] of Object.entries({ traffic, admin, peer })) {
    if (address === undefined || (address.kind === "tcp" && address.port === 0)) continue;
    const text = printAddress(address);
    const other = seen.get(text);
    if (other !== undefined) {
      yield {
        key: `listen.${name}`,
        value: JSON.stringify(text),
        allowed: `an address of its own: listen.${other} has this one`,
      };
    }
    seen.set(text, name);
  }
}

/** The invariants of a host's shutdown (rolling-updates.md 2.9, cases 182-185). */
function* shutdownRules(config: Config): Iterable<Problem> {
  const { announceMs, budgetMs } = config.shutdown;
  if (announceMs !== 0 && announceMs < 5_000) {
    yield {
      key: "shutdown.announceMs",
      value: String(announceMs),
      allowed: "0, or at least 5000: balancers check every few seconds",
    };
  }
  if (announceMs >= budgetMs) {
    yield {
      key: "shutdown.announceMs",
      value: String(announceMs),
      allowed: `less than shutdown.budgetMs (${budgetMs})`,
    };
  }
  for (const [name, { versions }] of Object.entries(config.services)) {
    if (versions === undefined || versions.killGraceMs < budgetMs - announceMs) continue;
    yield {
      key: `services.${name}.versions.killGraceMs`,
      value: String(versions.killGraceMs),
      allowed: `less than shutdown.budgetMs - shutdown.announceMs (${budgetMs - announceMs})`,
    };
  }
}

function* versionsRules(config: Config): Iterable<Problem> {
  for (const [name, { versions }] of Object.entries(config.services)) {
    if (versions === undefined) continue;
    const key = `services.${name}.versions`;
    if (versions.lastPort < versions.basePort) {
      yield {
        key: `${key}.lastPort`,
        value: String(versions.lastPort),
        allowed: `at least basePort (${versions.basePort})`,
      };
    }
    const { oracle, allowInsecure } = versions;
    if (oracle.startsWith("http:") && !allowInsecure && !isLoopbackHost(new URL(oracle).hostname)) {
      yield {
        key: `${key}.oracle`,
        value: JSON.stringify(new URL(oracle).origin),
        allowed: `https:, or http: on this machine, or any http: once ${key}.allowInsecure is true`,
      };
    }
    const ha = parseSwitch(versions.ha);
    if (ha === undefined) {
      yield {
        key: `${key}.ha`,
        value: JSON.stringify(versions.ha),
        allowed: "1/t/true/yes/on or 0/f/false/no/off",
      };
    }
    // Replicas over one database must run the same published build.
    const [override] = Object.keys(versions.overrides);
    if (ha === true && override !== undefined) {
      yield {
        key: `${key}.overrides`,
        value: JSON.stringify(override),
        allowed: "none while `ha` is on",
      };
    }
  }
}
