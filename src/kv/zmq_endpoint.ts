/** ZeroMQ endpoints as text: `tcp://host:port`, `tcp://[v6]:port`, `ipc:///path`. */

import type { Address } from "../runtime/runtime.ts";

export interface ZmqEndpoint {
  readonly address: Address;
  /** The text asks for binding: its host is `*`. */
  readonly isWildcard: boolean;
}

/** The endpoint is not one that can be used; the message says why. */
export class BadEndpoint extends Error {
  override readonly name = "BadEndpoint";
}

/** Reads an endpoint; port 0 (any free port) only where `isAnyPort`. Throws `BadEndpoint`. */
export function parseZmqEndpoint(text: string, isAnyPort = false): ZmqEndpoint {
  const match = /^([a-z]+):\/\/(.+)$/.exec(text);
  if (match === null) throw new BadEndpoint(`"${text}" is not of the form scheme://address`);
  const scheme = match[1];
  const rest = match[2] ?? "";
  if (scheme === "ipc") {
    if (rest.startsWith("@")) throw new BadEndpoint("abstract ipc names are not supported");
    return { address: { kind: "unix", path: rest }, isWildcard: false };
  }
  if (scheme !== "tcp") throw new BadEndpoint(`scheme ${scheme} is not supported, tcp and ipc are`);
  const parts = /^(?:\[([0-9a-fA-F:.]+(?:%[\w.-]+)?)\]|([^:[\]/\s]+)):(\d{1,5})$/.exec(rest);
  if (parts === null) {
    throw new BadEndpoint(`"${rest}" is not host:port (IPv6 addresses in brackets)`);
  }
  const port = Number(parts[3]);
  if (port > 65535 || (port === 0 && !isAnyPort)) {
    throw new BadEndpoint(`port ${parts[3]} is not from 1 to 65535`);
  }
  const host = parts[1] ?? parts[2] ?? "";
  const isWildcard = host === "*";
  return { address: { kind: "tcp", host: isWildcard ? "0.0.0.0" : host, port }, isWildcard };
}

/** The endpoint as text. */
export function printZmqEndpoint(address: Address): string {
  if (address.kind === "unix") return `ipc://${address.path}`;
  const host = address.host.includes(":") ? `[${address.host}]` : address.host;
  return `tcp://${host}:${address.port}`;
}
