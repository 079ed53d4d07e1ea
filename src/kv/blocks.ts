/**
 * The shapes that pass between event decoding, the index and the dump.
 */

/** Where a block's bytes are, from fastest to slowest. */
export const TIERS = ["device", "host", "disk", "external"] as const;
export type Tier = (typeof TIERS)[number];

/** Bit of a tier in a tier mask: device 1, host 2, disk 4, external 8. */
export function tierBit(tier: Tier): number {
  return 1 << TIERS.indexOf(tier);
}

/** A decoded event, hashes still the engine's own. Produced by the decoders, taken by the index. */
export type KvEvent =
  | {
    readonly kind: "stored";
    /** The engine's hash of the block before the first one; undefined = the sequence starts here. */
    readonly parent: bigint | undefined;
    /** Engine hashes (u64), one for each block. */
    readonly hashes: BigUint64Array;
    /** `hashes.length * blockSize` tokens (one more when `eagle`). */
    readonly tokens: Uint32Array;
    readonly blockSize: number;
    readonly tier: Tier;
    readonly lora?: string;
    readonly salt?: string;
    readonly eagle?: boolean;
    /** Multimodal hashes of each block, sorted ascending; absent = none anywhere. */
    readonly multimodal?: readonly (readonly bigint[])[];
  }
  | {
    /** As `stored`, with local block hashes instead of tokens (Dynamo's dump, Mooncake's events). */
    readonly kind: "stored_hashed";
    readonly parent: bigint | undefined;
    readonly hashes: BigUint64Array;
    /** XXH3-64 of each block's tokens with the chain seed (reference: Dynamo's `tokens_hash`). */
    readonly locals: BigUint64Array;
    readonly tier: Tier;
  }
  | { readonly kind: "removed"; readonly hashes: BigUint64Array; readonly tier: Tier }
  | { readonly kind: "cleared" };

/**
 * Everything that one lane holds, as columns, parents before children: the exact cut that a dump
 * carries and that `load` takes. All columns have `count` entries.
 */
export interface LaneBlocks {
  readonly count: number;
  /** Row of the parent in these columns, or -1 for the first block of a sequence. */
  readonly parents: Int32Array;
  /** Chain keys: XXH3-64 over (parent's chain key, local hash); the first block's is its local hash. */
  readonly keys: BigUint64Array;
  readonly locals: BigUint64Array;
  /** The engine's hashes, for parent links and removals of later events. */
  readonly engines: BigUint64Array;
  readonly tiers: Uint8Array;
  /** Copies held (a block stored twice must be removed twice), at least 1. */
  readonly copies: Uint16Array;
}

export const NO_BLOCKS: LaneBlocks = {
  count: 0,
  parents: new Int32Array(0),
  keys: new BigUint64Array(0),
  locals: new BigUint64Array(0),
  engines: new BigUint64Array(0),
  tiers: new Uint8Array(0),
  copies: new Uint16Array(0),
};
