/**
 * Another replica as discovery sees it.
 */

export interface PeerView {
  /** Where its peer listener is, e.g. `http://10.0.0.2:8082` or `http://[fd00::2]:8082`. */
  readonly url: string;
  /**
   * What the place that lists it says about its readiness; undefined where lists do not tell (a
   * static list, DNS). Such a peer is asked and tells itself.
   */
  readonly serving: boolean | undefined;
  /** It is being shut down: it stays a member, but it may vanish in the middle of a transfer. */
  readonly terminating: boolean;
}

/** There is nothing to list yet. */
export class NoListingYet extends Error {
  override readonly name: string = "NoListingYet";
}

export interface Discovery {
  /**
   * Begins to look. Resolves after the first complete listing. Rejects with `NoListingYet` when there
   * is none to be had now (call it again later), and with another error if there can never be one.
   */
  start(): Promise<void>;
  stop(): void;
  /** The members now, never ourselves, each once, in the order of their URLs. */
  current(): readonly PeerView[];
  /** Calls `listener` after any change, also one that leaves the candidates as they were. */
  onChange(listener: () => void): () => void;
}

/** True for a peer that may be strictly more advanced than one that recovers: serving, not leaving. */
export function isCandidate(peer: PeerView): boolean {
  return peer.serving !== false && !peer.terminating;
}

/** `http://host:port`, with an IPv6 address in brackets. */
export function peerUrl(scheme: string, host: string, port: number): string {
  return `${scheme}://${host.includes(":") ? `[${host}]` : host}:${port}`;
}

/** The family of an IP address, or undefined for anything else (a name, an address with a port). */
export function familyOf(address: string): "IPv4" | "IPv6" | undefined {
  if (/^\d{1,3}(\.\d{1,3}){3}$/.test(address)) return "IPv4";
  return /^[0-9a-fA-F:.]*:[0-9a-fA-F:.]*:[0-9a-fA-F:.]*(%\w+)?$/.test(address) ? "IPv6" : undefined;
}

/** A set of peers that tells its listeners about changes. */
export class PeerSet {
  readonly #listeners = new Set<() => void>();
  #peers: readonly PeerView[] = [];

  get current(): readonly PeerView[] {
    return this.#peers;
  }

  /** Replaces the members. Of two with one URL the one that serves counts. */
  replace(peers: Iterable<PeerView>): void {
    const byUrl = new Map<string, PeerView>();
    for (const peer of peers) {
      const known = byUrl.get(peer.url);
      if (known === undefined || (!isCandidate(known) && isCandidate(peer))) {
        byUrl.set(peer.url, peer);
      }
    }
    const next = [...byUrl.values()].sort((a, b) => (a.url < b.url ? -1 : 1));
    if (JSON.stringify(next) === JSON.stringify(this.#peers)) return;
    this.#peers = next;
    for (const listener of [...this.#listeners]) listener();
  }

  onChange(listener: () => void): () => void {
    this.#listeners.add(listener);
    return () => {
      this.#listeners.delete(listener);
    };
  }
}
