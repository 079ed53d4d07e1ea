/** Lanes that hold what they are given: for tests of the dump and of the recovery's loop. */

import type { LaneBlocks } from "../../../src/kv/blocks.ts";
import { laneId, type LaneKey } from "../../../src/kv/lane_key.ts";
import type {
  LaneCut,
  LaneState,
  LaneStore,
  RecoverableLane,
} from "../../../src/replica/lane_port.ts";

export class ShelfLane implements RecoverableLane {
  readonly key: LaneKey;
  state: LaneState = "live";
  isUnnumbered = false;
  content: LaneCut;
  /** Cuts that were put in, in order. */
  readonly commits: LaneCut[] = [];
  readonly calls: string[] = [];
  /** What `commit` waits for or throws. */
  onCommit: (cut: LaneCut) => void | Promise<void> = () => {};

  constructor(content: LaneCut) {
    this.key = content.key;
    this.content = content;
  }

  get epoch(): string {
    return this.content.epoch;
  }

  get cursor(): bigint | undefined {
    return this.content.cursor;
  }

  get blocks(): number {
    return this.content.blocks.count;
  }

  hold(): void {
    this.calls.push("hold");
    this.state = "buffering";
  }

  cutInSlices(): Promise<LaneCut | undefined> {
    return Promise.resolve(this.content);
  }

  async commit(cut: LaneCut): Promise<void> {
    await this.onCommit(cut);
    this.commits.push(cut);
    this.content = cut;
    this.state = "live";
  }

  release(): void {
    if (this.state !== "buffering") return;
    this.calls.push("release");
    this.state = "live";
  }

  degrade(reason: string): void {
    this.calls.push(`degrade ${reason}`);
    this.state = "degraded";
  }
}

export class Shelf implements LaneStore {
  readonly #lanes = new Map<string, ShelfLane>();
  readonly #listeners = new Set<() => void>();
  readonly size: number;

  constructor(cuts: readonly LaneCut[], size = 16) {
    for (const cut of cuts) this.#lanes.set(laneId(cut.key), new ShelfLane(cut));
    this.size = size;
  }

  lanes(): ShelfLane[] {
    return [...this.#lanes.values()];
  }

  lane(key: LaneKey): ShelfLane | undefined {
    return this.#lanes.get(laneId(key));
  }

  openRank(): Promise<undefined> {
    return Promise.resolve(undefined);
  }

  blockSize(): number {
    return this.size;
  }

  holdAll(): void {
    for (const lane of this.lanes()) lane.hold();
  }

  releaseAll(): void {
    for (const lane of this.lanes()) lane.release();
  }

  onChange(listener: () => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  changed(): void {
    for (const listener of [...this.#listeners]) listener();
  }

  close(key: LaneKey): void {
    this.#lanes.delete(laneId(key));
    this.changed();
  }

  add(cut: LaneCut): ShelfLane {
    const lane = new ShelfLane(cut);
    this.#lanes.set(laneId(cut.key), lane);
    this.changed();
    return lane;
  }
}

export function keyOf(worker: string, more: Partial<LaneKey> = {}): LaneKey {
  return { model: "model", group: "default", worker, dpRank: 0, ...more };
}

/** A lane of `count` blocks in chains of `chain`; tiers and copies as said. */
export function makeCut(
  key: LaneKey,
  count: number,
  more: Partial<LaneCut> & {
    chain?: number;
    tiers?: (row: number) => number;
    copies?: (row: number) => number;
  } = {},
): LaneCut {
  const { chain = 100, tiers = () => 1, copies = () => 1, ...rest } = more;
  const rows = Array.from({ length: count }, (_, row) => row);
  const name = BigInt(hashOf(laneId(key)));
  const blocks: LaneBlocks = {
    count,
    parents: Int32Array.from(rows, (row) => row % chain === 0 ? -1 : row - 1),
    keys: new BigUint64Array(0),
    locals: BigUint64Array.from(rows, (row) => mixed(name, row, 1)),
    engines: BigUint64Array.from(rows, (row) => mixed(name, row, 2)),
    tiers: Uint8Array.from(rows, tiers),
    copies: Uint16Array.from(rows, copies),
  };
  return { key, epoch: "epoch-1", cursor: 41n, decoderState: undefined, blocks, ...rest };
}

export function emptyCut(key: LaneKey): LaneCut {
  return makeCut(key, 0, { cursor: undefined, epoch: "" });
}

function mixed(name: bigint, row: number, kind: number): bigint {
  return BigInt.asUintN(64, (name * 1_000_003n + BigInt(row * 7 + kind)) * 0x9e3779b97f4a7c15n);
}

function hashOf(text: string): number {
  let hash = 0x811c9dc5;
  for (const letter of text) hash = Math.imul(hash ^ letter.charCodeAt(0), 0x01000193);
  return hash >>> 0;
}
