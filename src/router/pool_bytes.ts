/**
 * How a pool gets at the bytes of an exchange: at the prompt in its body, and at what the answer says
 * as it passes. The choice knows nothing of where the bytes are; for a client on another thread of
 * the data path that thread has them, and does the same.
 */

import type { Exchange, Forward, ForwardOutcome, HeaderLines } from "../proxy/exchange.ts";
import type { Lease } from "../proxy/target.ts";
import { type PromptFacts, type PromptReading, readPromptFacts } from "./prompt_facts.ts";
import { UsageReader } from "./usage_reader.ts";

export interface PoolBytes {
  /**
   * Reads the whole body, once; it goes along with every `move` from then on. Throws `bad_request`,
   * `body_too_large` and `client_closed`.
   */
  readPrompt(): Promise<PromptFacts>;
  /**
   * Moves the request to the lease's target. A failure before any byte of an answer went to the
   * client is returned. `firstByte` is called when the answer's body begins.
   */
  move(lease: Lease, firstByte: () => void): Promise<Moved>;
}

export interface Moved {
  readonly outcome: ForwardOutcome;
  /** Of the target's answer, 0 without one. */
  readonly status: number;
  /** What the usage in the answer says, if it says it. */
  readonly cachedTokens: number | undefined;
}

/** An exchange whose bytes are elsewhere. */
export interface FarExchange extends Exchange {
  readonly bytes: PoolBytes;
}

export interface ReadingOptions extends PromptReading {
  readonly maxBodyBytes: number;
}

export function bytesOf(exchange: Exchange, forward: Forward, options: ReadingOptions): PoolBytes {
  const { bytes } = exchange as Partial<FarExchange>;
  return bytes ?? new NearBytes(exchange, forward, options);
}

/** Bytes of a client of this thread. */
export class NearBytes implements PoolBytes {
  readonly #exchange: Exchange;
  readonly #forward: Forward;
  readonly #options: ReadingOptions;
  #body: Uint8Array | undefined;

  constructor(exchange: Exchange, forward: Forward, options: ReadingOptions) {
    this.#exchange = exchange;
    this.#forward = forward;
    this.#options = options;
  }

  async readPrompt(): Promise<PromptFacts> {
    this.#body = await this.#exchange.readBody(this.#options.maxBodyBytes);
    return readPromptFacts(this.#body, this.#options);
  }

  async move(lease: Lease, firstByte: () => void): Promise<Moved> {
    const body = this.#body;
    let status = 0;
    let usage: UsageReader | undefined;
    let isFirst = true;
    const outcome = await this.#forward(this.#exchange, lease, {
      ...(body === undefined ? {} : { body }),
      returnFailure: true,
      onHead: (found, headers) => {
        status = found;
        if (body !== undefined && found === 200 && isPlain(headers)) usage = new UsageReader();
      },
      onBody: (chunk) => {
        if (isFirst) firstByte();
        isFirst = false;
        usage?.add(chunk);
      },
    });
    const cachedTokens = outcome.result === "complete" ? usage?.cachedTokens() : undefined;
    return { outcome, status, cachedTokens };
  }
}

function isPlain(headers: HeaderLines): boolean {
  for (let at = 0; at < headers.length; at += 2) {
    if (headers[at]?.toLowerCase() === "content-encoding") return false;
  }
  return true;
}
