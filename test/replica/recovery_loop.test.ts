/** Which peer is asked when, and when it ends: cases of the conformance list by their numbers. */

import { test } from "uvu";
import * as assert from "uvu/assert";
import { REPLICA_HEADER } from "../../src/replica/dump_handler.ts";
import {
  type Answer,
  cutDump,
  dumpOf,
  gate,
  Loop,
  ndjson,
  notRecovered,
  settle,
  status,
} from "./support/loop.ts";
import { emptyCut, keyOf, makeCut } from "./support/shelf.ts";

const CUT = makeCut(keyOf("0"), 100);
const TWO = [makeCut(keyOf("0"), 100), makeCut(keyOf("1"), 50)];
const EMPTY_TWO = [emptyCut(keyOf("0")), emptyCut(keyOf("1"))];

test("kv 9: no peers: returns at once, empty", async () => {
  const loop = new Loop();
  loop.start();
  assert.is(await loop.run(), "empty_bootstrap");
  assert.is(loop.clock.monotonic(), 0);
  assert.equal(loop.names, []);
  assert.is(await loop.gauge(), "empty_bootstrap");
});

test("kv 10: one serving peer with an empty dump: recovered", async () => {
  const loop = new Loop();
  loop.members("a");
  loop.answer("a", dumpOf([]));
  loop.start();
  assert.is(await loop.run(), "recovered");
  assert.equal(loop.names, ["a"]);
  const dynamo = new Loop();
  dynamo.members("a");
  dynamo.answer("a", () => new Response("{}", { headers: { "content-type": "application/json" } }));
  dynamo.start();
  assert.is(await dynamo.run(), "recovered");
});

test("kv 11: a peer that answers 503 once is asked again after the back-off, exactly twice", async () => {
  const loop = new Loop();
  loop.members("a");
  let asked = 0;
  loop.answer("a", (request) => asked++ === 0 ? status(503)(request) : dumpOf([CUT])(request));
  loop.start();
  assert.is(await loop.run(), "recovered");
  assert.is(asked, 2);
  const waited = (loop.asked[1]?.atMs ?? 0) - (loop.asked[0]?.atMs ?? 0);
  assert.ok(waited >= 750 && waited <= 1000, `${waited} ms`);
});

test("kv 12: an update without a change of candidates cancels nothing", async () => {
  const loop = new Loop();
  loop.members("a");
  const held = gate(dumpOf([CUT]));
  loop.answer("a", held.answer);
  loop.start();
  await loop.pass(10);
  loop.churn();
  loop.churn();
  await loop.pass(10);
  held.open();
  assert.is(await loop.run(), "recovered");
  assert.is(held.asked(), 1);
});

test("kv 13: churn while a failed cycle waits does not bring the next one forward", async () => {
  const loop = new Loop();
  loop.members("a");
  loop.answer("a", status(503));
  loop.start();
  await loop.pass(30);
  loop.churn();
  await loop.pass(600);
  loop.churn();
  await loop.pass(100);
  assert.is(loop.asked.length, 1);
  loop.answer("a", dumpOf([CUT]));
  assert.is(await loop.run(), "recovered");
  assert.is(loop.asked.length, 2);
});

test("kv 14: a peer that joins meanwhile is tried next when the running one fails", async () => {
  const loop = new Loop();
  loop.members("a");
  const held = gate(dumpOf([CUT]));
  loop.answer("a", held.answer);
  loop.answer("b", dumpOf([CUT]));
  loop.start();
  await loop.pass(10);
  loop.members("a", "b");
  await loop.pass(10);
  assert.equal(loop.names, ["a"]);
  held.fail();
  assert.is(await loop.run(), "recovered");
  assert.equal(loop.names, ["a", "b"]);
});

test("kv 15: a peer that leaves before its turn is never tried", async () => {
  for (let seed = 1; seed < 20; seed += 1) {
    const loop = new Loop({ seed });
    loop.members("a", "b");
    const held = gate(status(503));
    loop.answer("a", held.answer);
    loop.answer("b", held.answer);
    loop.start();
    await loop.pass(10);
    const [first] = loop.names as ["a" | "b"];
    loop.members(first);
    held.open();
    await loop.pass(10);
    assert.equal(loop.names, [first]);
    loop.recovery.stop();
    await loop.run();
  }
});

