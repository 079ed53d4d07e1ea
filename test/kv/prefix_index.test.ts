/** The reference's cases of the index, by number. */
import { test } from "uvu";
import * as assert from "uvu/assert";
import type { KvEvent, Tier } from "../../src/kv/blocks.ts";
import { type ApplyResult, PrefixIndex } from "../../src/kv/prefix_index.ts";
import { rowsOf } from "./model.ts";

const BLOCK = 4;

/** The tokens of block number `n`: its own number, four times. */
function tokensOf(blocks: readonly number[]): Uint32Array {
  return Uint32Array.from(blocks.flatMap((n) => [n, n, n, n]));
}

function range(from: number, to: number): number[] {
  return Array.from({ length: to - from + 1 }, (_, i) => from + i);
}

/** The engine's names of the blocks of a path: any numbers will do if they are unique. */
function names(path: readonly number[]): BigUint64Array {
  const hashes = new BigUint64Array(path.length);
  const halves = new Uint32Array(hashes.buffer);
  let low = 1, high = 2;
  for (const [i, n] of path.entries()) {
    low = (Math.imul(low, 0x2c1b3c6d) + n) >>> 0;
    high = Math.imul(high ^ n ^ (low >>> 9), 0x297a2d39) >>> 0;
    halves[2 * i] = low;
    halves[2 * i + 1] = high;
  }
  return hashes;
}

function engine(path: readonly number[]): bigint {
  return names(path).at(-1) ?? 0n;
}

class Fixture {
  readonly index: PrefixIndex;
  readonly lanes: number[] = [];

  constructor(index: PrefixIndex, lanes: number) {
    this.index = index;
    for (let i = 0; i < lanes; i++) this.lanes.push(index.openLane(`w${i}`, 0));
  }

  static async create(lanes = 1, options = {}): Promise<Fixture> {
    return new Fixture(await PrefixIndex.create({ blockSize: BLOCK, ...options }), lanes);
  }

  lane(worker: number): number {
    return this.lanes[worker] ?? -1;
  }

  /** Stores the blocks of `path` from position `from` on, for one worker. */
  store(
    worker: number,
    path: readonly number[],
    from = 0,
    tier: Tier = "device",
    more: { lora?: string; salt?: string } = {},
  ): ApplyResult {
    const hashes = names(path);
    return this.index.apply(this.lane(worker), {
      kind: "stored",
      parent: from === 0 ? undefined : hashes[from - 1],
      hashes: hashes.slice(from),
      tokens: tokensOf(path.slice(from)),
      blockSize: BLOCK,
      tier,
      ...more,
    });
  }

  /** Removes the blocks that end the given paths. */
  remove(
    worker: number,
    paths: readonly (readonly number[])[],
    tier: Tier = "device",
  ): ApplyResult {
    const hashes = BigUint64Array.from(paths, engine);
    return this.index.apply(this.lane(worker), { kind: "removed", hashes, tier });
  }

  /** Removes all blocks of a path, the last one first. */
  removeAll(worker: number, path: readonly number[]): ApplyResult {
    const hashes = names(path).reverse();
    return this.index.apply(this.lane(worker), { kind: "removed", hashes, tier: "device" });
  }

  clear(worker: number): void {
    this.index.apply(this.lane(worker), { kind: "cleared" });
  }

  /** Device depth of each worker that holds something, by its number. */
  query(path: readonly number[], more: { lora?: string; salt?: string } = {}) {
    const matches = this.index.match({ tokens: tokensOf(path), ...more });
    const entries = matches.map((match) => [this.lanes.indexOf(match.lane), match.device] as const);
    return Object.fromEntries(entries.sort((a, b) => a[0] - b[0]));
  }

  /** [device, host, disk, external] of one worker. */
  tiers(worker: number, path: readonly number[]): number[] | undefined {
    const match = this.index.match({ tokens: tokensOf(path) })
      .find((one) => one.lane === this.lane(worker));
    return match && [match.device, match.host, match.disk, match.external];
  }

  rows(worker: number) {
    return rowsOf(this.index.snapshot(this.lane(worker)));
  }
}

