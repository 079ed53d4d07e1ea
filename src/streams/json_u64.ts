/**
 * JSON whose whole numbers keep all their bits: those beyond 2^53 become `bigint`.
 *
 * `JSON.parse` has a reviver that sees the source text, but it is called for each value and takes
 * several times as long as this parser.
 */

/** The text is not JSON. */
export class NotJsonText extends Error {
  override readonly name = "NotJsonText";
}

export type JsonU64 =
  | null
  | boolean
  | number
  | bigint
  | string
  | JsonU64[]
  | { [key: string]: JsonU64 };

const MAX_DEPTH = 64;
/** Digits that always fit a double exactly. */
const SAFE_DIGITS = 15;
/** Longer numbers are rounded: to turn millions of digits into a bigint takes seconds. */
const MOST_DIGITS = 40;

/** Parses one JSON value (RFC 8259). Throws `NotJsonText`. */
export function parseJsonU64(text: string): JsonU64 {
  const parser = new Parser(text);
  const value = parser.value(0);
  parser.end();
  return value;
}

class Parser {
  readonly #text: string;
  #at = 0;

  constructor(text: string) {
    this.#text = text;
  }

  value(depth: number): JsonU64 {
    if (depth > MAX_DEPTH) throw this.#wrong("too deep");
    this.#space();
    switch (this.#text.charCodeAt(this.#at)) {
      case 0x7b:
        return this.#object(depth);
      case 0x5b:
        return this.#array(depth);
      case 0x22:
        return this.#string();
      case 0x74:
        return this.#word("true", true);
      case 0x66:
        return this.#word("false", false);
      case 0x6e:
        return this.#word("null", null);
      default:
        return this.#number();
    }
  }

  end(): void {
    this.#space();
    if (this.#at < this.#text.length) throw this.#wrong("more text after the value");
  }

  #object(depth: number): { [key: string]: JsonU64 } {
    const object: { [key: string]: JsonU64 } = {};
    this.#at += 1;
    if (this.#next(0x7d)) return object;
    do {
      this.#space();
      if (this.#text.charCodeAt(this.#at) !== 0x22) throw this.#wrong("a key is missing");
      const key = this.#string();
      if (!this.#next(0x3a)) throw this.#wrong("a colon is missing");
      const value = this.value(depth + 1);
      if (key !== "__proto__") object[key] = value;
      else Object.defineProperty(object, key, { value, enumerable: true });
    } while (this.#next(0x2c));
    if (!this.#next(0x7d)) throw this.#wrong("an object does not end");
    return object;
  }

  #array(depth: number): JsonU64[] {
    const array: JsonU64[] = [];
    this.#at += 1;
    if (this.#next(0x5d)) return array;
    do array.push(this.value(depth + 1)); while (this.#next(0x2c));
    if (!this.#next(0x5d)) throw this.#wrong("an array does not end");
    return array;
  }

  #string(): string {
    const text = this.#text;
    let end = this.#at + 1;
    let plain = true;
    for (;; end += 1) {
      const code = text.charCodeAt(end);
      if (code === 0x22) break;
      if (code === 0x5c) {
        plain = false;
        end += 1;
      } else if (!(code >= 0x20)) {
        throw this.#wrong("a string does not end");
      }
    }
    const start = this.#at;
    this.#at = end + 1;
    if (plain) return text.slice(start + 1, end);
    try {
      return JSON.parse(text.slice(start, end + 1)) as string;
    } catch {
      throw this.#wrong("a bad escape");
    }
  }

  #number(): number | bigint {
    const text = this.#text;
    const start = this.#at;
    let end = start;
    if (text.charCodeAt(end) === 0x2d) end += 1;
    const digits = end;
    while (isDigit(text.charCodeAt(end))) end += 1;
    if (end === digits) throw this.#wrong("a value is missing");
    if (text.charCodeAt(digits) === 0x30 && end > digits + 1) throw this.#wrong("a leading zero");
    const whole = end;
    if (text.charCodeAt(end) === 0x2e) {
      const fraction = end += 1;
      while (isDigit(text.charCodeAt(end))) end += 1;
      if (end === fraction) throw this.#wrong("a fraction without digits");
    }
    const exponentMark = text.charCodeAt(end) | 0x20;
    if (exponentMark === 0x65) {
      end += 1;
      const sign = text.charCodeAt(end);
      if (sign === 0x2b || sign === 0x2d) end += 1;
      const exponent = end;
      while (isDigit(text.charCodeAt(end))) end += 1;
      if (end === exponent) throw this.#wrong("an exponent without digits");
    }
    this.#at = end;
    const source = text.slice(start, end);
    const length = whole - digits;
    if (end > whole || length <= SAFE_DIGITS || length > MOST_DIGITS) return Number(source);
    const number = BigInt(source);
    const narrow = Number(number);
    return Number.isSafeInteger(narrow) ? narrow : number;
  }

  #word<T>(word: string, value: T): T {
    if (!this.#text.startsWith(word, this.#at)) throw this.#wrong("an unknown word");
    this.#at += word.length;
    return value;
  }

  #next(code: number): boolean {
    this.#space();
    if (this.#text.charCodeAt(this.#at) !== code) return false;
    this.#at += 1;
    return true;
  }

  #space(): void {
    for (;;) {
      const code = this.#text.charCodeAt(this.#at);
      if (code !== 0x20 && code !== 0x0a && code !== 0x0d && code !== 0x09) return;
      this.#at += 1;
    }
  }

  #wrong(what: string): NotJsonText {
    return new NotJsonText(`${what} at ${this.#at}`);
  }
}

function isDigit(code: number): boolean {
  return code >= 0x30 && code <= 0x39;
}
