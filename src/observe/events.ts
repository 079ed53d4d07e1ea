/**
 * The journal of what happened: rollouts, drains, recoveries, operators' calls.
 *
 * Events are numbered from 1 upwards, and as long as the disk takes writes a number is never used
 * twice, also not after a crash. The latest ones are in memory for readers who come back with the last number they saw; all go as
 * NDJSON to a file that is rotated once (`events.ndjson`, `events.1.ndjson`), both bounded in
 * bytes. A disk that fails costs the file, never the events in memory and never the caller.
 */

import type { Runtime } from "../runtime/runtime.ts";
import type { Log } from "./log.ts";

export interface JournalEvent {
  readonly id: number;
  /** ISO 8601, UTC. */
  readonly ts: string;
  /** snake_case: what kind of thing happened. */
  readonly kind: string;
  readonly [field: string]: unknown;
}

export interface JournalOptions {
  readonly runtime: Pick<Runtime, "files" | "clock">;
  readonly log: Log;
  /** Where the files are kept; without it the journal lives in memory only. */
  readonly folder?: string;
  /** Events kept in memory. */
  readonly keep?: number;
  /** Bytes of the current file before it is rotated; the folder holds at most twice this. */
  readonly maxFileBytes?: number;
}

/** Events that may wait for the disk; also what a restart skips after a crash (see `open`). */
const MAX_UNWRITTEN = 1000;
const CLOSED = "journal_closed";

export class EventJournal {
  readonly #runtime: Pick<Runtime, "files" | "clock">;
  readonly #log: Log;
  readonly #folder: string | undefined;
  readonly #keep: number;
  readonly #maxFileBytes: number;
  readonly #listeners = new Set<(event: JournalEvent) => void>();
  #events: JournalEvent[] = [];
  #nextId = 1;
  #unwritten: string[] = [];
  #lost = 0;
  #fileBytes = 0;
  #writing: Promise<void> | undefined;
  #closed = false;

  private constructor(options: JournalOptions) {
    this.#runtime = options.runtime;
    this.#log = options.log;
    this.#folder = options.folder;
    this.#keep = options.keep ?? 2000;
    this.#maxFileBytes = options.maxFileBytes ?? 4 * 1024 * 1024;
  }

  /**
   * Reads what an earlier process left behind and goes on counting from there. A torn or foreign
   * line is skipped. After an unclean end the numbers jump by as many events as could have been
   * numbered without reaching the disk, so that no reader is ever shown a number twice.
   */
  static async open(options: JournalOptions): Promise<EventJournal> {
    const journal = new EventJournal(options);
    if (options.folder !== undefined) await journal.#restore(options.folder);
    return journal;
  }

  /** A journal without files, ready at once. */
  static inMemory(options: Omit<JournalOptions, "folder">): EventJournal {
    return new EventJournal(options);
  }

