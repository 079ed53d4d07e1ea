/**
 * Newline-delimited JSON, in and out.
 */

import { byteLines } from "./byte_lines.ts";

/** A line is not JSON. */
export class NotJson extends Error {
  override readonly name = "NotJson";
  /** Counted from 1. */
  readonly line: number;
  constructor(line: number, cause: unknown) {
    super(`line ${line} is not JSON`, { cause });
    this.line = line;
  }
}

export interface ReadNdjsonOptions {
  readonly maxLineBytes: number;
}

/**
 * Batches of parsed records; blank lines are skipped. Throws `NotJson` or `LineTooLong`. Numbers
 * above 2^53 lose bits here: formats that carry u64 carry them as strings.
 */
export async function* readNdjson(
  chunks: AsyncIterable<Uint8Array>,
  options: ReadNdjsonOptions,
): AsyncGenerator<unknown[], void> {
  const decoder = new TextDecoder();
  let number = 0;
  for await (const lines of byteLines(chunks, options)) {
    const records: unknown[] = [];
    for (const line of lines) {
      number += 1;
      const text = decoder.decode(line).trim();
      if (text === "") continue;
      try {
        records.push(JSON.parse(text));
      } catch (error) {
        throw new NotJson(number, error);
      }
    }
    if (records.length > 0) yield records;
  }
}

/** One record as a line, in bytes. */
export function ndjsonLine(record: unknown): Uint8Array<ArrayBuffer> {
  return new TextEncoder().encode(JSON.stringify(record) + "\n");
}

/** Records as an NDJSON body, made one by one as the reader asks. */
export function writeNdjson(
  records: Iterable<unknown> | AsyncIterable<unknown>,
): ReadableStream<Uint8Array> {
  return ReadableStream.from(lines(records));
}

async function* lines(records: Iterable<unknown> | AsyncIterable<unknown>) {
  for await (const record of records) yield ndjsonLine(record);
}
