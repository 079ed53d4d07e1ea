/**
 * Cuts of lanes with a tenant's salt on many blocks: what the decoder knows is copied and put back in
 * slices, and belongs to the same moment as the blocks, whatever happens in between.
 */

import { test } from "uvu";
import * as assert from "uvu/assert";
import type { DecoderState } from "../../src/kv/decoder_state.ts";
import type { EngineStored } from "../../src/kv/engine_event.ts";
import { Lane, type LaneCut } from "../../src/kv/lane.ts";
import { createKvMeters } from "../../src/kv/kv_meters.ts";
import { PrefixIndex } from "../../src/kv/prefix_index.ts";
import { Slices } from "../../src/kv/slices.ts";
import { silentLog } from "../../src/observe/log.ts";
import { runtime } from "../support/runtime.ts";
import { until } from "../support/until.ts";

const { clock, random } = runtime;
const index = await PrefixIndex.create({ blockSize: 2 });
const LIMITS = { maxBatches: 10_000, maxBytes: 64 * 1024 * 1024 };

function newLane(): Lane {
  return new Lane({
    key: { model: "m", group: "default", worker: "w", dpRank: 0 },
    index,
    settings: { blockSize: 2, hashBytes: () => 0n },
    // Breaks after every step.
    slices: new Slices({ clock, budgetMs: 0.01 }),
    clock,
    random,
    log: silentLog,
    meters: createKvMeters(),
  });
}

function stored(hash: number, parent: number | undefined, salt: string | undefined): EngineStored {
  return {
    kind: "engine_stored",
    hashes: BigUint64Array.of(BigInt(hash)),
    parent: parent === undefined ? undefined : BigInt(parent),
    tokens: Uint32Array.of(hash, 1),
    isBigram: false,
    blockSize: 2,
    medium: undefined,
    lora: undefined,
    salt,
    extraKeys: undefined,
    multimodal: undefined,
    groupIndex: undefined,
    specKind: undefined,
    locality: undefined,
    isArray: false,
  };
}

const PER_BATCH = 200;

/** Batch `seq`: sequences of two blocks, of which the first names its tenant. */
function batch(seq: number, epoch = "e") {
  const events: EngineStored[] = [];
  for (let at = 0; at < PER_BATCH; at += 2) {
    const hash = seq * PER_BATCH + at + 1;
    events.push(stored(hash, undefined, `tenant-${hash % 50}`), stored(hash + 1, hash, undefined));
  }
  return { seq: BigInt(seq), epoch, events, digest: seq + 1, bytes: 1000 };
}

async function fed(batches: number): Promise<Lane> {
  const lane = newLane();
  for (let seq = 0; seq < batches; seq += 1) lane.receive(batch(seq));
  await until(() => lane.cursor === BigInt(batches - 1));
  return lane;
}

/** Engine hash and tenant of each block that the decoder knows. */
function tenants({ decoderState }: LaneCut): string[] {
  const { namespaces } = (decoderState as DecoderState).reader;
  if (namespaces === undefined) return [];
  const { salts, blocks, of } = namespaces;
  return [...blocks].map((block, at) => `${block} ${salts[of[at] ?? -1]}`).sort();
}

test("events that come while it is copied are not in it, neither their blocks nor their tenants", async () => {
  const lane = await fed(50);
  const cutting = lane.cutInSlices();
  for (let seq = 50; seq < 60; seq += 1) {
    lane.receive(batch(seq));
    await new Promise((resolve) => setTimeout(resolve, 0));
  }
  const cut = await cutting;
  assert.ok(cut?.cursor !== undefined);
  const same = await fed(Number(cut.cursor) + 1);
  assert.equal(tenants(cut), tenants(same.cut()));
  assert.is(cut.blocks.count, (Number(cut.cursor) + 1) * PER_BATCH);
  await until(() => lane.cursor === 59n);
  assert.equal(tenants(lane.cut()).length, 60 * PER_BATCH);
  lane.close();
  same.close();
});

test("a lane that starts over while it is copied gives nothing of what it was", async () => {
  const lane = await fed(50);
  const cutting = lane.cutInSlices();
  await Promise.resolve();
  lane.receive(batch(0, "another"));
  assert.is(await cutting, undefined);
  await until(() => lane.cursor === 0n);
  assert.equal(tenants(lane.cut()).length, PER_BATCH);
  lane.close();
});

test("put back in slices, children inherit their tenant; a copy that was given up leaves none behind", async () => {
  const lane = await fed(50);
  const cut = lane.cut();
  const joiner = newLane();
  joiner.hold(LIMITS);
  joiner.receive(batch(49));
  joiner.receive({ ...batch(50), events: [stored(900_001, 10, undefined)] });
  await joiner.commit(cut);
  await until(() => joiner.cursor === 50n);
  const salted = tenants(joiner.cut()).find((row) => row.startsWith("900001 "));
  assert.is(salted, "900001 tenant-9");

  const hasty = newLane();
  hasty.hold(LIMITS);
  const committed = hasty.commit(cut).then(() => "done", (error: Error) => error.name);
  assert.is(hasty.state, "loading");
  await new Promise((resolve) => setTimeout(resolve, 1));
  hasty.degrade("no time");
  assert.is(await committed, "LaneGap");
  hasty.receive({ ...batch(51), events: [stored(900_001, 10, undefined)] });
  await until(() => hasty.cursor === 51n);
  assert.equal(tenants(hasty.cut()), []);
  for (const one of [lane, joiner, hasty]) one.close();
});

test.run();
