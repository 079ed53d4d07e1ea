import fc from "fast-check";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { type HoldEnd, Holds } from "../../src/supervisor/hold.ts";
import { VirtualClock } from "../support/virtual_clock.ts";

function makeHolds(maxRequests = 10, maxBytes = 1000) {
  const clock = new VirtualClock();
  const holds = new Holds({ clock, maxRequests, maxBytes });
  const ends: (HoldEnd | undefined)[] = [];
  const order: number[] = [];
  const leave: (() => void)[] = [];
  const wait = (version: string, timeoutMs = 100, bytes = 10): number => {
    const index = ends.push(undefined) - 1;
    void holds.wait({
      version,
      bytes,
      timeoutMs,
      onLeave: (listener) => {
        leave[index] = listener;
      },
    }).then((end) => {
      ends[index] = end;
      order.push(index);
    });
    return index;
  };
  return { clock, holds, ends, order, leave, wait };
}

const settle = (): Promise<void> => new Promise((resolve) => setTimeout(resolve, 0));

test("waiting requests go on in the order in which they came, those of other versions stay", async () => {
  const { holds, ends, order, wait } = makeHolds();
  wait("a");
  wait("b");
  wait("a");
  assert.is(holds.count, 3);
  holds.release("a");
  await settle();
  assert.equal(ends, ["released", undefined, "released"]);
  assert.equal(order, [0, 2]);
  assert.is(holds.waiting("b"), 1);
});

test("a request waits no longer than its time, and not at all when that is zero", async () => {
  const { clock, ends, wait, holds } = makeHolds();
  wait("a", 100);
  wait("a", 0);
  await settle();
  assert.equal(ends, [undefined, "timeout"]);
  await clock.advance(100);
  await settle();
  assert.equal(ends, ["timeout", "timeout"]);
  assert.is(holds.count, 0);
  assert.is(clock.pending, 0);
});

test("the bounds on count and bytes refuse the one that is too many", async () => {
  const { ends, wait } = makeHolds(2, 25);
  wait("a", 100, 10);
  wait("a", 100, 20);
  wait("a", 100, 15);
  wait("b", 100, 0);
  await settle();
  assert.equal(ends, [undefined, "full", undefined, "full"]);
});

test("a client that leaves gives its place back", async () => {
  const { holds, ends, leave, wait, clock } = makeHolds(1);
  wait("a");
  leave[0]?.();
  await settle();
  assert.equal(ends, ["left"]);
  assert.is(holds.bytes, 0);
  assert.is(clock.pending, 0);
});

test("waiters are sent away when nothing will come", async () => {
  const { holds, ends, wait } = makeHolds();
  wait("a");
  holds.dismiss("a");
  await settle();
  assert.equal(ends, ["hopeless"]);
});

test("in any order of events every request ends exactly once and the counts return to zero", async () => {
  const action = fc.oneof(
    fc.record({ do: fc.constant("wait" as const), version: fc.constantFrom("a", "b") }),
    fc.record({ do: fc.constant("release" as const), version: fc.constantFrom("a", "b") }),
    fc.record({ do: fc.constant("leave" as const), index: fc.nat(20) }),
    fc.record({ do: fc.constant("advance" as const), ms: fc.nat(80) }),
  );
  await fc.assert(
    fc.asyncProperty(fc.array(action, { maxLength: 40 }), async (actions) => {
      const { clock, holds, ends, order, leave, wait } = makeHolds(5, 45);
      for (const one of actions) {
        if (one.do === "wait") wait(one.version);
        if (one.do === "release") holds.release(one.version);
        if (one.do === "leave") leave[one.index]?.();
        if (one.do === "advance") await clock.advance(one.ms);
        assert.ok(holds.count <= 5 && holds.bytes <= 45);
      }
      await clock.advance(200);
      await settle();
      assert.is(holds.count, 0);
      assert.is(holds.bytes, 0);
      assert.is(clock.pending, 0);
      assert.ok(ends.every((end) => end !== undefined));
      assert.is(new Set(order).size, ends.length);
    }),
    { seed: 20_260_104, numRuns: 100 },
  );
});

test.run();
