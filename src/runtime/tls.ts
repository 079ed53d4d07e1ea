/** TLS listeners over `node:tls`, on both runtimes. */

import { createPrivateKey, X509Certificate } from "node:crypto";
import { createServer, type TLSSocket } from "node:tls";
import { StreamSocket } from "./net.ts";
import { listenOn } from "./net_listen.ts";
import type { ByteSocket } from "./runtime.ts";
import type {
  CertificateFacts,
  Tls,
  TlsListener,
  TlsListenOptions,
  TlsPair,
} from "./tls_contract.ts";

/** How long a client may take for its handshake. */
const HANDSHAKE_TIMEOUT_MS = 10_000;

export function createTls(): Tls {
  return { listen, check };
}

function check(pair: TlsPair): CertificateFacts {
  const certificate = new X509Certificate(pair.cert);
  if (!certificate.checkPrivateKey(createPrivateKey(pair.key))) {
    throw new Error("the key is not that of the certificate");
  }
  return {
    subject: certificate.subject.replaceAll("\n", ", "),
    fingerprint: certificate.fingerprint256,
    notAfter: Date.parse(certificate.validTo),
  };
}

async function listen(
  options: TlsListenOptions,
  accept: (socket: ByteSocket, protocol: string) => void,
): Promise<TlsListener> {
  const { pair, minVersion, protocols, mostSockets } = options;
  const fallback = protocols.at(-1) ?? "";
  const server = createServer({
    ...pair,
    minVersion,
    ALPNProtocols: [...protocols],
    handshakeTimeout: HANDSHAKE_TIMEOUT_MS,
    allowHalfOpen: true,
    noDelay: true,
  }, (socket: TLSSocket) => {
    const chosen = socket.alpnProtocol;
    accept(new StreamSocket(socket), typeof chosen === "string" ? chosen : fallback);
  });
  if (mostSockets !== undefined) server.maxConnections = mostSockets;
  // Strangers that do not manage a handshake are no news.
  server.on("tlsClientError", (_error, socket) => void socket.destroy());
  const address = await listenOn(server, options);
  server.on("error", () => {});
  return {
    address,
    replace: (next) => server.setSecureContext({ ...next, minVersion }),
    close: async () => {
      server.close();
      await new Promise<void>((resolve) => setImmediate(resolve));
    },
  };
}
