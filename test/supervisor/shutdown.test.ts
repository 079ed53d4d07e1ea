import { test } from "uvu";
import * as assert from "uvu/assert";
import { BatonError } from "../../src/errors.ts";
import { pause, until, withHarness } from "./harness.ts";

const deadlineIn = (ms: number): number => performance.now() + ms;

test(
  "case 38: once the service goes down nothing is started, switched or restarted any more",
  withHarness({}, async (h) => {
    await h.publish("v1", { id: "one" });
    await h.serves("v1", "one");
    await h.supervisor.quiesce();
    const before = h.events.lastId;
    await h.publish("v1", { id: "two" });
    await h.crash("v1");
    await pause(200);
    const kinds = h.events.since(before).map((event) => event.kind);
    assert.not(kinds.includes("rollout_started"), kinds.join());
    assert.not(kinds.includes("restart_planned"), kinds.join());
    try {
      await h.supervisor.control("v1", "restart");
      assert.unreachable();
    } catch (error) {
      assert.is((error as BatonError).code, "conflict");
      assert.match((error as Error).message, "going down");
    }
    const answer = await h.get("/v1/who");
    assert.equal([answer.status, answer.headers.get("retry-after")], [503, "1"]);
  }),
);

test(
  "case 39: the routes are gone before any child is asked to drain",
  withHarness({}, async (h) => {
    await h.publish("v1", { id: "one", inflightCountdown: 3 });
    await h.serves("v1", "one");
    const slow = h.get("/v1/gate");
    await until(() => h.supervisor.generations()[0]?.leases === 1);
    const drained = h.supervisor.drain(deadlineIn(60_000));
    assert.equal(h.supervisor.targets(), []);
    const [generation] = h.supervisor.generations();
    assert.is(generation?.phase, "retiring");
    assert.equal(await h.dataLines("v1", "calls.log"), []);
    await h.openGate("v1");
    assert.is((await slow).status, 200);
    await drained;
    assert.match((await h.dataLines("v1", "calls.log"))[0] ?? "", "POST /drain");
  }),
);

test(
  "case 82: the drain of all is over only when the last child is idle",
  withHarness({}, async (h) => {
    await h.publish("v1", { id: "one", inflightCountdown: 8 });
    await h.publish("v2", { id: "other" });
    await h.serves("v1", "one");
    await h.serves("v2", "other");
    await h.supervisor.drain(deadlineIn(60_000));
    const polls = (await h.dataLines("v1", "calls.log")).filter((one) => one.includes("status"));
    assert.ok(polls.length >= 5, polls.length.toString());
    await h.supervisor.stop(deadlineIn(60_000));
    assert.is(h.supervisor.generations().length, 0);
  }),
);

test(
  "case 83: a count that does not go down ends the drain at its deadline",
  withHarness({}, async (h) => {
    await h.publish("v1", { id: "one", stuckInflight: 1 });
    await h.serves("v1", "one");
    await h.supervisor.drain(deadlineIn(30));
    const report = await h.event("drain_report");
    assert.is(report.deadlineReached, true);
    assert.is.not(report.childInflight, 0);
  }),
);

test(
  "case 141: a deadline that has passed kills a child that ignores SIGTERM, and waits for its end",
  withHarness({ config: { killGraceMs: 60_000 } }, async (h) => {
    await h.publish("v1", { id: "one", ignoreSigterm: true });
    await h.serves("v1", "one");
    const process = h.supervisor.generations()[0]?.process;
    await h.supervisor.shutdown({ budgetMs: 50 });
    assert.is(process?.state, "exited");
    assert.is(process?.escalated, true);
    assert.is(h.supervisor.generations().length, 0);
  }),
);

test(
  "a force ends the orderly way down at once",
  withHarness({ config: { killGraceMs: 60_000 } }, async (h) => {
    await h.publish("v1", { id: "one", stuckInflight: 1, ignoreSigterm: true });
    await h.serves("v1", "one");
    const force = new AbortController();
    const down = h.supervisor.shutdown({ budgetMs: 3_600_000, force: force.signal });
    await pause(100);
    assert.is(h.supervisor.generations().length, 1);
    force.abort();
    await down;
    assert.is(h.supervisor.generations().length, 0);
  }),
);

test(
  "an idle service is down at once, and a child that honours SIGTERM is not killed",
  withHarness({}, async (h) => {
    await h.publish("v1", { id: "one" });
    await h.serves("v1", "one");
    const process = h.supervisor.generations()[0]?.process;
    await h.supervisor.shutdown({ budgetMs: 60_000 });
    assert.is(process?.escalated, false);
    const calls = await h.dataLines("v1", "calls.log");
    assert.match(calls[0] ?? "", "POST /drain");
    assert.match(calls.at(-1) ?? "", "SIGTERM");
  }),
);

test(
  "a child that is not published yet is stopped too: no process is left behind (B1)",
  withHarness({}, async (h) => {
    await h.publish("v1", { id: "one" });
    await h.serves("v1", "one");
    await h.publish("v1", { id: "two", readyDelayMs: 60_000, unreadyAs: "initializing" });
    await until(() => h.supervisor.generations()[1]?.process !== undefined);
    const processes = h.supervisor.generations().map((one) => one.process);
    await h.supervisor.shutdown({ budgetMs: 60_000 });
    assert.equal(processes.map((process) => process?.state), ["exited", "exited"]);
  }),
);

test(
  "case 71: a preflight that ends after the barrier was raised forks nothing",
  withHarness({}, async (h) => {
    await h.publish("v1", { id: "one", printDelayS: 1 });
    await until(() => h.supervisor.list()[0]?.rollout?.stage === "checking");
    await h.supervisor.quiesce();
    await pause(1_200);
    assert.equal(await h.dataLines("v1", "starts.log"), []);
    assert.is(h.supervisor.generations().length, 0);
  }),
);

test(
  "case 134: a rollout that waits for an override's stop is called off at once by the way down",
  withHarness({ config: { overlap: "never", drainTimeoutMs: 3_600_000 } }, async (h) => {
    await h.publish("v1", { id: "one", stuckInflight: 1 });
    await h.serves("v1", "one");
    await h.publish("v1", { id: "two" });
    await until(() => h.supervisor.list()[0]?.rollout?.stage === "clearing");
    await h.supervisor.quiesce();
    await h.event("rollout_called_off");
    assert.is(h.supervisor.list()[0]?.rollout, undefined);
  }),
);

test(
  "a warm generation and a canary go down with the rest",
  withHarness({ config: { bakeMs: 60_000 } }, async (h) => {
    await h.publish("v1", { id: "one" });
    await h.serves("v1", "one");
    await h.publish("v1", { id: "two" });
    await h.serves("v1", "two");
    assert.is(h.supervisor.generations().length, 2);
    await h.supervisor.shutdown({ budgetMs: 60_000 });
    assert.is(h.supervisor.generations().length, 0);
    assert.is(h.events.since(0).filter((event) => event.kind === "drain_report").length, 2);
  }),
);

test(
  "the drain of Baton shortens one that is under way, and leaves no request behind",
  withHarness({ config: { drainTimeoutMs: 3_600_000 } }, async (h) => {
    await h.publish("v1", { id: "one" });
    await h.serves("v1", "one");
    const slow = h.get("/v1/slow?ms=1000");
    await until(() => h.supervisor.generations()[0]?.leases === 1);
    await h.publish("v1", { id: "two" });
    await h.serves("v1", "two");
    await h.supervisor.drain(deadlineIn(60_000));
    assert.is((await slow).text, "one");
    await h.supervisor.stop(deadlineIn(60_000));
  }),
);

test.run();
