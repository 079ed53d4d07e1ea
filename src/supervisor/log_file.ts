/**
 * A log file that takes text at once and writes it when the disk lets it.
 *
 * It is rotated by size, opened anew when somebody deleted or moved it, and given up for a second at
 * a time when the disk refuses; meanwhile text is dropped, never queued without bound.
 */

import { messageOf } from "../errors.ts";
import type { Log } from "../observe/log.ts";
import type { Clock, Files, FileWriter } from "../runtime/runtime.ts";

export interface LogFileOptions {
  readonly files: Files;
  readonly clock: Clock;
  readonly log: Log;
  readonly folder: string;
  readonly path: string;
  readonly maxBytes: number;
  /** With the current one; older ones are `<path>.1` and up. */
  readonly maxFiles: number;
}

/** The most that waits for the disk, in UTF-16 units. */
const MAX_PENDING = 4 * 1024 * 1024;
/** How often it is looked whether the file is still the one at the path. */
const LOOK_MS = 1_000;
/** How long a disk that refused is left alone. */
const GIVE_UP_MS = 1_000;

export class LogFile {
  readonly #options: LogFileOptions;
  readonly #encoder = new TextEncoder();
  #pending: string[] = [];
  #pendingSize = 0;
  #working: Promise<void> | undefined;
  #writer: FileWriter | undefined;
  #inode: number | undefined;
  #size = 0;
  #lookedAt = 0;
  #retryAt = 0;
  #failed = false;
  #lost = 0;
  #closed = false;

  constructor(options: LogFileOptions) {
    this.#options = options;
  }

  /** False while so much waits for the disk that more would only be dropped. */
  get hasRoom(): boolean {
    return this.#pendingSize < MAX_PENDING;
  }

  /** Takes text; never blocks, never throws. */
  write(text: string): void {
    if (this.#closed || !this.hasRoom) {
      this.#lost += text.length;
      return;
    }
    this.#pending.push(text);
    this.#pendingSize += text.length;
    this.#working ??= this.#work();
  }

  /** Resolves when what was taken so far has been written, or was given up. */
  async flush(): Promise<void> {
    while (this.#working !== undefined) await this.#working;
  }

  async close(): Promise<void> {
    await this.flush();
    this.#closed = true;
    const writer = this.#writer;
    this.#writer = undefined;
    await writer?.close().catch(() => {});
  }

  /** Writes until nothing is pending. */
  async #work(): Promise<void> {
    // Not in the turn in which the child's output was taken: what comes together goes together.
    await Promise.resolve();
    while (this.#pending.length > 0) {
      const text = this.#pending.join("");
      this.#pending = [];
      try {
        await this.#put(text);
      } catch (error) {
        await this.#fail(error, text.length);
      }
      this.#pendingSize -= text.length;
    }
    this.#working = undefined;
  }

  async #put(text: string): Promise<void> {
    const { clock, log, path, maxBytes } = this.#options;
    const now = clock.monotonic();
    if (this.#failed && now < this.#retryAt) {
      this.#lost += text.length;
      return;
    }
    if (now - this.#lookedAt >= LOOK_MS) await this.#look(now);
    if (this.#writer === undefined) await this.#open();
    if (this.#failed) {
      log.warn("child_log_back", { path, lostBytes: this.#lost });
      this.#failed = false;
      this.#lost = 0;
    }
    const bytes = this.#encoder.encode(text);
    if (this.#size > 0 && this.#size + bytes.length > maxBytes) await this.#rotate();
    await this.#writer?.write(bytes);
    this.#size += bytes.length;
  }

  async #fail(error: unknown, lost: number): Promise<void> {
    const { clock, log, path } = this.#options;
    this.#lost += lost;
    if (!this.#failed) log.error("child_log_failed", { path, error: messageOf(error) });
    this.#failed = true;
    this.#retryAt = clock.monotonic() + GIVE_UP_MS;
    await this.#shut();
  }

  async #open(): Promise<void> {
    const { files, folder, path } = this.#options;
    await files.makeFolder(folder, 0o750);
    this.#writer = await files.openWrite(path, { append: true, mode: 0o640 });
    const info = await files.info(path);
    this.#inode = info?.inode;
    this.#size = info?.size ?? 0;
  }

  async #shut(): Promise<void> {
    const writer = this.#writer;
    this.#writer = undefined;
    await writer?.close().catch(() => {});
  }

  /** Deleted or moved by somebody: then what we write goes nowhere. */
  async #look(now: number): Promise<void> {
    this.#lookedAt = now;
    if (this.#writer === undefined) return;
    const info = await this.#options.files.info(this.#options.path);
    if (info === undefined || info.inode !== this.#inode) await this.#shut();
    else this.#size = info.size;
  }

  async #rotate(): Promise<void> {
    const { files, path, maxFiles } = this.#options;
    await this.#shut();
    if (maxFiles === 1) {
      await files.remove(path);
    } else {
      await files.remove(`${path}.${maxFiles - 1}`);
      for (let index = maxFiles - 2; index >= 1; index--) {
        if (await files.info(`${path}.${index}`) === undefined) continue;
        await files.rename(`${path}.${index}`, `${path}.${index + 1}`);
      }
      if (await files.info(path) !== undefined) await files.rename(path, `${path}.1`);
    }
    await this.#open();
  }
}
