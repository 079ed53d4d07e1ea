/** The command line of the mock worker: runs until it is told to stop, prints its address as JSON. */

import process from "node:process";
import { parseArgs } from "node:util";
import { EventPoster } from "../../test/support/event_poster.ts";
import { startMockWorker } from "../../test/support/mock_worker.ts";

const HELP = `usage: scripts/mock-worker [options]
  --id NAME         the worker's name, as the pool has it   (0)
  --model NAME      (demo)
  --port N          of 127.0.0.1; 0 = one that is free   (0)
  --block-size N    tokens in a block, as the pool has it   (16)
  --capacity N      blocks that the cache holds   (2000)
  --prefill-tokens-per-s N   (50000)
  --decode-ms N     time for each token of an answer   (5)
  --events URL      a replica's /events, where KV events are posted; may be repeated
  --token TEXT      bearer token for these`;

const { values } = parseArgs({
  options: {
    "id": { type: "string", default: "0" },
    "model": { type: "string", default: "demo" },
    "port": { type: "string", default: "0" },
    "block-size": { type: "string", default: "16" },
    "capacity": { type: "string", default: "2000" },
    "prefill-tokens-per-s": { type: "string", default: "50000" },
    "decode-ms": { type: "string", default: "5" },
    "events": { type: "string", multiple: true, default: [] },
    "token": { type: "string" },
    "help": { type: "boolean", default: false },
  },
});
if (values.help) {
  console.log(HELP);
  process.exit(0);
}

const blockSize = Number(values["block-size"]);
const poster = new EventPoster({
  worker: values.id,
  model: values.model,
  blockSize,
  urls: values.events,
  ...(values.token === undefined ? {} : { token: values.token }),
});
const worker = await startMockWorker({
  id: values.id,
  model: values.model,
  port: Number(values.port),
  blockSize,
  capacityBlocks: Number(values.capacity),
  prefillTokensPerS: Number(values["prefill-tokens-per-s"]),
  decodeMsPerToken: Number(values["decode-ms"]),
  events: poster,
});
console.log(JSON.stringify({ id: values.id, url: worker.url }));
for (const signal of ["SIGTERM", "SIGINT"] as const) {
  process.on(signal, () => {
    poster.stop();
    void worker.close().then(() => process.exit(0));
  });
}