test("kv 61, 62, 63, 64: a chain is found as far as it goes", async () => {
  const f = await Fixture.create();
  assert.is(f.store(0, [1, 2, 3]).applied, 3);
  assert.equal(f.query([1, 2, 3]), { 0: 3 });
  assert.equal(f.query([1, 2, 999]), { 0: 2 });
  assert.equal(f.query([1, 2, 3, 4]), { 0: 3 });
  assert.equal(f.query([]), {});
  assert.equal(f.query([999]), {});
  assert.equal(f.index.match({ locals: new BigUint64Array(0) }), []);
});

test("kv 65, 66, 67: removing all, unknown blocks, an unknown worker", async () => {
  const f = await Fixture.create(2);
  f.store(0, [1, 2, 3]);
  assert.is(f.remove(0, [[9], [9, 9]]).unknownBlocks, 2);
  assert.is(f.remove(1, [[1]]).unknownBlocks, 1);
  assert.equal(f.query([1, 2, 3]), { 0: 3 });
  assert.is(f.remove(0, [[1, 2, 3], [1, 2], [1]]).applied, 3);
  assert.equal(f.query([1, 2, 3]), {});
  assert.is(f.index.stats().nodes, 0);
});

test("kv 68, 69: two workers that part after the first block; one is closed", async () => {
  const f = await Fixture.create(2);
  f.store(0, [1, 2]);
  f.store(1, [1, 3]);
  assert.equal(f.query([1]), { 0: 1, 1: 1 });
  assert.equal(f.query([1, 2]), { 0: 2, 1: 1 });
  f.index.closeLane(f.lane(0));
  assert.equal(f.query([1, 2]), { 1: 1 });
});

test("kv 70, 71: clearing one worker, and storing again", async () => {
  const f = await Fixture.create(2);
  f.store(0, [1, 2]);
  f.store(1, [1, 2]);
  f.clear(0);
  assert.equal(f.query([1, 2]), { 1: 2 });
  assert.is(f.index.count(f.lane(0)), 0);
  f.store(0, [1, 2]);
  assert.equal(f.query([1, 2]), { 0: 2, 1: 2 });
});

test("kv 72, 73, 74: ranks of one worker are lanes of their own", async () => {
  const index = await PrefixIndex.create({ blockSize: BLOCK });
  const f = new Fixture(index, 0);
  for (const rank of [0, 1, 2]) f.lanes.push(index.openLane("w", rank));
  for (const rank of [0, 1, 2]) f.store(rank, [1, 2, 3]);
  const matches = index.match({ tokens: tokensOf([1, 2, 3]) });
  assert.equal(
    matches.map(({ worker, dpRank, device }) => [worker, dpRank, device]).sort(),
    [["w", 0, 3], ["w", 1, 3], ["w", 2, 3]],
  );
  f.clear(2);
  assert.equal(f.query([1, 2, 3]), { 0: 3, 1: 3 });
  index.closeLane(f.lane(0));
  assert.equal(f.query([1, 2, 3]), { 1: 3 });
});

test("kv 75: a clear comes after what was applied before it, and before what comes after", async () => {
  const f = await Fixture.create(2);
  for (let round = 0; round < 50; round++) {
    f.store(0, range(1, 100));
    f.store(1, range(1, 100));
    f.clear(0);
    f.store(0, range(1, 1 + round));
    assert.equal(f.query(range(1, 100)), { 0: 1 + round, 1: 100 });
    f.clear(0);
  }
  assert.equal(f.query(range(1, 100)), { 1: 100 });
});

test("kv 76, 77: a continuation by its parent, and chains that have nothing in common", async () => {
  const f = await Fixture.create();
  f.store(0, [1, 2, 3]);
  f.store(0, [1, 2, 3, 4, 5], 3);
  assert.equal(f.query([1, 2, 3, 4, 5]), { 0: 5 });
  assert.equal(f.query([1, 2, 3]), { 0: 3 });
  f.store(0, [100, 101, 102]);
  assert.equal(f.query([100, 101, 102]), { 0: 3 });
  assert.equal(f.query([1, 100]), { 0: 1 });
});

