/**
 * Reads a Baton dump: a lane is given on only when its end line has verified all of it.
 *
 * Whatever comes (garbage, truncation, lies about sizes) ends in `DumpBroken` or `DumpRefused`, with
 * memory bounded by the largest lane that is wanted; lanes given on before stay valid.
 */

import { byteLines, LineCut, LineTooLong } from "../streams/byte_lines.ts";
import type { Clock } from "../runtime/runtime.ts";
import {
  checkLine,
  DUMP_VERSION,
  DumpBroken,
  type DumpLine,
  DumpRefused,
  HASH_ALGORITHM,
  HASH_SEED,
  type HeaderLine,
  keyOf,
  type LaneLine,
  MAX_LINE_BYTES,
} from "./dump_format.ts";
import type { LaneCut } from "./lane_port.ts";
import { StagedColumns } from "./staged_columns.ts";
import { StagedLane } from "./staged_lane.ts";
import { WorkSlice } from "../kv/work_slice.ts";

export interface DumpSink {
  header?(header: HeaderLine): void;
  /** Whether this lane is wanted; others are skipped without being held. */
  lane(head: LaneLine): boolean;
  /**
   * A verified lane. The reader waits for the promise before it reads on. True says that nobody reads
   * the cut's blocks any more: their memory is the next lane's. Otherwise they are the sink's.
   */
  commit(cut: LaneCut, head: LaneLine): void | Promise<boolean | void>;
  load?(load: unknown): void;
}

export interface DumpReaderOptions {
  readonly clock: Clock;
  /** Blocks of one lane at most. */
  readonly maxLaneBlocks: number;
}

/** Totals of a dump that was read to its trailer. */
export interface DumpTotals {
  readonly header: HeaderLine;
  readonly lanes: number;
  readonly blocks: number;
}

/** Bytes of load hints taken from one dump at most: a peer must not fill our memory with hints. */
const MAX_LOAD_BYTES = 8 * 1024 * 1024;

/** Reads to the trailer. Throws if there is none, however cleanly the stream ended. */
export async function readDump(
  chunks: AsyncIterable<Uint8Array>,
  sink: DumpSink,
  options: DumpReaderOptions,
): Promise<DumpTotals> {
  const parser = new DumpParser(sink, options);
  const slice = new WorkSlice(options.clock);
  try {
    const limits = { maxLineBytes: MAX_LINE_BYTES, unendedLine: "refuse" } as const;
    for await (const lines of byteLines(chunks, limits)) {
      for (const line of lines) {
        const committed = parser.line(line);
        if (committed !== undefined) await committed;
        const rest = slice.rest();
        if (rest !== undefined) await rest;
      }
    }
  } catch (error) {
    if (error instanceof LineCut || error instanceof LineTooLong) {
      throw new DumpBroken(error.message, { cause: error });
    }
    throw error;
  }
  return parser.end();
}

const decoder = new TextDecoder("utf-8", { fatal: true });
const RUN_PREFIX = new TextEncoder().encode(`{"kind":"run",`);

class DumpParser {
  readonly #sink: DumpSink;
  readonly #options: DumpReaderOptions;
  readonly #seen = new Set<string>();
  #header: HeaderLine | undefined;
  #staged: StagedLane | undefined;
  #columns = new StagedColumns();
  #skipped: LaneLine | undefined;
  #lanes = 0;
  #blocks = 0;
  #loadBytes = 0;
  #ended = false;

  constructor(sink: DumpSink, options: DumpReaderOptions) {
    this.#sink = sink;
    this.#options = options;
  }

