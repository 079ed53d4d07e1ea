/**
 * Writes a Baton dump, slice by slice.
 *
 * A lane is cut when its turn comes, so that its cursor and its blocks belong together; its columns
 * are then written out while events go on. Memory: the largest lane's columns, which serve lane after
 * lane, and one slice, however large the index is.
 */

import { type LaneBlocks, NO_BLOCKS } from "../kv/blocks.ts";
import { decoderText } from "../kv/decoder_text.ts";
import { RowBuilder } from "../kv/lane_blocks.ts";
import {
  DUMP_FORMAT,
  DUMP_VERSION,
  type DumpLine,
  HASH_ALGORITHM,
  HASH_SEED,
  type LaneLine,
  MAX_DECODER_PIECE,
  MAX_RUN_BLOCKS,
} from "./dump_format.ts";
import { loadLines, type LoadProvider } from "./load_provider.ts";
import { LaneDigest } from "./lane_digest.ts";
import {
  dumpable,
  type LaneCut,
  type LaneStore,
  type RecoverableLane,
  tellable,
  UNNUMBERED,
} from "./lane_port.ts";
import { SliceBuffer } from "./slice_buffer.ts";

export interface DumpSource {
  readonly store: LaneStore;
  /** Names this run of this replica. */
  readonly replica: string;
  /** Wall clock, milliseconds since 1970. */
  readonly nowMs: number;
  /** Which lanes to write; all when absent. */
  readonly wanted?: (lane: RecoverableLane) => boolean;
  readonly exportLoad?: LoadProvider["exportLoad"];
  /** Told the blocks of each slice's lane as it is written out, for metrics. */
  readonly onLane?: (cut: LaneCut) => void;
  /** Asked every 64 blocks: true ends the slice, however short it is. */
  readonly mustRest?: () => boolean;
}

/** Output is handed over when it has reached this many bytes: some 0.3 ms of work in compiled code. */
export const SLICE_BYTES = 64 * 1024;

/** Cuts of one lane that may become void before it is left out. */
const MAX_CUTS = 3;

/** Letters of a lane's reason for being degraded. */
const MAX_REASON = 200;

const encoder = new TextEncoder();

/**
 * The dump as slices of about 64 KiB. Between two slices no work is done and other code may run:
 * lanes that were closed meanwhile are left out, lanes that were opened meanwhile too.
 */
export async function* dumpSlices(
  source: DumpSource,
): AsyncGenerator<Uint8Array<ArrayBuffer>, void> {
  const out = new SliceBuffer(SLICE_BYTES + 4096);
  const chosen = source.store.lanes().filter((lane) =>
    (dumpable(lane) || tellable(lane)) && (source.wanted?.(lane) ?? true)
  );
  line(out, {
    kind: "header",
    format: DUMP_FORMAT,
    version: DUMP_VERSION,
    replica: source.replica,
    hash: HASH_ALGORITHM,
    seed: HASH_SEED,
    created: new Date(source.nowMs).toISOString(),
    lanes: chosen.length,
    blocks: chosen.reduce((sum, lane) => sum + (tellable(lane) ? 0 : lane.blocks), 0),
  });
  let lanes = 0;
  let blocks = 0;
  const rows = new RowBuilder(false);
  for (const lane of chosen) {
    const cut = tellable(lane) ? nothingOf(lane) : await cutLane(source, lane, rows);
    if (cut === undefined || source.store.lane(lane.key) !== lane) continue;
    source.onLane?.(cut);
    yield* laneSlices(out, cut, source.store.blockSize(lane.key), source.mustRest);
    lanes += 1;
    blocks += cut.blocks.count;
  }
  for (const text of loadLines(source.exportLoad)) {
    out.text(`${text}\n`);
    if (out.length >= SLICE_BYTES) yield out.take();
  }
  line(out, { kind: "trailer", lanes, blocks });
  yield out.take();
}

/**
 * That there is such a lane, and why it cannot be had: with none of its blocks, since nobody could
 * know which of them are gone by the time that he hears of the next event.
 */
function nothingOf(lane: RecoverableLane): LaneCut {
  const { key, epoch } = lane;
  const cursor = undefined;
  return { key, epoch, cursor, decoderState: undefined, blocks: NO_BLOCKS, degraded: UNNUMBERED };
}

/**
 * Cuts a lane that is still there and can be gone on from. A cut of a lane that starts over meanwhile
 * is made again; one that does nothing else is left out, and the joiner asks its worker or another.
 * The cut is good until `rows` are used for another.
 */
