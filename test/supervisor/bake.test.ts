import process from "node:process";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { type Harness, pause, until, withHarness } from "./harness.ts";

const BAKE = { bakeMs: 60_000, bakeProbeFailures: 3, monitorIntervalMs: 30 };

async function swapToTwo(h: Harness, two: Record<string, unknown> = {}): Promise<void> {
  await h.publish("v1", { id: "one" });
  await h.serves("v1", "one");
  await h.publish("v1", { id: "two", ...two });
  await h.serves("v1", "two");
}

async function backToOne(h: Harness, failureClass: string): Promise<void> {
  const switched = await h.event("traffic_switched", (event) => event.how === "switch_back");
  assert.is(switched.generation, 1);
  assert.match((await h.get("/v1/who")).text, /^one /);
  const status = h.supervisor.list()[0];
  assert.is(status?.quarantined[0]?.class, failureClass);
  assert.is(status?.quarantined[0]?.retryAt, undefined);
  await until(() => h.supervisor.generations().length === 1);
  // The bad build is not tried again at the next poll.
  const before = h.events.lastId;
  await h.supervisor.pollNow();
  await pause(80);
  assert.not(h.events.since(before).some((event) => event.kind === "rollout_started"));
}

test(
  "the old generation is kept warm behind the new one until the bake is over, then drained",
  withHarness({ config: { bakeMs: 800 } }, async (h) => {
    await swapToTwo(h);
    const old = h.supervisor.generations().find((one) => one.number === 1);
    assert.is(old?.role, "warm");
    assert.is(old?.phase, "running");
    assert.equal(h.supervisor.healthz().map((one) => one.status), ["draining", "running"]);
    await h.event("build_proven", (event) => event.generation === 2);
    await until(() => h.supervisor.generations().length === 1);
    assert.equal((await h.dataLines("v1", "calls.log")).length > 0, true);
  }),
);

test(
  "a new generation that ends in its bake: traffic is back in one step, and the build quarantined",
  withHarness({ config: BAKE }, async (h) => {
    await swapToTwo(h);
    const seen: number[] = [];
    const stop = h.supervisor.onTargets(() => seen.push(h.supervisor.targets().length));
    const lost = h.crash("v1");
    await backToOne(h, "crash");
    stop();
    assert.is(await lost, 502);
    assert.not(seen.includes(0), "there was a moment without a target");
  }),
);

test(
  "a new generation that fails its probes in its bake is switched back from, and drained",
  withHarness({ config: BAKE }, async (h) => {
    await swapToTwo(h);
    const slow = h.get("/v1/slow?ms=600");
    await until(() => h.supervisor.generations().some((one) => one.leases > 0));
    await h.get("/v1/unready");
    await backToOne(h, "readiness");
    assert.match((await slow).text, "two");
  }),
);

test(
  "refused connections in the bake switch back, and the refused requests succeed on the old one",
  withHarness({ config: { ...BAKE, monitorIntervalMs: 60_000 } }, async (h) => {
    await swapToTwo(h);
    const two = h.supervisor.generations().find((one) => one.number === 2);
    // Only its listener is gone: the process lives, so nothing but the connections tells.
    for (let count = 0; count < 5; count++) two?.target?.reportConnectFailure(new Error("refused"));
    await backToOne(h, "readiness");
  }),
);

test(
  "probes that fail on both generations blame neither: the cause is outside",
  withHarness({ config: { ...BAKE, bakeMs: 1_500, bakeProbeFailures: 3 } }, async (h) => {
    await h.publish("v1", { id: "one" });
    await h.serves("v1", "one");
    await h.get("/v1/unready");
    await until(() => !h.supervisor.serves("v1"));
    await h.publish("v1", { id: "two" });
    await h.serves("v1", "two");
    await h.get("/v1/unready");
    await h.event("build_proven", (event) => event.generation === 2);
    assert.equal(h.supervisor.list()[0]?.quarantined, []);
  }),
);

test(
  "failed probes that are not in a row are no failure",
  withHarness({ config: { ...BAKE, bakeMs: 1_500, bakeProbeFailures: 40 } }, async (h) => {
    await swapToTwo(h);
    await h.get("/v1/unready");
    await h.event("live_readiness", (event) => event.ready === false);
    await h.get("/v1/reready");
    await h.event("build_proven", (event) => event.generation === 2);
    assert.equal(h.supervisor.list()[0]?.quarantined, []);
  }),
);

test(
  "without overlap a build that crashes in its bake is replaced by the one that served well before",
  withHarness({ config: { ...BAKE, bakeMs: 500, overlap: "never" } }, async (h) => {
    await h.publish("v1", { id: "one" });
    await h.event("build_proven");
    await h.publish("v1", { id: "two" });
    await h.serves("v1", "two");
    await h.crash("v1");
    await h.serves("v1", "one");
    const status = h.supervisor.list()[0];
    assert.is(status?.quarantined[0]?.class, "crash");
    assert.match(status?.goal ?? "", /^(serving|fallback) /);
    assert.is(h.lines.filter((line) => line.event === "download_started").length, 2);
  }),
);

test(
  "a newer build in the bake ends it: the newest serves, both older ones drain",
  withHarness({ config: BAKE }, async (h) => {
    await swapToTwo(h);
    await h.publish("v1", { id: "three" });
    await h.serves("v1", "three");
    await until(() => h.supervisor.generations().length === 2);
    assert.equal(
      h.supervisor.generations().map((one) => [one.build.buildId, one.role]),
      [["two", "warm"], ["three", "current"]],
    );
  }),
);

test(
  "when the warm generation ends there is nothing to switch back to, and the new one stays",
  withHarness({ config: BAKE }, async (h) => {
    await swapToTwo(h);
    process.kill(h.supervisor.generations()[0]?.process?.pid ?? 0, "SIGKILL");
    await h.event("child_crashed", (event) => event.role === "warm");
    assert.match((await h.get("/v1/who")).text, "two");
    assert.is(h.supervisor.generations().length, 1);
  }),
);

test(
  "a removal in the bake drains both generations",
  withHarness({ config: BAKE }, async (h) => {
    await swapToTwo(h);
    await h.remove("v1");
    assert.is((await h.get("/v1/who")).status, 404);
    await until(() => h.supervisor.generations().length === 0);
    assert.is(h.events.since(0).filter((event) => event.kind === "drain_report").length, 2);
  }),
);

test.run();
