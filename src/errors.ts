/**
 * The one table from error code to HTTP status.
 *
 * Every answer that Baton itself makes up (as opposed to one that it relays) is one of these codes,
 * as JSON `{"error":{"code","message",...}}`. Before headers are sent an error becomes such an
 * answer; afterwards the transfer is destroyed and nothing is appended.
 */

/** code -> status. Add a row here, never a status at the place where something fails. */
export const ERROR_STATUS = {
  // what the client sent
  bad_request: 400,
  version_required: 400,
  unauthorized: 401,
  forbidden: 403,
  not_found: 404,
  unknown_version: 404,
  unknown_model: 404,
  method_not_allowed: 405,
  request_timeout: 408,
  conflict: 409,
  body_too_large: 413,
  target_too_long: 414,
  too_many_requests: 429,
  headers_too_large: 431,
  client_closed: 499,
  // what is behind us
  upstream_connect_failed: 502,
  upstream_reset: 502,
  upstream_bad_response: 502,
  no_worker: 503,
  not_ready: 503,
  draining: 503,
  hold_timeout: 503,
  overloaded: 503,
  upstream_timeout: 504,
  loop_detected: 508,
  // ourselves
  internal: 500,
  not_implemented: 501,
  version_not_supported: 505,
} as const satisfies Record<string, number>;

export type ErrorCode = keyof typeof ERROR_STATUS;

/** An error that has an answer. `detail` fields are printed beside code and message. */
export class BatonError extends Error {
  override readonly name = "BatonError";
  readonly code: ErrorCode;
  readonly detail: Readonly<Record<string, unknown>>;
  /** Seconds for a `Retry-After` header. */
  readonly retryAfterS?: number;

  constructor(
    code: ErrorCode,
    message: string,
    options: { detail?: Record<string, unknown>; retryAfterS?: number; cause?: unknown } = {},
  ) {
    super(message, { cause: options.cause });
    this.code = code;
    this.detail = options.detail ?? {};
    if (options.retryAfterS !== undefined) this.retryAfterS = options.retryAfterS;
  }

  get status(): number {
    return ERROR_STATUS[this.code];
  }
}

/** The answer for any thrown value; what is not a BatonError becomes a detail-free 500. */
export function errorResponse(error: unknown): Response {
  const known = error instanceof BatonError ? error : new BatonError("internal", "internal error");
  const headers = new Headers({
    "content-type": "application/json",
    "cache-control": "no-store",
  });
  if (known.retryAfterS !== undefined) headers.set("retry-after", String(known.retryAfterS));
  return new Response(
    JSON.stringify({ error: { code: known.code, message: known.message, ...known.detail } }) + "\n",
    { status: known.status, headers },
  );
}

/** The message of any thrown value. */
export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
