/**
 * The other replicas, and how this one recovers its index from them.
 */

import * as v from "valibot";
import { secret } from "./secret.ts";
import { text, url, whole } from "./values.ts";

export const replicaSchema = v.strictObject({
  peers: v.optional(
    v.pipe(
      v.union(
        [
          v.array(url("A peer's listener.")),
          v.strictObject({
            dns: text("A name whose addresses (or SRV records) are the peers."),
            port: v.optional(whole("The peers' port.", 1, 65_535), 8082),
          }),
          v.strictObject({
            kubernetes: v.strictObject({
              namespace: v.optional(text("Default: the pod's own namespace.")),
              service: text("The Service whose EndpointSlices list the peers."),
              port: text("The name of the Service's peer port."),
            }),
          }),
        ],
        'a list of URLs, { "dns": "name", "port": 8082 } or { "kubernetes": {...} }',
      ),
      v.description("Where the other replicas are."),
    ),
    [],
  ),
  token: v.optional(secret("Shared by all replicas; asked of callers of the peer listener.")),
});

export type ReplicaConfig = v.InferOutput<typeof replicaSchema>;
