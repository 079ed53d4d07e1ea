import process from "node:process";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { pause, until, withHarness } from "./harness.ts";

const busy = { inflightCountdown: 3 };

test(
  "case 72: a removed version is gone for clients at once and drains behind them",
  withHarness({ config: { drainPollMs: 100 } }, async (h) => {
    await h.publish("v1", { id: "one", stuckInflight: 1 });
    await h.serves("v1", "one");
    const startMs = performance.now();
    await h.remove("v1");
    assert.is((await h.get("/v1/who")).status, 404);
    assert.ok(performance.now() - startMs < 5_000, "the removal waited for the drain");
    const [generation] = h.supervisor.generations();
    assert.is(generation?.role, "leaving");
    await until(async () =>
      (await h.dataLines("v1", "calls.log")).filter((line) => line.includes("/drain/status"))
        .length >= 2
    );
    const calls = await h.dataLines("v1", "calls.log");
    assert.is(calls.filter((line) => line.includes("POST /drain")).length, 1);
    assert.is(calls.filter((line) => line.includes("SIGTERM")).length, 0);
    assert.is(generation?.phase, "draining");
    assert.equal(h.supervisor.healthz().map((one) => one.status), ["draining"]);
  }),
);

test(
  "case 73: a version that is listed again while it drains starts when the drain is over, once",
  withHarness({ config: { drainPollMs: 50 } }, async (h) => {
    const build = { id: "one", inflightCountdown: 30 };
    await h.publish("v1", build);
    await h.serves("v1", "one");
    await h.remove("v1");
    await h.event("generation_moved", (event) => event.to === "draining");
    await h.publish("v1", build);
    await pause(100);
    assert.is(h.supervisor.generations().length, 1, "two generations shared the data folder");
    assert.is(h.events.since(0).filter((one) => one.kind === "rollout_started").length, 1);
    await h.serves("v1", "one");
    const kinds = h.events.since(0).filter((event) =>
      event.kind === "rollout_started" || event.kind === "drain_report"
    ).map((event) => event.kind);
    assert.equal(kinds, ["rollout_started", "drain_report", "rollout_started"]);
    const downloads = h.lines.filter((line) => line.event === "download_started");
    assert.is(downloads.length, 1, "an install that is there was downloaded again");
  }),
);

test(
  "case 74: a rollout under way is called off when its version begins to drain, and leaves no marker",
  withHarness({}, async (h) => {
    await h.publish("v1", { id: "one", inflightCountdown: 5 });
    await h.serves("v1", "one");
    await h.publish("v1", { id: "two", readyDelayMs: 60_000, unreadyAs: "initializing" });
    await until(() => h.supervisor.generations().length === 2);
    await h.remove("v1");
    await h.event("rollout_called_off");
    await until(() => h.supervisor.generations().length === 1);
    assert.is(h.supervisor.list()[0]?.rollout, undefined);
    assert.is(h.supervisor.generations()[0]?.build.buildId, "one");
    await until(() => h.supervisor.list().length === 0);
  }),
);

test(
  "case 75: the child is not told to drain before the leases have ended, and then once",
  withHarness({}, async (h) => {
    await h.publish("v1", { id: "one" });
    await h.serves("v1", "one");
    const slow = h.get("/v1/gate");
    await until(() => h.supervisor.generations().some((one) => one.leases === 1));
    await h.remove("v1");
    assert.is((await h.get("/v1/who")).status, 404);
    await pause(100);
    assert.equal(await h.dataLines("v1", "calls.log"), []);
    await h.openGate("v1");
    assert.is((await slow).text, "one");
    await until(() => h.supervisor.generations().length === 0);
    const calls = await h.dataLines("v1", "calls.log");
    assert.is(calls.filter((line) => line.includes("POST /drain")).length, 1);
    assert.match(calls[0] ?? "", "inflight=0");
  }),
);

test(
  "case 77: a child without a drain status is stopped only after the cushion",
  withHarness({ config: { drainCushionMs: 400 } }, async (h) => {
    await h.publish("v1", { id: "one", legacy: true });
    await h.serves("v1", "one");
    const startMs = performance.now();
    await h.remove("v1");
    await until(async () =>
      (await h.dataLines("v1", "calls.log")).some((one) => one.includes("SIGTERM"))
    );
    assert.ok(performance.now() - startMs >= 400);
    const report = await h.event("drain_report");
    assert.is(report.legacy, true);
    assert.is(report.deadlineReached, false);
  }),
);

