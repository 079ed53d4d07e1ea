/**
 * A lane's decoder state as JSON text, written and read in pieces: with a tenant's salt on millions
 * of blocks it has many megabytes, which no event loop should handle in one go.
 *
 * In the text a column of u64 is one string of hexadecimal digits, 16 each; other columns are arrays
 * of numbers.
 */

import { type JsonContainer, JsonPush } from "../streams/json_push.ts";
import { REMEMBERED } from "./batch_digests.ts";
import type { DecoderState } from "./decoder_state.ts";
import { MAX_GROUPS } from "./event_reader.ts";
import type { NamespaceState } from "./namespaces.ts";

/** Values of a column that are written at a time. */
const AT_ONCE = 1024;
/** Salts that one lane may name. */
const MAX_SALTS = 2 ** 20;

/** The text of a state, or of any other plain value, in parts of any length. */
export function* decoderText(state: unknown): Generator<string, void> {
  if (state instanceof BigUint64Array) {
    yield '"';
    for (let at = 0; at < state.length; at += AT_ONCE) yield hex(state.subarray(at, at + AT_ONCE));
    yield '"';
  } else if (state instanceof Int32Array || state instanceof Uint16Array) {
    yield "[";
    for (let at = 0; at < state.length; at += AT_ONCE) {
      yield `${at === 0 ? "" : ","}${state.subarray(at, at + AT_ONCE).join(",")}`;
    }
    yield "]";
  } else if (Array.isArray(state)) {
    const list: readonly unknown[] = state;
    yield "[";
    for (const [at, value] of list.entries()) {
      if (at > 0) yield ",";
      yield* decoderText(value ?? null);
    }
    yield "]";
  } else if (typeof state === "object" && state !== null) {
    let comma = "";
    yield "{";
    for (const [key, value] of Object.entries(state)) {
      if (value === undefined) continue;
      yield `${comma}${JSON.stringify(key)}:`;
      yield* decoderText(value);
      comma = ",";
    }
    yield "}";
  } else {
    yield JSON.stringify(state) ?? "null";
  }
}

/** What may stand where; the elements of an array are at "*". Elsewhere anything is passed over. */
const KINDS: Readonly<Record<string, JsonContainer | "text" | "number">> = {
  "$": "object",
  "$.reader": "object",
  "$.reader.groups": "array",
  "$.reader.groups.*": "array",
  "$.reader.namespaces": "object",
  "$.reader.namespaces.salts": "array",
  "$.reader.namespaces.salts.*": "text",
  "$.reader.namespaces.blocks": "text",
  "$.reader.namespaces.of": "array",
  "$.reader.namespaces.of.*": "number",
  "$.reader.namespaces.counts": "array",
  "$.reader.namespaces.counts.*": "number",
  "$.digests": "array",
  "$.digests.*": "array",
};

/**
 * Reads such a text as it comes. Members that are not known are passed over: later versions may have
 * more. What is kept is never more than a few times what has come.
 */
