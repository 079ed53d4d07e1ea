/**
 * Hashes of token blocks, the same as Dynamo's router computes, so that `/query`, `/query_by_hash`
 * and dumps interoperate.
 *
 * A local hash is XXH3-64 of a block's tokens (u32, little-endian) and then its multimodal hashes
 * (u64), with a seed that carries the LoRA adapter and the tenant's salt. A chain key is XXH3-64 of
 * the parent's chain key and the local hash, with the base seed; the first block's is its local hash.
 */

import { IndexModule } from "./wasm/load.ts";

/** The base of all seeds: `CHAIN_XXH3_SEED` of the crate dynamo-tokens 1.6.1. */
const CHAIN_SEED = 1337n;

const U64 = 0xffffffffffffffffn;
/** Seeds kept; adapters and tenants beyond that are hashed again. */
const MAX_SEEDS = 4096;
/** Blocks of more tokens than this do not fit the staging memory. */
export const MAX_BLOCK_SIZE = 16_384;

export interface BlockOptions {
  /** LoRA adapter; the empty string means none. */
  readonly lora?: string | undefined;
  /** Tenant salt (cache namespace); the empty string means none. */
  readonly salt?: string | undefined;
  /** Windows of one more token than a block, as Eagle's draft heads use them. */
  readonly eagle?: boolean | undefined;
  /** Multimodal hashes of each block; sorted here. */
  readonly multimodal?: readonly (readonly bigint[])[] | undefined;
}

/** The number of full blocks in `tokens` tokens. */
export function blockCount(tokens: number, blockSize: number, eagle = false): number {
  if (blockSize <= 0) return 0;
  return Math.max(0, Math.floor((eagle ? tokens - 1 : tokens) / blockSize));
}

/**
 * The token that stands for an image in a block's tokens when the engine names it by hash (the form
 * in which Dynamo feeds multimodal prompts to its index).
 */
export function padToken(multimodalHash: bigint): number {
  return 1_000_000 + Number(multimodalHash & 0x3fffffffn);
}

/** Up to this many words a loop is faster than a view of them. */
const FEW_WORDS = 48;

function copyWords(
  to: Uint32Array,
  at: number,
  from: Uint32Array,
  start: number,
  end: number,
): void {
  if (end - start <= FEW_WORDS) {
    for (let i = start; i < end; i++) to[at++] = from[i] ?? 0;
  } else {
    to.set(start === 0 && end === from.length ? from : from.subarray(start, end), at);
  }
}

export class BlockHasher {
  readonly #module: IndexModule;
  readonly #staging: number;
  readonly #stagingBytes: number;
  readonly #seeds = new Map<string, Map<string, bigint>>();
  #seedCount = 0;

  constructor(module: IndexModule) {
    this.#module = module;
    this.#staging = module.call.stagingAt();
    this.#stagingBytes = module.call.stagingBytes();
  }

  static async create(): Promise<BlockHasher> {
    return new BlockHasher(await IndexModule.create());
  }

