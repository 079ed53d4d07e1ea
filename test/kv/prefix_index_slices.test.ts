/** What the index does a little at a time: copies, removals of long suffixes, freeing of lanes. */
import { test } from "uvu";
import * as assert from "uvu/assert";
import type { KvEvent } from "../../src/kv/blocks.ts";
import { RowBuilder } from "../../src/kv/lane_blocks.ts";
import { PrefixIndex } from "../../src/kv/prefix_index.ts";
import { rowsOf } from "./model.ts";

const BLOCK_SIZE = 1;

/** A sequence of `count` blocks whose names start at `first`, below a block or not. */
function chain(first: number, count: number, parent?: number): KvEvent {
  return {
    kind: "stored",
    parent: parent === undefined ? undefined : BigInt(parent),
    hashes: BigUint64Array.from({ length: count }, (_, i) => BigInt(first + i)),
    tokens: Uint32Array.from({ length: count }, (_, i) => first + i),
    blockSize: BLOCK_SIZE,
    tier: "device",
  };
}

function removal(...names: number[]): Extract<KvEvent, { kind: "removed" }> {
  return { kind: "removed", hashes: BigUint64Array.from(names, BigInt), tier: "device" };
}

const soon = () => new Promise<void>((resolve) => queueMicrotask(resolve));

test("a copy in slices is the copy made at once, branches and all, and copies do not disturb others", async () => {
  const index = await PrefixIndex.create({ blockSize: BLOCK_SIZE });
  const [a, b] = [index.openLane("a", 0), index.openLane("b", 0)];
  index.apply(a, chain(1, 50));
  index.apply(a, chain(100, 30, 10));
  index.apply(a, chain(200, 30, 120));
  index.apply(a, { ...chain(1, 5), tier: "host" } as KvEvent);
  index.apply(b, chain(1, 40));
  const expected = [a, b].map((lane) => index.snapshot(lane));
  for (const rows of [1, 2, 7, 64, 1_000]) {
    const copies = await Promise.all(
      [a, b, a].map((lane) => index.snapshotInSlices(lane, soon, undefined, rows)),
    );
    assert.equal(copies, [expected[0], expected[1], expected[0]], `${rows} rows at a time`);
  }
});

test("lanes of any size are copied one after the other in the same memory", async () => {
  const index = await PrefixIndex.create({ blockSize: BLOCK_SIZE });
  const lanes = [50, 400, 7, 0, 430, 64].map((size, at) => {
    const lane = index.openLane(`w${at}`, 0);
    if (size > 0) index.apply(lane, chain(at * 1_000, size));
    if (size > 10) index.apply(lane, chain(at * 1_000 + 500, 20, at * 1_000 + 5));
    // In two tiers with different numbers of copies: more rows than blocks.
    if (size > 60) {
      index.apply(lane, { ...chain(at * 1_000, size), tier: "host" } as KvEvent);
      index.apply(lane, chain(at * 1_000, size));
    }
    return lane;
  });
  const rows = new RowBuilder(false);
  const buffers = new Set<ArrayBufferLike>();
  for (const lane of lanes) {
    const { keys, ...expected } = index.snapshot(lane);
    const copy = await index.snapshotInSlices(lane, soon, rows, 16);
    assert.equal({ ...copy, keys: undefined }, { ...expected, keys: undefined });
    assert.is(copy?.keys.length, 0, "keys are not asked for");
    assert.is(keys.length, expected.count);
    if (copy !== undefined) buffers.add(copy.engines.buffer);
  }
  assert.ok(buffers.size < lanes.length, `${buffers.size} buffers`);
});

test("a copy in slices goes on while other lanes change, and ends when its own does", async () => {
  const changes: [string, (index: PrefixIndex, lane: number) => void, boolean][] = [
    ["another lane stores", (index) => index.apply(index.openLane("c", 0), chain(1, 60)), true],
    ["a store", (index, lane) => index.apply(lane, chain(500, 1)), false],
    ["a removal", (index, lane) => index.apply(lane, removal(40)), false],
    ["a clear", (index, lane) => index.apply(lane, { kind: "cleared" }), false],
    ["a load", (index, lane) => index.load(lane, index.snapshot(lane)), false],
    ["a close", (index, lane) => index.closeLane(lane), false],
  ];
  for (const [name, change, isSame] of changes) {
    const index = await PrefixIndex.create({ blockSize: BLOCK_SIZE });
    const lane = index.openLane("a", 0);
    index.apply(lane, chain(1, 50));
    const expected = rowsOf(index.snapshot(lane));
    let pauses = 0;
    const copy = await index.snapshotInSlices(
      lane,
      async () => {
        await soon();
        pauses += 1;
        if (pauses === 2) {
          change(index, lane);
          // Whatever was let go is free for others at once.
          while (!index.tidy());
          index.apply(index.openLane("d", 0), chain(900, 80));
        }
      },
      undefined,
      10,
    );
    if (isSame) assert.equal(rowsOf(copy ?? index.snapshot(-1)), expected, name);
    else assert.is(copy, undefined, name);
    if (!isSame) assert.is(pauses, 2, name);
  }
});