test("kv 78, 79, 80: removing the tail; removing the middle takes the rest, for good", async () => {
  const f = await Fixture.create();
  f.store(0, [1, 2, 3]);
  f.remove(0, [[1, 2, 3]]);
  assert.equal([f.query([1, 2, 3]), f.query([1, 2])], [{ 0: 2 }, { 0: 2 }]);
  f.clear(0);
  f.store(0, range(1, 5));
  assert.equal([f.remove(0, [range(1, 3)]).cut, f.query(range(1, 5))], [2, { 0: 2 }]);
  f.store(0, range(1, 3), 2);
  assert.equal(f.query(range(1, 5)), { 0: 3 });
  assert.is(f.rows(0).length, 3);
  f.store(0, range(1, 5), 3);
  assert.equal(f.query(range(1, 5)), { 0: 5 });
  assert.is(f.index.count(f.lane(0)), 5);
});

test("kv 81, 82: the same store again changes no block and is counted; a continuation is not", async () => {
  const f = await Fixture.create();
  f.store(0, [1, 2, 3]);
  const before = f.rows(0).map(({ engine, parent }) => [engine, parent]);
  const again = f.store(0, [1, 2, 3]);
  assert.equal([again.duplicates, again.applied], [3, 0]);
  assert.equal(f.rows(0).map(({ engine, parent }) => [engine, parent]), before);
  assert.is(f.store(0, [1, 2, 3, 4], 3).duplicates, 0);
});

test("kv 83: workers share a prefix and have tails of their own", async () => {
  const f = await Fixture.create(2);
  f.store(0, [1, 2, 3]);
  f.store(1, [1, 2, 3]);
  f.store(0, range(1, 6), 3);
  f.store(1, [1, 2, 3, 7, 8], 3);
  assert.equal(f.query(range(1, 6)), { 0: 6, 1: 3 });
  assert.equal(f.query([1, 2, 3, 7, 8]), { 0: 3, 1: 5 });
  const refused = f.store(1, [...range(1, 6), 9], 6);
  assert.equal([refused.unknownParent, refused.applied], [1, 0]);
  assert.equal(f.query([...range(1, 6), 9]), { 0: 6, 1: 3 });
});

test("kv 84: a worker re-adds a suffix that another has, then goes on", async () => {
  const f = await Fixture.create(2);
  f.store(0, range(1, 6));
  f.store(1, range(1, 3));
  f.store(1, range(1, 9), 3);
  assert.equal(f.query(range(1, 9)), { 0: 6, 1: 9 });
});

test("kv 85: counts are stable over replays, and nothing is left after all is removed", async () => {
  const f = await Fixture.create();
  const paths = range(1, 5).map((n) => range(1, n)).reverse();
  for (let round = 0; round < 3; round++) {
    f.store(0, range(1, 5));
    assert.is(f.index.count(f.lane(0)), 5);
  }
  for (let round = 0; round < 3; round++) f.remove(0, paths);
  assert.is(f.index.count(f.lane(0)), 0);
  assert.is(f.index.stats().nodes, 0);
  assert.is(f.remove(0, paths).unknownBlocks, 5);
});

test("T7: a block stored twice survives one removal", async () => {
  const f = await Fixture.create();
  f.store(0, range(1, 7));
  f.store(0, range(1, 7));
  f.remove(0, [range(1, 3)]);
  assert.equal(f.query(range(1, 7)), { 0: 7 });
  f.remove(0, [range(1, 3)]);
  assert.equal(f.query(range(1, 7)), { 0: 2 });
});

test("kv 86: a snapshot loaded into a fresh index gives the same snapshot", async () => {
  const f = await Fixture.create(), g = await Fixture.create();
  f.store(0, range(1, 40));
  f.store(0, [...range(1, 20), ...range(100, 120)], 20);
  f.store(0, range(500, 520), 0, "host");
  f.store(0, range(1, 3));
  f.store(0, range(1, 3), 0, "disk");
  const snapshot = f.index.snapshot(f.lane(0));
  g.index.load(g.lane(0), snapshot);
  assert.equal(g.rows(0), f.rows(0));
  assert.is(g.index.count(g.lane(0)), f.index.count(f.lane(0)));
  assert.equal(g.query([...range(1, 20), ...range(100, 120)]), { 0: 41 });
  assert.equal(g.tiers(0, range(500, 520)), [0, 21, 21, 21]);
});

test("a snapshot's keys are chain keys: equal for equal sequences of any lane", async () => {
  const f = await Fixture.create(2);
  f.store(0, [1, 2, 3]);
  f.store(1, [9]);
  f.store(1, [1, 2, 3]);
  const locals = f.index.locals(tokensOf([1, 2, 3]));
  const [one, two] = [f.index.snapshot(f.lane(0)), f.index.snapshot(f.lane(1))];
  assert.is(one.keys[0], locals[0]);
  for (const key of one.keys) assert.ok(two.keys.includes(key));
  assert.is(new Set(two.keys).size, 4);
});

