/**
 * The peer app: what other replicas, workers and indexer clients ask.
 */

import type { Hono } from "hono";
import type { Lifecycle } from "../lifecycle/mod.ts";
import type { Log } from "../observe/log.ts";
import { createApp, refuseOtherMethods } from "./app.ts";
import { browserGuard } from "./browser_guard.ts";
import { requireToken } from "./token.ts";

export interface PeerOptions {
  readonly log: Log;
  readonly lifecycle: Lifecycle;
  /** Reads the shared token; absent = everyone who can connect may ask. */
  readonly readToken?: () => Promise<string>;
  /** The dump (replica/), the indexer API and `POST /events` (kv/), the selection API (router/). */
  readonly apps: readonly Hono[];
}

/** `/ready` stays open for balancers and probes; it says nothing that they must not know. */
export function createPeerApp(options: PeerOptions): Hono {
  const app = createApp(options.log);
  const { lifecycle } = options;
  app.use(browserGuard({ localOnly: false }));
  app.get("/ready", (context) => {
    const status = lifecycle.readyStatus();
    return context.json(status, status.ready ? 200 : 503, { "cache-control": "no-store" });
  });
  if (options.readToken !== undefined) app.use(requireToken(options.readToken));
  for (const inner of options.apps) app.route("/", inner);
  refuseOtherMethods(app);
  return app;
}
