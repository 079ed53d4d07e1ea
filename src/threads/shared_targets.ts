/**
 * The main thread's view of the leases that threads hold on its targets.
 *
 * A retired target counts as drained once every thread that was ever told of it has acknowledged a
 * table without it and has then reported the end of each lease that it named in that
 * acknowledgement. A thread that ends has no leases any more.
 */

import type { Lease, LeaseKind, RemoteLeases, Target } from "../proxy/target.ts";
import { KINDS, type OpenLease, type SharedTarget } from "./messages.ts";

const COUNTS_BYTES = KINDS.length * Int32Array.BYTES_PER_ELEMENT;

/** What a thread must be able to hear about a lease of its own. */
export interface LeaseThread {
  post(
    message:
      | { readonly kind: "cut"; readonly lease: number; readonly reason: string }
      | { readonly kind: "warn"; readonly lease: number },
  ): void;
}

interface Holder {
  readonly counts: Int32Array;
  readonly buffer: SharedArrayBuffer;
  /** Set by the acknowledgement: from then on every lease is known one by one. */
  open: Map<number, MirroredLease> | undefined;
}

export class SharedTargetLeases implements RemoteLeases {
  readonly id: number;
  readonly target: Target;
  readonly #nowMs: () => number;
  readonly #holders = new Map<LeaseThread, Holder>();
  readonly #drained: Promise<void>;
  #resolveDrained: () => void = () => {};

  constructor(id: number, target: Target, nowMs: () => number) {
    this.id = id;
    this.target = target;
    this.#nowMs = nowMs;
    this.#drained = new Promise((resolve) => (this.#resolveDrained = resolve));
    target.share(this);
  }

  /** The target as one thread is told of it. From now on its acknowledgement is waited for. */
  forThread(thread: LeaseThread): SharedTarget {
    let holder = this.#holders.get(thread);
    if (holder === undefined) {
      const buffer = new SharedArrayBuffer(COUNTS_BYTES);
      holder = { buffer, counts: new Int32Array(buffer), open: undefined };
      this.#holders.set(thread, holder);
    }
    const { service, version, generation, address, protocol } = this.target;
    return { id: this.id, service, version, generation, address, protocol, counts: holder.buffer };
  }

  get count(): number {
    let count = 0;
    let isOpen = false;
    for (const { counts, open } of this.#holders.values()) {
      if (open !== undefined) count += open.size;
      else {
        for (let kind = 0; kind < counts.length; kind++) count += Atomics.load(counts, kind);
        isOpen = true;
      }
    }
    // A thread that does not know yet that the target is retired may be taking a lease right now.
    return count === 0 && isOpen && this.target.retired ? 1 : count;
  }

  countOf(kind: LeaseKind): number {
    let count = 0;
    for (const { counts, open } of this.#holders.values()) {
      if (open === undefined) count += Atomics.load(counts, KINDS.indexOf(kind));
      else for (const lease of open.values()) if (lease.kind === kind) count += 1;
    }
    return count;
  }

  open(): Lease[] {
    return [...this.#holders.values()].flatMap(({ open }) => [...open?.values() ?? []]);
  }

  drained(): Promise<void> {
    this.#check();
    return this.#drained;
  }

  #check(): void {
    if (!this.target.retired) return;
    for (const { open } of this.#holders.values()) if (open === undefined || open.size > 0) return;
    this.#resolveDrained();
  }

  /** The thread has no route to it any more, and these leases on it. */
  acknowledged(thread: LeaseThread, leases: readonly OpenLease[]): void {
    const holder = this.#holders.get(thread);
    if (holder === undefined || holder.open !== undefined) return;
    const now = this.#nowMs();
    holder.open = new Map(
      leases.map((lease) => [lease.lease, new MirroredLease(this.target, thread, lease, now)]),
    );
    this.#check();
  }

  leaseKind(thread: LeaseThread, lease: number, kind: LeaseKind): void {
    const mirrored = this.#holders.get(thread)?.open?.get(lease);
    if (mirrored !== undefined) mirrored.kind = kind;
  }

  leaseEnded(thread: LeaseThread, lease: number): void {
    const holder = this.#holders.get(thread);
    holder?.open?.delete(lease);
    this.#check();
  }

  /** An exchange of the thread did not come to its end. */
  lost(thread: LeaseThread, lease: OpenLease, failure: string): void {
    this.target.reportCut(new MirroredLease(this.target, thread, lease, this.#nowMs()), failure);
  }

  /** The thread is no more, and with it its sockets. */
  threadEnded(thread: LeaseThread): void {
    const holder = this.#holders.get(thread);
    this.#holders.delete(thread);
    for (const lease of holder?.open?.values() ?? []) {
      this.target.reportCut(lease, "thread_ended");
    }
    this.#check();
  }
}

/** A lease of a thread, as a drain in the main thread lists, warns and cuts it. */
class MirroredLease implements Lease {
  readonly target: Target;
  readonly requestId: string;
  readonly since: number;
  kind: LeaseKind;
  readonly released = false;
  readonly #thread: LeaseThread;
  readonly #id: number;

  constructor(target: Target, thread: LeaseThread, lease: OpenLease, nowMs: number) {
    this.target = target;
    this.requestId = lease.requestId;
    this.since = nowMs - lease.ageMs;
    this.kind = lease.leaseKind;
    this.#thread = thread;
    this.#id = lease.lease;
  }

  cut(reason: string): void {
    this.#thread.post({ kind: "cut", lease: this.#id, reason });
  }

  warn(): void {
    this.#thread.post({ kind: "warn", lease: this.#id });
  }

  /** The thread's to do; it tells when it has. */
  release(): void {}
}