test("kv 89: 96 tokens are three blocks of 32", async () => {
  const index = await PrefixIndex.create({ blockSize: 32 });
  const lane = index.openLane("w", 0);
  const tokens = Uint32Array.from(range(1, 96));
  assert.equal(index.match({ tokens }), []);
  const hashes = BigUint64Array.of(1n, 2n, 3n);
  const event = { kind: "stored", parent: undefined, hashes, tokens, blockSize: 32 } as const;
  index.apply(lane, { ...event, tier: "device" });
  assert.is(index.match({ tokens })[0]?.device, 3);
});

test("kv 90, 91, 92: adapters and namespaces are separate, by tokens and by hashes", async () => {
  const f = await Fixture.create();
  const kinds = [{}, { lora: "a" }, { lora: "b" }, { salt: "a" }, { salt: "b" }];
  for (const [i, kind] of kinds.entries()) {
    assert.equal(f.query([1, 2], kind), {});
    const path = [1, 2];
    f.index.apply(f.lane(0), {
      kind: "stored",
      parent: undefined,
      hashes: BigUint64Array.of(BigInt(10 * i + 1), BigInt(10 * i + 2)),
      tokens: tokensOf(path),
      blockSize: BLOCK,
      tier: "device",
      ...kind,
    });
    assert.equal(f.query(path, kind), { 0: 2 });
    const locals = f.index.locals(tokensOf(path), kind);
    assert.is(f.index.match({ locals })[0]?.device, 2);
  }
  assert.is(f.index.count(f.lane(0)), 10);
});

test("kv 93, 94: long branches, and a long removal", async () => {
  const f = await Fixture.create();
  f.store(0, range(1, 30));
  f.store(0, range(1, 60), 30);
  f.store(0, [...range(1, 30), ...range(131, 160)], 30);
  assert.equal(f.query(range(1, 60)), { 0: 60 });
  assert.equal(f.query([...range(1, 30), ...range(131, 160)]), { 0: 60 });
  assert.equal(f.query(range(1, 30)), { 0: 30 });
  const g = await Fixture.create();
  g.store(0, range(1, 100));
  g.remove(0, range(80, 100).map((n) => range(1, n)));
  assert.equal(g.query(range(1, 100)), { 0: 79 });
});

test("kv 95: every length is exact", async () => {
  for (const length of [31, 32, 33, 63, 64, 65, 96]) {
    const f = await Fixture.create();
    f.store(0, range(1, length));
    assert.equal(f.query(range(1, 200)), { 0: length });
  }
});

test("kv 96: divergence is found exactly where it is", async () => {
  const f = await Fixture.create();
  f.store(0, range(1, 128));
  for (const at of [31, 32, 33, 63, 64, 65, 95, 96, 97]) {
    assert.equal(f.query([...range(1, at), 9_999, ...range(at + 2, 128)]), { 0: at });
  }
});

test("kv 97, 98: twenty continuations; then another chain after a clear", async () => {
  const f = await Fixture.create();
  for (let chunk = 0; chunk < 20; chunk++) f.store(0, range(1, 10 * chunk + 10), 10 * chunk);
  assert.equal(f.query(range(1, 200)), { 0: 200 });
  assert.equal(f.query(range(1, 75)), { 0: 75 });
  f.clear(0);
  f.store(0, range(1_001, 1_100));
  assert.equal(f.query(range(1_001, 1_100)), { 0: 100 });
  assert.equal(f.query(range(1, 100)), {});
});

test("kv 99: three workers that part at block 41", async () => {
  const f = await Fixture.create(3);
  f.store(0, range(1, 100));
  f.store(1, [...range(1, 40), ...range(241, 300)]);
  f.store(2, [...range(1, 40), ...range(341, 400)]);
  assert.equal(f.query(range(1, 100)), { 0: 100, 1: 40, 2: 40 });
});

