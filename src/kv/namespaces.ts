/**
 * Which tenant's namespace (cache salt) each block of a lane was stored under.
 *
 * Engines name the salt on the first block of a sequence only; a block that names none belongs to
 * its parent's. Nothing is kept until a lane has seen its first salt, so that lanes without tenants
 * pay nothing. One engine hash seen under two namespaces tells nothing any more: it is ambiguous.
 */

import { U64Table } from "./u64_table.ts";

/** As JSON, for the dump: `blocks` are 16 hex digits each, `of` the index in `salts`, -1 = none. */
export interface NamespaceState {
  readonly salts: readonly string[];
  readonly blocks: string;
  readonly of: readonly number[];
  /** Copies of each block; absent when all are 1. */
  readonly counts?: readonly number[];
}

const UNSALTED = 1;
const AMBIGUOUS = 2;
const FIRST_SALT = 3;
const AMBIGUOUS_ROW = -2;

export class Namespaces {
  readonly #blocks = new U64Table();
  readonly #ids = new Map<string, number>();
  /** Salt and number of blocks by id - FIRST_SALT; undefined = the id is free. */
  readonly #salts: ({ readonly text: string; blocks: number } | undefined)[] = [];
  readonly #free: number[] = [];
  #isActive = false;

  /** The namespace that a child of this block has: its salt, undefined for none, or "ambiguous". */
  of(block: bigint): { readonly salt: string | undefined } | "ambiguous" {
    if (!this.#isActive) return NO_SALT;
    const low = Number(block & 0xffffffffn);
    const value = this.#blocks.get(low, Number(block >> 32n));
    if (value === AMBIGUOUS) return "ambiguous";
    // A parent never seen counts as unsalted: to refuse its children would lose whole sequences.
    if (value < FIRST_SALT) return NO_SALT;
    return { salt: this.#salts[value - FIRST_SALT]?.text };
  }

  /** Notes that these blocks were stored under `salt`. */
  stored(hashes: BigUint64Array, salt: string | undefined): void {
    if (!this.#isActive) {
      if (salt === undefined) return;
      this.#isActive = true;
    }
    const id = salt === undefined ? UNSALTED : this.#idOf(salt);
    const words = wordsOf(hashes);
    for (let i = 0; i < words.length; i += 2) {
      const low = words[i] ?? 0;
      const high = words[i + 1] ?? 0;
      const had = this.#blocks.add(low, high, id);
      if (had === 0) this.#count(id, 1);
      else if (had !== id && had !== AMBIGUOUS) {
        this.#blocks.replace(low, high, AMBIGUOUS);
        this.#count(had, -1);
      }
    }
  }

  removed(hashes: BigUint64Array): void {
    if (!this.#isActive) return;
    const words = wordsOf(hashes);
    for (let i = 0; i < words.length; i += 2) {
      this.#count(this.#blocks.drop(words[i] ?? 0, words[i + 1] ?? 0), -1);
    }
  }

  clear(): void {
    this.#blocks.clear();
    this.#ids.clear();
    this.#salts.length = 0;
    this.#free.length = 0;
    this.#isActive = false;
  }

  /** undefined while no salt was ever seen. */
  state(): NamespaceState | undefined {
    if (!this.#isActive) return undefined;
    const salts: string[] = [];
    const rows = this.#salts.map((entry) => entry === undefined ? 0 : salts.push(entry.text) - 1);
    const blocks: string[] = [];
    const of: number[] = [];
    const counts: number[] = [];
    for (const { low, high, value, count } of this.#blocks.entries()) {
      blocks.push(hex(high) + hex(low));
      counts.push(count);
      if (value === UNSALTED) of.push(-1);
      else of.push(value === AMBIGUOUS ? AMBIGUOUS_ROW : rows[value - FIRST_SALT] ?? -1);
    }
    return {
      salts,
      blocks: blocks.join(""),
      of,
      ...(counts.every((count) => count === 1) ? {} : { counts }),
    };
  }

  /** Takes what `state` gave. Throws `TypeError` when it is not of that shape. */
  restore(state: NamespaceState | undefined): void {
    this.clear();
    if (state === undefined) return;
    this.#isActive = true;
    if (state.blocks.length !== 16 * state.of.length || !/^[0-9a-f]*$/.test(state.blocks)) {
      throw new TypeError("namespaces: blocks and salts do not fit each other");
    }
    for (let i = 0; i < state.of.length; i++) {
      const row = state.of[i] ?? -1;
      const salt = state.salts[row];
      if (row >= 0 && salt === undefined) throw new TypeError("namespaces: a salt is missing");
      const value = row === AMBIGUOUS_ROW
        ? AMBIGUOUS
        : salt === undefined
        ? UNSALTED
        : this.#idOf(salt);
      this.#blocks.restore({
        high: parseInt(state.blocks.slice(16 * i, 16 * i + 8), 16),
        low: parseInt(state.blocks.slice(16 * i + 8, 16 * i + 16), 16),
        value,
        count: state.counts?.[i] ?? 1,
      });
      this.#count(value, 1);
    }
  }

  #idOf(salt: string): number {
    const known = this.#ids.get(salt);
    if (known !== undefined) return known;
    const row = this.#free.pop() ?? this.#salts.length;
    this.#salts[row] = { text: salt, blocks: 0 };
    this.#ids.set(salt, row + FIRST_SALT);
    return row + FIRST_SALT;
  }

  /** A salt whose last block is gone is forgotten: there may be one for each session. */
  #count(id: number, change: number): void {
    const entry = this.#salts[id - FIRST_SALT];
    if (id < FIRST_SALT || entry === undefined) return;
    entry.blocks += change;
    if (entry.blocks > 0) return;
    this.#ids.delete(entry.text);
    this.#salts[id - FIRST_SALT] = undefined;
    this.#free.push(id - FIRST_SALT);
  }
}

const NO_SALT: { readonly salt: undefined } = { salt: undefined };

function wordsOf(hashes: BigUint64Array): Uint32Array {
  return new Uint32Array(hashes.buffer, hashes.byteOffset, 2 * hashes.length);
}

function hex(word: number): string {
  return word.toString(16).padStart(8, "0");
}
