/** Serving a fetch-shaped app with `Deno.serve`, and with `node_serve` for what that cannot do. */

import { listenFailure, removeStaleSocket } from "./net_listen.ts";
import { serveOnNode } from "./node_serve.ts";
import { answerOrError } from "./serve_error.ts";
import type { Address, Http, HttpServer } from "./runtime.ts";

/**
 * See `Http.serve`. `Deno.serve` takes no inherited descriptor and asks for no client certificate:
 * those two go through `node:http(s)`, which Deno implements with both.
 */
export const serveOnDeno: Http["serve"] = async (options, fetch): Promise<HttpServer> => {
  const { address, tls } = options;
  if (options.descriptor !== undefined || tls?.clientCa !== undefined) {
    return await serveOnNode(options, fetch);
  }
  if (address.kind === "unix") await removeStaleSocket(address.path);
  const cut = new AbortController();
  const handler = (request: Request, info: Deno.ServeHandlerInfo<Deno.Addr>) =>
    answerOrError(() => fetch(request, { remoteAddress: remoteAddressOf(info.remoteAddr) }));
  const common = { signal: cut.signal, onListen: () => {} };
  let server: Deno.HttpServer<Deno.Addr>;
  try {
    server = address.kind === "unix"
      ? Deno.serve({ ...common, path: address.path }, handler)
      : Deno.serve({
        ...common,
        hostname: address.host,
        port: address.port,
        reusePort: options.reusePort,
        ...(tls === undefined ? {} : { cert: tls.cert, key: tls.key }),
      }, handler);
  } catch (error) {
    throw listenFailure(address, error);
  }
  return {
    address: addressOf(server.addr),
    close: () => server.shutdown(),
    async destroy() {
      cut.abort();
      await server.finished;
    },
  };
};

function addressOf(addr: Deno.Addr): Address {
  return "hostname" in addr
    ? { kind: "tcp", host: addr.hostname, port: addr.port }
    : { kind: "unix", path: "path" in addr ? addr.path : "" };
}

function remoteAddressOf(addr: Deno.Addr): string {
  return "hostname" in addr ? addr.hostname : "";
}
