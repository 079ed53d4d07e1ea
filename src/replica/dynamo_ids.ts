/**
 * Names in Dynamo's dump: workers are u64 there, partitions are `<model>:<group>` in one string.
 */

import type { LaneKey } from "../kv/lane_key.ts";

const MASK = 2n ** 64n - 1n;
const encoder = new TextEncoder();

/**
 * A worker's number: a canonical decimal u64 stands for itself, any other name for the FNV-1a hash
 * (64 bits) of its UTF-8 bytes.
 */
export function dynamoWorkerId(worker: string): bigint {
  if (/^(0|[1-9][0-9]{0,19})$/.test(worker)) {
    const number = BigInt(worker);
    if (number <= MASK) return number;
  }
  let hash = 0xcbf29ce484222325n;
  for (const byte of encoder.encode(worker)) {
    hash = ((hash ^ BigInt(byte)) * 0x100000001b3n) & MASK;
  }
  return hash;
}

/** Ambiguous when a model or a group has a colon, so a reader compares whole strings. */
export function dynamoPartition(key: Pick<LaneKey, "model" | "group">): string {
  return `${key.model}:${key.group}`;
}
