/**
 * The lifecycle as Hono middleware.
 */

import type { MiddlewareHandler } from "hono";
import { BatonError, errorResponse } from "../errors.ts";
import { countedBody } from "./counted_body.ts";
import type { Lifecycle } from "./lifecycle.ts";

export function lifecycleMiddleware(lifecycle: Lifecycle): MiddlewareHandler {
  return async (context, next) => {
    const release = lifecycle.admit();
    if (release === undefined) return refusal(lifecycle);
    try {
      await next();
      if (context.req.raw.method === "HEAD") {
        // The body of an answer to HEAD is never read, so its end would never come.
        await context.res.body?.cancel();
        release();
        return;
      }
      const counted = countedBody(context.res, release, lifecycle.forced);
      // Hono merges the headers of the response it has into one that replaces it: clear it first.
      context.res = undefined;
      context.res = counted;
    } catch (error) {
      release();
      throw error;
    }
  };
}

/** The answer to a request that came before the process serves or after it began to drain. */
export function refusal(lifecycle: Lifecycle): Response {
  return errorResponse(
    lifecycle.draining
      ? new BatonError("draining", "this process is draining", { retryAfterS: 1 })
      : new BatonError("not_ready", "this process is not serving yet", { retryAfterS: 1 }),
  );
}
