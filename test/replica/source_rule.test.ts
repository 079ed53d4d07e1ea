/** Who is asked, what counts as an answer, and when it is enough: requirements R3, R6 and R7. */

import { test } from "uvu";
import * as assert from "uvu/assert";
import { dumpOf, Loop, ndjson, notRecovered, status } from "./support/loop.ts";
import { emptyCut, keyOf, makeCut } from "./support/shelf.ts";

const CUT = makeCut(keyOf("0"), 100);
const LATER_TWO = [makeCut(keyOf("0"), 100, { cursor: 50n }), makeCut(keyOf("1"), 50)];
const EMPTY_TWO = [emptyCut(keyOf("0")), emptyCut(keyOf("1"))];

function laneOf(loop: Loop) {
  const lane = loop.store.lane(keyOf("0"));
  if (lane === undefined) throw new Error("no lane");
  return lane;
}

test("R3: events are held back from the start on, before anything is listed", async () => {
  let listed = (): void => {};
  const workersListed = new Promise<void>((resolve) => (listed = resolve));
  const loop = new Loop({ workersListed });
  loop.members("a");
  loop.answer("a", dumpOf([CUT]));
  loop.start();
  await loop.pass(10);
  assert.is(laneOf(loop).state, "buffering");
  assert.equal(loop.names, [], "R7: nobody is asked before workers are listed");
  assert.is(loop.recovery.status().state, "listing");
  listed();
  assert.is(await loop.run(), "recovered");
});

test("R7: what cannot be listed is not taken for empty: only the budget ends the wait, by policy", async () => {
  const never = new Promise<void>(() => {});
  for (const what of [{ workersListed: never }, { discovery: { start: () => never } }]) {
    const degraded = new Loop({ ...what, config: { recoveryBudgetMs: 7000 } });
    degraded.start();
    assert.is(await degraded.run(), "degraded");
    assert.is(degraded.clock.monotonic(), 7000);
    assert.equal(degraded.names, []);
    const config = { recoveryBudgetMs: 7000, onRecoveryFailure: "stay-unready" };
    const stuck = new Loop({ ...what, config });
    stuck.start();
    await stuck.pass(60_000);
    assert.is(await stuck.gauge(), "stuck");
    assert.is(stuck.conditions.some(({ ok }) => ok), false);
    stuck.recovery.stop();
    await stuck.run();
  }
});

test("R6: joiners that come together do not herd on one source", async () => {
  const firsts = new Map<string, number>();
  for (let seed = 1; seed <= 60; seed += 1) {
    const loop = new Loop({ seed });
    loop.members("a", "b", "c");
    for (const name of ["a", "b", "c"]) loop.answer(name, dumpOf([CUT]));
    loop.start();
    assert.is(await loop.run(), "recovered");
    assert.is(loop.names.length, 1, "and one of them is enough");
    firsts.set(loop.names[0] ?? "", (firsts.get(loop.names[0] ?? "") ?? 0) + 1);
  }
  assert.is(firsts.size, 3);
  for (const [name, count] of firsts) assert.ok(count >= 10, `${name} was first ${count} times`);
});

test("R6: the order is drawn anew for each cycle, and each candidate is asked once in it", async () => {
  const orders = new Set<string>();
  const loop = new Loop({ config: { recoveryBudgetMs: 400_000 } });
  loop.members("a", "b", "c");
  for (const name of ["a", "b", "c"]) loop.answer(name, status(500));
  loop.start();
  await loop.pass(300_000);
  assert.ok(loop.names.length >= 24);
  for (let at = 0; at + 3 <= loop.names.length; at += 3) {
    const cycle = loop.names.slice(at, at + 3);
    assert.equal([...cycle].sort(), ["a", "b", "c"]);
    orders.add(cycle.join());
  }
  assert.ok(orders.size > 1);
  loop.recovery.stop();
  await loop.run();
});

test("R6: those that were turned away together do not come back together", async () => {
  const moments = new Set<number>();
  for (let seed = 1; seed <= 20; seed += 1) {
    const loop = new Loop({ seed });
    loop.members("a");
    loop.answer("a", status(500));
    loop.start();
    await loop.pass(1001);
    moments.add(Math.round((loop.asked[1]?.atMs ?? 0) / 10));
    loop.recovery.stop();
    await loop.run();
  }
  const all = [...moments];
  assert.ok(moments.size >= 10, `${moments.size} moments`);
  assert.ok(Math.min(...all) >= 75 && Math.max(...all) <= 100, "within a quarter of the pause");
});

