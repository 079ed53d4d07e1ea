/** Dynamo's dump shape: what we write, and what we take of what others write. */

import { test } from "uvu";
import * as assert from "uvu/assert";
import { laneId, type LaneKey } from "../../src/kv/lane_key.ts";
import { DumpBroken } from "../../src/replica/dump_format.ts";
import { readDynamoDump } from "../../src/replica/dynamo_reader.ts";
import { dynamoWorkerId } from "../../src/replica/dynamo_ids.ts";
import { dynamoSlices } from "../../src/replica/dynamo_writer.ts";
import type { LaneCut } from "../../src/replica/lane_port.ts";
import { type JsonU64, parseJsonU64 } from "../../src/streams/json_u64.ts";
import { runtime } from "../support/runtime.ts";
import {
  closeAll,
  contentOf,
  laneKey,
  sourceReplica,
  store,
  testReplica,
  until,
} from "./support/replica.ts";
import { seeded } from "./support/sim_clock.ts";
import { keyOf, makeCut, Shelf } from "./support/shelf.ts";

const encoder = new TextEncoder();

async function write(shelf: Shelf): Promise<string> {
  const decoder = new TextDecoder();
  const slices = await Array.fromAsync(dynamoSlices({ store: shelf, replica: "r", nowMs: 0 }));
  return slices.map((slice) => decoder.decode(slice, { stream: true })).join("");
}

async function read(text: string | Uint8Array, catalogue: readonly LaneKey[], size = 4096) {
  const bytes = typeof text === "string" ? encoder.encode(text) : text;
  const cuts = new Map<string, LaneCut>();
  const sizes = new Map<string, number>();
  async function* pieces(): AsyncGenerator<Uint8Array> {
    for (let at = 0; at < bytes.length; at += size) yield bytes.slice(at, at + size);
  }
  let error: unknown;
  try {
    await readDynamoDump(pieces(), {
      lane: (head) => {
        sizes.set(head.worker, head.blockSize);
        return true;
      },
      commit: (cut) => void cuts.set(laneId(cut.key), cut),
    }, { clock: runtime.clock, maxLaneBlocks: 1_000_000, catalogue });
  } catch (caught) {
    error = caught;
  }
  return { cuts, error, sizes };
}

type Events = { [key: string]: JsonU64 }[];

const at = (value: JsonU64 | undefined, ...path: string[]): JsonU64 => {
  let found: JsonU64 = value ?? null;
  for (const key of path) found = (found as { [key: string]: JsonU64 })[key] ?? null;
  return found;
};

/** (parent engine, engine, local, tiers) of each block. */
function rows(cut: LaneCut | undefined): string[] {
  if (cut === undefined) return ["no such lane"];
  const { parents, engines, locals, tiers, count } = cut.blocks;
  return Array.from({ length: count }, (_, row) => {
    const parent = parents[row] as number;
    return `${parent < 0 ? "root" : engines[parent]} ${engines[row]} ${locals[row]} ${tiers[row]}`;
  }).sort();
}

function event(
  worker: bigint | number,
  blocks: [bigint, bigint][],
  more: Record<string, unknown> = {},
) {
  const { parent = "null", tier = "device", rank = 0, outer = "", start = "null" } = more;
  const list = blocks.map(([engine, local]) =>
    `{"block_hash":${engine},"tokens_hash":${local},"mm_extra_info":null}`
  );
  return `{"worker_id":${worker},"storage_tier":"${tier}"${outer},"event":{"event_id":1,"data":` +
    `{"stored":{"parent_hash":${parent},"start_position":${start},"blocks":[${list}]}},"dp_rank":${rank}}}`;
}

const dump = (key: string, ...events: string[]): string =>
  `{${JSON.stringify(key)}:{"block_size":16,"events":[${events}]}}`;

