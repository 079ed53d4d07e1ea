/**
 * Reads a version's log file from another process: the last lines, and what is added from then on,
 * also over rotations and deletions.
 */

import type { Clock, Files } from "../runtime/runtime.ts";
import { FileMissing } from "../runtime/runtime.ts";
import { sleep } from "./wait.ts";

const BLOCK_BYTES = 64 * 1024;
const LOOK_MS = 200;

/** Where reading has come to in which file. */
interface Position {
  readonly inode: number;
  readonly offset: number;
}

/**
 * The last lines of the file (and, if it has fewer, of the one rotated before), oldest first; looks
 * no further than `end` in the file.
 */
export async function tailLogFile(
  files: Files,
  path: string,
  lines: number,
  end = Number.MAX_SAFE_INTEGER,
): Promise<string[]> {
  const current = await lastLines(files, path, lines, end);
  if (current.length >= lines) return current;
  return [...await lastLines(files, `${path}.1`, lines - current.length), ...current];
}

export interface FollowOptions {
  readonly files: Files;
  readonly clock: Clock;
  readonly path: string;
  /** How many of the last lines come first. */
  readonly tail: number;
  readonly signal: AbortSignal;
  readonly onLines: (lines: string[]) => void;
}

/** Hands out the last lines and then new ones as they come, until the signal is set. */
export async function followLogFile(options: FollowOptions): Promise<void> {
  const { files, clock, path, signal, onLines } = options;
  const info = await files.info(path);
  let at: Position | undefined = info === undefined
    ? undefined
    : { inode: info.inode, offset: info.size };
  if (options.tail > 0) {
    // Up to the position: what comes meanwhile is read from there, so it is seen once.
    const lines = await tailLogFile(files, path, options.tail, at?.offset ?? 0);
    if (lines.length > 0) onLines(lines);
  }
  const text = new PartialLines(onLines);
  while (!signal.aborted) {
    at = await advance(files, path, at, text);
    await sleep(clock, LOOK_MS, signal).catch(() => {});
  }
}

/** Reads on from a position; follows the file to the name it was rotated to, then the new one. */
async function advance(
  files: Files,
  path: string,
  at: Position | undefined,
  text: PartialLines,
): Promise<Position | undefined> {
  const info = await files.info(path);
  let offset = 0;
  if (at !== undefined && info?.inode === at.inode) {
    // Shorter than it was: it was emptied in place.
    offset = info.size < at.offset ? 0 : at.offset;
  } else if (at !== undefined) {
    const rotated = await files.info(`${path}.1`);
    if (rotated?.inode === at.inode) await readFrom(files, `${path}.1`, at.offset, text);
    text.end();
  }
  if (info === undefined) return undefined;
  return { inode: info.inode, offset: offset + await readFrom(files, path, offset, text) };
}

/** Reads to the end and returns how many bytes that was. */
async function readFrom(
  files: Files,
  path: string,
  offset: number,
  text: PartialLines,
): Promise<number> {
  let bytes = 0;
  try {
    const reader = (await files.stream(path, offset)).getReader();
    while (true) {
      const { done, value } = await reader.read();
      if (done) return bytes;
      bytes += value.length;
      text.push(value);
    }
  } catch (error) {
    if (error instanceof FileMissing) return bytes;
    throw error;
  }
}

class PartialLines {
  readonly #onLines: (lines: string[]) => void;
  readonly #decoder = new TextDecoder();
  #rest = "";

  constructor(onLines: (lines: string[]) => void) {
    this.#onLines = onLines;
  }

  push(chunk: Uint8Array): void {
    const lines = (this.#rest + this.#decoder.decode(chunk, { stream: true })).split("\n");
    this.#rest = lines.pop() ?? "";
    if (lines.length > 0) this.#onLines(lines);
  }

  end(): void {
    if (this.#rest !== "") this.#onLines([this.#rest]);
    this.#rest = "";
  }
}

/** Reads backwards in growing steps until there are enough line ends. */
async function lastLines(
  files: Files,
  path: string,
  lines: number,
  end = Number.MAX_SAFE_INTEGER,
): Promise<string[]> {
  const size = Math.min((await files.info(path))?.size ?? 0, end);
  if (size === 0 || lines <= 0) return [];
  for (let length = BLOCK_BYTES;; length *= 4) {
    const start = Math.max(0, size - length);
    const text = await readText(files, path, start, size - start);
    const all = text.split("\n");
    if (all.at(-1) === "") all.pop();
    // From the middle of the file the first one is a fragment.
    if (start > 0) all.shift();
    if (start === 0 || all.length >= lines) return all.slice(-lines);
  }
}

async function readText(
  files: Files,
  path: string,
  start: number,
  length: number,
): Promise<string> {
  const decoder = new TextDecoder();
  const reader = (await files.stream(path, start)).getReader();
  let text = "";
  let left = length;
  while (left > 0) {
    const { done, value } = await reader.read();
    if (done) return text + decoder.decode();
    const piece = value.subarray(0, left);
    left -= piece.length;
    text += decoder.decode(piece, { stream: true });
  }
  await reader.cancel();
  return text + decoder.decode();
}