test("kv 16: a peer that leaves the listing in the middle may still finish", async () => {
  const loop = new Loop();
  loop.members("a");
  const held = gate(dumpOf([CUT]));
  loop.answer("a", held.answer);
  loop.start();
  await loop.pass(10);
  loop.members();
  await loop.pass(10);
  held.open();
  assert.is(await loop.run(), "recovered");
  assert.is(held.asked(), 1);
});

test("kv 18, 19, 20: not ready, not serving or terminating peers are members and never asked", async () => {
  const loop = new Loop();
  loop.members("ready", { name: "notready", serving: false }, {
    name: "leaving",
    terminating: true,
  });
  loop.answer("ready", dumpOf([CUT]));
  loop.start();
  assert.is(await loop.run(), "recovered");
  assert.is(loop.peers.current.length, 3);
  assert.equal(loop.names, ["ready"]);
});

test("kv 23: without peers in the configuration it is ready at once, and says that recovery is off", async () => {
  const loop = new Loop({ config: { peers: [] } });
  loop.start();
  assert.is(await loop.run(), "recovery_disabled");
  assert.is(await loop.gauge(), "recovery_disabled");
  assert.is(loop.store.lanes()[0]?.calls.includes("hold"), false);
});

test("kv 26: stopped during an attempt or a pause: fails, and is never ready", async () => {
  for (const isPausing of [false, true]) {
    const loop = new Loop();
    loop.members("a");
    loop.answer("a", isPausing ? status(503) : gate(dumpOf([CUT])).answer);
    loop.start();
    await loop.pass(100);
    loop.recovery.stop();
    assert.match(await loop.run(), /failed: RecoveryStopped/);
    assert.is(loop.recovery.recovered, false);
    assert.is(loop.conditions.some(({ ok }) => ok), false);
    assert.equal(loop.log.filter(({ level }) => level === "error"), [], "nothing has gone wrong");
    assert.is(loop.log.filter(({ event }) => event === "recovery_stopped").length, 1);
  }
});

test("kv 27, 30: when peers can never be listed, the start fails with the reason", async () => {
  const missing = new Error('there is no Service "peers"');
  const loop = new Loop({ discovery: { start: () => Promise.reject(missing) } });
  loop.start();
  assert.match(await loop.run(), /there is no Service "peers"/);
  assert.is(await loop.gauge(), "failed");
  assert.is(loop.conditions.at(-1)?.ok, false);
});

test("kv 28: a real change of candidates during the pause means to try at once, from the first pause", async () => {
  const loop = new Loop();
  loop.members("a");
  loop.answer("a", status(503));
  loop.answer("b", status(503));
  loop.start();
  await loop.pass(8000);
  const before = loop.asked.length;
  loop.members("a", "b");
  await loop.pass(5);
  assert.is(loop.asked.length, before + 2, "both are tried at once");
  await loop.pass(1010);
  assert.is(loop.asked.length, before + 4, "and again after the first pause");
  loop.recovery.stop();
  await loop.run();
});

test("kv 29: pauses double from 1 s to 30 s, with jitter that only shortens them", async () => {
  const loop = new Loop({ config: { recoveryBudgetMs: 1_000_000, recoveryMaxMs: 1_000_000 } });
  loop.members("a");
  loop.answer("a", status(500));
  loop.start();
  await loop.pass(150_000);
  const gaps = loop.asked.slice(1).map(({ atMs }, at) => atMs - (loop.asked[at]?.atMs ?? 0));
  for (const [at, gap] of gaps.entries()) {
    const full = Math.min(1000 * 2 ** at, 30_000);
    assert.ok(gap <= full && gap >= full * 0.75, `pause ${at}: ${gap} of ${full}`);
  }
  assert.ok(gaps.length >= 7);
  loop.recovery.stop();
  await loop.run();
});

