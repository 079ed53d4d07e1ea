/**
 * How Baton itself goes down.
 */

import * as v from "valibot";
import { milliseconds } from "./values.ts";

export const shutdownSchema = v.strictObject({
  announceMs: v.optional(
    milliseconds(
      "After SIGTERM readiness fails at once, and requests are still taken for this long, so that " +
        "balancers stop sending first. 0 without a balancer; otherwise at least 5000.",
    ),
    5_000,
  ),
  budgetMs: v.optional(
    milliseconds(
      "Everything from SIGTERM to the end of the process: announcing, finishing requests, draining " +
        "and stopping children. When it is over, what is left is cut.",
    ),
    25 * 60_000,
  ),
});
