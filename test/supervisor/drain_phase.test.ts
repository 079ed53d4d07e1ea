import fc from "fast-check";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { readInflight } from "../../src/supervisor/drain_endpoints.ts";
import { type DrainEvent, type DrainPhase, moveDrain } from "../../src/supervisor/drain_phase.ts";

const PHASES: DrainPhase[] = ["leases", "asking", "polling", "cushion", "stopping", "done"];
const EVENTS: DrainEvent[] = [
  "leases_ended",
  "asked",
  "child_idle",
  "child_legacy",
  "cushion_over",
  "deadline",
  "exited",
];

test("the drain table: leases, the request, the status or the cushion, the signals, done", () => {
  const rows = PHASES.map((phase) => EVENTS.map((event) => moveDrain(phase, event) ?? "-"));
  assert.equal(rows, [
    ["asking", "-", "-", "-", "-", "asking", "done"],
    ["-", "polling", "-", "-", "-", "-", "done"],
    ["-", "-", "stopping", "cushion", "-", "stopping", "done"],
    ["-", "-", "-", "-", "stopping", "stopping", "done"],
    ["-", "-", "-", "-", "-", "-", "done"],
    ["-", "-", "-", "-", "-", "-", "-"],
  ]);
});

test("a drain only goes forward, asks before it stops, and always can end", () => {
  fc.assert(
    fc.property(fc.array(fc.constantFrom(...EVENTS), { maxLength: 40 }), (events) => {
      let phase: DrainPhase = "leases";
      let asked = false;
      for (const event of events) {
        const next = moveDrain(phase, event);
        if (next === undefined) continue;
        assert.ok(PHASES.indexOf(next) > PHASES.indexOf(phase));
        if (next === "polling") asked = true;
        if (next === "stopping") assert.ok(asked);
        phase = next;
      }
      if (phase !== "done") assert.is(moveDrain(phase, "exited"), "done");
    }),
    { seed: 20_260_106, numRuns: 1000 },
  );
});

test("the child's count is the first of inflight, active and count", () => {
  assert.is(readInflight('{"inflight":2,"active":3}'), 2);
  assert.is(readInflight('{"active":3,"count":4}'), 3);
  assert.is(readInflight('{"count":0}'), 0);
  for (const bad of ["{}", "[]", "null", '{"inflight":"2"}', '{"inflight":1.5}', "no"]) {
    assert.throws(() => readInflight(bad));
  }
});

test.run();