test("the shape is Dynamo's: partitions, block size, stored events with rising ids, parents first", async () => {
  const cuts = [
    makeCut(keyOf("7"), 600, { chain: 300 }),
    makeCut(keyOf("7", { dpRank: 2 }), 10, { tiers: (row) => row < 5 ? 1 : 3 }),
    makeCut(keyOf("8", { model: "other", group: "blue" }), 1),
  ];
  const value = parseJsonU64(await write(new Shelf(cuts)));
  assert.equal(Object.keys(value as object), ["model:default", "other:blue"]);
  assert.is(at(value, "model:default", "block_size"), 16);
  const events = at(value, "model:default", "events") as Events;
  assert.equal(events.map((one) => at(one, "event", "event_id")), events.map((_, index) => index));
  const seen = new Map<string, Set<bigint>>();
  const tiers = new Set<unknown>();
  for (const one of events) {
    assert.is(one.worker_id, 7);
    tiers.add(one.storage_tier);
    const lane = String(at(one, "event", "dp_rank"));
    const known = seen.get(lane) ?? new Set<bigint>();
    seen.set(lane, known);
    const stored = at(one, "event", "data", "stored");
    const parent = at(stored, "parent_hash");
    if (parent !== null) {
      assert.ok(known.has(BigInt(parent as bigint)), "a child before its parent");
    }
    for (const block of at(stored, "blocks") as Events) {
      known.add(BigInt(block.block_hash as bigint));
    }
  }
  assert.equal([...seen.values()].map((known) => known.size), [600, 10]);
  assert.equal([...tiers], ["device", "host_pinned"]);
});

test("kv 57: written and read again, every hash is the same bit for bit", async () => {
  const keys = [keyOf("1"), keyOf("18446744073709551615"), keyOf("pod-a", { dpRank: 5 })];
  const cuts = keys.map((key, index) =>
    makeCut(key, 300 + index, { chain: 40, tiers: (row) => 1 + (row % 15) })
  );
  for (const size of [1, 100, 100_000]) {
    const { cuts: taken, error } = await read(await write(new Shelf(cuts)), keys, size);
    assert.is(error, undefined);
    for (const cut of cuts) {
      assert.equal(rows(taken.get(laneId(cut.key))), rows(cut));
      assert.is(taken.get(laneId(cut.key))?.cursor, undefined, "the shape has no cursor");
    }
  }
});

test("kv 55: model names with colons are told apart by the catalogue; ambiguous ones are left alone", async () => {
  const odd = keyOf("1", { model: "org/model:7b:q4", group: "g:h" });
  const one = await read(await write(new Shelf([makeCut(odd, 5)])), [odd]);
  assert.is(rows(one.cuts.get(laneId(odd))).length, 5);
  const first = keyOf("1", { model: "a:b", group: "c" });
  const second = keyOf("1", { model: "a", group: "b:c" });
  const two = await read(await write(new Shelf([makeCut(first, 5)])), [first, second]);
  assert.is(two.error, undefined);
  assert.is(two.cuts.size, 0);
});

test("names that are no numbers get one, and two that would get the same are left alone", async () => {
  assert.is(dynamoWorkerId("42"), 42n);
  assert.is(dynamoWorkerId("18446744073709551615"), 2n ** 64n - 1n);
  assert.is(dynamoWorkerId("a"), 0xaf63dc4c8601ec8cn, "FNV-1a of one letter");
  for (const name of ["042", "-1", "18446744073709551616", ""]) {
    assert.is.not(dynamoWorkerId(name).toString(), name);
  }
  const number = dynamoWorkerId("pod-a").toString();
  const both = [keyOf("pod-a"), keyOf(number)];
  const { cuts } = await read(dump("model:default", event(BigInt(number), [[1n, 2n]])), both);
  assert.is(cuts.size, 0);
});

test("events of several workers in any mixture come apart; signed hashes are the same hashes", async () => {
  const big = 13226331709069118873n;
  const text = dump(
    "model:default",
    event(1, [[big, 1n]]),
    event(2, [[5n, 6n]]),
    event(1, [[7n, 8n]], { parent: BigInt.asIntN(64, big) }),
    event(2, [[9n, 10n]], { tier: "disk", parent: 5 }),
    event(2, [[5n, 6n]], { tier: "host_pinned" }),
    event(3, [[1n, 1n]]),
  );
  const { cuts, error, sizes } = await read(text, [keyOf("1"), keyOf("2")]);
  assert.is(error, undefined);
  assert.equal(rows(cuts.get(laneId(keyOf("1")))), [`${big} 7 8 1`, `root ${big} 1 1`]);
  assert.equal(rows(cuts.get(laneId(keyOf("2")))), ["5 9 10 4", "root 5 6 3"]);
  assert.is(cuts.size, 2, "worker 3 is not ours");
  assert.is(sizes.get("1"), 16);
});

