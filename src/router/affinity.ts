/**
 * Session affinity: a preference for the worker that served a session before.
 *
 * A session is bound to where its last request ran. While requests of it are in progress the binding
 * is held by their leases; afterwards it lasts for a time and is forgotten. It is a preference, not a
 * pin: the choice takes the bound worker if it is eligible, else another, and the session moves there.
 */

import { BatonError } from "../errors.ts";
import type { Clock } from "../runtime/runtime.ts";
import type { WorkerRank } from "./choice.ts";

export const MAX_SESSION_BYTES = 256;

export interface AffinityOptions {
  readonly clock: Clock;
  /** How long a session stays bound after its last request ended; 1 s to a year. */
  readonly ttlMs: number;
  readonly maxSessions?: number;
}

/** Holds a session's binding while a request of it is in progress. */
export interface SessionLease {
  release(): void;
}

/** A session, where it is bound, and for how long. */
export interface SessionBinding extends WorkerRank {
  readonly session: string;
  readonly ttlMs: number;
}

interface Session {
  rank: WorkerRank;
  leases: number;
  /** Monotonic; when the last lease was released. */
  idleSince: number;
}

export class SessionAffinity {
  readonly #clock: Clock;
  readonly #ttlMs: number;
  readonly #maxSessions: number;
  /** In the order in which they came to be idle, those in use anywhere. */
  readonly #sessions = new Map<string, Session>();

  constructor(options: AffinityOptions) {
    this.#clock = options.clock;
    this.#ttlMs = options.ttlMs;
    this.#maxSessions = options.maxSessions ?? 65_536;
  }

  get size(): number {
    return this.#sessions.size;
  }

  /** Where a session ran last, if that is not too long ago. */
  preferred(session: string): WorkerRank | undefined {
    const known = this.#sessions.get(session);
    if (known === undefined) return undefined;
    if (this.#expired(known)) {
      this.#sessions.delete(session);
      return undefined;
    }
    return known.rank;
  }

  /**
   * Binds a session to where a request of it runs now. When the table is full of sessions in use, the
   * session stays unbound. Throws `bad_request` for an id that is empty or longer than 256 bytes.
   */
  hold(session: string, rank: WorkerRank): SessionLease {
    checkSessionId(session);
    let known = this.#sessions.get(session);
    if (known === undefined) {
      if (this.#sessions.size >= this.#maxSessions && !this.#makeRoom()) {
        return { release: () => {} };
      }
      known = { rank, leases: 0, idleSince: 0 };
      this.#sessions.set(session, known);
    }
    known.rank = rank;
    known.leases += 1;
    const held = known;
    let released = false;
    return {
      release: () => {
        if (released) return;
        released = true;
        held.leases -= 1;
        if (held.leases > 0 || this.#sessions.get(session) !== held) return;
        held.idleSince = this.#clock.monotonic();
        this.#moveBack(session, held);
        this.#forgetExpired(2);
      },
    };
  }

  /** The latest `most` sessions, and how long each stays bound if no more requests of it come. */
  bindings(most: number): SessionBinding[] {
    const now = this.#clock.monotonic();
    const bound: SessionBinding[] = [];
    for (const [session, known] of [...this.#sessions].slice(-most)) {
      const ttlMs = known.leases > 0 ? this.#ttlMs : this.#ttlMs - (now - known.idleSince);
      if (ttlMs > 0) bound.push({ session, ...known.rank, ttlMs: Math.ceil(ttlMs) });
    }
    return bound;
  }

  /**
   * Binds a session as another replica had it, for what is left of its time and at most for ours.
   * False when it is bound here already, or when there is no room: what is ours goes first.
   */
  restore(session: string, rank: WorkerRank, leftMs: number): boolean {
    checkSessionId(session);
    if (this.preferred(session) !== undefined) return false;
    if (this.#sessions.size >= this.#maxSessions) return false;
    const idleSince = this.#clock.monotonic() - Math.max(0, this.#ttlMs - leftMs);
    this.#sessions.set(session, { rank, leases: 0, idleSince });
    return true;
  }

  /** Unbinds all sessions of a worker that is gone. */
  forget(worker: string): void {
    for (const [session, known] of this.#sessions) {
      if (known.rank.worker === worker) this.#sessions.delete(session);
    }
  }

  #expired(session: Session): boolean {
    return session.leases === 0 && this.#clock.monotonic() - session.idleSince >= this.#ttlMs;
  }

  /** Looks at a few of the oldest, so that the table shrinks as fast as it grows, without a timer. */
  #forgetExpired(most: number): void {
    for (const [session, known] of this.#sessions) {
      if (most-- <= 0) return;
      if (known.leases > 0) this.#moveBack(session, known);
      else if (this.#expired(known)) this.#sessions.delete(session);
      else return;
    }
  }

  #makeRoom(): boolean {
    let left = this.#sessions.size;
    for (const [session, known] of this.#sessions) {
      if (known.leases === 0) {
        this.#sessions.delete(session);
        return true;
      }
      if (--left <= 0) return false;
      this.#moveBack(session, known);
    }
    return false;
  }

  #moveBack(session: string, known: Session): void {
    this.#sessions.delete(session);
    this.#sessions.set(session, known);
  }
}

/** Throws `bad_request` unless the id has 1 to 256 bytes of UTF-8. */
export function checkSessionId(session: string): void {
  const bytes = session.length > MAX_SESSION_BYTES
    ? session.length
    : new TextEncoder().encode(session).length;
  if (bytes === 0 || bytes > MAX_SESSION_BYTES) {
    throw new BatonError("bad_request", `a session id has 1 to ${MAX_SESSION_BYTES} bytes`);
  }
}
