import { test } from "uvu";
import * as assert from "uvu/assert";
import { createHarness, pause, until, withHarness } from "./harness.ts";

test(
  "case 32: a new service has no routes and an empty status",
  withHarness({}, async (h) => {
    assert.equal(h.supervisor.targets(), []);
    assert.equal(h.supervisor.healthz(), []);
    assert.equal(h.supervisor.list(), []);
    assert.is(h.supervisor.serves("v1"), false);
    await Promise.resolve();
  }),
);

test(
  "cases 33, 35 and 268: running children are routed, and listed in the health array",
  withHarness({}, async (h) => {
    const one = await h.publish("v1", { id: "one", print: { binaryVersion: "one-r2" } });
    await h.publish("v2", { id: "other" });
    await h.serves("v1", "one");
    await h.serves("v2", "other");
    assert.equal(h.supervisor.targets().map((target) => target.version).sort(), ["v1", "v2"]);
    const [v1, v2] = h.supervisor.healthz();
    assert.equal(v1, {
      name: "v1",
      port: h.supervisor.generations().find((one) => one.version === "v1")?.port,
      status: "running",
      sha256: one.sha256,
      binary_version: "one-r2",
    });
    assert.equal([v2?.name, v2?.status], ["v2", "running"]);
  }),
);

test(
  "case 34: only a running child is routed",
  withHarness({}, async (h) => {
    await h.publish("v1", { id: "one" });
    await h.serves("v1", "one");
    await h.publish("v2", { id: "slow", readyDelayMs: 60_000, unreadyAs: "initializing" });
    await until(() => h.supervisor.healthz().some((entry) => entry.status === "starting"));
    assert.equal(h.supervisor.targets().map((target) => target.version), ["v1"]);
    assert.equal(
      h.supervisor.healthz().map((entry) => [entry.name, entry.status]),
      [["v1", "running"], ["v2", "starting"]],
    );
  }),
);

test(
  "case 36: a new running and an old draining child of one name are both listed, the new one routed",
  withHarness({}, async (h) => {
    const old = await h.publish("v1", { id: "one", stuckInflight: 1 });
    await h.serves("v1", "one");
    const oldPort = h.supervisor.healthz()[0]?.port;
    await h.publish("v1", { id: "two" });
    await h.serves("v1", "two");
    const [draining, running] = h.supervisor.healthz();
    assert.equal(
      [draining?.status, draining?.port, draining?.sha256],
      ["draining", oldPort, old.sha256],
    );
    assert.is(running?.status, "running");
    assert.equal(h.supervisor.targets().map((target) => target.generation), [2]);
    const drain = h.supervisor.list()[0]?.generations[0]?.drain;
    assert.is(drain?.cause, "replaced");
    assert.ok(Number.isFinite(Date.parse(drain?.deadline ?? "")));
  }),
);

test(
  "case 37: a child outlives the rollout that started it, and ends when it is asked to",
  withHarness({}, async (h) => {
    await h.publish("v1", { id: "one" });
    await h.serves("v1", "one");
    const [generation] = h.supervisor.generations();
    assert.is(h.supervisor.list()[0]?.rollout, undefined);
    await pause(50);
    assert.is(generation?.process?.state, "running");
    await h.remove("v1");
    await generation?.ended;
    assert.is(generation?.process?.state, "exited");
  }),
);

test(
  "case 130: with two wanted and one running the service is available and progressing",
  withHarness({}, async (h) => {
    await h.publish("v1", { id: "one" });
    await h.serves("v1", "one");
    await h.publish("v2", { id: "slow", readyDelayMs: 1_000, unreadyAs: "initializing" });
    await until(() => h.supervisor.conditions().desired === 2);
    const before = h.supervisor.conditions();
    assert.equal(
      [before.available, before.progressing, before.reconciled, before.degraded],
      [true, true, false, false],
    );
    await h.serves("v2", "slow");
    await until(() => h.supervisor.conditions().reconciled);
    assert.is(h.supervisor.conditions().converged, true);
  }),
);

test(
  "case 131: an oracle that fails later degrades the service, and unreadies nothing",
  withHarness({}, async (h) => {
    await h.publish("v1", { id: "one" });
    await h.serves("v1", "one");
    await until(() => h.supervisor.conditions().converged);
    await h.oracle.write("{ torn");
    await h.supervisor.pollNow();
    const conditions = h.supervisor.conditions();
    assert.equal(
      [conditions.available, conditions.degraded, conditions.converged, conditions.reconciled],
      [true, true, true, false],
    );
    assert.match(conditions.error ?? "", "not JSON");
    assert.is(h.supervisor.serves("v1"), true);
    assert.match((await h.get("/v1/who")).text, "one");
    await h.event("oracle_failed");
  }),
);

test(
  "case 132: a rollout under way is progress, and not yet reconciled",
  withHarness({}, async (h) => {
    await h.publish("v1", { id: "one" });
    await h.serves("v1", "one");
    await h.publish("v1", { id: "two", readyDelayMs: 60_000, unreadyAs: "initializing" });
    await until(() => h.supervisor.list()[0]?.rollout !== undefined);
    const conditions = h.supervisor.conditions();
    assert.equal([conditions.progressing, conditions.reconciled], [true, false]);
  }),
);

