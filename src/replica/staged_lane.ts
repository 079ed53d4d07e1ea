/**
 * A lane of an incoming dump while its lines come in: columns that grow with what really arrived,
 * never with what was announced.
 */

import type { LaneBlocks } from "../kv/blocks.ts";
import { NotJson } from "../streams/json_push.ts";
import { DecoderTextReader } from "../kv/decoder_text.ts";
import { base64Length, decodeBase64 } from "./base64.ts";
import { DumpBroken, type LaneLine, MAX_RUN_BLOCKS, type RunLine } from "./dump_format.ts";
import { LaneDigest } from "./lane_digest.ts";
import { StagedColumns } from "./staged_columns.ts";

/** Letters of decoder text in a lane at most: so many, and so many more for each block. */
const MAX_DECODER_TEXT = 4 * 1024 * 1024;
const MAX_DECODER_TEXT_PER_BLOCK = 64;
/** Keys follow from locals and parents; the index computes them and never takes a peer's. */
export const NO_KEYS = new BigUint64Array(0);

const encoder = new TextEncoder();
const RUN_START = encoder.encode(`{"kind":"run","count":`);
const ENGINES = encoder.encode(`,"engines":"`);
const LOCALS = encoder.encode(`","locals":"`);
const RUN_END = encoder.encode(`"}`);

export class StagedLane {
  readonly head: LaneLine;
  readonly columns: StagedColumns;
  readonly #digest = new LaneDigest();
  #decoder: DecoderTextReader | undefined;
  /** Why the decoder's state is of no use: that costs this lane, and not the rest of the dump. */
  #decoderError: TypeError | undefined;
  #decoderLength = 0;
  #count = 0;

  /** Whatever `columns` hold is overwritten. */
  constructor(head: LaneLine, headBytes: Uint8Array, columns = new StagedColumns()) {
    this.head = head;
    this.columns = columns;
    this.#digest.text(headBytes);
  }

  get count(): number {
    return this.#count;
  }

