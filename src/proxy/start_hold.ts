/**
 * Requests that came before the host has anything to serve: they wait for its first moment of
 * serving, so that a restart looks like a slow answer and not like an outage.
 *
 * Bounded in count and bytes like the wait for a single version, and each by the time that its
 * service gives; what finds no room is refused at once.
 */

import type { Exchange } from "./exchange.ts";

export interface StartHoldOptions {
  after(delayMs: number, action: () => void): () => void;
  /** Requests that may wait at once (default 10,000). */
  readonly maxRequests?: number;
  /** Bytes of heads and bodies that those may keep in memory (default 64 MiB). */
  readonly maxBytes?: number;
}

/** `released`: look again whether the host lets it in; `left`: its client is gone. */
export type StartHoldEnd = "released" | "timeout" | "left";

/** What a connection may have read of a body that nobody takes yet: a read above 64 KiB. */
const READ_AHEAD_BYTES = 65_536 + 262_144;

export class StartHold {
  readonly #options: StartHoldOptions;
  readonly #waiting = new Set<(end: StartHoldEnd) => void>();
  #bytes = 0;

  constructor(options: StartHoldOptions) {
    this.#options = options;
  }

  get count(): number {
    return this.#waiting.size;
  }

  /** Keeps the exchange for up to `ms`; undefined when it may not wait. Never rejects. */
  wait(exchange: Exchange, ms: number): Promise<StartHoldEnd> | undefined {
    const { after, maxRequests = 10_000, maxBytes = 67_108_864 } = this.#options;
    const bytes = heldBytes(exchange);
    if (ms <= 0 || this.#waiting.size >= maxRequests || this.#bytes + bytes > maxBytes) {
      return undefined;
    }
    return new Promise((resolve) => {
      const end = (how: StartHoldEnd): void => {
        if (!this.#waiting.delete(end)) return;
        this.#bytes -= bytes;
        cancel();
        resolve(how);
      };
      this.#waiting.add(end);
      this.#bytes += bytes;
      const cancel = after(ms, () => end("timeout"));
      exchange.onAbort(() => end("left"));
    });
  }

  /** Lets all go on, in the order in which they came. */
  release(): void {
    for (const end of [...this.#waiting]) end("released");
  }
}

/** What a request that waits may keep in memory. */
export function heldBytes(exchange: Exchange): number {
  let bytes = exchange.target.length;
  for (const part of exchange.headers) bytes += part.length;
  const length = Number(exchange.header("content-length") ?? 0);
  return bytes + (Number.isFinite(length) ? Math.min(length, READ_AHEAD_BYTES) : 0);
}
