/**
 * Kinds of configuration values that several rooms use, with the wording of what is allowed.
 */

import * as v from "valibot";
import type { Address } from "../runtime/runtime.ts";

/** A whole number of milliseconds, 0 or more (or from `least` up). */
export function milliseconds(description: string, least = 0) {
  return v.pipe(
    v.number(`a whole number of milliseconds, at least ${least}`),
    v.integer(`a whole number of milliseconds, at least ${least}`),
    v.minValue(least, `a whole number of milliseconds, at least ${least}`),
    v.maxValue(2_147_483_647, "at most 2147483647 ms (24 days)"),
    v.description(description),
  );
}

/** A whole number from `least` to `most`. */
export function whole(description: string, least = 0, most = Number.MAX_SAFE_INTEGER) {
  const allowed = most === Number.MAX_SAFE_INTEGER
    ? `a whole number, at least ${least}`
    : `a whole number from ${least} to ${most}`;
  return v.pipe(
    v.number(allowed),
    v.integer(allowed),
    v.minValue(least, allowed),
    v.maxValue(most, allowed),
    v.description(description),
  );
}

/** true or false. */
export function flag(description: string) {
  return v.pipe(v.boolean("true or false"), v.description(description));
}

/** Text that is not empty. */
export function text(description: string) {
  return v.pipe(
    v.string("text"),
    v.trim(),
    v.nonEmpty("text that is not empty"),
    v.description(description),
  );
}

/** An absolute URL with one of the schemes (without the colon). */
export function url(description: string, schemes: readonly string[] = ["http", "https"]) {
  const allowed = `a URL that starts with ${schemes.map((scheme) => `${scheme}:`).join(" or ")}`;
  return v.pipe(
    v.string(allowed),
    v.trim(),
    v.check((value) => schemes.some((scheme) => value.startsWith(`${scheme}:`)), allowed),
    v.check((value) => URL.canParse(value) || value.startsWith("file:"), allowed),
    v.description(description),
  );
}

const LISTEN_ALLOWED =
  'host:port (as "127.0.0.1:8080", "[::1]:8080", ":8080" for all addresses), or "unix:/path"';

/** Where a listener binds; becomes an `Address`. Port 0 lets the system choose. */
export function listenAddress(description: string) {
  return v.pipe(
    v.string(LISTEN_ALLOWED),
    // Before the transformation: the JSON Schema is that of what is written.
    v.description(`${description} Written as ${LISTEN_ALLOWED}.`),
    v.trim(),
    v.rawTransform(({ dataset, addIssue, NEVER }) => {
      const address = parseAddress(dataset.value);
      if (address !== undefined) return address;
      addIssue({ message: LISTEN_ALLOWED });
      return NEVER;
    }),
  );
}

/** `host:port`, `[v6]:port`, `:port`, or `unix:/path`; undefined for anything else. */
export function parseAddress(value: string): Address | undefined {
  if (value.startsWith("unix:")) {
    const path = value.slice("unix:".length);
    return path === "" ? undefined : { kind: "unix", path };
  }
  const match = /^(?:\[([0-9a-fA-F:.]+)\]|([^:[\]\s/]*)):(\d{1,5})$/.exec(value);
  if (match === null) return undefined;
  const port = Number(match[3]);
  if (port > 65535) return undefined;
  return { kind: "tcp", host: match[1] ?? (match[2] === "" ? "0.0.0.0" : match[2] ?? ""), port };
}

/** The address as it is written in the configuration. */
export function printAddress(address: Address): string {
  if (address.kind === "unix") return `unix:${address.path}`;
  return address.host.includes(":")
    ? `[${address.host}]:${address.port}`
    : `${address.host}:${address.port}`;
}

/** True for an address that only this machine can reach. */
export function isLoopback(address: Address): boolean {
  if (address.kind === "unix") return true;
  return address.host === "localhost" || address.host === "::1" || /^127\./.test(address.host);
}

/** The host of a URL that is this machine: localhost and its subdomains (RFC 6761), 127.0.0.0/8, ::1. */
export function isLoopbackHost(host: string): boolean {
  const name = host.toLowerCase().replace(/\.$/, "");
  return name === "localhost" || name.endsWith(".localhost") || name === "[::1]" ||
    /^127\.\d{1,3}\.\d{1,3}\.\d{1,3}$/.test(name);
}

/** True unless the address is a loopback or private one (RFC 1918, RFC 4193, link-local). */
export function isPublic(address: Address): boolean {
  if (isLoopback(address) || address.kind === "unix") return false;
  const host = address.host.toLowerCase();
  if (host.includes(":")) return !/^(f[cd][0-9a-f]{2}|fe[89ab][0-9a-f]):/.test(host);
  return !/^(10\.|192\.168\.|169\.254\.|172\.(1[6-9]|2\d|3[01])\.)/.test(host);
}
