/**
 * Lanes whose publisher does not number its events (lines of `POST /events` without `seq`): nobody
 * can say where a peer's copy stands among them. So no copy is taken, nothing false is held, and
 * lane, report and dump say why.
 */

import { test } from "uvu";
import * as assert from "uvu/assert";
import type { KvEvent } from "../../src/kv/blocks.ts";
import type { Lane } from "../../src/kv/lane.ts";
import { UNNUMBERED } from "../../src/kv/lane_types.ts";
import { dumpSlices } from "../../src/replica/dump_writer.ts";
import { dynamoSlices } from "../../src/replica/dynamo_writer.ts";
import { dumpOf, Loop, ndjson } from "./support/loop.ts";
import {
  closeAll,
  contentOf,
  laneKey,
  sourceReplica,
  storedEvent,
  type TestReplica,
  testReplica,
  until,
} from "./support/replica.ts";
import { keyOf, makeCut, Shelf } from "./support/shelf.ts";
import { seeded } from "./support/sim_clock.ts";

test.after(closeAll);

const KEY = laneKey("0");

function laneOf(replica: TestReplica): Lane {
  const lane = replica.store.lane(KEY);
  if (lane === undefined) throw new Error("no lane");
  return lane;
}

const say = (lane: Lane, ...events: KvEvent[]): void => lane.receiveNext({ events, bytes: 64 });
const engines = (lane: Lane): bigint[] =>
  [...lane.cut().blocks.engines].sort((a, b) => a < b ? -1 : 1);
const calm = (lane: Lane): Promise<void> => until(() => lane.waiting.bytes === 0, "applied");

/** A joiner whose peer gives its dump only when `go` is called. */
async function gatedJoiner(source: TestReplica) {
  let go = (): void => {};
  const gate = new Promise<void>((resolve) => go = resolve);
  const wall = await testReplica({
    wrap: () => async (request) => {
      await gate;
      const url = new URL(request.url);
      return await fetch(source.url + url.pathname + url.search, { headers: request.headers });
    },
  });
  const joiner = await testReplica({ peers: [wall.url], lanes: [KEY] });
  joiner.recovery.start();
  return { joiner, go };
}

test("no line was heard yet: the lane starts empty and degraded, since a removal may have been missed", async () => {
  const source = await sourceReplica({ lanes: [KEY] });
  say(laneOf(source), storedEvent(1n, 0, 5));
  const joiner = await testReplica({ peers: [source.url], lanes: [KEY] });
  joiner.recovery.start();
  assert.is(await joiner.recovery.done, "degraded");
  const { laneReports, reason } = joiner.recovery.status();
  assert.is(laneReports[0]?.outcome, "degraded");
  assert.match(laneReports[0]?.reason ?? "", new RegExp(UNNUMBERED));
  assert.match(reason, /^1 lane is degraded: .*its events carry no numbers/);
  assert.is(laneOf(joiner).blocks, 0);
  assert.match(await joiner.metrics.text(), /recovery_lanes_total\{outcome="degraded"\} 1/);
});

test("lines came meanwhile: they are applied, and the lane is degraded until its next `cleared`", async () => {
  const source = await sourceReplica({ lanes: [KEY] });
  const both = (...events: KvEvent[]): void => {
    say(laneOf(source), ...events);
    say(laneOf(joiner), ...events);
  };
  say(laneOf(source), storedEvent(1n, 0, 5));
  const { joiner, go } = await gatedJoiner(source);
  both(storedEvent(2n, 0, 3));
  go();
  assert.is(await joiner.recovery.done, "degraded");
  const lane = laneOf(joiner);
  await calm(lane);
  assert.is(lane.state, "degraded");
  assert.is(lane.lastError, UNNUMBERED);
  assert.equal(engines(lane), [...storedEvent(2n, 0, 3).hashes].sort((a, b) => a < b ? -1 : 1));
  both({ kind: "cleared" }, storedEvent(3n, 0, 4));
  await calm(lane);
  await calm(laneOf(source));
  assert.is(lane.state, "live");
  assert.equal(contentOf(lane), contentOf(laneOf(source)));
});

test("lines without numbers end a copy that a peer of another make gave, whenever they begin", async () => {
  const numbered = await sourceReplica({ lanes: [KEY] });
  laneOf(numbered).receive({ seq: 0n, events: [storedEvent(1n, 0, 5)] });
  await calm(laneOf(numbered));
  // After the recovery.
  const late = await testReplica({ peers: [numbered.url], lanes: [KEY] });
  late.recovery.start();
  assert.is(await late.recovery.done, "recovered");
  assert.is(laneOf(late).blocks, 5);
  say(laneOf(late), storedEvent(2n, 0, 1));
  await calm(laneOf(late));
  assert.equal(engines(laneOf(late)), [...storedEvent(2n, 0, 1).hashes]);
  assert.is(laneOf(late).state, "degraded");
  // While it goes on.
  const { joiner, go } = await gatedJoiner(numbered);
  say(laneOf(joiner), storedEvent(2n, 0, 1));
  go();
  assert.is(await joiner.recovery.done, "degraded");
  assert.equal(engines(laneOf(joiner)), [...storedEvent(2n, 0, 1).hashes]);
});

