/** Work in slices shares the turns of the event loop. */

import { test } from "uvu";
import * as assert from "uvu/assert";
import { Slices } from "../../src/kv/slices.ts";
import { WorkSlice } from "../../src/kv/work_slice.ts";

/** A clock whose timers fire when they are told to. */
function handClock() {
  const timers: (() => void)[] = [];
  const clock = {
    timeMs: 0,
    now: () => clock.timeMs,
    monotonic: () => clock.timeMs,
    after: (_delayMs: number, action: () => void) => {
      timers.push(action);
      return () => {};
    },
    /** The next turn: what was due before it. */
    async turn(): Promise<void> {
      for (const action of timers.splice(0)) action();
      for (let tick = 0; tick < 5; tick += 1) await Promise.resolve();
    },
  };
  return clock;
}

test("loops of different parts have one budget together, and a turn each when it is used up", async () => {
  const clock = handClock();
  const ran: string[] = [];
  const loop = async (name: string): Promise<void> => {
    const slice = new WorkSlice(clock, 2);
    for (let step = 0; step < 4; step += 1) {
      const rest = slice.rest();
      if (rest !== undefined) await rest;
      ran.push(name);
      clock.timeMs += 1;
    }
  };
  const done = Promise.all([loop("a"), loop("b")]);
  // The first uses the turn up; the second does not begin in it.
  assert.equal(ran, ["a", "a"]);
  await clock.turn();
  assert.equal(ran.splice(0), ["a", "a", "a", "a"]);
  await clock.turn();
  assert.equal(ran.splice(0), ["b", "b"]);
  await clock.turn();
  assert.equal(ran.splice(0), ["b", "b"]);
  await done;
});

test("a burst of events waits while a loop has used the turn, and goes on in one of its own", async () => {
  const clock = handClock();
  const slices = new Slices({ clock, budgetMs: 2 });
  const pause = slices.breather();
  let applied = 0;
  let left = 5;
  const burst = {
    step: () => {
      applied += 1;
      clock.timeMs += 1;
      return --left > 0;
    },
  };
  await pause();
  clock.timeMs += 2;
  let hasPaused = false;
  const paused = pause().then(() => (hasPaused = true));
  slices.submit(burst, "urgent");
  assert.is(applied, 0, "the turn is spent");
  await clock.turn();
  assert.ok(hasPaused);
  assert.is(applied, 0, "a turn is one waiter's");
  await clock.turn();
  assert.is(applied, 2);
  await clock.turn();
  assert.is(applied, 4);
  await clock.turn();
  assert.is(applied, 5);
  await paused;
});

test("time in which nothing was done is not counted as work", async () => {
  const clock = handClock();
  const slice = new WorkSlice(clock, 2);
  assert.is(slice.rest(), undefined);
  clock.timeMs += 1;
  assert.is(slice.rest(), undefined);
  await clock.turn();
  clock.timeMs += 100;
  assert.is(slice.rest(), undefined, "a new turn");
  clock.timeMs += 2;
  assert.ok(slice.isSpent);
});

test("work that throws takes no other work with it", async () => {
  const clock = handClock();
  const slices = new Slices({ clock, budgetMs: 2 });
  let steps = 0;
  slices.submit({ step: () => ((steps += 1), (clock.timeMs += 2), steps < 2) }, "other");
  await clock.turn();
  assert.is(steps, 2);
  await clock.turn();
  const other = { step: () => ((steps += 1), steps < 4) };
  const bad = {
    step: (): boolean => {
      slices.submit(other, "other");
      throw new Error("bad");
    },
  };
  assert.throws(() => slices.submit(bad, "urgent"), /bad/);
  assert.is(steps, 2);
  await clock.turn();
  assert.is(steps, 4);
});

test.run();
