/** A replay ring that lets go of batches while it is asked, since the worker is busy. */

import { test } from "uvu";
import * as assert from "uvu/assert";
import { LaneGap } from "../../src/kv/lane.ts";
import { calm as settle } from "../support/still_clock.ts";
import { batch, createWorld, store, type World } from "./lane_world.ts";

/** Batch `seq`, which stores the block `seq + 1`. */
const plain = (seq: number) => batch(seq, store([seq + 1]));

/** A lane that has the batches 0 to 3, and so has its ring. */
async function liveWorld(): Promise<World> {
  const world = await createWorld({ hasRing: true });
  for (let seq = 0; seq <= 3; seq++) {
    world.ring.batches.push(plain(seq));
    world.lane.receive(world.ring.batches[seq] ?? plain(seq));
  }
  await settle();
  return world;
}

/** Until the returned function is called the ring does not answer. */
function closeGate(world: World): () => Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>();
  world.ring.gate = promise;
  return async () => {
    world.ring.gate = undefined;
    resolve();
    await settle();
  };
}

/** These come live; of them, the ring keeps the last `kept`. */
async function busy(world: World, from: number, to: number, kept: number): Promise<void> {
  const sent = Array.from({ length: to - from + 1 }, (_, i) => plain(from + i));
  world.ring.batches = [...world.ring.batches, ...sent].slice(-kept);
  for (const item of sent) world.lane.receive(item);
  await settle();
}

test("only what came neither live nor out of the ring is lost, although the ring begins later", async () => {
  const world = await liveWorld();
  const open = closeGate(world);
  await busy(world, 5, 9, 2);
  await open();
  assert.is(world.lane.cursor, 9n);
  assert.equal(world.held(), [6, 7, 8, 9, 10]);
  assert.match(await world.metrics(), /baton_kv_lost_batches_total 1\n/);
  assert.is(world.lane.state, "degraded");
});

test("a ring that was asked after a loss and has moved on past the live batches", async () => {
  const world = await liveWorld();
  // The first question is answered by batch 5, so 4 is lost; the second one waits.
  let questions = 0;
  const gates = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
  Object.defineProperty(world.ring, "gate", { get: () => gates[questions++]?.promise });
  await busy(world, 5, 5, 1);
  gates[0]?.resolve();
  await settle();
  assert.is(questions, 2);
  await busy(world, 6, 30, 5);
  gates[1]?.resolve();
  await settle();
  assert.is(world.lane.cursor, 30n);
  assert.equal(world.held(), Array.from({ length: 26 }, (_, i) => 6 + i));
  assert.match(await world.metrics(), /baton_kv_lost_batches_total 1\n/);
  assert.is(world.lane.state, "degraded");
});

test("a worker whose first batches came live is not met late, although its ring begins later", async () => {
  const world = await createWorld({ hasRing: true });
  const open = closeGate(world);
  world.lane.sourceUp(true);
  await busy(world, 0, 9, 2);
  await open();
  assert.equal(world.held(), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
  assert.is(world.lane.cursor, 9n);
  assert.is(world.lane.state, "live");
});

test("after a new connection, a ring without the last batch costs what was before, and no live batch", async () => {
  const world = await liveWorld();
  const open = closeGate(world);
  world.lane.sourceUp(true);
  await settle();
  await busy(world, 4, 8, 2);
  await open();
  assert.equal(world.held(), [5, 6, 7, 8, 9]);
  assert.is(world.lane.cursor, 8n);
  assert.is(world.lane.state, "degraded");
  assert.match(await world.metrics(), /baton_kv_lost_batches_total 0\n/);
});

test("a gap says what is missing, or that nothing is and the publisher is not known", () => {
  const message = (to?: bigint) => new LaneGap("empty", 4n, to).message;
  assert.is(message(), "batches from 4 on cannot be had: empty");
  assert.is(message(6n), "batches 4 to 5 cannot be had: empty");
  assert.is(
    message(4n),
    "whether the publisher is the one from before batch 4 is not known: empty",
  );
});

test.run();
