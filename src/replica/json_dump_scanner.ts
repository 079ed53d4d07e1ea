/**
 * Cuts the one JSON object of a Dynamo dump into its partitions and events, byte by byte, without
 * ever holding more than one event.
 */

import { DumpBroken } from "./dump_format.ts";

export interface ScannedDump {
  /** A member of the root object begins: the partition's key, as JSON text. */
  partition(key: string): void;
  /** A scalar, or a whole value other than `events`, of the partition. */
  member(key: string, value: string): void;
  /** One element of `events`, as JSON text. */
  event(text: string): void;
  /** The partition's object has ended. */
  endPartition(): void;
}

/** Bytes of one key, member or event at most. */
const MAX_ITEM_BYTES = 16 * 1024 * 1024;

/** What is expected next, where the scanner is not inside an item. */
type Expect =
  | "root"
  | "key"
  | "colon"
  | "partition"
  | "member_key"
  | "member_colon"
  | "member"
  | "event"
  | "event_or_end"
  | "after_event"
  | "after_member"
  | "after_partition"
  | "end";

const decoder = new TextDecoder("utf-8", { fatal: true });

export class JsonDumpScanner {
  readonly #target: ScannedDump;
  #expect: Expect = "root";
  /** May the object that was just opened end at once? */
  #empty = false;
  #memberKey = "";
  // The item being collected.
  #inItem = false;
  #inString = false;
  #escaped = false;
  #depth = 0;
  #pieces: Uint8Array[] = [];
  #pieceBytes = 0;

  constructor(target: ScannedDump) {
    this.#target = target;
  }

  /** True once the root object has ended. */
  get ended(): boolean {
    return this.#expect === "end" && !this.#inItem;
  }

  push(chunk: Uint8Array): void {
    let at = 0;
    while (at < chunk.length) {
      if (this.#inItem) {
        const end = this.#itemEnd(chunk, at);
        this.#keep(chunk.subarray(at, end));
        if (!this.#inItem) this.#item();
        at = end;
        continue;
      }
      const code = chunk[at] as number;
      if (code === 0x20 || code === 0x0a || code === 0x0d || code === 0x09) {
        at += 1;
      } else if (this.#startsItem(code)) {
        this.#inItem = true;
        this.#inString = false;
        this.#escaped = false;
        this.#depth = 0;
      } else {
        this.#structure(code);
        at += 1;
      }
    }
  }

  /** Where the item ends in this chunk (or the chunk itself does). Clears `inItem` at its end. */
  #itemEnd(chunk: Uint8Array, start: number): number {
    for (let at = start; at < chunk.length; at += 1) {
      const code = chunk[at] as number;
      if (this.#inString) {
        if (this.#escaped) this.#escaped = false;
        else if (code === 0x5c) this.#escaped = true;
        else if (code === 0x22) {
          this.#inString = false;
          if (this.#depth === 0) {
            this.#inItem = false;
            return at + 1;
          }
        }
      } else if (code === 0x22) {
        this.#inString = true;
      } else if (code === 0x7b || code === 0x5b) {
        this.#depth += 1;
      } else if (code === 0x7d || code === 0x5d) {
        if (this.#depth === 0) {
          // The end of the container: the item was a bare number or word.
          this.#inItem = false;
          return at;
        }
        this.#depth -= 1;
        if (this.#depth === 0) {
          this.#inItem = false;
          return at + 1;
        }
      } else if (this.#depth === 0 && code === 0x2c) {
        this.#inItem = false;
        return at;
      }
    }
    return chunk.length;
  }

  #startsItem(code: number): boolean {
    switch (this.#expect) {
      case "key":
      case "member_key":
        return code === 0x22;
      case "member":
        return !(this.#memberKey === "events" && code === 0x5b);
      case "event":
      case "event_or_end":
        return code === 0x7b;
      default:
        return false;
    }
  }

  #item(): void {
    const text = this.#text();
    switch (this.#expect) {
      case "key":
        this.#expect = "colon";
        this.#target.partition(text);
        return;
      case "member_key":
        this.#expect = "member_colon";
        this.#memberKey = jsonString(text);
        return;
      case "member":
        this.#expect = "after_member";
        this.#target.member(this.#memberKey, text);
        return;
      default:
        this.#expect = "after_event";
        this.#target.event(text);
    }
  }

  #structure(code: number): void {
    const letter = String.fromCharCode(code);
    switch (`${this.#expect} ${letter}`) {
      case "root {":
        this.#expect = "key";
        this.#empty = true;
        return;
      case "colon :":
        this.#expect = "partition";
        return;
      case "partition {":
        this.#expect = "member_key";
        this.#empty = true;
        return;
      case "member_colon :":
        this.#expect = "member";
        return;
      case "member [":
        this.#expect = "event_or_end";
        return;
      case "after_event ,":
        this.#expect = "event";
        return;
      case "event_or_end ]":
      case "after_event ]":
        this.#expect = "after_member";
        return;
      case "after_member ,":
        this.#expect = "member_key";
        this.#empty = false;
        return;
      case "member_key }":
        if (!this.#empty) break;
        this.#expect = "after_partition";
        this.#target.endPartition();
        return;
      case "after_member }":
        this.#expect = "after_partition";
        this.#target.endPartition();
        return;
      case "after_partition ,":
        this.#expect = "key";
        this.#empty = false;
        return;
      case "key }":
        if (!this.#empty) break;
        this.#expect = "end";
        return;
      case "after_partition }":
        this.#expect = "end";
        return;
    }
    throw new DumpBroken(`"${letter}" where the dump should go on otherwise`);
  }

  #keep(piece: Uint8Array): void {
    this.#pieceBytes += piece.length;
    if (this.#pieceBytes > MAX_ITEM_BYTES) throw new DumpBroken("an item is too long");
    this.#pieces.push(this.#inItem ? piece.slice() : piece);
  }

  #text(): string {
    let bytes = this.#pieces[0] ?? new Uint8Array(0);
    if (this.#pieces.length > 1) {
      bytes = new Uint8Array(this.#pieceBytes);
      let at = 0;
      for (const piece of this.#pieces) {
        bytes.set(piece, at);
        at += piece.length;
      }
    }
    this.#pieces = [];
    this.#pieceBytes = 0;
    try {
      return decoder.decode(bytes);
    } catch (error) {
      throw new DumpBroken("text that is not UTF-8", { cause: error });
    }
  }
}

/** The string that a JSON text of one string stands for. */
export function jsonString(text: string): string {
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value === "string") return value;
  } catch {
    // Falls through.
  }
  throw new DumpBroken("a key is not a string");
}