test("kv 100, 167: a block that is its own parent is refused and clears nothing", async () => {
  const f = await Fixture.create();
  f.store(0, [1, 2]);
  const name = engine([1, 2]);
  const result = f.index.apply(f.lane(0), {
    kind: "stored",
    parent: name,
    hashes: BigUint64Array.of(name, 77n),
    tokens: tokensOf([3, 4]),
    blockSize: BLOCK,
    tier: "device",
  });
  assert.equal([result.conflicts, result.applied], [2, 0]);
  assert.equal(f.query([1, 2, 3, 4]), { 0: 2 });
});

test("kv 101: a linear chain is one run of rows", async () => {
  const f = await Fixture.create();
  f.store(0, range(1, 50));
  f.store(0, range(1, 100), 50);
  const { count, parents, engines } = f.index.snapshot(f.lane(0));
  assert.is(count, 100);
  assert.equal([...parents], range(-1, 98));
  assert.equal([...engines], [...names(range(1, 100))]);
});

test("kv 102, 103, 104: the order inside a removal does not matter, nor do repeats or strangers", async () => {
  const paths = [range(1, 4), range(1, 2)];
  for (const order of [paths, [...paths].reverse()]) {
    const f = await Fixture.create();
    f.store(0, range(1, 5));
    const result = f.remove(0, order);
    assert.equal(f.query(range(1, 5)), { 0: 1 });
    assert.is(result.unknownBlocks, 0);
    assert.is(result.applied + result.cut, 4);
  }
  const f = await Fixture.create();
  f.store(0, range(1, 5));
  f.remove(0, [range(1, 5), range(1, 5)]);
  assert.equal(f.query(range(1, 5)), { 0: 4 });
  const mixed = f.remove(0, [[99], range(1, 4)]);
  assert.equal([mixed.unknownBlocks, mixed.applied], [1, 1]);
  assert.equal(f.query(range(1, 5)), { 0: 3 });
});

test("kv 105: a snapshot of a branching lane has parents first and replays to the same", async () => {
  const f = await Fixture.create(), g = await Fixture.create();
  for (let branch = 0; branch < 20; branch++) {
    const from = 20 - branch;
    f.store(0, [...range(1, from), ...range(1_000 * branch, 1_000 * branch + 10)]);
  }
  const { count, parents, engines, locals } = f.index.snapshot(f.lane(0));
  for (let row = 0; row < count; row++) {
    assert.ok((parents[row] ?? 0) < row);
    const parent = parents[row] ?? -1;
    g.index.apply(g.lane(0), {
      kind: "stored_hashed",
      parent: parent < 0 ? undefined : engines[parent],
      hashes: engines.slice(row, row + 1),
      locals: locals.slice(row, row + 1),
      tier: "device",
    });
  }
  assert.equal(
    g.rows(0).map(({ parent, engine, local }) => [parent, engine, local]),
    f.rows(0).map(({ parent, engine, local }) => [parent, engine, local]),
  );
});

test("kv 106: all owners of a prefix, each with its own length", async () => {
  const f = await Fixture.create(4);
  for (const worker of [0, 1, 2, 3]) f.store(worker, range(1, worker + 1));
  assert.equal(f.query(range(1, 4)), { 0: 1, 1: 2, 2: 3, 3: 4 });
});

test("kv 107, 108, 109, 112: two workers extend one leaf, in turns", async () => {
  const f = await Fixture.create(2);
  for (const worker of [0, 1]) f.store(worker, range(1, 4));
  f.store(0, [...range(1, 4), 5, 6], 4);
  f.store(1, [...range(1, 4), 7, 8], 4);
  assert.equal(f.query(range(1, 6)), { 0: 6, 1: 4 });
  assert.equal(f.query([...range(1, 4), 7, 8]), { 0: 4, 1: 6 });
  f.store(1, range(1, 6), 4);
  assert.equal(f.query(range(1, 6)), { 0: 6, 1: 6 });
  // The same local hash twice in one chain is two blocks.
  f.store(0, [...range(1, 6), 5, 5], 6);
  assert.equal(f.query([...range(1, 6), 5, 5, 5]), { 0: 8, 1: 6 });
});

test("kv 113, 114: tiers add up, and survive a snapshot", async () => {
  const f = await Fixture.create(), g = await Fixture.create();
  f.store(0, [1, 2]);
  f.store(0, [1, 2, 3], 2, "host");
  f.store(0, [1, 2, 3, 4], 3, "disk");
  f.store(0, [1, 2, 3, 4, 5], 4, "external");
  assert.equal(f.tiers(0, range(1, 6)), [2, 3, 4, 5]);
  g.index.load(g.lane(0), f.index.snapshot(f.lane(0)));
  assert.equal(g.tiers(0, range(1, 6)), [2, 3, 4, 5]);
});

