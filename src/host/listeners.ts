/**
 * The admin and peer listeners of the host.
 */

import type { Log } from "../observe/log.ts";
import type { Address, HttpServer, Runtime } from "../runtime/runtime.ts";
import { printAddress } from "../config/values.ts";

/** A fetch-shaped app, such as Hono's. */
export interface FetchApp {
  fetch(request: Request): Response | Promise<Response>;
}

/** Serves an app on an address; a failure to listen names the listener. */
export async function serveApp(
  runtime: Runtime,
  log: Log,
  name: "admin" | "peer",
  address: Address,
  app: FetchApp,
): Promise<HttpServer> {
  try {
    // A socket file that a crash left behind would keep us from listening.
    if (address.kind === "unix") await removeStaleSocket(runtime, address.path);
    const server = await runtime.http.serve({ address }, (request) => app.fetch(request));
    log.info("listening", { listener: name, address: printAddress(server.address) });
    return server;
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    throw new Error(`listen.${name} = ${printAddress(address)}: ${why}`, { cause: error });
  }
}

/** Removes a socket that nobody answers on. */
export async function removeStaleSocket(runtime: Runtime, path: string): Promise<void> {
  if ((await runtime.files.info(path))?.kind !== "other") return;
  try {
    const socket = await runtime.net.connect({ kind: "unix", path }, { timeoutMs: 1000 });
    socket.handle({ data: () => {}, end: () => {}, drain: () => {}, close: () => {} });
    socket.destroy();
  } catch {
    await runtime.files.remove(path);
  }
}
