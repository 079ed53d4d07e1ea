/**
 * What all three Hono apps have in common: one shape of errors.
 */

import { Hono } from "hono";
import { BatonError, errorResponse } from "../errors.ts";
import type { Log } from "../observe/log.ts";

/** An app whose unknown paths are 404 and whose thrown errors are answers, as JSON. */
export function createApp(log: Log): Hono {
  const app = new Hono();
  app.notFound(() => errorResponse(new BatonError("not_found", "there is nothing at this path")));
  app.onError((error, context) => {
    if (!(error instanceof BatonError)) {
      log.error("handler_failed", { method: context.req.method, path: context.req.path, error });
    }
    return errorResponse(error);
  });
  return app;
}

/** Call once, after all routes: any other method on a known path is 405 with the right ones. */
export function refuseOtherMethods(app: Hono): void {
  const methods = new Map<string, Set<string>>();
  for (const { path, method } of app.routes) {
    if (method === "ALL") continue;
    const known = methods.get(path) ?? new Set();
    known.add(method);
    if (method === "GET") known.add("HEAD");
    methods.set(path, known);
  }
  for (const [path, known] of methods) {
    const allow = [...known].sort().join(", ");
    app.all(path, () => {
      const error = new BatonError("method_not_allowed", `only ${allow} is answered here`);
      const response = errorResponse(error);
      response.headers.set("allow", allow);
      return response;
    });
  }
}
