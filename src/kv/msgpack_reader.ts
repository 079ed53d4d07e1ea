/**
 * Reads MessagePack in place, value by value, for decoders that know what they expect.
 *
 * A general decoder makes an object for each value and a bigint for each 64-bit integer; KV events
 * are mostly long arrays of integers, which go straight into typed arrays here. Two kinds of error
 * are kept apart: `MsgpackBroken` (the bytes are not MessagePack: nothing after them can be trusted)
 * and `UnexpectedValue` (well made, but not of the kind asked for: the caller can skip it).
 *
 * Longer than most files because the one class has a method for each kind of value.
 */

/** The bytes are not MessagePack, or they end inside a value. */
export class MsgpackBroken extends Error {
  override readonly name = "MsgpackBroken";
}

/** A well-made value of another kind than the reader was asked for. */
export class UnexpectedValue extends Error {
  override readonly name = "UnexpectedValue";
}

/** What the next value is, without reading it. */
export type ValueKind =
  | "nil"
  | "bool"
  | "int"
  | "float"
  | "string"
  | "bytes"
  | "array"
  | "map"
  | "ext";

const utf8 = new TextDecoder();

/** Short strings seen before: the same few names come millions of times. */
const INTERN_SLOTS = 1024;
const INTERN_MAX_BYTES = 48;
const internBytes: (DataView | undefined)[] = new Array(INTERN_SLOTS).fill(undefined);
const internTexts: string[] = new Array(INTERN_SLOTS).fill("");

const ASCII: readonly string[] = Array.from({ length: 128 }, (_, i) => String.fromCharCode(i));

/** The same text as engines keep it for property names, which compare by their address. */
function asKey(text: string): string {
  for (const key in { [text]: 0 }) return key;
  return text;
}

export class MsgpackReader {
  readonly bytes: Uint8Array;
  readonly #view: DataView;
  /** Offset of the next value. */
  at = 0;

