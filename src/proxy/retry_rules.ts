/** What may be tried again, and when: the same towards every target. */

/** Before the first, second and every further try to connect. */
export const CONNECT_PAUSES_MS = [0, 25, 100] as const;

/** Methods that may be sent again when nothing tells whether the first time counted (RFC 9110 9.2.2). */
export const IDEMPOTENT: ReadonlySet<string> = new Set([
  "GET",
  "HEAD",
  "PUT",
  "DELETE",
  "OPTIONS",
  "PROPFIND",
  "REPORT",
]);
