/**
 * Keeps web pages of other sites off a listener that trusts everyone on this machine.
 *
 * A page can make a browser send a plain POST to 127.0.0.1, and a name that resolves there makes the
 * page "same-origin" (DNS rebinding). Both are told by headers that scripts cannot change.
 */

import type { MiddlewareHandler } from "hono";
import { BatonError, errorResponse } from "../errors.ts";

const LOCAL_HOST = /^(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d+)?$/i;

/** Refuses requests that a page of another origin caused; `localOnly` also foreign host names. */
export function browserGuard(options: { readonly localOnly: boolean }): MiddlewareHandler {
  return async (context, next) => {
    const host = context.req.header("host") ?? "";
    const origin = context.req.header("origin");
    const foreign = origin !== undefined && hostOf(origin) !== host.toLowerCase();
    if (foreign || context.req.header("sec-fetch-site") === "cross-site") {
      return errorResponse(new BatonError("forbidden", "requests from other origins are refused"));
    }
    if (options.localOnly && host !== "" && !LOCAL_HOST.test(host)) {
      return errorResponse(
        new BatonError("forbidden", "without admin.token only loopback host names are answered"),
      );
    }
    return await next();
  };
}

function hostOf(origin: string): string {
  return URL.canParse(origin) ? new URL(origin).host.toLowerCase() : "null";
}