  decoderText(text: string): void {
    this.#decoderLength += text.length;
    if (this.#decoderLength > MAX_DECODER_TEXT + MAX_DECODER_TEXT_PER_BLOCK * this.head.count) {
      throw new DumpBroken("decoder state too long");
    }
    if (this.#count > 0) throw new DumpBroken("decoder line after the first run line");
    this.#digest.text(encoder.encode(text));
    const decoder = this.#decoder ??= new DecoderTextReader();
    if (this.#decoderError === undefined) this.#decoding(() => decoder.push(text));
  }

  /** Adds the blocks of a run line. Throws `DumpBroken` for anything that is not exactly right. */
  run(run: RunLine): void {
    const from = this.#count;
    const to = from + run.count;
    if (to > this.head.count) throw new DumpBroken("more blocks than the lane line announced");
    const { columns } = this;
    columns.reserve(to, from, this.head.count);
    const column = (text: string, bytes: Uint8Array, name: string): void => {
      if (!decodeBase64(encoder.encode(text), bytes)) {
        throw new DumpBroken(`bad base64 in "${name}"`);
      }
    };
    column(run.engines, new Uint8Array(columns.engines.buffer, from * 8, run.count * 8), "engines");
    column(run.locals, new Uint8Array(columns.locals.buffer, from * 8, run.count * 8), "locals");
    const parents = columns.parents.subarray(from, to);
    if (run.parents === undefined) {
      for (let row = from; row < to; row += 1) columns.parents[row] = row - 1;
    } else {
      column(run.parents, new Uint8Array(parents.buffer, from * 4, run.count * 4), "parents");
      for (let at = 0; at < run.count; at += 1) {
        const parent = parents[at] as number;
        if (parent < -1 || parent >= from + at) throw new DumpBroken("a child before its parent");
      }
    }
    const tiers = columns.tiers.subarray(from, to);
    if (run.tiers === undefined) tiers.fill(this.head.tier);
    else column(run.tiers, tiers, "tiers");
    const copies = columns.copies.subarray(from, to);
    if (run.copies === undefined) copies.fill(1);
    else column(run.copies, new Uint8Array(copies.buffer, from * 2, run.count * 2), "copies");
    for (let at = 0; at < run.count; at += 1) {
      const tier = tiers[at] as number;
      if (tier < 1 || tier > 15) throw new DumpBroken("a block with an unknown tier");
      if (copies[at] === 0) throw new DumpBroken("a block without a copy");
    }
    this.#count = to;
    this.#digest.rows(this.#rows(), from, to);
  }

  /**
   * Adds a run line straight from its bytes, if it is spelled as our writer spells the usual one: a
   * chain, in the lane's tier, one copy each. False, and nothing added, for any other spelling: then
   * it has to be parsed. Nearly all lines are of this kind, and parsing them would leave some 3 KiB of
   * garbage each.
   */
  usualRun(line: Uint8Array): boolean {
    let at = after(line, 0, RUN_START);
    if (at < 0) return false;
    let count = 0;
    for (let digits = 0; digits < 2; digits += 1) {
      const digit = (line[at] ?? 0) - 48;
      if (digit < 0 || digit > 9) break;
      count = count * 10 + digit;
      at += 1;
    }
    const from = this.#count;
    const to = from + count;
    if (count < 1 || count > MAX_RUN_BLOCKS || to > this.head.count) return false;
    const { tier } = this.head;
    if (tier < 1 || tier > 15) return false;
    const letters = base64Length(count * 8);
    const engines = after(line, at, ENGINES);
    const locals = engines < 0 ? -1 : after(line, engines + letters, LOCALS);
    if (locals < 0 || after(line, locals + letters, RUN_END) !== line.length) return false;
    const { columns } = this;
    columns.reserve(to, from, this.head.count);
    const column = (start: number, target: BigUint64Array): boolean =>
      decodeBase64(
        line.subarray(start, start + letters),
        new Uint8Array(target.buffer, from * 8, count * 8),
      );
    if (!column(engines, columns.engines) || !column(locals, columns.locals)) return false;
    for (let row = from; row < to; row += 1) columns.parents[row] = row - 1;
    columns.tiers.fill(tier, from, to);
    columns.copies.fill(1, from, to);
    this.#count = to;
    this.#digest.rows(this.#rows(), from, to);
    return true;
  }

  /**
   * The verified content, in the memory of `columns`; `DumpBroken` when count or digest do not match
   * what arrived.
   */
  finish(count: number, digest: string): { blocks: LaneBlocks; decoderState: unknown } {
    if (count !== this.#count || count !== this.head.count) {
      throw new DumpBroken(`a lane has ${this.#count} blocks instead of ${count}`);
    }
    if (digest !== this.#digest.hex()) throw new DumpBroken("a lane's digest does not match");
    const rows = this.#rows();
    const blocks: LaneBlocks = {
      ...rows,
      engines: rows.engines.subarray(0, count),
      locals: rows.locals.subarray(0, count),
      parents: rows.parents.subarray(0, count),
      tiers: rows.tiers.subarray(0, count),
      copies: rows.copies.subarray(0, count),
    };
    const decoder = this.#decoder;
    const state = decoder === undefined ? undefined : this.#decoding(() => decoder.finish());
    return { blocks, decoderState: this.#decoderError ?? state };
  }

  /** A text that is not JSON breaks the dump; a state of another shape is one that we cannot use. */
  #decoding<Result>(work: () => Result): Result | undefined {
    try {
      return work();
    } catch (error) {
      if (error instanceof TypeError) {
        this.#decoderError ??= error;
        return undefined;
      }
      if (!(error instanceof NotJson)) throw error;
      throw new DumpBroken(`the decoder's state is not JSON: ${error.message}`, { cause: error });
    }
  }

  #rows(): LaneBlocks {
    return {
      count: this.#count,
      engines: this.columns.engines,
      locals: this.columns.locals,
      parents: this.columns.parents,
      tiers: this.columns.tiers,
      copies: this.columns.copies,
      keys: NO_KEYS,
    };
  }
}

/** Where `text` ends if it stands at `at`, else -1. */
function after(line: Uint8Array, at: number, text: Uint8Array): number {
  for (let letter = 0; letter < text.length; letter += 1) {
    if (line[at + letter] !== text[letter]) return -1;
  }
  return at + text.length;
}