test("kv 40: no peer of a list can be reached: warned, and started empty", async () => {
  const loop = new Loop();
  loop.members({ name: "a", serving: undefined as never }, {
    name: "b",
    serving: undefined as never,
  });
  loop.start();
  assert.is(await loop.run(), "empty_bootstrap");
  assert.ok(loop.clock.monotonic() < 2000);
  const last = loop.log.at(-1);
  assert.is(last?.level, "warn");
  assert.is(last?.state, "empty_bootstrap");
});

test("kv 41: two cold replicas at once both get ready", async () => {
  // Each is the other's only peer, and neither has an index.
  const a = new Loop({ replica: "a" });
  const b = new Loop({ replica: "b", seed: 2 });
  const answer = (other: Loop) =>
    other.recovery.recovered
      ? dumpOf([])
      : notRecovered({ hasSource: other.recovery.hasSource, replica: "other" });
  a.members("b");
  b.members("a");
  a.answer("b", (request) => answer(b)(request));
  b.answer("a", (request) => answer(a)(request));
  a.start();
  b.start();
  for (let turn = 0; turn < 100; turn += 1) {
    await a.pass(50);
    await b.pass(50);
  }
  assert.ok(a.recovery.recovered && b.recovery.recovered);
});

test("a peer that is itself recovering from a source is waited for", async () => {
  const loop = new Loop();
  loop.members("a");
  let isRecovered = false;
  loop.answer(
    "a",
    (request) => isRecovered ? dumpOf([CUT])(request) : notRecovered({ hasSource: true })(request),
  );
  loop.start();
  await loop.pass(20_000);
  assert.is(loop.ended, undefined);
  isRecovered = true;
  assert.is(await loop.run(), "recovered");
});

test("kv 54: a worker that comes after the beginning starts cold and does not hold up readiness", async () => {
  const loop = new Loop();
  loop.members("a");
  const held = gate(dumpOf([CUT]));
  loop.answer("a", held.answer);
  loop.start();
  await loop.pass(10);
  const late = loop.store.add(emptyCut(keyOf("late")));
  held.open();
  assert.is(await loop.run(), "recovered");
  assert.is(late.commits.length, 0);
  assert.is(loop.recovery.status().laneReports.length, 1);
});

test("a worker that leaves meanwhile is not waited for", async () => {
  const loop = new Loop({ lanes: EMPTY_TWO });
  loop.members("a");
  loop.answer("a", gate(dumpOf(TWO)).answer);
  loop.start();
  await loop.pass(10);
  loop.store.close(keyOf("1"));
  loop.answer("a", dumpOf([CUT]));
  loop.members("a", "b");
  loop.answer("b", dumpOf([CUT]));
  loop.recovery.stop();
  await loop.run();
  const again = new Loop({ lanes: EMPTY_TWO });
  again.members("a");
  const held = gate(dumpOf([CUT]));
  again.answer("a", held.answer);
  again.start();
  await again.pass(10);
  again.store.close(keyOf("1"));
  held.open();
  assert.is(await again.run(), "recovered");
  assert.is(again.recovery.status().lanes.gone, 1);
});

test("kv 53: lanes that we do not know are not taken", async () => {
  const loop = new Loop();
  loop.members("a");
  loop.answer("a", dumpOf([CUT, makeCut(keyOf("stranger"), 10)]));
  loop.start();
  assert.is(await loop.run(), "recovered");
  assert.equal(loop.store.lanes().map((lane) => lane.key.worker), ["0"]);
});

test("kv 56: another block size: the partition is refused, reported, and starts degraded", async () => {
  const loop = new Loop();
  loop.members("a");
  loop.answer("a", dumpOf([CUT], { size: 32 }));
  loop.start();
  assert.is(await loop.run(), "degraded");
  assert.is(loop.store.lane(keyOf("0"))?.commits.length, 0);
  const report = loop.recovery.status().laneReports[0];
  assert.is(report?.outcome, "degraded");
  assert.match(report?.reason ?? "", /block size 32 at http:\/\/a:8082, 16 here/);
  assert.ok(loop.log.some(({ event }) => event === "recovery_block_size_mismatch"));
});

