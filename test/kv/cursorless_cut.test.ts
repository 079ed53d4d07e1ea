/**
 * A copy that does not say where in its lane's events it was made (Dynamo's shape): events are
 * applied over it that may be in it already. Whatever comes twice, nothing stays that is gone.
 */

import { test } from "uvu";
import * as assert from "uvu/assert";
import type { KvEvent } from "../../src/kv/blocks.ts";
import { calm } from "../support/still_clock.ts";
import { seeded } from "../replica/support/sim_clock.ts";
import { batch, clear, createWorld, remove, store, type World } from "./lane_world.ts";

const LIMITS = { maxBatches: 1000, maxBytes: 1e6 };

async function joined(before: readonly KvEvent[][], kept: readonly KvEvent[][]): Promise<World> {
  const peer = await createWorld();
  before.forEach((events, seq) => peer.lane.receive(batch(seq, ...events)));
  await calm();
  const joiner = await createWorld();
  joiner.lane.hold(LIMITS);
  kept.forEach((events, at) => joiner.lane.receive(batch(100 + at, ...events)));
  const { blocks } = peer.lane.cut();
  blocks.copies.fill(1);
  const cut = { ...peer.lane.cut(), cursor: undefined, epoch: "", decoderState: undefined, blocks };
  await joiner.lane.commit({ ...cut, degraded: "no cursor" });
  await calm();
  return joiner;
}

test("a block that is in the copy and among the kept events is gone after one removal", async () => {
  const world = await joined([[store([1, 2])]], [[store([1, 2])]]);
  assert.equal(world.held(), [1, 2]);
  world.lane.receive(batch(101, remove([2])));
  await calm();
  assert.equal(world.held(), [1]);
  assert.is(world.lane.state, "degraded");
});

test("who takes it over from us counts no copy that may not be there", async () => {
  const world = await joined([[store([1, 2])]], [[store([1, 2])]]);
  assert.equal([...world.lane.cut().blocks.copies], [1, 1]);
  assert.equal([...(await world.lane.cutInSlices())?.blocks.copies ?? []], [1, 1]);
});

test("after the lane was cleared copies are counted again", async () => {
  const world = await joined([[store([1])]], [[store([1])]]);
  world.lane.receive(batch(101, clear, store([3]), store([3]), remove([3])));
  await calm();
  assert.equal(world.held(), [3]);
  assert.is(world.lane.state, "live");
  world.lane.receive(batch(102, remove([3])));
  await calm();
  assert.equal(world.held(), []);
});

test("many removals at once, of blocks with any number of copies, end and are counted once", async () => {
  const names = Array.from({ length: 3000 }, (_, at) => at * 2);
  const stores = names.map((name) => store([name]));
  const world = await joined([stores], [stores, stores.slice(0, 1500)]);
  world.lane.receive(batch(102, remove(names), remove([99_999])));
  await calm();
  await calm();
  assert.equal(world.held(), []);
  const metrics = await world.metrics();
  assert.match(metrics, /events_total\{type="removed",status="block_not_found"\} 1/);
});

test("whatever overlaps, and wherever: what is held is there, and all of it after a clear", async () => {
  let seen = 0;
  for (let seed = 1; seed <= 60; seed += 1) {
    const chance = seeded(seed);
    const pick = (below: number): number => Math.floor(chance() * below);
    const truth = new Map<number, number>();
    const events: KvEvent[][] = [];
    const step = (): KvEvent[] => {
      const held = [...truth.keys()];
      const name = held[pick(held.length)];
      if (name !== undefined && chance() < 0.45) {
        const left = (truth.get(name) ?? 1) - 1;
        if (left === 0) truth.delete(name);
        else truth.set(name, left);
        return [remove([name])];
      }
      const made = pick(12) * 2;
      truth.set(made, (truth.get(made) ?? 0) + 1);
      return [store([made])];
    };
    for (let at = 0; at < 30; at += 1) events.push(step());
    // Heard from `from` on, copied after `until`: nothing is missed in between.
    const from = pick(20);
    const until = from + pick(30 - from);
    // A copy of nothing is none: the lane begins with what its worker replays.
    if (isEmptyAfter(events.slice(0, until))) continue;
    seen += 1;
    const world = await joined(events.slice(0, until), events.slice(from));
    for (let at = 0; at < 30; at += 1) {
      world.lane.receive(batch(100 + 30 - from + at, ...step()));
      await calm();
      for (const name of world.held()) {
        assert.ok(truth.has(name), `seed ${seed}: ${name} is a ghost`);
      }
    }
  }
  assert.ok(seen > 40);
});

function isEmptyAfter(events: readonly KvEvent[][]): boolean {
  let held = 0;
  for (const event of events.flat()) held += event.kind === "removed" ? -1 : 1;
  return held === 0;
}

test.run();