test("a slower tier goes on from where the faster one ended and never back up", async () => {
  const f = await Fixture.create();
  f.store(0, [1], 0, "device");
  f.store(0, [1, 2], 1, "disk");
  f.store(0, [1, 2, 3], 2, "host");
  assert.equal(f.tiers(0, [1, 2, 3]), [1, 1, 2, 2]);
  f.store(0, [1, 2], 1, "host");
  assert.equal(f.tiers(0, [1, 2, 3]), [1, 3, 3, 3]);
  f.store(0, [1, 2, 3], 2, "device");
  assert.equal(f.tiers(0, [1, 2, 3]), [1, 3, 3, 3]);
});

test("a block that leaves the device for the host takes what was below it off the device", async () => {
  const f = await Fixture.create();
  f.store(0, range(1, 4));
  f.store(0, range(1, 2), 0, "host");
  f.store(0, range(1, 3), 2, "host");
  const result = f.remove(0, [range(1, 2)]);
  assert.equal([result.applied, result.cut], [1, 1]);
  assert.equal(f.tiers(0, range(1, 4)), [1, 3, 3, 3]);
  f.store(0, range(1, 2), 1);
  assert.equal(f.tiers(0, range(1, 4)), [2, 3, 3, 3], "the device copy of block 3 is not back");
});

test("a host copy that goes while the block is on the device leaves the host copies below", async () => {
  const f = await Fixture.create();
  f.store(0, [1, 2]);
  f.store(0, [1, 2], 0, "host");
  f.store(0, [1, 2, 3], 2, "host");
  f.remove(0, [[1, 2]], "host");
  assert.equal(f.tiers(0, [1, 2, 3]), [2, 3, 3, 3]);
  f.remove(0, [[1, 2]], "device");
  assert.equal(f.tiers(0, [1, 2, 3]), [1, 1, 1, 1]);
});

test("a removal in a tier that does not hold the block is unknown", async () => {
  const f = await Fixture.create();
  f.store(0, [1]);
  assert.is(f.remove(0, [[1]], "host").unknownBlocks, 1);
  assert.equal(f.query([1]), { 0: 1 });
});

test("kv 182: one unknown hash does not stop the rest of a removal in a slower tier", async () => {
  const f = await Fixture.create();
  f.store(0, [1]);
  f.store(0, [1, 2, 3], 1, "disk");
  const result = f.remove(0, [[1, 2, 3], [9, 9], [1, 2]], "disk");
  assert.is(result.applied, 2);
  assert.is(result.unknownBlocks, 1);
  assert.equal(f.tiers(0, [1, 2, 3]), [1, 1, 1, 1]);
});

test("clearing empties every tier", async () => {
  const f = await Fixture.create();
  f.store(0, [1, 2]);
  f.store(0, [1, 2], 0, "host");
  f.store(0, [1, 2, 3], 2, "disk");
  f.clear(0);
  assert.is(f.tiers(0, [1, 2, 3]), undefined);
  assert.is(f.index.snapshot(f.lane(0)).count, 0);
});

test("kv 116: a removal in the middle leaves no child without its parent in a snapshot", async () => {
  const f = await Fixture.create(2);
  for (const worker of [0, 1]) f.store(worker, range(1, 10));
  f.remove(0, [range(1, 5)]);
  assert.equal(f.query(range(1, 10)), { 0: 4, 1: 10 });
  assert.is(f.rows(0).length, 4);
  assert.is(f.rows(1).length, 10);
  f.remove(1, [range(1, 2)]);
  f.store(1, range(1, 2), 1);
  assert.equal(f.query(range(1, 10)), { 0: 4, 1: 2 });
});

test("an orphan is refused, counted and not kept for later", async () => {
  const f = await Fixture.create();
  const orphan = f.store(0, range(1, 5), 3);
  assert.equal([orphan.unknownParent, orphan.applied], [2, 0]);
  f.store(0, range(1, 3));
  assert.equal(f.query(range(1, 5)), { 0: 3 });
});

