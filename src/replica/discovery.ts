/**
 * Finds the other replicas: a fixed list, DNS, or the EndpointSlices of a Kubernetes Service.
 */

import type { ReplicaConfig } from "../config/replica.ts";
import type { Log } from "../observe/log.ts";
import type { Runtime } from "../runtime/runtime.ts";
import { dnsDiscovery } from "./dns_discovery.ts";
import { kubernetesDiscovery } from "./kubernetes_discovery.ts";
import { type Discovery, PeerSet } from "./peer_view.ts";

export interface DiscoveryOptions {
  readonly runtime: Pick<Runtime, "clock" | "random" | "dns" | "files" | "http" | "env">;
  readonly log: Log;
  readonly config: Pick<ReplicaConfig, "peers" | "self">;
}

export function createDiscovery(options: DiscoveryOptions): Discovery {
  const { peers } = options.config;
  const env = options.runtime.env();
  const self = options.config.self ?? (env.POD_IP === "" ? undefined : env.POD_IP);
  if (Array.isArray(peers)) return staticDiscovery(peers, self);
  if ("dns" in peers) return dnsDiscovery({ ...options, peers, self });
  return kubernetesDiscovery({ ...options, peers: peers.kubernetes, self });
}

/** The list never changes; an entry whose host is `self` (with or without port) is left out. */
export function staticDiscovery(urls: readonly string[], self: string | undefined): Discovery {
  const set = new PeerSet();
  const others = urls.map((url) => new URL(url)).filter((url) => !isSelf(url, self));
  set.replace(
    others.map((url) => ({ url: url.origin, serving: undefined, terminating: false })),
  );
  return {
    start: () => Promise.resolve(),
    stop: () => {},
    current: () => set.current,
    onChange: (listener) => set.onChange(listener),
  };
}

function isSelf(url: URL, self: string | undefined): boolean {
  if (self === undefined) return false;
  const bare = self.replace(/^[a-z]+:\/\//, "").replace(/\/$/, "");
  return url.host === bare || url.hostname === bare || url.hostname === `[${bare}]`;
}