test("the first line comes while a peer's copy is being put in: the copy is void", async () => {
  const source = await sourceReplica({ lanes: [KEY] });
  const many = Array.from({ length: 200 }, (_, at) => storedEvent(BigInt(at + 10), 0, 100));
  laneOf(source).receive({ seq: 0n, events: many });
  await calm(laneOf(source));
  const cut = laneOf(source).cut();
  const joiner = await testReplica({ lanes: [KEY] });
  const lane = laneOf(joiner);
  lane.hold({ maxBatches: 100, maxBytes: 1e6 });
  const committed = lane.commit(cut).then(() => "done", (error: Error) => error.name);
  assert.is(lane.state, "loading");
  say(lane, storedEvent(2n, 0, 1));
  assert.is(await committed, "LaneGap");
  assert.is(lane.blocks, 0);
  lane.release();
  await calm(lane);
  assert.equal(engines(lane), [...storedEvent(2n, 0, 1).hashes]);
  assert.is(
    await lane.commit(cut).catch((error: Error) => error.message),
    "batches from 0 on cannot be had: unnumbered",
  );
  assert.is(lane.blocks, 1, "what is refused changes nothing");
});

test("a dump tells of the lane, why it cannot be had, and gives none of its blocks", async () => {
  const source = await sourceReplica({ lanes: [KEY, laneKey("1")] });
  say(laneOf(source), storedEvent(1n, 0, 5));
  source.store.lane(laneKey("1"))?.receive({ seq: 0n, events: [storedEvent(2n, 0, 2)] });
  for (const lane of source.store.lanes()) await calm(lane);
  const options = { store: source.store, replica: "source", nowMs: 0 };
  const lines = (await new Response(ReadableStream.from(dumpSlices(options))).text()).trimEnd()
    .split("\n").map((line) => JSON.parse(line));
  const [told, whole] = lines.filter(({ kind }) => kind === "lane");
  assert.is(told.worker, "0");
  assert.equal([told.cursor, told.degraded, told.count], [null, UNNUMBERED, 0]);
  assert.equal([whole.cursor, whole.degraded, whole.count], ["0", null, 2]);
  assert.equal([lines[0].lanes, lines[0].blocks], [2, 2]);
  assert.equal(lines.at(-1), { kind: "trailer", lanes: 2, blocks: 2 });
  // Dynamo's shape says of no lane where it stands, so it loses nothing by this one.
  const dynamo = await new Response(ReadableStream.from(dynamoSlices(options))).text();
  const stored = JSON.parse(dynamo)["model:default"].events.flatMap(
    (event: { event: { data: { stored: { blocks: unknown[] } } } }) =>
      event.event.data.stored.blocks,
  );
  assert.is(stored.length, 7);
});

test("another peer may know the lane with numbers, and is believed", async () => {
  const CUT = makeCut(keyOf("0"), 100);
  for (const seed of [1, 2, 3, 4]) {
    const loop = new Loop({ seed });
    loop.members("a", "b");
    const shelf = new Shelf([CUT]);
    const lane = shelf.lane(CUT.key);
    if (lane !== undefined) lane.isUnnumbered = true;
    loop.answer(
      "a",
      () => ndjson(ReadableStream.from(dumpSlices({ store: shelf, replica: "a", nowMs: 0 }))),
    );
    loop.answer("b", dumpOf([CUT]));
    loop.start();
    assert.is(await loop.run(), "recovered");
    assert.is(loop.store.lane(CUT.key)?.blocks, 100);
  }
});

test("whatever was missed before a joiner hears of it, it holds nothing false, and all after `cleared`", async () => {
  for (let seed = 1; seed <= 25; seed += 1) {
    const chance = seeded(seed);
    const pick = (below: number): number => Math.floor(chance() * below);
    const source = await sourceReplica({ lanes: [KEY] });
    const { joiner, go } = await gatedJoiner(source);
    let made = 0;
    let names: { name: bigint; length: number }[] = [];
    const event = (): KvEvent => {
      const dice = chance();
      const known = names[pick(names.length)];
      if (known !== undefined && dice < 0.4) {
        // The last block of a sequence goes.
        known.length -= 1;
        if (known.length === 0) names = names.filter((one) => one !== known);
        const { hashes } = storedEvent(known.name, known.length, 1);
        return { kind: "removed", hashes, tier: "device" };
      }
      const name = BigInt(++made);
      const length = 1 + pick(4);
      names.push({ name, length });
      return storedEvent(name, 0, length);
    };
    const steps = 40;
    const heardFrom = pick(steps);
    const dumpAt = pick(steps);
    for (let step = 0; step < steps; step += 1) {
      const events = Array.from({ length: 1 + pick(3) }, event);
      say(laneOf(source), ...events);
      if (step >= heardFrom) say(laneOf(joiner), ...events);
      if (step === dumpAt) {
        go();
        if (chance() < 0.5) await joiner.recovery.done;
      }
    }
    assert.is(await joiner.recovery.done, "degraded", `seed ${seed}`);
    await calm(laneOf(source));
    await calm(laneOf(joiner));
    assert.is(laneOf(joiner).state, "degraded", `seed ${seed}`);
    const truth = new Set(engines(laneOf(source)));
    for (const engine of engines(laneOf(joiner))) {
      assert.ok(truth.has(engine), `seed ${seed}: a ghost`);
    }
    for (const lane of [laneOf(source), laneOf(joiner)]) {
      say(lane, { kind: "cleared" }, storedEvent(999n, 0, 3));
      await calm(lane);
      assert.is(lane.state, "live");
    }
    assert.equal(contentOf(laneOf(joiner)), contentOf(laneOf(source)), `seed ${seed}`);
    await joiner.close();
    await source.close();
  }
});

test.run();
