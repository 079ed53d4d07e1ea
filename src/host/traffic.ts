/**
 * The traffic listener of the host: from its configuration to a server, with the certificate's
 * files and an inherited socket if there are any.
 */

import { messageOf } from "../errors.ts";
import type { Config } from "../config/schema.ts";
import { printAddress } from "../config/values.ts";
import type { Lifecycle } from "../lifecycle/mod.ts";
import type { Log } from "../observe/log.ts";
import type { Metrics } from "../observe/metrics.ts";
import { Routes } from "../proxy/routes.ts";
import {
  startTraffic,
  type TrafficOptions,
  type TrafficServer,
  type TrafficSettings,
} from "../proxy/traffic.ts";
import type { Runtime } from "../runtime/runtime.ts";
import { startThreadedTraffic } from "../threads/threaded_traffic.ts";
import type { HostedService } from "./hosted.ts";
import { activatedDescriptor } from "./inherited.ts";
import { removeStaleSocket } from "./listeners.ts";
import { TlsFiles } from "./tls_files.ts";

/** Paths of the listener that are answered by us, whatever is mounted. */
const OWN_PATHS = ["/healthz", "/readyz"];
/** The lifecycle's: they are on the admin listener, and nobody else's behind this one. */
const HIDDEN_PATHS = ["/ready", "/drain", "/drain/status"];

export interface HostTrafficOptions {
  readonly runtime: Runtime;
  readonly log: Log;
  readonly metrics: Metrics;
  readonly lifecycle: Lifecycle;
  readonly config: Pick<Config, "listen" | "traffic" | "services" | "log">;
  readonly services: readonly HostedService[];
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
    listener: "traffic",
    ...listen.tls,
  });
  if (descriptor === undefined && listen.traffic.kind === "unix") {
    await removeStaleSocket(runtime, listen.traffic.path);
  }
  try {
    const settings = {
      ...trafficSettings(config),
      listen: {
        address: listen.traffic,
        reusePort: listen.reusePort,
        ...(descriptor === undefined ? {} : { descriptor }),
      },
      ...(listen.tls === undefined || tlsFiles === undefined
        ? {}
        : { tls: { pair: tlsFiles.texts, minVersion: listen.tls.minVersion } }),
    };
    const threads = threadsFor(options, settings.listen);
    const server = await start(options, settings, threads);
    tlsFiles?.watch((pair) => server.replaceCertificate(pair));
    log.info("listening", {
      listener: "traffic",
      address: printAddress(server.address),
      tls: listen.tls !== undefined,
      workers: threads,
      ...(descriptor === undefined ? {} : { descriptor }),
    });
    return { server, close: () => tlsFiles?.close() };
  } catch (error) {
    tlsFiles?.close();
    const why = messageOf(error);
    const key = descriptor === undefined
      ? `listen.traffic = ${printAddress(listen.traffic)}`
      : `listen.descriptor = ${descriptor}`;
    throw new Error(`${key}: ${why}`, { cause: error });
  }
}

type Settings = TrafficSettings & Pick<TrafficOptions, "listen" | "tls">;

/**
 * How many threads there will be, 1 for none beside the main one. Threads can share a TCP port, since
 * the kernel gives each a queue of its own. A unix socket has one queue, as has a socket that was
 * opened for us, and no thread can hand a connection to another: the main thread serves those.
 */
function threadsFor(
  { log, config: { traffic: { workers } } }: HostTrafficOptions,
  { address, descriptor }: TrafficOptions["listen"],
): number {
  if (workers === 1 || (address.kind === "tcp" && descriptor === undefined)) return workers;
  const reason = descriptor === undefined ? "listen.traffic is a unix socket" : "listen.descriptor";
  log.info("threads_not_used", { workers, reason });
  return 1;
}

function start(
  options: HostTrafficOptions,
  settings: Settings,
  threads: number,
): Promise<TrafficServer> {
  if (threads > 1) return startThreads(options, settings, threads);
  const { runtime, log, metrics, lifecycle, appFetch, config, services } = options;
  const routes = new Routes();
  routes.replace(
    services.map(({ service }) => service),
    (name) => config.services[name]?.timeouts,
  );
  return startTraffic({ ...settings, runtime, log, metrics, routes, lifecycle, appFetch });
}

async function startThreads(
  options: HostTrafficOptions,
  settings: Settings,
  threads: number,
): Promise<TrafficServer> {
  const { runtime, log, metrics, lifecycle, appFetch, config, services } = options;
  const server = await startThreadedTraffic({
    runtime,
    log,
    metrics,
    threads,
    settings: { ...settings, logLevel: config.log.level },
    services: services.flatMap(({ threaded }) => threaded ?? []),
    timeouts: (name) => config.services[name]?.timeouts,
    appFetch,
    gate: () => ({ accepting: lifecycle.accepting, draining: lifecycle.draining }),
  });
  lifecycle.include(server);
  lifecycle.onChange(() => server.tellGate());
  server.tellGate();
  return server;
}

/** What of a listener is plain values. */
function trafficSettings(
  { traffic }: Pick<Config, "traffic">,
): TrafficSettings {
  return {
    trustedProxies: traffic.trustedProxies,
    limits: traffic.limits,
    timeouts: traffic.timeouts,
    accessLog: traffic.accessLog,
    showGeneration: traffic.generationHeader,
    upgrades: traffic.upgrades,
    ownPaths: OWN_PATHS,
    hiddenPaths: HIDDEN_PATHS,
    http2: traffic.http2,
    ...(traffic.via === undefined ? {} : { pseudonym: traffic.via }),
  };
}
