/**
 * A target: one process that can be asked, with counted leases.
 *
 * A target belongs to one generation, not to a name or an address: a child that crashed and came
 * back is a new target. It takes new leases until it is retired, and it is drained when the last
 * lease that was taken before that has been released. Nobody stops a target that owes an answer.
 */

import type { Address } from "../runtime/runtime.ts";
import { Roster } from "./roster.ts";

/** What a lease is held for: a plain exchange, an answer that streams, or an upgraded connection. */
export type LeaseKind = "request" | "stream" | "tunnel";

export interface TargetOptions {
  /** The service's name in the configuration. */
  readonly service: string;
  /** The version name, or the worker's id. */
  readonly version: string;
  /** Counts up from 1 for each process started under this version. */
  readonly generation: number;
  readonly address: Address;
  readonly protocol?: "http/1.1" | "h2c";
}

/** One claim on a target. It has one owner, and `release` counts once however often it is called. */
export interface Lease {
  readonly target: Target;
  readonly requestId: string;
  /** Milliseconds (monotonic, as given to `claim`). */
  readonly since: number;
  kind: LeaseKind;
  /** Set by the owner: ends the exchange now (used when a drain's deadline has come). */
  cut?: (reason: string) => void;
  /** Set for WebSockets: tells both sides that the end is near (Close 1001). Call it before `cut`. */
  warn?: () => void;
  readonly released: boolean;
  /** `failure`: why the exchange did not come to its end, if it did not. */
  release(failure?: string): void;
}

/** Leases on a target that are held elsewhere, in other threads. */
export interface RemoteLeases {
  /** Open leases; never 0 as long as one might be taken that is not known here yet. */
  readonly count: number;
  countOf(kind: LeaseKind): number;
  /** Those that are known one by one. */
  open(): Lease[];
  /** Resolves, once the target is retired, when no lease is left and none can be taken. */
  drained(): Promise<void>;
}

/** Hears of each change of a lease: begun (`from` undefined), another kind, ended (`to` undefined). */
export type LeaseListener = (
  lease: Lease,
  from: LeaseKind | undefined,
  to: LeaseKind | undefined,
) => void;

export class Target {
  readonly service: string;
  readonly version: string;
  readonly generation: number;
  readonly address: Address;
  readonly protocol: "http/1.1" | "h2c";
  /** What every access log line of an exchange with this target carries. */
  readonly logFields: Readonly<Record<string, unknown>>;
  #connectFailures = 0;
  #failureListeners: ((failures: number, error: unknown) => void)[] = [];
  #cutListeners: ((lease: Lease, failure: string) => void)[] = [];
  readonly #leases = new Roster<"place", CountedLease>("place");
  /** Set by `onLease`. */
  leaseListener: LeaseListener | undefined;
  #remote: RemoteLeases | undefined;
  #retired = false;
  #drained: Promise<void> | undefined;
  #resolveDrained: (() => void) | undefined;
  #idleListeners: (() => void)[] = [];

  constructor(options: TargetOptions) {
    this.service = options.service;
    this.version = options.version;
    this.generation = options.generation;
    this.address = options.address;
    this.protocol = options.protocol ?? "http/1.1";
    const { service, version, generation } = options;
    this.logFields = { service, version, generation };
  }

  /** For a `Host` line when the client sent none (HTTP/1.0). */
  get hostName(): string {
    if (this.address.kind === "unix") return "localhost";
    const { host, port } = this.address;
    return host.includes(":") ? `[${host}]:${port}` : `${host}:${port}`;
  }

  /** `service/version#generation`, for logs. */
  get label(): string {
    return `${this.service}/${this.version}#${this.generation}`;
  }

