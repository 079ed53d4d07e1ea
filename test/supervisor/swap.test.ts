import { connect, type Socket } from "node:net";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { pause, until, withHarness } from "./harness.ts";

test(
  "a published build is started, served, and replaced without a gap by the next one",
  withHarness({}, async (h) => {
    await h.publish("v1", { id: "one" });
    await h.serves("v1", "one");
    const slow = h.get("/v1/slow?ms=1000");
    await until(() => h.supervisor.generations().some((one) => one.leases > 0));
    await h.publish("v1", { id: "two" });
    await h.serves("v1", "two");
    assert.equal((await slow).text, "one");
    const report = await h.event("drain_report");
    assert.is(report.cut, 0);
    assert.is(report.finished, report.leases);
    await until(() => h.supervisor.generations().length === 1);
  }),
);

test(
  "the new target is published before the old one is retired, in one turn",
  withHarness({}, async (h) => {
    await h.publish("v1", { id: "one" });
    await h.serves("v1", "one");
    const [old] = h.supervisor.targets();
    let seen: string[] | undefined;
    old?.onRetire(() => {
      seen = h.supervisor.targets().map((target) => target.label);
    });
    await h.publish("v1", { id: "two" });
    await until(() => old?.retired === true);
    assert.equal(seen, ["shard/v1#2"]);
  }),
);

test(
  "case 84: a replacement that never gets ready leaves the old one serving, untouched",
  withHarness({
    config: { readyTimeoutMs: 1_000, readyAttempts: 1, retryBackoffMs: 60_000 },
  }, async (h) => {
    await h.publish("v1", { id: "one" });
    await h.serves("v1", "one");
    const [old] = h.supervisor.generations();
    const bad = await h.publish("v1", { id: "two", neverReady: true });
    const failed = await h.event("rollout_failed", (event) => event.sha256 === bad.sha256);
    assert.is(failed.class, "readiness");
    assert.is(failed.retryInMs, undefined);
    await until(() => h.supervisor.generations().length === 1);
    const status = h.supervisor.list()[0];
    assert.is(status?.rollout, undefined);
    assert.is(status?.quarantined[0]?.class, "readiness");
    const [current] = h.supervisor.generations();
    assert.is(current, old);
    assert.is(current?.phase, "running");
    assert.is(current?.role, "current");
    assert.is((await h.get("/v1/who")).status, 200);
    // The next poll does not try the same build again.
    const before = h.events.lastId;
    await h.supervisor.pollNow();
    await pause(100);
    assert.equal(h.events.since(before).filter((one) => one.kind === "rollout_started"), []);
  }),
);

test(
  "a build that is slow to get ready has as many attempts as configured, each with twice the time",
  withHarness({
    config: { readyTimeoutMs: 500, readyAttempts: 3, retryBackoffMs: 20, retryBackoffMaxMs: 20 },
  }, async (h) => {
    await h.publish("v1", { id: "one" });
    await h.serves("v1", "one");
    const bad = await h.publish("v1", { id: "two", neverReady: true });
    const blocked = (): boolean =>
      h.supervisor.list()[0]?.quarantined[0]?.retryAt === undefined &&
      h.supervisor.list()[0]?.quarantined.length === 1;
    await until(blocked);
    const waits = h.events.since(0)
      .filter((event) => event.kind === "rollout_failed" && event.sha256 === bad.sha256)
      .map((event) => Number(/after (\d+) ms/.exec(String(event.error))?.[1]));
    assert.is(waits.length, 3);
    assert.ok((waits[1] ?? 0) >= 1_000 && (waits[2] ?? 0) >= 2_000, waits.join());
    assert.is(h.supervisor.list()[0]?.quarantined[0]?.failures, 3);
  }),
);

test(
  "case 85: a replacement that fails its preflight leaves the old one serving",
  withHarness({}, async (h) => {
    await h.publish("v1", { id: "one" });
    await h.serves("v1", "one");
    await h.publish("v1", { id: "two", print: { protocolVersion: "v2" } });
    await h.event("rollout_failed", (event) => event.class === "preflight");
    assert.is(h.supervisor.generations().length, 1);
    assert.is(h.supervisor.list()[0]?.rollout, undefined);
    assert.is(h.supervisor.list()[0]?.quarantined[0]?.class, "preflight");
    assert.match((await h.get("/v1/who")).text, "one");
  }),
);

