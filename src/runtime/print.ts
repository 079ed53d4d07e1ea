/**
 * Lines for standard output and standard error, whole and in the order in which they were given.
 *
 * A line is either written at once or within a few milliseconds together with its neighbours: a write
 * of one line costs as much as the rest of a small request. The second kind waits in this process's
 * memory, is written before any line of the first kind and before the process exits in whatever way
 * it does itself (an uncaught error too); SIGKILL takes it along.
 */

import process from "node:process";
import { constants, fstatSync, openSync, writeSync } from "node:fs";
import { errorCode } from "./error_code.ts";

export type Output = "stdout" | "stderr";

/** After this long without a reader the rest of the text is dropped. */
const STUCK_AFTER_MS = 1_000;
/** Lines that need not be written at once are written this late at most, */
const SOON_MS = 5;
/** or when there are so many characters. */
const SOON_CHARACTERS = 32_768;

const encoder = new TextEncoder();

class Printer {
  readonly #descriptor: number;
  readonly #mayDrop: boolean;
  /** What is written to; opened with the first line. */
  #opened: number | undefined;
  #waiting: string[] = [];
  #characters = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #atExit = false;
  /** Nobody reads; not waited for again until somebody does. */
  #isStuck = false;
  /** The last thing written was a part of a line. */
  #isTorn = false;

  /** `mayDrop`: a reader that stops reading costs text, and does not stop this process. */
  constructor(descriptor: number, mayDrop: boolean) {
    this.#descriptor = descriptor;
    this.#mayDrop = mayDrop;
  }

  print(line: string): boolean {
    this.flush();
    return this.#write(ended(line));
  }

  printSoon(line: string): void {
    this.#waiting.push(ended(line));
    this.#characters += line.length;
    if (this.#characters >= SOON_CHARACTERS) return this.flush();
    this.#timer ??= setTimeout(() => this.flush(), SOON_MS);
    if (this.#atExit) return;
    this.#atExit = true;
    process.on("exit", () => this.flush());
    // Deno has no "exit" after an uncaught error.
    process.on("uncaughtExceptionMonitor", () => this.flush());
  }

  flush(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    if (this.#waiting.length === 0) return;
    const text = this.#waiting.join("");
    this.#waiting = [];
    this.#characters = 0;
    this.#write(text);
  }

  /**
   * A closed reader costs the text, never the process; a full non-blocking pipe is waited for, since
   * half a line would spoil the next one. True if all of it was written.
   */
  #write(text: string): boolean {
    this.#opened ??= this.#mayDrop ? withoutWaiting(this.#descriptor) : this.#descriptor;
    const descriptor = this.#opened;
    const bytes = encoder.encode(this.#isTorn ? `\n${text}` : text);
    let waitsSince = performance.now();
    let done = 0;
    while (done < bytes.length) {
      try {
        done += writeSync(descriptor, bytes, done, bytes.length - done);
        this.#isStuck = false;
        waitsSince = performance.now();
      } catch (error) {
        if (errorCode(error) !== "EAGAIN") break;
        if (this.#isStuck || performance.now() - waitsSince > STUCK_AFTER_MS) {
          this.#isStuck = true;
          break;
        }
        Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1);
      }
    }
    if (done > 0) this.#isTorn = bytes[done - 1] !== 0x0a;
    return done === bytes.length;
  }
}

/** What a verb prints is wanted whole; the log must not hold up what it tells of. */
const PRINTERS = { stdout: new Printer(1, false), stderr: new Printer(2, true) };

/** Writes a whole line at once, after all that wait. True if all of it was written. */
export function print(stream: Output, line: string): boolean {
  return PRINTERS[stream].print(line);
}

/** Writes a whole line within a few milliseconds. */
export function printSoon(stream: Output, line: string): void {
  PRINTERS[stream].printSoon(line);
}

/** Writes what waits, of both streams. */
export function flushPrinted(): void {
  PRINTERS.stdout.flush();
  PRINTERS.stderr.flush();
}

/**
 * A pipe, opened once more so that writes to it never wait: the descriptor itself is shared with
 * others, who need it as it is. Whatever else there is stays as it is: sockets cannot be opened again.
 */
function withoutWaiting(descriptor: number): number {
  try {
    if (!fstatSync(descriptor).isFIFO()) return descriptor;
    const flags = constants.O_WRONLY | constants.O_NONBLOCK;
    return openSync(`/proc/self/fd/${descriptor}`, flags);
  } catch {
    return descriptor;
  }
}

function ended(line: string): string {
  return line.endsWith("\n") ? line : `${line}\n`;
}
