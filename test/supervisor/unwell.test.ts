/** Children that live but do not serve: replaced without a cut, or left alone where that is right. */

import { test } from "uvu";
import * as assert from "uvu/assert";
import process from "node:process";
import { Patience } from "../../src/supervisor/patience.ts";
import { sideBySide } from "../support/side_by_side.ts";
import { type Harness, until, withHarness } from "./harness.ts";

const waiting = sideBySide(3);

const QUICK = {
  silentRestartMs: 300,
  monitorIntervalMs: 30,
  // Long enough for a busy machine: a child that answers late is not silent.
  monitorTimeoutMs: 1_000,
  killGraceMs: 300,
} as const;

const SILENT = { class: "unreachable", silent: true } as const;
const NOT_READY = { class: "not_ready" } as const;
const READY = { class: "ready" } as const;

test("silence counts from its first probe, and anything said ends it", () => {
  const patience = new Patience({ silentRestartMs: 100, unreadyRestartMs: 0 });
  assert.is(patience.probed(SILENT, 0), undefined);
  assert.is(patience.probed(SILENT, 99), undefined);
  assert.is(patience.probed(NOT_READY, 100), undefined);
  assert.is(patience.probed(SILENT, 150), undefined);
  assert.is(patience.probed(READY, 200), undefined);
  assert.is(patience.probed(SILENT, 260), undefined);
  assert.match(String(patience.probed(SILENT, 360)), "no probe for 100 ms");
  assert.is(patience.probed(SILENT, 361), undefined, "once each time");
  assert.match(String(patience.probed(SILENT, 460)), "no probe for 100 ms");
});

test("not ready counts silence too; 0 is never", () => {
  const both = new Patience({ silentRestartMs: 1000, unreadyRestartMs: 100 });
  assert.is(both.probed(NOT_READY, 0), undefined);
  assert.is(both.probed(SILENT, 50), undefined);
  assert.match(String(both.probed(NOT_READY, 100)), "not ready for 100 ms");
  const never = new Patience({ silentRestartMs: 0, unreadyRestartMs: 0 });
  for (let nowMs = 0; nowMs < 1e9; nowMs += 1e8) {
    assert.is(never.probed(nowMs % 2e8 === 0 ? SILENT : NOT_READY, nowMs), undefined);
  }
});

/** The version's first generation's process. */
async function started(h: Harness, options: Record<string, unknown> = {}): Promise<number> {
  await h.publish("v1", { id: "one", ...options });
  await h.serves("v1", "one");
  await h.event("build_proven");
  const pid = h.supervisor.generations()[0]?.process?.pid;
  if (pid === undefined) throw new Error("nothing runs");
  return pid;
}

const current = (h: Harness): number | undefined =>
  h.supervisor.generations().find((one) => one.role === "current")?.number;

waiting(
  "a child that hangs is replaced, and ended by force when its time is over",
  withHarness({ config: { ...QUICK, drainTimeoutMs: 600 } }, async (h) => {
    const pid = await started(h);
    const seen: number[] = [];
    h.supervisor.onTargets(() => seen.push(h.supervisor.targets().length));
    process.kill(pid, "SIGSTOP");
    const unwell = await h.event("child_unwell");
    assert.is(unwell.generation, 1);
    assert.is(unwell.replaced, true);
    assert.match(String(unwell.cause), "it answered no probe for 300 ms");
    await until(() => current(h) === 2);
    assert.match((await h.get("/v1/who")).text, /^one /);
    assert.not(seen.includes(0), "there was a moment without a target");
    await until(() => h.supervisor.generations().length === 1);
    const text = await h.metrics.text();
    assert.match(text, /baton_child_replacements_total\{[^}]*version="v1"\} 1\n/);
    assert.equal(h.supervisor.list()[0]?.quarantined, [], "nothing is held against the build");
  }),
);

waiting(
  "a child that lost its listener is replaced, and the stream that it has ends whole",
  withHarness({ config: QUICK }, async (h) => {
    await started(h);
    const stream = h.get("/v1/events?gated");
    await until(() => h.supervisor.generations().some((one) => one.leases > 0));
    await h.get("/v1/deaf");
    await until(() => current(h) === 2);
    assert.ok(h.supervisor.generations().some((one) => one.number === 1 && one.leases === 1));
    assert.match((await h.get("/v1/who")).text, /^one /);
    await h.openGate("v1");
    assert.match((await stream).text, /data: one \d+\n\ndata: \[DONE\]/);
    await until(() => h.supervisor.generations().length === 1);
  }),
);

waiting(
  "one that says that it is not ready is left alone, unless it is configured otherwise",
  withHarness({ config: QUICK }, async (h) => {
    await started(h);
    await h.get("/v1/unready");
    await until(() => h.supervisor.generations()[0]?.live?.ready === false);
    const since = h.supervisor.generations()[0]?.live?.atMs ?? 0;
    // Probed for longer than silence would be borne.
    await until(() => (h.supervisor.generations()[0]?.live?.atMs ?? 0) > since + 900);
    assert.is(current(h), 1);
    assert.not(h.events.since(0).some((event) => event.kind === "child_unwell"));
    await h.get("/v1/reready");
    await until(() => h.supervisor.serves("v1"));
  }),
);

waiting(
  "with unreadyRestartMs it is replaced too",
  withHarness({ config: { ...QUICK, unreadyRestartMs: 200 } }, async (h) => {
    await started(h);
    await h.get("/v1/unready");
    const unwell = await h.event("child_unwell");
    assert.match(String(unwell.cause), "it was not ready for 200 ms (not_ready: 503)");
    await until(() => current(h) === 2);
    await until(() => h.supervisor.serves("v1"));
  }),
);

waiting(
  "where two may not run at once it stays, and an operator is told",
  withHarness({ config: { ...QUICK, overlap: "never" } }, async (h) => {
    const pid = await started(h);
    process.kill(pid, "SIGSTOP");
    const unwell = await h.event("child_unwell");
    assert.is(unwell.replaced, false);
    assert.is(current(h), 1);
    process.kill(pid, "SIGCONT");
    await until(() => h.supervisor.serves("v1"));
    assert.is(current(h), 1);
    assert.match(await h.metrics.text(), /baton_child_starts_total\{[^}]*\} 1\n/);
  }),
);

waiting(
  "a replacement that does not run leaves what is there in its place, and is tried again",
  withHarness({ config: QUICK }, async (h) => {
    const pid = await started(h, { onlyFirstRuns: true });
    process.kill(pid, "SIGSTOP");
    const failed = await h.event("rollout_failed");
    assert.is(failed.class, "crash");
    assert.is(current(h), 1);
    await h.event("rollout_failed", () => true, failed.id);
    assert.is(current(h), 1);
    assert.equal(h.supervisor.list()[0]?.quarantined, []);
    process.kill(pid, "SIGCONT");
    await until(() => h.supervisor.serves("v1"));
    assert.match((await h.get("/v1/who")).text, `one ${pid} `);
  }),
);

test.run();
