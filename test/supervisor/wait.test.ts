import { test } from "uvu";
import * as assert from "uvu/assert";
import { CalledOff, orCalledOff, settledWithin, sleep } from "../../src/supervisor/wait.ts";
import { runtime } from "../support/runtime.ts";
import { VirtualClock } from "../support/virtual_clock.ts";

async function thrown(promise: Promise<unknown>): Promise<unknown> {
  return await promise.then(() => assert.unreachable(), (error: unknown) => error);
}

test("work that fails after it was called off is nobody's unhandled error", async () => {
  const controller = new AbortController();
  controller.abort(new Error("too late"));
  const work = new Promise((_, reject) => setTimeout(() => reject(new Error("failed")), 1));
  assert.instance(await thrown(orCalledOff(work, controller.signal)), CalledOff);
  // Left unhandled, the failure would end this process here.
  await new Promise((resolve) => setTimeout(resolve, 20));
});

test("a wait ends as its work does, or with the reason it was called off for", async () => {
  const controller = new AbortController();
  assert.is(await orCalledOff(Promise.resolve(1), controller.signal), 1);
  const waiting = thrown(orCalledOff(new Promise(() => {}), controller.signal));
  controller.abort(new Error("another build is wanted"));
  assert.is((await waiting as Error).message, "another build is wanted");
});

test("a sleep that is called off leaves no timer behind", async () => {
  const clock = new VirtualClock();
  const controller = new AbortController();
  const sleeping = thrown(sleep(clock, 1_000, controller.signal));
  assert.is(clock.pending, 1);
  controller.abort(new Error("awake"));
  assert.instance(await sleeping, CalledOff);
  assert.is(clock.pending, 0);
  assert.instance(await thrown(sleep(clock, 1, controller.signal)), CalledOff);
});

test("settled within a time, or not", async () => {
  assert.is(await settledWithin(runtime.clock, Promise.reject(new Error("x")), 10_000), true);
  assert.is(await settledWithin(runtime.clock, new Promise(() => {}), 5), false);
});

test.run();
