import fc from "fast-check";
import { test } from "uvu";
import * as assert from "uvu/assert";
import {
  askPhase,
  healthLabel,
  type Phase,
  phaseAllows,
  phaseRank,
  PHASES,
  phaseTargets,
} from "../../src/supervisor/phase.ts";

test("case 124: the whole way is accepted, and a stopped generation does not run again", () => {
  const way: Phase[] = [
    "preparing",
    "starting",
    "running",
    "retiring",
    "draining",
    "stopping",
    "stopped",
  ];
  for (const [index, phase] of way.entries()) {
    const next = way[index + 1];
    if (next !== undefined) assert.is(askPhase(phase, next), "moved");
  }
  assert.is(phaseAllows("stopped", "running"), false);
  assert.is(askPhase("stopped", "running"), "refused");
});

test("case 125: the 8 x 8 matrix is that of the reference; an unknown state is refused", () => {
  const order: Phase[] = [
    "preparing",
    "starting",
    "running",
    "retiring",
    "draining",
    "stopping",
    "stopped",
    "failed",
  ];
  const rows = order.map((from) => order.map((to) => phaseAllows(from, to) ? "x" : ".").join(""));
  assert.equal(rows, [
    "xx.x.xxx",
    ".xxx.xxx",
    "..xx.xxx",
    "...xxxx.",
    "....xxx.",
    ".....xx.",
    "......x.",
    ".x.x.xxx",
  ]);
  assert.is(phaseAllows("unknown", "unknown"), false);
  assert.is(phaseAllows("unknown", "running"), false);
});

test("case 126: numbers and health labels of the phases", () => {
  const told = PHASES.map((phase) => [phase, phaseRank(phase), healthLabel(phase)]);
  assert.equal(told, [
    ["preparing", 0, "starting"],
    ["starting", 1, "starting"],
    ["running", 2, "running"],
    ["retiring", 3, "draining"],
    ["draining", 4, "draining"],
    ["stopping", 5, "draining"],
    ["stopped", 6, "stopped"],
    ["failed", undefined, "stopped"],
  ]);
  assert.is(healthLabel("unknown"), "stopped");
});

test("case 127: every target of the table raises the phase", () => {
  for (const from of PHASES) {
    const rank = phaseRank(from);
    for (const to of phaseTargets(from)) {
      const target = phaseRank(to);
      if (rank !== undefined && target !== undefined) assert.ok(target > rank, `${from} ${to}`);
    }
  }
});

test("case 128: a draining generation that is asked to retire stays draining, without an error", () => {
  assert.is(askPhase("draining", "retiring"), "satisfied");
});

test("case 129: retiring, draining and stopping are all draining to the outside", () => {
  for (const phase of ["retiring", "draining", "stopping"]) {
    assert.is(healthLabel(phase), "draining");
  }
});

test("whatever is asked in whatever order, a generation only goes forward and stays stopped", () => {
  fc.assert(
    fc.property(fc.array(fc.constantFrom(...PHASES), { maxLength: 40 }), (asked) => {
      let phase: Phase = "preparing";
      let highest = 0;
      for (const to of asked) {
        const answer = askPhase(phase, to);
        if (answer !== "moved") continue;
        assert.ok(phaseAllows(phase, to));
        assert.is.not(phase, "stopped");
        const rank = phaseRank(to);
        // `failed` has no rank: what follows it may only be a fresh start or the way out.
        if (rank !== undefined && phase !== "failed") assert.ok(rank > highest);
        highest = rank ?? highest;
        phase = to;
      }
      // From anywhere the way out is open.
      assert.is.not(askPhase(phase, "stopped"), "refused");
    }),
    { seed: 20_260_102, numRuns: 1000 },
  );
});

test.run();
