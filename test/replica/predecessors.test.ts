/** A generation that takes its index from the one before it, on the same machine. */

import { test } from "uvu";
import * as assert from "uvu/assert";
import { predecessorUrls } from "../../src/replica/predecessors.ts";
import { AttemptOrder } from "../../src/replica/attempt_order.ts";
import { cutDump, dumpOf, gate, Loop, notRecovered, settle, status } from "./support/loop.ts";
import { emptyCut, keyOf, makeCut } from "./support/shelf.ts";

const CUT = makeCut(keyOf("0"), 100);
const TWO = [makeCut(keyOf("0"), 100), makeCut(keyOf("1"), 50)];
const EMPTY_TWO = [emptyCut(keyOf("0")), emptyCut(keyOf("1"))];

const url = (name: string): string => `http://${name}:8082`;

test("a predecessor is called as our own listener is: by https where we have a certificate", () => {
  const predecessors = ["127.0.0.1:5002", "[::1]:5009"];
  const plain = ["http://127.0.0.1:5002", "http://[::1]:5009"];
  assert.equal(predecessorUrls({ predecessors, tls: undefined }), plain);
  // An authority alone is for calling others: our listener is plain then.
  assert.equal(predecessorUrls({ predecessors, tls: { ca: "ca.pem" } }), plain);
  const tls = { cert: "cert.pem", key: "key.pem" };
  assert.equal(predecessorUrls({ predecessors, tls })[0], "https://127.0.0.1:5002");
  assert.equal(predecessorUrls({ predecessors: undefined, tls }), []);
});

test("predecessors come first, in their order, whatever the draw; those that left do not", () => {
  for (const random of [() => 0, () => 0.5, () => 0.999]) {
    const order = new AttemptOrder(["c", "b", "a", "p2", "p1"], random, ["p1", "gone", "p2"]);
    assert.equal([order.take(() => true), order.take(() => true)], ["p1", "p2"]);
    assert.equal([...order.waiting].sort(), ["a", "b", "c"]);
  }
});

test("the first generation is ready at once and empty, and says so", async () => {
  const loop = new Loop({ predecessors: [], config: { peers: [], predecessors: [] } });
  loop.start();
  assert.is(await loop.run(), "empty_bootstrap");
  assert.is(loop.clock.monotonic(), 0);
  assert.is(loop.log.find((line) => line.event === "recovery_finished")?.level, "warn");
});

test("without a supervisor and without peers there is nothing to recover from, which is no news", async () => {
  const loop = new Loop({ config: { peers: [] } });
  loop.start();
  assert.is(await loop.run(), "recovery_disabled");
});

test("the predecessor is asked first, and with its index nobody else is asked", async () => {
  for (let seed = 1; seed <= 8; seed += 1) {
    const loop = new Loop({ seed, predecessors: [url("before")], lanes: EMPTY_TWO });
    loop.members("a", "b", "before", "c");
    for (const name of ["a", "b", "before", "c"]) loop.answer(name, dumpOf(TWO));
    loop.start();
    assert.is(await loop.run(), "recovered");
    assert.equal(loop.names, ["before"]);
  }
});

test("a predecessor's index needs no listing of the other peers, not even one that fails", async () => {
  for (const start of [() => new Promise<void>(() => {}), () => Promise.reject(new Error("no"))]) {
    const loop = new Loop({ predecessors: [url("before")], discovery: { start } });
    loop.members("before");
    loop.answer("before", dumpOf([CUT]));
    loop.start();
    assert.is(await loop.run(), "recovered");
    assert.is(loop.clock.monotonic(), 0);
  }
});

test("without its workers' listing it does not know what to ask for, and waits", async () => {
  let listed = (): void => {};
  const workersListed = new Promise<void>((resolve) => (listed = resolve));
  const loop = new Loop({ predecessors: [url("before")], workersListed });
  loop.members("before");
  loop.answer("before", dumpOf([CUT]));
  loop.start();
  await loop.pass(1000);
  assert.equal(loop.names, []);
  listed();
  assert.is(await loop.run(), "recovered");
});

