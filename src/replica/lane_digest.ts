/**
 * The digest of a lane in a dump: MurmurHash3_x86_32 with the seeds 0 and 1, as 16 hex digits.
 *
 * It tells that the lane arrived as it left (truncation, corruption, a row out of place); it is no
 * protection against forgery, which is the task of the token or of TLS. What is hashed, in order:
 * the lane line's bytes and each decoder line's text (each zero-padded to a multiple of 4), then 24
 * bytes for each block: engine hash, local hash (u64), parent row (i32), tiers, copies (u16), all
 * little-endian. So it does not depend on how rows were put into run lines.
 */

import type { LaneBlocks } from "../kv/blocks.ts";

if (new Uint8Array(Uint32Array.of(1).buffer)[0] !== 1) {
  throw new Error("the dump format needs a little-endian machine");
}

const C1 = 0xcc9e2d51;
const C2 = 0x1b873593;

export class LaneDigest {
  #first = 0;
  #second = 1;
  #bytes = 0;

  /** Adds bytes, zero-padded to a multiple of 4. */
  text(bytes: Uint8Array): void {
    const words = new Uint32Array(Math.ceil(bytes.length / 4));
    new Uint8Array(words.buffer).set(bytes);
    let first = this.#first;
    let second = this.#second;
    for (const word of words) {
      const k = scramble(word);
      first = mix(first, k);
      second = mix(second, k);
    }
    this.#first = first;
    this.#second = second;
    this.#bytes += words.length * 4;
  }

  /** Adds the rows `from` (included) to `to` (excluded). */
  rows(blocks: LaneBlocks, from: number, to: number): void {
    const engines = wordsOf(blocks.engines);
    const locals = wordsOf(blocks.locals);
    const { parents, tiers, copies } = blocks;
    let first = this.#first;
    let second = this.#second;
    for (let row = from; row < to; row += 1) {
      let k = scramble(engines[row * 2] as number);
      first = mix(first, k);
      second = mix(second, k);
      k = scramble(engines[row * 2 + 1] as number);
      first = mix(first, k);
      second = mix(second, k);
      k = scramble(locals[row * 2] as number);
      first = mix(first, k);
      second = mix(second, k);
      k = scramble(locals[row * 2 + 1] as number);
      first = mix(first, k);
      second = mix(second, k);
      k = scramble(parents[row] as number);
      first = mix(first, k);
      second = mix(second, k);
      k = scramble((tiers[row] as number) | ((copies[row] as number) << 16));
      first = mix(first, k);
      second = mix(second, k);
    }
    this.#first = first;
    this.#second = second;
    this.#bytes += (to - from) * 24;
  }

  /** 16 lower-case hex digits: seed 0's value, then seed 1's. */
  hex(): string {
    return hex(finish(this.#first, this.#bytes)) + hex(finish(this.#second, this.#bytes));
  }
}

function scramble(word: number): number {
  const k = Math.imul(word, C1);
  return Math.imul((k << 15) | (k >>> 17), C2);
}

function mix(state: number, k: number): number {
  const h = state ^ k;
  return (Math.imul((h << 13) | (h >>> 19), 5) + 0xe6546b64) | 0;
}

function finish(state: number, length: number): number {
  let h = state ^ length;
  h = Math.imul(h ^ (h >>> 16), 0x85ebca6b);
  h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35);
  return (h ^ (h >>> 16)) >>> 0;
}

function hex(word: number): string {
  return word.toString(16).padStart(8, "0");
}

function wordsOf(column: BigUint64Array): Uint32Array {
  return new Uint32Array(column.buffer, column.byteOffset, column.length * 2);
}
