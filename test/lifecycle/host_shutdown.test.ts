import { test } from "uvu";
import * as assert from "uvu/assert";
import { createLifecycle, shutDownHost, unwindAllowanceMs } from "../../src/lifecycle/mod.ts";
import type { ShutdownReport } from "../../src/lifecycle/mod.ts";
import { silentLog } from "../../src/observe/log.ts";
import { settle, VirtualClock } from "../support/virtual_clock.ts";

/** A host whose parts only write down what is asked of them; steps can be held open. */
function host(
  options: { announceMs?: number; budgetMs?: number; childGraceMs?: number; cutByPart?: number } =
    {},
) {
  const clock = new VirtualClock();
  const lifecycle = createLifecycle({ clock, announceMs: options.announceMs ?? 0 });
  const calls: string[] = [];
  const times: Record<string, number> = {};
  const open: Record<string, Promise<void>> = {};
  const step = (name: string, detail = "") => {
    calls.push(name + detail);
    times[name] = clock.monotonic();
    return open[name] ?? Promise.resolve();
  };
  lifecycle.onChange((state) => calls.push(`state ${state}`));
  let report: ShutdownReport | undefined;
  const begin = () =>
    shutDownHost({
      lifecycle,
      clock,
      log: silentLog,
      budgetMs: options.budgetMs ?? 60_000,
      childGraceMs: options.childGraceMs ?? 10_000,
      parts: [{
        name: "shard",
        quiesce: () => step("quiesce"),
        drain: (until) => step("drain", ` ${until}`),
        stop: (until) => step("stop", ` ${until}`),
        kill: () => step("kill"),
        cut: () => options.cutByPart ?? 0,
      }],
      listeners: { close: () => step("close"), destroy: () => step("destroy") },
    }).then((value) => (report = value));
  const hold = (name: string) => {
    let release!: () => void;
    open[name] = new Promise((resolve) => (release = resolve));
    return release;
  };
  return { clock, lifecycle, calls, times, begin, hold, report: () => report };
}

test("case 225: an idle host goes down at once, in order", async () => {
  const { begin, calls, report, clock } = host();
  begin();
  await settle();
  assert.equal(calls, [
    "state draining",
    "quiesce",
    "drain 50000",
    "state stopping",
    "stop 60000",
    "close",
    "state stopped",
  ]);
  assert.equal(report(), { cut: 0, forced: false, tookMs: 0 });
  assert.is(clock.pending, 0);
});

test("case 220: nothing new is begun while it announces, and requests are still taken", async () => {
  const { begin, calls, clock, lifecycle } = host({ announceMs: 5000 });
  begin();
  await settle();
  assert.equal(calls, ["state announcing", "quiesce"]);
  assert.ok(lifecycle.accepting);
  await clock.advance(5000);
  assert.is(lifecycle.state, "stopped");
});

test("case 222: a host that is forced first does not announce", async () => {
  const { begin, calls, lifecycle, report } = host({ announceMs: 5000 });
  lifecycle.force();
  begin();
  await settle();
  assert.not(calls.includes("state announcing"));
  assert.is(lifecycle.state, "stopped");
  assert.is(report()?.forced, true);
});

test("case 226: forced with an hour of budget, it stops at once", async () => {
  const { begin, calls, clock, lifecycle, hold, report } = host({ budgetMs: 3_600_000 });
  const release = lifecycle.admit();
  hold("stop");
  hold("close");
  begin();
  await settle();
  lifecycle.force();
  await settle();
  assert.is(clock.monotonic(), 0);
  assert.ok(calls.includes("kill"));
  assert.not(calls.some((call) => call.startsWith("drain")), "no drain calls once forced");
  assert.is(report(), undefined, "a part that is not reaped is still waited for");
  release?.();
});

test("case 227: a stuck request is cut when the budget is over", async () => {
  const { begin, clock, lifecycle, report, calls } = host({ budgetMs: 50, childGraceMs: 0 });
  const release = lifecycle.admit();
  lifecycle.forced.addEventListener("abort", () => release?.());
  begin();
  await clock.advance(50);
  assert.is(lifecycle.state, "stopped");
  assert.ok(calls.includes("destroy"));
  assert.is(report()?.cut, 1);
  assert.is(lifecycle.inflight, 0);
});

test("case 228: a part that never unwinds delays the drain by its allowance only", async () => {
  const { begin, calls, clock, hold, times } = host({ budgetMs: 20_000, childGraceMs: 0 });
  hold("quiesce");
  begin();
  await settle();
  assert.equal(calls, ["state draining", "quiesce"]);
  await clock.advance(2000);
  assert.is(times.drain, 2000);
  assert.is(calls.at(-1), "state stopped");
});

