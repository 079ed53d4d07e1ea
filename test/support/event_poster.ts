/**
 * Posts a mock worker's KV events, as JSON lines, to every replica's `/events`.
 *
 * Each destination has its own place in one numbered history, so that a replica that was away gets
 * what it missed, in order. What is older than the history is gone: the replica sees a hole in the
 * numbers and gets the rest from its peers.
 */

import type { CacheEvents } from "./prefix_cache.ts";

const HISTORY_BATCHES = 20_000;
const BATCHES_PER_POST = 200;
const RETRY_MS = 100;

export interface EventPosterOptions {
  readonly worker: string;
  readonly model: string;
  readonly blockSize: number;
  /** The full URLs of `/events` endpoints. */
  readonly urls: readonly string[];
  readonly token?: string;
}

export class EventPoster implements CacheEvents {
  readonly #options: EventPosterOptions;
  /** Lines by number; the first entry's number is `#firstSeq`. */
  readonly #history: string[] = [];
  readonly #epoch = crypto.randomUUID();
  #firstSeq = 0;
  #stopped = false;
  readonly #wake = new Set<() => void>();

  constructor(options: EventPosterOptions) {
    this.#options = options;
    for (const url of options.urls) void this.#feed(url);
  }

  stored(
    parent: bigint | undefined,
    blocks: readonly { hash: bigint; tokens: readonly number[] }[],
  ): void {
    this.#add({
      event_type: "stored",
      seq_hashes: blocks.map((block) => String(block.hash)),
      parent_hash: parent === undefined ? null : String(parent),
      token_ids: blocks.flatMap((block) => block.tokens),
    });
  }

  removed(hashes: readonly bigint[]): void {
    this.#add({ event_type: "removed", seq_hashes: hashes.map(String) });
  }

  stop(): void {
    this.#stopped = true;
    for (const wake of [...this.#wake]) wake();
  }

  #add(event: Record<string, unknown>): void {
    const { worker, model, blockSize } = this.#options;
    const seq = this.#firstSeq + this.#history.length;
    this.#history.push(JSON.stringify({
      worker,
      model_name: model,
      block_size: blockSize,
      seq: String(seq),
      epoch: this.#epoch,
      ...event,
    }));
    if (this.#history.length > HISTORY_BATCHES) {
      this.#history.shift();
      this.#firstSeq += 1;
    }
    for (const wake of [...this.#wake]) wake();
  }

  async #feed(url: string): Promise<void> {
    let next = 0;
    while (!this.#stopped) {
      next = Math.max(next, this.#firstSeq);
      const at = next - this.#firstSeq;
      const lines = this.#history.slice(at, at + BATCHES_PER_POST);
      if (lines.length === 0) {
        await new Promise<void>((resolve) => {
          const wake = () => {
            this.#wake.delete(wake);
            resolve();
          };
          this.#wake.add(wake);
        });
        continue;
      }
      if (await this.#post(url, lines.join("\n") + "\n")) next += lines.length;
      else await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
  }

  async #post(url: string, body: string): Promise<boolean> {
    const { token } = this.#options;
    try {
      const response = await fetch(url, {
        method: "POST",
        headers: {
          "content-type": "application/x-ndjson",
          ...(token === undefined ? {} : { authorization: `Bearer ${token}` }),
        },
        body,
      });
      const answer = await response.text();
      if (response.status === 202 && answer.includes('"refused_count":0')) return true;
      if (response.status < 500) {
        // A refused line would be refused again: say so, and go on with the next ones.
        console.error(`events refused by ${url}: ${response.status} ${answer.slice(0, 300)}`);
        return true;
      }
    } catch {
      // Not up yet, or restarting.
    }
    return false;
  }
}
