/** Random histories: the index must do, answer and remember exactly what the plain model does. */
import fc from "fast-check";
import { test } from "uvu";
import * as assert from "uvu/assert";
import type { KvEvent } from "../../src/kv/blocks.ts";
import { TIERS } from "../../src/kv/blocks.ts";
import { BlockHasher } from "../../src/kv/hash.ts";
import { PrefixIndex } from "../../src/kv/prefix_index.ts";
import { ModelIndex, ModelLane, rowsOf } from "./model.ts";

const BLOCK = 2;
const LANES = 4;
const hasher = await BlockHasher.create();

/** The engine's name of a block: differs by lane and by the engine's incarnation. */
function engineHash(lane: number, incarnation: number, path: readonly number[]): bigint {
  return hasher.bytes(JSON.stringify([lane, incarnation, path]), 7n);
}

function tokensOf(path: readonly number[]): Uint32Array {
  return Uint32Array.from(path.flatMap((step) => [step, step + 100]));
}

const lane = fc.nat(LANES - 1);
const path = fc.array(fc.nat(2), { minLength: 1, maxLength: 6 });
const tier = fc.oneof({ weight: 6, arbitrary: fc.constant(0) }, {
  weight: 3,
  arbitrary: fc.nat(3),
});
const incarnation = fc.oneof({ weight: 20, arbitrary: fc.constant(0) }, {
  weight: 1,
  arbitrary: fc.constant(1),
});

/** Stores the blocks of `path` from `from` on. */
const stored = fc.record({
  op: fc.constant("stored" as const),
  lane,
  path,
  from: fc.nat(4),
  tier,
  incarnation,
  hashed: fc.boolean(),
  /** The engine hash of one block is replaced by that of another one. */
  clash: fc.option(fc.nat(5), { freq: 12 }),
});
const removed = fc.record({
  op: fc.constant("removed" as const),
  lane,
  paths: fc.array(path, { minLength: 1, maxLength: 4 }),
  tier,
});
const step = fc.oneof(
  { weight: 10, arbitrary: stored },
  { weight: 6, arbitrary: removed },
  { weight: 1, arbitrary: fc.record({ op: fc.constant("cleared" as const), lane }) },
  { weight: 1, arbitrary: fc.record({ op: fc.constant("reopened" as const), lane }) },
  { weight: 2, arbitrary: fc.record({ op: fc.constant("reloaded" as const), lane }) },
  { weight: 2, arbitrary: fc.record({ op: fc.constant("copied" as const), lane, to: lane }) },
);
type Step = typeof step extends fc.Arbitrary<infer T> ? T : never;

function eventOf(step: Extract<Step, { op: "stored" | "removed" }>): KvEvent {
  const tier = TIERS[step.tier] ?? "device";
  if (step.op === "removed") {
    const hashes = step.paths.map((one) => engineHash(step.lane, 0, one));
    return { kind: "removed", hashes: BigUint64Array.from(hashes), tier };
  }
  const from = Math.min(step.from, step.path.length - 1);
  const name = (end: number) => engineHash(step.lane, step.incarnation, step.path.slice(0, end));
  const hashes = BigUint64Array.from(step.path.slice(from), (_, i) => name(from + i + 1));
  if (step.clash !== null) hashes[step.clash % hashes.length] = name(1);
  const parent = from === 0 ? undefined : name(from);
  const tokens = tokensOf(step.path.slice(from));
  return step.hashed
    ? { kind: "stored_hashed", parent, hashes, locals: hasher.locals(tokens, BLOCK), tier }
    : { kind: "stored", parent, hashes, tokens, blockSize: BLOCK, tier };
}

const QUERIES = [[0, 0, 0, 0, 0, 0], [0, 1, 2, 0, 1, 2], [1, 1, 1, 1], [2, 0], [0, 0, 1, 1, 2, 2]];

/** How many events had each outcome: a history that never has one proves nothing about it. */
const seen = new Map<string, number>();

class Pair {
  readonly index: PrefixIndex;
  readonly model = new ModelIndex(BLOCK, hasher);
  /** Lane numbers of the test -> handles of the index. */
  readonly handles: number[] = [];

  constructor(index: PrefixIndex) {
    this.index = index;
    for (let i = 0; i < LANES; i++) this.open(i);
  }

  open(lane: number): void {
    const handle = this.index.openLane(`w${lane}`, 0);
    this.handles[lane] = handle;
    this.model.lanes.set(handle, new ModelLane());
  }

