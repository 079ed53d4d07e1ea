import { test } from "uvu";
import * as assert from "uvu/assert";
import { SessionAffinity } from "../../src/router/affinity.ts";
import { VirtualClock } from "../support/virtual_clock.ts";

const A = { worker: "a", dpRank: 0 };
const B = { worker: "b", dpRank: 1 };

function fixture(maxSessions = 100) {
  const clock = new VirtualClock();
  return { clock, affinity: new SessionAffinity({ clock, ttlMs: 60_000, maxSessions }) };
}

test("a session prefers where it ran until it was idle for the time to live", async () => {
  const { clock, affinity } = fixture();
  assert.is(affinity.preferred("s"), undefined);
  const lease = affinity.hold("s", A);
  await clock.advance(600_000);
  assert.is(affinity.preferred("s"), A, "a request in progress keeps it");
  lease.release();
  await clock.advance(59_999);
  assert.is(affinity.preferred("s"), A);
  await clock.advance(1);
  assert.is(affinity.preferred("s"), undefined);
  assert.is(affinity.size, 0);
});

test("a session that had to run elsewhere moves there", () => {
  const { affinity } = fixture();
  affinity.hold("s", A).release();
  affinity.hold("s", B);
  assert.is(affinity.preferred("s"), B);
});

test("the time to live counts from the end of the last of several requests", async () => {
  const { clock, affinity } = fixture();
  const first = affinity.hold("s", A), second = affinity.hold("s", A);
  first.release();
  first.release();
  await clock.advance(100_000);
  assert.is(affinity.preferred("s"), A);
  second.release();
  await clock.advance(60_000);
  assert.is(affinity.preferred("s"), undefined);
});

test("a full table gives up the session that was idle longest, never one in use", () => {
  const { affinity } = fixture(3);
  const held = affinity.hold("held", A);
  affinity.hold("old", A).release();
  affinity.hold("newer", A).release();
  affinity.hold("more", A);
  assert.is(affinity.preferred("old"), undefined);
  assert.is(affinity.preferred("newer"), A);
  assert.is(affinity.preferred("held"), A);
  affinity.hold("even more", A);
  affinity.hold("too many", A).release();
  assert.is(affinity.preferred("too many"), undefined);
  assert.is(affinity.size, 3);
  held.release();
  affinity.hold("fits", B);
  assert.is(affinity.preferred("fits"), B);
});

test("sessions that nobody asks for again do not stay", async () => {
  const { clock, affinity } = fixture(100_000);
  const open = affinity.hold("in use all the time", A);
  for (let i = 0; i < 1_000; i++) affinity.hold(`old ${i}`, A).release();
  await clock.advance(60_000);
  for (let i = 0; i < 1_000; i++) affinity.hold(`new ${i}`, A).release();
  assert.ok(affinity.size <= 1_002, String(affinity.size));
  assert.is(affinity.preferred("in use all the time"), A);
  open.release();
});

test("a worker that is gone is preferred no more, and late releases do no harm", () => {
  const { affinity } = fixture();
  const lease = affinity.hold("s", A);
  affinity.hold("t", B);
  affinity.forget("a");
  assert.is(affinity.preferred("s"), undefined);
  affinity.hold("s", B);
  lease.release();
  assert.is(affinity.preferred("s"), B);
  assert.is(affinity.preferred("t"), B);
});

test("a session id has 1 to 256 bytes", () => {
  const { affinity } = fixture();
  for (const id of ["", "x".repeat(257), "é".repeat(129)]) {
    assert.throws(() => affinity.hold(id, A), /1 to 256 bytes/);
  }
  affinity.hold("é".repeat(128), A);
});

test.run();
