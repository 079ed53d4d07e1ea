/**
 * A thread's copies of the targets, and the table that says which requests go to which.
 *
 * A new table is taken over in one synchronous step: copies of new targets are made, the routes are
 * swapped, then the copies that are gone from the table are retired, and only then is it
 * acknowledged. So no claim can come between the swap and the acknowledgement.
 */

import { type Lease, type LeaseKind, Target } from "../proxy/target.ts";
import type { Clock } from "../runtime/runtime.ts";
import { KINDS, type OpenLease, type SharedService, type Table, type ToMain } from "./messages.ts";

export interface ReplicasOptions {
  readonly clock: Pick<Clock, "monotonic">;
  readonly post: (message: ToMain) => void;
}

export class Replicas {
  readonly #options: ReplicasOptions;
  readonly #targets = new Map<number, Replica>();
  readonly #byLease = new Map<number, Lease>();
  #services = new Map<string, Service>();
  #lastLease = 0;

  constructor(options: ReplicasOptions) {
    this.#options = options;
  }

  /** Takes a table over. Answers the services if they have to be mounted anew. */
  apply(table: Table): readonly SharedService[] {
    for (const shared of table.targets) {
      if (this.#targets.has(shared.id)) continue;
      this.#targets.set(shared.id, new Replica(shared.id, shared, this.#options));
    }
    this.#services = new Map(table.services.map((shared) => {
      const targets = shared.direct.flatMap(([version, id]): [string, Replica][] => {
        const replica = this.#targets.get(id);
        return replica === undefined ? [] : [[version, replica]];
      });
      return [shared.name, { shared, targets: new Map(targets) }];
    }));
    const kept = new Set(table.targets.map(({ id }) => id));
    const retired = [...this.#targets.values()].filter(({ id }) => !kept.has(id));
    const told = retired.map((replica) => ({ target: replica.id, open: this.#retire(replica) }));
    this.#options.post({ kind: "acknowledged", number: table.number, retired: told });
    return table.services;
  }

  /** Where a service's requests for a version go; undefined when the main thread has to say. */
  direct(service: string, version: string): Target | undefined {
    return this.#services.get(service)?.targets.get(version);
  }

  /** A service as the present table has it. */
  service(name: string): SharedService | undefined {
    return this.#services.get(name)?.shared;
  }

  find(id: number): Target | undefined {
    return this.#targets.get(id);
  }

  lease(id: number): Lease | undefined {
    return this.#byLease.get(id);
  }

  /** No lease can begin any more: those that are open are told, and followed to their ends. */
  #retire(replica: Replica): OpenLease[] {
    this.#targets.delete(replica.id);
    void replica.retire();
    return replica.open().map((lease) => {
      this.#lastLease += 1;
      const id = this.#lastLease;
      this.#byLease.set(id, lease);
      replica.follow(lease, {
        kind: (leaseKind) => this.#options.post({ kind: "lease_kind", lease: id, leaseKind }),
        end: () => {
          this.#byLease.delete(id);
          this.#options.post({ kind: "lease_ended", target: replica.id, lease: id });
        },
      });
      return openLease(id, lease, this.#options.clock.monotonic());
    });
  }
}

interface Service {
  readonly shared: SharedService;
  readonly targets: ReadonlyMap<string, Replica>;
}

interface Follower {
  kind(kind: LeaseKind): void;
  end(): void;
}

class Replica extends Target {
  readonly id: number;
  readonly #counts: Int32Array;
  readonly #followers = new Map<Lease, Follower>();

  constructor(id: number, shared: Table["targets"][number], options: ReplicasOptions) {
    super(shared);
    this.id = id;
    this.#counts = new Int32Array(shared.counts);
    this.onConnectFailure((_failures, error) => {
      options.post({ kind: "connect_failed", target: id, message: String(error) });
    });
    this.onCut((lease, failure) => {
      const now = options.clock.monotonic();
      options.post({ kind: "lost", target: id, failure, lease: openLease(0, lease, now) });
    });
    this.onLease((lease, from, to) => {
      if (from !== undefined) Atomics.sub(this.#counts, KINDS.indexOf(from), 1);
      if (to !== undefined) Atomics.add(this.#counts, KINDS.indexOf(to), 1);
      const follower = this.#followers.get(lease);
      if (follower === undefined) return;
      if (to !== undefined) return follower.kind(to);
      this.#followers.delete(lease);
      follower.end();
    });
  }

  follow(lease: Lease, follower: Follower): void {
    this.#followers.set(lease, follower);
  }
}

function openLease(id: number, lease: Lease, nowMs: number): OpenLease {
  return {
    lease: id,
    requestId: lease.requestId,
    ageMs: nowMs - lease.since,
    leaseKind: lease.kind,
  };
}
