/** Binding of anything that is a `node:net` server, so that raw and HTTP listeners behave alike. */

import { lstat, rm, stat } from "node:fs/promises";
import { connect, type Server } from "node:net";
import { dirname } from "node:path";
import { setInterval } from "node:timers";
import { errorCode, errorText } from "./error_code.ts";
import { type Address, ListenFailed, type ListenOptions } from "./runtime.ts";

const STARTING_LISTENER_MS = 50;
/** How long a listener stands still after descriptors are free again, at most. */
const KEEP_ACCEPTING_MS = 250;
/**
 * Connections that the kernel completes before they are accepted: all clients of a host may come at
 * once, and one that finds no room tries again after a second. The kernel's own limit
 * (net.core.somaxconn, 4096 on Linux) holds beside it; that of `node:net` is 511.
 */
const DEFAULT_BACKLOG = 4096;

/** What is under a server of `node:net`. */
interface ListeningServer {
  readonly _handle?: { readonly listen?: (backlog: number) => number } | null;
}

/** Binds and listens; returns the bound address (the real port for port 0). Throws `ListenFailed`. */
export async function listenOn(server: Server, options: ListenOptions): Promise<Address> {
  if (options.descriptor === undefined && options.address.kind === "unix") {
    await prepareSocketPath(options.address.path);
  }
  try {
    await new Promise<void>((resolve, reject) => {
      server.once("error", reject);
      server.once("listening", () => {
        server.off("error", reject);
        resolve();
      });
      server.listen(listenArguments(options));
    });
  } catch (error) {
    throw listenFailure(options.address, error);
  }
  if ("Deno" in globalThis) keepAccepting(server, options.backlog ?? DEFAULT_BACKLOG);
  const bound = server.address();
  if (bound === null || typeof bound === "string") return options.address;
  return { kind: "tcp", host: bound.address, port: bound.port };
}

/**
 * On Deno (2.9) a server that has met the limit of descriptors never accepts again, and does not say
 * so. Its handle, told to listen once more, goes on, and takes that for nothing at all otherwise.
 */
function keepAccepting(server: Server, backlog: number): void {
  const under = server as unknown as ListeningServer;
  const timer = setInterval(() => {
    if (!server.listening) clearInterval(timer);
    else under._handle?.listen?.(backlog);
  }, KEEP_ACCEPTING_MS);
  timer.unref();
}

function listenArguments(options: ListenOptions) {
  const { address, backlog = DEFAULT_BACKLOG, descriptor } = options;
  if (descriptor !== undefined) return { fd: descriptor, backlog };
  if (address.kind === "unix") return { path: address.path, backlog };
  return { host: address.host, port: address.port, backlog, reusePort: options.reusePort ?? false };
}

/**
 * Makes way for a socket file. One outlives a listener that was killed, and the kernel then refuses
 * both bind and connect; and in a missing folder libuv's error would be "permission denied".
 */
async function prepareSocketPath(path: string): Promise<void> {
  const folder = dirname(path);
  if (await stat(folder).then(() => false, isMissing)) {
    throw new ListenFailed("unavailable", `${path}: there is no folder ${folder}`);
  }
  const found = await lstat(path).catch(() => undefined);
  if (found === undefined || !found.isSocket()) return;
  if (!(await refusesConnections(path))) return;
  // A listener that is just starting refuses too, between its bind and its listen.
  await new Promise((resolve) => setTimeout(resolve, STARTING_LISTENER_MS));
  if (await refusesConnections(path)) await rm(path, { force: true });
}

function refusesConnections(path: string): Promise<boolean> {
  return new Promise((resolve) => {
    const probe = connect({ path });
    probe.once("connect", () => {
      probe.destroy();
      resolve(false);
    });
    probe.once("error", (error) => resolve(errorCode(error) === "ECONNREFUSED"));
  });
}

function isMissing(error: unknown): boolean {
  return errorCode(error) === "ENOENT" || errorCode(error) === "ENOTDIR";
}

/** The contract's error for a failed bind. */
function listenFailure(address: Address, error: unknown): ListenFailed {
  const where = address.kind === "unix" ? address.path : `${address.host}:${address.port}`;
  return new ListenFailed(listenReason(error), `${where}: ${errorText(error)}`, { cause: error });
}

function listenReason(error: unknown): ListenFailed["reason"] {
  switch (errorCode(error)) {
    case "EADDRINUSE":
      return "in-use";
    case "EACCES":
    case "EPERM":
      return "denied";
    case "EADDRNOTAVAIL":
    // What Deno makes of EADDRNOTAVAIL.
    case "EINVAL":
    case "ENOTFOUND":
    case "EAFNOSUPPORT":
      return "unavailable";
    default:
      return "other";
  }
}
