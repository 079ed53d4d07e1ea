/**
 * The proxies that the environment names, for oracles and artifacts: HTTPS_PROXY and HTTP_PROXY by the
 * scheme of the address, NO_PROXY for exceptions, each in lower case first. Nothing else that Baton
 * calls (children, workers, peers, an API server) goes by way of them, and loopback never does.
 */

import { contains, parseIp, parseRange } from "../config/ip_range.ts";
import { isLoopbackHost } from "../config/values.ts";
import type { Http, Runtime } from "../runtime/runtime.ts";

type Environment = Readonly<Record<string, string | undefined>>;

const DEFAULT_PORTS: Readonly<Record<string, string>> = { "http:": "80", "https:": "443" };

/** The proxy for an address, or undefined. Throws an Error when what is set is no HTTP proxy. */
export function proxyFor(url: URL, env: Environment): string | undefined {
  if (isLoopbackHost(url.hostname)) return undefined;
  const name = url.protocol === "https:" ? "HTTPS_PROXY" : "HTTP_PROXY";
  const proxy = valueOf(env, name);
  if (proxy === undefined || isExcepted(url, valueOf(env, "NO_PROXY") ?? "")) return undefined;
  // As others take it: without a scheme it is an HTTP proxy.
  const address = proxy.includes("://") ? proxy : `http://${proxy}`;
  const isHttp = URL.canParse(address) && /^https?:$/.test(new URL(address).protocol);
  // Not the value: it may hold a password.
  if (!isHttp) throw new Error(`${name} is not the URL of an HTTP proxy`);
  return address;
}

/** `http`, with calls by way of the environment's proxies. */
export function throughProxies(runtime: Pick<Runtime, "http" | "env">): Http {
  const { http } = runtime;
  return {
    serve: http.serve,
    fetch: async (url, init = {}) => {
      const proxy = proxyFor(new URL(url), runtime.env());
      return await http.fetch(url, proxy === undefined ? init : { ...init, proxy });
    },
  };
}

function valueOf(env: Environment, name: string): string | undefined {
  const value = (env[name.toLowerCase()] ?? env[name])?.trim();
  return value === "" ? undefined : value;
}

/** Entries of NO_PROXY: `*`, a domain (with all below it), an address, a CIDR range; with `:port`. */
function isExcepted(url: URL, list: string): boolean {
  const host = url.hostname.toLowerCase().replace(/^\[(.*)\]$/, "$1").replace(/\.$/, "");
  const port = url.port === "" ? DEFAULT_PORTS[url.protocol] : url.port;
  const address = parseIp(host);
  return list.toLowerCase().split(/[\s,]+/).some((entry) => {
    const [, name = entry, only] = /^(\[[^\]]*\]|[^:]*)(?::(\d+))?$/.exec(entry) ?? [];
    if (only !== undefined && only !== port) return false;
    const plain = name.replace(/^\[(.*)\]$/, "$1");
    if (plain === "*") return true;
    if (plain === "") return false;
    const range = parseRange(plain);
    if (range !== undefined) return address !== undefined && contains(range, address);
    const domain = plain.replace(/^\*?\./, "");
    return host === domain || host.endsWith(`.${domain}`);
  });
}
