/** The memory that lanes of an incoming dump are staged in: whose it is, and how much of it. */

import { test } from "uvu";
import * as assert from "uvu/assert";
import { PrefixIndex } from "../../src/kv/prefix_index.ts";
import { silentLog } from "../../src/observe/log.ts";
import { type DumpSink, readDump } from "../../src/replica/dump_reader.ts";
import { dumpSlices } from "../../src/replica/dump_writer.ts";
import type { LaneCut } from "../../src/replica/lane_port.ts";
import { StagedColumns } from "../../src/replica/staged_columns.ts";
import { WantedLanes } from "../../src/replica/wanted_lanes.ts";
import { runtime } from "../support/runtime.ts";
import { contentOf, testStore } from "./support/replica.ts";
import { keyOf, makeCut, Shelf } from "./support/shelf.ts";

const LIMITS = { maxBatches: 100, maxBytes: 1e6 };

/** Lanes of other sizes, some of whose columns are not spelled out and some of whose are. */
const CUTS = [
  makeCut(keyOf("0"), 300),
  makeCut(keyOf("1"), 900, { chain: 7, tiers: (row) => 1 + row % 3, copies: (row) => 1 + row % 4 }),
  makeCut(keyOf("2"), 40),
  makeCut(keyOf("3"), 900, { chain: 1000 }),
  makeCut(keyOf("4"), 20_000, { copies: (row) => 1 + row % 2 }),
  makeCut(keyOf("5"), 0),
  makeCut(keyOf("6"), 19_000),
];

function read(cuts: readonly LaneCut[], sink: Partial<DumpSink> & Pick<DumpSink, "commit">) {
  const slices = dumpSlices({ store: new Shelf(cuts), replica: "r1", nowMs: 0 });
  const limits = { clock: runtime.clock, maxLaneBlocks: 1_000_000 };
  return readDump(slices, { lane: () => true, ...sink }, limits);
}

const same = (cut: LaneCut, at: number): void => {
  const { keys: _keys, ...expected } = CUTS[at]?.blocks ?? { keys: undefined };
  const { keys: _others, ...blocks } = cut.blocks;
  assert.equal(blocks, expected, `lane ${at}`);
};

test("a lane is staged in the memory of the one before when the sink is done with that, and is exact", async () => {
  const buffers = new Set<ArrayBufferLike>();
  let lanes = 0;
  await read(CUTS, {
    commit: async (cut) => {
      await Promise.resolve();
      same(cut, lanes++);
      buffers.add(cut.blocks.engines.buffer);
      // As good as garbage: what the next lane leaves out must not be taken from here.
      const { engines, locals, parents, tiers, copies } = cut.blocks;
      for (const column of [engines, locals]) column.fill(0xdeadn);
      for (const column of [parents, tiers, copies]) column.fill(77);
      return true;
    },
  });
  assert.is(lanes, CUTS.length);
  assert.is(buffers.size, 3, "the first ones, and twice larger ones");
});

for (const answer of ["nothing", "false"]) {
  test(`a sink that answers ${answer} keeps what it was given`, async () => {
    const cuts: LaneCut[] = [];
    await read(CUTS, {
      commit: (cut) => {
        cuts.push(cut);
        return answer === "nothing" ? undefined : Promise.resolve(false);
      },
    });
    for (const [at, cut] of cuts.entries()) same(cut, at);
    assert.is(cuts.length, CUTS.length);
  });
}

test("what was announced makes no room: four times what has arrived, or what the first lines need", () => {
  const columns = new StagedColumns();
  let most = 0;
  for (let rows = 64; rows <= 300_000; rows += 64) {
    columns.reserve(rows, rows - 64, 2 ** 31 - 1);
    most = Math.max(most, columns.parents.length / Math.max(rows, 16_384));
  }
  assert.ok(most <= 4, `${most} times`);
  const small = new StagedColumns();
  small.reserve(64, 0, 100);
  assert.is(small.parents.length, 112);
  small.reserve(100, 64, 100);
  assert.is(small.parents.length, 112);
});

test("a lane that starts over during its load still reads its columns: the next lane waits for that", async () => {
  const store = testStore();
  const cuts = CUTS.slice(0, 4);
  const lanes = await Promise.all(cuts.map((cut) => store.open(cut.key, { blockSize: 16 })));
  lanes[1]?.hold(LIMITS);
  lanes[1]?.receive({ seq: 41n, epoch: "one", events: [], bytes: 1 });
  const wanted = new WantedLanes({
    store,
    limits: LIMITS,
    maxLaneBlocks: 1_000_000,
    log: silentLog,
    onSettled: () => {},
  });
  const sink = wanted.sink("peer", () => false);
  const index = store.partitions()[0]?.index as PrefixIndex;
  const load = index.loadInSlices.bind(index);
  let reading: string | undefined;
  let overlaps = 0;
  let loads = 0;
  const copied: LaneCut["blocks"][] = [];
  index.loadInSlices = async (handle, blocks, pause) => {
    const at = copied.length;
    copied.push(blocks);
    reading = `load ${at}`;
    const before = blocks.engines.slice();
    // The second lane's publisher is replaced while the index has only begun to read.
    if (at === 1) lanes[1]?.receive({ seq: 0n, epoch: "another", events: [], bytes: 1 });
    for (let turn = 0; turn < 20; turn += 1) await new Promise((resolve) => setTimeout(resolve, 1));
    await load(handle, blocks, pause);
    assert.equal(blocks.engines, before, `lane ${at} was overwritten while it was read`);
    loads += 1;
    reading = undefined;
  };
  await read(cuts, {
    lane: (head) => sink.lane(head),
    commit: async (cut, head) => {
      if (reading !== undefined) overlaps += 1;
      return await sink.commit(cut, head) ?? false;
    },
  });
  await sink.settled();
  assert.is(loads, 4);
  assert.is(overlaps, 0);
  assert.is(new Set(copied.map((blocks) => blocks.engines.buffer)).size, 2);
  assert.equal(lanes.map((lane) => contentOf(lane).length), [300, 0, 40, 900]);
  assert.is(lanes[1]?.isHeld, true, "it waits for another cut");
});

test.run();
