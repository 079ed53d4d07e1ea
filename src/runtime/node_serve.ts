/** Serving a fetch-shaped app with `node:http` and `node:https` through Hono's adapter. */

import { createAdaptorServer } from "@hono/node-server";
import { createServer, type Server } from "node:http";
import { createServer as createTlsServer } from "node:https";
import type { Http, HttpServer } from "./runtime.ts";
import { listenOn } from "./net_listen.ts";
import { answerOrError } from "./serve_error.ts";

/** A slow sender of a head is cut; a slow body or answer is the app's business. */
const HEAD_TIMEOUT_MS = 60_000;
const KEEP_ALIVE_TIMEOUT_MS = 65_000;

/** See `Http.serve`. */
export const serveOnNode: Http["serve"] = async (options, fetch): Promise<HttpServer> => {
  const { tls } = options;
  const timeouts = {
    requestTimeout: 0,
    headersTimeout: HEAD_TIMEOUT_MS,
    keepAliveTimeout: KEEP_ALIVE_TIMEOUT_MS,
  };
  const adaptor = {
    fetch: (request: Request, env: unknown) =>
      answerOrError(() => fetch(request, { remoteAddress: remoteAddressOf(env) })),
    overrideGlobalObjects: false,
  };
  const server =
    (tls === undefined
      ? createAdaptorServer({ ...adaptor, createServer, serverOptions: timeouts })
      : createAdaptorServer({
        ...adaptor,
        createServer: createTlsServer,
        serverOptions: {
          ...timeouts,
          cert: tls.cert,
          key: tls.key,
          ca: tls.clientCa,
          requestCert: tls.clientCa !== undefined,
          rejectUnauthorized: tls.clientCa !== undefined,
        },
      })) as Server;
  let isClosing = false;
  server.on("request", (_request, response) => {
    response.once("close", () => {
      // A connection that was busy when close() was called turns idle only now.
      if (isClosing) setImmediate(() => server.closeIdleConnections());
    });
  });
  const address = await listenOn(server, options);
  server.on("error", () => {});
  let closed: Promise<void> | undefined;
  const close = (): Promise<void> => {
    isClosing = true;
    closed ??= new Promise<void>((resolve) => server.close(() => resolve()));
    server.closeIdleConnections();
    return closed;
  };
  return {
    address,
    close,
    destroy() {
      const done = close();
      server.closeAllConnections();
      return done;
    },
  };
};

function remoteAddressOf(env: unknown): string {
  if (typeof env !== "object" || env === null || !("incoming" in env)) return "";
  const incoming = env.incoming as { socket?: { remoteAddress?: string } };
  return incoming.socket?.remoteAddress ?? "";
}
