/**
 * The index as one would write it without thinking of speed: the rules in plain sight, to compare
 * the real one with. A lane is a tree of objects; nothing is shared between lanes.
 */
import type { KvEvent, LaneBlocks } from "../../src/kv/blocks.ts";
import { TIERS } from "../../src/kv/blocks.ts";
import { blockCount, type BlockHasher } from "../../src/kv/hash.ts";
import type { ApplyResult } from "../../src/kv/prefix_index.ts";

const MOST_COPIES = 15;

class Block {
  readonly engine: bigint;
  readonly local: bigint;
  readonly parent: Block | undefined;
  readonly children: Block[] = [];
  /** Copies in each tier, fastest first. */
  readonly copies: [number, number, number, number] = [0, 0, 0, 0];

  constructor(engine: bigint, local: bigint, parent: Block | undefined) {
    this.engine = engine;
    this.local = local;
    this.parent = parent;
  }

  get gone(): boolean {
    return this.copies.every((count) => count === 0);
  }
}

export interface ModelMatch {
  lane: number;
  device: number;
  host: number;
  disk: number;
  external: number;
}

/** One row: parent's engine hash, local hash, engine hash, copies by tier. */
export type ModelRow = { parent: string; local: bigint; engine: bigint; copies: number[] };

export class ModelLane {
  readonly #blocks = new Map<bigint, Block>();
  readonly #roots: Block[] = [];

  get count(): number {
    return this.#blocks.size;
  }

  store(
    parentEngine: bigint | undefined,
    engines: bigint[],
    locals: bigint[],
    tier: number,
    copies: number,
    result: ApplyResult,
  ): void {
    let parent: Block | undefined;
    if (parentEngine !== undefined) {
      parent = this.#blocks.get(parentEngine);
      if (parent === undefined) {
        result.unknownParent += engines.length;
        return;
      }
    }
    for (const [i, engine] of engines.entries()) {
      const local = locals[i] ?? 0n;
      const known = this.#blocks.get(engine);
      if (known !== undefined) {
        if (known.parent !== parent || known.local !== local) {
          result.conflicts += engines.length - i;
          return;
        }
        if (known.copies[tier] === 0) result.applied += 1;
        else result.duplicates += 1;
        known.copies[tier] = Math.min(MOST_COPIES, (known.copies[tier] ?? 0) + copies);
        parent = known;
        continue;
      }
      const siblings = parent?.children ?? this.#roots;
      const renamed = siblings.find((block) => block.local === local);
      if (renamed !== undefined) {
        result.renamed += 1;
        result.cut += this.#drop(renamed);
      }
      const block = new Block(engine, local, parent);
      block.copies[tier] = copies;
      siblings.push(block);
      this.#blocks.set(engine, block);
      result.applied += 1;
      parent = block;
    }
  }

  remove(engines: bigint[], tier: number, result: ApplyResult): void {
    for (const engine of engines) {
      if (!this.#blocks.get(engine)?.copies[tier]) result.unknownBlocks += 1;
    }
    for (const engine of engines) {
      const block = this.#blocks.get(engine);
      if (block === undefined || !block.copies[tier]) continue;
      block.copies[tier] = (block.copies[tier] ?? 0) - 1;
      result.applied += 1;
      if (block.copies[tier] > 0) continue;
      if (block.gone) result.cut += this.#drop(block) - 1;
      else if (block.copies.slice(0, tier).every((count) => count === 0)) {
        for (const child of [...block.children]) this.#cutTier(child, tier, result);
      }
    }
  }

  #cutTier(block: Block, tier: number, result: ApplyResult): void {
    block.copies[tier] = 0;
    if (block.gone) {
      result.cut += this.#drop(block);
      return;
    }
    for (const child of [...block.children]) this.#cutTier(child, tier, result);
  }