test("kv 56: a peer with another block size that leaves again was no empty cluster, and the reason says so", async () => {
  const loop = new Loop();
  loop.members("a");
  const other = makeCut(keyOf("1"), 10);
  // Half a dump: the lane of another block size, then nothing more, and the peer is gone.
  loop.answer("a", async (request) => {
    const whole = await (await dumpOf([CUT, other], { size: 32 })(request)).text();
    return ndjson(new TextEncoder().encode(whole.slice(0, whole.indexOf(`{"kind":"trailer"`))));
  });
  loop.start();
  await loop.pass(10);
  assert.is(loop.ended, undefined);
  loop.members();
  assert.is(await loop.run(), "degraded");
  const { reason, laneReports } = loop.recovery.status();
  assert.match(reason, /^1 lane is degraded: no peer is a candidate any more; block size 32 at /);
  assert.is(laneReports[0]?.outcome, "degraded");
  assert.is(await loop.gauge(), "degraded");
});

test("kv 48: a lane whose snapshot could not be joined is degraded, not cold, when its peer leaves", async () => {
  const loop = new Loop();
  loop.members("a");
  loop.answer("a", dumpOf([CUT]));
  const lane = loop.store.lane(keyOf("0"));
  if (lane === undefined) throw new Error("no lane");
  lane.onCommit = () => {
    throw Object.assign(new Error("batches 42 to 50 cannot be had"), { name: "LaneGap" });
  };
  loop.start();
  await loop.pass(10);
  loop.members();
  assert.is(await loop.run(), "degraded");
  assert.match(loop.recovery.status().reason, /batches 42 to 50 cannot be had/);
});

test("workers that all left while a peer was asked leave nothing that is degraded", async () => {
  const loop = new Loop({ lanes: EMPTY_TWO });
  loop.members("a");
  loop.answer("a", async (request) => {
    const whole = await (await dumpOf(TWO)(request)).text();
    return ndjson(
      new TextEncoder().encode(
        whole.slice(0, whole.indexOf(`{"kind":"lane"`, whole.indexOf("lane_end"))),
      ),
    );
  });
  loop.start();
  await loop.pass(10);
  assert.is(loop.recovery.status().lanes.restored, 1);
  loop.store.close(keyOf("1"));
  loop.members();
  assert.is(await loop.run(), "recovered");
  assert.is(loop.recovery.status().lanes.gone, 1);
});

test("kv 60: permanently 503: after the budget the policy applies and the gauge shows it", async () => {
  const start = new Loop({ config: { recoveryBudgetMs: 30_000 } });
  start.members("a");
  start.answer("a", status(503));
  start.start();
  assert.is(await start.run(), "degraded");
  assert.is(start.clock.monotonic(), 30_000);
  assert.is(await start.gauge(), "degraded");
  assert.is(start.conditions.at(-1)?.ok, true);

  const stay = new Loop({
    config: { recoveryBudgetMs: 30_000, onRecoveryFailure: "stay-unready" },
  });
  stay.members("a");
  stay.answer("a", status(503));
  stay.start();
  await stay.pass(60_000);
  assert.is(await stay.gauge(), "stuck");
  assert.is(stay.conditions.at(-1)?.ok, false);
  assert.is(stay.recovery.recovered, false);
  // It is stuck and not dead: a peer that comes back still helps.
  stay.answer("a", dumpOf([CUT]));
  assert.is(await stay.run(), "recovered");
  assert.is(stay.conditions.at(-1)?.ok, true);
});

test("the budget counts from the last lane that was restored, and there is an end to all", async () => {
  const cuts = Array.from({ length: 5 }, (_, at) => makeCut(keyOf(String(at)), 10));
  const lanes = cuts.map((cut) => emptyCut(cut.key));
  // One lane more with each answer, 8 s apart.
  const stepwise = (loop: Loop) => {
    let asked = 0;
    loop.answer("a", async (request) => {
      asked += 1;
      await new Promise<void>((resolve) => loop.clock.after(6000, resolve));
      const whole = await dumpOf(cuts.slice(0, asked))(request);
      const bytes = new Uint8Array(await whole.arrayBuffer());
      return ndjson(bytes.slice(0, -10));
    });
  };
  const patient = new Loop({ lanes, config: { recoveryBudgetMs: 20_000, idleTimeoutMs: 9000 } });
  patient.members("a");
  stepwise(patient);
  patient.start();
  assert.is(await patient.run(), "recovered");
  assert.ok(patient.clock.monotonic() > 40_000);
  const bounded = new Loop({
    lanes,
    config: { recoveryBudgetMs: 50_000, recoveryMaxMs: 20_000, idleTimeoutMs: 9000 },
  });
  bounded.members("a");
  stepwise(bounded);
  bounded.start();
  assert.is(await bounded.run(), "degraded");
  assert.is(bounded.clock.monotonic(), 20_000);
  assert.ok(bounded.recovery.status().lanes.restored > 0);
});

