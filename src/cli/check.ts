/**
 * `baton check`: is the configuration right? Starts nothing.
 */

import { messageOf } from "../errors.ts";
import { loadConfig } from "../config/load.ts";
import { ConfigError } from "../config/problems.ts";
import type { ReplicaConfig } from "../config/replica.ts";
import { peerAddress } from "../config/rules.ts";
import type { ServiceConfig } from "../config/service.ts";
import { mountsOf } from "../config/service.ts";
import { printAddress } from "../config/values.ts";
import { printableUrl } from "../supervisor/address.ts";
import { proxyFor } from "../supervisor/proxies.ts";
import type { Runtime } from "../runtime/runtime.ts";
import { EXIT, type Verb } from "./verb.ts";

export const check: Verb = {
  name: "check",
  usage: "[--config <file>]",
  summary: "Check the configuration without starting anything",
  options: ["config"],
  async run(runtime, given) {
    const path = given.option("config");
    const loaded = await loadConfig(runtime, path === undefined ? {} : { path });
    const { config } = loaded;
    await checkTlsFiles(runtime, "listen.tls", config.listen.tls);
    await checkTlsFiles(runtime, "replica.tls", config.replica?.tls);
    const peer = peerAddress(config);
    const say = (line: string): boolean => runtime.print("stdout", line);
    for (const warning of loaded.warnings) runtime.print("stderr", `warning: ${warning}`);
    say(`configuration: ${loaded.path ?? "no file, environment and defaults"}`);
    say(
      `traffic ${printAddress(config.listen.traffic)}, admin ${printAddress(config.listen.admin)}` +
        (peer === undefined ? "" : `, peer ${printAddress(peer)}`),
    );
    for (const [name, service] of Object.entries(config.services)) {
      say(`service ${name} at ${mountsOf(service).join(", ")}: ${kindOf(service, runtime.env())}`);
    }
    say("ok");
    return EXIT.ok;
  },
};

/** Throws `ConfigError` for files that are not there, or that are not what they should be. */
async function checkTlsFiles(
  runtime: Pick<Runtime, "files" | "tls">,
  key: string,
  tls: ReplicaConfig["tls"],
): Promise<void> {
  const text: { ca?: string; cert?: string; key?: string } = {};
  for (const name of ["ca", "cert", "key"] as const) {
    const path = tls?.[name];
    if (path === undefined) continue;
    text[name] = await runtime.files.readText(path).catch((error) => {
      throw new ConfigError([{ key: `${key}.${name}`, allowed: messageOf(error) }]);
    });
  }
  if (text.ca?.includes("-----BEGIN CERTIFICATE-----") === false) {
    throw new ConfigError([{ key: `${key}.ca`, allowed: `${tls?.ca} has no certificate in it` }]);
  }
  if (text.cert === undefined || text.key === undefined) return;
  try {
    runtime.tls.check({ cert: text.cert, key: text.key });
  } catch (error) {
    throw new ConfigError([{ key, allowed: messageOf(error) }]);
  }
}

function kindOf(service: ServiceConfig, env: Record<string, string>): string {
  if (service.versions !== undefined) {
    const { oracle } = service.versions;
    const proxy = oracle.startsWith("file:") ? undefined : proxyFor(new URL(oracle), env);
    const way = proxy === undefined ? "" : `, through the proxy ${printableUrl(proxy)}`;
    return `versions from ${oracle}${way}`;
  }
  if (service.pool !== undefined) return `pool for ${service.pool.model}`;
  return `upstream ${service.upstream}`;
}
