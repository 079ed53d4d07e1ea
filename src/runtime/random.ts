import type { Random } from "./runtime.ts";

/** `crypto.getRandomValues` refuses more bytes than this in one call (Web Cryptography 10.1.1). */
const MOST_BYTES_PER_CALL = 65_536;

/** Randomness from web standards only. `number` is fast and not for secrets; the others are. */
export function createRandom(): Random {
  return {
    number: () => Math.random(),
    uuid: () => crypto.randomUUID(),
    bytes(length) {
      const bytes = new Uint8Array(length);
      for (let start = 0; start < length; start += MOST_BYTES_PER_CALL) {
        crypto.getRandomValues(bytes.subarray(start, start + MOST_BYTES_PER_CALL));
      }
      return bytes;
    },
  };
}
