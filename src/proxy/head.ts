/**
 * A header section, kept as one latin1 text and the places of its lines in it.
 *
 * No object per header: five numbers a line, reused for the next message of the same connection.
 * The scanner accepts only what every HTTP/1.1 parser reads alike (RFC 9112 sections 3 to 5 without
 * their liberties); whatever it does not accept is the business of a full parser, or an error.
 *
 * Over 400 lines with the scanner, since it and the head share the layout of those numbers.
 */

/** Names that mean something to a proxy. 0 is every other name. */
export const CONNECTION = 1;
export const KEEP_ALIVE = 2;
export const PROXY_CONNECTION = 3;
export const TRANSFER_ENCODING = 4;
export const UPGRADE = 5;
export const TE = 6;
export const TRAILER = 7;
export const PROXY_AUTHENTICATE = 8;
export const PROXY_AUTHORIZATION = 9;
export const HTTP2_SETTINGS = 10;
export const HOST = 11;
export const CONTENT_LENGTH = 12;
export const EXPECT = 13;
export const X_FORWARDED_FOR = 14;
export const X_FORWARDED_PROTO = 15;
export const X_FORWARDED_HOST = 16;
export const X_FORWARDED_PORT = 17;
export const FORWARDED = 18;
export const VIA = 19;
export const X_REQUEST_ID = 20;
export const DATE = 21;
export const X_BATON_GENERATION = 22;

const NAMES: readonly string[] = [
  "",
  "connection",
  "keep-alive",
  "proxy-connection",
  "transfer-encoding",
  "upgrade",
  "te",
  "trailer",
  "proxy-authenticate",
  "proxy-authorization",
  "http2-settings",
  "host",
  "content-length",
  "expect",
  "x-forwarded-for",
  "x-forwarded-proto",
  "x-forwarded-host",
  "x-forwarded-port",
  "forwarded",
  "via",
  "x-request-id",
  "date",
  "x-baton-generation",
];

/** The bit of a name in `Head.seen`. */
export function bit(name: number): number {
  return 1 << name;
}

/** Header fields that belong to one connection and never cross (RFC 9110 section 7.6.1). */
export const HOP_BY_HOP: number = bit(CONNECTION) | bit(KEEP_ALIVE) | bit(PROXY_CONNECTION) |
  bit(TRANSFER_ENCODING) | bit(UPGRADE) | bit(TE) | bit(TRAILER) | bit(PROXY_AUTHENTICATE) |
  bit(PROXY_AUTHORIZATION) | bit(HTTP2_SETTINGS);

/** Fields that a `Connection` header cannot take away: they frame or address the message. */
const PROTECTED = bit(HOST) | bit(CONTENT_LENGTH);

const LINE = 5; // name start, name end, value start, value end, name
const TOKEN_CHAR = new Uint8Array(256);
const VALUE_CHAR = new Uint8Array(256);
const TARGET_CHAR = new Uint8Array(256);
for (const char of "!#$%&'*+-.^_`|~0123456789") TOKEN_CHAR[char.charCodeAt(0)] = 1;
for (let byte = 0x41; byte <= 0x5a; byte++) TOKEN_CHAR[byte] = TOKEN_CHAR[byte + 32] = 1;
for (let byte = 0x20; byte < 256; byte++) if (byte !== 0x7f) VALUE_CHAR[byte] = 1;
VALUE_CHAR[0x09] = 1;
for (let byte = 0x21; byte < 0x7f; byte++) if (byte !== 0x23) TARGET_CHAR[byte] = 1;

const CR = 13;
const LF = 10;
const SPACE = 0x20;
const TAB = 9;
const COLON = 0x3a;
const SLASH = 0x2f;

/** Candidates by length and three letters: one look-up a line, then the name is compared. */
const CANDIDATE = new Uint8Array(1024);
function slot(length: number, first: number, last: number, beforeLast: number): number {
  return (length * 37 + (first | 0x20) * 7 + (last | 0x20) + (beforeLast | 0x20) * 67) & 1023;
}
const NAME_BYTES: readonly Uint8Array[] = NAMES.map((name) => new TextEncoder().encode(name));
for (let id = 1; id < NAMES.length; id++) {
  const name = NAMES[id] as string;
  const [last, beforeLast] = [name.charCodeAt(name.length - 1), name.charCodeAt(name.length - 2)];
  const at = slot(name.length, name.charCodeAt(0), last, beforeLast);
  if (CANDIDATE[at] !== 0) throw new Error(`header names collide: ${name}`);
  CANDIDATE[at] = id;
}

