/**
 * Addresses of oracles and artifacts: which may be asked without TLS, and how `file:` is written.
 */

import { isLoopbackHost } from "../config/values.ts";

/** The address is `http:` and neither on this machine nor allowed. */
export class InsecureAddress extends Error {
  override readonly name = "InsecureAddress";
}

/**
 * `https:` always; `http:` on loopback, or where it was allowed (by `allowInsecure`, which versiond's
 * names set with a warning). Throws `InsecureAddress`, or a plain Error for another scheme.
 */
export function assertSecure(url: URL, allowInsecure: boolean): void {
  if (url.protocol === "https:") return;
  if (url.protocol !== "http:") throw new Error(`${url.protocol} is not http: or https:`);
  if (allowInsecure || isLoopbackHost(url.hostname)) return;
  throw new InsecureAddress(
    `${url.origin} is not encrypted: use https:, or set allowInsecure`,
  );
}

/**
 * The path of a `file:` address: `file:///abs` is a URL and is percent-decoded; `file:/abs` and
 * `file:relative` are paths as they stand. Throws for a URL that names another host.
 */
export function fileUrlPath(address: string): string {
  const rest = address.slice("file:".length);
  if (!rest.startsWith("//")) return rest;
  const url = new URL(address);
  if (url.hostname !== "" && url.hostname !== "localhost") {
    throw new Error(`${address} names a file on another host`);
  }
  return decodeURIComponent(url.pathname);
}

/** An address for logs and messages: without credentials and query, which may hold a signature. */
export function printableUrl(address: string | URL): string {
  const text = String(address);
  if (text.startsWith("file:") || !URL.canParse(text)) return text;
  const { origin, pathname } = new URL(text);
  return origin + pathname;
}