export class DecoderTextReader {
  readonly #parser = new JsonPush({
    open: (kind) => this.#opened(kind),
    close: () => this.#closed(),
    key: (name) => this.#at(`${this.#path}.${name}`),
    text: (part, isLast) => this.#textPart(part, isLast),
    scalar: (value) => this.#scalar(value),
  });
  /** The containers that are open: where each is, and where its elements are if it is an array. */
  readonly #open: { readonly path: string; readonly elements: string | undefined }[] = [];
  #path = "$";
  /** Where the next value is, and what may be there. */
  #place = "$";
  #kind = KINDS["$"];
  #text = "";
  /** The pair that is being read. */
  #row: (string | number | boolean | null)[] = [];
  readonly #groups: [number, boolean][] = [];
  readonly #digests: [string, number][] = [];
  #hasNamespaces = false;
  readonly #salts: string[] = [];
  /** Blocks as words, the lower one first. */
  readonly #words = new Column(new Uint32Array(64));
  #digits = "";
  readonly #of = new Column(new Int32Array(32));
  readonly #counts = new Column(new Uint16Array(32));

  /** Takes the next piece. Throws `NotJson`, or `TypeError` when it is not such a state. */
  push(piece: string): void {
    this.#parser.push(piece);
  }

  /** The state. Throws as `push` does. */
  finish(): DecoderState {
    this.#parser.end();
    if (this.#digits !== "") throw wrong("$.reader.namespaces.blocks");
    const { length } = this.#counts;
    const namespaces: NamespaceState = {
      salts: this.#salts,
      blocks: u64(this.#words.values()),
      of: this.#of.values(),
      ...(length === 0 ? {} : { counts: this.#counts.values() }),
    };
    return {
      reader: { groups: this.#groups, ...(this.#hasNamespaces ? { namespaces } : {}) },
      digests: this.#digests,
    };
  }

  #opened(kind: JsonContainer): void {
    const path = this.#place;
    this.#check(kind);
    if (path === "$.reader.namespaces") this.#hasNamespaces = true;
    this.#row = [];
    this.#path = path;
    const elements = kind === "array" ? `${path}.*` : undefined;
    this.#at(elements ?? path);
    this.#open.push({ path, elements });
  }

  #at(place: string): void {
    this.#place = place;
    this.#kind = KINDS[place];
  }

  #check(kind: JsonContainer | "text" | "number"): void {
    if (this.#kind !== undefined && this.#kind !== kind) throw wrong(this.#place);
  }

  #closed(): void {
    const closed = this.#open.pop();
    const outer = this.#open.at(-1);
    this.#path = outer?.path ?? "$";
    this.#at(outer?.elements ?? this.#path);
    const [first, second] = this.#row;
    if (closed?.path === "$.reader.groups.*") {
      const isGood = Number.isInteger(first) && typeof second === "boolean";
      if (!isGood || this.#groups.length >= MAX_GROUPS) throw wrong(closed.path);
      this.#groups.push([first as number, second]);
    } else if (closed?.path === "$.digests.*") {
      const isGood = typeof first === "string" && SEQ.test(first) && typeof second === "number";
      if (!isGood || this.#digests.length >= MAX_DIGESTS) throw wrong(closed.path);
      this.#digests.push([first, second]);
    }
  }

  #textPart(part: string, isLast: boolean): void {
    const place = this.#place;
    this.#check("text");
    switch (place) {
      case "$.reader.namespaces.blocks":
        this.#hex(part);
        return;
      case "$.reader.namespaces.salts.*":
      case "$.digests.*.*":
        this.#text += part;
        if (!isLast) return;
        if (place === "$.digests.*.*") this.#element(this.#text);
        else if (this.#salts.push(this.#text) > MAX_SALTS) throw wrong(place);
        this.#text = "";
    }
  }

  #scalar(value: number | boolean | null): void {
    const place = this.#place;
    this.#check("number");
    switch (place) {
      case "$.reader.namespaces.of.*":
        this.#of.push(whole(value, place, -(2 ** 31), 2 ** 31 - 1));
        return;
      case "$.reader.namespaces.counts.*":
        this.#counts.push(whole(value, place, 1, 0xffff));
        return;
      case "$.reader.groups.*.*":
      case "$.digests.*.*":
        this.#element(value);
    }
  }

  #element(value: string | number | boolean | null): void {
    if (this.#row.push(value) > 2) throw wrong(this.#place);
  }

  #hex(part: string): void {
    const digits = this.#digits + part;
    const end = digits.length - digits.length % 16;
    for (let at = 0; at < end; at += 16) {
      const high = bits(digits, at);
      const low = bits(digits, at + 8);
      if (high < 0 || low < 0) throw wrong("$.reader.namespaces.blocks");
      this.#words.push(low);
      this.#words.push(high);
    }
    this.#digits = digits.slice(end);
  }
}

const SEQ = /^[0-9]{1,20}$/;
/** More fingerprints than a lane remembers are not of use. */
const MAX_DIGESTS = Number(REMEMBERED);

function wrong(place: string): TypeError {
  return new TypeError(`the decoder state is not well made at ${place}`);
}

function whole(value: number | boolean | null, place: string, least: number, most: number): number {
  if (typeof value === "number" && Number.isInteger(value) && value >= least && value <= most) {
    return value;
  }
  throw wrong(place);
}

/** An array of numbers that grows. */
class Column<Of extends Uint32Array | Int32Array | Uint16Array> {
  #values: Of;
  length = 0;

  constructor(values: Of) {
    this.#values = values;
  }

  push(value: number): void {
    if (this.length === this.#values.length) {
      const Kind = this.#values.constructor as new (length: number) => Of;
      const larger = new Kind(2 * this.length);
      larger.set(this.#values);
      this.#values = larger;
    }
    this.#values[this.length++] = value;
  }

  values(): Of {
    return this.#values.subarray(0, this.length) as Of;
  }
}

function u64(words: Uint32Array): BigUint64Array {
  return new BigUint64Array(words.buffer as ArrayBuffer, 0, words.length / 2);
}

const HEX = new TextEncoder().encode("0123456789abcdef");
const ascii = new TextDecoder();

/** 16 digits for each block, the highest first. */
function hex(blocks: BigUint64Array): string {
  const words = new Uint32Array(blocks.buffer, blocks.byteOffset, 2 * blocks.length);
  const digits = new Uint8Array(8 * words.length);
  for (let word = 0; word < words.length; word++) {
    // The lower word comes first in memory, and last in the text.
    let rest = words[word ^ 1] ?? 0;
    for (let at = 8 * word + 7; at >= 8 * word; at--) {
      digits[at] = HEX[rest & 15] ?? 0;
      rest >>>= 4;
    }
  }
  return ascii.decode(digits);
}

/** The 32 bits that 8 digits from `start` on stand for, or -1 when they are no such digits. */
function bits(digits: string, start: number): number {
  let word = 0;
  for (let at = start; at < start + 8; at++) {
    const code = digits.charCodeAt(at);
    const isDecimal = code >= 0x30 && code <= 0x39;
    if (!isDecimal && !(code >= 0x61 && code <= 0x66)) return -1;
    word = (word << 4) | (isDecimal ? code - 0x30 : code - 0x57);
  }
  return word >>> 0;
}