  /** Numbers and keeps an event, tells the subscribers, and queues it for the file. */
  emit(kind: string, fields: Readonly<Record<string, unknown>> = {}): JournalEvent {
    const ts = new Date(this.#runtime.clock.now()).toISOString();
    const event = plain({ ...fields, id: this.#nextId, ts, kind });
    this.#nextId += 1;
    this.#events.push(event);
    // Trimmed in blocks: shifting an array on every event would cost its whole length.
    if (this.#events.length >= this.#keep * 2) this.#events = this.#events.slice(-this.#keep);
    this.#queue(event);
    for (const listener of [...this.#listeners]) {
      try {
        listener(event);
      } catch (error) {
        this.#log.error("event_listener_failed", { kind, error });
      }
    }
    return event;
  }

  /** The kept events with a number above `id`, oldest first. */
  since(id: number): JournalEvent[] {
    const kept = this.#events.slice(-this.#keep);
    let low = 0;
    let high = kept.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((kept[middle] as JournalEvent).id <= id) low = middle + 1;
      else high = middle;
    }
    return kept.slice(low);
  }

  /** Calls `listener` with every later event, synchronously; the returned function ends it. */
  subscribe(listener: (event: JournalEvent) => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** The number of the newest event, 0 if there was none. */
  get lastId(): number {
    return this.#nextId - 1;
  }

  /** The oldest number that `since` can still give, or undefined when nothing is kept. */
  get oldestId(): number | undefined {
    return this.#events[Math.max(0, this.#events.length - this.#keep)]?.id;
  }

  /** Resolves when everything emitted so far is in the file (or given up). */
  async flushed(): Promise<void> {
    while (this.#writing !== undefined) await this.#writing;
  }

  /** Marks a clean end and writes out what is queued. Later events stay in memory. */
  async close(): Promise<void> {
    if (this.#closed) return;
    if (this.#folder !== undefined) this.emit(CLOSED);
    this.#closed = true;
    await this.flushed();
  }

  async #restore(folder: string): Promise<void> {
    try {
      await this.#runtime.files.makeFolder(folder);
      const older = await this.#readLines(`${folder}/events.1.ndjson`);
      const current = await this.#readLines(`${folder}/events.ndjson`);
      this.#fileBytes = current.bytes;
      // A torn last line is ended here, so that the next event starts on a line of its own.
      if (current.torn) await this.#append(`${folder}/events.ndjson`, "\n");
      this.#events = [...older.events, ...current.events].slice(-this.#keep);
    } catch (error) {
      this.#log.warn("event_journal_unreadable", { folder, error });
    }
    const last = this.#events.at(-1);
    if (last === undefined) return;
    this.#nextId = last.id + (last.kind === CLOSED ? 1 : MAX_UNWRITTEN);
  }

  async #readLines(
    path: string,
  ): Promise<{ events: JournalEvent[]; bytes: number; torn: boolean }> {
    if ((await this.#runtime.files.info(path)) === undefined) {
      return { events: [], bytes: 0, torn: false };
    }
    const bytes = await this.#runtime.files.read(path);
    const text = new TextDecoder().decode(bytes);
    const events: JournalEvent[] = [];
    let lastId = 0;
    for (const line of text.split("\n")) {
      const event = parse(line);
      if (event === undefined || event.id <= lastId) continue;
      lastId = event.id;
      events.push(event);
    }
    return { events, bytes: bytes.length, torn: text.length > 0 && !text.endsWith("\n") };
  }

  #queue(event: JournalEvent): void {
    if (this.#folder === undefined || this.#closed) return;
    if (this.#unwritten.length >= MAX_UNWRITTEN) {
      this.#lost += 1;
      return;
    }
    this.#unwritten.push(JSON.stringify(event) + "\n");
    this.#writing ??= this.#writeOut(this.#folder).finally(() => {
      this.#writing = undefined;
    });
  }

  async #writeOut(folder: string): Promise<void> {
    // One turn later, so that a burst of events becomes one write.
    await Promise.resolve();
    const path = `${folder}/events.ndjson`;
    while (this.#unwritten.length > 0) {
      const lines = this.#unwritten.join("");
      const count = this.#unwritten.length;
      try {
        await this.#write(folder, lines).catch(async () => {
          // The folder, or the file, may have been taken away under us.
          await this.#runtime.files.makeFolder(folder);
          this.#fileBytes = (await this.#runtime.files.info(path))?.size ?? 0;
          await this.#write(folder, lines);
        });
        if (this.#lost > 0) this.#log.warn("event_journal_lost", { events: this.#lost });
        this.#lost = 0;
      } catch (error) {
        this.#lost += count;
        this.#log.warn("event_journal_write_failed", { path, events: this.#lost, error });
      }
      this.#unwritten.splice(0, count);
    }
  }

  /** Adds lines to the file, which is rotated first if it would become too long. */
  async #write(folder: string, lines: string): Promise<void> {
    const path = `${folder}/events.ndjson`;
    if (this.#fileBytes > 0 && this.#fileBytes + lines.length > this.#maxFileBytes) {
      await this.#runtime.files.rename(path, `${folder}/events.1.ndjson`);
      this.#fileBytes = 0;
    }
    this.#fileBytes += await this.#append(path, lines);
  }

  async #append(path: string, text: string): Promise<number> {
    const bytes = new TextEncoder().encode(text);
    const writer = await this.#runtime.files.openWrite(path, { append: true, mode: 0o640 });
    try {
      await writer.write(bytes);
    } finally {
      await writer.close();
    }
    return bytes.length;
  }
}

/** The event as it will be read back: bigint as string, errors as their message. */
function plain(fields: Record<string, unknown> & { id: number; ts: string; kind: string }) {
  const { id, ts, kind, ...rest } = fields;
  const text = JSON.stringify({ id, ts, kind, ...rest }, (_key, value: unknown) => {
    if (typeof value === "bigint") return value.toString();
    if (value instanceof Error) return value.message;
    return value;
  });
  return Object.freeze(JSON.parse(text)) as JournalEvent;
}

function parse(line: string): JournalEvent | undefined {
  if (line === "") return undefined;
  try {
    const value: unknown = JSON.parse(line);
    if (typeof value !== "object" || value === null) return undefined;
    const { id, ts, kind } = value as Record<string, unknown>;
    if (!Number.isSafeInteger(id) || typeof ts !== "string" || typeof kind !== "string") {
      return undefined;
    }
    return Object.freeze(value) as JournalEvent;
  } catch {
    return undefined;
  }
}
