import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import * as fc from "fast-check";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { silentLog } from "../../src/observe/log.ts";
import type { FailureClass } from "../../src/supervisor/failure.ts";
import { Quarantine } from "../../src/supervisor/quarantine.ts";
import { runtime } from "../support/runtime.ts";
import { inScratch } from "../support/scratch.ts";
import { VirtualClock } from "../support/virtual_clock.ts";

const A = "a".repeat(64);
const B = "b".repeat(64);

function open(clock: VirtualClock, path?: string): Promise<Quarantine> {
  return Quarantine.open({
    files: runtime.files,
    clock,
    random: { ...runtime.random, number: () => 0 },
    log: silentLog,
    retryBackoffMs: 10_000,
    retryBackoffMaxMs: 60_000,
    ...(path === undefined ? {} : { path }),
  });
}

test("a transient failure is tried again after a wait that doubles up to a limit (M2)", async () => {
  const clock = new VirtualClock();
  const quarantine = await open(clock);
  for (const wait of [10_000, 20_000, 40_000, 60_000, 60_000]) {
    const entry = await quarantine.record("v1", A, "transient", "no network");
    assert.is(entry.retryAt, clock.now() + wait);
    await clock.advance(wait - 1);
    assert.is(quarantine.blocks("v1", A)?.class, "transient");
    await clock.advance(1);
    assert.is(quarantine.blocks("v1", A), undefined);
  }
});

test("hosts that failed together do not come back together", async () => {
  const clock = new VirtualClock();
  const quarantine = await Quarantine.open({
    files: runtime.files,
    clock,
    random: { ...runtime.random, number: () => 0.5 },
    log: silentLog,
    retryBackoffMs: 10_000,
    retryBackoffMaxMs: 60_000,
  });
  assert.is((await quarantine.record("v1", A, "transient", "x")).retryAt, clock.now() + 11_000);
});

test("every other class holds for ever, for that build only", async () => {
  for (const failure of ["download", "hash", "preflight", "crash", "readiness"] as FailureClass[]) {
    const clock = new VirtualClock();
    const quarantine = await open(clock);
    await quarantine.record("v1", A, failure, "why");
    await clock.advance(1e9);
    assert.is(quarantine.blocks("v1", A)?.class, failure);
    assert.is(quarantine.blocks("v1", A)?.message, "why");
    assert.is(quarantine.blocks("v1", B), undefined);
    assert.is(quarantine.blocks("v2", A), undefined);
  }
});

test("another artifact in the list forgives; the same one does not", async () => {
  const quarantine = await open(new VirtualClock());
  await quarantine.record("v1", A, "crash", "x");
  await quarantine.artifactChanged("v1", A);
  assert.ok(quarantine.blocks("v1", A));
  await quarantine.artifactChanged("v1", B);
  assert.is(quarantine.blocks("v1", A), undefined);
});

test("an operator allows one build, or all of a version", async () => {
  const quarantine = await open(new VirtualClock());
  await quarantine.record("v1", A, "crash", "x");
  await quarantine.record("v1", B, "hash", "x");
  await quarantine.record("v2", A, "hash", "x");
  assert.is(await quarantine.allow("v1", A), true);
  assert.is(await quarantine.allow("v1", A), false);
  assert.is(quarantine.blocks("v1", A), undefined);
  assert.ok(quarantine.blocks("v1", B));
  assert.is(await quarantine.allow("v1"), true);
  assert.equal(quarantine.list().map((entry) => entry.name), ["v2"]);
});

test("a denied build stays denied through failures, successes and changes of the list", async () => {
  const clock = new VirtualClock();
  const quarantine = await open(clock);
  await quarantine.deny("v1", A, "loses data");
  await quarantine.record("v1", A, "transient", "x");
  await quarantine.artifactChanged("v1", B);
  await quarantine.succeeded("v1", A);
  await clock.advance(1e9);
  assert.is(quarantine.blocks("v1", A)?.class, "denied");
  await quarantine.allow("v1", A);
  assert.is(quarantine.blocks("v1", A), undefined);
});

test("a build that came into service starts with a clean sheet", async () => {
  const clock = new VirtualClock();
  const quarantine = await open(clock);
  await quarantine.record("v1", A, "transient", "x");
  await quarantine.record("v1", A, "transient", "x");
  await quarantine.succeeded("v1", A);
  assert.is((await quarantine.record("v1", A, "transient", "x")).retryAt, clock.now() + 10_000);
});

test("the memory survives a restart, and a torn file loses it without stopping the start", async () => {
  await inScratch(async (folder) => {
    const path = join(folder, "quarantine.json");
    const clock = new VirtualClock();
    const quarantine = await open(clock, path);
    await quarantine.record("v1", A, "preflight", "x".repeat(10_000));
    await quarantine.record("v2", B, "transient", "y");
    const again = await open(clock, path);
    assert.is(again.blocks("v1", A)?.class, "preflight");
    assert.is(again.blocks("v1", A)?.message.length, 2_000);
    await clock.advance(10_000);
    assert.is(again.blocks("v2", B), undefined);
    await again.record("v2", B, "transient", "y");
    assert.is(again.blocks("v2", B)?.failures, 2, "it is counted on");
    await writeFile(path, (await readFile(path, "utf8")).slice(0, 50));
    assert.equal((await open(clock, path)).list(), []);
  });
});

test("whatever happens, a build that is blocked for good is let go only by its three ways", async () => {
  const action = fc.oneof(
    fc.record({
      do: fc.constant("record" as const),
      class: fc.constantFrom("transient", "crash", "hash") as fc.Arbitrary<FailureClass>,
    }),
    fc.record({ do: fc.constant("deny" as const) }),
    fc.record({ do: fc.constant("allow" as const) }),
    fc.record({ do: fc.constant("succeeded" as const) }),
    fc.record({ do: fc.constant("listed" as const), sha256: fc.constantFrom(A, B) }),
    fc.record({ do: fc.constant("wait" as const), ms: fc.integer({ min: 0, max: 100_000 }) }),
  );
  await fc.assert(
    fc.asyncProperty(fc.array(action, { maxLength: 25 }), async (actions) => {
      const clock = new VirtualClock();
      const quarantine = await open(clock);
      let state: "free" | "transient" | "blamed" | "denied" = "free";
      let retryAt = 0;
      for (const step of actions) {
        switch (step.do) {
          case "record":
            await quarantine.record("v1", A, step.class, "x");
            if (state === "denied") break;
            state = step.class === "transient" ? "transient" : "blamed";
            retryAt = quarantine.list("v1")[0]?.retryAt ?? Infinity;
            break;
          case "deny":
            await quarantine.deny("v1", A, "x");
            state = "denied";
            break;
          case "allow":
            await quarantine.allow("v1", A);
            state = "free";
            break;
          case "succeeded":
            await quarantine.succeeded("v1", A);
            if (state !== "denied") state = "free";
            break;
          case "listed":
            await quarantine.artifactChanged("v1", step.sha256);
            if (state !== "denied" && step.sha256 === B) state = "free";
            break;
          case "wait":
            await clock.advance(step.ms);
        }
        const blocked = quarantine.blocks("v1", A) !== undefined;
        const expected = state === "transient" ? clock.now() < retryAt : state !== "free";
        assert.is(blocked, expected, `${step.do} in ${state}`);
      }
    }),
    { seed: 2, numRuns: 60 },
  );
});

test.run();
