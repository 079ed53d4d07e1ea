/**
 * `scripts/fake-engine`: runs a fake engine that fills and empties a cache at a steady rate, and does
 * what it is told on standard input. docs/fake-engine.md describes it.
 */

import { createInterface } from "node:readline";
import process from "node:process";
import { parseArgs } from "node:util";
import { loadRuntime } from "../../src/runtime/load.ts";
import {
  type Dialect,
  DIALECTS,
  FakeEngine,
  REPLAY_MODES,
  type ReplayMode,
} from "../../test/support/fake_engine.ts";

const HELP = `usage: scripts/fake-engine [options]
  --endpoint URL      where to publish          (tcp://127.0.0.1:5557)
  --replay URL|none   where to replay           (tcp://127.0.0.1:5558)
  --connect           connect to the endpoint instead of binding it
  --dialect NAME      ${DIALECTS.join(", ")}   (vllm-map)
  --block-size N      tokens in a block         (16)
  --rate N            batches a second, 0 = only on command   (10)
  --blocks N          blocks of each new sequence   (8)
  --capacity N        blocks that the cache holds; then the oldest sequences go   (1000)
  --ring N            batches that the ring keeps   (10000)
  --rank N            data-parallel rank that batches name
  --topic TEXT        topic of messages         ("")
  --seed N            names the process: block hashes depend on it   (1)
commands, one a line on standard input:
  lose [N]  lose-for-good [N]  duplicate  disconnect  restart  clear  junk
  replay ${REPLAY_MODES.join("|")}   rate N   status   quit`;

const { values } = parseArgs({
  options: {
    endpoint: { type: "string", default: "tcp://127.0.0.1:5557" },
    replay: { type: "string", default: "tcp://127.0.0.1:5558" },
    connect: { type: "boolean", default: false },
    dialect: { type: "string", default: "vllm-map" },
    "block-size": { type: "string", default: "16" },
    rate: { type: "string", default: "10" },
    blocks: { type: "string", default: "8" },
    capacity: { type: "string", default: "1000" },
    ring: { type: "string", default: "10000" },
    rank: { type: "string" },
    topic: { type: "string", default: "" },
    seed: { type: "string", default: "1" },
    help: { type: "boolean", default: false },
  },
});

if (values.help) {
  console.log(HELP);
  process.exit(0);
}

function whole(name: string, text: string): number {
  const value = Number(text);
  if (Number.isInteger(value) && value >= 0) return value;
  console.error(`--${name} takes a whole number, not "${text}"`);
  process.exit(2);
}

const dialect = DIALECTS.find((name) => name === values.dialect) as Dialect | undefined;
if (dialect === undefined) {
  console.error(`--dialect takes ${DIALECTS.join(", ")}, not "${values.dialect}"`);
  process.exit(2);
}
const blockSize = whole("block-size", values["block-size"]);
const blocks = whole("blocks", values.blocks);
const capacity = whole("capacity", values.capacity);
let rate = whole("rate", values.rate);

const runtime = await loadRuntime();
const engine = await FakeEngine.start({
  runtime,
  dialect,
  endpoint: values.endpoint,
  replayEndpoint: values.replay === "none" ? null : values.replay,
  connect: values.connect,
  blockSize,
  ringBatches: whole("ring", values.ring),
  topic: values.topic,
  seed: whole("seed", values.seed),
  ...(values.rank === undefined ? {} : { dpRank: whole("rank", values.rank) }),
});

/** Sequences in the cache, oldest first. */
const cache: bigint[][] = [];
let held = 0;
let turn = 0;

/** One batch's worth of work: a new sequence comes, and the oldest ones go to make room. */
function work(): void {
  const start = turn++ * 100_003;
  const tokens = Array.from({ length: blocks * blockSize }, (_, i) => (start + i) % 150_000);
  const hashes = engine.store(tokens);
  cache.push(hashes);
  held += hashes.length;
  while (held > capacity && cache.length > 1) {
    const oldest = cache.shift() ?? [];
    held -= oldest.length;
    engine.remove(oldest);
  }
}

const commands: Record<string, (argument: string) => void | Promise<void>> = {
  lose: (count) => {
    for (let i = 0; i < (Number(count) || 1); i++) {
      work();
      engine.lose();
    }
  },
  "lose-for-good": (count) => {
    for (let i = 0; i < (Number(count) || 1); i++) {
      work();
      engine.loseForGood();
    }
  },
  duplicate: () => engine.duplicate(),
  disconnect: () => engine.disconnect(),
  restart: async () => {
    await engine.restart();
    forget();
  },
  clear: () => {
    engine.clear();
    engine.publish();
    forget();
  },
  junk: () => void engine.sendPayload(Uint8Array.of(0xc1)),
  replay: (mode) => {
    const known = REPLAY_MODES.find((name) => name === mode) as ReplayMode | undefined;
    if (known === undefined) say({ error: `replay takes ${REPLAY_MODES.join(", ")}` });
    else engine.replayMode = known;
  },
  rate: (value) => void (rate = whole("rate", value)),
  status: () => status(),
  quit: () => stop(),
};

function forget(): void {
  cache.length = 0;
  held = 0;
}

function say(value: unknown): void {
  console.log(JSON.stringify(value));
}

function status(): void {
  say({
    endpoint: engine.endpoint,
    replay: engine.replayEndpoint ?? null,
    dialect: engine.dialect,
    subscribers: engine.subscribers,
    next_seq: engine.nextSeq.toString(),
    blocks: held,
    replay_mode: engine.replayMode,
    replays_asked: engine.replayRequests.length,
  });
}

async function stop(): Promise<void> {
  rate = 0;
  await engine.close();
  process.exit(0);
}

function tick(): void {
  if (rate > 0) {
    work();
    engine.publish();
  }
  setTimeout(tick, rate > 0 ? 1000 / rate : 100);
}

status();
tick();
process.on("SIGTERM", () => void stop());
process.on("SIGINT", () => void stop());
createInterface({ input: process.stdin }).on("line", (line) => {
  const [name = "", argument = ""] = line.trim().split(/\s+/);
  const command = commands[name];
  if (name === "") return;
  if (command === undefined) say({ error: `no command "${name}"` });
  else void Promise.resolve(command(argument)).then(() => say({ done: name }));
});