test("kv 43: a dump that breaks off: whole lanes stay, the rest comes from the next peer", async () => {
  for (const seed of [1, 2, 3, 4]) {
    const loop = new Loop({ lanes: EMPTY_TWO, seed });
    loop.members("a", "b");
    const names: string[] = [];
    // The first one, whichever it is, breaks off after its first lane; the filter asks for the rest.
    const answer = (name: string) => async (request: Request) => {
      names.push(name);
      return names.length === 1 ? await cutDump(TWO, 3300)(request) : await dumpOf(TWO)(request);
    };
    loop.answer("a", answer("a"));
    loop.answer("b", answer("b"));
    loop.start();
    assert.is(await loop.run(), "recovered");
    assert.is(names.length, 2);
    for (const lane of loop.store.lanes()) assert.is(lane.commits.length, 1);
    const sources = loop.recovery.status().laneReports.map(({ source }) => source);
    assert.equal(sources, names.map((name) => `http://${name}:8082`));
    const filter = new URL(loop.asked[1]?.request.url ?? "").searchParams.getAll("lane");
    assert.equal(filter, [`["model","default","1",0]`]);
  }
});

test("a dump without its trailer has failed, though its lanes stay", async () => {
  const loop = new Loop({ lanes: EMPTY_TWO });
  loop.members("a");
  let asked = 0;
  loop.answer("a", async (request) => {
    const whole = new Uint8Array(await (await dumpOf([CUT])(request)).arrayBuffer());
    const end = new TextDecoder().decode(whole).indexOf(`{"kind":"trailer"`);
    return asked++ === 0 ? ndjson(whole.slice(0, end)) : await dumpOf(TWO)(request);
  });
  loop.start();
  assert.is(await loop.run(), "recovered");
  const [first, second] = loop.recovery.status().attempts;
  assert.is(first?.outcome, "failed");
  assert.match(first?.reason ?? "", /before its trailer/);
  assert.is(first?.lanes, 1);
  assert.is(second?.outcome, "complete");
});

test("kv 48: a snapshot that the ring cannot join: another one, and after three the lane is given up", async () => {
  const gap = (): never => {
    throw Object.assign(new Error("batches 42 to 50 cannot be had"), { name: "LaneGap" });
  };
  const loop = new Loop();
  loop.members("a", "b");
  // a's snapshot is too old, b's is newer.
  loop.answer("a", dumpOf([CUT]));
  loop.answer("b", dumpOf([makeCut(keyOf("0"), 100, { cursor: 60n })]));
  const lane = loop.store.lane(keyOf("0"));
  if (lane === undefined) throw new Error("no lane");
  lane.onCommit = (cut) => cut.cursor === 41n ? gap() : undefined;
  loop.start();
  assert.is(await loop.run(), "recovered");
  assert.is(lane.cursor, 60n);

  const never = new Loop();
  never.members("a");
  let cursor = 41n;
  never.answer("a", (request) => dumpOf([makeCut(keyOf("0"), 100, { cursor: cursor++ })])(request));
  const unlucky = never.store.lane(keyOf("0"));
  if (unlucky === undefined) throw new Error("no lane");
  unlucky.onCommit = gap;
  never.start();
  assert.is(await never.run(), "degraded");
  assert.is(never.asked.length, 3);
  assert.is(unlucky.commits.length, 0);
  assert.is(never.recovery.status().laneReports[0]?.outcome, "degraded");
});