test(
  "case 86: the same where high availability asks for postgres and the new build has hybrid storage",
  withHarness({ config: { binaryName: "devshard", ha: "true" } }, async (h) => {
    const binaryName = "devshard";
    await h.publish("v1", { id: "one", binaryName, print: { storageMode: "postgres" } });
    await h.serves("v1", "one");
    await h.publish("v1", { id: "two", binaryName, print: { storageMode: "hybrid" } });
    await h.event("rollout_failed", (event) => event.class === "preflight");
    assert.is(h.supervisor.generations().length, 1);
    assert.match((await h.get("/v1/who")).text, "one");
  }),
);

test(
  "case 265: a listed hash that the artifact does not have leaves the old one serving",
  withHarness({}, async (h) => {
    await h.publish("v1", { id: "one" });
    await h.serves("v1", "one");
    const { makeBuild } = await import("../support/builds.ts");
    await h.oracle.publish("v1", await makeBuild({ id: "two" }), "0".repeat(64));
    await h.supervisor.pollNow();
    await h.event("rollout_failed", (event) => event.class === "hash");
    assert.match((await h.get("/v1/who")).text, "one");
    assert.is(h.supervisor.generations()[0]?.phase, "running");
  }),
);

test(
  "case 76: without overlap the route goes first, then the leases, then drain and signal, then the new one",
  withHarness({ config: { overlap: "never" } }, async (h) => {
    await h.publish("v1", { id: "one" });
    await h.serves("v1", "one");
    const slow = h.get("/v1/gate");
    await until(() => h.supervisor.generations().some((one) => one.leases === 1));
    await h.publish("v1", { id: "two" });
    await until(() => h.supervisor.generations()[0]?.role === "leaving");
    assert.equal(h.supervisor.targets(), []);
    // This one comes in the gap: it is held, and continues on the new generation.
    const held = h.get("/v1/who");
    await pause(50);
    assert.equal(await h.dataLines("v1", "calls.log"), []);
    await h.openGate("v1");
    assert.is((await slow).text, "one");
    assert.match((await held).text, /^two /);
    const calls = await h.dataLines("v1", "calls.log");
    assert.match(calls[0] ?? "", "POST /drain");
    assert.match(calls.at(-1) ?? "", "SIGTERM inflight=0");
    const starts = await h.dataLines("v1", "starts.log");
    assert.is(starts.length, 2);
    const order = h.events.since(0).filter((event) => event.kind === "generation_moved")
      .map((event) => `${event.generation} ${event.to}`);
    assert.ok(order.indexOf("1 stopped") < order.indexOf("2 starting"), order.join());
  }),
);

for (
  const [number, before, after, overlaps] of [
    [50, undefined, "postgres", false],
    [51, "hybrid", "postgres", false],
    [52, "postgres", undefined, false],
    [53, "postgres", "hybrid", false],
    [54, "postgres", "postgres", true],
  ] as const
) {
  test(
    `case ${number}: devshard with storage ${before} to ${after}: ${
      overlaps ? "side by side" : "one after the other"
    }`,
    withHarness({ config: { binaryName: "devshard", overlap: undefined } }, async (h) => {
      const build = (id: string, storageMode: string | undefined) => ({
        id,
        binaryName: "devshard",
        print: storageMode === undefined ? {} : { storageMode },
      });
      await h.publish("v1", build("one", before));
      await h.serves("v1", "one");
      await h.publish("v1", build("two", after));
      await h.serves("v1", "two");
      const order = h.events.since(0).filter((event) => event.kind === "generation_moved")
        .map((event) => `${event.generation} ${event.to}`);
      assert.is(order.indexOf("1 retiring") > order.indexOf("2 running"), overlaps, order.join());
    }),
  );
}

test(
  "case 55: another program overlaps although nothing is known of its storage",
  withHarness({ config: { overlap: undefined } }, async (h) => {
    await h.publish("v1", { id: "one" });
    await h.serves("v1", "one");
    await h.publish("v1", { id: "two" });
    await h.serves("v1", "two");
    const order = h.events.since(0).filter((event) => event.kind === "generation_moved")
      .map((event) => `${event.generation} ${event.to}`);
    assert.ok(order.indexOf("1 retiring") > order.indexOf("2 running"));
  }),
);

