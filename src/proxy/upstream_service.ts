/**
 * The simplest service: one fixed target that somebody else runs. The path is kept.
 */

import { BatonError } from "../errors.ts";
import type { Address, Clock } from "../runtime/runtime.ts";
import type { Exchange, Forward } from "./exchange.ts";
import type { Service } from "./routes.ts";
import { Target } from "./target.ts";

export interface UpstreamServiceOptions {
  readonly name: string;
  readonly mounts: readonly string[];
  /** `http://host:port`, `h2c://host:port` (HTTP/2 with prior knowledge) or `unix:/path`. */
  readonly url: string;
  readonly clock: Pick<Clock, "monotonic">;
}

export class UpstreamService implements Service {
  readonly name: string;
  readonly mounts: readonly string[];
  readonly target: Target;
  readonly #clock: Pick<Clock, "monotonic">;

  constructor(options: UpstreamServiceOptions) {
    this.name = options.name;
    this.mounts = options.mounts;
    this.#clock = options.clock;
    this.target = new Target({
      service: options.name,
      version: "-",
      generation: 1,
      address: upstreamAddress(options.url),
      protocol: options.url.startsWith("h2c:") ? "h2c" : "http/1.1",
    });
  }

  /** The lease is taken in this turn; a failure before any byte of an answer becomes 502 or 504. */
  async handle(exchange: Exchange, forward: Forward): Promise<void> {
    const lease = this.target.claim(exchange.requestId, this.#clock.monotonic());
    if (lease === undefined) {
      throw new BatonError("draining", "this host is going down", { retryAfterS: 1 });
    }
    await forward(exchange, lease);
  }
}

/** The address behind an upstream's URL. Throws RangeError for anything but a plain authority. */
export function upstreamAddress(url: string): Address {
  if (url.startsWith("unix:")) return { kind: "unix", path: url.slice("unix:".length) };
  const { protocol, hostname, port, pathname, search, hash, username } = new URL(url);
  const isKnown = protocol === "http:" || protocol === "h2c:";
  const plain = isKnown && (pathname === "/" || pathname === "") && search + hash + username === "";
  if (!plain) throw new RangeError(`no upstream: ${url}`);
  return {
    kind: "tcp",
    host: hostname.replace(/^\[(.*)\]$/, "$1"),
    port: port === "" ? 80 : Number(port),
  };
}
