/** What the other side has told in SETTINGS (RFC 9113 section 6.5), and how ours are written. */

import type { FrameWriter } from "./frame_writer.ts";
import { DEFAULT_TABLE_BYTES } from "./hpack_table.ts";
import {
  ConnectionError,
  DEFAULT_WINDOW_BYTES,
  H2_ERRORS,
  MOST_31_BITS,
  MOST_PAYLOAD_BYTES,
  readU32,
  SETTINGS,
} from "./protocol.ts";

export const HEADER_TABLE_SIZE = 1;
export const ENABLE_PUSH = 2;
export const MAX_CONCURRENT_STREAMS = 3;
export const INITIAL_WINDOW_SIZE = 4;
export const MAX_FRAME_SIZE = 5;
export const MAX_HEADER_LIST_SIZE = 6;

const ENTRY_BYTES = 6;
const MOST_24_BITS = 2 ** 24 - 1;
/** More entries than there are settings serve nobody. */
const MOST_ENTRIES = 64;

export class PeerSettings {
  headerTableBytes: number = DEFAULT_TABLE_BYTES;
  /** Without a word of the other side there is no limit (section 6.5.2). */
  streams = Infinity;
  windowBytes: number = DEFAULT_WINDOW_BYTES;

  /** Takes a payload. `ofServer`: a server may not ask to be pushed to. Throws ConnectionError. */
  take(bytes: Uint8Array, from: number, to: number, ofServer: boolean): void {
    if (to - from > MOST_ENTRIES * ENTRY_BYTES) {
      throw new ConnectionError(H2_ERRORS.enhanceYourCalm, "too many settings");
    }
    for (let at = from; at < to; at += ENTRY_BYTES) {
      this.#takeOne(
        (bytes[at] as number) << 8 | (bytes[at + 1] as number),
        readU32(bytes, at + 2),
        {
          ofServer,
        },
      );
    }
  }

  #takeOne(setting: number, value: number, { ofServer }: { ofServer: boolean }): void {
    switch (setting) {
      case HEADER_TABLE_SIZE:
        this.headerTableBytes = value;
        return;
      case ENABLE_PUSH:
        if (value > (ofServer ? 0 : 1)) throw wrong(setting, value);
        return;
      case MAX_CONCURRENT_STREAMS:
        this.streams = value;
        return;
      case INITIAL_WINDOW_SIZE:
        if (value > MOST_31_BITS) {
          throw new ConnectionError(H2_ERRORS.flowControl, `a window of ${value}`);
        }
        this.windowBytes = value;
        return;
      case MAX_FRAME_SIZE:
        // We never send more than the smallest that may be allowed.
        if (value < MOST_PAYLOAD_BYTES || value > MOST_24_BITS) throw wrong(setting, value);
    }
  }
}

function wrong(setting: number, value: number): ConnectionError {
  return new ConnectionError(H2_ERRORS.protocol, `setting ${setting} is ${value}`);
}

/** Writes a SETTINGS frame. */
export function writeSettings(
  out: FrameWriter,
  entries: readonly (readonly [setting: number, value: number])[],
): void {
  out.head(SETTINGS, 0, 0, entries.length * ENTRY_BYTES);
  for (const [setting, value] of entries) {
    out.byte(setting >>> 8);
    out.byte(setting & 0xff);
    out.u32(value);
  }
}
