/**
 * Every configured service, built.
 */

import { peerAddress } from "../config/rules.ts";
import type { Config } from "../config/schema.ts";
import { mountsOf } from "../config/service.ts";
import type { Lifecycle } from "../lifecycle/mod.ts";
import type { EventJournal } from "../observe/events.ts";
import type { Log } from "../observe/log.ts";
import type { Metrics } from "../observe/metrics.ts";
import type { Runtime } from "../runtime/runtime.ts";
import type { HostedService } from "./hosted.ts";
import { createKvRoom, type KvRoom } from "./kv_room.ts";
import { hostPool } from "./pool.ts";
import { hostUpstream } from "./upstream.ts";
import { type HostedVersions, hostVersions } from "./versions.ts";

export interface HostServicesOptions {
  readonly runtime: Runtime;
  readonly log: Log;
  readonly metrics: Metrics;
  readonly events: EventJournal;
  readonly lifecycle: Lifecycle;
  readonly config: Config;
}

export interface HostedServices {
  readonly list: readonly HostedService[];
  /** The state side; there is one as soon as there is a pool or a peer listener. */
  readonly kv: KvRoom | undefined;
  /** Begins all of them, and the recovery. A service that cannot start is logged. */
  start(): void;
}

/** Builds the services in the order of the configuration. Throws if one of them cannot be. */
export async function hostServices(options: HostServicesOptions): Promise<HostedServices> {
  const { runtime, log, lifecycle, config } = options;
  const { stateDir, replica } = config;
  const shared = { ...options, clock: runtime.clock, stateDir, reservedPorts: ownPorts(config) };
  const list: HostedService[] = [];
  const pools: HostedService[] = [];
  const versions = new Map<string, HostedVersions>();
  let tellListed = (): void => {};
  const workersListed = new Promise<void>((resolve) => (tellListed = resolve));
  const wantsKv = peerAddress(config) !== undefined ||
    Object.values(config.services).some((service) => service.pool !== undefined);
  const kv = wantsKv ? await createKvRoom({ ...shared, replica, workersListed }) : undefined;

  for (const [name, service] of Object.entries(config.services)) {
    const own = { ...shared, name, mounts: mountsOf(service) };
    if (service.versions !== undefined) {
      const hosted = await hostVersions({ ...own, config: service.versions });
      list.push(hosted);
      versions.set(name, hosted);
    } else if (service.upstream !== undefined) {
      const available = (): void => lifecycle.available();
      list.push(hostUpstream({ ...own, url: service.upstream, available }));
    } else if (service.pool !== undefined && kv !== undefined) {
      const supervisor = (wanted: string) => versions.get(wanted)?.supervisor;
      const pool = await hostPool({ ...own, config: service.pool, kv, supervisor });
      list.push(pool);
      pools.push(pool);
    }
  }

  return {
    list,
    kv,
    start: () => {
      const begin = async (hosted: HostedService): Promise<void> => {
        try {
          await hosted.start();
        } catch (error) {
          log.error("service_start_failed", { service: hosted.service.name, error });
        }
      };
      const begun = new Map(list.map((hosted) => [hosted, begin(hosted)]));
      // The recovery may judge only once every lane that there is to know is known.
      void Promise.all(pools.map((pool) => begun.get(pool))).then(tellListed);
      kv?.start();
      // Without a service of its own, the host serves the peers alone.
      if (list.length === 0) lifecycle.available();
    },
  };
}

/** Ports that no child may get. */
function ownPorts(config: Config): number[] {
  const { traffic, admin } = config.listen;
  return [traffic, admin, peerAddress(config)].flatMap((address) =>
    address?.kind === "tcp" && address.port !== 0 ? [address.port] : []
  );
}
