import { test } from "uvu";
import * as assert from "uvu/assert";
import { BatonError } from "../../src/errors.ts";
import type { OperatorOptions, OperatorVerb } from "../../src/supervisor/operators.ts";
import { createHarness, type Harness, pause, until, withHarness } from "./harness.ts";

async function refused(
  h: Harness,
  verb: OperatorVerb,
  options: OperatorOptions = {},
): Promise<string> {
  try {
    await h.supervisor.control("v1", verb, options);
  } catch (error) {
    assert.instance(error, BatonError);
    assert.is((error as BatonError).code, "conflict");
    return (error as BatonError).message;
  }
  throw new Error(`${verb} was not refused`);
}

async function twoBuilds(h: Harness): Promise<[string, string]> {
  const one = await h.publish("v1", { id: "one" });
  await h.serves("v1", "one");
  await h.event("build_proven");
  const two = await h.publish("v1", { id: "two" });
  await h.serves("v1", "two");
  return [one.sha256, two.sha256];
}

test(
  "paused: a new build waits until it is resumed; a crash is still repaired",
  withHarness({}, async (h) => {
    await h.publish("v1", { id: "one" });
    await h.serves("v1", "one");
    await h.supervisor.control("v1", "pause", { reason: "freeze" });
    await h.publish("v1", { id: "two" });
    await pause(80);
    assert.is(h.events.since(0).filter((event) => event.kind === "rollout_started").length, 1);
    await h.crash("v1");
    await h.serves("v1", "one");
    assert.is(h.supervisor.list()[0]?.operator.paused, true);
    assert.is(h.supervisor.list()[0]?.operator.reason, "freeze");
    await h.supervisor.control("v1", "resume");
    await h.serves("v1", "two");
  }),
);

test(
  "paused with traffic: requests wait, and go on when it is resumed, on what serves then",
  withHarness({}, async (h) => {
    await h.publish("v1", { id: "one" });
    await h.serves("v1", "one");
    await h.supervisor.control("v1", "pause", { traffic: true });
    const held = h.get("/v1/who");
    const two = await h.publish("v1", { id: "two" });
    assert.match(h.supervisor.list()[0]?.goal ?? "", /^paused /, "no roll-out begins by itself");
    assert.equal(await h.supervisor.control("v1", "pause"), { paused: true, traffic: true });
    // An operator may swap meanwhile.
    await h.supervisor.control("v1", "pin", { sha256: two.sha256 });
    await until(() => h.supervisor.targets()[0]?.generation === 2);
    await h.supervisor.control("v1", "resume");
    assert.match((await held).text, /^two /);
  }),
);

test(
  "requests wait for a paused version only so long",
  withHarness({ config: { pauseHoldMs: 100 } }, async (h) => {
    await h.publish("v1", { id: "one" });
    await h.serves("v1", "one");
    await h.supervisor.control("v1", "pause", { traffic: true });
    const answer = await h.get("/v1/who");
    assert.is(answer.status, 503);
    assert.is(answer.headers.get("retry-after"), "1");
  }),
);

test(
  "a pin holds the version to a build on disk, against the oracle, until it is taken away",
  withHarness({}, async (h) => {
    const [one, two] = await twoBuilds(h);
    await h.supervisor.control("v1", "pin", { sha256: one });
    await h.serves("v1", "one");
    await h.publish("v1", { id: "three" });
    await pause(80);
    assert.match((await h.get("/v1/who")).text, "one");
    assert.match(
      await refused(h, "pin", { sha256: "f".repeat(64) }),
      "neither listed nor installed",
    );
    await h.supervisor.control("v1", "unpin");
    await h.serves("v1", "three");
    assert.match(await refused(h, "unpin"), "nothing is pinned");
    assert.ok(h.supervisor.list()[0]?.installed.includes(two));
  }),
);

test(
  "a rollback goes to the build before, without network, and holds until the list changes",
  withHarness({}, async (h) => {
    const [one, two] = await twoBuilds(h);
    const { rm } = await import("node:fs/promises");
    // Without network: the artifacts are gone.
    await rm(`${h.folder}/oracle/${one}.zip`);
    await rm(`${h.folder}/oracle/${two}.zip`);
    const result = await h.supervisor.control("v1", "rollback");
    assert.equal(result, { from: two, to: one });
    await h.serves("v1", "one");
    await h.supervisor.pollNow();
    await pause(50);
    assert.match((await h.get("/v1/who")).text, "one");
    await h.publish("v1", { id: "three" });
    await h.serves("v1", "three");
  }),
);