  /**
   * Takes a lease, or undefined once the target is retired. Synchronous: between choosing a target
   * and holding its lease no other code can run.
   */
  claim(requestId: string, nowMs: number, kind: LeaseKind = "request"): Lease | undefined {
    if (this.#retired) return undefined;
    const lease = new CountedLease(this, requestId, nowMs, kind, this.#release);
    this.#leases.add(lease);
    this.leaseListener?.(lease, undefined, kind);
    return lease;
  }

  /** No new leases from now on. Idempotent; the promise resolves when the last lease is released. */
  retire(): Promise<void> {
    if (this.#drained !== undefined) return this.#drained;
    this.#retired = true;
    this.#drained = new Promise((resolve) => {
      if (this.#leases.size === 0) resolve();
      else this.#resolveDrained = resolve;
    });
    for (const listener of this.#idleListeners.splice(0)) listener();
    if (this.#remote !== undefined) {
      const own = this.#drained;
      this.#drained = this.#remote.drained().then(() => own);
    }
    return this.#drained;
  }

  /** Leases that are held elsewhere count like those that are held here. Once, before it retires. */
  share(remote: RemoteLeases): void {
    this.#remote = remote;
  }

  /** Calls back at each change of a lease. There is one such listener. */
  onLease(listener: LeaseListener): void {
    this.leaseListener = listener;
  }

  /** A lease that is held elsewhere ended without its exchange having come to its end. */
  reportCut(lease: Lease, failure: string): void {
    for (const listener of this.#cutListeners) listener(lease, failure);
  }

  /** Called once, synchronously, when the target is retired: pooled connections close then. */
  onRetire(listener: () => void): void {
    if (this.#retired) listener();
    else this.#idleListeners.push(listener);
  }

  /** Called each time a connection to the target could not be made, with the count so far. */
  onConnectFailure(listener: (failures: number, error: unknown) => void): void {
    this.#failureListeners.push(listener);
  }

  /** Forwarding tells that a connect failed; nothing of a request was sent. */
  reportConnectFailure(error: unknown): void {
    this.#connectFailures += 1;
    for (const listener of this.#failureListeners) listener(this.#connectFailures, error);
  }

  /** Called, before the lease is gone, for each exchange that did not come to its end. */
  onCut(listener: (lease: Lease, failure: string) => void): void {
    this.#cutListeners.push(listener);
  }

  get connectFailures(): number {
    return this.#connectFailures;
  }

  get retired(): boolean {
    return this.#retired;
  }

  /** Open leases of every kind. */
  get leases(): number {
    return this.#leases.size + (this.#remote?.count ?? 0);
  }

  /** Open leases of one kind. */
  count(kind: LeaseKind): number {
    let count = this.#remote?.countOf(kind) ?? 0;
    for (const lease of this.#leases) if (lease.kind === kind) count += 1;
    return count;
  }

  /** The open leases, oldest first: what a drain report lists. */
  open(): Lease[] {
    const own = [...this.#leases].sort((one, other) => one.since - other.since);
    return [...own, ...this.#remote?.open() ?? []];
  }

  readonly #release = (lease: CountedLease, failure: string | undefined): void => {
    if (failure !== undefined) {
      for (const listener of this.#cutListeners) listener(lease, failure);
    }
    this.#leases.delete(lease);
    this.leaseListener?.(lease, lease.kind, undefined);
    if (this.#leases.size === 0 && this.#resolveDrained !== undefined) {
      this.#resolveDrained();
      this.#resolveDrained = undefined;
    }
  };
}

class CountedLease implements Lease {
  readonly target: Target;
  readonly requestId: string;
  readonly since: number;
  cut?: (reason: string) => void;
  warn?: () => void;
  /** Where its target keeps it. */
  place = -1;
  #kind: LeaseKind;
  #onRelease: ((lease: CountedLease, failure: string | undefined) => void) | undefined;

  constructor(
    target: Target,
    requestId: string,
    since: number,
    kind: LeaseKind,
    onRelease: (lease: CountedLease, failure: string | undefined) => void,
  ) {
    this.target = target;
    this.requestId = requestId;
    this.since = since;
    this.#kind = kind;
    this.#onRelease = onRelease;
  }

  get kind(): LeaseKind {
    return this.#kind;
  }

  set kind(kind: LeaseKind) {
    const from = this.#kind;
    this.#kind = kind;
    if (from !== kind) this.target.leaseListener?.(this, from, kind);
  }

  get released(): boolean {
    return this.#onRelease === undefined;
  }

  release(failure?: string): void {
    const onRelease = this.#onRelease;
    this.#onRelease = undefined;
    onRelease?.(this, failure);
  }
}
