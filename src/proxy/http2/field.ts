/**
 * One field of a header section, judged once: entries of the compression tables are reused by many
 * messages.
 */

import { bit, CONNECTION, isFieldByte, KEEP_ALIVE, knownNameOf } from "../head.ts";
import { PROXY_CONNECTION, TE, TRANSFER_ENCODING, UPGRADE } from "../head.ts";

// What a field is to whoever reads the section.
export const MALFORMED = 0;
export const METHOD = 1;
export const SCHEME = 2;
export const AUTHORITY = 3;
export const PATH = 4;
export const STATUS = 5;
export const REGULAR = 6;
export const COOKIE = 7;

const PSEUDO: ReadonlyMap<string, number> = new Map([
  [":method", METHOD],
  [":scheme", SCHEME],
  [":authority", AUTHORITY],
  [":path", PATH],
  [":status", STATUS],
]);

/** Fields that belong to one HTTP/1.1 connection (RFC 9113 section 8.2.2). */
const FORBIDDEN = bit(CONNECTION) | bit(KEEP_ALIVE) | bit(PROXY_CONNECTION) |
  bit(TRANSFER_ENCODING) | bit(UPGRADE);

/** What RFC 7541 section 4.1 counts for a field besides its text. */
export const FIELD_OVERHEAD_BYTES = 32;

const COLON = 0x3a;
/** Tokens without capitals (RFC 9113 section 8.2.1). */
const NAME_BYTE = new Uint8Array(256);
for (const char of "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz") {
  NAME_BYTE[char.charCodeAt(0)] = 1;
}

export class Field {
  readonly name: string;
  readonly value: string;
  /** One of the constants above. */
  readonly kind: number;
  /** The name's number in head.ts, or 0. */
  readonly known: number;
  /** As a header line with its CRLF. */
  readonly line: string;
  /** What it counts for in a table or a list, in bytes. */
  readonly size: number;

  /** `isValid`: name and value have only bytes that they may have. */
  constructor(name: string, value: string, isValid: boolean) {
    this.name = name;
    this.value = value;
    this.size = name.length + value.length + FIELD_OVERHEAD_BYTES;
    this.known = 0;
    this.line = "";
    this.kind = MALFORMED;
    if (!isValid) return;
    if (name.charCodeAt(0) === COLON) {
      this.kind = PSEUDO.get(name) ?? MALFORMED;
      return;
    }
    const known = knownNameOf(name);
    this.known = known;
    this.line = `${name}: ${value}\r\n`;
    if (known === 0) this.kind = name === "cookie" ? COOKIE : REGULAR;
    else if (known === TE) this.kind = value.toLowerCase() === "trailers" ? REGULAR : MALFORMED;
    else this.kind = (FORBIDDEN & bit(known)) === 0 ? REGULAR : MALFORMED;
  }
}

/** Whether bytes are a field name of HTTP/2, pseudo fields included. */
export function isFieldName(bytes: Uint8Array, from: number, to: number): boolean {
  let at = bytes[from] === COLON ? from + 1 : from;
  if (at >= to) return false;
  for (; at < to; at++) if (NAME_BYTE[bytes[at] as number] !== 1) return false;
  return true;
}

/** Whether bytes are a field value: no control bytes, no space around it (RFC 9113 section 8.2.1). */
export function isValue(bytes: Uint8Array, from: number, to: number): boolean {
  if (from === to) return true;
  if (isSpace(bytes[from] as number) || isSpace(bytes[to - 1] as number)) return false;
  for (let at = from; at < to; at++) if (!isFieldByte(bytes[at] as number)) return false;
  return true;
}

function isSpace(byte: number): boolean {
  return byte === 0x20 || byte === 0x09;
}
