/**
 * Which service a path belongs to, and the contract of a service.
 *
 * Mounts are compared on the normalised path by whole segments; the longest wins. The table is
 * replaced as a whole, so a reader sees the old one or the new one and nothing between.
 */

import type { Exchange, Forward } from "./exchange.ts";
import type { Timeouts } from "./timeouts.ts";

/** Something mounted at a path prefix: it answers each exchange that is handed to it. */
export interface Service {
  readonly name: string;
  /** Path prefixes; each starts with `/`, no trailing slash except for `/` itself. */
  readonly mounts: readonly string[];
  /**
   * Answers the exchange. Must take its lease (or decide that it cannot) before its first `await`
   * unless it has to read the body or hold the request. A thrown BatonError becomes the answer.
   */
  handle(exchange: Exchange, forward: Forward, mount: string): void | Promise<void>;
  /**
   * How long an exchange may wait while the host has nothing to serve yet, in milliseconds; 0, or
   * absent: it is refused at once. A promise where it has to be asked for.
   */
  startHoldMs?(exchange: Pick<Exchange, "path">, mount: string): number | Promise<number>;
}

/** A service and the mount by which a path was found to be its own. */
export interface Route {
  /** Limits on its targets that differ from those of the listener. */
  readonly timeouts?: Partial<Timeouts> | undefined;
  readonly mount: string;
  readonly service: Service;
}

export class Routes {
  #byLength: readonly Route[] = [];

  /**
   * Replaces the whole table in one step. Throws if two services share a mount. `timeoutsOf` gives
   * the limits of a service by its name.
   */
  replace(
    services: readonly Service[],
    timeoutsOf?: (name: string) => Partial<Timeouts> | undefined,
  ): void {
    const routes = new Map<string, Route>();
    for (const service of services) {
      for (const mount of service.mounts) {
        if (routes.has(mount)) throw new Error(`two services are mounted at ${mount}`);
        routes.set(mount, { mount, service, timeouts: timeoutsOf?.(service.name) });
      }
    }
    this.#byLength = [...routes.values()].sort((a, b) => b.mount.length - a.mount.length);
  }

  /** The route for a normalised path, or undefined. */
  match(path: string): Route | undefined {
    for (const route of this.#byLength) if (isUnder(path, route.mount)) return route;
    return undefined;
  }
}

/** True when `path` is the mount itself or lies below it by whole segments. */
export function isUnder(path: string, mount: string): boolean {
  if (mount === "/") return true;
  if (!path.startsWith(mount)) return false;
  return path.length === mount.length || path.charCodeAt(mount.length) === 0x2f;
}
