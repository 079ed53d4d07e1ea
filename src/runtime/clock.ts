import type { Clock } from "./runtime.ts";

/** Longest delay that `setTimeout` takes; a longer one would fire at once. */
const LONGEST_TIMEOUT_MS = 2 ** 31 - 1;

/** The real clock, from web standards only. */
export function createClock(): Clock {
  return {
    now: () => Date.now(),
    monotonic: () => performance.now(),
    after(delayMs, action) {
      let leftMs = Math.max(0, delayMs);
      let timer: ReturnType<typeof setTimeout>;
      const arm = () => {
        const stepMs = Math.min(leftMs, LONGEST_TIMEOUT_MS);
        leftMs -= stepMs;
        timer = setTimeout(leftMs > 0 ? arm : action, stepMs);
      };
      arm();
      return () => clearTimeout(timer);
    },
  };
}
