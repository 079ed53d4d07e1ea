/**
 * Peers that are added at run time, by `POST /register_peer`: listed, and asked by a recovery that
 * goes on then. They are kept in memory only.
 *
 * Who may call the peer listener decides here whom we call, so what is taken is narrow: the address
 * of a listener and nothing else, https only where peers are called by https (the token would else
 * leave in the clear), and not without end.
 */

import { BatonError } from "../errors.ts";
import { type Discovery, PeerSet } from "./peer_view.ts";

export interface RegisteredPeersOptions {
  /** Refuse `http:`. */
  readonly httpsOnly?: boolean;
  readonly maxPeers?: number;
}

const MAX_REGISTERED_PEERS = 64;

export class RegisteredPeers implements Discovery {
  readonly #httpsOnly: boolean;
  readonly #maxPeers: number;
  readonly #urls = new Set<string>();
  readonly #set = new PeerSet();

  constructor(options: RegisteredPeersOptions = {}) {
    this.#httpsOnly = options.httpsOnly ?? false;
    this.#maxPeers = options.maxPeers ?? MAX_REGISTERED_PEERS;
  }

  /**
   * Adds a peer; one that is there already stays. Throws `bad_request` for what is not the address of
   * a peer's listener, `conflict` when there are too many.
   */
  add(url: string): void {
    const origin = this.#origin(url);
    if (this.#urls.has(origin)) return;
    if (this.#urls.size >= this.#maxPeers) {
      throw new BatonError("conflict", `${this.#maxPeers} peers are registered already`);
    }
    this.#urls.add(origin);
    this.#changed();
  }

  /** False if it was not added here. A transfer from it that is under way goes on. */
  remove(url: string): boolean {
    if (!URL.canParse(url) || !this.#urls.delete(new URL(url).origin)) return false;
    this.#changed();
    return true;
  }

  list(): readonly string[] {
    return [...this.#urls];
  }

  start(): Promise<void> {
    return Promise.resolve();
  }

  stop(): void {}

  current() {
    return this.#set.current;
  }

  onChange(listener: () => void): () => void {
    return this.#set.onChange(listener);
  }

  #origin(text: string): string {
    const scheme = this.#httpsOnly ? "https" : "http or https";
    const wanted = `url is not ${scheme}://host:port without path, query or credentials`;
    if (!URL.canParse(text)) throw new BatonError("bad_request", wanted);
    const url = new URL(text);
    const isPeer = (url.protocol === "https:" || (url.protocol === "http:" && !this.#httpsOnly)) &&
      url.username === "" && url.password === "" && url.pathname === "/" && url.search === "" &&
      url.hash === "";
    if (!isPeer) throw new BatonError("bad_request", wanted);
    return url.origin;
  }

  #changed(): void {
    this.#set.replace(
      [...this.#urls].map((url) => ({ url, serving: undefined, terminating: false })),
    );
  }
}