test("a lane of a peer that lacks blocks itself is left to others as long as there are others", async () => {
  const poor = makeCut(keyOf("0"), 10, { degraded: "the replay ring starts at batch 7" });
  for (const seed of [1, 2, 3, 4]) {
    const loop = new Loop({ seed });
    loop.members("a", "b");
    loop.answer("a", dumpOf([poor]));
    loop.answer("b", dumpOf([CUT]));
    loop.start();
    assert.is(await loop.run(), "recovered");
    assert.is(loop.store.lane(keyOf("0"))?.blocks, 100);
    assert.is(loop.recovery.status().lanes.restored, 1);
  }
  const alone = new Loop();
  alone.members("a");
  alone.answer("a", dumpOf([poor]));
  alone.start();
  assert.is(await alone.run(), "recovered");
  assert.is(alone.store.lane(keyOf("0"))?.content.degraded, "the replay ring starts at batch 7");
  assert.is(alone.recovery.status().lanes.partial, 1);
});

test("a lane that was left to others, of whom none has it whole, is taken after all", async () => {
  const poor = makeCut(keyOf("0"), 10, { degraded: "the replay ring starts at batch 7" });
  const us = new Response(null, { headers: { [REPLICA_HEADER]: "joiner" } });
  const others: [string, Answer | undefined][] = [
    ["has no such lane", dumpOf([])],
    ["is ourselves", () => us.clone()],
    ["is not there", undefined],
    ["fails", status(500)],
  ];
  for (const [what, answer] of others) {
    let wasLeft = false;
    for (const seed of [1, 2, 7, 8]) {
      const loop = new Loop({ seed });
      loop.members("a", { name: "b", serving: undefined });
      loop.answer("a", dumpOf([poor]));
      if (answer !== undefined) loop.answer("b", answer);
      loop.start();
      assert.is(await loop.run(), "recovered", what);
      assert.is(loop.recovery.status().lanes.partial, 1, what);
      assert.is(loop.store.lane(keyOf("0"))?.blocks, 10);
      wasLeft ||= loop.names[0] === "a";
    }
    assert.ok(wasLeft, "it was asked before the other one");
  }
  // It is gone when it is asked again: what it had is not taken for what nobody had.
  const lost = new Loop({ seed: 1 });
  lost.members("a", { name: "b", serving: undefined });
  lost.answer("a", (request) => {
    lost.answers.delete("http://a:8082");
    return dumpOf([poor])(request);
  });
  lost.answer("b", dumpOf([]));
  lost.start();
  assert.is(await lost.run(), "degraded");
  assert.is(lost.recovery.status().lanes.degraded, 1);
  // Who may have all of it before long is waited for.
  for (const seed of [1, 2, 7, 8]) {
    const soon = new Loop({ seed });
    soon.members("a", "b");
    soon.answer("a", dumpOf([poor]));
    let asked = 0;
    soon.answer("b", (request) => asked++ === 0 ? status(503)(request) : dumpOf([CUT])(request));
    soon.start();
    assert.is(await soon.run(), "recovered");
    if (soon.names[0] === "a") assert.is(soon.recovery.status().lanes.restored, 1);
  }
});

test("a lane with more blocks than may be taken is degraded, not one that nobody has", async () => {
  const loop = new Loop({ lanes: EMPTY_TWO, config: { maxLaneBlocks: 99 } });
  loop.members("a");
  loop.answer("a", dumpOf(TWO));
  loop.start();
  assert.is(await loop.run(), "degraded");
  const [large, small] = loop.recovery.status().laneReports;
  assert.is(large?.outcome, "degraded");
  assert.match(large?.reason ?? "", /100 blocks at http:\/\/a:8082, more than maxLaneBlocks/);
  assert.is(small?.outcome, "restored");
});

test("Retry-After is honoured, and another peer is asked meanwhile", async () => {
  const loop = new Loop({ lanes: [emptyCut(keyOf("0"))] });
  loop.members("a");
  let asked = 0;
  loop.answer(
    "a",
    (request) =>
      asked++ === 0 ? status(503, { "retry-after": "7" })(request) : dumpOf([CUT])(request),
  );
  loop.start();
  assert.is(await loop.run(), "recovered");
  assert.is(loop.asked[1]?.atMs, 7000);
  const two = new Loop({ seed: 3 });
  two.members("a", "b");
  two.answer("a", status(503, { "retry-after": "7" }));
  two.answer("b", dumpOf([CUT]));
  two.start();
  assert.is(await two.run(), "recovered");
  assert.is(two.clock.monotonic(), 0);
});

