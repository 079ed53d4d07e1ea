/**
 * What a header section of HTTP/2 must be to be a request, an answer or trailers (RFC 9113 sections
 * 8.1 to 8.3). Undefined is the answer for what is malformed.
 */

import { bit, CONTENT_LENGTH, Head, HOST, parseLength } from "../head.ts";
import {
  AUTHORITY,
  COOKIE,
  type Field,
  MALFORMED,
  METHOD,
  PATH,
  REGULAR,
  SCHEME,
  STATUS,
} from "./field.ts";
import type { RequestHead } from "./handlers.ts";

/** Reads a request. The Head is its own. */
export function readRequest(
  fields: readonly Field[],
  isComplete: boolean,
): RequestHead | undefined {
  let method: string | undefined;
  let path: string | undefined;
  let scheme: string | undefined;
  let authority: string | undefined;
  let at = 0;
  for (; at < fields.length; at++) {
    const { kind, value } = fields[at] as Field;
    if (kind === METHOD) {
      if (method !== undefined) return undefined;
      method = value;
    } else if (kind === PATH) {
      if (path !== undefined) return undefined;
      path = value;
    } else if (kind === SCHEME) {
      if (scheme !== undefined) return undefined;
      scheme = value;
    } else if (kind === AUTHORITY) {
      if (authority !== undefined) return undefined;
      authority = value;
    } else break;
  }
  if (method === undefined || method === "") return undefined;
  // CONNECT has an authority and nothing else (section 8.5), everything else scheme and path.
  if (method === "CONNECT") {
    if (path !== undefined || scheme !== undefined || authority === undefined) return undefined;
  } else if (path === undefined || path === "" || scheme === undefined) return undefined;
  const head = new Head();
  if (authority !== undefined) head.append("host", authority, HOST, `host: ${authority}\r\n`);
  if (!readRest(fields, at, head)) return undefined;
  const length = lengthOf(head);
  if (length === undefined || (isComplete && length > 0)) return undefined;
  return { method, path: path ?? "", head, length, isComplete };
}

/** Puts the fields that are no pseudo fields into a head; false if one is malformed. */
function readRest(fields: readonly Field[], from: number, head: Head): boolean {
  let cookie: string | undefined;
  for (let at = from; at < fields.length; at++) {
    const field = fields[at] as Field;
    const { kind, value } = field;
    if (kind === REGULAR) {
      // The same host as in :authority may be told again (section 8.3.1).
      const isAgain = field.known === HOST && head.has(HOST) &&
        head.first(HOST)?.toLowerCase() === value.toLowerCase();
      if (!isAgain) head.append(field.name, value, field.known, field.line);
    } else if (kind === COOKIE) {
      // Crumbs of one header line (section 8.2.3).
      cookie = cookie === undefined ? value : `${cookie}; ${value}`;
    } else return false;
  }
  if (cookie !== undefined) head.append("cookie", cookie, 0, `cookie: ${cookie}\r\n`);
  return true;
}

/** The stated length, -1 without one, undefined for one that cannot be relied on. */
function lengthOf(head: Head): number | undefined {
  if (!head.has(CONTENT_LENGTH)) return -1;
  if ((head.repeated & bit(CONTENT_LENGTH)) !== 0) return undefined;
  const length = parseLength(head.first(CONTENT_LENGTH) ?? "");
  return length < 0 ? undefined : length;
}

export interface AnswerHead {
  readonly status: number;
  /** As in RequestHead. */
  readonly length: number;
}

/** Reads an answer's section into `head`, which is cleared first. */
export function readAnswer(fields: readonly Field[], head: Head): AnswerHead | undefined {
  const [first] = fields;
  if (first?.kind !== STATUS || !/^[1-9]\d\d$/.test(first.value)) return undefined;
  head.clear();
  if (!readRest(fields, 1, head)) return undefined;
  const length = lengthOf(head);
  return length === undefined ? undefined : { status: Number(first.value), length };
}

/** Reads trailers as lines. */
export function readTrailers(fields: readonly Field[]): string | undefined {
  let lines = "";
  for (const { kind, name, value, line } of fields) {
    if (kind === MALFORMED || (kind !== REGULAR && kind !== COOKIE)) return undefined;
    lines += line === "" ? `${name}: ${value}\r\n` : line;
  }
  return lines;
}
