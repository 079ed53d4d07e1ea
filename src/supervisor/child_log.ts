/**
 * What children print: taken line by line, labelled with version and generation, kept in memory (the
 * last lines) and in one rotating file for each version.
 *
 * A child must never wait for its log: output is taken in the same turn it is read, whatever the disk
 * does, and what comes faster than it may be written is dropped and counted in a line of its own.
 * The form of a line, which `baton logs` prints as it is:
 *
 *     2026-01-31T12:00:00.000Z v2#7 err the text
 */

import type { VersionsConfig } from "../config/versions.ts";
import type { Log } from "../observe/log.ts";
import type { Clock, Files } from "../runtime/runtime.ts";
import { LogFile } from "./log_file.ts";

export interface LogLine {
  /** ms since 1970. */
  readonly at: number;
  readonly version: string;
  readonly generation: number;
  readonly stream: "stdout" | "stderr";
  readonly text: string;
}

/** Takes one generation's output. */
export interface ChildOutput {
  /** Never blocks and never throws. */
  write(stream: "stdout" | "stderr", chunk: Uint8Array): void;
  /** The child is gone: what is left of a last line is taken too. */
  close(): void;
}

export interface ChildLogsOptions {
  readonly runtime: { readonly files: Files; readonly clock: Clock };
  readonly log: Log;
  /** Where the files are: `<folder>/<version>.log`, `.log.1`, ... */
  readonly folder: string;
  readonly config: Pick<
    VersionsConfig,
    "logMaxBytes" | "logFiles" | "logTailLines" | "logBytesPerS"
  >;
}

/** Longer lines are broken: an endless one must not grow in memory. In UTF-16 units. */
const MAX_LINE = 16 * 1024;
/** Bound on what the last lines of one version take in memory, in UTF-16 units. */
const MAX_TAIL = 1024 * 1024;

/** The path of a version's log file. */
export function childLogPath(folder: string, version: string): string {
  return `${folder}/${version}.log`;
}

/** The line as it is in the file, without its end. */
export function formatLogLine(line: LogLine): string {
  const stream = line.stream === "stdout" ? "out" : "err";
  return `${
    new Date(line.at).toISOString()
  } ${line.version}#${line.generation} ${stream} ${line.text}`;
}

/** The logs of all versions of one service. */
export class ChildLogs {
  readonly #options: ChildLogsOptions;
  readonly #versions = new Map<string, VersionLog>();

  constructor(options: ChildLogsOptions) {
    this.#options = options;
  }