  handle(lane: number): number {
    return this.handles[lane] ?? -1;
  }

  run(step: Step): void {
    const lane = this.handle(step.lane);
    switch (step.op) {
      case "stored":
      case "removed": {
        const event = eventOf(step);
        const result = this.index.apply(lane, event);
        assert.equal(result, this.model.apply(lane, event));
        for (const [name, blocks] of Object.entries(result)) {
          if (blocks > 0) seen.set(name, (seen.get(name) ?? 0) + 1);
        }
        break;
      }
      case "cleared":
        this.index.apply(lane, { kind: "cleared" });
        this.model.apply(lane, { kind: "cleared" });
        break;
      case "reopened":
        this.index.closeLane(lane);
        this.model.lanes.delete(lane);
        this.open(step.lane);
        break;
      case "reloaded":
        this.index.load(lane, this.index.snapshot(lane));
        break;
      case "copied": {
        const to = this.handle(step.to);
        this.index.load(to, this.index.snapshot(lane));
        const copy = this.model.lanes.get(lane);
        if (to !== lane && copy !== undefined) this.model.lanes.set(to, copyOf(copy));
        break;
      }
    }
  }

  check(extra: readonly number[]): void {
    for (const path of [...QUERIES, extra]) {
      const locals = hasher.locals(tokensOf(path), BLOCK);
      const expected = this.model.match([...locals]);
      for (const query of [{ locals }, { tokens: tokensOf(path) }]) {
        const found = this.index.match(query)
          .map(({ lane, device, host, disk, external }) => ({ lane, device, host, disk, external }))
          .sort((a, b) => a.lane - b.lane);
        assert.equal(found, expected);
      }
    }
    let total = 0;
    for (const [lane, held] of this.model.lanes) {
      assert.is(this.index.count(lane), held.count);
      assert.equal(rowsOf(this.index.snapshot(lane)), held.rows());
      total += held.count;
    }
    assert.is(this.index.stats().blocks, total);
  }
}

/** A lane's rows, replayed into a new one. */
function copyOf(lane: ModelLane): ModelLane {
  const copy = new ModelLane();
  const rows = new Map(lane.rows().map((row) => [String(row.engine), row]));
  const put = (name: string): void => {
    const row = rows.get(name);
    if (row === undefined) return;
    rows.delete(name);
    put(row.parent);
    const parent = row.parent === "undefined" ? undefined : BigInt(row.parent);
    row.copies.forEach((copies, tier) => {
      if (copies === 0) return;
      const none = { applied: 0, duplicates: 0, unknownParent: 0, unknownBlocks: 0, evicted: 0 };
      const result = { ...none, renamed: 0, conflicts: 0, refused: 0, cut: 0, left: 0 };
      copy.store(parent, [row.engine], [row.local], tier, copies, result);
    });
  };
  for (const name of [...rows.keys()]) put(name);
  return copy;
}

test("thousands of random histories end, and answer at every step, as the model does", async () => {
  const index = await PrefixIndex.create({ blockSize: BLOCK });
  fc.assert(
    fc.property(
      fc.array(step, { minLength: 10, maxLength: 60, size: "max" }),
      path,
      (steps, extra) => {
        const pair = new Pair(index);
        for (const one of steps) {
          pair.run(one);
        }
        pair.check(extra);
        for (const handle of pair.handles) index.closeLane(handle);
        while (!index.tidy());
        assert.is(index.stats().blocks, 0);
        assert.is(index.stats().nodes, 0);
      },
    ),
    { seed: 1, numRuns: 3_000 },
  );
  const outcomes = ["applied", "duplicates", "unknownParent", "unknownBlocks", "renamed", "cut"];
  for (const name of [...outcomes, "conflicts"]) {
    assert.ok((seen.get(name) ?? 0) > 500, `${name}: ${seen.get(name)}`);
  }
});

test("every state between two events is right, not only the last one", async () => {
  const index = await PrefixIndex.create({ blockSize: BLOCK });
  fc.assert(
    fc.property(fc.array(step, { maxLength: 25, size: "max" }), path, (steps, extra) => {
      const pair = new Pair(index);
      for (const one of steps) {
        pair.run(one);
        pair.check(extra);
      }
      for (const handle of pair.handles) index.closeLane(handle);
    }),
    { seed: 2, numRuns: 300 },
  );
});

test.run();