export async function cutLane(
  source: DumpSource,
  lane: RecoverableLane,
  rows: RowBuilder,
): Promise<LaneCut | undefined> {
  for (let tried = 0; tried < MAX_CUTS; tried += 1) {
    if (source.store.lane(lane.key) !== lane) return undefined;
    if (!dumpable(lane) && !tellable(lane)) return undefined;
    const cut = await lane.cutInSlices(rows);
    const isGood = cut?.cursor !== undefined || lane.isUnnumbered;
    if (cut !== undefined && isGood && source.store.lane(lane.key) === lane) return cut;
  }
  return undefined;
}

function* laneSlices(
  out: SliceBuffer,
  cut: LaneCut,
  blockSize: number,
  mustRest: () => boolean = () => false,
) {
  const { blocks, key } = cut;
  const head: LaneLine = {
    kind: "lane",
    model: key.model,
    group: key.group,
    worker: key.worker,
    dpRank: key.dpRank,
    blockSize,
    epoch: cut.epoch,
    cursor: cut.cursor === undefined ? null : cut.cursor.toString(),
    degraded: cut.degraded?.slice(0, MAX_REASON) ?? null,
    tier: blocks.tiers[0] ?? 1,
    count: blocks.count,
  };
  const digest = new LaneDigest();
  digest.text(line(out, head));
  if (cut.decoderState !== undefined && cut.decoderState !== null) {
    for (const text of pieces(decoderText(cut.decoderState))) {
      digest.text(encoder.encode(text));
      line(out, { kind: "decoder", text });
      if (out.length >= SLICE_BYTES) yield out.take();
    }
  }
  const bytes = columnBytes(blocks);
  for (let from = 0; from < blocks.count; from += MAX_RUN_BLOCKS) {
    const to = Math.min(from + MAX_RUN_BLOCKS, blocks.count);
    run(out, blocks, bytes, from, to, head.tier);
    digest.rows(blocks, from, to);
    if (out.length >= SLICE_BYTES || mustRest()) yield out.take();
  }
  line(out, { kind: "lane_end", count: blocks.count, digest: digest.hex() });
  if (out.length >= SLICE_BYTES) yield out.take();
}

/** The same text in pieces as long as a line may have. */
function* pieces(parts: Iterable<string>): Generator<string> {
  let text = "";
  for (const part of parts) {
    text += part;
    let start = 0;
    while (text.length - start > MAX_DECODER_PIECE) {
      const end = pieceEnd(text, start);
      yield text.slice(start, end);
      start = end;
    }
    if (start > 0) text = text.slice(start);
  }
  if (text !== "") yield text;
}

/** Ends a piece between letters: half a surrogate pair would not survive UTF-8. */
function pieceEnd(text: string, start: number): number {
  const end = Math.min(start + MAX_DECODER_PIECE, text.length);
  const last = text.charCodeAt(end - 1);
  return end < text.length && last >= 0xd800 && last < 0xdc00 ? end - 1 : end;
}

function line(out: SliceBuffer, value: DumpLine): Uint8Array {
  const bytes = encoder.encode(JSON.stringify(value));
  out.bytes(bytes);
  out.text("\n");
  return bytes;
}

interface ColumnBytes {
  readonly engines: Uint8Array;
  readonly locals: Uint8Array;
  readonly parents: Uint8Array;
  readonly copies: Uint8Array;
}

function columnBytes(blocks: LaneBlocks): ColumnBytes {
  return {
    engines: bytesOf(blocks.engines),
    locals: bytesOf(blocks.locals),
    parents: bytesOf(blocks.parents),
    copies: bytesOf(blocks.copies),
  };
}

function bytesOf(column: BigUint64Array | Int32Array | Uint16Array): Uint8Array {
  return new Uint8Array(column.buffer, column.byteOffset, column.byteLength);
}

/** Columns are left out where every row has the value that a reader assumes. */
function run(
  out: SliceBuffer,
  blocks: LaneBlocks,
  bytes: ColumnBytes,
  from: number,
  to: number,
  laneTier: number,
): void {
  const { parents, tiers, copies } = blocks;
  let chain = true;
  let oneTier = true;
  let oneCopy = true;
  for (let row = from; row < to; row += 1) {
    if (parents[row] !== row - 1) chain = false;
    if (tiers[row] !== laneTier) oneTier = false;
    if (copies[row] !== 1) oneCopy = false;
  }
  out.text(`{"kind":"run","count":${to - from},"engines":"`);
  out.base64(bytes.engines.subarray(from * 8, to * 8));
  out.text(`","locals":"`);
  out.base64(bytes.locals.subarray(from * 8, to * 8));
  if (!chain) {
    out.text(`","parents":"`);
    out.base64(bytes.parents.subarray(from * 4, to * 4));
  }
  if (!oneTier) {
    out.text(`","tiers":"`);
    out.base64(tiers.subarray(from, to));
  }
  if (!oneCopy) {
    out.text(`","copies":"`);
    out.base64(bytes.copies.subarray(from * 2, to * 2));
  }
  out.text(`"}\n`);
}