  /** Where a new generation's output goes. */
  open(version: string, generation: number): ChildOutput {
    return new Output(this.#of(version), version, generation);
  }

  /** The last lines of a version, oldest first. */
  tail(version: string, lines: number): LogLine[] {
    return lines <= 0 ? [] : this.#of(version).tail.slice(-lines);
  }

  /** Calls the listener with each line from now on; the returned function ends that. */
  follow(version: string, listener: (line: LogLine) => void): () => void {
    const { listeners } = this.#of(version);
    listeners.add(listener);
    return () => listeners.delete(listener);
  }

  /** Resolves when all that was taken so far has been written (or given up). */
  async flush(): Promise<void> {
    await Promise.all([...this.#versions.values()].map((version) => version.file.flush()));
  }

  /** Flushes and closes the files. */
  async close(): Promise<void> {
    await Promise.all([...this.#versions.values()].map((version) => version.file.close()));
  }

  #of(version: string): VersionLog {
    let found = this.#versions.get(version);
    if (found === undefined) {
      found = new VersionLog(this.#options, version);
      this.#versions.set(version, found);
    }
    return found;
  }
}

/** One version's lines, over all its generations. */
class VersionLog {
  readonly file: LogFile;
  readonly clock: Clock;
  readonly listeners = new Set<(line: LogLine) => void>();
  readonly #maxTail: number;
  readonly #bytesPerS: number;
  #tail: LogLine[] = [];
  #tailSize = 0;
  #credit: number;
  #creditAt: number;

  constructor(options: ChildLogsOptions, version: string) {
    const { runtime, log, folder, config } = options;
    this.clock = runtime.clock;
    this.file = new LogFile({
      files: runtime.files,
      clock: runtime.clock,
      log: log.with({ version }),
      folder,
      path: childLogPath(folder, version),
      maxBytes: config.logMaxBytes,
      maxFiles: config.logFiles,
    });
    this.#maxTail = config.logTailLines;
    this.#bytesPerS = config.logBytesPerS;
    this.#credit = config.logBytesPerS;
    this.#creditAt = runtime.clock.monotonic();
  }

  get tail(): readonly LogLine[] {
    return this.#tail;
  }

  /** May so many bytes be taken now? One second's worth may come at once. */
  spend(bytes: number): boolean {
    const now = this.clock.monotonic();
    const earned = (now - this.#creditAt) / 1_000 * this.#bytesPerS;
    this.#credit = Math.min(this.#bytesPerS, this.#credit + earned);
    this.#creditAt = now;
    if (this.#credit <= 0 || !this.file.hasRoom) return false;
    this.#credit -= bytes;
    return true;
  }

  add(line: LogLine): void {
    this.file.write(formatLogLine(line) + "\n");
    this.#tail.push(line);
    this.#tailSize += line.text.length;
    // In steps, since shifting an array for every line is quadratic.
    if (this.#tail.length > 2 * this.#maxTail || this.#tailSize > 2 * MAX_TAIL) this.#trim();
    for (const listener of this.listeners) listener(line);
  }

  #trim(): void {
    this.#tail = this.#maxTail === 0 ? [] : this.#tail.slice(-this.#maxTail);
    this.#tailSize = this.#tail.reduce((size, line) => size + line.text.length, 0);
    while (this.#tailSize > MAX_TAIL) this.#tailSize -= this.#tail.shift()?.text.length ?? 0;
  }
}

/** The two streams of one child, cut into lines. */
class Output implements ChildOutput {
  readonly #log: VersionLog;
  readonly #version: string;
  readonly #generation: number;
  readonly #streams = { stdout: new Lines(), stderr: new Lines() };
  #dropped = 0;
  #closed = false;

  constructor(log: VersionLog, version: string, generation: number) {
    this.#log = log;
    this.#version = version;
    this.#generation = generation;
  }

  write(stream: "stdout" | "stderr", chunk: Uint8Array): void {
    if (this.#closed || chunk.length === 0) return;
    const lines = this.#streams[stream];
    if (!this.#log.spend(chunk.length)) {
      this.#dropped += chunk.length;
      for (const text of lines.skip()) this.#add(stream, text);
      return;
    }
    this.#tellDropped();
    for (const text of lines.push(chunk)) this.#add(stream, text);
  }

  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    this.#tellDropped();
    for (const stream of ["stdout", "stderr"] as const) {
      for (const text of this.#streams[stream].end()) this.#add(stream, text);
    }
  }

  #tellDropped(): void {
    if (this.#dropped === 0) return;
    this.#add("stderr", `[baton: ${this.#dropped} bytes of output came too fast and were dropped]`);
    this.#dropped = 0;
  }

  #add(stream: "stdout" | "stderr", text: string): void {
    this.#log.add({
      at: this.#log.clock.now(),
      version: this.#version,
      generation: this.#generation,
      stream,
      text,
    });
  }
}

/** Cuts chunks into lines without their ends. */
class Lines {
  #decoder = new TextDecoder();
  #rest = "";
  /** After a gap, what comes up to the next line end is a fragment, and is dropped as well. */
  #skipping = false;

  push(chunk: Uint8Array): string[] {
    let bytes = chunk;
    if (this.#skipping) {
      const end = chunk.indexOf(0x0a);
      if (end < 0) return [];
      bytes = chunk.subarray(end + 1);
      this.#skipping = false;
    }
    const lines = (this.#rest + this.#decoder.decode(bytes, { stream: true })).split("\n");
    this.#rest = lines.pop() ?? "";
    const whole = lines.flatMap(broken);
    if (this.#rest.length > MAX_LINE) {
      const pieces = broken(this.#rest);
      this.#rest = pieces.pop() ?? "";
      whole.push(...pieces);
    }
    return whole;
  }

  /** A gap begins: the line that was under way ends here. */
  skip(): string[] {
    if (this.#skipping) return [];
    const rest = this.#rest;
    this.#rest = "";
    this.#skipping = true;
    this.#decoder = new TextDecoder();
    return rest === "" ? [] : [rest];
  }

  end(): string[] {
    const rest = this.#skipping ? "" : this.#rest + this.#decoder.decode();
    this.#rest = "";
    return rest === "" ? [] : broken(rest);
  }
}

/** A line in pieces of at most MAX_LINE, without the carriage return at its end. */
function broken(line: string): string[] {
  const text = line.endsWith("\r") ? line.slice(0, -1) : line;
  if (text.length <= MAX_LINE) return [text];
  const pieces: string[] = [];
  for (let at = 0; at < text.length; at += MAX_LINE) pieces.push(text.slice(at, at + MAX_LINE));
  return pieces;
}
