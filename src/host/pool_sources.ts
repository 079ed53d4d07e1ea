/**
 * Where a pool's workers come from: a fixed list, the generations of a versions service, or the
 * endpoints of a Kubernetes Service (pool_kubernetes.ts).
 */

import type { PoolConfig, WorkerConfig } from "../config/pool.ts";
import { Target } from "../proxy/target.ts";
import { upstreamAddress } from "../proxy/upstream_service.ts";
import type { PoolMembers } from "../router/pool_members.ts";

export interface WorkerSource {
  /** Resolves when every worker that there is now is a member, with its lane. */
  start(members: PoolMembers): Promise<void>;
  /** No changes from now on. */
  stop(): void;
  /** Targets that are the pool's own, to be retired with it. */
  owned(): readonly Target[];
}

/** What of a supervisor is needed: its targets, and when they change. */
export interface TargetsOfVersions {
  targets(): readonly Target[];
  onTargets(listener: () => void): () => void;
}

/** Workers that somebody else runs; all of them, for as long as the pool is there. */
export function listedWorkers(service: string, list: readonly WorkerConfig[]): WorkerSource {
  const specs = list.map((worker) => ({
    ...worker,
    target: new Target({
      service,
      version: worker.id,
      generation: 1,
      address: upstreamAddress(worker.url),
    }),
  }));
  return {
    start: async (members) => {
      await Promise.all(specs.map((spec) => members.add(spec)));
    },
    stop: () => {},
    owned: () => specs.map(({ target }) => target),
  };
}

type VersionsWorkers = Extract<PoolConfig["workers"], { versions: string }>;

/**
 * Every generation that takes requests is a worker, by the very target that the versions service
 * uses: a lease counts once, wherever it was taken. A generation that is retired has left (its target
 * tells), and drains with the requests of both.
 *
 * There is nothing to wait for: a generation begins with an empty cache.
 */
export function generationWorkers(
  supervisor: TargetsOfVersions,
  workers: VersionsWorkers,
): WorkerSource {
  let unsubscribe = (): void => {};
  return {
    start: async (members) => {
      const known = new WeakSet<Target>();
      const look = (): Promise<unknown> =>
        Promise.all(
          supervisor.targets().filter((target) => !known.has(target)).map((target) => {
            known.add(target);
            return members.add(generationWorker(target, workers));
          }),
        );
      unsubscribe = supervisor.onTargets(() => void look());
      await look();
    },
    stop: () => unsubscribe(),
    owned: () => [],
  };
}

/** Named by what the child knows of itself too, so that it can post events: `version:port`. */
function generationWorker(target: Target, workers: VersionsWorkers) {
  const { address } = target;
  if (address.kind !== "tcp") throw new Error(`${target.label} has no port`);
  const { kvEventsPortOffset, replayPortOffset } = workers;
  const zmq = (offset: number | undefined): string | undefined =>
    offset === undefined ? undefined : `tcp://${address.host}:${address.port + offset}`;
  return {
    id: `${target.version}:${address.port}`,
    dpRank: 0,
    url: `http://${target.hostName}`,
    target,
    kvEvents: zmq(kvEventsPortOffset),
    replay: zmq(replayPortOffset),
  };
}