test("case 229: forced while a part is stuck, nothing is drained and everything is killed", async () => {
  const { begin, calls, lifecycle, hold } = host();
  hold("quiesce");
  begin();
  await settle();
  lifecycle.force();
  await settle();
  assert.not(calls.some((call) => call.startsWith("drain")));
  assert.ok(calls.includes("kill"));
});

test("case 230: a force that races the normal end always ends stopped, with nothing in flight", async () => {
  for (let round = 0; round < 64; round += 1) {
    const { begin, lifecycle, report } = host();
    const release = lifecycle.admit();
    begin();
    const steps = [() => release?.(), () => lifecycle.force()];
    if (round % 2 === 1) steps.reverse();
    for (const step of steps) {
      step();
      for (let turn = 0; turn < round % 8; turn += 1) await Promise.resolve();
    }
    await settle();
    assert.is(lifecycle.state, "stopped");
    assert.is(lifecycle.inflight, 0);
    assert.ok(report());
  }
});

test("case 231: the unwind allowance is a tenth of what is left, at most 5 s", () => {
  assert.is(unwindAllowanceMs(25 * 60_000), 5000);
  assert.is(unwindAllowanceMs(20_000), 2000);
  assert.is(unwindAllowanceMs(0.000001), 0);
  assert.is(unwindAllowanceMs(-1), 0);
});

test("case 233: children are not asked to stop while an exchange is open", async () => {
  const { begin, calls, lifecycle } = host();
  const release = lifecycle.admit();
  begin();
  await settle();
  assert.is(lifecycle.state, "draining");
  assert.not(calls.some((call) => /^(drain|stop)/.test(call)));
  release?.();
  await settle();
  assert.is(lifecycle.state, "stopped");
});

test("case 234: children are drained until the deadline less their grace, stopped until the deadline", async () => {
  const { begin, calls } = host({ budgetMs: 3_600_000, childGraceMs: 600_000 });
  begin();
  await settle();
  assert.ok(calls.includes("drain 3000000"));
  assert.ok(calls.includes("stop 3600000"));
});

test("case 235: the deadline that was fixed at the signal counts, whatever the parts want", async () => {
  const { begin, calls, clock, hold } = host({ budgetMs: 30, childGraceMs: 600_000 });
  hold("close");
  begin();
  await clock.advance(30);
  assert.ok(calls.includes("state forcing"));
  assert.is(calls.at(-1), "state stopped");
});

test("case 236: a drain that takes too long is followed by stopping, in the same order", async () => {
  const { begin, calls, clock, hold, times } = host();
  hold("drain");
  begin();
  await clock.advance(50_000);
  assert.is(times.stop, 50_000);
  assert.equal(calls.slice(-4), ["state stopping", "stop 60000", "close", "state stopped"]);
});

test("exchanges that outlive their time are counted as cut", async () => {
  const { begin, clock, lifecycle, report, hold } = host({ budgetMs: 1000, childGraceMs: 0 });
  hold("close");
  lifecycle.admit();
  lifecycle.admit();
  begin();
  await clock.advance(1000);
  assert.is(report()?.cut, 2);
  assert.is(report()?.forced, true);
});

test("what a part had to cut is counted, and is no reason to use force", async () => {
  const { begin, calls, report } = host({ cutByPart: 2 });
  begin();
  await settle();
  assert.equal(report(), { cut: 2, forced: false, tookMs: 0 });
  assert.not(calls.includes("kill"));
});

test("a part that fails is no reason to leave the others alone", async () => {
  const clock = new VirtualClock();
  const lifecycle = createLifecycle({ clock });
  const calls: string[] = [];
  const part = (name: string, fails: boolean) => {
    const step = (what: string) => () => {
      calls.push(`${name} ${what}`);
      return fails ? Promise.reject(new Error("broken")) : Promise.resolve();
    };
    return {
      name,
      quiesce: step("quiesce"),
      drain: step("drain"),
      stop: step("stop"),
      kill: step("kill"),
    };
  };
  const report = await shutDownHost({
    lifecycle,
    clock,
    log: silentLog,
    budgetMs: 1000,
    childGraceMs: 0,
    parts: [part("a", true), part("b", false)],
    listeners: { close: () => Promise.resolve(), destroy: () => Promise.resolve() },
  });
  assert.is(report.forced, false);
  assert.ok(calls.includes("b stop") && calls.includes("a stop"));
});

test.run();
