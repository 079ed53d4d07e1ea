import fc from "fast-check";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { CanaryShare } from "../../src/supervisor/canary.ts";

const none = (): undefined => undefined;

function taken(share: CanaryShare, requests: number): number {
  let count = 0;
  for (let request = 0; request < requests; request++) if (share.takes(none)) count += 1;
  return count;
}

test("over 10,000 requests the canary gets exactly its share", () => {
  for (const percent of [0, 0.01, 1, 2.5, 10, 12.5, 33.33, 50, 99.99, 100]) {
    const share = new CanaryShare({ percent, header: "" });
    assert.is(taken(share, 10_000), Math.round(percent * 100), `${percent} %`);
  }
});

test("at no moment is the share off by a whole request", () => {
  fc.assert(
    fc.property(fc.integer({ min: 0, max: 10_000 }), (hundredths) => {
      const share = new CanaryShare({ percent: hundredths / 100, header: "" });
      let count = 0;
      for (let request = 1; request <= 500; request++) {
        if (share.takes(none)) count += 1;
        assert.ok(Math.abs(count - request * hundredths / 10_000) < 1 + 1e-6);
      }
    }),
    { seed: 20_260_105, numRuns: 200 },
  );
});

test("requests that name the canary go there and do not count towards the share", () => {
  const share = new CanaryShare({ percent: 10, header: "X-Canary" });
  const marked = (name: string): string | undefined => name === "x-canary" ? "anything" : undefined;
  for (let request = 0; request < 50; request++) assert.is(share.takes(marked), true);
  assert.is(taken(share, 1_000), 100);
});

test("a header with a value is matched by the whole value", () => {
  const share = new CanaryShare({ percent: 0, header: "x-canary=yes" });
  assert.is(share.takes(() => "yes"), true);
  assert.is(share.takes(() => "yes!"), false);
  assert.is(share.takes(none), false);
});

test.run();