test("what cannot be placed is left out: orphans, positions, other residencies, unknown tiers", async () => {
  const text = dump(
    "model:default",
    event(1, [[1n, 1n]]),
    event(1, [[2n, 2n]], { parent: 99 }),
    event(1, [[3n, 3n]], { start: 10 }),
    event(1, [[4n, 4n]], { outer: `,"residency_domain":null` }),
    event(1, [[5n, 5n]], { outer: `,"residency_domain":"cache_owner","state_source":"x"` }),
    event(1, [[6n, 6n]], { tier: "tape" }),
    event(1, [[7n, 7n]], { outer: `,"residency_domain":"worker"` }),
  );
  const { cuts, error } = await read(text, [keyOf("1")]);
  assert.is(error, undefined);
  assert.equal(rows(cuts.get(laneId(keyOf("1")))), ["root 1 1 1", "root 7 7 1"]);
});

test("defaults: tier device, rank 0, start and multimodal null; members in any order", async () => {
  const text = `{"model:default" : { "events":[ {"event":{"data":{"stored":{"blocks":` +
    `[{"tokens_hash":2,"block_hash":1}]}},"event_id":9},"worker_id":1} ],\n "extra":[1,{"a":"]"}],` +
    `"block_size":16 } }\n`;
  const { cuts, error } = await read(text, [keyOf("1")], 3);
  assert.is(error, undefined);
  assert.equal(rows(cuts.get(laneId(keyOf("1")))), ["root 1 2 1"]);
});

test("mistake 6: an error inside a 200 fails the dump; partitions before it stay whole", async () => {
  const keys = [keyOf("1"), keyOf("1", { model: "broken" })];
  const good = dump("model:default", event(1, [[1n, 2n]])).slice(0, -1);
  const { cuts, error } = await read(`${good},"broken:default":{"error":"index failed"}}`, keys);
  assert.instance(error, DumpBroken);
  assert.match((error as Error).message, /index failed/);
  assert.equal([...cuts.keys()], [laneId(keyOf("1"))]);
});

test("kv 43: cut off at any byte, nothing of the open partition is taken", async () => {
  const first = dump(
    "model:default",
    event(1, [[1n, 2n]], {}),
    event(1, [[3n, 4n]], { parent: 1 }),
  );
  const keys = [keyOf("1"), keyOf("1", { model: "other" })];
  const text = `${first.slice(0, -1)},${dump("other:default", event(1, [[5n, 6n]])).slice(1)}`;
  for (let length = 0; length < text.length; length += 1) {
    const { cuts, error } = await read(text.slice(0, length), keys);
    assert.instance(error, DumpBroken, `after ${length} bytes`);
    const taken = cuts.get(laneId(keyOf("1")));
    if (length < first.length - 1) assert.is(taken, undefined);
    else assert.is(taken?.blocks.count, 2);
    if (length < text.length - 1) assert.is(cuts.get(laneId(keys[1] as LaneKey)), undefined);
  }
  assert.is((await read(text, keys)).error, undefined);
});

test("a lane that a whole dump does not mention is taken as empty", async () => {
  const { cuts, error } = await read("{}", [keyOf("1")]);
  assert.is(error, undefined);
  assert.is(cuts.get(laneId(keyOf("1")))?.blocks.count, 0);
});

