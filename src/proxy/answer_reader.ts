/**
 * Reads HTTP/1.1 answers off an upstream connection (RFC 9112).
 *
 * Ours rather than a general parser because it speaks only to our own children and wins by
 * measurement; it is strict, and fuzzed against llhttp: what it accepts, llhttp accepts with the
 * same meaning. What it does not accept is a bad answer, never a guess.
 */

import {
  bit,
  CONNECTION,
  CONTENT_LENGTH,
  Head,
  INCOMPLETE,
  KEEP_ALIVE,
  type Latin1,
  parseLength,
  TRANSFER_ENCODING,
  UNUSUAL,
} from "./head.ts";
import type { Framing } from "./client_side.ts";

/** Hears what the reader finds. Chunks are views that are valid during the call only. */
export interface AnswerSink {
  onInterim(status: number, reason: string, head: Head): void;
  onHead(status: number, reason: string, head: Head, framing: Framing, length: number): void;
  onChunk(chunk: Uint8Array): void;
  /** The answer is complete. `trailers` are lines, each with CRLF. */
  onEnd(trailers: string): void;
  /** 101: what follows in `rest` and on the connection is another protocol. */
  onSwitch(reason: string, head: Head, rest: Uint8Array): void;
}

const HEAD = 0;
const BODY_LENGTH = 1;
const BODY_UNTIL_CLOSE = 2;
const CHUNK_SIZE = 3;
const CHUNK_EXTENSION = 4;
const CHUNK_SIZE_LF = 5;
const CHUNK_DATA = 6;
const CHUNK_DATA_CR = 7;
const CHUNK_DATA_LF = 8;
const TRAILERS = 9;
const DONE = 10;