  /** Takes one line; the promise, if any, is that of a committed lane. */
  line(bytes: Uint8Array): Promise<void> | undefined {
    if (this.#skipped !== undefined && startsWith(bytes, RUN_PREFIX)) return undefined;
    if (this.#staged?.usualRun(bytes) === true) return undefined;
    if (this.#ended) throw new DumpBroken("a line after the trailer");
    const line = checkLine(parse(bytes));
    if (line === undefined) return undefined;
    if (this.#header === undefined) {
      if (line.kind !== "header") throw new DumpBroken("the first line is not a header");
      this.#begin(line);
      return undefined;
    }
    switch (line.kind) {
      case "lane":
        this.#open(line, bytes);
        return undefined;
      case "decoder":
        this.#inLane(line)?.decoderText(line.text);
        return undefined;
      case "run":
        this.#inLane(line)?.run(line);
        return undefined;
      case "lane_end":
        return this.#close(line.count, line.digest);
      case "load":
        this.#betweenLanes(line);
        this.#loadBytes += bytes.length;
        if (this.#loadBytes <= MAX_LOAD_BYTES) this.#sink.load?.(line.load);
        return undefined;
      case "trailer":
        this.#betweenLanes(line);
        if (line.lanes !== this.#lanes || line.blocks !== this.#blocks) {
          throw new DumpBroken(
            `the trailer counts ${line.lanes} lanes and ${line.blocks} blocks instead of ` +
              `${this.#lanes} and ${this.#blocks}`,
          );
        }
        this.#ended = true;
        return undefined;
      case "header":
        throw new DumpBroken("a second header");
    }
  }

  end(): DumpTotals {
    if (this.#header === undefined) throw new DumpBroken("an empty body");
    if (!this.#ended) throw new DumpBroken("the body ended before its trailer");
    return { header: this.#header, lanes: this.#lanes, blocks: this.#blocks };
  }

  #begin(header: HeaderLine): void {
    if (header.version !== DUMP_VERSION) {
      throw new DumpRefused(`dump version ${header.version}, this reader knows ${DUMP_VERSION}`);
    }
    if (header.hash !== HASH_ALGORITHM || header.seed !== HASH_SEED) {
      throw new DumpRefused(`hashes made by ${header.hash} with seed ${header.seed}`);
    }
    this.#sink.header?.(header);
    this.#header = header;
  }

  #open(head: LaneLine, bytes: Uint8Array): void {
    this.#betweenLanes(head);
    const id = JSON.stringify([head.model, head.group, head.worker, head.dpRank]);
    if (this.#seen.has(id)) throw new DumpBroken("a lane comes twice");
    // Only lanes that are wanted are remembered: they are ours, so they are few.
    if (this.#sink.lane(head) && head.count <= this.#options.maxLaneBlocks) {
      this.#seen.add(id);
      this.#staged = new StagedLane(head, bytes, this.#columns);
    } else {
      this.#skipped = head;
    }
  }

  #inLane(line: DumpLine): StagedLane | undefined {
    if (this.#staged === undefined && this.#skipped === undefined) {
      throw new DumpBroken(`a ${line.kind} line outside of a lane`);
    }
    return this.#staged;
  }

  #betweenLanes(line: DumpLine): void {
    if (this.#staged !== undefined || this.#skipped !== undefined) {
      throw new DumpBroken(`a ${line.kind} line before the end of a lane`);
    }
  }

  #close(count: number, digest: string): Promise<void> | undefined {
    const staged = this.#staged;
    const skipped = this.#skipped;
    this.#staged = undefined;
    this.#skipped = undefined;
    const head = staged?.head ?? skipped;
    if (head === undefined) throw new DumpBroken("a lane_end line outside of a lane");
    if (count !== head.count) throw new DumpBroken("lane line and lane end disagree on the count");
    this.#lanes += 1;
    this.#blocks += count;
    if (staged === undefined) return undefined;
    const content = staged.finish(count, digest);
    const cursor = head.cursor === null ? undefined : BigInt(head.cursor);
    const cut: LaneCut = {
      key: keyOf(head),
      epoch: head.epoch,
      cursor,
      ...content,
      ...(head.degraded === null ? {} : { degraded: head.degraded }),
    };
    this.#columns = new StagedColumns();
    const committed = this.#sink.commit(cut, head) ?? undefined;
    return committed?.then((isFree) => {
      if (isFree === true) this.#columns = staged.columns;
    });
  }
}

function parse(bytes: Uint8Array): unknown {
  try {
    return JSON.parse(decoder.decode(bytes));
  } catch (error) {
    throw new DumpBroken("a line is not JSON", { cause: error });
  }
}

function startsWith(bytes: Uint8Array, prefix: Uint8Array): boolean {
  if (bytes.length < prefix.length) return false;
  for (let at = 0; at < prefix.length; at += 1) if (bytes[at] !== prefix[at]) return false;
  return true;
}