  /** XXH3-64 of up to 512 KiB. */
  bytes(data: Uint8Array | string, seed: bigint): bigint {
    const bytes = typeof data === "string" ? new TextEncoder().encode(data) : data;
    if (bytes.length > this.#stagingBytes) throw new RangeError(`${bytes.length} bytes to hash`);
    this.#module.u8.set(bytes, this.#staging);
    return BigInt.asUintN(64, this.#module.call.hashBytes(this.#staging, bytes.length, seed));
  }

  /** The seed of local hashes for an adapter and a salt, in independent domains. */
  seed(lora = "", salt = ""): bigint {
    if (lora === "" && salt === "") return CHAIN_SEED;
    let ofLora = this.#seeds.get(lora);
    const known = ofLora?.get(salt);
    if (known !== undefined) return known;
    let seed = CHAIN_SEED;
    if (lora !== "") seed += this.bytes(lora, 0n);
    if (salt !== "") seed += this.bytes(salt, 1n);
    seed &= U64;
    if (++this.#seedCount > MAX_SEEDS) {
      this.#seeds.clear();
      this.#seedCount = 1;
      ofLora = undefined;
    }
    if (ofLora === undefined) this.#seeds.set(lora, ofLora = new Map());
    ofLora.set(salt, seed);
    return seed;
  }

  /** Local hashes of the full blocks of `tokens`. */
  locals(tokens: Uint32Array, blockSize: number, options: BlockOptions = {}): BigUint64Array {
    const count = blockCount(tokens.length, blockSize, options.eagle);
    const out = new BigUint64Array(count);
    const room = this.blocksAtOnce(blockSize);
    const seed = this.seed(options.lora, options.salt);
    for (let done = 0; done < count; done += room) {
      const batch = Math.min(room, count - done);
      this.stage(tokens, done, batch, blockSize, seed, options, 0);
      const at = this.#staging >>> 3;
      out.set(this.#module.u64.subarray(at, at + batch), done);
    }
    return out;
  }

  /** Hashes of the full chunks of `chunkBytes` bytes of a text's UTF-8. */
  chunks(text: string, chunkBytes: number, seed = CHAIN_SEED): BigUint64Array {
    const bytes = new TextEncoder().encode(text);
    const out = new BigUint64Array(Math.floor(bytes.length / chunkBytes));
    const room = Math.floor(this.#stagingBytes / (chunkBytes + 8));
    if (room < 1) throw new RangeError(`chunks of ${chunkBytes} bytes`);
    for (let done = 0; done < out.length; done += room) {
      const batch = Math.min(room, out.length - done);
      const at = this.#staging + batch * 8;
      this.#module.u8.set(bytes.subarray(done * chunkBytes, (done + batch) * chunkBytes), at);
      this.#module.call.hashBlocks(at, batch, chunkBytes, chunkBytes, seed, this.#staging);
      const hashes = this.#staging >>> 3;
      out.set(this.#module.u64.subarray(hashes, hashes + batch), done);
    }
    return out;
  }

  /** Blocks whose tokens, and three u64 each, fit the staging memory. */
  blocksAtOnce(blockSize: number): number {
    if (blockSize > MAX_BLOCK_SIZE) throw new RangeError(`a block size of ${blockSize} tokens`);
    return Math.floor((this.#stagingBytes - 4096) / (blockSize * 4 + 24));
  }

  /**
   * Hashes blocks `first` to `first + count` of `tokens` inside the module: the hashes are left at
   * byte `offset` (a multiple of 8) of the staging memory, what follows them is overwritten.
   */
  stage(
    tokens: Uint32Array,
    first: number,
    count: number,
    blockSize: number,
    seed: bigint,
    options: BlockOptions,
    offset: number,
  ): void {
    const module = this.#module;
    const window = options.eagle ? blockSize + 1 : blockSize;
    const out = this.#staging + offset;
    const at = out + count * 8;
    const start = first * blockSize;
    const end = start + (count - 1) * blockSize + window;
    copyWords(module.u32, at >>> 2, tokens, start, end);
    module.call.hashBlocks(at, count, blockSize * 4, window * 4, seed, out);
    const multimodal = options.multimodal;
    if (multimodal === undefined) return;
    for (let i = 0; i < count; i++) {
      const extra = multimodal[first + i];
      if (extra === undefined || extra.length === 0) continue;
      const sorted = BigUint64Array.from(extra).sort();
      const start = (first + i) * blockSize;
      const bytes = new Uint8Array(window * 4 + sorted.length * 8);
      new Uint32Array(bytes.buffer, 0, window).set(tokens.subarray(start, start + window));
      bytes.set(new Uint8Array(sorted.buffer), window * 4);
      // The tokens are behind the hashes and have been read: their place is free.
      module.u8.set(bytes, at);
      module.u64[(out >>> 3) + i] = module.call.hashBytes(at, bytes.length, seed);
    }
  }

  /** Chain keys of rows whose parents (-1: none) come before them. */
  chainKeys(parents: Int32Array, locals: BigUint64Array): BigUint64Array {
    const keys = new BigUint64Array(locals.length);
    this.chainRows(keys, parents, locals, 0, locals.length);
    return keys;
  }

  /** As `chainKeys`, of the rows `from` (included) to `to` (excluded); those before have theirs. */
  chainRows(
    keys: BigUint64Array,
    parents: Int32Array,
    locals: BigUint64Array,
    from: number,
    to: number,
  ): void {
    const room = Math.floor(this.#stagingBytes / 20) & ~1;
    for (let base = from; base < to; base += room) {
      const batch = Math.min(room, to - base);
      const module = this.#module;
      const keysAt = this.#staging, localsAt = keysAt + room * 8, parentsAt = localsAt + room * 8;
      module.u64.set(locals.subarray(base, base + batch), localsAt >>> 3);
      new Int32Array(module.u32.buffer, parentsAt, batch).set(parents.subarray(base, base + batch));
      for (let i = 0; i < batch; i++) {
        const parent = parents[base + i] ?? -1;
        if (parent >= 0 && parent < base) module.u64[(keysAt >>> 3) + i] = keys[parent] ?? 0n;
      }
      module.call.chainKeys(batch, base, parentsAt, localsAt, keysAt, CHAIN_SEED);
      keys.set(module.u64.subarray(keysAt >>> 3, (keysAt >>> 3) + batch), base);
    }
  }
}