test("a closed lane has no copy, an empty one an empty copy", async () => {
  const index = await PrefixIndex.create({ blockSize: BLOCK_SIZE });
  const lane = index.openLane("a", 0);
  assert.is((await index.snapshotInSlices(lane, soon))?.count, 0);
  index.closeLane(lane);
  assert.is(await index.snapshotInSlices(lane, soon), undefined);
});

test("nothing is evicted from a lane while it is copied", async () => {
  const index = await PrefixIndex.create({ blockSize: BLOCK_SIZE, maxBlocks: 100 });
  const [a, b] = [index.openLane("a", 0), index.openLane("b", 0)];
  index.apply(a, chain(1, 60));
  const expected = rowsOf(index.snapshot(a));
  let name = 1_000;
  let pauses = 0;
  const copy = await index.snapshotInSlices(
    a,
    async () => {
      await soon();
      pauses += 1;
      for (let i = 0; i < 10; i++) index.apply(b, chain(name++, 1));
      assert.is(index.count(a), 60);
    },
    undefined,
    4,
  );
  assert.ok(pauses > 10);
  assert.equal(rowsOf(copy ?? index.snapshot(-1)), expected);
  assert.is(index.count(b), 40, "the other lane made room by itself");
  for (let i = 0; i < 400; i++) index.apply(b, chain(name++, 1));
  assert.ok(index.count(a) < 60, "afterwards it is as others");
});

test("with nothing but a copied lane to evict from, blocks are refused and said to be", async () => {
  const index = await PrefixIndex.create({ blockSize: BLOCK_SIZE, maxBlocks: 50 });
  const [a, b] = [index.openLane("a", 0), index.openLane("b", 0)];
  index.apply(a, chain(1, 50));
  let refused = 0;
  await index.snapshotInSlices(
    a,
    async () => {
      await soon();
      refused += index.apply(b, chain(1_000, 1)).refused;
    },
    undefined,
    25,
  );
  assert.is(refused, 1);
  assert.is(index.apply(b, chain(1_000, 1)).applied, 1);
});

test("a removal that takes much along can be done in steps, each of which leaves the lane whole", async () => {
  for (const most of [1, 3, 50, 10_000]) {
    const index = await PrefixIndex.create({ blockSize: BLOCK_SIZE });
    const lane = index.openLane("a", 0);
    index.apply(lane, chain(1, 200));
    for (let i = 0; i < 20; i++) index.apply(lane, chain(1_000 + i * 100, 30, 5 + i * 4));
    index.apply(lane, chain(9_000, 7));
    let event = removal(3, 9_003, 12);
    let cut = 0, applied = 0, steps = 0;
    for (;;) {
      const before = index.count(lane);
      const result = index.apply(lane, event, most);
      steps += 1;
      cut += result.cut;
      applied += result.applied;
      assert.is(before - index.count(lane), result.cut + result.applied);
      assert.ok(result.cut <= most + 1, `${result.cut} at once`);
      // Throws when a block is there without its parent.
      rowsOf(index.snapshot(lane));
      if (result.left === 0) break;
      event = { ...event, hashes: event.hashes.subarray(-result.left) };
    }
    assert.is(index.count(lane), 2 + 3);
    assert.is(applied, 2);
    assert.is(cut, 197 + 600 + 3);
    assert.ok(steps >= 800 / (most + 1), `${steps} steps`);
    index.closeLane(lane);
    while (!index.tidy());
    assert.is(index.stats().nodes, 0);
  }
});

test("a lane of one long sequence is freed from where the last slice ended", async () => {
  const index = await PrefixIndex.create({ blockSize: BLOCK_SIZE, maxBlocks: 6_000 });
  const [a, b] = [index.openLane("a", 0), index.openLane("b", 0)];
  index.apply(a, chain(1, 5_000));
  index.apply(b, chain(1, 900));
  index.closeLane(a);
  // Every event frees some, and evicts ends of what is being freed.
  for (let i = 0; i < 40; i++) index.apply(b, chain(20_000 + i * 30, 30));
  assert.equal(index.match({ tokens: Uint32Array.of(1, 2, 3) }).map(({ lane }) => lane), [b]);
  while (!index.tidy(100));
  assert.is(index.stats().dying, 0);
  assert.is(index.stats().blocks, index.count(b));
  index.closeLane(b);
  while (!index.tidy());
  assert.is(index.stats().nodes, 0);
});

test.run();
