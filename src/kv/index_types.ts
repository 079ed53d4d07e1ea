/**
 * What goes into the prefix index and comes out of it, besides events and snapshots.
 */

export interface PrefixIndexOptions {
  /** Tokens in a block. */
  readonly blockSize: number;
  /**
   * Most (block, lane) pairs to keep; beyond it the least recently used ends of sequences go. Without
   * it, what comes beyond 60 million is refused.
   */
  readonly maxBlocks?: number;
}

/** What an event did. All counts are blocks. */
export interface ApplyResult {
  /** Blocks that came to be held, in one more tier, or (for a removal) copies that went. */
  applied: number;
  /** Copies of blocks that were held in that tier already. */
  duplicates: number;
  /** Blocks refused because their sequence's parent is not held. */
  unknownParent: number;
  /** Removals of blocks that are not held in that tier. */
  unknownBlocks: number;
  /** Blocks, of any lane, that went to keep within `maxBlocks`. */
  evicted: number;
  /** Held blocks that came under another engine hash: the engine was restarted unnoticed. */
  renamed: number;
  /** Blocks refused because their engine hash stands for another block, and those after them. */
  conflicts: number;
  /** Blocks refused: another block size, too few tokens, or no room below `maxBlocks`. */
  refused: number;
  /** Blocks that went because one above them did. */
  cut: number;
  /** Blocks of a removal, the last ones, that are still to be applied. */
  left: number;
}

/** How far one lane holds a sequence, in blocks; each tier includes the faster ones. */
export interface Match {
  readonly lane: number;
  readonly worker: string;
  readonly dpRank: number;
  readonly device: number;
  readonly host: number;
  readonly disk: number;
  readonly external: number;
}

export type Query =
  | {
    readonly tokens: Uint32Array;
    readonly lora?: string | undefined;
    readonly salt?: string | undefined;
    readonly eagle?: boolean | undefined;
    readonly multimodal?: readonly (readonly bigint[])[] | undefined;
  }
  | { readonly locals: BigUint64Array };

export interface IndexStats {
  readonly lanes: number;
  /** (block, lane) pairs, those of closed lanes that are still being freed not counted. */
  readonly blocks: number;
  /** Different blocks. */
  readonly nodes: number;
  /** (block, lane) pairs of closed and cleared lanes that wait to be freed. */
  readonly dying: number;
  /** Bytes of records and tables. */
  readonly bytes: number;
  /** Bytes of address space, most of it possibly never touched. */
  readonly memoryBytes: number;
}
