import process from "node:process";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { basePort } from "../support/baton_process.ts";
import { type Harness, pause, until, withHarness } from "./harness.ts";

function kinds(h: Harness, since = 0): string[] {
  return h.events.since(since).map((event) => event.kind);
}

test(
  "the first requests for a version wait for its first start",
  withHarness({}, async (h) => {
    await h.publish("v1", { id: "one", readyDelayMs: 300 });
    const answers = await Promise.all([1, 2, 3].map(() => h.get("/v1/who")));
    assert.equal(answers.map((one) => one.status), [200, 200, 200]);
    assert.match(await h.metrics.text(), /baton_held_requests_total\{.*end="released"\} 3/);
  }),
);

test(
  "case 259: a crashed child is started again, and the requests meanwhile wait for it",
  withHarness({ config: { restartBackoffMs: 300 } }, async (h) => {
    await h.publish("v1", { id: "one" });
    await h.serves("v1", "one");
    const lost = h.crash("v1");
    await h.event("child_crashed");
    const answers = await Promise.all([1, 2, 3].map(() => h.get("/v1/who")));
    assert.equal(answers.map((one) => one.status), [200, 200, 200]);
    assert.is(await lost, 502);
    const planned = await h.event("restart_planned");
    assert.is(planned.delayMs, 300);
    assert.equal(h.supervisor.targets().map((one) => one.generation), [2]);
  }),
);

test(
  "case 69: a version that is removed while it waits for its restart does not start again",
  withHarness({ config: { restartBackoffMs: 300 } }, async (h) => {
    await h.publish("v1", { id: "one" });
    await h.serves("v1", "one");
    await h.crash("v1");
    await h.event("restart_planned");
    await h.remove("v1");
    const before = h.events.lastId;
    await pause(500);
    assert.not(kinds(h, before).includes("rollout_started"));
    // On a busy machine the restart may have begun before the removal was seen: then it drains.
    await until(() => h.supervisor.list().length === 0, "nothing is left of it");
  }),
);

test(
  "a crash loop backs off, doubling, and a long enough run resets it",
  withHarness({
    config: { restartBackoffMs: 20, restartBackoffMaxMs: 100, restartResetMs: 60_000 },
  }, async (h) => {
    await h.publish("v1", { id: "one" });
    const delays = (): unknown[] =>
      h.events.since(0).filter((event) => event.kind === "restart_planned")
        .map((event) => event.delayMs);
    for (let crashes = 1; crashes <= 5; crashes++) {
      await h.serves("v1", "one");
      await h.crash("v1");
      await until(() => delays().length === crashes);
    }
    assert.equal(delays(), [20, 40, 80, 100, 100]);
    assert.is(h.supervisor.list()[0]?.quarantined.length, 0, "nothing else could serve");
    assert.ok(h.lines.some((line) => line.level === "error" && line.event === "child_crashed"));
  }),
);

test(
  "the back-off starts anew after a run that was long enough",
  withHarness({ config: { restartBackoffMs: 20, restartResetMs: 50 } }, async (h) => {
    await h.publish("v1", { id: "one" });
    const delays = (): unknown[] =>
      h.events.since(0).filter((event) => event.kind === "restart_planned")
        .map((event) => event.delayMs);
    for (let crashes = 1; crashes <= 3; crashes++) {
      await h.serves("v1", "one");
      await pause(100);
      await h.crash("v1");
      await until(() => delays().length === crashes);
    }
    assert.equal(delays(), [20, 20, 20]);
  }),
);

test(
  "a back-off that is longer than requests may wait answers 503 with Retry-After at once",
  withHarness({ config: { restartBackoffMs: 60_000, holdTimeoutMs: 5_000 } }, async (h) => {
    await h.publish("v1", { id: "one" });
    await h.serves("v1", "one");
    await h.crash("v1");
    await h.event("restart_planned");
    const answer = await h.get("/v1/who");
    assert.is(answer.status, 503);
    assert.ok(Number(answer.headers.get("retry-after")) >= 30);
    assert.is(JSON.parse(answer.text).error.code, "not_ready");
  }),
);

