/**
 * Reads a dump as a recovery would, and says what is in it and whether it is whole.
 */

import { decoderText } from "../kv/decoder_text.ts";
import type { Clock } from "../runtime/runtime.ts";
import { DUMP_FORMAT, type HeaderLine, type LaneLine } from "./dump_format.ts";
import { type DumpSink, readDump } from "./dump_reader.ts";
import { readDynamoDump } from "./dynamo_reader.ts";
import { gunzip } from "./gunzip.ts";

export interface LaneSummary {
  readonly model: string;
  readonly group: string;
  readonly worker: string;
  readonly dpRank: number;
  readonly blockSize: number;
  readonly blocks: number;
  readonly epoch: string;
  /** Decimal u64, or null when the dump does not say. */
  readonly cursor: string | null;
  readonly degraded: string | null;
  /** Letters of decoder state. */
  readonly decoderState: number;
}

export interface DumpReport {
  readonly format: "baton" | "dynamo";
  readonly header?: HeaderLine;
  /** Lanes that verified, in the order of the dump. */
  readonly lanes: readonly LaneSummary[];
  readonly blocks: number;
  readonly loads: number;
  /** Uncompressed. */
  readonly bytes: number;
  /** Why it is not whole; absent when it is. */
  readonly error?: string;
}

const PEEK_BYTES = 512;

/** Never rejects for what is in the dump: that is `error`. Compressed input is recognised. */
export async function verifyDump(
  input: ReadableStream<Uint8Array>,
  options: { readonly clock: Clock },
): Promise<DumpReport> {
  const lanes: LaneSummary[] = [];
  const seen = { bytes: 0, blocks: 0, loads: 0 };
  let header: HeaderLine | undefined;
  let format: DumpReport["format"] = "baton";
  const sink: DumpSink = {
    header: (line) => {
      header = line;
    },
    lane: () => true,
    commit: (cut, head) => {
      seen.blocks += cut.blocks.count;
      lanes.push(summary(head, cut.blocks.count, cut.decoderState));
    },
    load: () => {
      seen.loads += 1;
    },
  };
  let error: string | undefined;
  try {
    const { start, chunks } = await peek(input);
    format = new TextDecoder().decode(start).includes(`"format":"${DUMP_FORMAT}"`)
      ? "baton"
      : "dynamo";
    const counted = count(chunks, (bytes) => (seen.bytes += bytes));
    const limits = { clock: options.clock, maxLaneBlocks: 2 ** 31 - 1 };
    if (format === "baton") await readDump(counted, sink, limits);
    else await readDynamoDump(counted, sink, { ...limits, catalogue: "any" });
  } catch (caught) {
    error = caught instanceof Error ? `${caught.name}: ${caught.message}` : String(caught);
  }
  return {
    format,
    ...(header === undefined ? {} : { header }),
    lanes,
    ...seen,
    ...(error === undefined ? {} : { error }),
  };
}

/** The report as lines for people. */
export function printReport(report: DumpReport): string[] {
  const lines = [
    report.format === "baton"
      ? `Baton dump${report.header === undefined ? "" : ` of ${report.header.created}`}`
      : "Dynamo dump (no cursors, no digests: only its syntax can be verified)",
  ];
  for (const lane of report.lanes) {
    const where = `${lane.model} / ${lane.group} / worker ${lane.worker} rank ${lane.dpRank}`;
    const cursor = lane.cursor === null ? "" : `, cursor ${lane.cursor}`;
    const degraded = lane.degraded === null ? "" : `, degraded: ${lane.degraded}`;
    lines.push(`  ${where}: ${lane.blocks} blocks of ${lane.blockSize} tokens${cursor}${degraded}`);
  }
  const totals = `${report.lanes.length} lanes, ${report.blocks} blocks, ${report.bytes} bytes`;
  lines.push(report.error === undefined ? `whole: ${totals}` : `NOT WHOLE after ${totals}`);
  if (report.error !== undefined) lines.push(`  ${report.error}`);
  return lines;
}

function summary(head: LaneLine, blocks: number, decoderState: unknown): LaneSummary {
  const { model, group, worker, dpRank, blockSize, epoch, cursor, degraded } = head;
  let letters = 0;
  if (decoderState !== undefined) {
    for (const part of decoderText(decoderState)) letters += part.length;
  }
  return {
    model,
    group,
    worker,
    dpRank,
    blockSize,
    blocks,
    epoch,
    cursor,
    degraded,
    decoderState: letters,
  };
}

/** The first bytes, and all chunks, unpacked if they are gzip (RFC 1952: 1f 8b). */
async function peek(
  input: ReadableStream<Uint8Array>,
): Promise<{ start: Uint8Array; chunks: AsyncIterable<Uint8Array> }> {
  let { start, chunks } = await first(input);
  if (start[0] === 0x1f && start[1] === 0x8b) {
    ({ start, chunks } = await first(ReadableStream.from(gunzip(chunks))));
  }
  return { start, chunks };
}

async function first(input: ReadableStream<Uint8Array>) {
  const reader = input.getReader();
  const held: Uint8Array[] = [];
  let length = 0;
  while (length < PEEK_BYTES) {
    const { done, value } = await reader.read();
    if (done) break;
    held.push(value);
    length += value.length;
  }
  const start = new Uint8Array(length);
  let at = 0;
  for (const chunk of held) {
    start.set(chunk, at);
    at += chunk.length;
  }
  async function* chunks(): AsyncGenerator<Uint8Array> {
    yield* held;
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  }
  return { start: start.subarray(0, PEEK_BYTES), chunks: chunks() as AsyncIterable<Uint8Array> };
}

async function* count(
  chunks: AsyncIterable<Uint8Array>,
  onBytes: (bytes: number) => void,
): AsyncGenerator<Uint8Array> {
  for await (const chunk of chunks) {
    onBytes(chunk.length);
    yield chunk;
  }
}
