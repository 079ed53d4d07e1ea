/**
 * A pool's workers by the EndpointSlices of a Kubernetes Service.
 *
 * A pod is a worker as long as it is listed and not terminating. While it is not ready it is not
 * chosen, and its lane stays: whether its engine restarted is told by the engine's events.
 */

import type { PoolConfig } from "../config/pool.ts";
import type { Log } from "../observe/log.ts";
import { Target } from "../proxy/target.ts";
import { KubeClient } from "../replica/kube_client.ts";
import { type KubeObject, KubeWatch } from "../replica/kube_watch.ts";
import { findNamespace, portOf } from "../replica/kubernetes_discovery.ts";
import type { PoolMembers } from "../router/pool_members.ts";
import type { Runtime } from "../runtime/runtime.ts";
import type { WorkerSource } from "./pool_sources.ts";

export type KubernetesWorkers = Extract<
  PoolConfig["workers"],
  { kubernetes: unknown }
>["kubernetes"];

/** A pod as the slices show it. */
export interface ListedPod {
  /** The pod's name, or its address when the slice does not name it. */
  readonly id: string;
  readonly address: string;
  readonly port: number;
  readonly kvEventsPort: number | undefined;
  readonly replayPort: number | undefined;
  readonly ready: boolean;
}

export function kubernetesWorkers(options: {
  readonly runtime: Pick<Runtime, "clock" | "random" | "files" | "http" | "env">;
  readonly log: Log;
  readonly service: string;
  readonly workers: KubernetesWorkers;
}): WorkerSource {
  const { runtime, log, service, workers } = options;
  const targets = new Map<string, { target: Target; identity: string }>();
  let watch: KubeWatch | undefined;
  let generation = 0;

  /** Resolves when the lanes of all that are new are open. */
  const take = async (members: PoolMembers, pods: readonly ListedPod[]): Promise<void> => {
    const listed = new Map(pods.map((pod) => [pod.id, pod]));
    for (const [id, { target, identity }] of targets) {
      const pod = listed.get(id);
      if (pod !== undefined && identityOf(pod) === identity) continue;
      targets.delete(id);
      // It leaves the pool by that, and its requests come to their ends.
      void target.retire();
    }
    await Promise.all([...listed.values()].map((pod) => {
      const isKnown = targets.has(pod.id);
      const joined = isKnown ? undefined : join(members, pod);
      members.setReady(pod.id, pod.ready);
      return joined;
    }));
  };

  const join = (members: PoolMembers, pod: ListedPod): Promise<void> => {
    const { id, address: host, port } = pod;
    generation += 1;
    const target = new Target({
      service,
      version: id,
      generation,
      address: { kind: "tcp", host, port },
    });
    targets.set(id, { target, identity: identityOf(pod) });
    return members.add({
      id,
      dpRank: 0,
      url: `http://${authority(host, port)}`,
      target,
      kvEvents: zmqEndpoint(host, pod.kvEventsPort),
      replay: zmqEndpoint(host, pod.replayPort),
    }, pod.ready);
  };

  return {
    start: async (members) => {
      const namespace = await findNamespace({ runtime, peers: workers });
      const path = `/apis/discovery.k8s.io/v1/namespaces/${encodeURIComponent(namespace)}`;
      let last = Promise.resolve();
      await new Promise<void>((resolve) => {
        watch = new KubeWatch({
          runtime,
          log,
          client: new KubeClient({ runtime, ...workers }),
          path: `${path}/endpointslices`,
          labelSelector: `kubernetes.io/service-name=${workers.service}`,
          onObjects: (slices) => {
            last = take(members, podsOf(slices, workers, log));
          },
          onListed: () => void last.then(resolve),
        });
        void watch.run();
      });
    },
    stop: () => watch?.stop(),
    owned: () => [...targets.values()].map(({ target }) => target),
  };
}

/**
 * The pods that slices tell of: those with the port, not terminating, in one address family (IPv4 when
 * there are both). Slices of names (FQDN) are refused.
 */
export function podsOf(
  slices: readonly KubeObject[],
  workers: Pick<KubernetesWorkers, "port" | "kvEventsPort" | "replayPort">,
  log: Log,
): ListedPod[] {
  const family = slices.some((slice) => slice.addressType === "IPv4") ? "IPv4" : "IPv6";
  const pods = new Map<string, ListedPod>();
  for (const slice of slices) {
    if (slice.addressType === "FQDN") {
      log.warn("worker_slice_refused", { slice: slice.metadata.name, why: "addressType FQDN" });
    }
    const port = portOf(slice, workers.port);
    if (slice.addressType !== family || port === undefined) continue;
    const named = (name: string | undefined): number | undefined =>
      name === undefined ? undefined : portOf(slice, name);
    for (const endpoint of Array.isArray(slice.endpoints) ? slice.endpoints : []) {
      const [address] = Array.isArray(endpoint?.addresses) ? endpoint.addresses : [];
      const { ready, serving, terminating } = endpoint?.conditions ?? {};
      if (typeof address !== "string" || terminating === true) continue;
      const name: unknown = endpoint.targetRef?.name;
      const id = typeof name === "string" && name !== "" ? name : address;
      pods.set(id, {
        id,
        address,
        port,
        kvEventsPort: named(workers.kvEventsPort),
        replayPort: named(workers.replayPort),
        // As the API has it, nothing said means ready.
        ready: (serving ?? ready ?? true) === true,
      });
    }
  }
  return [...pods.values()];
}

function identityOf({ address, port, kvEventsPort, replayPort }: ListedPod): string {
  return [address, port, kvEventsPort, replayPort].join(" ");
}

function authority(host: string, port: number): string {
  return host.includes(":") ? `[${host}]:${port}` : `${host}:${port}`;
}

function zmqEndpoint(host: string, port: number | undefined): string | undefined {
  return port === undefined ? undefined : `tcp://${authority(host, port)}`;
}
