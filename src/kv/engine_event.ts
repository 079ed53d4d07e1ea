/**
 * Events as an engine sends them, decoded but not yet understood.
 *
 * What they mean depends on earlier events of the same lane (cache groups, namespaces), so they are
 * turned into `KvEvent`s by the lane's `EventReader`, in the order in which they are applied.
 */

/** One opaque item of an engine's `extra_keys`: what else than tokens went into a block's hash. */
export type ExtraKey =
  | string
  | bigint
  | Uint8Array
  /** A pair such as vLLM's (multimodal hash, offset). */
  | { readonly id: string | bigint | Uint8Array; readonly offset: number };

/** Fields that stores and removals share. */
export interface EngineFields {
  readonly medium: string | undefined;
  readonly groupIndex: number | undefined;
  readonly specKind: string | undefined;
  readonly locality: string | undefined;
}

export interface EngineStored extends EngineFields {
  readonly kind: "engine_stored";
  readonly hashes: BigUint64Array;
  readonly parent: bigint | undefined;
  readonly tokens: Uint32Array;
  /** Tokens came as overlapping pairs (Eagle); `tokens` is the flattened run. */
  readonly isBigram: boolean;
  readonly blockSize: number;
  readonly lora: string | undefined;
  readonly salt: string | undefined;
  /** For each block its items; undefined = none at all. */
  readonly extraKeys: readonly (readonly ExtraKey[])[] | undefined;
  /** Multimodal hashes that the engine lists by block, apart from `extraKeys`. */
  readonly multimodal: readonly (readonly bigint[])[] | undefined;
  /** Told apart because llm-d's simulator writes 0 for "no parent" in array events only. */
  readonly isArray: boolean;
}

export interface EngineRemoved extends EngineFields {
  readonly kind: "engine_removed";
  readonly hashes: BigUint64Array;
}

/** All blocks of the rank, on every tier. */
export interface EngineCleared {
  readonly kind: "engine_cleared";
}

export type EngineEvent = EngineStored | EngineRemoved | EngineCleared;

/** A batch's content. `rank` is the data-parallel rank that the batch names, if it does. */
export interface EngineBatch {
  readonly events: readonly EngineEvent[];
  readonly rank: number | undefined;
  /** Seconds since 1970, the engine's clock; 0 when absent. */
  readonly timestamp: number;
  /** Events that could not be used, with the reason; their neighbours are in `events`. */
  readonly refused: readonly string[];
}