test("another block size is refused, and so is what has too few tokens", async () => {
  const f = await Fixture.create();
  const event: KvEvent = {
    kind: "stored",
    parent: undefined,
    hashes: BigUint64Array.of(1n, 2n, 3n),
    tokens: tokensOf([1, 2]),
    blockSize: BLOCK,
    tier: "device",
  };
  assert.is(f.index.apply(f.lane(0), { ...event, blockSize: 8 }).refused, 3);
  const short = f.index.apply(f.lane(0), event);
  assert.equal([short.applied, short.refused], [2, 1]);
  assert.equal(f.query([1, 2, 3]), { 0: 2 });
});

test("a block under a new engine hash replaces the old one and what was below it", async () => {
  const f = await Fixture.create();
  f.store(0, [1, 2, 3]);
  const result = f.index.apply(f.lane(0), {
    kind: "stored",
    parent: undefined,
    hashes: BigUint64Array.of(77n),
    tokens: tokensOf([1]),
    blockSize: BLOCK,
    tier: "device",
  });
  assert.equal([result.renamed, result.cut, result.applied], [1, 3, 1]);
  assert.equal(f.query([1, 2, 3]), { 0: 1 });
  assert.is(f.remove(0, [[1]]).unknownBlocks, 1);
});

test("kv 88: a lane may be closed twice, and its events change nothing afterwards", async () => {
  const f = await Fixture.create();
  f.store(0, [1]);
  f.index.closeLane(f.lane(0));
  f.index.closeLane(f.lane(0));
  assert.is(f.store(0, [1, 2]).refused, 2);
  f.clear(0);
  assert.equal(f.query([1, 2]), {});
  assert.is(f.index.count(f.lane(0)), 0);
  assert.is(f.index.snapshot(f.lane(0)).count, 0);
  assert.throws(() => f.index.load(f.lane(0), f.index.snapshot(f.lane(0))), /closed/);
});

test("loading replaces, and a load that makes no sense changes nothing", async () => {
  const f = await Fixture.create(2);
  f.store(0, [1, 2, 3]);
  f.store(1, [7, 8]);
  const good = f.index.snapshot(f.lane(0));
  f.index.load(f.lane(1), good);
  assert.equal([f.query([7, 8]), f.query([1, 2, 3])], [{}, { 0: 3, 1: 3 }]);
  const forward = { ...good, parents: Int32Array.of(-1, 2, 1) };
  const twice = { ...good, engines: BigUint64Array.of(1n, 2n, 1n) };
  const renamed = {
    ...good,
    parents: Int32Array.of(-1, -1, 0),
    locals: BigUint64Array.of(1n, 1n, 2n),
  };
  const nowhere = { ...good, tiers: Uint8Array.of(1, 0, 1) };
  for (const bad of [forward, twice, renamed, nowhere]) {
    assert.throws(() => f.index.load(f.lane(1), bad), /does not fit/);
  }
  assert.equal(f.query([1, 2, 3]), { 0: 3, 1: 3 });
  f.index.load(f.lane(0), { ...good, count: 0 });
  assert.equal(f.query([1, 2, 3]), { 1: 3 });
});

test("a large lane loads in slices, and holds what it held until all is there", async () => {
  const f = await Fixture.create(2), g = await Fixture.create(2);
  const path = range(1, 30_000);
  f.store(0, path);
  const snapshot = f.index.snapshot(f.lane(0));
  g.store(0, [5, 6]);
  let pauses = 0;
  await g.index.loadInSlices(g.lane(0), snapshot, () => {
    assert.equal([g.query([5, 6]), g.query([1])], [{ 0: 2 }, {}]);
    pauses += 1;
    return Promise.resolve();
  });
  assert.ok(pauses >= 10, `${pauses} pauses`);
  assert.equal([g.query([5, 6]), g.query(path)], [{}, { 0: 30_000 }]);
  assert.equal(g.rows(0), f.rows(0));
  let failure: unknown;
  await g.index.loadInSlices(g.lane(1), snapshot, () => {
    g.index.closeLane(g.lane(1));
    return Promise.resolve();
  }).catch((error) => failure = error);
  assert.match(String(failure), /closed/);
  const { parents } = snapshot;
  parents[20_000] = 20_001;
  await g.index.loadInSlices(g.lane(0), snapshot, () => Promise.resolve())
    .catch((error) => failure = error);
  assert.match(String(failure), /row 20000 does not fit/);
  assert.equal(g.query(path), { 0: 30_000 });
  while (!g.index.tidy());
  assert.is(g.index.stats().blocks, 30_000);
});

