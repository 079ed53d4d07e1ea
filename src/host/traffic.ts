/**
 * The traffic listener of the host: from its configuration to a server, with the certificate's
 * files and an inherited socket if there are any.
 */

import type { Config } from "../config/schema.ts";
import { printAddress } from "../config/values.ts";
import type { Lifecycle } from "../lifecycle/mod.ts";
import type { Log } from "../observe/log.ts";
import type { Metrics } from "../observe/metrics.ts";
import type { Service } from "../proxy/routes.ts";
import { Routes } from "../proxy/routes.ts";
import { startTraffic, type TrafficOptions, type TrafficServer } from "../proxy/traffic.ts";
import type { Runtime } from "../runtime/runtime.ts";
import { activatedDescriptor } from "./inherited.ts";
import { removeStaleSocket } from "./listeners.ts";
import { TlsFiles } from "./tls_files.ts";

/** Paths of the listener that are answered by us, whatever is mounted. */
const OWN_PATHS = ["/healthz", "/readyz", "/ready", "/drain", "/drain/status"];

export interface HostTrafficOptions {
  readonly runtime: Runtime;
  readonly log: Log;
  readonly metrics: Metrics;
  readonly lifecycle: Lifecycle;
  readonly config: Pick<Config, "listen" | "traffic" | "services">;
  readonly services: readonly Service[];
  readonly appFetch: (request: Request) => Response | Promise<Response>;
}

export interface HostedTraffic {
  readonly server: TrafficServer;
  /** Stops what is beside the server: the watch on the certificate. */
  close(): void;
}

/** Starts the traffic listener. Throws an Error that names the key it fails on. */
export async function hostTraffic(options: HostTrafficOptions): Promise<HostedTraffic> {
  const { runtime, log, metrics, lifecycle, config } = options;
  const { listen } = config;
  const descriptor = listen.descriptor ?? activatedDescriptor(runtime);
  const tlsFiles = listen.tls === undefined ? undefined : await TlsFiles.open({
    runtime,
    log,
    metrics,
    conditions: lifecycle.conditions,
    ...listen.tls,
  });
  const routes = new Routes();
  routes.replace(options.services, (name) => config.services[name]?.timeouts);
  if (descriptor === undefined && listen.traffic.kind === "unix") {
    await removeStaleSocket(runtime, listen.traffic.path);
  }
  try {
    const server = await startTraffic({
      ...trafficSettings(config),
      runtime,
      log,
      metrics,
      routes,
      listen: {
        address: listen.traffic,
        reusePort: listen.reusePort,
        ...(descriptor === undefined ? {} : { descriptor }),
      },
      ...(listen.tls === undefined || tlsFiles === undefined
        ? {}
        : { tls: { pair: tlsFiles.pair, minVersion: listen.tls.minVersion } }),
      lifecycle,
      appFetch: options.appFetch,
    });
    tlsFiles?.watch((pair) => server.replaceCertificate(pair));
    log.info("listening", {
      listener: "traffic",
      address: printAddress(server.address),
      tls: listen.tls !== undefined,
      ...(descriptor === undefined ? {} : { descriptor }),
    });
    return { server, close: () => tlsFiles?.close() };
  } catch (error) {
    tlsFiles?.close();
    const why = error instanceof Error ? error.message : String(error);
    const key = descriptor === undefined
      ? `listen.traffic = ${printAddress(listen.traffic)}`
      : `listen.descriptor = ${descriptor}`;
    throw new Error(`${key}: ${why}`, { cause: error });
  }
}

/** What of a listener is plain values. */
export function trafficSettings(
  { traffic }: Pick<Config, "traffic">,
): Pick<
  TrafficOptions,
  | "trustedProxies"
  | "limits"
  | "timeouts"
  | "accessLog"
  | "showGeneration"
  | "upgrades"
  | "pseudonym"
  | "ownPaths"
> {
  return {
    trustedProxies: traffic.trustedProxies,
    limits: traffic.limits,
    timeouts: traffic.timeouts,
    accessLog: traffic.accessLog,
    showGeneration: traffic.generationHeader,
    upgrades: traffic.upgrades,
    ownPaths: OWN_PATHS,
    ...(traffic.via === undefined ? {} : { pseudonym: traffic.via }),
  };
}