test(
  "the switch waits until the new generation says that it is warm",
  withHarness({}, async (h) => {
    await h.publish("v1", { id: "one" });
    await h.serves("v1", "one");
    await h.publish("v1", { id: "two", warmAfterMs: 800 });
    await until(() => h.supervisor.list()[0]?.rollout?.stage === "warming");
    assert.match((await h.get("/v1/who")).text, "one");
    await h.serves("v1", "two");
    assert.is((await h.event("warm_up_ended")).end, "warm");
  }),
);

test(
  "a newer build than the one that is being brought takes its place",
  withHarness({}, async (h) => {
    await h.publish("v1", { id: "one" });
    await h.serves("v1", "one");
    await h.publish("v1", { id: "two", readyDelayMs: 60_000, unreadyAs: "initializing" });
    await until(() => h.supervisor.generations().length === 2);
    await h.publish("v1", { id: "three" });
    await h.serves("v1", "three");
    await h.event("rollout_called_off");
    await until(() => h.supervisor.generations().length === 1);
    assert.equal(h.supervisor.list()[0]?.quarantined, []);
  }),
);

test(
  "back-to-back swaps go on while earlier generations still drain",
  withHarness({}, async (h) => {
    await h.publish("v1", { id: "g0" });
    await h.serves("v1", "g0");
    const clients: Socket[] = [];
    for (let index = 1; index <= 3; index++) {
      const client = connect(Number(new URL(h.origin).port), "127.0.0.1");
      clients.push(client);
      let text = "";
      client.on("data", (bytes) => (text += bytes));
      client.write("GET /v1/events?gated HTTP/1.1\r\nhost: x\r\n\r\n");
      await until(() => text.includes(`data: g${index - 1} `));
      await h.publish("v1", { id: `g${index}` });
      await h.serves("v1", `g${index}`);
    }
    const leaving = () =>
      h.supervisor.generations()
        .filter((one) => one.role === "leaving" && one.countLeases("stream") === 1)
        .map((one) => one.build.buildId);
    // The last one leaves when its successor is proven.
    await until(() => leaving().length === 3);
    assert.equal(leaving().sort(), ["g0", "g1", "g2"]);
    // Nobody cuts the streams: their clients leave, and then the generations end.
    for (const client of clients) client.destroy();
    await until(() => h.supervisor.generations().length === 1);
  }),
);

test(
  "one version never waits for another (M1): a stuck start holds neither starts nor removals",
  withHarness({}, async (h) => {
    await h.publish("v2", { id: "other" });
    await h.serves("v2", "other");
    await h.publish("v1", { id: "stuck", readyDelayMs: 60_000, unreadyAs: "initializing" });
    await until(() => h.supervisor.generations().length === 2);
    await h.publish("v2", { id: "newer" });
    await h.serves("v2", "newer");
    await h.remove("v2");
    assert.is((await h.get("/v2/who")).status, 404);
  }),
);

test(
  "files that were changed under a running child are installed again and the child replaced",
  withHarness({}, async (h) => {
    const build = await h.publish("v1", { id: "one" });
    await h.serves("v1", "one");
    const { appendFile } = await import("node:fs/promises");
    await appendFile(`${h.folder}/state/shard/bin/v1/${build.sha256}/child`, "# tampered\n");
    await h.supervisor.pollNow();
    await h.event("install_changed_on_disk");
    await until(() => h.supervisor.targets()[0]?.generation === 2);
    assert.match((await h.get("/v1/who")).text, "one");
  }),
);

test(
  "case 88: an install that matches is neither downloaded nor swapped at the next poll",
  withHarness({}, async (h) => {
    await h.publish("v1", { id: "one" });
    await h.serves("v1", "one");
    const before = h.events.lastId;
    await h.supervisor.pollNow();
    await h.supervisor.pollNow();
    await pause(50);
    const kinds = h.events.since(before).map((event) => event.kind);
    assert.not(kinds.includes("rollout_started"), kinds.join());
    assert.is(h.lines.filter((line) => line.event === "download_started").length, 1);
  }),
);

test.run();
