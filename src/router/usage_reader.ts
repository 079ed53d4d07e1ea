/**
 * Reads from a passing answer how many tokens of the prompt the worker had in its cache, as its
 * `usage` says (`prompt_tokens_details.cached_tokens`). `usage` stands near the end, in a plain answer
 * as in a stream, so only the last bytes are kept; an answer without it, or compressed, says nothing.
 */

const KEPT_BYTES = 2_048;
/** In a text the quotes would be escaped. */
const CACHED_TOKENS = /(?<!\\)"cached_tokens"\s*:\s*(\d{1,9})(?!\d)/g;

export class UsageReader {
  /** The last bytes, the oldest first once it is unrolled at `#at`. */
  readonly #kept = new Uint8Array(KEPT_BYTES);
  #at = 0;
  #total = 0;

  /** Copies what it needs: the chunk stays as it is. */
  add(chunk: Uint8Array): void {
    const part = chunk.length > KEPT_BYTES ? chunk.subarray(chunk.length - KEPT_BYTES) : chunk;
    const room = KEPT_BYTES - this.#at;
    this.#kept.set(part.subarray(0, room), this.#at);
    if (part.length > room) this.#kept.set(part.subarray(room), 0);
    this.#at = (this.#at + part.length) % KEPT_BYTES;
    this.#total += part.length;
  }

  /** The last count that was told, or undefined. */
  cachedTokens(): number | undefined {
    const bytes = new Uint8Array(Math.min(this.#total, KEPT_BYTES));
    if (this.#total <= KEPT_BYTES) bytes.set(this.#kept.subarray(0, this.#total));
    else {
      bytes.set(this.#kept.subarray(this.#at));
      bytes.set(this.#kept.subarray(0, this.#at), KEPT_BYTES - this.#at);
    }
    const last = [...new TextDecoder().decode(bytes).matchAll(CACHED_TOKENS)].at(-1);
    return last === undefined ? undefined : Number(last[1]);
  }
}
