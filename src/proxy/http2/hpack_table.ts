/** The tables that header compression refers to (RFC 7541 section 2.3). */

import { Field } from "./field.ts";

/** Names and values of the static table, from index 1 (appendix A). */
export const STATIC_FIELDS: readonly (readonly [name: string, value: string])[] = [
  [":authority", ""],
  [":method", "GET"],
  [":method", "POST"],
  [":path", "/"],
  [":path", "/index.html"],
  [":scheme", "http"],
  [":scheme", "https"],
  [":status", "200"],
  [":status", "204"],
  [":status", "206"],
  [":status", "304"],
  [":status", "400"],
  [":status", "404"],
  [":status", "500"],
  ["accept-charset", ""],
  ["accept-encoding", "gzip, deflate"],
  ["accept-language", ""],
  ["accept-ranges", ""],
  ["accept", ""],
  ["access-control-allow-origin", ""],
  ["age", ""],
  ["allow", ""],
  ["authorization", ""],
  ["cache-control", ""],
  ["content-disposition", ""],
  ["content-encoding", ""],
  ["content-language", ""],
  ["content-length", ""],
  ["content-location", ""],
  ["content-range", ""],
  ["content-type", ""],
  ["cookie", ""],
  ["date", ""],
  ["etag", ""],
  ["expect", ""],
  ["expires", ""],
  ["from", ""],
  ["host", ""],
  ["if-match", ""],
  ["if-modified-since", ""],
  ["if-none-match", ""],
  ["if-range", ""],
  ["if-unmodified-since", ""],
  ["last-modified", ""],
  ["link", ""],
  ["location", ""],
  ["max-forwards", ""],
  ["proxy-authenticate", ""],
  ["proxy-authorization", ""],
  ["range", ""],
  ["referer", ""],
  ["refresh", ""],
  ["retry-after", ""],
  ["server", ""],
  ["set-cookie", ""],
  ["strict-transport-security", ""],
  ["transfer-encoding", ""],
  ["user-agent", ""],
  ["vary", ""],
  ["via", ""],
  ["www-authenticate", ""],
];

export const STATIC_COUNT: number = STATIC_FIELDS.length;

/** The first index of the static table that has a name; 0 if none has. */
export function staticIndexOf(name: string): number {
  return STATIC_NAMES.get(name) ?? 0;
}

const STATIC_NAMES = new Map<string, number>();
STATIC_FIELDS.forEach(([name], at) => {
  if (!STATIC_NAMES.has(name)) STATIC_NAMES.set(name, at + 1);
});

const STATIC: readonly Field[] = STATIC_FIELDS.map(([name, value]) => new Field(name, value, true));

/** Both sides' default (RFC 9113 section 6.5.2: SETTINGS_HEADER_TABLE_SIZE). */
export const DEFAULT_TABLE_BYTES = 4096;

/** The static fields and those that the other side has put into its dynamic table. */
export class FieldTable {
  readonly #allowedBytes: number;
  #mostBytes: number;
  /** The newest last; what was evicted is cut off the front now and then. */
  #entries: Field[] = [];
  #evicted = 0;
  #bytes = 0;

  /** `allowedBytes`: what we have told the other side. */
  constructor(allowedBytes: number = DEFAULT_TABLE_BYTES) {
    this.#allowedBytes = allowedBytes;
    this.#mostBytes = allowedBytes;
  }

  /** Sum of the sizes of the dynamic entries. */
  get bytes(): number {
    return this.#bytes;
  }

  /** Dynamic entries, the newest first. */
  entries(): Field[] {
    return this.#entries.slice(this.#evicted).reverse();
  }

  get(index: number): Field | undefined {
    if (index <= STATIC_COUNT) return STATIC[index - 1];
    const at = this.#entries.length - (index - STATIC_COUNT);
    return at < this.#evicted ? undefined : this.#entries[at];
  }

  /** One larger than the table empties it (section 4.4). */
  add(field: Field): void {
    this.#evictTo(this.#mostBytes - field.size);
    if (field.size > this.#mostBytes) return;
    this.#entries.push(field);
    this.#bytes += field.size;
  }

  /** The other side changes the size; false when it is more than we allow (section 6.3). */
  resize(mostBytes: number): boolean {
    if (mostBytes > this.#allowedBytes) return false;
    this.#mostBytes = mostBytes;
    this.#evictTo(mostBytes);
    return true;
  }

  #evictTo(bytes: number): void {
    while (this.#bytes > bytes && this.#evicted < this.#entries.length) {
      this.#bytes -= (this.#entries[this.#evicted] as Field).size;
      this.#evicted += 1;
    }
    if (this.#evicted < 64 || this.#evicted * 2 < this.#entries.length) return;
    this.#entries = this.#entries.slice(this.#evicted);
    this.#evicted = 0;
  }
}