test("a predecessor that breaks off: the rest comes from others, once they are listed", async () => {
  let listed = (): void => {};
  const listing = new Promise<void>((resolve) => (listed = resolve));
  const loop = new Loop({
    predecessors: [url("before")],
    lanes: EMPTY_TWO,
    discovery: { start: () => listing },
  });
  loop.members("before");
  const whole = new Uint8Array(await (await dumpOf(TWO)(new Request(url("x")))).arrayBuffer());
  loop.answer("before", cutDump(TWO, whole.length - 400));
  loop.answer("other", dumpOf(TWO));
  loop.start();
  await loop.pass(1000);
  assert.is(loop.recovery.status().lanes.restored, 1);
  // Who else there is is not known yet: that is no reason to begin without.
  assert.is(loop.recovery.recovered, false);
  loop.answers.delete(url("before"));
  loop.members("before", "other");
  listed();
  assert.is(await loop.run(), "recovered");
  assert.is(loop.recovery.status().lanes.restored, 2);
  assert.is(loop.names.at(-1), "other");
});

test("a predecessor that has crashed, and nobody else: empty after two rounds", async () => {
  const loop = new Loop({ predecessors: [url("before")], config: { peers: [] } });
  loop.members({ name: "before", serving: undefined });
  loop.start();
  assert.is(await loop.run(), "empty_bootstrap");
  assert.ok(loop.clock.monotonic() < 5000, `${loop.clock.monotonic()} ms`);
});

test("a predecessor that is recovering itself is no source, and nothing to wait for", async () => {
  const loop = new Loop({ predecessors: [url("before")], lanes: EMPTY_TWO });
  loop.members("before", "other");
  loop.answer("before", notRecovered());
  loop.answer("other", dumpOf(TWO));
  loop.start();
  assert.is(await loop.run(), "recovered");
  assert.equal(loop.names, ["before", "other"]);
});

test("one that drains is asked after the one that serves, and is good enough", async () => {
  const loop = new Loop({ predecessors: [url("serves"), url("drains")], lanes: EMPTY_TWO });
  loop.members("drains", "serves");
  loop.answer("serves", status(500));
  loop.answer("drains", dumpOf(TWO));
  loop.start();
  assert.is(await loop.run(), "recovered");
  assert.equal(loop.names, ["serves", "drains"]);
});

test("a predecessor that answers nothing has its turn only, and the others theirs", async () => {
  const loop = new Loop({
    predecessors: [url("before")],
    lanes: EMPTY_TWO,
    config: { idleTimeoutMs: 10_000 },
  });
  loop.members("before", "other");
  loop.answer("before", gate(dumpOf(TWO)).answer);
  loop.answer("other", dumpOf(TWO));
  loop.start();
  assert.is(await loop.run(), "recovered");
  assert.equal(loop.names, ["before", "other"]);
  assert.ok(loop.clock.monotonic() <= 11_000);
});

test("others that are never listed: the policy decides, with the predecessor's lanes", async () => {
  const never = { start: () => new Promise<void>(() => {}) };
  const before = [makeCut(keyOf("0"), 100)];
  for (const onRecoveryFailure of ["start-degraded", "stay-unready"]) {
    const loop = new Loop({
      predecessors: [url("before")],
      lanes: EMPTY_TWO,
      discovery: never,
      config: { onRecoveryFailure },
    });
    loop.members("before");
    loop.answer("before", dumpOf(before));
    loop.start();
    const ended = await loop.run();
    await settle();
    if (onRecoveryFailure === "start-degraded") assert.is(ended, "degraded");
    else assert.is(loop.recovery.status().state, "stuck");
    assert.is(loop.recovery.status().lanes.restored, 1);
  }
});

test("no worker is known yet: the predecessor's hints are taken all the same", async () => {
  const taken: unknown[] = [];
  const loop = new Loop({
    predecessors: [url("before")],
    lanes: [],
    importLoad: (records) => void taken.push(...records),
  });
  loop.members("before", "other");
  loop.answer("before", dumpOf([], { load: [{ kind: "hint" }] }));
  loop.start();
  assert.is(await loop.run(), "recovered");
  assert.equal(loop.names, ["before"]);
  assert.is(taken.length, 1);
});

test.run();
