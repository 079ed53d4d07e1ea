/**
 * Writes compressed header sections (RFC 7541), from header lines as the rest of the proxy has them.
 *
 * A line that was sent before, byte for byte, is one look-up and one byte or two. A field enters the
 * dynamic table when its value is the one that it had the last time: values that change with every
 * message never do, and push nothing out. Texts are not Huffman coded: that would cost more time than
 * its quarter of the bytes is worth. Secrets are marked as never to be put into a table, here and by
 * whoever passes them on (section 7.1.3).
 */

import { FIELD_OVERHEAD_BYTES } from "./field.ts";
import type { FrameWriter } from "./frame_writer.ts";
import { DEFAULT_TABLE_BYTES, STATIC_COUNT, STATIC_FIELDS, staticIndexOf } from "./hpack_table.ts";

/** Never in a table, of whatever side. */
const SECRET = new Set(["authorization", "proxy-authorization", "cookie", "set-cookie"]);
/** Fields of one HTTP/1.1 connection, which HTTP/2 has no place for (RFC 9113 section 8.2.2). */
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
/** Larger fields would push out too much. */
const MOST_ENTRY_BYTES = 512;
/** Spellings of names that are remembered: other sides may invent any number of them. */
const MOST_NAMES = 128;

const AS_NEW_ENTRY = 0x40;
const AS_PLAIN = 0x00;
const AS_SECRET = 0x10;

/** Statuses that the static table has as they are. */
const STATUS_INDEX = new Map<number, number>();
STATIC_FIELDS.forEach(([name, value], at) => {
  if (name === ":status") STATUS_INDEX.set(Number(value), at + 1);
});
const STATUS = staticIndexOf(":status");

interface Name {
  /** Lower case; "" for a field that does not cross. */
  readonly name: string;
  readonly staticIndex: number;
  readonly isSecret: boolean;
  lastValue: string | undefined;
}

interface Entry {
  readonly line: string;
  readonly size: number;
}

export class HpackEncoder {
  /** The other side's limit; may be less than what it told, never more than the default. */
  #mostBytes = DEFAULT_TABLE_BYTES;
  /** The smallest size since the last section, if the size was changed. */
  #smallest: number | undefined;
  #bytes = 0;
  /** The oldest first; numbers of insertion begin at `#evicted`. */
  #entries: Entry[] = [];
  #evicted = 0;
  /** Lines in the table, with their number of insertion. */
  readonly #byLine = new Map<string, number>();
  readonly #names = new Map<string, Name>();

  /** The other side's SETTINGS_HEADER_TABLE_SIZE. */
  resize(mostBytes: number): void {
    const most = Math.min(mostBytes, DEFAULT_TABLE_BYTES);
    if (most === this.#mostBytes) return;
    this.#mostBytes = most;
    this.#smallest = Math.min(this.#smallest ?? most, most);
    this.#evictTo(most);
  }

  /** Has to be called first in each section: tells what changed about the table (section 4.2). */
  begin(out: FrameWriter): void {
    const smallest = this.#smallest;
    if (smallest === undefined) return;
    this.#smallest = undefined;
    if (smallest < this.#mostBytes) this.#number(out, 0x20, 0x1f, smallest);
    this.#number(out, 0x20, 0x1f, this.#mostBytes);
  }

  status(out: FrameWriter, status: number): void {
    const index = STATUS_INDEX.get(status);
    if (index !== undefined) return out.byte(0x80 | index);
    this.#number(out, AS_PLAIN, 0x0f, STATUS);
    this.#text(out, String(status));
  }

  /** A pseudo field whose value is not worth an entry. */
  pseudo(out: FrameWriter, name: string, value: string): void {
    const first = staticIndexOf(name);
    for (let at = first; STATIC_FIELDS[at - 1]?.[0] === name; at++) {
      if (STATIC_FIELDS[at - 1]?.[1] === value && value !== "") return out.byte(0x80 | at);
    }
    this.#number(out, AS_PLAIN, 0x0f, first);
    this.#text(out, value);
  }

  /** `Name: value` lines, each with CRLF, which are valid; names may have capitals. */
  lines(out: FrameWriter, text: string): void {
    for (let from = 0; from < text.length;) {
      const found = text.indexOf("\r\n", from);
      const end = found < 0 ? text.length : found;
      this.line(out, text.slice(from, end));
      from = end + 2;
    }
  }

  /** One such line, without its CRLF. */
  line(out: FrameWriter, line: string): void {
    const number = this.#byLine.get(line);
    if (number !== undefined) return this.#number(out, 0x80, 0x7f, this.#indexOf(number));
    const colon = line.indexOf(":", 1);
    if (colon < 0) return;
    const name = this.#nameOf(line.slice(0, colon));
    if (name.name === "") return;
    const value = line.slice(colon + 1).trim();
    const size = name.name.length + value.length + FIELD_OVERHEAD_BYTES;
    let how = AS_PLAIN;
    if (name.isSecret) how = AS_SECRET;
    else if (name.lastValue === value && size <= MOST_ENTRY_BYTES && size <= this.#mostBytes) {
      how = AS_NEW_ENTRY;
    } else name.lastValue = value;
    this.#number(out, how, how === AS_NEW_ENTRY ? 0x3f : 0x0f, name.staticIndex);
    if (name.staticIndex === 0) this.#text(out, name.name);
    this.#text(out, value);
    if (how === AS_NEW_ENTRY) this.#add(line, size);
  }

  /** The one connection-specific field that HTTP/2 has (RFC 9113 section 8.2.2). */
  teTrailers(out: FrameWriter): void {
    out.byte(AS_PLAIN);
    this.#text(out, "te");
    this.#text(out, "trailers");
  }

  #nameOf(spelling: string): Name {
    const known = this.#names.get(spelling);
    if (known !== undefined) return known;
    const lower = spelling.toLowerCase();
    const name: Name = {
      name: CONNECTION_SPECIFIC.has(lower) ? "" : lower,
      staticIndex: staticIndexOf(lower),
      isSecret: SECRET.has(lower),
      lastValue: undefined,
    };
    if (this.#names.size < MOST_NAMES) this.#names.set(spelling, name);
    return name;
  }

  // -------------------------------------------------------------------------------- the table

  #indexOf(number: number): number {
    return STATIC_COUNT + this.#evicted + this.#entries.length - number;
  }

  #add(line: string, size: number): void {
    this.#evictTo(this.#mostBytes - size);
    this.#byLine.set(line, this.#evicted + this.#entries.length);
    this.#entries.push({ line, size });
    this.#bytes += size;
  }

  #evictTo(bytes: number): void {
    let count = 0;
    while (this.#bytes > bytes && count < this.#entries.length) {
      const { line, size } = this.#entries[count] as Entry;
      this.#byLine.delete(line);
      this.#bytes -= size;
      count += 1;
    }
    if (count === 0) return;
    this.#entries.splice(0, count);
    this.#evicted += count;
  }

  // --------------------------------------------------------------------------------- the bytes

  /** A number with a prefix (section 5.1); `marks` are the bits before the prefix. */
  #number(out: FrameWriter, marks: number, prefix: number, value: number): void {
    if (value < prefix) return out.byte(marks | value);
    out.byte(marks | prefix);
    let rest = value - prefix;
    for (; rest >= 0x80; rest >>>= 7) out.byte(0x80 | rest & 0x7f);
    out.byte(rest);
  }

  #text(out: FrameWriter, text: string): void {
    this.#number(out, 0x00, 0x7f, text.length);
    out.latin1(text);
  }
}
