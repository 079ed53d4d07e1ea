import { test } from "uvu";
import * as assert from "uvu/assert";
import { Slots } from "../../src/supervisor/slots.ts";
import { CalledOff } from "../../src/supervisor/wait.ts";

const settle = (): Promise<void> => new Promise((resolve) => setTimeout(resolve, 0));

test("no more than the bound run at once, and the rest comes in order", async () => {
  const slots = new Slots(2);
  const running: number[] = [];
  const ends: (() => void)[] = [];
  const work = [0, 1, 2, 3].map(async (index) => {
    const giveBack = await slots.take();
    running.push(index);
    await new Promise<void>((resolve) => (ends[index] = resolve));
    giveBack();
    giveBack();
  });
  await settle();
  assert.equal(running, [0, 1]);
  ends[1]?.();
  await settle();
  assert.equal(running, [0, 1, 2]);
  ends[0]?.();
  await settle();
  ends[2]?.();
  ends[3]?.();
  await Promise.all(work);
  assert.is(slots.taken, 0);
});

test("one that is called off while it waits leaves the queue", async () => {
  const slots = new Slots(1);
  const giveBack = await slots.take();
  const controller = new AbortController();
  const waiting = slots.take(controller.signal).then(() => "got", (error) => error);
  controller.abort(new Error("no more"));
  assert.instance(await waiting, CalledOff);
  assert.is(slots.waiting, 0);
  giveBack();
  (await slots.take())();
  assert.is(slots.taken, 0);
});

test.run();
