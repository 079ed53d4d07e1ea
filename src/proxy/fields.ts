/**
 * Header sections between HTTP/1.1 lines and HTTP/2 fields (RFC 9113 section 8.2).
 */

import { isFieldValue, isToken } from "./head.ts";

/** Fields that belong to one HTTP/1.1 connection; HTTP/2 has no place for them (section 8.2.2). */
const CONNECTION_SPECIFIC = new Set([
  "connection",
  "keep-alive",
  "proxy-connection",
  "transfer-encoding",
  "upgrade",
  "http2-settings",
  "te",
  "trailer",
]);

/** `Name: value` lines, each with CRLF, as name, value, ...; names in lower case. */
export function fieldsOf(lines: string): string[] {
  const fields: string[] = [];
  for (let from = 0; from < lines.length;) {
    const end = lines.indexOf("\r\n", from);
    const line = end < 0 ? lines.slice(from) : lines.slice(from, end);
    from = end < 0 ? lines.length : end + 2;
    const colon = line.indexOf(":");
    if (colon <= 0) continue;
    const name = line.slice(0, colon).toLowerCase();
    if (!CONNECTION_SPECIFIC.has(name)) fields.push(name, line.slice(colon + 1).trim());
  }
  return fields;
}

/** Name, value, ... as lines, each with CRLF; what cannot stand on a line is left out. */
export function linesOf(fields: readonly string[]): string {
  let lines = "";
  for (let at = 0; at + 1 < fields.length; at += 2) {
    const name = fields[at] as string;
    const value = fields[at + 1] as string;
    if (CONNECTION_SPECIFIC.has(name) || !isToken(name) || !isFieldValue(value)) continue;
    lines += `${name}: ${value}\r\n`;
  }
  return lines;
}