test(
  "a version that does not come in time answers 503 with Retry-After, never 404",
  withHarness({ config: { holdTimeoutMs: 150 } }, async (h) => {
    await h.publish("v1", { id: "one", readyDelayMs: 60_000, unreadyAs: "initializing" });
    const answer = await h.get("/v1/who");
    assert.is(answer.status, 503);
    assert.is(answer.headers.get("retry-after"), "1");
    assert.is(JSON.parse(answer.text).error.code, "hold_timeout");
    assert.is((await h.get("/v9/who")).status, 404);
  }),
);

test(
  "more requests than may wait are refused with 503",
  withHarness({ config: { holdMaxRequests: 2 } }, async (h) => {
    await h.publish("v1", { id: "one", readyDelayMs: 700, unreadyAs: "initializing" });
    const answers = await Promise.all([1, 2, 3, 4].map(() => h.get("/v1/who")));
    assert.equal(answers.map((one) => one.status).sort(), [200, 200, 503, 503]);
  }),
);

test(
  "case 266: a new version with a wrong hash is known but does not serve: 503 at once, not 404",
  withHarness({ config: { holdTimeoutMs: 600_000 } }, async (h) => {
    const { makeBuild } = await import("../support/builds.ts");
    await h.oracle.publish("v1", await makeBuild({ id: "one" }), "0".repeat(64));
    await h.supervisor.pollNow();
    await h.event("rollout_failed", (event) => event.class === "hash");
    const answer = await h.get("/v1/who");
    assert.is(answer.status, 503);
    assert.is(h.supervisor.generations().length, 0);
  }),
);

test(
  "case 68: a program that cannot be run ends its generation, and publishes nothing",
  withHarness({ config: { restartBackoffMs: 60_000 } }, async (h) => {
    await h.publish("v1", { id: "one", exitAtOnce: 7 });
    const failed = await h.event("rollout_failed");
    assert.is(failed.class, "crash");
    assert.match(String(failed.error), "exit code 7");
    assert.is(h.supervisor.generations().length, 0);
    assert.equal(h.supervisor.targets(), []);
  }),
);

test("cases 46 and 47: without enough ports nothing is published, and what was taken is given back", () => {
  const only = basePort();
  return withHarness({
    config: { binaryName: "devshard", basePort: only, lastPort: only },
  }, async (h) => {
    const build = { id: "one", binaryName: "devshard", adminApi: true };
    await h.publish("v1", build);
    const failed = await h.event("rollout_failed");
    assert.is(failed.class, "transient");
    assert.match(String(failed.error), String(only));
    await h.remove("v1");
    await until(() => h.supervisor.generations().length === 0);
    assert.not(kinds(h, 0).includes("traffic_switched"));
    // The public port is free again: a child that needs only that one gets it.
    await h.publish("v2", { id: "two", binaryName: "devshard" });
    await h.serves("v2", "two");
    assert.is(h.supervisor.generations()[0]?.port, only);
  })();
});

test(
  "a new build that is killed before it is ready is tried again, for as many times as one that is slow",
  withHarness({
    config: { readyAttempts: 2, retryBackoffMs: 20, retryBackoffMaxMs: 20 },
  }, async (h) => {
    await h.publish("v1", { id: "one" });
    await h.serves("v1", "one");
    const bad = await h.publish("v1", { id: "two", neverReady: true, unreadyAs: "initializing" });
    for (let attempt = 2; attempt <= 3; attempt += 1) {
      const starting = () =>
        h.supervisor.generations().find((one) =>
          one.number === attempt && one.phase === "starting" && one.process !== undefined
        );
      await until(() => starting() !== undefined);
      // As the kernel does when memory is short.
      process.kill(starting()?.process?.pid ?? 0, "SIGKILL");
      await until(() => h.supervisor.generations().every((one) => one.number !== attempt));
    }
    const failures = () =>
      h.events.since(0).filter((one) => one.kind === "rollout_failed" && one.sha256 === bad.sha256);
    await until(() => failures().length === 2);
    assert.equal(failures().map((one) => one.class), ["crash", "crash"]);
    assert.equal(failures().map((one) => one.retryInMs === undefined), [false, true]);
    assert.match((await h.get("/v1/who")).text, /^one /);
    assert.equal(h.supervisor.list()[0]?.generations.map((one) => one.generation), [1]);
  }),
);

test.run();