  constructor(bytes: Uint8Array) {
    this.bytes = bytes;
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  get isAtEnd(): boolean {
    return this.at >= this.bytes.length;
  }

  /** Kind of the next value; throws `MsgpackBroken` at the end or at a reserved byte. */
  peek(): ValueKind {
    const head = this.#head(this.at);
    if (head < 0x80 || head >= 0xe0) return "int";
    if (head < 0x90) return "map";
    if (head < 0xa0) return "array";
    if (head < 0xc0) return "string";
    switch (head) {
      case 0xc0:
        return "nil";
      case 0xc2:
      case 0xc3:
        return "bool";
      case 0xc4:
      case 0xc5:
      case 0xc6:
        return "bytes";
      case 0xca:
      case 0xcb:
        return "float";
      case 0xd9:
      case 0xda:
      case 0xdb:
        return "string";
      case 0xdc:
      case 0xdd:
        return "array";
      case 0xde:
      case 0xdf:
        return "map";
      case 0xc1:
        throw new MsgpackBroken("reserved byte 0xc1");
      default:
        return head >= 0xcc && head <= 0xd3 ? "int" : "ext";
    }
  }

  /** Reads nil if that is next; false (and nothing read) otherwise. */
  takeNil(): boolean {
    if (this.bytes[this.at] !== 0xc0) return false;
    this.at += 1;
    return true;
  }

  /** Reads an array's head and returns its length, which the bytes that follow can still hold. */
  arrayLength(): number {
    const head = this.#head(this.at);
    if (head >= 0x90 && head < 0xa0) {
      this.at += 1;
      return this.#plausible(head & 0x0f);
    }
    if (head === 0xdc) return this.#plausible(this.#uint16());
    if (head === 0xdd) return this.#plausible(this.#uint32());
    throw new UnexpectedValue(`expected an array, got ${this.peek()}`);
  }

  /** Reads a map's head and returns its number of pairs. */
  mapLength(): number {
    const head = this.#head(this.at);
    if (head >= 0x80 && head < 0x90) {
      this.at += 1;
      return this.#plausible(head & 0x0f);
    }
    if (head === 0xde) return this.#plausible(this.#uint16());
    if (head === 0xdf) return this.#plausible(this.#uint32());
    throw new UnexpectedValue(`expected a map, got ${this.peek()}`);
  }

  /** Any integer or float as a JavaScript number (64-bit integers may be rounded). */
  number(): number {
    const head = this.#head(this.at);
    if (head < 0x80) {
      this.at += 1;
      return head;
    }
    if (head >= 0xe0) {
      this.at += 1;
      return head - 0x100;
    }
    const size = NUMBER_BYTES[head] ?? 0;
    if (size === 0) throw new UnexpectedValue(`expected a number, got ${this.peek()}`);
    const start = this.#take(1 + size) + 1;
    switch (head) {
      case 0xcc:
        return this.#view.getUint8(start);
      case 0xcd:
        return this.#view.getUint16(start);
      case 0xce:
        return this.#view.getUint32(start);
      case 0xcf:
        return Number(this.#view.getBigUint64(start));
      case 0xd0:
        return this.#view.getInt8(start);
      case 0xd1:
        return this.#view.getInt16(start);
      case 0xd2:
        return this.#view.getInt32(start);
      case 0xd3:
        return Number(this.#view.getBigInt64(start));
      case 0xca:
        return this.#view.getFloat32(start);
      default:
        return this.#view.getFloat64(start);
    }
  }

  /** An integer, exactly. */
  bigint(): bigint {
    const head = this.#head(this.at);
    if (head === 0xcf) return this.#view.getBigUint64(this.#take(9) + 1);
    if (head === 0xd3) return this.#view.getBigInt64(this.#take(9) + 1);
    if (head === 0xca || head === 0xcb) throw new UnexpectedValue("expected an integer");
    return BigInt(this.number());
  }

  bool(): boolean {
    const head = this.#head(this.at);
    if (head !== 0xc2 && head !== 0xc3) throw new UnexpectedValue("expected true or false");
    this.at += 1;
    return head === 0xc3;
  }

  /** A string; short ones are shared instead of decoded again. */
  string(): string {
    const length = this.#stringLength();
    const start = this.#take(length);
    if (length > INTERN_MAX_BYTES) return utf8.decode(this.bytes.subarray(start, start + length));
    const { bytes } = this;
    if (length < 4) {
      let text = "";
      for (let i = start; i < start + length; i++) {
        const byte = bytes[i] ?? 0;
        if (byte > 0x7f) return utf8.decode(bytes.subarray(start, start + length));
        text += ASCII[byte] ?? "";
      }
      return text;
    }
    // Four bytes at a time; the last four may overlap those before.
    const view = this.#view;
    const last = start + length - 4;
    const tail = view.getUint32(last);
    const mixed = Math.imul(view.getUint32(start) ^ Math.imul(tail, 0x85ebca6b), 0x9e3779b1) +
      length;
    const slot = (mixed ^ (mixed >>> 15)) & (INTERN_SLOTS - 1);
    const known = internBytes[slot];
    if (known !== undefined && known.byteLength === length) {
      let at = 0;
      while (start + at < last && known.getUint32(at) === view.getUint32(start + at)) at += 4;
      if (start + at >= last && known.getUint32(length - 4) === tail) {
        return internTexts[slot] ?? "";
      }
    }
    const copy = bytes.slice(start, start + length);
    const text = asKey(utf8.decode(copy));
    internBytes[slot] = new DataView(copy.buffer);
    internTexts[slot] = text;
    return text;
  }

  /** A binary value as a view of the message. */
  binary(): Uint8Array {
    const head = this.#head(this.at);
    let length: number;
    if (head === 0xc4) length = this.#uint8();
    else if (head === 0xc5) length = this.#uint16();
    else if (head === 0xc6) length = this.#uint32();
    else throw new UnexpectedValue(`expected bytes, got ${this.peek()}`);
    const start = this.#take(length);
    return this.bytes.subarray(start, start + length);
  }

  /**
   * `count` integers of 0 to 2^32-1 into `target` from `from` on. A decimal string is taken as the
   * number that it spells (TensorRT-LLM prints some token ids so).
   */
  uint32s(count: number, target: Uint32Array, from: number): void {
    const { bytes } = this;
    const view = this.#view;
    let at = this.at;
    const safe = bytes.length - 5;
    for (let i = from; i < from + count; i++) {
      // Near the end of the message each value is read with all its checks.
      const head = at <= safe ? bytes[at] : undefined;
      if (head === 0xcd) {
        target[i] = view.getUint16(at + 1);
        at += 3;
      } else if (head === 0xce) {
        target[i] = view.getUint32(at + 1);
        at += 5;
      } else if (head !== undefined && head < 0x80) {
        target[i] = head;
        at += 1;
      } else if (head === 0xcc) {
        target[i] = view.getUint8(at + 1);
        at += 2;
      } else {
        this.at = at;
        target[i] = this.#otherUint32();
        at = this.at;
      }
    }
    this.at = at;
  }

  /**
   * One 64-bit hash into `target` at index `i`, given as two 32-bit words (low, high) so that no
   * bigint is made. Signed integers keep their bits; bytes stand for their last 8, big-endian, which
   * is what vLLM itself sends when it sends a digest as an integer.
   */
  hash(target: Uint32Array, i: number): void {
    const { at } = this;
    const head = this.bytes[at];
    if ((head === 0xcf || head === 0xd3) && at + 9 <= this.bytes.length) {
      target[2 * i + 1] = this.#view.getUint32(at + 1);
      target[2 * i] = this.#view.getUint32(at + 5);
      this.at = at + 9;
      return;
    }
    const kind = this.peek();
    if (kind === "int") {
      const value = this.number();
      target[2 * i] = value >>> 0;
      target[2 * i + 1] = value < 0 ? 0xffffffff : 0;
      return;
    }
    if (kind !== "bytes") throw new UnexpectedValue(`expected a block hash, got ${kind}`);
    const digest = this.binary();
    if (digest.length === 0) throw new UnexpectedValue("a block hash of no bytes");
    let low = 0;
    let high = 0;
    for (let k = Math.max(0, digest.length - 8); k < digest.length; k++) {
      high = (high << 8) | (low >>> 24);
      low = (low << 8) | (digest[k] ?? 0);
    }
    target[2 * i] = low;
    target[2 * i + 1] = high;
  }

  /** Passes over one value of any kind, however deep, without recursion. */
  skip(): void {
    let left = 1;
    while (left > 0) {
      left -= 1;
      const head = this.#head(this.at);
      if (head < 0x80 || head >= 0xe0) this.at += 1;
      else if (head < 0x90) {
        this.at += 1;
        left += 2 * (head & 0x0f);
      } else if (head < 0xa0) {
        this.at += 1;
        left += head & 0x0f;
      } else if (head < 0xc0) this.#take(1 + (head & 0x1f));
      else {
        switch (head) {
          case 0xc0:
          case 0xc2:
          case 0xc3:
            this.at += 1;
            break;
          case 0xc4:
          case 0xd9:
            this.#take(this.#uint8());
            break;
          case 0xc5:
          case 0xda:
            this.#take(this.#uint16());
            break;
          case 0xc6:
          case 0xdb:
            this.#take(this.#uint32());
            break;
          case 0xc7:
            this.#take(this.#uint8() + 1);
            break;
          case 0xc8:
            this.#take(this.#uint16() + 1);
            break;
          case 0xc9:
            this.#take(this.#uint32() + 1);
            break;
          case 0xd4:
          case 0xd5:
          case 0xd6:
          case 0xd7:
          case 0xd8:
            this.#take(2 + (1 << (head - 0xd4)));
            break;
          case 0xdc:
            left += this.#uint16();
            break;
          case 0xdd:
            left += this.#uint32();
            break;
          case 0xde:
            left += 2 * this.#uint16();
            break;
          case 0xdf:
            left += 2 * this.#uint32();
            break;
          case 0xc1:
            throw new MsgpackBroken("reserved byte 0xc1");
          default:
            this.#take(1 + (NUMBER_BYTES[head] ?? 0));
        }
      }
      // Every value has at least one byte, so a longer claim can be refused before the walk.
      if (left > this.bytes.length - this.at) throw new MsgpackBroken("ends inside a value");
    }
  }

  #head(at: number): number {
    const head = this.bytes[at];
    if (head === undefined) throw new MsgpackBroken("ends before a value");
    return head;
  }

  /** Moves past `size` bytes and returns where they started. */
  #take(size: number): number {
    const start = this.at;
    if (start + size > this.bytes.length) throw new MsgpackBroken("ends inside a value");
    this.at = start + size;
    return start;
  }

  #uint8(): number {
    return this.#view.getUint8(this.#take(2) + 1);
  }

