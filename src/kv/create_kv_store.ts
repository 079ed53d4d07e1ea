/** The store over the real index. Tests put smaller indexes into `KvStore` themselves. */

import { BlockHasher } from "./hash.ts";
import { KvStore, type KvStoreOptions } from "./kv_store.ts";
import { PrefixIndex } from "./prefix_index.ts";

export type IndexStore = KvStore<PrefixIndex>;

export interface CreateKvStoreOptions
  extends Omit<KvStoreOptions<PrefixIndex>, "createIndex" | "hashBytes"> {
  /** Most (block, lane) pairs of one partition; unbounded when absent. */
  readonly maxBlocks?: number;
}

/** Makes an empty store. */
export async function createKvStore(options: CreateKvStoreOptions): Promise<IndexStore> {
  const hasher = await BlockHasher.create();
  const { maxBlocks } = options;
  return new KvStore<PrefixIndex>({
    ...options,
    createIndex: ({ blockSize }) =>
      PrefixIndex.create({ blockSize, ...(maxBlocks === undefined ? {} : { maxBlocks }) }),
    hashBytes: (bytes) => hasher.bytes(bytes, 0n),
  });
}
