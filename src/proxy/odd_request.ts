/**
 * A request that the scanner of head.ts leaves to llhttp: chunked, HTTP/1.0, in several reads, oddly
 * spelled, or wrong.
 *
 * The method is ours to read, since llhttp knows only registered ones; all the rest is llhttp's.
 */

import type { ErrorCode } from "../errors.ts";
import type { MessageHead, MessageParser } from "../runtime/runtime.ts";
import { type Head, isToken, TRANSFER_ENCODING } from "./head.ts";
import { HTTP2_PREFACE } from "./request_rules.ts";
import type { TrafficCore } from "./traffic_core.ts";

const LONGEST_METHOD = 32;
const GET_AND_SPACE = new TextEncoder().encode("GET ");
/** CONNECT has a form of target of its own. */
const CONNECT_AND_SPACE = new TextEncoder().encode("CONNECT ");

/** Why a request is refused. */
export interface Refusal {
  readonly code: ErrorCode;
  readonly detail?: string;
}

export class OddRequest {
  /** Set when the request cannot be read on. */
  refusal: Refusal | undefined;
  /** The start line and header lines, once they are complete. */
  head: MessageHead | undefined;
  /** Body pieces that nobody has taken yet: views of the chunk that was read last. */
  pieces: Uint8Array[] = [];
  /** Trailer lines, once the message is complete. */
  trailers: string | undefined;
  readonly #core: TrafficCore;
  readonly #parser: MessageParser;
  #isReturned = false;
  /** With the space behind it once it is complete. */
  #method = "";
  /** Bytes since the start, or in a body since its last piece, that are no body. */
  #overhead = 0;

  constructor(core: TrafficCore) {
    this.#core = core;
    this.#parser = core.takeParser({
      head: (head) => void (this.head = head),
      body: (chunk) => void this.pieces.push(chunk),
      end: (trailers) => void (this.trailers = trailers),
    });
  }

  get method(): string {
    return this.#method.slice(0, -1);
  }

  /** Reads from `from` and answers the offset behind what was used; see `head` and `refusal`. */
  readHead(chunk: Uint8Array, from: number): number {
    const { limits } = this.#core;
    const at = this.#method.endsWith(" ") ? from : this.#readMethod(chunk, from);
    if (this.refusal !== undefined || at === chunk.length) return at;
    const stop = this.#parser.execute(chunk, at);
    this.#overhead += stop - at;
    const { error, targetLength } = this.#parser;
    const head = this.head;
    if (error !== undefined) {
      const isHttp2 = HTTP2_PREFACE.startsWith(this.#method);
      this.refusal = isHttp2
        ? { code: "version_not_supported" }
        : { code: "bad_request", detail: error };
    } else if (targetLength > limits.targetBytes) this.refusal = { code: "target_too_long" };
    else if (head === undefined) {
      // Until the head is complete nothing tells where its target ends.
      const isLarge = this.#overhead > limits.headerBytes + limits.targetBytes;
      if (isLarge) this.refusal = { code: "headers_too_large" };
    } else if (head.lines.length > limits.headerBytes) this.refusal = { code: "headers_too_large" };
    else if (head.version !== 10 && head.version !== 11) {
      this.refusal = { code: "version_not_supported" };
    } else this.#overhead = 0;
    return stop;
  }

  #readMethod(chunk: Uint8Array, from: number): number {
    let at = from;
    for (; at < chunk.length && !this.#method.endsWith(" "); at++) {
      const char = String.fromCharCode(chunk[at] as number);
      const isEmptyLine = this.#method === "" && (char === "\r" || char === "\n");
      const isMethod = isToken(char) || (char === " " && this.#method !== "");
      this.#overhead += 1;
      const isLong = this.#method.length > LONGEST_METHOD || this.#overhead > 2 * LONGEST_METHOD;
      if ((!isEmptyLine && !isMethod) || isLong) {
        this.refusal = { code: "bad_request" };
        return at;
      }
      if (!isEmptyLine) this.#method += char;
    }
    if (this.#method.endsWith(" ")) {
      this.#parser.execute(this.method === "CONNECT" ? CONNECT_AND_SPACE : GET_AND_SPACE, 0);
    }
    return at;
  }

  /**
   * Puts the lines into `into`, and answers whether the request has a chunked body; a refusal for
   * lines that are not plain, and for any other transfer coding.
   */
  understand(head: MessageHead, into: Head): boolean | Refusal {
    const bytes = new Uint8Array(head.lines.length + 2);
    for (let at = 0; at < head.lines.length; at++) bytes[at] = head.lines.charCodeAt(at);
    bytes.set([13, 10], head.lines.length);
    if (into.scan(bytes, 0, bytes.length, this.#core.latin1) < 0) return { code: "bad_request" };
    const coding = into.joined(TRANSFER_ENCODING);
    if (coding === undefined) return false;
    if (head.version === 10 || coding.toLowerCase() !== "chunked") {
      return { code: "bad_request", detail: "transfer-encoding" };
    }
    return true;
  }

  /** Reads on in the body; see `pieces`, `trailers` and `refusal`. */
  readBody(chunk: Uint8Array, from: number): number {
    const stop = this.#parser.execute(chunk, from);
    this.#overhead = this.pieces.length > 0 ? 0 : this.#overhead + stop - from;
    if (this.#parser.error !== undefined) this.refusal = { code: "bad_request" };
    else if (this.#overhead > this.#core.limits.headerBytes) {
      this.refusal = { code: "headers_too_large" };
    }
    return stop;
  }

  /** Gives the parser back. */
  release(): void {
    if (this.#isReturned) return;
    this.#isReturned = true;
    this.#core.returnParser(this.#parser);
  }
}