test(
  "case 78: the cushion of 20 ms counts, not the hour that the drain might take",
  withHarness({ config: { drainCushionMs: 20, drainTimeoutMs: 3_600_000 } }, async (h) => {
    await h.publish("v1", { id: "one", legacy: true });
    await h.serves("v1", "one");
    await h.remove("v1");
    await until(() => h.supervisor.generations().length === 0);
  }),
);

test(
  "the cushion ends at the shared deadline (M5)",
  withHarness({ config: { drainCushionMs: 3_600_000, drainTimeoutMs: 1_500 } }, async (h) => {
    await h.publish("v1", { id: "one", legacy: true });
    await h.serves("v1", "one");
    await h.remove("v1");
    await until(() => h.supervisor.generations().length === 0);
    assert.is((await h.event("drain_report")).legacy, true);
  }),
);

test(
  "case 79: with an admin port only that is called for drain and status",
  withHarness({
    config: { binaryName: "devshard", childGraceMs: 0, drainPollMs: 20 },
  }, async (h) => {
    await h.publish("v1", {
      id: "one",
      binaryName: "devshard",
      adminApi: true,
      inflightCountdown: 2,
    });
    await h.serves("v1", "one");
    assert.ok(Number(h.supervisor.generations()[0]?.adminPort) > 0);
    await h.remove("v1");
    await until(() => h.supervisor.generations().length === 0);
    const calls = (await h.dataLines("v1", "calls.log")).filter((one) => one.includes("/drain"));
    assert.ok(calls.length >= 2);
    assert.ok(calls.every((call) => call.includes(" admin")), calls.join());
  }),
);

test(
  "case 80: the child is stopped only when its own count is zero",
  withHarness({}, async (h) => {
    await h.publish("v1", { id: "one", ...busy });
    await h.serves("v1", "one");
    await h.remove("v1");
    await until(() => h.supervisor.generations().length === 0);
    const calls = await h.dataLines("v1", "calls.log");
    const polls = calls.filter((line) => line.includes("/drain/status")).length;
    assert.ok(polls >= 2, calls.join());
    assert.match(calls.at(-1) ?? "", "SIGTERM");
    assert.is((await h.event("drain_report")).childInflight, 0);
  }),
);

test(
  "case 81: a count that stays above zero does not outlast the deadline",
  withHarness({ config: { drainTimeoutMs: 20 } }, async (h) => {
    await h.publish("v1", { id: "one", stuckInflight: 1 });
    await h.serves("v1", "one");
    await h.remove("v1");
    await until(() => h.supervisor.generations().length === 0);
    const report = await h.event("drain_report");
    assert.is(report.deadlineReached, true);
    assert.is.not(report.childInflight, 0);
  }),
);

test(
  "a request that outlasts drain and grace is cut, and the report names it",
  withHarness({ config: { drainTimeoutMs: 100, killGraceMs: 100 } }, async (h) => {
    await h.publish("v1", { id: "one", ignoreSigterm: true });
    await h.serves("v1", "one");
    const endless = h.get("/v1/events?count=1000000&ms=20").then(() => "whole", () => "broken");
    await until(() => h.supervisor.generations().some((one) => one.leases === 1));
    const [lease] = h.supervisor.generations()[0]?.openLeases() ?? [];
    await h.remove("v1");
    const report = await h.event("drain_report");
    assert.is(report.cut, 1);
    assert.is(report.finished, 0);
    const [cut] = report.cutExchanges as { requestId: string; reason: string }[];
    assert.is(cut?.requestId, lease?.requestId);
    assert.is(await endless, "broken");
    const metrics = await h.metrics.text();
    assert.match(metrics, /baton_drained_exchanges_total\{[^}]*end="cut"[^}]*\} 1/);
    assert.ok(h.lines.some((line) => line.event === "drain_report" && line.cut === 1));
  }),
);

test(
  "a child that ends by itself while it drains ends the drain at once",
  withHarness({ config: { drainPollMs: 50 } }, async (h) => {
    await h.publish("v1", { id: "one", stuckInflight: 1 });
    await h.serves("v1", "one");
    const pid = h.supervisor.generations()[0]?.process?.pid;
    if (pid === undefined) throw new Error("it has no process");
    await h.remove("v1");
    await until(async () => (await h.dataLines("v1", "calls.log")).length > 0, "the drain");
    process.kill(pid, "SIGKILL");
    const report = await h.event("drain_report");
    assert.is((report.exit as { signal?: string }).signal, "SIGKILL");
    assert.is(report.deadlineReached, false);
  }),
);

test.run();