/** True when every character may stand in a token (RFC 9110 section 5.6.2). */
export function isToken(text: string): boolean {
  if (text.length === 0) return false;
  for (let at = 0; at < text.length; at++) if (TOKEN_CHAR[text.charCodeAt(at)] !== 1) return false;
  return true;
}

/** True when the text may stand in a field value (no control bytes): rule for all that we stamp. */
export function isFieldValue(text: string): boolean {
  for (let at = 0; at < text.length; at++) {
    const code = text.charCodeAt(at);
    if (code > 255 || VALUE_CHAR[code] !== 1) return false;
  }
  return true;
}

/** The same of one byte. */
export function isFieldByte(byte: number): boolean {
  return VALUE_CHAR[byte] === 1;
}

const KNOWN: ReadonlyMap<string, number> = new Map(
  NAMES.slice(1).map((name, index) => [name, index + 1]),
);

/** The number of a known name (lower case), or 0. */
export function knownNameOf(name: string): number {
  return KNOWN.get(name) ?? 0;
}

/**
 * The trailer lines that may cross. What means something to a proxy frames, addresses or stamps a
 * message, which a trailer comes too late for (RFC 9110 section 6.5.1).
 */
export function crossingTrailers(lines: string): string {
  let kept = "";
  for (let from = 0; from < lines.length;) {
    const end = lines.indexOf("\r\n", from) + 2;
    const name = lines.slice(from, lines.indexOf(":", from)).toLowerCase();
    if (knownNameOf(name) === 0) kept += lines.slice(from, end);
    from = end;
  }
  return kept;
}

/** Turns bytes into text, one char a byte. Handed in by the runtime, which has the fast way. */
export type Latin1 = (bytes: Uint8Array, start: number, end: number) => string;

/** What a scan answers when it does not answer with the offset after the section. */
export const INCOMPLETE = -1;
export const UNUSUAL = -2;

export class Head {
  /** The lines, each with its CRLF, without the empty line that ends the section. */
  text = "";
  count = 0;
  /** Bit sets of the known names: seen at all, seen more than once. */
  seen = 0;
  repeated = 0;
  #spans = new Int32Array(LINE * 16);

  clear(): void {
    this.text = "";
    this.count = 0;
    this.seen = 0;
    this.repeated = 0;
  }

