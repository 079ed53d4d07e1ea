/**
 * The prefix cache of a mock engine: blocks in a tree, least recently used leaves evicted first.
 *
 * Hashes are seeded at random for each engine, as real engines do, so that nobody can come to rely
 * on two engines naming one block alike.
 */

import { createHash, randomBytes } from "node:crypto";

export interface CacheEvents {
  stored(
    parent: bigint | undefined,
    blocks: readonly { hash: bigint; tokens: readonly number[] }[],
  ): void;
  removed(hashes: readonly bigint[]): void;
}

interface Block {
  readonly hash: bigint;
  readonly parent: Block | undefined;
  children: number;
}

export class PrefixCache {
  readonly blockSize: number;
  readonly #capacity: number;
  readonly #events: CacheEvents;
  readonly #seed = randomBytes(8);
  /** In order of use: the first entry is the one that was not used for longest. */
  readonly #blocks = new Map<bigint, Block>();

  constructor(options: { blockSize: number; capacityBlocks: number; events: CacheEvents }) {
    this.blockSize = options.blockSize;
    this.#capacity = options.capacityBlocks;
    this.#events = options.events;
  }

  get size(): number {
    return this.#blocks.size;
  }

  /** Takes a prompt in; returns how many of its tokens were held before. */
  admit(tokens: readonly number[]): number {
    let parent: Block | undefined;
    let held = 0;
    const fresh: { hash: bigint; tokens: readonly number[] }[] = [];
    const path: Block[] = [];
    for (let at = 0; at + this.blockSize <= tokens.length; at += this.blockSize) {
      const part = tokens.slice(at, at + this.blockSize);
      const hash = this.#hash(parent?.hash, part);
      let block = this.#blocks.get(hash);
      if (block === undefined) {
        block = { hash, parent, children: 0 };
        if (parent !== undefined) parent.children += 1;
        fresh.push({ hash, tokens: part });
      } else if (fresh.length === 0) held += this.blockSize;
      this.#blocks.delete(hash);
      this.#blocks.set(hash, block);
      path.push(block);
      parent = block;
    }
    if (fresh.length > 0) {
      const before = path[path.length - fresh.length - 1];
      this.#events.stored(before?.hash, fresh);
    }
    this.#evict(new Set(path));
    return held;
  }

  #evict(inUse: ReadonlySet<Block>): void {
    const removed: bigint[] = [];
    while (this.#blocks.size > this.#capacity) {
      let victim: Block | undefined;
      for (const block of this.#blocks.values()) {
        if (block.children === 0 && !inUse.has(block)) {
          victim = block;
          break;
        }
      }
      if (victim === undefined) break;
      this.#blocks.delete(victim.hash);
      if (victim.parent !== undefined) victim.parent.children -= 1;
      removed.push(victim.hash);
    }
    if (removed.length > 0) this.#events.removed(removed);
  }

  #hash(parent: bigint | undefined, tokens: readonly number[]): bigint {
    const hash = createHash("sha256").update(this.#seed).update(String(parent ?? ""));
    hash.update(new Uint8Array(Uint32Array.from(tokens).buffer));
    return hash.digest().readBigUInt64LE(0);
  }
}
