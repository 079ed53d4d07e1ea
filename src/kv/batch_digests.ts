/**
 * Fingerprints of the last batches of a lane.
 *
 * A batch that comes again is a duplicate; another batch with a number that was used before is from
 * a publisher that started over. Payloads carry the publisher's clock, so a fingerprint of the bytes
 * tells the two apart, on every replica in the same way.
 */

import type { LaneBatch } from "./lane_types.ts";

/** Batches that are remembered, counted from the newest. */
export const REMEMBERED = 256n;
const SLOTS = Number(REMEMBERED);
/** Fingerprints that go into a lane's cut. */
const IN_CUT = 32;

export type DigestState = readonly (readonly [seq: string, digest: number])[];

export class BatchDigests {
  readonly #seqs = new BigUint64Array(SLOTS);
  /** 0 = the slot is empty. */
  readonly #digests = new Float64Array(SLOTS);

  note(batch: LaneBatch): void {
    const slot = slotOf(batch.seq);
    this.#seqs[slot] = batch.seq;
    this.#digests[slot] = batchDigest(batch);
  }

  /** The fingerprint of the batch with this number; undefined if it is not remembered. */
  of(seq: bigint): number | undefined {
    const slot = slotOf(seq);
    const digest = this.#digests[slot] ?? 0;
    return digest === 0 || this.#seqs[slot] !== seq ? undefined : digest;
  }

  /** What is known about a batch whose number was used before. */
  compare(batch: LaneBatch): "same" | "different" | "unknown" {
    const known = this.of(batch.seq);
    if (known === undefined) return "unknown";
    return known === batchDigest(batch) ? "same" : "different";
  }

  clear(): void {
    this.#digests.fill(0);
  }

  /** The newest ones up to `cursor`. */
  state(cursor: bigint | undefined): DigestState {
    const state: [string, number][] = [];
    if (cursor === undefined) return state;
    for (let seq = cursor; seq >= 0n && state.length < IN_CUT; seq--) {
      const digest = this.of(seq);
      if (digest === undefined) break;
      state.push([seq.toString(), digest]);
    }
    return state;
  }

  restore(state: DigestState): void {
    this.clear();
    for (const [seq, digest] of state) {
      const number = BigInt.asUintN(64, BigInt(seq));
      const slot = slotOf(number);
      this.#seqs[slot] = number;
      this.#digests[slot] = digest;
    }
  }
}

function slotOf(seq: bigint): number {
  return Number(seq % REMEMBERED);
}

/** Bytes at each end of a payload that always count; the middle is sampled. */
const EDGE = 48;
const SAMPLES = 64;

/** 53 bits over the length, both ends and samples of the middle of a payload; never 0. */
export function payloadDigest(payload: Uint8Array): number {
  const length = payload.length;
  let a = 0x811c9dc5 ^ length;
  let b = Math.imul(length + 1, 0x9e3779b1);
  const edge = Math.min(EDGE, length);
  for (let i = 0; i < edge; i++) {
    a = Math.imul(a ^ (payload[i] ?? 0), 0x01000193);
    b = Math.imul(b ^ (payload[length - 1 - i] ?? 0), 0x85ebca6b) ^ (b >>> 13);
  }
  const stride = Math.max(1, Math.floor((length - 2 * edge) / SAMPLES));
  for (let i = edge; i < length - edge; i += stride) {
    a = Math.imul(a ^ (payload[i] ?? 0), 0x01000193);
    b ^= a >>> 15;
  }
  return (a >>> 0) * 0x200000 + ((b >>> 0) & 0x1fffff) || 1;
}

/** The batch's own digest, or one of its events when it came without bytes. */
export function batchDigest(batch: LaneBatch): number {
  if (batch.digest !== undefined) return batch.digest;
  let a = 0x811c9dc5 ^ batch.events.length;
  let b = 0x9e3779b1;
  const add = (word: number): void => {
    a = Math.imul(a ^ word, 0x01000193);
    b = Math.imul(b ^ word, 0x85ebca6b) ^ (b >>> 13);
  };
  for (const event of batch.events) {
    add(event.kind.charCodeAt(0) + event.kind.length);
    if (!("hashes" in event)) continue;
    add(event.hashes.length);
    for (const hash of [event.hashes[0] ?? 0n, event.hashes[event.hashes.length - 1] ?? 0n]) {
      add(Number(hash & 0xffffffffn) | 0);
      add(Number(hash >> 32n) | 0);
    }
    if ("tokens" in event) add(event.tokens[0] ?? 0);
  }
  return (a >>> 0) * 0x200000 + ((b >>> 0) & 0x1fffff) || 1;
}