const CR = 13;
const LF = 10;
/** "HTTP/1." */
const VERSION = new Uint8Array([0x48, 0x54, 0x54, 0x50, 0x2f, 0x31, 0x2e]);
const MOST_EXTENSION_BYTES = 4096;
/** `;name`, `;name=token` or `;name="text"`, as often as one likes (RFC 9112 section 7.1.1). */
const EXTENSIONS =
  /^(?:;[\w!#$%&'*+.^`|~-]+(?:=(?:[\w!#$%&'*+.^`|~-]+|"(?:[\t \x21\x23-\x5b\x5d-\x7e]|\\[\t\x20-\x7e])*"))?)*$/;
const NONE = new Uint8Array(0);

export class AnswerReader {
  /** Whether the connection may carry another request after this answer. */
  keepAlive = true;
  /** Why the bytes are no answer. Nothing more is read once it is set. */
  error: string | undefined;
  /** Bytes came behind the end of the answer: the connection cannot be used again. */
  excess = false;
  /** How long the target says that it keeps an idle connection; Infinity if it says nothing. */
  keptForMs = Infinity;
  /** Any byte of an answer has come since `start`. */
  began = false;

  readonly #head = new Head();
  readonly #latin1: Latin1;
  readonly #limit: number;
  #state = DONE;
  #method = "";
  #mayUpgrade = false;
  #left = 0;
  #digits = 0;
  #extension = "";
  #held: Uint8Array = NONE;
  #status = 0;
  #reason = "";

  constructor(latin1: Latin1, headLimitBytes: number) {
    this.#latin1 = latin1;
    this.#limit = headLimitBytes;
  }

  /** Waits for the answer to a request with this method. */
  start(method: string, mayUpgrade: boolean): void {
    this.#state = HEAD;
    this.#method = method;
    this.#mayUpgrade = mayUpgrade;
    this.#held = NONE;
    this.keepAlive = true;
    this.excess = false;
    this.began = false;
    this.error = undefined;
  }

  get done(): boolean {
    return this.#state === DONE;
  }

  push(bytes: Uint8Array, sink: AnswerSink): void {
    this.began = true;
    let at = 0;
    while (at < bytes.length && this.error === undefined) {
      switch (this.#state) {
        case HEAD:
          at = this.#readHead(bytes, at, sink);
          break;
        case BODY_LENGTH: {
          const end = Math.min(bytes.length, at + this.#left);
          this.#left -= end - at;
          sink.onChunk(at === 0 && end === bytes.length ? bytes : bytes.subarray(at, end));
          at = end;
          if (this.#left === 0) this.#finish("", sink);
          break;
        }
        case BODY_UNTIL_CLOSE:
          sink.onChunk(at === 0 ? bytes : bytes.subarray(at));
          return;
        case DONE:
          this.excess = true;
          return;
        default:
          at = this.#readChunked(bytes, at, sink);
      }
    }
  }

  /** The upstream sent FIN. True if that completes the answer (or there was none to wait for). */
  finish(sink: AnswerSink): boolean {
    if (this.#state === BODY_UNTIL_CLOSE) this.#finish("", sink);
    return this.#state === DONE;
  }

  #finish(trailers: string, sink: AnswerSink): void {
    this.#state = DONE;
    sink.onEnd(trailers);
  }

  #fail(error: string): number {
    this.error = error;
    this.keepAlive = false;
    return 0;
  }

  #readHead(chunk: Uint8Array, from: number, sink: AnswerSink): number {
    let bytes = chunk;
    let start = from;
    const held = this.#held.length;
    if (held > 0) {
      bytes = new Uint8Array(held + chunk.length - from);
      bytes.set(this.#held);
      bytes.set(chunk.subarray(from), held);
      start = 0;
      this.#held = NONE;
    }
    const end = this.#scan(bytes, start);
    if (end === UNUSUAL) return this.#fail("malformed head");
    if (end === INCOMPLETE) {
      if (bytes.length - start > this.#limit) return this.#fail("head too large");
      this.#held = bytes.slice(start);
      return chunk.length;
    }
    if (end - start > this.#limit) return this.#fail("head too large");
    const next = held > 0 ? from + end - held : end;
    this.#understand(sink, chunk, next);
    return this.#state === DONE && this.#status === 101 ? chunk.length : next;
  }

  /** Status line and header lines: the offset behind the head, INCOMPLETE or UNUSUAL. */
  #scan(bytes: Uint8Array, start: number): number {
    const to = bytes.length;
    for (let index = 0; index < 7; index++) {
      if (start + index >= to) return INCOMPLETE;
      if (bytes[start + index] !== VERSION[index]) return UNUSUAL;
    }
    if (start + 13 > to) return INCOMPLETE;
    const minor = (bytes[start + 7] as number) - 0x30;
    if (minor !== 0 && minor !== 1) return UNUSUAL;
    if (bytes[start + 8] !== 0x20) return UNUSUAL;
    const hundreds = (bytes[start + 9] as number) - 0x30;
    const tens = (bytes[start + 10] as number) - 0x30;
    const ones = (bytes[start + 11] as number) - 0x30;
    if (hundreds < 1 || hundreds > 9 || tens < 0 || tens > 9 || ones < 0 || ones > 9) {
      return UNUSUAL;
    }
    let at = start + 12;
    if (bytes[at] === 0x20) at += 1;
    else if (bytes[at] !== CR) return UNUSUAL;
    const reasonStart = at;
    while (at < to && bytes[at] !== CR) {
      const byte = bytes[at] as number;
      if ((byte < 0x20 && byte !== 9) || byte === 0x7f) return UNUSUAL;
      at += 1;
    }
    if (at + 1 >= to) return INCOMPLETE;
    if (bytes[at + 1] !== LF) return UNUSUAL;
    const end = this.#head.scan(bytes, at + 2, to, this.#latin1);
    if (end < 0) return end;
    this.#status = hundreds * 100 + tens * 10 + ones;
    this.#reason = at - reasonStart === 2 && this.#status === 200 && bytes[reasonStart] === 0x4f &&
        bytes[reasonStart + 1] === 0x4b
      ? "OK"
      : this.#latin1(bytes, reasonStart, at);
    this.keepAlive = minor === 1 && !this.#saysClose();
    this.#isHttp10 = minor === 0;
    return end;
  }

  #isHttp10 = false;

  #saysClose(): boolean {
    if (!this.#head.has(CONNECTION)) return false;
    return hasToken(this.#head.joined(CONNECTION) ?? "", "close");
  }

  /** Decides what follows the head (RFC 9112 section 6.3). */
  #understand(sink: AnswerSink, chunk: Uint8Array, next: number): void {
    const head = this.#head;
    const status = this.#status;
    if (status === 101) {
      if (!this.#mayUpgrade) return void this.#fail("an upgrade that was not asked for");
      this.#state = DONE;
      this.keepAlive = false;
      return sink.onSwitch(this.#reason, head, chunk.subarray(next));
    }
    if (status < 200) return sink.onInterim(status, this.#reason, head);
    const hasLength = head.has(CONTENT_LENGTH);
    const isCoded = head.has(TRANSFER_ENCODING);
    if (head.repeated & (bit(CONTENT_LENGTH) | bit(TRANSFER_ENCODING))) {
      return void this.#fail("repeated framing headers");
    }
    if (hasLength && isCoded) return void this.#fail("content-length and transfer-encoding");
    const length = hasLength ? parseLength(head.first(CONTENT_LENGTH) ?? "") : 0;
    if (length < 0) return void this.#fail("invalid content-length");
    if (isCoded) {
      if (this.#isHttp10) return void this.#fail("transfer-encoding in HTTP/1.0");
      if (head.first(TRANSFER_ENCODING)?.toLowerCase() !== "chunked") {
        return void this.#fail("unknown transfer-encoding");
      }
    }
    if (head.has(KEEP_ALIVE)) this.#readKeepAlive(head.first(KEEP_ALIVE) ?? "");
    if (this.#method === "HEAD" || status === 204 || status === 304) {
      sink.onHead(status, this.#reason, head, "none", length);
      return this.#finish("", sink);
    }
    if (isCoded) {
      this.#state = CHUNK_SIZE;
      this.#left = this.#digits = 0;
      return sink.onHead(status, this.#reason, head, "chunked", 0);
    }
    if (hasLength) {
      this.#state = BODY_LENGTH;
      this.#left = length;
      sink.onHead(status, this.#reason, head, "length", length);
      if (length === 0) this.#finish("", sink);
      return;
    }
    this.#state = BODY_UNTIL_CLOSE;
    this.keepAlive = false;
    sink.onHead(status, this.#reason, head, "close", 0);
  }

  #lastKeepAlive = "";

  #readKeepAlive(value: string): void {
    if (value === this.#lastKeepAlive) return;
    this.#lastKeepAlive = value;
    const seconds = /(?:^|[,\s])timeout=(\d{1,9})/i.exec(value)?.[1];
    this.keptForMs = seconds === undefined ? Infinity : Number(seconds) * 1000;
  }

  #readChunked(bytes: Uint8Array, from: number, sink: AnswerSink): number {
    let at = from;
    while (at < bytes.length) {
      const byte = bytes[at] as number;
      switch (this.#state) {
        case CHUNK_SIZE: {
          const digit = hexDigit(byte);
          if (digit >= 0) {
            this.#left = this.#left * 16 + digit;
            this.#digits += 1;
            if (this.#digits > 12) return this.#fail("chunk size too large");
          } else if (this.#digits === 0) return this.#fail("invalid chunk size");
          else if (byte === CR) this.#state = CHUNK_SIZE_LF;
          else if (byte === 0x3b) {
            this.#state = CHUNK_EXTENSION;
            this.#extension = ";";
          } else return this.#fail("invalid chunk size");
          at += 1;
          break;
        }
        case CHUNK_EXTENSION:
          if (byte === CR) {
            if (!EXTENSIONS.test(this.#extension)) return this.#fail("invalid chunk extension");
            this.#state = CHUNK_SIZE_LF;
          } else {
            this.#extension += String.fromCharCode(byte);
            if (this.#extension.length > MOST_EXTENSION_BYTES) {
              return this.#fail("chunk extension too large");
            }
          }
          at += 1;
          break;
        case CHUNK_SIZE_LF:
          if (byte !== LF) return this.#fail("invalid chunk size line");
          this.#state = this.#left === 0 ? TRAILERS : CHUNK_DATA;
          this.#digits = 0;
          at += 1;
          if (this.#state === TRAILERS) {
            return at < bytes.length ? this.#trailers(bytes, at, sink) : at;
          }
          break;
        case CHUNK_DATA: {
          const end = Math.min(bytes.length, at + this.#left);
          this.#left -= end - at;
          sink.onChunk(bytes.subarray(at, end));
          at = end;
          if (this.#left === 0) this.#state = CHUNK_DATA_CR;
          break;
        }
        case CHUNK_DATA_CR:
          if (byte !== CR) return this.#fail("a chunk longer than its size");
          this.#state = CHUNK_DATA_LF;
          at += 1;
          break;
        case CHUNK_DATA_LF:
          if (byte !== LF) return this.#fail("a chunk longer than its size");
          this.#state = CHUNK_SIZE;
          at += 1;
          break;
        default:
          return this.#trailers(bytes, at, sink);
      }
    }
    return at;
  }

  /** The lines after the last chunk, often none. */
  #trailers(chunk: Uint8Array, from: number, sink: AnswerSink): number {
    let bytes = chunk;
    let start = from;
    const held = this.#held.length;
    if (held > 0) {
      bytes = new Uint8Array(held + chunk.length - from);
      bytes.set(this.#held);
      bytes.set(chunk.subarray(from), held);
      start = 0;
      this.#held = NONE;
    }
    const end = this.#head.scan(bytes, start, bytes.length, this.#latin1);
    if (end === UNUSUAL) return this.#fail("malformed trailers");
    if (end === INCOMPLETE) {
      if (bytes.length - start > this.#limit) return this.#fail("trailers too large");
      this.#held = bytes.slice(start);
      return chunk.length;
    }
    this.#finish(this.#head.text, sink);
    return held > 0 ? from + end - held : end;
  }
}

function hexDigit(byte: number): number {
  if (byte >= 0x30 && byte <= 0x39) return byte - 0x30;
  const lower = byte | 0x20;
  return lower >= 0x61 && lower <= 0x66 ? lower - 0x57 : -1;
}

/** True when a comma-separated list has the token (lower case), in any case. */
export function hasToken(list: string, token: string): boolean {
  if (list.length === token.length) return list.toLowerCase() === token;
  if (list.length < token.length) return false;
  return list.toLowerCase().split(",").some((part) => part.trim() === token);
}