  name(line: number): string {
    return this.text.slice(this.#spans[line * LINE], this.#spans[line * LINE + 1]);
  }

  value(line: number): string {
    return this.text.slice(this.#spans[line * LINE + 2], this.#spans[line * LINE + 3]);
  }

  /** Which known name the line has, or 0. */
  known(line: number): number {
    return this.#spans[line * LINE + 4] as number;
  }

  has(name: number): boolean {
    return (this.seen & (1 << name)) !== 0;
  }

  /** The value of the first line with a known name. */
  first(name: number): string | undefined {
    if ((this.seen & (1 << name)) === 0) return undefined;
    for (let line = 0; line < this.count; line++) {
      if (this.#spans[line * LINE + 4] === name) return this.value(line);
    }
    return undefined;
  }

  /** All lines with a known name, joined as one list (RFC 9110 section 5.3). */
  joined(name: number): string | undefined {
    if ((this.seen & (1 << name)) === 0) return undefined;
    if ((this.repeated & (1 << name)) === 0) return this.first(name);
    const values: string[] = [];
    for (let line = 0; line < this.count; line++) {
      if (this.#spans[line * LINE + 4] === name) values.push(this.value(line));
    }
    return values.join(", ");
  }

  /** The value of the first line whose name is `name` (lower case). */
  find(name: string): string | undefined {
    for (let line = 0; line < this.count; line++) {
      const start = this.#spans[line * LINE] as number;
      const end = this.#spans[line * LINE + 1] as number;
      if (end - start === name.length && this.text.slice(start, end).toLowerCase() === name) {
        return this.value(line);
      }
    }
    return undefined;
  }

  /** Name, value, name, value, ... as they came. */
  lines(): string[] {
    const lines: string[] = [];
    for (let line = 0; line < this.count; line++) lines.push(this.name(line), this.value(line));
    return lines;
  }

  /**
   * The lines that may cross to the other side: without the known names in `drop` and without those
   * that the `Connection` lines name. One text, cut out of the whole.
   */
  crossing(drop: number): string {
    const named = this.has(CONNECTION) ? this.#namedByConnection() : undefined;
    if ((this.seen & drop) === 0 && named === undefined) return this.text;
    let kept = "";
    let from = 0;
    for (let line = 0; line < this.count; line++) {
      const start = this.#spans[line * LINE] as number;
      const known = this.#spans[line * LINE + 4] as number;
      const goes = (drop & (1 << known) & ~1) !== 0 ||
        (named !== undefined && (PROTECTED & (1 << known)) === 0 &&
          named.includes(this.name(line).toLowerCase()));
      if (!goes) continue;
      if (start > from) kept += this.text.slice(from, start);
      from = this.#lineEnd(line);
    }
    return from === 0 ? this.text : kept + this.text.slice(from);
  }

  #lineEnd(line: number): number {
    return line + 1 < this.count ? this.#spans[(line + 1) * LINE] as number : this.text.length;
  }

  /** Names in `Connection` beyond the well-known ones, lower case; undefined when there are none. */
  #namedByConnection(): string[] | undefined {
    let named: string[] | undefined;
    for (let line = 0; line < this.count; line++) {
      if (this.#spans[line * LINE + 4] !== CONNECTION) continue;
      const value = this.value(line);
      if (value === "keep-alive" || value === "close" || value === "Keep-Alive") continue;
      for (const part of value.split(",")) {
        const name = part.trim().toLowerCase();
        if (name !== "" && name !== "close" && name !== "keep-alive") (named ??= []).push(name);
      }
    }
    return named;
  }

  /**
   * Scans header lines from `from` (the byte after the start line's CRLF). Answers the offset after
   * the empty line, INCOMPLETE when the bytes end before it, or UNUSUAL when a line is not plain.
   */
  scan(bytes: Uint8Array, from: number, to: number, latin1: Latin1): number {
    this.count = 0;
    this.seen = 0;
    this.repeated = 0;
    let at = from;
    for (;;) {
      if (at + 1 >= to) return INCOMPLETE;
      if (bytes[at] === CR) {
        if (bytes[at + 1] !== LF) return UNUSUAL;
        this.text = latin1(bytes, from, at);
        return at + 2;
      }
      const nameStart = at;
      while (at < to && TOKEN_CHAR[bytes[at] as number] === 1) at += 1;
      if (at >= to) return INCOMPLETE;
      if (bytes[at] !== COLON || at === nameStart) return UNUSUAL;
      const nameEnd = at;
      at += 1;
      while (at < to && (bytes[at] === SPACE || bytes[at] === TAB)) at += 1;
      const valueStart = at;
      while (at < to && VALUE_CHAR[bytes[at] as number] === 1) at += 1;
      if (at + 1 >= to) return INCOMPLETE;
      if (bytes[at] !== CR || bytes[at + 1] !== LF) return UNUSUAL;
      let valueEnd = at;
      while (
        valueEnd > valueStart && (bytes[valueEnd - 1] === SPACE || bytes[valueEnd - 1] === TAB)
      ) {
        valueEnd -= 1;
      }
      at += 2;
      this.#add(bytes, from, nameStart, nameEnd, valueStart, valueEnd);
    }
  }

  #add(
    bytes: Uint8Array,
    from: number,
    nameStart: number,
    nameEnd: number,
    valueStart: number,
    valueEnd: number,
  ): void {
    const known = knownName(bytes, nameStart, nameEnd);
    this.#note(nameStart - from, nameEnd - from, valueStart - from, valueEnd - from, known);
  }

  /**
   * Adds a line at the end. Name and value are known to be valid, `known` is the name's number;
   * `line` is `name: value` with CRLF.
   */
  append(name: string, value: string, known: number, line: string): void {
    const start = this.text.length;
    const valueStart = start + name.length + 2;
    this.text += line;
    this.#note(start, start + name.length, valueStart, valueStart + value.length, known);
  }

  #note(
    nameStart: number,
    nameEnd: number,
    valueStart: number,
    valueEnd: number,
    known: number,
  ): void {
    if (known !== 0) {
      const mask = 1 << known;
      if ((this.seen & mask) !== 0) this.repeated |= mask;
      this.seen |= mask;
    }
    const at = this.count * LINE;
    if (at + LINE > this.#spans.length) {
      const larger = new Int32Array(this.#spans.length * 2);
      larger.set(this.#spans);
      this.#spans = larger;
    }
    const spans = this.#spans;
    spans[at] = nameStart;
    spans[at + 1] = nameEnd;
    spans[at + 2] = valueStart;
    spans[at + 3] = valueEnd;
    spans[at + 4] = known;
    this.count += 1;
  }
}

function knownName(bytes: Uint8Array, start: number, end: number): number {
  const length = end - start;
  if (length < 2) return 0;
  const candidate = CANDIDATE[
    slot(length, bytes[start] as number, bytes[end - 1] as number, bytes[end - 2] as number)
  ] as number;
  if (candidate === 0) return 0;
  const name = NAME_BYTES[candidate] as Uint8Array;
  if (name.length !== length) return 0;
  for (let at = 0; at < length; at++) {
    const byte = bytes[start + at] as number;
    const lower = byte >= 0x41 && byte <= 0x5a ? byte + 32 : byte;
    if (lower !== name[at]) return 0;
  }
  return candidate;
}

/** The start line of a request that the scanner accepted. */
export interface RequestLine {
  method: string;
  target: string;
}

/** `HTTP/1.1` CR LF. */
const VERSION_11 = new Uint8Array([0x48, 0x54, 0x54, 0x50, 0x2f, 0x31, 0x2e, 0x31, CR, LF]);

/**
 * Scans a plain request line: an upper-case method, a path of visible ASCII without `#`, and exactly
 * HTTP/1.1. Answers the offset of the first header line, INCOMPLETE or UNUSUAL.
 */
export function scanRequestLine(
  bytes: Uint8Array,
  from: number,
  to: number,
  latin1: Latin1,
  line: RequestLine,
): number {
  let at = from;
  while (at < to && (bytes[at] as number) >= 0x41 && (bytes[at] as number) <= 0x5a) at += 1;
  if (at >= to) return INCOMPLETE;
  if (bytes[at] !== SPACE || at === from) return UNUSUAL;
  const methodEnd = at;
  at += 1;
  const targetStart = at;
  while (at < to && TARGET_CHAR[bytes[at] as number] === 1) at += 1;
  if (at + 11 > to) return INCOMPLETE;
  if (bytes[at] !== SPACE || bytes[targetStart] !== SLASH) return UNUSUAL;
  for (let index = 0; index < 10; index++) {
    if (bytes[at + 1 + index] !== VERSION_11[index]) return UNUSUAL;
  }
  line.method = methodName(bytes, from, methodEnd, latin1);
  line.target = latin1(bytes, targetStart, at);
  return at + 11;
}

/** The commonest methods without making a string. */
function methodName(bytes: Uint8Array, start: number, end: number, latin1: Latin1): string {
  if (end - start === 3 && bytes[start] === 0x47 && bytes[start + 1] === 0x45) {
    if (bytes[start + 2] === 0x54) return "GET";
  }
  if (end - start === 4 && bytes[start] === 0x50 && bytes[start + 1] === 0x4f) {
    if (bytes[start + 2] === 0x53 && bytes[start + 3] === 0x54) return "POST";
  }
  return latin1(bytes, start, end);
}

/** A plain decimal length, or -1 (RFC 9110 section 8.6; at most 15 digits so that it is exact). */
export function parseLength(value: string): number {
  if (value.length === 0 || value.length > 15) return -1;
  let length = 0;
  for (let at = 0; at < value.length; at++) {
    const digit = value.charCodeAt(at) - 0x30;
    if (digit < 0 || digit > 9) return -1;
    length = length * 10 + digit;
  }
  return length;
}