test(
  "case 133: a route that is lost and comes back is told both times",
  withHarness({}, async (h) => {
    const counts: number[] = [];
    h.supervisor.onTargets(() => counts.push(h.supervisor.targets().length));
    await h.publish("v1", { id: "one" });
    await h.serves("v1", "one");
    await h.crash("v1");
    await until(() => h.supervisor.targets()[0]?.generation === 2);
    const changes = counts.filter((count, index) => count !== counts[index - 1]);
    assert.equal(changes, [1, 0, 1]);
  }),
);

test(
  "case 264: an empty list is ignored while children run, and is visible",
  withHarness({ config: { allowEmpty: false } }, async (h) => {
    await h.publish("v1", { id: "one" });
    await h.serves("v1", "one");
    for (let poll = 0; poll < 3; poll++) await h.remove("v1");
    assert.match((await h.get("/v1/who")).text, "one");
    assert.match(h.supervisor.conditions().error ?? "", "lists nothing");
    await h.event("oracle_empty");
  }),
);

test(
  "case 98: a child that loses and regains readiness; and an unknown version",
  withHarness({ config: { monitorIntervalMs: 30 } }, async (h) => {
    await h.publish("v1", { id: "one" });
    await h.serves("v1", "one");
    assert.is(h.supervisor.serves("v1"), true);
    await h.get("/v1/unready");
    await until(() => !h.supervisor.serves("v1"));
    // Its requests are still served: a probe is no reason to lose them.
    assert.match((await h.get("/v1/who")).text, "one");
    await h.get("/v1/reready");
    await until(() => h.supervisor.serves("v1"));
    assert.is(h.supervisor.serves("v9"), false);
  }),
);

test(
  "case 99: a good answer that is too old does not count",
  withHarness({ config: { monitorIntervalMs: 60_000, monitorStaleMs: 100 } }, async (h) => {
    await h.publish("v1", { id: "one" });
    await h.serves("v1", "one");
    await until(() => !h.supervisor.serves("v1"));
  }),
);

test(
  "case 100: the version is as ready as the generation that serves, not the one that leaves",
  withHarness({ config: { monitorIntervalMs: 30, bakeMs: 60_000 } }, async (h) => {
    await h.publish("v1", { id: "one" });
    await h.serves("v1", "one");
    await h.get("/v1/unready");
    await until(() => !h.supervisor.serves("v1"));
    await h.publish("v1", { id: "two" });
    await h.serves("v1", "two");
    await until(() => h.supervisor.serves("v1"));
    await h.get("/v1/unready");
    await until(() => !h.supervisor.serves("v1"));
  }),
);

test(
  "case 102: the fallback for old children is told once for each generation",
  withHarness({ config: { monitorIntervalMs: 20 } }, async (h) => {
    await h.publish("v1", { id: "one", noReady: true, legacy: true });
    await h.serves("v1", "one");
    await pause(200);
    assert.is(h.events.since(0).filter((one) => one.kind === "readiness_fallback").length, 1);
    await h.publish("v1", { id: "two", noReady: true, legacy: true });
    await h.serves("v1", "two");
    assert.is(h.events.since(0).filter((one) => one.kind === "readiness_fallback").length, 2);
  }),
);

test(
  "generations, phases, restarts, quarantines, held requests and polls are metrics",
  withHarness({}, async (h) => {
    await h.publish("v1", { id: "one" });
    await h.serves("v1", "one");
    await h.publish("v1", { id: "two", print: { protocolVersion: "v2" } });
    await h.event("rollout_failed");
    await h.crash("v1");
    await until(() => h.supervisor.targets()[0]?.generation === 2);
    const text = await h.metrics.text();
    for (
      const line of [
        /baton_generations\{service="shard",version="v1",phase="running",role="current"\} 1/,
        /baton_generation_leases\{[^}]*kind="request"\} 0/,
        /baton_quarantined_builds\{service="shard",version="v1"\} 1/,
        /baton_child_starts_total\{service="shard",version="v1"\} 2/,
        /baton_child_crashes_total\{service="shard",version="v1"\} 1/,
        /baton_traffic_switches_total\{[^}]*how="start"\} 2/,
        /baton_rollout_failures_total\{[^}]*class="preflight"\} 1/,
        /baton_oracle_polls_total\{service="shard",result="ok"\} \d+/,
        /baton_generation_phase_seconds_count\{[^}]*phase="starting"\} 2/,
        /baton_ready_seconds_count\{service="shard"\} 2/,
        /baton_held_requests_waiting\{service="shard"\} 0/,
      ]
    ) {
      assert.match(text, line);
    }
  }),
);

test("case 260: a supervisor that starts again serves what the oracle said before", async () => {
  const first = await createHarness();
  await first.publish("v1", { id: "one" });
  await first.serves("v1", "one");
  await first.close({ keepFolder: true });
  const { rm } = await import("node:fs/promises");
  // The oracle cannot be read: the list that was accepted last counts.
  await rm(`${first.folder}/oracle/versions.json`);
  const second = await createHarness({ folder: first.folder });
  try {
    await second.serves("v1", "one");
    assert.is(second.supervisor.healthz()[0]?.status, "running");
    assert.is(second.lines.filter((line) => line.event === "download_started").length, 0);
  } finally {
    await second.close();
  }
});

test.run();
