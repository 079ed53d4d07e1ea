/** Binding of anything that is a `node:net` server, so that raw and HTTP listeners behave alike. */

import { lstat, rm } from "node:fs/promises";
import { connect, type Server } from "node:net";
import { errorCode, errorText } from "./error_code.ts";
import { type Address, ListenFailed, type ListenOptions } from "./runtime.ts";

/** Binds and listens; returns the bound address (the real port for port 0). Throws `ListenFailed`. */
export async function listenOn(server: Server, options: ListenOptions): Promise<Address> {
  if (options.descriptor === undefined && options.address.kind === "unix") {
    await removeStaleSocket(options.address.path);
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
  const bound = server.address();
  if (bound === null || typeof bound === "string") return options.address;
  return { kind: "tcp", host: bound.address, port: bound.port };
}

function listenArguments(options: ListenOptions) {
  const { address, backlog, descriptor } = options;
  if (descriptor !== undefined) return { fd: descriptor, backlog };
  if (address.kind === "unix") return { path: address.path, backlog };
  return { host: address.host, port: address.port, backlog, reusePort: options.reusePort ?? false };
}

/** A socket file outlives a listener that was killed; the kernel then refuses both bind and connect. */
export async function removeStaleSocket(path: string): Promise<void> {
  const found = await lstat(path).catch(() => undefined);
  if (found === undefined || !found.isSocket()) return;
  const isDead = await new Promise<boolean>((resolve) => {
    const probe = connect({ path });
    probe.once("connect", () => {
      probe.destroy();
      resolve(false);
    });
    probe.once("error", (error) => resolve(errorCode(error) === "ECONNREFUSED"));
  });
  if (isDead) await rm(path, { force: true });
}

/** The contract's error for a failed bind. */
export function listenFailure(address: Address, error: unknown): ListenFailed {
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
    case "EAFNOSUPPORT":
      return "unavailable";
    default:
      return "other";
  }
}
