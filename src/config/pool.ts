/**
 * A pool: a set of workers behind one model, chosen by what is in their caches and by load.
 */

import * as v from "valibot";
import { text, url, whole } from "./values.ts";

const NAME = /^[^\s\p{C}]{1,256}$/u;

/** One worker of a list. */
export const workerSchema = v.strictObject({
  id: v.pipe(
    v.string("text without spaces"),
    v.trim(),
    v.regex(NAME, "1 to 256 characters without spaces"),
    v.description("The worker's name: part of its lanes' keys, and shown in status."),
  ),
  url: url("Where the worker answers requests."),
  kvEvents: v.optional(url("The ZMQ address on which the worker publishes its KV events.", [
    "tcp",
    "ipc",
  ])),
  replay: v.optional(url("The ZMQ address on which the worker replays past events.", [
    "tcp",
    "ipc",
  ])),
  dpRank: v.optional(whole("The data-parallel rank of the events on `kvEvents`.", 0, 4095), 0),
});

export const poolSchema = v.strictObject({
  model: text("The model's name as requests give it."),
  group: v.optional(
    text("The routing group: a pool has an index of its own for each model and group."),
    "default",
  ),
  blockSize: v.optional(
    whole("Tokens in one KV block; must be what the engines use.", 1, 65_536),
    16,
  ),
  workers: v.pipe(
    v.union(
      [
        v.array(workerSchema),
        v.strictObject({
          versions: text("The name of a `versions` service: each running generation is a worker."),
        }),
        v.strictObject({
          kubernetes: v.pipe(
            v.strictObject({
              namespace: v.optional(text("Default: the pod's own namespace.")),
              service: text("The Service whose EndpointSlices list the workers."),
              port: text("The name of the Service's port on which workers answer requests."),
              kvEventsPort: v.optional(text("The name of the port with KV events.")),
              replayPort: v.optional(text("The name of the port that replays events.")),
            }),
            v.description("The endpoints of a Kubernetes Service."),
          ),
        }),
      ],
      'a list of workers, { "versions": "service name" } or { "kubernetes": {...} }',
    ),
    v.description("The workers: a list, the generations of a versions service, or EndpointSlices."),
  ),
});

export type PoolConfig = v.InferOutput<typeof poolSchema>;
export type WorkerConfig = v.InferOutput<typeof workerSchema>;