test("R6: a peer that is listed as serving and refuses connections proves nothing about the index", async () => {
  const loop = new Loop({ config: { recoveryBudgetMs: 20_000 } });
  loop.members("a");
  loop.start();
  assert.is(await loop.run(), "degraded", "no empty cluster: its index may be there");
  assert.is(loop.clock.monotonic(), 20_000);
  assert.ok(loop.names.length >= 4);
});

test("R4: a snapshot that did not join is not tried again, only one that goes further or is of another run", async () => {
  const loop = new Loop({ config: { recoveryBudgetMs: 100_000 } });
  loop.members("a");
  let tried = 0;
  const lane = laneOf(loop);
  lane.onCommit = () => {
    tried += 1;
    if (tried < 3) throw Object.assign(new Error("a hole"), { name: "LaneGap" });
  };
  let cut = CUT;
  loop.answer("a", (request) => dumpOf([cut])(request));
  loop.start();
  await loop.pass(20_000);
  assert.ok(loop.names.length > 3);
  assert.is(tried, 1, "the same one each time");
  cut = makeCut(keyOf("0"), 100, { cursor: 40n });
  await loop.pass(20_000);
  assert.is(tried, 1, "an older one");
  cut = makeCut(keyOf("0"), 100, { cursor: 3n, epoch: "another" });
  await loop.pass(20_000);
  assert.is(tried, 2, "numbers of different runs are not compared");
  cut = makeCut(keyOf("0"), 100, { cursor: 4n, epoch: "another" });
  assert.is(await loop.run(), "recovered");
  assert.is(tried, 3);
});

test("R7: readiness waits for replays that are under way, though not for ever", async () => {
  for (const isSlow of [false, true]) {
    const loop = new Loop();
    loop.members("a");
    loop.answer("a", dumpOf([]));
    const lane = laneOf(loop);
    // Nobody has the lane, so it asks its worker's ring.
    lane.release = () => void (lane.state = "replaying");
    loop.start();
    await loop.pass(2000);
    assert.is(loop.ended, undefined);
    assert.is(loop.recovery.recovered, false);
    if (!isSlow) {
      lane.state = "live";
      loop.store.changed();
    }
    assert.is(await loop.run(), "recovered");
    assert.is(loop.clock.monotonic(), isSlow ? 5000 : 2000);
  }
});

test("R6: only those that have more than we are waited for", async () => {
  // One has no index and waits for nobody, the other one is getting it.
  let hasSource = true;
  const loop = new Loop();
  loop.members("equal", "ahead");
  loop.answer("equal", notRecovered({ hasSource: false }));
  loop.answer("ahead", (request) => notRecovered({ hasSource })(request));
  loop.start();
  await loop.pass(20_000);
  assert.is(loop.ended, undefined);
  hasSource = false;
  assert.is(await loop.run(), "empty_bootstrap");
});

test("hints are taken from the first whole dump alone, not from one that breaks off", async () => {
  const taken: (readonly unknown[])[] = [];
  const loop = new Loop({ lanes: EMPTY_TWO, importLoad: (records) => taken.push(records) });
  loop.members("a");
  let asked = 0;
  // The first lane needs another snapshot, so that a third dump is asked for.
  laneOf(loop).onCommit = () => {
    if (asked === 2) throw Object.assign(new Error("a hole"), { name: "LaneGap" });
  };
  loop.answer("a", async (request) => {
    asked += 1;
    const whole = await dumpOf(asked === 3 ? LATER_TWO : [CUT], { load: [asked] })(request);
    if (asked > 1) return whole;
    const text = await whole.text();
    const [, kept = ""] = /^([^]*)\{"kind":"trailer"/.exec(text) ?? [];
    // Of the broken one the hints came, and no lane.
    const lines = kept.split("\n").filter((line) => !/"kind":"(lane|run|lane_end)"/.test(line));
    return ndjson(new TextEncoder().encode(lines.join("\n")));
  });
  loop.start();
  assert.is(await loop.run(), "recovered");
  assert.is(asked, 3);
  assert.equal(taken, [[2]]);
});

test.run();
