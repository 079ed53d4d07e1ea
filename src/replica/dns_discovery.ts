/**
 * Peers by DNS: A and AAAA records of a name (a headless Service), or SRV records.
 */

import type { Log } from "../observe/log.ts";
import { NameUnknown, type Runtime } from "../runtime/runtime.ts";
import { type Discovery, familyOf, PeerSet, peerUrl, type PeerView } from "./peer_view.ts";

export interface DnsDiscoveryOptions {
  readonly runtime: Pick<Runtime, "clock" | "random" | "dns">;
  readonly log: Log;
  readonly peers: {
    readonly dns: string;
    readonly port?: number | undefined;
    readonly scheme: string;
    readonly refreshMs: number;
  };
  /** Our own address, to be left out. */
  readonly self: string | undefined;
}

const DEFAULT_PORT = 8082;
const MOST_PEERS = 1024;

/**
 * Looks the name up again and again. "No such name" is an answer (there are no peers now); any other
 * failure tells nothing, and what was known stays.
 */
export function dnsDiscovery(options: DnsDiscoveryOptions): Discovery {
  const { runtime, log, peers, self } = options;
  const set = new PeerSet();
  let stopped = false;
  let stopTimer = (): void => {};
  let listed: () => void = () => {};
  const firstListing = new Promise<void>((resolve) => {
    listed = resolve;
  });

  const look = async (): Promise<void> => {
    try {
      set.replace(await lookUp(runtime, peers, self));
      listed();
    } catch (error) {
      if (error instanceof NameUnknown) {
        set.replace([]);
        listed();
      } else {
        log.warn("peer_lookup_failed", { name: peers.dns, error });
      }
    }
    if (stopped) return;
    // Jitter, so that replicas that started together do not ask the name server together.
    const delayMs = peers.refreshMs * (0.9 + runtime.random.number() * 0.2);
    stopTimer = runtime.clock.after(delayMs, () => void look());
  };

  return {
    start() {
      void look();
      return firstListing;
    },
    stop() {
      stopped = true;
      stopTimer();
    },
    current: () => set.current,
    onChange: (listener) => set.onChange(listener),
  };
}

async function lookUp(
  runtime: Pick<Runtime, "dns">,
  peers: DnsDiscoveryOptions["peers"],
  self: string | undefined,
): Promise<PeerView[]> {
  const places: { host: string; port: number }[] = [];
  if (peers.dns.startsWith("_")) {
    for (const service of (await runtime.dns.services(peers.dns)).slice(0, MOST_PEERS)) {
      for (const host of await addressesOf(runtime, service.host)) {
        places.push({ host, port: service.port });
      }
    }
  } else {
    const port = peers.port ?? DEFAULT_PORT;
    for (const host of (await runtime.dns.addresses(peers.dns)).slice(0, MOST_PEERS)) {
      places.push({ host, port });
    }
  }
  return ownFamily(places, self).map(({ host, port }) => ({
    url: peerUrl(peers.scheme, host, port),
    serving: undefined,
    terminating: false,
  }));
}

/** A host that is gone has none: a record for it may be left over. */
async function addressesOf(runtime: Pick<Runtime, "dns">, host: string): Promise<string[]> {
  try {
    return await runtime.dns.addresses(host);
  } catch (error) {
    if (error instanceof NameUnknown) return [];
    throw error;
  }
}

/**
 * Without ourselves. If we know our own address, peers are reached by its family only, so that a
 * dual-stack peer is not two peers.
 */
function ownFamily<T extends { host: string }>(places: readonly T[], self: string | undefined) {
  const family = self === undefined ? undefined : familyOf(self);
  if (family === undefined) return [...places];
  return places.filter(({ host }) => host !== self && familyOf(host) === family);
}
