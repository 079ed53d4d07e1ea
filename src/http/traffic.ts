/**
 * The traffic app: the few paths of the traffic listener that are Baton's own. Everything else there
 * is proxied (proxy/traffic.ts).
 */

import type { Hono } from "hono";
import type { Lifecycle } from "../lifecycle/mod.ts";
import type { Log } from "../observe/log.ts";
import { createApp, refuseOtherMethods } from "./app.ts";

/** What `/healthz` and `/readyz` ask of a versions service; the supervisor provides it. */
export interface VersionsHealth {
  /** versiond's array: one item for each generation that serves or drains. */
  healthz(): readonly Readonly<Record<string, unknown>>[];
  /** True when the version's current generation answers. */
  serves(version: string): boolean;
}

export interface TrafficAppOptions {
  readonly log: Log;
  readonly lifecycle: Lifecycle;
  readonly versions: () => readonly VersionsHealth[];
}

const TEXT = { "content-type": "text/plain; charset=utf-8", "cache-control": "no-store" } as const;

/**
 * `/healthz` as versiond has it; `/readyz[?version=name]` for balancers. A version is ready when it
 * serves and this host is serving, independent of the host's other conditions (case 238).
 */
export function createTrafficApp(options: TrafficAppOptions): Hono {
  const app = createApp(options.log);
  const { lifecycle } = options;
  app.all("/healthz", (context) => {
    const items = options.versions().flatMap((service) => service.healthz());
    return context.json(items, 200, { "cache-control": "no-store" });
  });
  app.get("/readyz", (context) => {
    const version = context.req.query("version");
    const ready = version === undefined ? lifecycle.ready : lifecycle.state === "serving" &&
      options.versions().some((service) => service.serves(version));
    return context.body(ready ? "ready\n" : "not ready\n", ready ? 200 : 503, TEXT);
  });
  refuseOtherMethods(app);
  return app;
}
