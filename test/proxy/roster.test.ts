import { test } from "uvu";
import * as assert from "uvu/assert";
import fc from "fast-check";
import { Roster } from "../../src/proxy/roster.ts";

interface Member {
  readonly id: number;
  here: number;
}

test("a roster holds what a set would hold, whatever comes and goes", () => {
  const step = fc.record({ id: fc.nat(12), adds: fc.boolean() });
  fc.assert(
    fc.property(fc.array(step, { maxLength: 200 }), (steps) => {
      const members = Array.from({ length: 13 }, (_, id): Member => ({ id, here: -1 }));
      const roster = new Roster<"here", Member>("here");
      const set = new Set<Member>();
      for (const { id, adds } of steps) {
        const member = members[id] as Member;
        if (adds) {
          roster.add(member);
          set.add(member);
        } else assert.is(roster.delete(member), set.delete(member));
        assert.is(roster.size, set.size);
      }
      assert.equal(new Set(roster), set);
    }),
    { seed: 1, numRuns: 500 },
  );
});

test("a member is in two rosters at once by two fields", () => {
  const one = { left: -1, right: -1 };
  const left = new Roster<"left", typeof one>("left");
  const right = new Roster<"right", typeof one>("right");
  left.add(one);
  right.add(one);
  assert.ok(left.delete(one));
  assert.is(left.size, 0);
  assert.is(right.size, 1);
  assert.is(left.delete(one), false);
});

test.run();
