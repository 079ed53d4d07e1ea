/**
 * Sixteen mistakes that were made on this path elsewhere (kv-index reference, 4.2), each as the test
 * that it cannot happen here.
 */

import { test } from "uvu";
import * as assert from "uvu/assert";
import { AttemptOrder, sameSet } from "../../src/replica/attempt_order.ts";
import { peersOf } from "../../src/replica/kubernetes_discovery.ts";
import { isCandidate } from "../../src/replica/peer_view.ts";
import { silentLog } from "../../src/observe/log.ts";
import { slice } from "./support/fake_kube.ts";
import { cutDump, dumpOf, gate, Loop, ndjson, notRecovered, status } from "./support/loop.ts";
import { closeAll, laneKey, sourceReplica, testReplica, until } from "./support/replica.ts";
import { seeded } from "./support/sim_clock.ts";
import { emptyCut, keyOf, makeCut } from "./support/shelf.ts";

const CUT = makeCut(keyOf("0"), 100);

test("mistake 1: waiting for equals: nobody has an index, and all of them start", async () => {
  // Five replicas that only know each other, all without an index.
  const names = ["a", "b", "c", "d", "e"];
  const loops = names.map((replica, seed) => new Loop({ replica, seed: seed + 1 }));
  for (const [own, loop] of loops.entries()) {
    loop.members(...names.filter((_, at) => at !== own));
    for (const [at, name] of names.entries()) {
      loop.answer(
        name,
        (request) =>
          loops[at]?.recovery.recovered === true
            ? dumpOf([])(request)
            : notRecovered({ replica: name, hasSource: loops[at]?.recovery.hasSource === true })(
              request,
            ),
      );
    }
    loop.start();
  }
  for (let turn = 0; turn < 60; turn += 1) for (const loop of loops) await loop.pass(100);
  for (const loop of loops) assert.ok(loop.recovery.recovered);
});

test("mistake 1: an empty dump of a serving peer is a success", async () => {
  const loop = new Loop();
  loop.members("a");
  loop.answer("a", dumpOf([]));
  loop.start();
  assert.is(await loop.run(), "recovered");
});

test("mistake 2: `ready` alone is not believed, neither way", () => {
  const serves = (conditions: object) =>
    peersOf(
      [slice("s", [{ addresses: ["10.0.0.1"], conditions }])] as never,
      { port: "peer", scheme: "http" },
      "10.0.0.9",
      silentLog,
    ).some(isCandidate);
  assert.is(serves({ ready: true, serving: false }), false, "published although not ready");
  assert.is(serves({ ready: false, serving: true, terminating: true }), false, "draining");
});

test("mistake 3: a dump may take as long as it takes, while its bytes keep coming", async () => {
  const loop = new Loop({ config: { idleTimeoutMs: 5000, recoveryBudgetMs: 1_000_000 } });
  loop.members("a");
  const whole = makeCut(keyOf("0"), 50_000);
  loop.answer("a", async (request) => {
    const bytes = new Uint8Array(await (await dumpOf([whole])(request)).arrayBuffer());
    let at = 0;
    return ndjson(
      new ReadableStream({
        async pull(controller) {
          await new Promise<void>((resolve) => loop.clock.after(4000, resolve));
          controller.enqueue(bytes.slice(at, at + 16_384));
          at += 16_384;
          if (at >= bytes.length) controller.close();
        },
      }),
    );
  });
  loop.start();
  assert.is(await loop.run(1_000_000), "recovered");
  assert.ok(loop.clock.monotonic() > 200_000, "no total timeout");
});

test("mistake 3: a body without an end is bounded by what it announced, not by its length", async () => {
  const loop = new Loop({ config: { recoveryBudgetMs: 5000 } });
  loop.members("a");
  let sent = 0;
  loop.answer("a", async (request) => {
    const text = new TextDecoder().decode(
      await (await dumpOf([CUT])(request)).arrayBuffer(),
    ).split("\n");
    const [header = "", lane = "", run = ""] = text;
    let isFirst = true;
    return ndjson(
      new ReadableStream({
        pull(controller) {
          sent += 1;
          controller.enqueue(
            new TextEncoder().encode(isFirst ? `${header}\n${lane}\n` : `${run}\n`),
          );
          isFirst = false;
        },
      }),
    );
  });
  loop.start();
  await loop.pass(100);
  assert.match(loop.recovery.status().attempts[0]?.reason ?? "", /more blocks than/);
  assert.ok(sent < 20);
  loop.recovery.stop();
  await loop.run();
});

