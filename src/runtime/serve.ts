/**
 * Serving a fetch-shaped app with `node:http` and `node:https` through Hono's adapter, on both
 * runtimes.
 *
 * `Deno.serve` answers about three times as many small requests, but it cannot be cut any more once
 * its graceful `shutdown` has begun, asks for no client certificate and takes no inherited
 * descriptor. The traffic path does not come through here.
 */

import { createAdaptorServer } from "@hono/node-server";
import { RESPONSE_ALREADY_SENT } from "@hono/node-server/utils/response";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { Socket } from "node:net";
import { createServer as createTlsServer, type Server as TlsServer } from "node:https";
import type { Http, HttpServer } from "./runtime.ts";
import { listenOn } from "./net_listen.ts";
import { plainAddress } from "./plain_address.ts";
import { writeAnswer } from "./serve_answer.ts";
import { answerOrError } from "./serve_error.ts";

/** How long a TLS handshake may take. */
const HANDSHAKE_TIMEOUT_MS = 10_000;
/** A slow sender of a head is cut; a slow body or answer is the app's business. */
const HEAD_TIMEOUT_MS = 60_000;
const KEEP_ALIVE_TIMEOUT_MS = 65_000;

/** What Hono's adapter hands to the app beside the request. */
interface NodeBindings {
  readonly incoming: IncomingMessage;
  readonly outgoing: ServerResponse;
}

/** See `Http.serve`. */
export const serveApp: Http["serve"] = async (options, fetch): Promise<HttpServer> => {
  const { tls } = options;
  const timeouts = {
    requestTimeout: 0,
    headersTimeout: HEAD_TIMEOUT_MS,
    keepAliveTimeout: KEEP_ALIVE_TIMEOUT_MS,
  };
  const adaptor = {
    fetch: async (request: Request, env: unknown) => {
      const { incoming, outgoing } = env as NodeBindings;
      const remoteAddress = plainAddress(incoming.socket.remoteAddress);
      await writeAnswer(await answerOrError(() => fetch(request, { remoteAddress })), outgoing);
      return RESPONSE_ALREADY_SENT;
    },
    overrideGlobalObjects: false,
    // HTTP/1.0 has no need of a Host header, and old health checks send none.
    hostname: "localhost",
  };
  const server =
    (tls === undefined
      ? createAdaptorServer({ ...adaptor, createServer, serverOptions: timeouts })
      : createAdaptorServer({
        ...adaptor,
        createServer: createTlsServer,
        serverOptions: {
          ...timeouts,
          handshakeTimeout: HANDSHAKE_TIMEOUT_MS,
          cert: tls.cert,
          key: tls.key,
          ca: tls.clientCa,
          requestCert: tls.clientCa !== undefined,
          rejectUnauthorized: tls.clientCa !== undefined,
        },
      })) as Server;
  const connections = new Connections(
    server,
    tls === undefined ? "connection" : "secureConnection",
  );
  const address = await listenOn(server, options);
  server.on("error", () => {});
  let closed: Promise<void> | undefined;
  const close = (): Promise<void> => {
    closed ??= new Promise<void>((resolve) => server.close(() => resolve()));
    connections.closeIdle();
    return closed;
  };
  return {
    address,
    ...(tls === undefined ? {} : {
      replaceTls: ({ cert, key, clientCa }) =>
        (server as TlsServer).setSecureContext({ cert, key, ca: clientCa }),
    }),
    close,
    destroy() {
      const done = close();
      connections.closeAll();
      return done;
    },
  };
};

/**
 * Which connections owe an answer. `closeIdleConnections` of `node:http` leaves those that never sent
 * a whole request, and those that turn idle later; each of them would hold `close` up.
 */
class Connections {
  readonly #owed = new Map<Socket, number>();
  #isClosing = false;

  constructor(server: Server, accepted: "connection" | "secureConnection") {
    server.on(accepted, (socket: Socket) => {
      this.#owed.set(socket, 0);
      socket.once("close", () => this.#owed.delete(socket));
    });
    server.prependListener("request", ({ socket }: IncomingMessage, response: ServerResponse) => {
      this.#add(socket, 1);
      response.once("close", () => this.#add(socket, -1));
    });
  }

  closeIdle(): void {
    this.#isClosing = true;
    for (const [socket, owed] of this.#owed) {
      if (owed === 0) socket.destroy();
    }
  }

  closeAll(): void {
    for (const socket of this.#owed.keys()) socket.destroy();
  }

  #add(socket: Socket, count: number): void {
    const owed = (this.#owed.get(socket) ?? 0) + count;
    if (this.#owed.has(socket)) this.#owed.set(socket, owed);
    if (owed === 0 && this.#isClosing) socket.destroySoon();
  }
}
