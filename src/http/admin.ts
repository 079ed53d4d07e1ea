/**
 * The admin app: what operators, supervisors and scrapers ask. Its handlers only call what the rooms
 * hand in, so that the app is the same whatever is configured.
 */

import type { Hono } from "hono";
import { BatonError, errorResponse } from "../errors.ts";
import type { Lifecycle } from "../lifecycle/mod.ts";
import type { EventJournal } from "../observe/events.ts";
import type { Log } from "../observe/log.ts";
import type { Metrics } from "../observe/metrics.ts";
import type { Clock } from "../runtime/runtime.ts";
import { createApp, refuseOtherMethods } from "./app.ts";
import { browserGuard } from "./browser_guard.ts";
import { eventStream } from "./event_stream.ts";
import { adminOpenApi } from "./openapi.ts";
import { requireToken } from "./token.ts";
import { addVersionsApi, type VersionsOperator } from "./versions_api.ts";

/** One static file of the status page. */
export interface UiFile {
  readonly contentType: string;
  readonly body: string;
}

export interface AdminOptions {
  readonly log: Log;
  readonly clock: Clock;
  readonly lifecycle: Lifecycle;
  readonly metrics: Metrics;
  readonly events: EventJournal;
  /** Baton's own version, for the API document. */
  readonly version: string;
  /** Reads the bearer token; absent = everyone on this machine may ask. */
  readonly readToken?: () => Promise<string>;
  readonly versions: () => readonly VersionsOperator[];
  /** Pools' workers with their lanes; plain JSON. */
  readonly workers: () => readonly unknown[];
  readonly peers: () => readonly unknown[];
  readonly recovery: () => Readonly<Record<string, unknown>>;
  /** Name -> file, for `/ui/<name>`; `index.html` is the page. */
  readonly ui: ReadonlyMap<string, UiFile>;
  /** Ends event streams when the process goes down. */
  readonly ending: AbortSignal;
}

export function createAdminApp(options: AdminOptions): Hono {
  const { lifecycle, metrics, events, clock, ending } = options;
  const app = createApp(options.log);
  app.use(browserGuard({ localOnly: options.readToken === undefined }));
  // The page itself holds nothing: it asks for the token and shows it with each call.
  app.get("/", (context) => context.redirect("/ui/"));
  app.get("/ui", (context) => context.redirect("/ui/"));
  app.get("/ui/", () => uiFile(options.ui.get("index.html")));
  app.get("/ui/:file", (context) => uiFile(options.ui.get(context.req.param("file"))));
  if (options.readToken !== undefined) app.use(requireToken(options.readToken));

  app.use("/api/*", async (context, next) => {
    await next();
    context.header("cache-control", "no-store");
  });
  app.route("/", lifecycle.routes());
  addVersionsApi(app, options.versions);
  app.get("/api/v1/workers", (context) => context.json({ workers: options.workers() }));
  app.get("/api/v1/peers", (context) => context.json({ peers: options.peers() }));
  app.get("/api/v1/recovery", (context) => context.json(options.recovery()));
  app.get("/api/v1/events", (context) => {
    const format = context.req.header("accept")?.includes("text/event-stream") ? "sse" : "ndjson";
    const since = context.req.header("last-event-id") ?? context.req.query("since") ?? "0";
    if (!/^\d{1,15}$/.test(since)) {
      throw new BatonError("bad_request", "Last-Event-ID and since must be an event's number");
    }
    const follow = format === "sse" || context.req.query("follow") === "true";
    return eventStream({
      journal: events,
      clock,
      format,
      since: Number(since),
      follow,
      ending,
      headersOnly: context.req.method === "HEAD",
    });
  });
  app.get("/metrics", async () =>
    new Response(await metrics.text(), {
      headers: { "content-type": metrics.contentType, "cache-control": "no-store" },
    }));
  const document = JSON.stringify(adminOpenApi(options.version));
  app.get(
    "/openapi.json",
    () => new Response(document, { headers: { "content-type": "application/json" } }),
  );

  refuseOtherMethods(app);
  return app;
}

function uiFile(file: UiFile | undefined): Response {
  if (file === undefined) {
    return errorResponse(new BatonError("not_found", "there is nothing at this path"));
  }
  return new Response(file.body, {
    headers: {
      "content-type": file.contentType,
      "cache-control": "no-cache",
      "content-security-policy": "default-src 'self'; frame-ancestors 'none'",
      "x-content-type-options": "nosniff",
    },
  });
}