test(
  "a rollback in the bake goes back to the warm build",
  withHarness({ config: { bakeMs: 400 } }, async (h) => {
    await twoBuilds(h);
    await h.supervisor.control("v1", "rollback");
    await h.serves("v1", "one");
  }),
);

test(
  "what cannot be is refused with the reason",
  withHarness({}, async (h) => {
    const one = await h.publish("v1", { id: "one" });
    await h.serves("v1", "one");
    assert.match(await refused(h, "rollback"), "no earlier build is installed");
    assert.match(await refused(h, "rollback", { sha256: one.sha256 }), "serves already");
    assert.match(await refused(h, "promote"), "no canary");
    assert.match(await refused(h, "deny"), "no other is installed");
    assert.match(await refused(h, "allow"), "no such build");
    await h.supervisor.control("v1", "pin");
    assert.match(await refused(h, "deny", { sha256: one.sha256 }), "pinned");
    try {
      await h.supervisor.control("v9", "pause");
      assert.unreachable();
    } catch (error) {
      assert.is((error as BatonError).code, "unknown_version");
    }
  }),
);

test(
  "a denied build is not started until it is allowed",
  withHarness({}, async (h) => {
    await h.publish("v1", { id: "one" });
    await h.serves("v1", "one");
    const { makeBuild } = await import("../support/builds.ts");
    const two = await makeBuild({ id: "two" });
    await h.supervisor.control("v1", "deny", { sha256: two.sha256, reason: "leaks" });
    await h.publish("v1", { id: "two" });
    await pause(80);
    assert.match((await h.get("/v1/who")).text, "one");
    const [entry] = h.supervisor.list()[0]?.quarantined ?? [];
    assert.equal([entry?.class, entry?.message], ["denied", "leaks"]);
    await h.supervisor.control("v1", "allow", { sha256: two.sha256 });
    await h.serves("v1", "two");
  }),
);

test(
  "denying the build that serves moves to the one before it",
  withHarness({}, async (h) => {
    await twoBuilds(h);
    await h.supervisor.control("v1", "deny");
    await h.serves("v1", "one");
    assert.match(
      await refused(h, "pin", { sha256: h.supervisor.list()[0]?.desired?.sha256 ?? "" }),
      "denied",
    );
    await h.supervisor.control("v1", "allow");
    await h.serves("v1", "two");
  }),
);

test(
  "a quarantined build is tried again when an operator allows it",
  withHarness({}, async (h) => {
    await h.publish("v1", { id: "one" });
    await h.serves("v1", "one");
    const bad = await h.publish("v1", { id: "two", print: { protocolVersion: "v2" } });
    await h.event("rollout_failed", (event) => event.sha256 === bad.sha256);
    const before = h.events.lastId;
    await h.supervisor.control("v1", "allow");
    await h.event("rollout_failed", (event) => event.sha256 === bad.sha256, before);
  }),
);

test(
  "a restart brings a new process of the same build, without a gap",
  withHarness({}, async (h) => {
    await h.publish("v1", { id: "one" });
    await h.serves("v1", "one");
    const slow = h.get("/v1/slow?ms=1000");
    await until(() => h.supervisor.generations()[0]?.leases === 1);
    await h.supervisor.control("v1", "restart");
    await until(() => h.supervisor.targets()[0]?.generation === 2);
    assert.is((await slow).text, "one");
    assert.match((await h.get("/v1/who")).text, "one");
    assert.is(h.lines.filter((line) => line.event === "download_started").length, 1);
  }),
);

test("the operators' hand is kept over a restart of Baton", async () => {
  const first = await createHarness();
  const [one, two] = await twoBuilds(first);
  await first.supervisor.control("v1", "rollback", { reason: "too slow" });
  await first.serves("v1", "one");
  await first.close({ keepFolder: true });
  const second = await createHarness({ folder: first.folder });
  try {
    await second.serves("v1", "one");
    const operator = second.supervisor.list()[0]?.operator;
    assert.is(operator?.rolledBackFrom, two);
    assert.is(operator?.rolledBackTo, one);
    assert.is(operator?.reason, "too slow");
  } finally {
    await second.close();
  }
});

test.run();
