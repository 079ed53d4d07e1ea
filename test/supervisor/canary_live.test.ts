import { test } from "uvu";
import * as assert from "uvu/assert";
import { type ConfigInput, type Harness, runtimeFetch, until, withHarness } from "./harness.ts";

const CANARY: ConfigInput = { canaryPercent: 20, canaryHeader: "x-canary" };

async function onTrial(h: Harness, two: Record<string, unknown> = {}): Promise<void> {
  await h.publish("v1", { id: "one" });
  await h.serves("v1", "one");
  await h.publish("v1", { id: "two", ...two });
  await h.event("canary_started");
}

async function answers(h: Harness, requests: number): Promise<Record<string, number>> {
  const counts: Record<string, number> = {};
  for (let request = 0; request < requests; request++) {
    const [build = ""] = (await h.get("/v1/who")).text.split(" ");
    counts[build] = (counts[build] ?? 0) + 1;
  }
  return counts;
}

test(
  "a canary gets exactly its share, and requests that name it",
  withHarness({ config: CANARY }, async (h) => {
    await onTrial(h);
    assert.equal(await answers(h, 100), { one: 80, two: 20 });
    const named = await runtimeFetch(`${h.origin}/v1/who`, { "x-canary": "1" });
    assert.match(named, /^two /);
    assert.is(h.supervisor.targets().length, 2);
  }),
);

test(
  "promoted, it gets everything and the old one drains",
  withHarness({ config: CANARY }, async (h) => {
    await onTrial(h);
    await h.supervisor.control("v1", "promote");
    assert.equal(await answers(h, 20), { two: 20 });
    await until(() => h.supervisor.generations().length === 1);
  }),
);

test(
  "rolled back, it gets nothing any more, drains, and is not tried again",
  withHarness({ config: CANARY }, async (h) => {
    await onTrial(h);
    await h.supervisor.control("v1", "rollback");
    assert.equal(await answers(h, 20), { one: 20 });
    await until(() => h.supervisor.generations().length === 1);
    assert.is(h.supervisor.list()[0]?.quarantined[0]?.class, "denied");
  }),
);

test(
  "a canary that ends is rolled back and quarantined; no request of others is lost",
  withHarness({ config: CANARY }, async (h) => {
    await onTrial(h);
    const canary = h.supervisor.generations().find((one) => one.role === "canary");
    canary?.process?.force();
    assert.equal(Object.keys(await answers(h, 20)).sort().slice(0, 1), ["one"]);
    await until(() => h.supervisor.generations().length === 1);
    assert.is(h.supervisor.list()[0]?.quarantined[0]?.class, "crash");
  }),
);

test(
  "a canary whose probes fail is rolled back",
  withHarness({ config: { ...CANARY, monitorIntervalMs: 30 } }, async (h) => {
    await onTrial(h);
    await runtimeFetch(`${h.origin}/v1/unready`, { "x-canary": "1" });
    await until(() => h.supervisor.generations().length === 1);
    assert.is(h.supervisor.list()[0]?.quarantined[0]?.class, "readiness");
    assert.equal(await answers(h, 5), { one: 5 });
  }),
);

test(
  "a canary that has worked long enough is promoted by itself",
  withHarness({ config: { ...CANARY, canaryMs: 300 } }, async (h) => {
    await onTrial(h);
    await h.event("traffic_switched", (event) => event.how === "promote");
    assert.equal(await answers(h, 5), { two: 5 });
  }),
);

test(
  "while the serving child is gone its canary takes all requests",
  withHarness({ config: { ...CANARY, restartBackoffMs: 60_000 } }, async (h) => {
    await onTrial(h);
    const current = h.supervisor.generations().find((one) => one.role === "current");
    current?.process?.force();
    await until(() => h.supervisor.targets().length === 1);
    assert.equal(await answers(h, 10), { two: 10 });
  }),
);

test(
  "a newer build takes the place of the canary",
  withHarness({ config: CANARY }, async (h) => {
    await onTrial(h);
    await h.publish("v1", { id: "three" });
    await h.event("canary_started", (event) => Number(event.generation) === 3);
    assert.equal(await answers(h, 10), { one: 8, three: 2 });
    await until(() => h.supervisor.generations().length === 2);
  }),
);

test.run();
