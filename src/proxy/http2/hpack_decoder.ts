/** Reads compressed header sections (RFC 7541). One for each connection: its table is their context. */

import type { Latin1 } from "../head.ts";
import { Field, isFieldName, isValue, MALFORMED } from "./field.ts";
import { FieldTable } from "./hpack_table.ts";
import { decodeHuffman, mostDecodedBytes } from "./huffman.ts";
import { ConnectionError, H2_ERRORS } from "./protocol.ts";

/** Numbers have at most this many bytes after their prefix: 28 bits, more than any frame has. */
const MOST_NUMBER_BYTES = 4;

export class HpackDecoder {
  /** The fields of the section that was read last. */
  readonly fields: Field[] = [];
  /** The list was larger than allowed: `fields` has its beginning only, the table is up to date. */
  isTooLarge = false;
  readonly table: FieldTable = new FieldTable();
  readonly #latin1: Latin1;
  #block: Uint8Array = new Uint8Array(0);
  #at = 0;
  #end = 0;
  #decoded: Uint8Array = new Uint8Array(0);
  /** The text that was read last, where it lies and how long it is. */
  #text: Uint8Array = new Uint8Array(0);
  #textFrom = 0;
  #textTo = 0;

  constructor(latin1: Latin1) {
    this.#latin1 = latin1;
  }

  /**
   * Reads `block[from..to)`, a whole header block, into `fields`. `mostBytes` is the largest list
   * (sizes as RFC 9113 section 6.5.2 counts them). Throws ConnectionError (COMPRESSION_ERROR).
   */
  decode(block: Uint8Array, from: number, to: number, mostBytes: number): void {
    this.#block = block;
    this.#at = from;
    this.#end = to;
    const { fields } = this;
    fields.length = 0;
    this.isTooLarge = false;
    let bytes = 0;
    this.#readResizes();
    while (this.#at < this.#end) {
      const field = this.#readField();
      bytes += field.size;
      if (bytes <= mostBytes) fields.push(field);
      else this.isTooLarge = true;
    }
  }

  /** Changes of the table's size come before all fields (section 4.2). */
  #readResizes(): void {
    while (this.#at < this.#end && ((this.#block[this.#at] as number) & 0xe0) === 0x20) {
      if (!this.table.resize(this.#number(0x1f))) throw broken("a table larger than allowed");
    }
  }

  #readField(): Field {
    const first = this.#block[this.#at] as number;
    if ((first & 0x80) !== 0) return this.#entry(this.#number(0x7f));
    if ((first & 0x40) !== 0) {
      const field = this.#literal(this.#number(0x3f));
      this.table.add(field);
      return field;
    }
    if ((first & 0x20) !== 0) throw broken("a change of the table's size among the fields");
    return this.#literal(this.#number(0x0f));
  }

  #entry(index: number): Field {
    const field = index === 0 ? undefined : this.table.get(index);
    if (field === undefined) throw broken(`there is no entry ${index}`);
    return field;
  }

  #literal(nameIndex: number): Field {
    let name: string;
    let isValid: boolean;
    if (nameIndex === 0) {
      this.#readText();
      isValid = isFieldName(this.#text, this.#textFrom, this.#textTo);
      name = this.#latin1(this.#text, this.#textFrom, this.#textTo);
    } else {
      const entry = this.#entry(nameIndex);
      name = entry.name;
      // Of an entry that is malformed for its value's sake the name may be fine: it is looked at again.
      isValid = entry.kind !== MALFORMED || isNameText(name);
    }
    this.#readText();
    isValid = isValid && isValue(this.#text, this.#textFrom, this.#textTo);
    return new Field(name, this.#latin1(this.#text, this.#textFrom, this.#textTo), isValid);
  }

  /** A number with a prefix of some bits (section 5.1). */
  #number(prefix: number): number {
    const first = (this.#block[this.#at++] as number) & prefix;
    if (first < prefix) return first;
    let value = prefix;
    for (let count = 0; count < MOST_NUMBER_BYTES; count++) {
      if (this.#at >= this.#end) throw broken("it ends in a number");
      const byte = this.#block[this.#at++] as number;
      value += (byte & 0x7f) << (7 * count);
      if ((byte & 0x80) === 0) return value;
    }
    throw broken("a number is too large");
  }

  /** A text (section 5.2): leaves it in `#text`. */
  #readText(): void {
    if (this.#at >= this.#end) throw broken("it ends before a text");
    const isCoded = ((this.#block[this.#at] as number) & 0x80) !== 0;
    const length = this.#number(0x7f);
    const from = this.#at;
    const to = from + length;
    if (to > this.#end) throw broken("it ends in a text");
    this.#at = to;
    if (!isCoded) {
      this.#text = this.#block;
      this.#textFrom = from;
      this.#textTo = to;
      return;
    }
    const most = mostDecodedBytes(length);
    if (this.#decoded.length < most) this.#decoded = new Uint8Array(Math.max(256, most));
    const decoded = decodeHuffman(this.#block, from, to, this.#decoded);
    if (decoded < 0) throw broken("a text is not in the Huffman code");
    this.#text = this.#decoded;
    this.#textFrom = 0;
    this.#textTo = decoded;
  }
}

function isNameText(name: string): boolean {
  const bytes = Uint8Array.from(name, (char) => char.charCodeAt(0));
  return isFieldName(bytes, 0, bytes.length);
}

function broken(what: string): ConnectionError {
  return new ConnectionError(H2_ERRORS.compression, `header block: ${what}`);
}