  #uint16(): number {
    return this.#view.getUint16(this.#take(3) + 1);
  }

  #uint32(): number {
    return this.#view.getUint32(this.#take(5) + 1);
  }

  #plausible(length: number): number {
    if (length > this.bytes.length - this.at) throw new MsgpackBroken("ends inside a value");
    return length;
  }

  #stringLength(): number {
    const head = this.#head(this.at);
    if (head >= 0xa0 && head < 0xc0) {
      this.at += 1;
      return head & 0x1f;
    }
    if (head === 0xd9) return this.#uint8();
    if (head === 0xda) return this.#uint16();
    if (head === 0xdb) return this.#uint32();
    throw new UnexpectedValue(`expected a string, got ${this.peek()}`);
  }

  #otherUint32(): number {
    const kind = this.peek();
    let value: number;
    if (kind === "string") {
      const text = this.string();
      value = /^[0-9]{1,10}$/.test(text) ? Number(text) : -1;
    } else if (kind === "int") {
      value = this.number();
    } else throw new UnexpectedValue(`expected a token id, got ${kind}`);
    if (value < 0 || value > 0xffffffff) throw new UnexpectedValue("a token id out of range");
    return value;
  }
}

/** Bytes after the head byte of each kind of number. */
const NUMBER_BYTES: Readonly<Record<number, number>> = {
  0xca: 4,
  0xcb: 8,
  0xcc: 1,
  0xcd: 2,
  0xce: 4,
  0xcf: 8,
  0xd0: 1,
  0xd1: 2,
  0xd2: 4,
  0xd3: 8,
};
