/**
 * Which tenant's namespace (cache salt) each block of a lane was stored under.
 *
 * Engines name the salt on the first block of a sequence only; a block that names none belongs to
 * its parent's. Nothing is kept until a lane has seen its first salt, so that lanes without tenants
 * pay nothing. One engine hash seen under two namespaces tells nothing any more: it is ambiguous.
 */

import { U64Table } from "./u64_table.ts";

/** As columns, for the dump: `of` is the index in `salts`, -1 = none, -2 = ambiguous. */
export interface NamespaceState {
  readonly salts: readonly string[];
  readonly blocks: BigUint64Array;
  readonly of: Int32Array;
  /** Copies of each block; absent when all are 1. */
  readonly counts?: Uint16Array;
}

const UNSALTED = 1;
const AMBIGUOUS = 2;
const FIRST_SALT = 3;
const AMBIGUOUS_ROW = -2;
/** Blocks that are copied or put back between two breaks: well under a millisecond. */
const AT_ONCE = 2048;

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
    return atOnce(this.#copying());
  }

  /**
   * As `state`, with `pause` awaited now and then. Nothing may be stored or removed meanwhile; what
   * comes of it when all was cleared is worth nothing.
   */
  stateInSlices(pause: () => Promise<void>): Promise<NamespaceState | undefined> {
    return inSlices(this.#copying(), pause);
  }

  /** What `state` gave, put back. Throws `TypeError` when it is not of that shape. */
  static from(state: NamespaceState | undefined): Namespaces {
    return atOnce(Namespaces.#building(state));
  }

  /** As `from`, with `pause` awaited now and then. */
  static fromInSlices(
    state: NamespaceState | undefined,
    pause: () => Promise<void>,
  ): Promise<Namespaces> {
    return inSlices(Namespaces.#building(state), pause);
  }

  *#copying(): Generator<void, NamespaceState | undefined> {
    if (!this.#isActive) return undefined;
    const salts: string[] = [];
    const rows = this.#salts.map((entry) => entry === undefined ? 0 : salts.push(entry.text) - 1);
    const { size } = this.#blocks;
    const words = new Uint32Array(2 * size);
    const of = new Int32Array(size);
    const counts = new Uint16Array(size);
    let at = 0;
    let isCounted = false;
    for (const { low, high, value, count } of this.#blocks.entries()) {
      words[2 * at] = low;
      words[2 * at + 1] = high;
      counts[at] = count;
      if (count !== 1) isCounted = true;
      if (value === UNSALTED) of[at] = -1;
      else of[at] = value === AMBIGUOUS ? AMBIGUOUS_ROW : rows[value - FIRST_SALT] ?? -1;
      at += 1;
      if (at % AT_ONCE === 0) yield;
    }
    const blocks = new BigUint64Array(words.buffer);
    return { salts, blocks, of, ...(isCounted ? { counts } : {}) };
  }

  static *#building(state: NamespaceState | undefined): Generator<void, Namespaces> {
    const made = new Namespaces();
    if (state === undefined) return made;
    made.#isActive = true;
    const { salts, blocks, of, counts } = state;
    const size = blocks.length;
    if (of.length !== size || (counts !== undefined && counts.length !== size)) {
      throw new TypeError("namespaces: blocks and salts do not fit each other");
    }
    const words = wordsOf(blocks);
    for (let at = 0; at < size; at++) {
      const row = of[at] ?? -1;
      const salt = row < 0 ? undefined : salts[row];
      if (row >= 0 && salt === undefined) throw new TypeError("namespaces: a salt is missing");
      const value = row === AMBIGUOUS_ROW
        ? AMBIGUOUS
        : salt === undefined
        ? UNSALTED
        : made.#idOf(salt);
      const low = words[2 * at] ?? 0;
      const high = words[2 * at + 1] ?? 0;
      made.#blocks.restore({ low, high, value, count: counts?.[at] ?? 1 });
      made.#count(value, 1);
      if (at % AT_ONCE === AT_ONCE - 1) yield;
    }
    return made;
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

function atOnce<Result>(work: Generator<void, Result>): Result {
  for (;;) {
    const step = work.next();
    if (step.done === true) return step.value;
  }
}

async function inSlices<Result>(
  work: Generator<void, Result>,
  pause: () => Promise<void>,
): Promise<Result> {
  for (;;) {
    const step = work.next();
    if (step.done === true) return step.value;
    await pause();
  }
}
