import fc from "fast-check";
import { test } from "uvu";
import * as assert from "uvu/assert";
import {
  DEFAULT_MAX_WINDOW_MS,
  maxWindowMs,
  mayExtend,
  nextWindowMs,
} from "../../src/supervisor/ready_window.ts";

const MINUTE = 60_000;

test("case 103: one minute doubles to the maximum and stays there", () => {
  const windows: number[] = [];
  let window = MINUTE;
  for (let attempt = 0; attempt < 7; attempt++) {
    window = nextWindowMs(window, 32 * MINUTE);
    windows.push(window / MINUTE);
  }
  assert.equal(windows, [2, 4, 8, 16, 32, 32, 32]);
});

test("case 104: a window above the maximum becomes the maximum", () => {
  assert.is(nextWindowMs(40 * MINUTE, 32 * MINUTE), 32 * MINUTE);
});

test("case 105: a window that would overflow becomes the maximum", () => {
  assert.is(nextWindowMs(Number.MAX_SAFE_INTEGER, 32 * MINUTE), 32 * MINUTE);
  assert.is(nextWindowMs(Number.MAX_VALUE, 32 * MINUTE), 32 * MINUTE);
});

test("case 106: from 60 s the ceiling of 32 minutes is reached after five steps", () => {
  let window = 60_000;
  let steps = 0;
  while (window < 32 * MINUTE) {
    window = nextWindowMs(window, 32 * MINUTE);
    steps += 1;
  }
  assert.is(steps, 5);
});

test("case 107: without a configured maximum it is 32 minutes", () => {
  assert.is(maxWindowMs(60_000), 32 * MINUTE);
  assert.is(DEFAULT_MAX_WINDOW_MS, 32 * MINUTE);
});

test("case 108: a maximum below the window is raised to it", () => {
  assert.is(maxWindowMs(60_000, 1_000), 60_000);
});

test("case 109: only initialising and an absent readiness path extend a window", () => {
  assert.equal(
    (["unreachable", "not_ready", "initializing", "ready_absent", "ready"] as const).map(mayExtend),
    [false, false, true, true, false],
  );
});

test("windows never shrink below the first one and never pass the maximum", () => {
  fc.assert(
    fc.property(
      fc.integer({ min: 1, max: 10 * MINUTE }),
      fc.integer({ min: 1, max: 60 * MINUTE }),
      fc.integer({ min: 0, max: 50 }),
      (first, configured, steps) => {
        const most = maxWindowMs(first, configured);
        let window = first;
        for (let step = 0; step < steps; step++) {
          const next = nextWindowMs(window, most);
          assert.ok(next >= window && next <= most);
          window = next;
        }
      },
    ),
    { seed: 20_260_103, numRuns: 300 },
  );
});

test.run();
