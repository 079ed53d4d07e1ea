/** What operators are told of a version, in words. */

import { test } from "uvu";
import * as assert from "uvu/assert";
import type { QuarantineEntry } from "../../src/supervisor/quarantine.ts";
import { type NotedVersion, versionNotes } from "../../src/supervisor/version_notes.ts";
import { until, withHarness } from "./harness.ts";

const BAD = "bad0".repeat(16);
const GOOD = "900d".repeat(16);

const notes = (version: Partial<NotedVersion>): string[] =>
  versionNotes({
    name: "v1",
    desired: { sha256: BAD },
    rollout: undefined,
    quarantined: [],
    operator: {},
    lastError: undefined,
    backoffLeftMs: 0,
    servingSince: 1_000,
    ...version,
  });

const entry = (fields: Partial<QuarantineEntry> = {}): QuarantineEntry => ({
  name: "v1",
  sha256: BAD,
  class: "crash",
  message: "exit code 7",
  failures: 1,
  at: 2_000,
  ...fields,
});

test("there is nothing to say of a version that is well", () => {
  assert.equal(notes({}), []);
  assert.equal(notes({ operator: { proven: [GOOD], serving: GOOD, generation: 3 } }), []);
  const old = { message: "long ago", at: 500 };
  assert.equal(notes({ lastError: old }), [], "an error before what serves came is over");
  assert.equal(notes({ quarantined: [entry({ sha256: GOOD })] }), [], "nobody wants that build");
});

test("a build that failed: why, what happens next, what to do", () => {
  const lastError = { message: "exit code 7", at: 2_000 };
  assert.equal(notes({ quarantined: [entry()], lastError }), [
    "build bad0bad0bad0 failed (crash): exit code 7; it is not tried again: list another build, " +
    "or `baton allow v1`; `baton logs v1` has what it said",
  ]);
  const again = notes({ quarantined: [entry({ class: "transient", retryAt: 3_000 })] });
  assert.equal(again, [
    "build bad0bad0bad0 failed (transient): exit code 7; it is tried again at " +
    "1970-01-01T00:00:03.000Z",
  ]);
  const [now] = notes({ quarantined: [entry()], rollout: { sha256: BAD } });
  assert.match(String(now), "it is being tried again");
  const [denied] = notes({ quarantined: [entry({ class: "denied", message: "a leak" })] });
  assert.is(denied, "build bad0bad0bad0 is denied by an operator (a leak), until `baton allow v1`");
});

test("any other error is told with its time, once", () => {
  const lastError = { message: "the disk is full", at: 2_000 };
  const said = ["the disk is full (1970-01-01T00:00:02.000Z)"];
  assert.equal(notes({ lastError }), said);
  assert.equal(notes({ lastError, servingSince: undefined }), said, "nothing serves");
  assert.equal(notes({ lastError, backoffLeftMs: 3_200 }), [`${said}; it is started again in 4 s`]);
});

test("what operators decided is told, with their reason and the way back", () => {
  const operator = { paused: true, trafficPaused: true, reason: "the fair" };
  assert.equal(notes({ operator }), [
    "paused by an operator (the fair): no build is brought, and new requests wait, until " +
    "`baton resume v1`",
  ]);
  const [pinned] = notes({ operator: { pinned: GOOD } });
  assert.is(
    pinned,
    "pinned by an operator to 900d900d900d, whatever is listed, until `baton unpin v1`",
  );
  const [rolledBack] = notes({ operator: { rolledBackFrom: BAD } });
  assert.match(
    String(rolledBack),
    /rolled back by an operator from bad0bad0bad0: .*`baton allow v1`$/,
  );
  assert.equal(notes({ operator: { rolledBackFrom: GOOD } }), [], "the list has gone on");
});

test(
  "the status of a version has the notes while they hold",
  withHarness({}, async (h) => {
    await h.publish("v1", { id: "one" });
    await h.serves("v1", "one");
    const current = () => h.supervisor.list()[0]?.notes;
    assert.equal(current(), []);
    const bad = await h.publish("v1", { id: "two", exitAtOnce: 7 });
    await h.event("rollout_failed");
    await until(() => current()?.length === 1);
    assert.match(String(current()), `build ${bad.sha256.slice(0, 12)} failed (crash)`);
    await h.publish("v1", { id: "three" });
    await h.serves("v1", "three");
    assert.equal(current(), []);
  }),
);

test.run();
