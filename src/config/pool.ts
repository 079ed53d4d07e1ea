/**
 * A pool: a set of workers behind one model, chosen by what is in their caches and by load.
 */

import * as v from "valibot";
import { flag, milliseconds, text, url, whole } from "./values.ts";

const NAME = /^[^\s\p{C}]{1,256}$/u;

/** One worker of a list. */
const workerSchema = v.strictObject({
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

const ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount";

/** A weight or credit, 0 or more. */
function amount(description: string) {
  const allowed = "a number, at least 0";
  return v.optional(
    v.pipe(
      v.number(allowed),
      v.minValue(0, allowed),
      v.finite(allowed),
      v.description(description),
    ),
  );
}

/** The terms of the cost, where they are to differ from the defaults (docs/routing.md). */
const weightsSchema = v.strictObject({
  prefillScale: amount("Weight of the blocks to prefill (default 1)."),
  creditScale: amount("Weight of all credit for blocks that are held (default 2)."),
  deviceCredit: amount("Credit for a block on the worker's device (default 1)."),
  hostCredit: amount("Credit for a block in the worker's memory (default 0.75)."),
  diskCredit: amount("Credit for a block on the worker's disk (default 0.25)."),
  externalCredit: amount("Credit for a block in shared storage (default 0)."),
  creditDecay: amount(
    "How fast credit fades with a worker's prefill queue; 0, the default: never.",
  ),
  decodeWeight: amount("Weight of a block of the requests in progress (default 0.02)."),
  activeRequestWeight: amount(
    "Blocks that each request in progress weighs beside that (default 256 tokens).",
  ),
  trackPrefill: v.optional(
    flag("Whether queued prefill counts (default); false for decode pools."),
  ),
});

const healthSchema = v.strictObject({
  path: v.optional(
    v.pipe(
      v.string('a path such as "/health"'),
      v.regex(/^\/[^\s#]*$/, 'a path such as "/health"'),
      v.description("Asked of each worker; 2xx is well."),
    ),
    "/health",
  ),
  intervalMs: v.optional(milliseconds("Pause between two questions to one worker.", 100), 5_000),
  timeoutMs: v.optional(milliseconds("Longest wait for the answer.", 10), 2_000),
  failures: v.optional(
    whole("Failures in a row after which the worker is left out, until it is well again.", 1, 100),
    2,
  ),
});

const tokenizerSchema = v.strictObject({
  file: text("The model's `tokenizer.json`."),
  config: v.optional(
    text("Its `tokenizer_config.json` (default: the one beside the file, if there is one)."),
  ),
  chatTemplate: v.optional(
    text("A file with the chat template (default: the `chat_template` of the config)."),
  ),
  maxChars: v.optional(
    whole(
      "Longer prompts are not tokenised here, since all else waits meanwhile (a second for some " +
        "400,000): a worker is asked then, or the text is used.",
      0,
    ),
    8_192,
  ),
});

export const poolSchema = v.strictObject({
  model: text("The model's name as requests give it."),
  adapters: v.optional(
    v.pipe(
      v.array(text("A LoRA adapter.")),
      v.description(
        "LoRA adapters that requests may name in place of the model; each has blocks of its own.",
      ),
    ),
    [],
  ),
  group: v.optional(
    text("The routing group: a pool has an index of its own for each model and group."),
    "default",
  ),
  blockSize: v.optional(
    whole("Tokens in one KV block; must be what the engines use.", 1, 16_384),
    16,
  ),
  workers: v.pipe(
    v.union(
      [
        v.array(workerSchema),
        v.strictObject({
          versions: text("The name of a `versions` service: each running generation is a worker."),
          kvEventsPortOffset: v.optional(
            whole("A generation publishes KV events (ZMQ) on its port plus this.", 1, 65_535),
          ),
          replayPortOffset: v.optional(
            whole("A generation replays past events on its port plus this.", 1, 65_535),
          ),
        }),
        v.strictObject({
          kubernetes: v.pipe(
            v.strictObject({
              namespace: v.optional(text("Default: the pod's own namespace.")),
              service: text("The Service whose EndpointSlices list the workers."),
              port: text("The name of the Service's port on which workers answer requests."),
              kvEventsPort: v.optional(text("The name of the port with KV events.")),
              replayPort: v.optional(text("The name of the port that replays events.")),
              apiServer: v.optional(text("Default: that of the cluster that the pod runs in.")),
              tokenFile: v.optional(
                text("The service account's token; read anew for each request."),
                `${ACCOUNT}/token`,
              ),
              caFile: v.optional(text("The cluster's authority."), `${ACCOUNT}/ca.crt`),
            }),
            v.description("The endpoints of a Kubernetes Service."),
          ),
        }),
      ],
      'a list of workers, { "versions": "service name" } or { "kubernetes": {...} }',
    ),
    v.description("The workers: a list, the generations of a versions service, or EndpointSlices."),
  ),
  maxInflight: v.optional(
    whole("Most requests that one worker has at a time; absent: no limit.", 1),
  ),
  tries: v.optional(
    whole("Workers that a request is tried on, as long as none has seen any of it.", 1, 16),
    3,
  ),
  holdTimeoutMs: v.optional(
    milliseconds("How long a request waits while the pool has no worker at all."),
    10_000,
  ),
  maxHeld: v.optional(whole("Most requests that wait so; others get 503 at once."), 1_024),
  maxBodyBytes: v.optional(
    whole("Largest request body; it is kept in memory while a worker is chosen.", 1),
    16 * 1024 * 1024,
  ),
  health: v.optional(v.pipe(
    healthSchema,
    v.description(
      "Questions to each worker whether it is well. Absent: only what requests meet counts.",
    ),
  )),
  weights: v.optional(v.pipe(weightsSchema, v.description("Terms of the cost of a worker.")), {}),
  temperature: v.optional(
    v.pipe(
      v.number("a number from 0 to 100"),
      v.minValue(0, "a number from 0 to 100"),
      v.maxValue(100, "a number from 0 to 100"),
      v.description("0: the least cost wins. Above: a draw, the more even the higher."),
    ),
    0,
  ),
  sessionTtlMs: v.optional(
    milliseconds("How long a session is remembered after its last request.", 1_000),
    600_000,
  ),
  sessionHeaders: v.optional(
    v.pipe(
      v.array(v.pipe(
        v.string("a header's name"),
        v.regex(/^[A-Za-z0-9_-]+$/, "a header's name"),
        v.toLowerCase(),
      )),
      v.description("Headers that name a session; the first that a request has counts."),
    ),
    ["x-session-id", "x-dynamo-session-id", "x-claude-code-session-id", "session-id", "session_id"],
  ),
  tokenizeTimeoutMs: v.optional(
    milliseconds("How long a worker may take to tokenise a prompt; 0: none is asked."),
    250,
  ),
  tokenizer: v.optional(v.pipe(
    tokenizerSchema,
    v.description("Tokenises prompts here, so that no worker needs to be asked."),
  )),
  textChunkBytes: v.optional(
    whole("Bytes in a chunk of a prompt that is known by its text only.", 8, 65_536),
    128,
  ),
  approximateTtlMs: v.optional(
    milliseconds(
      "How long a worker without KV events is taken to hold a prompt that was sent to it.",
      1_000,
    ),
    120_000,
  ),
});

export type PoolConfig = v.InferOutput<typeof poolSchema>;
export type WorkerConfig = v.InferOutput<typeof workerSchema>;