test("mistake 4: there is no size limit to set wrong on the joiner's side", async () => {
  // A peer that refuses for the size of its index cannot exist: we never ask with max_bytes.
  const loop = new Loop();
  loop.members("a");
  loop.answer("a", dumpOf([CUT]));
  loop.start();
  await loop.run();
  assert.is(new URL(loop.asked[0]?.request.url ?? "").search, "");
});

test("mistake 5: a clean early end of the body is no completeness", async () => {
  const cuts = [CUT, makeCut(keyOf("1"), 10)];
  const loop = new Loop({ lanes: cuts.map((cut) => emptyCut(cut.key)) });
  loop.members("a");
  let asked = 0;
  loop.answer("a", async (request) => {
    const text = new TextDecoder().decode(await (await dumpOf(cuts)(request)).arrayBuffer());
    const lines = text.split("\n");
    const end = lines.findIndex((line) => line.startsWith(`{"kind":"lane_end"`));
    // Cut between two lines, and ended in good order.
    const part = lines.slice(0, end + 1).map((line) => `${line}\n`).join("");
    return asked++ === 0 ? ndjson(new TextEncoder().encode(part)) : await dumpOf(cuts)(request);
  });
  loop.start();
  assert.is(await loop.run(), "recovered");
  assert.equal(loop.recovery.status().attempts.map(({ outcome }) => outcome), [
    "failed",
    "complete",
  ]);
});

test("mistake 6: an error inside a 200 is a failed dump, and another peer is asked", async () => {
  for (const seed of [1, 2, 3]) {
    const loop = new Loop({ seed });
    loop.members("a", "b");
    const broken = '{"model:default":{"error":"index failed"}}';
    loop.answer(
      "a",
      () => new Response(broken, { headers: { "content-type": "application/json" } }),
    );
    loop.answer("b", dumpOf([CUT]));
    loop.start();
    assert.is(await loop.run(), "recovered");
    assert.is(loop.store.lane(keyOf("0"))?.blocks, 100);
  }
});

test("mistake 7: churn does not reset the back-off", async () => {
  const loop = new Loop();
  loop.members("a");
  loop.answer("a", status(500));
  loop.start();
  for (let time = 0; time < 200; time += 1) {
    await loop.pass(100);
    loop.churn();
  }
  // 20 s: at 0, 1, 3, 7 and 15 s, a little earlier by jitter.
  assert.ok(loop.asked.length <= 6, `${loop.asked.length} attempts`);
  loop.recovery.stop();
  await loop.run();
});

test("mistake 8: sets are compared as sets, and the order of asking is drawn anew each cycle", () => {
  assert.ok(sameSet(new Set(["a", "b", "c"]), new Set(["c", "a", "b"])));
  assert.is(sameSet(new Set(["a"]), new Set(["b"])), false);
  const random = seeded(1);
  const firsts = new Map<string, number>();
  for (let time = 0; time < 3000; time += 1) {
    const first = new AttemptOrder(["a", "b", "c"], random).take(() => true) ?? "";
    firsts.set(first, (firsts.get(first) ?? 0) + 1);
  }
  assert.is(firsts.size, 3);
  for (const [name, count] of firsts) assert.ok(count > 850, `${name} was first ${count} times`);
});

test("mistake 9: a real change of membership does not cancel a transfer either", async () => {
  const loop = new Loop();
  loop.members("a");
  const held = gate(dumpOf([CUT]));
  loop.answer("a", held.answer);
  loop.start();
  await loop.pass(10);
  for (const members of [["b"], ["a", "c"], []]) {
    loop.members(...members);
    await loop.pass(10);
  }
  held.open();
  assert.is(await loop.run(), "recovered");
  assert.equal(loop.names, ["a"]);
});

test("mistake 10: a replica that recovers gives no dump", async () => {
  const joiner = await testReplica({ lanes: [laneKey("0")], peers: ["http://127.0.0.1:9"] });
  joiner.recovery.start();
  const response = await fetch(`${joiner.url}/dump`);
  assert.is(response.status, 503);
  await response.text();
  await joiner.close();
});