  #drop(block: Block): number {
    let dropped = 1;
    for (const child of [...block.children]) dropped += this.#drop(child);
    const siblings = block.parent?.children ?? this.#roots;
    siblings.splice(siblings.indexOf(block), 1);
    this.#blocks.delete(block.engine);
    return dropped;
  }

  match(locals: readonly bigint[]): Omit<ModelMatch, "lane"> | undefined {
    const path: Block[] = [];
    for (const local of locals) {
      const siblings: Block[] = path.at(-1)?.children ?? this.#roots;
      const block = path.length > 0 || path.at(-1) === undefined
        ? siblings.find((one) => one.local === local)
        : undefined;
      if (block === undefined) break;
      path.push(block);
    }
    if (path.length === 0) return undefined;
    let at = 0;
    const depths = TIERS.map((_, tier) => {
      while (at < path.length && path[at]?.copies[tier]) at += 1;
      return at;
    });
    const [device = 0, host = 0, disk = 0, external = 0] = depths;
    return { device, host, disk, external };
  }

  rows(): ModelRow[] {
    return [...this.#blocks.values()].map((block) => ({
      parent: String(block.parent?.engine),
      local: block.local,
      engine: block.engine,
      copies: [...block.copies],
    })).sort(byEngine);
  }
}

export class ModelIndex {
  readonly lanes = new Map<number, ModelLane>();
  readonly #blockSize: number;
  readonly #hasher: BlockHasher;

  constructor(blockSize: number, hasher: BlockHasher) {
    this.#blockSize = blockSize;
    this.#hasher = hasher;
  }

  apply(lane: number, event: KvEvent): ApplyResult {
    const result = noResult();
    const held = this.lanes.get(lane);
    if (event.kind === "cleared") {
      if (held !== undefined) this.lanes.set(lane, new ModelLane());
      return result;
    }
    const tier = TIERS.indexOf(event.tier);
    if (held === undefined) {
      result.refused = event.hashes.length;
    } else if (event.kind === "removed") {
      held.remove([...event.hashes], tier, result);
    } else if (event.kind === "stored_hashed") {
      held.store(event.parent, [...event.hashes], [...event.locals], tier, 1, result);
    } else if (event.blockSize !== this.#blockSize) {
      result.refused = event.hashes.length;
    } else {
      const full = blockCount(event.tokens.length, this.#blockSize, event.eagle);
      const engines = [...event.hashes].slice(0, full);
      result.refused = event.hashes.length - engines.length;
      const locals = [...this.#hasher.locals(event.tokens, this.#blockSize, event)];
      if (engines.length > 0) held.store(event.parent, engines, locals, tier, 1, result);
    }
    return result;
  }

  match(locals: readonly bigint[]): ModelMatch[] {
    const matches: ModelMatch[] = [];
    for (const [lane, held] of this.lanes) {
      const match = held.match(locals);
      if (match !== undefined) matches.push({ lane, ...match });
    }
    return matches.sort((a, b) => a.lane - b.lane);
  }
}

/** A snapshot as model rows; throws when a parent does not come before its child. */
export function rowsOf(blocks: LaneBlocks): ModelRow[] {
  const rows = new Map<bigint, ModelRow>();
  for (let row = 0; row < blocks.count; row++) {
    const at = blocks.parents[row] ?? -1;
    if (at >= row) throw new Error(`row ${row} comes before its parent`);
    const engine = blocks.engines[row] ?? 0n;
    let known = rows.get(engine);
    if (known === undefined) {
      const parent = at < 0 ? "undefined" : String(blocks.engines[at]);
      known = { parent, local: blocks.locals[row] ?? 0n, engine, copies: [0, 0, 0, 0] };
      rows.set(engine, known);
    }
    for (let tier = 0; tier < 4; tier++) {
      if ((blocks.tiers[row] ?? 0) & (1 << tier)) known.copies[tier] = blocks.copies[row] ?? 0;
    }
  }
  return [...rows.values()].sort(byEngine);
}

function byEngine(a: ModelRow, b: ModelRow): number {
  return a.engine < b.engine ? -1 : a.engine > b.engine ? 1 : 0;
}

export function noResult(): ApplyResult {
  return {
    applied: 0,
    duplicates: 0,
    unknownParent: 0,
    unknownBlocks: 0,
    evicted: 0,
    renamed: 0,
    conflicts: 0,
    refused: 0,
    cut: 0,
    left: 0,
  };
}
