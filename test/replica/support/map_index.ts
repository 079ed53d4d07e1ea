/** An index as small as can be: one map for each lane, with the rules of the real one. */

import { type KvEvent, type LaneBlocks, tierBit } from "../../../src/kv/blocks.ts";
import type { LaneIndex } from "../../../src/kv/lane_content.ts";

interface Row {
  readonly engine: bigint;
  readonly local: bigint;
  readonly parent: bigint | undefined;
  tiers: number;
}

export class MapIndex implements LaneIndex {
  readonly #lanes = new Map<number, Map<bigint, Row>>();
  #next = 1;

  openLane(): number {
    this.#lanes.set(this.#next, new Map());
    return this.#next++;
  }

  closeLane(lane: number): void {
    this.#lanes.delete(lane);
  }

  count(lane: number): number {
    return this.#lanes.get(lane)?.size ?? 0;
  }

  apply(lane: number, event: KvEvent) {
    const rows = this.#lanes.get(lane) ?? new Map<bigint, Row>();
    const result = { applied: 0, unknownParent: 0, unknownBlocks: 0 };
    switch (event.kind) {
      case "cleared":
        rows.clear();
        break;
      case "removed":
        for (const engine of event.hashes) {
          const row = rows.get(engine);
          if (row === undefined) result.unknownBlocks += 1;
          else if ((row.tiers &= ~tierBit(event.tier)) === 0) drop(rows, engine);
        }
        break;
      case "stored_hashed": {
        let parent = event.parent;
        if (parent !== undefined && !rows.has(parent)) {
          result.unknownParent = event.hashes.length;
          break;
        }
        for (const [at, engine] of event.hashes.entries()) {
          const known = rows.get(engine);
          const local = event.locals[at] as bigint;
          if (known === undefined) {
            rows.set(engine, { engine, local, parent, tiers: tierBit(event.tier) });
          } else known.tiers |= tierBit(event.tier);
          parent = engine;
          result.applied += 1;
        }
        break;
      }
      case "stored":
        throw new Error("this index takes hashed events only");
    }
    return result;
  }

  snapshot(lane: number): LaneBlocks {
    const rows = [...(this.#lanes.get(lane) ?? new Map<bigint, Row>()).values()];
    const at = new Map(rows.map((row, index) => [row.engine, index]));
    return {
      count: rows.length,
      // A map keeps the order of insertion, and a parent is always inserted before its child.
      parents: Int32Array.from(
        rows,
        ({ parent }) => parent === undefined ? -1 : at.get(parent) ?? -1,
      ),
      keys: new BigUint64Array(rows.length),
      locals: BigUint64Array.from(rows, (row) => row.local),
      engines: BigUint64Array.from(rows, (row) => row.engine),
      tiers: Uint8Array.from(rows, (row) => row.tiers),
      copies: new Uint16Array(rows.length).fill(1),
    };
  }

  load(lane: number, blocks: LaneBlocks): void {
    const rows = new Map<bigint, Row>();
    for (let row = 0; row < blocks.count; row += 1) {
      const parent = blocks.parents[row] as number;
      const engine = blocks.engines[row] as bigint;
      if (parent >= row || rows.has(engine)) throw new RangeError("not a snapshot");
      rows.set(engine, {
        engine,
        local: blocks.locals[row] as bigint,
        parent: parent < 0 ? undefined : blocks.engines[parent],
        tiers: blocks.tiers[row] as number,
      });
    }
    this.#lanes.set(lane, rows);
  }

  /** Sorted rows, to compare. */
  rows(lane: number): string[] {
    return [...(this.#lanes.get(lane) ?? new Map<bigint, Row>()).values()].map((row) =>
      `${row.parent ?? "root"} ${row.engine} ${row.local} ${row.tiers}`
    ).sort();
  }
}

/** A block takes those below it along. */
function drop(rows: Map<bigint, Row>, engine: bigint): void {
  rows.delete(engine);
  for (const row of [...rows.values()]) {
    if (row.parent === engine && rows.has(row.engine)) drop(rows, row.engine);
  }
}
