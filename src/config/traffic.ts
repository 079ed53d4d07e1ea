/**
 * Limits and trust on the traffic listener.
 */

import * as v from "valibot";

export const trafficSchema = v.strictObject({
  trustedProxies: v.optional(
    v.pipe(
      v.array(v.string("an address or a CIDR range")),
      v.description(
        "Addresses or CIDR ranges of proxies whose X-Forwarded-* and Forwarded headers are believed.",
      ),
    ),
    [],
  ),
});

export type TrafficConfig = v.InferOutput<typeof trafficSchema>;
