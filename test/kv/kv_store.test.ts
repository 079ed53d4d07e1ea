/** Partitions and lanes: opened once, closed once, and nothing comes back by itself. */
import { test } from "uvu";
import * as assert from "uvu/assert";
import { createKvStore, type IndexStore } from "../../src/kv/create_kv_store.ts";
import { Slices } from "../../src/kv/slices.ts";
import { BatonError } from "../../src/errors.ts";
import { createMetrics, type Metrics } from "../../src/observe/metrics.ts";
import { runtime } from "../support/runtime.ts";
import { calm, StillClock } from "../support/still_clock.ts";
import { batch, store as stored } from "./lane_world.ts";

const key = (worker: string, model = "m") => ({ model, group: "default", worker, dpRank: 0 });
const SIZE = { blockSize: 2 };

let clock: StillClock;
let metrics: Metrics;
let store: IndexStore;
test.before.each(async () => {
  clock = new StillClock();
  metrics = createMetrics();
  store = await createKvStore({ clock, random: runtime.random, metrics });
});

test("a lane is opened once, however often it is asked for", async () => {
  const [first, second] = await Promise.all([
    store.open(key("a"), SIZE),
    store.open(key("a"), SIZE),
  ]);
  assert.is(first, second);
  assert.is(await store.open(key("a"), SIZE), first);
  assert.equal(store.lanes(), [first]);
});

test("kv 56: another block size is refused and reported; without lanes it is free again", async () => {
  await store.open(key("a"), SIZE);
  const refused = await store.open(key("b"), { blockSize: 4 }).then(() => undefined, (e) => e);
  assert.ok(refused instanceof BatonError && refused.code === "conflict");
  assert.match(refused.message, /blocks of 2 tokens, not 4/);
  assert.is(store.lanes().length, 1);
  store.close(key("a"));
  assert.is((await store.open(key("b"), { blockSize: 4 })).state, "pending");
  const zero = await store.open(key("c", "x"), { blockSize: 0 }).then(() => undefined, (e) => e);
  assert.ok(zero instanceof BatonError && zero.code === "bad_request");
});

test("a block size that no index can have is refused at once, and leaves nothing behind", async () => {
  for (const blockSize of [0, 1.5, 16_385, 2 ** 31]) {
    assert.throws(() => store.checkBlockSize(key("a"), blockSize), /from 1 to 16384/);
    const refused = await store.open(key("a"), { blockSize }).then(() => undefined, (e) => e);
    assert.ok(refused instanceof BatonError && refused.code === "bad_request");
  }
  assert.is(store.blockSize(key("a")), 0);
  await store.open(key("a"), { blockSize: 16_384 });
  assert.is(store.blockSize(key("a")), 16_384);
});

test("a lane that is closed while it opens never comes to be", async () => {
  const opening = store.open(key("a"), SIZE).then(() => "opened", () => "refused");
  assert.ok(store.close(key("a")));
  assert.is(await opening, "refused");
  assert.equal(store.lanes(), []);
  assert.is(store.partition("m", "default"), undefined);
  const again = await store.open(key("a"), SIZE);
  assert.equal(store.lanes(), [again]);
});

test("the last lane takes its partition with it; names with ':' do not mix", async () => {
  await store.open({ ...key("a"), model: "x:y", group: "z" }, SIZE);
  await store.open({ ...key("a"), model: "x", group: "y:z" }, SIZE);
  assert.is(store.partitions().length, 2);
  store.close({ ...key("a"), model: "x", group: "y:z" });
  assert.equal(store.partitions().map(({ model, group }) => [model, group]), [["x:y", "z"]]);
  assert.is(store.blockSize({ model: "x:y", group: "z" }), 2);
  assert.is(store.blockSize({ model: "x", group: "y:z" }), 0);
});

test("a closed lane is remembered for a minute, or until its owner opens it", async () => {
  await store.open(key("a"), SIZE);
  await store.open(key("b"), SIZE);
  store.close(key("a"));
  store.close(key("b"));
  assert.ok(store.wasClosed(key("a")));
  await store.open(key("b"), SIZE);
  assert.not(store.wasClosed(key("b")));
  await clock.advance(60_001);
  assert.not(store.wasClosed(key("a")));
  assert.not(store.close(key("a")));
});

test("a hold of all holds those to come, and its end lets them go", async () => {
  const early = await store.open(key("a"), SIZE);
  store.holdAll({ maxBatches: 10, maxBytes: 1000 });
  const late = await store.open(key("b"), SIZE);
  for (const lane of [early, late]) lane.receive(batch(0, stored([1])));
  await calm();
  assert.equal([early, late].map((lane) => lane.state), ["buffering", "buffering"]);
  store.releaseAll();
  await calm();
  assert.equal([early, late].map((lane) => lane.blocks), [1, 1]);
  assert.not((await store.open(key("c"), SIZE)).isHeld);
});

test("a held lane without a subscription has nothing to prove: recovery does not wait for its posts", async () => {
  store.holdAll({ maxBatches: 10, maxBytes: 1000 });
  const lane = await store.open(key("a"), SIZE);
  assert.is(lane.state, "buffering");
  assert.not(lane.isProven);
  lane.attach({ replay: undefined });
  assert.is(lane.state, "subscribing");
  store.releaseAll();
});

test("changes are told in a turn of their own", async () => {
  const told: string[] = [];
  const stop = store.onChange((change) => {
    told.push(change.kind === "state" ? `${change.from}>${change.to}` : change.kind);
  });
  const lane = await store.open(key("a"), SIZE);
  lane.receive(batch(0));
  assert.not(told.includes("pending>live"));
  await calm();
  store.close(key("a"));
  await calm();
  assert.equal(told, ["opened", "pending>live", "closed"]);
  stop();
  await store.open(key("a"), SIZE);
  await calm();
  assert.is(told.length, 3);
});

test("gauges count lanes by state and blocks by partition", async () => {
  const lane = await store.open(key("a"), SIZE);
  await store.open(key("b"), SIZE);
  lane.receive(batch(0, stored([1, 2, 3])));
  const text = await metrics.text();
  assert.match(text, /baton_kv_lanes\{state="live"\} 1/);
  assert.match(text, /baton_kv_lanes\{state="pending"\} 1/);
  assert.match(text, /baton_kv_blocks\{model="m",group="default"\} 3/);
  store.closeAll();
  assert.not.match(await metrics.text(), /baton_kv_lanes\{/);
});

test("work beyond a turn's budget waits for the next turn; urgent work goes first", () => {
  let time = 0;
  const timers: (() => void)[] = [];
  const slow = {
    now: () => time,
    monotonic: () => time,
    after: (_delayMs: number, action: () => void) => {
      timers.push(action);
      return () => {};
    },
  };
  const slices = new Slices({ clock: slow, budgetMs: 4 });
  const done: string[] = [];
  const work = (name: string, steps: number) => ({
    step: () => {
      done.push(name);
      time += 1;
      return --steps > 0;
    },
  });
  slices.submit(work("other", 6), "other");
  assert.is(done.length, 4);
  slices.submit(work("urgent", 1), "urgent");
  assert.is(done.length, 4);
  timers.shift()?.();
  assert.equal(done.slice(4), ["urgent", "other", "other"]);
});

test.run();
