/**
 * The admin and peer listeners of the host.
 */

import { messageOf } from "../errors.ts";
import type { Log } from "../observe/log.ts";
import type { ReplicaConfig } from "../config/replica.ts";
import type { Address, HttpServer, Runtime, ServerTls } from "../runtime/runtime.ts";
import { printAddress } from "../config/values.ts";

/** A fetch-shaped app, such as Hono's. */
export interface FetchApp {
  fetch(request: Request): Response | Promise<Response>;
}

export interface ServeOptions {
  readonly name: "admin" | "peer";
  readonly address: Address;
  readonly app: FetchApp;
  readonly tls?: ServerTls | undefined;
}

/** Serves an app on an address; a failure to listen names the listener. */
export async function serveApp(
  runtime: Runtime,
  log: Log,
  options: ServeOptions,
): Promise<HttpServer> {
  const { name, address, app, tls } = options;
  try {
    // A socket file that a crash left behind would keep us from listening.
    if (address.kind === "unix") await removeStaleSocket(runtime, address.path);
    const server = await runtime.http.serve(
      { address, ...(tls === undefined ? {} : { tls }) },
      (request) => app.fetch(request),
    );
    log.info("listening", {
      listener: name,
      address: printAddress(server.address),
      ...(tls === undefined ? {} : { tls: tls.clientCa === undefined ? "server" : "mutual" }),
    });
    return server;
  } catch (error) {
    const why = messageOf(error);
    throw new Error(`listen.${name} = ${printAddress(address)}: ${why}`, { cause: error });
  }
}

/** The files of `replica.tls`, read. */
export async function readTlsFiles(
  runtime: Pick<Runtime, "files">,
  tls: NonNullable<ReplicaConfig["tls"]>,
): Promise<{ ca?: string; cert?: string; key?: string }> {
  const found: { ca?: string; cert?: string; key?: string } = {};
  for (const name of ["ca", "cert", "key"] as const) {
    const path = tls[name];
    if (path !== undefined) found[name] = await runtime.files.readText(path);
  }
  return found;
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
