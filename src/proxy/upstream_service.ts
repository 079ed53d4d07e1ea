/** A service with one fixed target: the path is kept. */

import { BatonError } from "../errors.ts";
import type { Address, Clock } from "../runtime/runtime.ts";
import type { Service } from "./routes.ts";
import { Target } from "./target.ts";
import type { Timeouts } from "./forward.ts";

export interface UpstreamServiceOptions {
  readonly name: string;
  readonly mounts: readonly string[];
  readonly address: Address;
  readonly clock: Clock;
  readonly timeouts?: Partial<Timeouts>;
}

/** The service, and its target for the drain report. */
export interface UpstreamService extends Service {
  readonly target: Target;
}

export function createUpstreamService(options: UpstreamServiceOptions): UpstreamService {
  const { name, mounts, address, clock } = options;
  const target = new Target({ service: name, version: "upstream", generation: 1, address });
  const forwardOptions = options.timeouts === undefined ? {} : { timeouts: options.timeouts };
  return {
    name,
    mounts,
    target,
    handle(exchange, forward) {
      const lease = target.claim(exchange.requestId, clock.monotonic());
      if (lease === undefined) throw new BatonError("draining", "the upstream is being removed");
      void forward(exchange, lease, forwardOptions);
    },
  };
}

/** `http://host[:port]` or `unix:/path` as an address. Throws RangeError for anything else. */
export function upstreamAddress(url: string): Address {
  if (url.startsWith("unix:")) return { kind: "unix", path: url.slice("unix:".length) };
  const parsed = new URL(url);
  if (parsed.protocol !== "http:") throw new RangeError(`${url} is neither http: nor unix:`);
  const host = parsed.hostname.startsWith("[") ? parsed.hostname.slice(1, -1) : parsed.hostname;
  return { kind: "tcp", host, port: parsed.port === "" ? 80 : Number(parsed.port) };
}
