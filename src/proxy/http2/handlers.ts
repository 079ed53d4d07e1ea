/**
 * What an HTTP/2 connection tells those who use it, whichever side they are.
 *
 * Header sections arrive as a Head (names in lower case) and leave as lines, `name: value` with CRLF
 * each, like everywhere in the proxy. Chunks are views, valid until the `flush` after them.
 */

import type { Head } from "../head.ts";

export interface RequestHead {
  readonly method: string;
  /** `:path`, or "" if there was none (CONNECT). */
  readonly path: string;
  /**
   * The fields without the pseudo fields, with `:authority` as the first `host`: if that is repeated,
   * there are several that do not agree. Cookies are one line.
   */
  readonly head: Head;
  /** What `content-length` says; -1 without one. */
  readonly length: number;
  /** No body follows. */
  readonly isComplete: boolean;
}

/** What a stream tells its owner. Exactly one `close` comes, and it comes last. */
export interface StreamHandlers {
  data(chunk: Uint8Array): void;
  /** The other side's message is complete. `trailers` are lines. */
  end(trailers: string): void;
  /** No more of this read: what was put together should leave. */
  flush(): void;
  /** There is room again after a `write` that answered false. */
  drain(): void;
  /** `code` is 0 when both sides ended in good order. */
  close(code: number): void;
}

export interface ClientStreamHandlers extends StreamHandlers {
  /** An interim answer. The head is valid during the call, here and below. */
  inform(status: number, head: Head): void;
  /** `end` follows, also when there is no body. */
  head(status: number, head: Head, isComplete: boolean): void;
}
