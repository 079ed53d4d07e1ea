/**
 * Peers by the EndpointSlices of a Service.
 */

import type { Log } from "../observe/log.ts";
import type { Runtime } from "../runtime/runtime.ts";
import { KubeClient, KubeStatus } from "./kube_client.ts";
import { type KubeObject, KubeWatch } from "./kube_watch.ts";
import {
  type Discovery,
  familyOf,
  NoListingYet,
  PeerSet,
  peerUrl,
  type PeerView,
} from "./peer_view.ts";

export interface KubernetesDiscoveryOptions {
  readonly runtime: Pick<Runtime, "clock" | "random" | "files" | "http" | "env">;
  readonly log: Log;
  readonly peers: {
    readonly namespace?: string | undefined;
    readonly service: string;
    /** Name of the Service's port for peers. */
    readonly port: string;
    readonly scheme: string;
    readonly apiServer?: string | undefined;
    readonly tokenFile: string;
    readonly caFile: string;
  };
  /** Our own address (the pod's IP). */
  readonly self: string | undefined;
}

/** There is no Service of the configured name. It may be made after us. */
export class PeerServiceMissing extends NoListingYet {
  override readonly name = "PeerServiceMissing";
}

const NAMESPACE_FILE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

export function kubernetesDiscovery(options: KubernetesDiscoveryOptions): Discovery {
  const { runtime, log, peers, self } = options;
  const set = new PeerSet();
  const stop = new AbortController();
  let watch: KubeWatch | undefined;

  const start = async (): Promise<void> => {
    const namespace = await findNamespace(options);
    const client = new KubeClient({ runtime, ...peers });
    if (watch === undefined) await firstListing(client, namespace);
    // A Service without endpoints has a slice, an empty one; no slice at all is suspicious.
    if (set.current.length === 0) await mustExist(client, namespace);
  };

  const firstListing = async (client: KubeClient, namespace: string): Promise<void> => {
    let listed: () => void = () => {};
    const isListed = new Promise<void>((resolve) => {
      listed = resolve;
    });
    watch = new KubeWatch({
      runtime,
      log,
      client,
      path: `/apis/discovery.k8s.io/v1/namespaces/${encodeURIComponent(namespace)}/endpointslices`,
      labelSelector: `kubernetes.io/service-name=${peers.service}`,
      onObjects: (slices) => set.replace(peersOf(slices, peers, self, log)),
      onListed: () => listed(),
    });
    void watch.run();
    await isListed;
  };

  const mustExist = async (client: KubeClient, namespace: string): Promise<void> => {
    try {
      await client.json(
        `/api/v1/namespaces/${encodeURIComponent(namespace)}/services/` +
          encodeURIComponent(peers.service),
        stop.signal,
      );
    } catch (error) {
      if (error instanceof KubeStatus && error.status === 404) {
        throw new PeerServiceMissing(
          `there is no Service "${peers.service}" in namespace "${namespace}"`,
        );
      }
      // Not allowed to look, or no answer: unknown is not absent.
      log.warn("peer_service_unchecked", { service: peers.service, error });
    }
  };

  return {
    start,
    stop() {
      stop.abort(new Error("stopped"));
      watch?.stop();
    },
    current: () => set.current,
    onChange: (listener) => set.onChange(listener),
  };
}

/** The configured one, else the pod's own. */
export async function findNamespace(
  options: {
    readonly runtime: Pick<Runtime, "env" | "files">;
    readonly peers: { readonly namespace?: string | undefined };
  },
): Promise<string> {
  const { runtime, peers } = options;
  if (peers.namespace !== undefined) return peers.namespace;
  const fromEnv = runtime.env().POD_NAMESPACE;
  if (fromEnv !== undefined && fromEnv !== "") return fromEnv;
  return (await runtime.files.readText(NAMESPACE_FILE)).trim();
}

/**
 * The members that slices tell of. Slices of names (FQDN) are refused; of two families only our own
 * counts (or IPv4, when we do not know our address); we are never our own peer. An endpoint whose
 * slice lacks the port is a member that cannot be asked.
 */
export function peersOf(
  slices: readonly KubeObject[],
  options: { readonly port: string; readonly scheme: string },
  self: string | undefined,
  log: Log,
): PeerView[] {
  const types = new Set(slices.map((slice) => slice.addressType));
  const family = (self === undefined ? undefined : familyOf(self)) ??
    (types.has("IPv4") ? "IPv4" : "IPv6");
  const found: PeerView[] = [];
  for (const slice of slices) {
    if (slice.addressType === "FQDN") {
      log.warn("peer_slice_refused", { slice: slice.metadata.name, why: "addressType FQDN" });
      continue;
    }
    if (slice.addressType !== family) continue;
    const port = portOf(slice, options.port);
    for (const endpoint of list(slice.endpoints)) {
      const address = list(endpoint.addresses as unknown, "any")[0];
      if (typeof address !== "string" || address === self) continue;
      const conditions = record(endpoint.conditions);
      found.push({
        url: port === undefined
          ? peerUrl(options.scheme, address, 0)
          : peerUrl(options.scheme, address, port),
        serving: port !== undefined && isServing(conditions),
        terminating: conditions?.terminating === true,
      });
    }
  }
  return found;
}

/** `serving` where it is given, else `ready`; nothing given at all means not serving. */
function isServing(conditions: Record<string, unknown> | undefined): boolean {
  const serving = conditions?.serving ?? conditions?.ready;
  return serving === true;
}

/** The number of a slice's port of this name. */
export function portOf(slice: KubeObject, name: string): number | undefined {
  for (const port of list(slice.ports)) {
    if ((port.name ?? "") === name && typeof port.port === "number") return port.port;
  }
  return undefined;
}

function record(value: unknown): Record<string, unknown> | undefined {
  return typeof value === "object" && value !== null ? value as Record<string, unknown> : undefined;
}

function list(value: unknown): Record<string, unknown>[];
function list(value: unknown, of: "any"): unknown[];
function list(value: unknown, of?: "any"): unknown[] {
  if (!Array.isArray(value)) return [];
  return of === "any" ? value : value.filter((item) => record(item) !== undefined);
}