test("a thousand lanes: each with its own depth of one sequence", async () => {
  const f = await Fixture.create(1_000);
  const path = range(1, 400);
  for (let worker = 0; worker < 1_000; worker++) f.store(worker, path.slice(0, 1 + worker % 400));
  const matches = f.index.match({ tokens: tokensOf(path) });
  assert.is(matches.length, 1_000);
  for (const { lane, device, external } of matches) {
    assert.is(device, 1 + f.lanes.indexOf(lane) % 400);
    assert.is(external, device);
  }
  for (let worker = 0; worker < 1_000; worker += 2) f.index.closeLane(f.lane(worker));
  assert.is(f.index.match({ tokens: tokensOf(path) }).length, 500);
  while (!f.index.tidy());
  const left = f.index.match({ tokens: tokensOf(path) });
  assert.is(left.length, 500);
  for (const { lane, device } of left) assert.is(device, 1 + f.lanes.indexOf(lane) % 400);
});

test("a bound evicts the ends of what was not used, and says so", async () => {
  const f = await Fixture.create(1, { maxBlocks: 100 });
  f.store(0, range(1, 40));
  f.store(0, range(101, 140));
  let evicted = 0;
  for (let i = 0; i < 20; i++) {
    f.query(range(1, 40));
    evicted += f.store(0, range(1_000 + 40 * i, 1_019 + 40 * i)).evicted;
    assert.ok(f.index.count(f.lane(0)) <= 100);
  }
  assert.is(evicted, 80 + 400 - 100);
  assert.equal(f.query(range(1, 40)), { 0: 40 }, "what is asked for all the time stays");
  const [last] = Object.values(f.query(range(1_760, 1_779)));
  assert.is(last, 20, "what was stored last stays");
});

test("memory stays flat when ten times the capacity comes and goes", async () => {
  const f = await Fixture.create(4);
  const bytes: number[] = [];
  for (let round = 0; round < 11; round++) {
    for (let worker = 0; worker < 4; worker++) {
      for (let chain = 0; chain < 20; chain++) {
        const start = 1_000_000 * round + 10_000 * worker + 100 * chain;
        f.store(worker, range(start, start + 99));
      }
    }
    if (round > 0) {
      for (let worker = 0; worker < 4; worker++) {
        for (let chain = 0; chain < 20; chain++) {
          const start = 1_000_000 * (round - 1) + 10_000 * worker + 100 * chain;
          f.removeAll(worker, range(start, start + 99));
        }
      }
    }
    bytes.push(f.index.stats().bytes);
  }
  assert.is(f.index.stats().blocks, 8_000);
  assert.is(bytes.at(-1), bytes.at(-5), bytes.join());
  assert.ok((bytes.at(-1) ?? 0) < 1.1 * (bytes[1] ?? 0), bytes.join());
});

test("block sizes that make no sense are refused", async () => {
  for (const blockSize of [0, -1, 1.5, 16_385, NaN]) {
    let refused = false;
    await PrefixIndex.create({ blockSize }).catch(() => refused = true);
    assert.ok(refused, String(blockSize));
  }
});

test("large events and prompts go through in pieces", async () => {
  const f = await Fixture.create();
  const path = range(1, 60_000);
  const hashes = BigUint64Array.from(path, (n) => BigInt(n));
  const stored = f.index.apply(f.lane(0), {
    kind: "stored",
    parent: undefined,
    hashes,
    tokens: tokensOf(path),
    blockSize: BLOCK,
    tier: "device",
  });
  assert.is(stored.applied, 60_000);
  assert.equal(f.query(path), { 0: 60_000 });
  assert.is(f.index.match({ locals: f.index.locals(tokensOf(path)) })[0]?.device, 60_000);
  assert.is(f.index.snapshot(f.lane(0)).count, 60_000);
  const removed = f.index.apply(f.lane(0), {
    kind: "removed",
    hashes: hashes.slice().reverse(),
    tier: "device",
  });
  assert.is(removed.applied, 60_000);
  assert.is(f.index.stats().nodes, 0);
});

test.run();
