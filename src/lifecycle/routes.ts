/**
 * The lifecycle protocol over HTTP: what a supervisor, Kubernetes or systemd asks a process.
 */

import { Hono } from "hono";
import { BatonError, errorResponse } from "../errors.ts";
import type { Lifecycle } from "./lifecycle.ts";

const NO_STORE = { "cache-control": "no-store" } as const;

export function lifecycleRoutes(lifecycle: Lifecycle): Hono {
  const app = new Hono();
  app.get("/ready", (context) => {
    const status = lifecycle.readyStatus();
    return context.json(status, status.ready ? 200 : 503, NO_STORE);
  });
  app.post("/drain", (context) => {
    lifecycle.beginDrain();
    return context.json(lifecycle.status(), 200, NO_STORE);
  });
  app.get("/drain/status", (context) => context.json(lifecycle.status(), 200, NO_STORE));
  app.all("/ready", () => wrongMethod("GET, HEAD"));
  app.all("/drain", () => wrongMethod("POST"));
  app.all("/drain/status", () => wrongMethod("GET, HEAD"));
  return app;
}

function wrongMethod(allow: string): Response {
  const error = new BatonError("method_not_allowed", `only ${allow} is answered here`);
  const response = errorResponse(error);
  response.headers.set("allow", allow);
  return response;
}
