/**
 * What one would write first: `Map`s with bigint keys. The yardstick of the index bench; it knows
 * the device tier only and nothing of copies, suffixes or snapshots.
 */

import type { KvEvent } from "../../src/kv/blocks.ts";
import { BlockHasher } from "../../src/kv/hash.ts";

export class MapIndex {
  readonly #hasher: BlockHasher;
  readonly #blockSize: number;
  /** Chain key -> lanes. */
  readonly #holders = new Map<bigint, Set<number> | number>();
  /** Lane -> engine hash -> chain key. */
  readonly #names: Map<bigint, bigint>[] = [];
  #blocks = 0;

  private constructor(hasher: BlockHasher, blockSize: number) {
    this.#hasher = hasher;
    this.#blockSize = blockSize;
  }

  static async create({ blockSize }: { blockSize: number }): Promise<MapIndex> {
    return new MapIndex(await BlockHasher.create(), blockSize);
  }

  openLane(_worker: string, _dpRank: number): number {
    return this.#names.push(new Map()) - 1;
  }

  apply(lane: number, event: KvEvent): { applied: number } {
    const names = this.#names[lane];
    if (names === undefined) return { applied: 0 };
    if (event.kind === "stored") {
      const locals = this.#hasher.locals(event.tokens, this.#blockSize);
      const parent = event.parent === undefined ? undefined : names.get(event.parent);
      const keys = this.#keys(parent, locals);
      for (const [i, key] of keys.entries()) {
        names.set(event.hashes[i] ?? 0n, key);
        const holders = this.#holders.get(key);
        if (holders === undefined) this.#holders.set(key, lane);
        else if (typeof holders === "number") this.#holders.set(key, new Set([holders, lane]));
        else holders.add(lane);
      }
      this.#blocks += keys.length;
      return { applied: keys.length };
    }
    if (event.kind !== "removed") return { applied: 0 };
    for (const hash of event.hashes) {
      const key = names.get(hash);
      if (key === undefined) continue;
      names.delete(hash);
      const holders = this.#holders.get(key);
      if (typeof holders === "number") this.#holders.delete(key);
      else holders?.delete(lane);
    }
    this.#blocks -= event.hashes.length;
    return { applied: event.hashes.length };
  }

  match({ tokens }: { tokens: Uint32Array }): { lane: number; device: number }[] {
    const depths = new Map<number, number>();
    const keys = this.#keys(undefined, this.#hasher.locals(tokens, this.#blockSize));
    for (const [i, key] of keys.entries()) {
      const holders = this.#holders.get(key);
      if (holders === undefined) break;
      if (typeof holders === "number") depths.set(holders, i + 1);
      else for (const lane of holders) depths.set(lane, i + 1);
    }
    return [...depths].map(([lane, device]) => ({ lane, device }));
  }

  stats(): { blocks: number; bytes: number } {
    return { blocks: this.#blocks, bytes: 0 };
  }

  #keys(parent: bigint | undefined, locals: BigUint64Array): BigUint64Array {
    const from = parent === undefined ? 0 : 1;
    const rows = new BigUint64Array(locals.length + from);
    if (parent !== undefined) rows[0] = parent;
    rows.set(locals, from);
    const parents = Int32Array.from({ length: rows.length }, (_, row) => row - 1);
    return this.#hasher.chainKeys(parents, rows).subarray(from);
  }
}
