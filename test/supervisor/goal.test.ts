import fc from "fast-check";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { chooseGoal, type GoalInput, rollbackGoal } from "../../src/supervisor/goal.ts";

function goal(input: Partial<GoalInput> & { blocked?: string[] }): string {
  const { blocked = [], ...rest } = input;
  const chosen = chooseGoal({
    operator: {},
    installed: [],
    provenFirst: true,
    isBlocked: (sha256) => blocked.includes(sha256),
    ...rest,
  });
  return chosen.kind === "run" ? `${chosen.reason} ${chosen.sha256}` : chosen.kind;
}

test("what the oracle lists runs; what it does not list is removed", () => {
  assert.is(goal({ listed: "b" }), "listed b");
  assert.is(goal({ listed: "b", serving: "a", installed: ["a"] }), "listed b");
  assert.is(goal({ serving: "a", installed: ["a"], operator: { pinned: "a" } }), "none");
});

test("an override goes before everything else, and waits while it is blocked", () => {
  const operator = { pinned: "a" };
  assert.is(goal({ listed: "b", override: "override:x", operator }), "override override:x");
  assert.is(goal({ listed: "b", override: "override:x", blocked: ["override:x"] }), "nothing");
});

test("a pin holds against the oracle as long as the build is there and allowed", () => {
  const operator = { pinned: "a" };
  assert.is(goal({ listed: "b", operator, installed: ["a"] }), "pinned a");
  assert.is(goal({ listed: "b", operator, installed: [] }), "listed b");
  assert.is(goal({ listed: "b", operator, installed: ["a"], blocked: ["a"] }), "listed b");
});

test("while paused the version stays with what serves, also after a restart of Baton", () => {
  const operator = { paused: true, serving: "a" };
  assert.is(goal({ listed: "b", serving: "a", operator }), "paused a");
  assert.is(goal({ listed: "b", installed: ["a"], operator }), "paused a");
  assert.is(goal({ listed: "b", operator: { paused: true } }), "listed b");
});

test("a quarantined build leaves what serves alone, or falls back to what served well", () => {
  assert.is(goal({ listed: "b", serving: "a", blocked: ["b"] }), "serving a");
  const operator = { proven: ["a", "z"] };
  assert.is(goal({ listed: "b", blocked: ["b"], operator, installed: ["z", "a"] }), "fallback a");
  assert.is(goal({ listed: "b", blocked: ["b"], operator, installed: ["z"] }), "fallback z");
  assert.is(goal({ listed: "b", blocked: ["b"] }), "nothing");
});

test("after a restart a build that served well goes before one that nobody has seen work", () => {
  const operator = { proven: ["a"] };
  assert.is(goal({ listed: "b", operator, installed: ["a"] }), "proven_first a");
  assert.is(goal({ listed: "b", operator, installed: ["a"], serving: "a" }), "listed b");
  assert.is(goal({ listed: "b", operator, installed: [] }), "listed b");
  assert.is(goal({ listed: "b", operator: { proven: ["a", "b"] }, installed: ["a"] }), "listed b");
  // Where builds may not overlap it would only be one more stop; later it would undo a rollout.
  assert.is(goal({ listed: "b", operator, installed: ["a"], provenFirst: false }), "listed b");
});

test("a rollback holds until the list changes", () => {
  const operator = { rolledBackFrom: "b", rolledBackTo: "a" };
  assert.is(goal({ listed: "b", serving: "b", installed: ["a", "b"], operator }), "rolled_back a");
  assert.is(goal({ listed: "c", serving: "a", installed: ["a"], operator }), "listed c");
});

test("a rollback goes to what served well, else to the newest on disk, never to a blocked build", () => {
  const isBlocked = (sha256: string): boolean => sha256 === "x";
  const at = (proven: string[], installed: string[]): string | undefined =>
    rollbackGoal({ operator: { proven }, installed, isBlocked }, "b");
  assert.is(at(["b", "x", "a"], ["b", "x", "a"]), "a");
  assert.is(at(["gone"], ["b", "z"]), "z");
  assert.is(at([], ["b", "x"]), undefined);
});

test("whatever is known, no blocked build is chosen, and a build must be at hand", () => {
  const sha = fc.constantFrom<string[]>("a", "b", "c", "d");
  const some = fc.option(sha, { nil: undefined });
  fc.assert(
    fc.property(
      some,
      some,
      some,
      some,
      some,
      fc.boolean(),
      fc.array(sha),
      fc.array(sha),
      fc.array(sha),
      fc.boolean(),
      (listed, serving, pinned, from, to, paused, proven, installed, blocked, provenFirst) => {
        const chosen = chooseGoal({
          ...(listed === undefined ? {} : { listed }),
          ...(serving === undefined ? {} : { serving }),
          operator: {
            paused,
            proven,
            ...(pinned === undefined ? {} : { pinned }),
            ...(from === undefined ? {} : { rolledBackFrom: from }),
            ...(to === undefined ? {} : { rolledBackTo: to }),
          },
          installed,
          provenFirst,
          isBlocked: (sha256) => blocked.includes(sha256),
        });
        assert.is(chosen.kind === "none", listed === undefined);
        if (chosen.kind !== "run") return;
        assert.not(blocked.includes(chosen.sha256));
        assert.ok([listed, serving, ...installed].includes(chosen.sha256));
      },
    ),
    { seed: 20_260_107, numRuns: 2000 },
  );
});

test.run();
