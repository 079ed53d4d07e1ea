/**
 * Bearer tokens, compared in a time that tells nothing about them.
 */

import type { MiddlewareHandler } from "hono";
import { BatonError, errorResponse } from "../errors.ts";

/**
 * True when both texts are equal. Digests are compared and not the texts, so neither the length nor
 * the first difference shows in the time it takes.
 */
export async function sameSecret(given: string, expected: string): Promise<boolean> {
  const [a, b] = await Promise.all([digest(given), digest(expected)]);
  let difference = 0;
  for (let index = 0; index < a.length; index += 1) difference |= (a[index] ?? 0) ^ (b[index] ?? 0);
  return difference === 0;
}

async function digest(text: string): Promise<Uint8Array> {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text)));
}

/**
 * Lets through requests with `authorization: Bearer <token>`. `readToken` is asked each time, so that
 * a rotated secret is taken at once; if it throws, nobody gets in.
 */
export function requireToken(readToken: () => Promise<string>): MiddlewareHandler {
  return async (context, next) => {
    const given = /^Bearer +(\S+) *$/i.exec(context.req.header("authorization") ?? "")?.[1];
    if (given !== undefined && await sameSecret(given, await readToken())) return await next();
    const response = errorResponse(
      new BatonError("unauthorized", "this needs an `authorization: Bearer` header"),
    );
    response.headers.set("www-authenticate", 'Bearer realm="baton"');
    return response;
  };
}
