/**
 * Instances of the index module: compiled once, one instance (and one memory) to a partition.
 */

import { MODULE } from "./module.ts";

/** What src/kv/wasm/assembly/index.ts exports. Addresses are bytes into `memory`. */
export interface IndexExports {
  readonly memory: WebAssembly.Memory;
  stagingAt(): number;
  stagingBytes(): number;
  resultAt(): number;
  matchesAt(): number;
  hashBytes(at: number, length: number, seed: bigint): bigint;
  hashBlocks(
    tokens: number,
    count: number,
    strideBytes: number,
    windowBytes: number,
    seed: bigint,
    out: number,
  ): void;
  chainKeys(
    count: number,
    base: number,
    parents: number,
    locals: number,
    keys: number,
    seed: bigint,
  ): void;
  setHandle(slot: number, handle: number): void;
  slotCount(slot: number): number;
  release(slot: number, budget: number): number;
  setBound(holdings: number): void;
  storeRun(
    slot: number,
    hasParent: number,
    parent: bigint,
    count: number,
    engines: number,
    locals: number,
    tier: number,
  ): number;
  removeRun(slot: number, count: number, engines: number, tier: number, most: number): number;
  trim(slot: number, engine: bigint): number;
  loadRows(
    slot: number,
    count: number,
    base: number,
    parents: number,
    names: number,
    engines: number,
    locals: number,
    tiers: number,
    copies: number,
    holdings: number,
    tags: number,
  ): number;
  matchBegin(): void;
  matchFeed(locals: number, count: number): number;
  matchEnd(): number;
  matchDepth(): number;
  pin(slot: number): void;
  unpin(slot: number): void;
  firstHolding(slot: number): number;
  snapshotRows(
    from: number,
    level: number,
    room: number,
    depths: number,
    engines: number,
    locals: number,
    copies: number,
  ): number;
  liveHoldings(): number;
  liveNodes(): number;
  bytesUsed(): number;
}

/** An instance with views of its memory that follow its growth. */
export class IndexModule {
  readonly call: IndexExports;
  readonly #memory: WebAssembly.Memory;
  #u8: Uint8Array;
  #u16: Uint16Array;
  #u32: Uint32Array;
  #u64: BigUint64Array;

  private constructor(call: IndexExports) {
    this.call = call;
    this.#memory = call.memory;
    const buffer = call.memory.buffer;
    this.#u8 = new Uint8Array(buffer);
    this.#u16 = new Uint16Array(buffer);
    this.#u32 = new Uint32Array(buffer);
    this.#u64 = new BigUint64Array(buffer);
  }

  static async create(): Promise<IndexModule> {
    const instance = await WebAssembly.instantiate(await compiled(), {
      env: {
        abort: () => {
          throw new Error("the index module gave up");
        },
      },
    });
    return new IndexModule(instance.exports as unknown as IndexExports);
  }

  /** Bytes of the whole linear memory, reserved space included. */
  get memoryBytes(): number {
    return this.#memory.buffer.byteLength;
  }

  get u8(): Uint8Array {
    if (this.#u8.buffer !== this.#memory.buffer) this.#refresh();
    return this.#u8;
  }
  get u16(): Uint16Array {
    if (this.#u16.buffer !== this.#memory.buffer) this.#refresh();
    return this.#u16;
  }
  get u32(): Uint32Array {
    if (this.#u32.buffer !== this.#memory.buffer) this.#refresh();
    return this.#u32;
  }
  get u64(): BigUint64Array {
    if (this.#u64.buffer !== this.#memory.buffer) this.#refresh();
    return this.#u64;
  }

  /** A view dies when the memory grows; there is no cheaper sign of it than another buffer. */
  #refresh(): void {
    const buffer = this.#memory.buffer;
    this.#u8 = new Uint8Array(buffer);
    this.#u16 = new Uint16Array(buffer);
    this.#u32 = new Uint32Array(buffer);
    this.#u64 = new BigUint64Array(buffer);
  }
}

let compilation: Promise<WebAssembly.Module> | undefined;

function compiled(): Promise<WebAssembly.Module> {
  compilation ??= WebAssembly.compile(
    Uint8Array.from(atob(MODULE), (character) => character.charCodeAt(0)),
  );
  return compilation;
}