test("a peer that asks for a long wait does not keep others from being asked again", async () => {
  const loop = new Loop({ seed: 3 });
  loop.members("a", "b");
  loop.answer("a", status(503, { "retry-after": "300" }));
  let asked = 0;
  loop.answer("b", (request) => asked++ < 2 ? status(500)(request) : dumpOf([CUT])(request));
  loop.start();
  assert.is(await loop.run(), "recovered");
  assert.ok(loop.clock.monotonic() < 5000);
  assert.is(loop.names.filter((name) => name === "a").length, 1);
});

test("we are never our own source, also when a list names us", async () => {
  const loop = new Loop({ replica: "me" });
  loop.members({ name: "me", serving: undefined as never });
  loop.answer("me", notRecovered({ replica: "me" }));
  loop.start();
  assert.is(await loop.run(), "empty_bootstrap");
  assert.is(loop.asked.length, 1);
  const [attempt] = loop.log.filter(({ event }) => event === "recovery_attempt");
  assert.is(attempt?.level, "info", "nothing to warn of");
});

test("a peer that drips is given up within the idle timeout, and the next one is asked", async () => {
  const loop = new Loop({ config: { idleTimeoutMs: 2000 } });
  loop.members("a");
  loop.answer("b", dumpOf([CUT]));
  loop.answer("a", () => {
    let first = true;
    return ndjson(
      new ReadableStream({
        async pull(controller) {
          if (!first) await new Promise<void>((resolve) => loop.clock.after(500, resolve));
          first = false;
          controller.enqueue(new TextEncoder().encode(" "));
        },
      }),
    );
  });
  loop.start();
  await loop.pass(100);
  loop.members("a", "b");
  assert.is(await loop.run(), "recovered");
  assert.ok(loop.clock.monotonic() < 5000);
  assert.match(loop.recovery.status().attempts[0]?.reason ?? "", /StreamStalled/);
});

test("a peer that sends for ever without restoring a lane has had its turn after half the budget", async () => {
  const loop = new Loop({ config: { recoveryBudgetMs: 20_000 } });
  loop.members("a");
  loop.answer("b", dumpOf([CUT]));
  const header = `{"kind":"header","format":"baton-dump","version":1,"replica":"r",` +
    `"hash":"xxh3-64","seed":"1337","created":"","lanes":1,"blocks":1}\n`;
  loop.answer("a", () => {
    let first = true;
    return ndjson(
      new ReadableStream({
        async pull(controller) {
          if (!first) await new Promise<void>((resolve) => loop.clock.after(50, resolve));
          const text = first ? header : `{"kind":"hint","text":"${"x".repeat(4000)}"}\n`;
          first = false;
          controller.enqueue(new TextEncoder().encode(text));
        },
      }),
    );
  });
  loop.start();
  await loop.pass(100);
  loop.members("a", "b");
  assert.is(await loop.run(), "recovered");
  const [attempt] = loop.recovery.status().attempts;
  assert.is(attempt?.outcome, "failed");
  assert.match(attempt?.reason ?? "", /no lane in 10000 ms/);
  const ms = loop.clock.monotonic();
  assert.ok(ms >= 10_000 && ms < 12_000, `${ms}`);
});

test("a peer that sends for ever after the last lane does not make its lanes degraded", async () => {
  const loop = new Loop({ config: { recoveryBudgetMs: 20_000 } });
  loop.members("a");
  loop.answer("a", async (request) => {
    const whole = await (await dumpOf([CUT])(request)).text();
    const lanes = whole.slice(0, whole.indexOf(`{"kind":"trailer"`));
    let text = lanes;
    return ndjson(
      new ReadableStream({
        async pull(controller) {
          if (text !== lanes) await new Promise<void>((resolve) => loop.clock.after(50, resolve));
          controller.enqueue(new TextEncoder().encode(text));
          text = `{"kind":"news","text":"${"x".repeat(4000)}"}\n`;
        },
      }),
    );
  });
  loop.start();
  assert.is(await loop.run(), "recovered");
  assert.is(loop.recovery.status().lanes.restored, 1);
  assert.ok(loop.clock.monotonic() < 12_000);
});

