import { test } from "uvu";
import * as assert from "uvu/assert";
import { versionsReady } from "../../src/host/versions.ts";
import type { Conditions } from "../../src/supervisor/version_status.ts";

const GOOD: Conditions = {
  available: true,
  serving: true,
  progressing: false,
  reconciled: true,
  degraded: false,
  converged: true,
  desired: 2,
  running: 2,
};
const ready = (more: Partial<Conditions>) => versionsReady({ ...GOOD, ...more }).ok;

test("case 237: progress and a failing build leave a host ready; not serving, not converged do not", () => {
  assert.ok(ready({}));
  assert.ok(ready({ progressing: true, reconciled: false }));
  assert.ok(ready({ degraded: true, reconciled: false, error: "the oracle is unreachable" }));
  assert.not(ready({ serving: false }));
  assert.not(ready({ converged: false, reconciled: false, running: 1 }));
  assert.not(ready({ available: false, serving: false, running: 0 }));
});

test("a host that was asked for nothing is ready, one that was not asked yet is not", () => {
  const nothing = { available: false, serving: false, running: 0, desired: 0 };
  assert.ok(ready(nothing));
  assert.not(ready({ ...nothing, converged: false, reconciled: false }));
});

test("the reason says what is missing", () => {
  const reason = (more: Partial<Conditions>) => versionsReady({ ...GOOD, ...more }).reason;
  assert.is(reason({}), "2 of 2 versions run");
  assert.is(
    reason({ error: "the disk is full" }),
    "2 of 2 versions run; the list is not followed: the disk is full",
  );
  assert.is(reason({ converged: false, running: 1 }), "1 of 2 versions run");
  assert.is(reason({ serving: false }), "no child answers its probe");
  assert.is(reason({ available: false, error: "no such file" }), "no such file");
});

test.run();