test("fuzz: damage ends in DumpBroken or in rows of the right shape, never in anything else", async () => {
  const chance = seeded(3);
  const keys = [keyOf("1"), keyOf("2")];
  const bytes = encoder.encode(
    await write(new Shelf(keys.map((key) => makeCut(key, 40, { chain: 9 })))),
  );
  let failed = 0;
  for (let round = 0; round < 800; round += 1) {
    const damaged = bytes.slice();
    for (let times = 1 + Math.floor(chance() * 3); times > 0; times -= 1) {
      const letters = '{}[]",:0123456789 ne\\';
      damaged[Math.floor(chance() * bytes.length)] = chance() < 0.7
        ? letters.charCodeAt(Math.floor(chance() * letters.length))
        : Math.floor(chance() * 256);
    }
    const { cuts, error } = await read(damaged, keys, 1 + Math.floor(chance() * 500));
    if (error !== undefined) {
      failed += 1;
      assert.instance(error, DumpBroken, String(error));
    }
    for (const { blocks } of cuts.values()) {
      for (let row = 0; row < blocks.count; row += 1) {
        assert.ok((blocks.parents[row] as number) < row);
        assert.ok((blocks.tiers[row] as number) > 0);
      }
    }
  }
  assert.ok(failed > 300, `${failed} failed`);
});

test("a replica recovers from one that only speaks Dynamo's shape, and goes on live", async () => {
  const keys = [laneKey("1"), laneKey("2")];
  const source = await sourceReplica({
    lanes: keys,
    wrap: (app) => (request) => {
      const headers = new Headers(request.headers);
      headers.set("accept", "application/json");
      return app.fetch(new Request(request.url, { headers }));
    },
  });
  const joiner = await testReplica({ lanes: keys, peers: [source.url] });
  for (const key of keys) {
    const theirs = source.store.lane(key);
    const ours = joiner.store.lane(key);
    if (theirs === undefined || ours === undefined) throw new Error("no lane");
    for (let seq = 0; seq < 20; seq += 1) store(theirs, seq, BigInt(seq + 1), 0, 30);
    await until(() => theirs.waiting.bytes === 0, "what came before the joiner to be applied");
  }
  joiner.store.holdAll({ maxBatches: 100, maxBytes: 1e6 });
  joiner.recovery.start();
  // What comes between the subscription and the dump is in both; that does no harm.
  for (const key of keys) {
    for (const replica of [source, joiner]) {
      const lane = replica.store.lane(key);
      if (lane !== undefined) store(lane, 20, 21n, 0, 30);
    }
  }
  assert.is(await joiner.recovery.done, "recovered");
  for (const key of keys) {
    for (const replica of [source, joiner]) {
      const lane = replica.store.lane(key);
      if (lane === undefined) throw new Error("no lane");
      store(lane, 21, 22n, 0, 5);
      await until(() => lane.waiting.bytes === 0, "the last batch to be applied");
    }
    const [theirs, ours] = [source, joiner].map((replica) => {
      const lane = replica.store.lane(key);
      return lane === undefined ? [] : contentOf(lane).map((row) => row.replace(/ \d+$/, ""));
    });
    assert.equal(ours, theirs);
    assert.is(joiner.store.lane(key)?.cursor, 21n);
    // Exact it is not, and it says so until its worker clears it.
    assert.is(joiner.store.lane(key)?.state, "degraded");
  }
  assert.is(joiner.recovery.status().lanes.partial, 2);
  await joiner.close();
  await source.close();
});

test("a dump without a cursor is not taken for a lane whose subscription is not proven", async () => {
  const key = laneKey("1");
  const source = await sourceReplica({
    lanes: [key],
    wrap: (app) => (request) => {
      const headers = new Headers(request.headers);
      headers.set("accept", "application/json");
      return app.fetch(new Request(request.url, { headers }));
    },
  });
  const theirs = source.store.lane(key);
  if (theirs === undefined) throw new Error("no lane");
  store(theirs, 0, 1n, 0, 30);
  const joiner = await testReplica({
    lanes: [key],
    peers: [source.url],
    config: { subscribeTimeoutMs: 10 },
  });
  const ours = joiner.store.lane(key);
  // There is a source, and nothing has come from it: a removal may have been missed.
  ours?.attach({});
  joiner.recovery.start();
  assert.is(await joiner.recovery.done, "degraded");
  assert.is(ours?.blocks, 0);
  assert.match(joiner.recovery.status().reason, /not proven to reach us/);
  await joiner.close();
  await source.close();
});

test.after(closeAll);
test.run();
