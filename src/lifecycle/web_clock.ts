/**
 * Time by the web platform alone: for apps that use the lifecycle without Baton's runtime record.
 */

import type { Clock } from "../runtime/runtime.ts";

export const webClock: Clock = {
  now: () => Date.now(),
  monotonic: () => performance.now(),
  after: (delayMs, action) => {
    const timer = setTimeout(action, delayMs);
    return () => clearTimeout(timer);
  },
};
