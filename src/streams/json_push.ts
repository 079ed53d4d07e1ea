/**
 * Reads a JSON text that comes in pieces, and tells what is in it as it comes.
 *
 * For texts that are too long to be parsed in one go: nothing is kept here but where we are, so the
 * one who is told decides what it costs.
 */

/** The text is not JSON, or goes beyond a bound. */
export class NotJson extends Error {
  override readonly name = "NotJson";
}

export interface JsonTarget {
  open(kind: JsonContainer): void;
  close(): void;
  /** The name of the member whose value comes next. */
  key(name: string): void;
  /** A part of a string, in order; `isLast` with the last one, which may be empty. */
  text(part: string, isLast: boolean): void;
  scalar(value: number | boolean | null): void;
}

export type JsonContainer = "object" | "array";

const MAX_DEPTH = 32;
const MAX_KEY = 256;
/** Letters of a number or a word. */
const MAX_WORD = 32;
const NUMBER = /^-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?$/;

type Expected = "value" | "first_value" | "key" | "first_key" | "colon" | "more" | "end";

export class JsonPush {
  readonly #target: JsonTarget;
  readonly #open: JsonContainer[] = [];
  #expected: Expected = "value";
  #string: "key" | "text" | undefined;
  #key = "";
  /** An escape that has begun, with its backslash. */
  #escape = "";
  /** A number or a word that has begun. */
  #word = "";

  constructor(target: JsonTarget) {
    this.#target = target;
  }

  /** Takes the next piece. Throws `NotJson`, and whatever the target throws. */
  push(piece: string): void {
    let at = 0;
    while (at < piece.length) {
      if (this.#escape !== "") {
        this.#escape += piece[at++];
        this.#endEscape();
      } else if (this.#string !== undefined) {
        at = this.#inString(piece, at);
      } else if (this.#word !== "" || isWord(piece.charCodeAt(at))) {
        at = this.#inWord(piece, at);
      } else {
        this.#mark(piece.charCodeAt(at++));
      }
    }
  }

  /** Says that there are no more pieces. */
  end(): void {
    if (this.#word !== "") this.#endWord();
    if (this.#expected !== "end") throw new NotJson("the text ends too early");
  }

  #inString(piece: string, start: number): number {
    let at = start;
    let code = piece.charCodeAt(at);
    while (at < piece.length && code !== 0x22 && code !== 0x5c) {
      if (code < 0x20) throw new NotJson("a control character in a string");
      code = piece.charCodeAt(++at);
    }
    const isEnd = code === 0x22;
    this.#part(piece.slice(start, at), isEnd);
    if (at === piece.length) return at;
    if (!isEnd) this.#escape = "\\";
    else this.#string = undefined;
    return at + 1;
  }

  #endEscape(): void {
    const length = this.#escape[1] === "u" ? 6 : 2;
    if (this.#escape.length < length) return;
    let letter: string;
    try {
      letter = JSON.parse(`"${this.#escape}"`) as string;
    } catch {
      throw new NotJson("a bad escape");
    }
    this.#escape = "";
    this.#part(letter, false);
  }

  #part(part: string, isLast: boolean): void {
    if (this.#string === "text") {
      if (isLast) this.#ended();
      this.#target.text(part, isLast);
      return;
    }
    this.#key += part;
    if (this.#key.length > MAX_KEY) throw new NotJson("a key is too long");
    if (!isLast) return;
    this.#expected = "colon";
    this.#target.key(this.#key);
    this.#key = "";
  }

  #inWord(piece: string, start: number): number {
    let at = start;
    while (at < piece.length && isWord(piece.charCodeAt(at))) at += 1;
    this.#word += piece.slice(start, at);
    if (this.#word.length > MAX_WORD) throw new NotJson("a number or a word is too long");
    if (at < piece.length) this.#endWord();
    return at;
  }

  #endWord(): void {
    const word = this.#word;
    this.#word = "";
    if (this.#expected !== "value" && this.#expected !== "first_value") {
      throw new NotJson("a value where none can be");
    }
    this.#ended();
    if (NUMBER.test(word)) this.#target.scalar(Number(word));
    else if (word === "true" || word === "false") this.#target.scalar(word === "true");
    else if (word === "null") this.#target.scalar(null);
    else throw new NotJson("a word that is no value");
  }

  #mark(code: number): void {
    if (code === 0x20 || code === 0x0a || code === 0x0d || code === 0x09) return;
    const isValue = this.#expected === "value" || this.#expected === "first_value";
    const isKey = this.#expected === "key" || this.#expected === "first_key";
    if (code === 0x22 && (isValue || isKey)) {
      this.#string = isKey ? "key" : "text";
    } else if (code === 0x7b && isValue) {
      this.#begin("object");
    } else if (code === 0x5b && isValue) {
      this.#begin("array");
    } else if (code === 0x7d && this.#mayClose("object", "first_key")) {
      this.#finish();
    } else if (code === 0x5d && this.#mayClose("array", "first_value")) {
      this.#finish();
    } else if (code === 0x3a && this.#expected === "colon") {
      this.#expected = "value";
    } else if (code === 0x2c && this.#expected === "more") {
      this.#expected = this.#open.at(-1) === "object" ? "key" : "value";
    } else {
      throw new NotJson(`"${String.fromCharCode(code)}" where it cannot be`);
    }
  }

  #mayClose(kind: JsonContainer, empty: Expected): boolean {
    return this.#open.at(-1) === kind && (this.#expected === "more" || this.#expected === empty);
  }

  #begin(kind: JsonContainer): void {
    if (this.#open.length >= MAX_DEPTH) throw new NotJson("nested too deep");
    this.#open.push(kind);
    this.#expected = kind === "object" ? "first_key" : "first_value";
    this.#target.open(kind);
  }

  #finish(): void {
    this.#open.pop();
    this.#ended();
    this.#target.close();
  }

  /** A value is complete. */
  #ended(): void {
    this.#expected = this.#open.length === 0 ? "end" : "more";
  }
}

/** Digits, letters, and what else numbers have. */
function isWord(code: number): boolean {
  return (code >= 0x30 && code <= 0x39) || (code >= 0x61 && code <= 0x7a) || code === 0x2d ||
    code === 0x2b || code === 0x2e || (code >= 0x41 && code <= 0x5a);
}
