/** TLS listeners on which the protocol is settled by ALPN. */

import type { ByteSocket, Listener, ListenOptions } from "./runtime.ts";

/** A certificate chain and its private key, both PEM. */
export interface TlsPair {
  readonly cert: string;
  readonly key: string;
}

/** What is known of a certificate, for logs and metrics. */
export interface CertificateFacts {
  readonly subject: string;
  /** SHA-256 of the certificate, as hexadecimal with colons. */
  readonly fingerprint: string;
  /** Milliseconds since 1970. */
  readonly notAfter: number;
}

export interface TlsListenOptions extends ListenOptions {
  readonly pair: TlsPair;
  readonly minVersion: "TLSv1.2" | "TLSv1.3";
  /** Offered in this order. A client without ALPN gets the last one. */
  readonly protocols: readonly string[];
  /**
   * Connections at once, with those that are still in their handshake; further ones are closed
   * unheard. Without it: no limit.
   */
  readonly mostSockets?: number;
}

export interface TlsListener extends Listener {
  /** Handshakes from now on get this pair; connections that exist go on with theirs. */
  replace(pair: TlsPair): void;
}

export interface Tls {
  /** Throws `ListenFailed`. `accept` is called after the handshake, with the protocol that was chosen. */
  listen(
    options: TlsListenOptions,
    accept: (socket: ByteSocket, protocol: string) => void,
  ): Promise<TlsListener>;
  /** Throws an Error that says what is wrong: no PEM, or a key of another certificate. */
  check(pair: TlsPair): CertificateFacts;
}