test("mistake 11: lanes hold back their events before the first peer is asked", async () => {
  const loop = new Loop();
  loop.members("a");
  let stateWhenAsked = "";
  loop.answer("a", (request) => {
    stateWhenAsked = loop.store.lane(keyOf("0"))?.state ?? "";
    return dumpOf([CUT])(request);
  });
  loop.start();
  await loop.run();
  assert.is(stateWhenAsked, "buffering");
});

test("mistake 12: a lane that already has content takes the snapshot in its place", async () => {
  const loop = new Loop({ lanes: [makeCut(keyOf("0"), 7)] });
  loop.members("a");
  loop.answer("a", dumpOf([CUT]));
  loop.start();
  assert.is(await loop.run(), "recovered");
  assert.is(loop.store.lane(keyOf("0"))?.blocks, 100);
});

test("mistake 13: dumps are asked for when the subscriptions are proven, not after a fixed time", async () => {
  const loop = new Loop({ config: { subscribeTimeoutMs: 60_000 } });
  const lane = loop.store.lane(keyOf("0"));
  if (lane === undefined) throw new Error("no lane");
  lane.hold = () => (lane.state = "subscribing");
  loop.members("a");
  loop.answer("a", dumpOf([CUT]));
  loop.start();
  await loop.pass(20_000);
  assert.equal(loop.names, [], "not before");
  lane.state = "buffering";
  loop.store.changed();
  await loop.pass(1);
  assert.equal(loop.names, ["a"], "and at once then");
  assert.is(await loop.run(), "recovered");
});

test("mistake 13: without peers nobody waits for anything", async () => {
  const loop = new Loop({ config: { subscribeTimeoutMs: 60_000 } });
  loop.start();
  assert.is(await loop.run(), "empty_bootstrap");
  assert.is(loop.clock.monotonic(), 0);
});

test("mistake 14: the loss of a whole index can be seen: gauge, log and journal tell it apart", async () => {
  const ends = new Map<string, Loop>();
  for (const kind of ["recovered", "empty_bootstrap", "degraded"]) {
    const loop = new Loop({ config: { recoveryBudgetMs: 1000 } });
    if (kind !== "empty_bootstrap") loop.members("a");
    loop.answer("a", kind === "recovered" ? dumpOf([CUT]) : status(500));
    loop.start();
    ends.set(await loop.run(), loop);
  }
  assert.equal([...ends.keys()], ["recovered", "empty_bootstrap", "degraded"]);
  for (const [state, loop] of ends) {
    assert.is(await loop.gauge(), state);
    assert.is(loop.log.at(-1)?.level, state === "recovered" ? "info" : "warn");
    assert.is(loop.events.at(-1)?.fields.state, state);
  }
});

test("mistake 15: the dump is not for everybody: a token can be asked for", async () => {
  const source = await sourceReplica({ lanes: [laneKey("0")], token: "t" });
  for (const authorization of ["", "Bearer x", "Bearer tt", "Basic t"]) {
    const response = await fetch(`${source.url}/dump`, { headers: { authorization } });
    assert.is(response.status, 401, authorization);
    await response.text();
  }
  const response = await fetch(`${source.url}/dump`, { headers: { authorization: "Bearer t" } });
  assert.is(response.status, 200);
  await response.text();
  await source.close();
});

test("mistake 16: a sibling that asks too early gets an answer, not a refused connection", async () => {
  const joiner = await testReplica({ lanes: [laneKey("0")], peers: ["http://127.0.0.1:9"] });
  const sibling = await testReplica({
    lanes: [laneKey("0")],
    discovery: {
      start: () => Promise.resolve(),
      stop: () => {},
      current: () => [{ url: joiner.url, serving: true, terminating: false }],
      onChange: () => () => {},
    },
  });
  sibling.recovery.start();
  await until(() => sibling.recovery.status().attempts.length > 0, "an attempt");
  assert.is(sibling.recovery.status().attempts[0]?.outcome, "not_recovered");
  await sibling.close();
  await joiner.close();
});

test("a failed peer leaves nothing half done: what the next one gives takes the lane's place", async () => {
  const loop = new Loop();
  loop.members("a");
  let asked = 0;
  loop.answer(
    "a",
    (request) =>
      asked++ === 0
        ? cutDump([makeCut(keyOf("0"), 5000)], 60_000)(request)
        : dumpOf([CUT])(request),
  );
  loop.start();
  assert.is(await loop.run(), "recovered");
  assert.is(loop.store.lane(keyOf("0"))?.commits.length, 1);
});

test.after(closeAll);
test.run();