test("the log says how far it is as long as it lasts", async () => {
  const loop = new Loop({ config: { idleTimeoutMs: 60_000 } });
  loop.members("a");
  const held = gate(dumpOf([CUT]));
  loop.answer("a", held.answer);
  loop.start();
  await loop.pass(11_000);
  const told = loop.log.filter(({ event }) => event === "recovery_progress");
  assert.is(told.length, 2);
  assert.is(told[0]?.state, "fetching");
  assert.is((told[0]?.lanes as Record<string, number>).pending, 1);
  held.open();
  assert.is(await loop.run(), "recovered");
  await loop.pass(60_000);
  assert.is(loop.log.filter(({ event }) => event === "recovery_progress").length, 2);
});

test("load hints come along once, from the first whole dump", async () => {
  const taken: (readonly unknown[])[] = [];
  const loop = new Loop({ importLoad: (records) => taken.push(records) });
  loop.members("a");
  loop.answer("a", dumpOf([CUT], { load: [{ worker: "0", tokens: 7 }] }));
  loop.start();
  assert.is(await loop.run(), "recovered");
  assert.equal(taken, [[{ worker: "0", tokens: 7 }]]);
});

test("load hints that cannot be taken are no reason not to be ready", async () => {
  const loop = new Loop({
    importLoad: () => {
      throw new Error("what is this?");
    },
  });
  loop.members("a");
  loop.answer("a", dumpOf([CUT], { load: [1] }));
  loop.start();
  assert.is(await loop.run(), "recovered");
  assert.ok(loop.log.some(({ event }) => event === "recovery_load_refused"));
});

test("the token is read for each attempt, so a rotated one is taken", async () => {
  const tokens = ["old", "new"];
  const loop = new Loop({ readToken: () => Promise.resolve(tokens.shift() ?? "") });
  loop.members("a");
  loop.answer(
    "a",
    (request) =>
      request.headers.get("authorization") === "Bearer new"
        ? dumpOf([CUT])(request)
        : status(401)(request),
  );
  loop.start();
  assert.is(await loop.run(), "recovered");
  assert.is(loop.asked.length, 2);
});

test("progress can be seen while it goes on", async () => {
  const loop = new Loop({ lanes: EMPTY_TWO });
  loop.members("a");
  const whole = new Uint8Array(
    await (await dumpOf(TWO)(new Request("http://a:8082/dump"))).arrayBuffer(),
  );
  const half = new TextDecoder().decode(whole).indexOf(`{"kind":"lane"`, 600);
  let finish: () => void = () => {};
  loop.answer("a", () =>
    ndjson(
      new ReadableStream({
        start(controller) {
          controller.enqueue(whole.slice(0, half));
          finish = () => {
            controller.enqueue(whole.slice(half));
            controller.close();
          };
        },
      }),
    ));
  loop.start();
  await loop.pass(1000);
  const status = loop.recovery.status();
  assert.is(status.state, "fetching");
  assert.is(status.source, "http://a:8082");
  assert.is(status.lanes.restored, 1);
  assert.is(status.blocks, 100);
  assert.is(status.blocksPerS, 100);
  assert.is(status.etaMs, 500);
  assert.ok(loop.recovery.hasSource);
  finish();
  assert.is(await loop.run(), "recovered");
  assert.is(loop.recovery.hasSource, false);
  await settle();
  assert.equal(loop.events.map(({ kind }) => kind), [
    "recovery_started",
    "recovery_attempt",
    "recovery_finished",
  ]);
});

test("with no worker known yet one cycle is enough, whatever comes of it", async () => {
  const answered = new Loop({ lanes: [] });
  answered.members("a");
  answered.answer("a", dumpOf([CUT]));
  answered.start();
  assert.is(await answered.run(), "recovered");
  const silent = new Loop({ lanes: [] });
  silent.members("a");
  silent.answer("a", status(500));
  silent.start();
  assert.is(await silent.run(), "empty_bootstrap");
  assert.is(silent.clock.monotonic(), 0);
});

test.run();
