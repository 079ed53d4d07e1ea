/**
 * One replica of the recovery bench, as a process: real lanes over the real index, the peer
 * listener, and a steady stream of live events.
 *
 * Both replicas make the same events from the same clock, as if each had subscribed to the same
 * workers: batch `n` of a lane is due at a time and has a content that follow from `n`. Commands come
 * on standard input, answers go to standard output, one JSON line each.
 *
 *   recovery_replica.ts <source|joiner> <blocks> <lanes> <events per s> <epoch ms> [peer url]
 */

import process from "node:process";
import * as v from "valibot";
import { replicaSchema } from "../../src/config/replica.ts";
import type { KvEvent, LaneBlocks } from "../../src/kv/blocks.ts";
import { KvStore } from "../../src/kv/kv_store.ts";
import type { Lane, LaneBatch } from "../../src/kv/lane.ts";
import { PrefixIndex } from "../../src/kv/prefix_index.ts";
import { silentLog } from "../../src/observe/log.ts";
import { createMetrics } from "../../src/observe/metrics.ts";
import { staticDiscovery } from "../../src/replica/discovery.ts";
import { createDumpHandler } from "../../src/replica/dump_handler.ts";
import { createDumpMetrics } from "../../src/replica/dump_metrics.ts";
import { createRecovery } from "../../src/replica/recovery.ts";
import { createRecoveryMetrics } from "../../src/replica/recovery_metrics.ts";
import { loadRuntime } from "../../src/runtime/load.ts";
import { waitedMs } from "./core_waits.ts";

const [role, blocksText, lanesText, rateText, epochText, peer] = process.argv.slice(2);
const LANES = Number(lanesText);
const PER_LANE = Math.floor(Number(blocksText) / LANES);
const EPOCH_MS = Number(epochText);
const BLOCK_SIZE = 16;
/** Blocks in a stored event, and in a removed one: a batch has one of each. */
const RUN = 16;
const BATCHES_PER_S = Number(rateText) / (2 * RUN) / LANES;
const TICK_MS = 5;
/** A replica that is behind (a busy machine) catches up in steps, so that it measures no burst of ours. */
const TICK_BUDGET_MS = 2;

const runtime = await loadRuntime();
const store = new KvStore<PrefixIndex>({
  clock: runtime.clock,
  random: runtime.random,
  createIndex: (options) => PrefixIndex.create(options),
  hashBytes: () => 0n,
});
const key = (at: number) => ({
  model: "m",
  group: "default",
  worker: `worker-${at}`,
  dpRank: 0,
});

function mixed(lane: number, number: number): bigint {
  const low = Math.imul(number + 1, 0x9e3779b1) ^ Math.imul(lane + 1, 0x85ebca6b);
  return (BigInt(number) << 32n) | BigInt(low >>> 0);
}

/** Chains of 256 blocks, as long prompts make them. */
function columns(lane: number): LaneBlocks {
  const engines = new BigUint64Array(PER_LANE);
  const locals = new BigUint64Array(PER_LANE);
  const parents = new Int32Array(PER_LANE);
  for (let row = 0; row < PER_LANE; row += 1) {
    engines[row] = (1n << 63n) | mixed(lane, row);
    locals[row] = mixed(lane + 1000, row) * 0x9e3779b97f4a7c15n;
    parents[row] = row % 256 === 0 ? -1 : row - 1;
  }
  return {
    count: PER_LANE,
    parents,
    keys: new BigUint64Array(0),
    locals,
    engines,
    tiers: new Uint8Array(PER_LANE).fill(1),
    copies: new Uint16Array(PER_LANE).fill(1),
  };
}

/** One event's hashes, and the words that they are made of: BigInts would be garbage of the bench. */
const runHashes = new BigUint64Array(RUN);
const runWords = new Uint32Array(runHashes.buffer);

/** The hashes of the blocks that batch `n` stores: what `mixed` gives. */
function hashesOf(lane: number, n: number): BigUint64Array {
  for (let at = 0; at < RUN; at += 1) {
    const number = n * RUN + at;
    runWords[at * 2] = Math.imul(number + 1, 0x9e3779b1) ^ Math.imul(lane + 1, 0x85ebca6b);
    runWords[at * 2 + 1] = number;
  }
  return runHashes.slice();
}

/** Batch `n` stores 16 new blocks and removes the 16 that batch `n - 8` stored. */
function batch(lane: number, n: number): LaneBatch {
  const tokens = new Uint32Array(RUN * BLOCK_SIZE);
  for (let at = 0; at < tokens.length; at += 1) tokens[at] = n * 1000 + at + lane;
  const events: KvEvent[] = [{
    kind: "stored",
    parent: undefined,
    hashes: hashesOf(lane, n),
    tokens,
    blockSize: BLOCK_SIZE,
    tier: "device",
  }];
  if (n >= 8) events.push({ kind: "removed", hashes: hashesOf(lane, n - 8), tier: "device" });
  return { seq: BigInt(n), events, bytes: 2000 };
}

const dueNow = (): number => Math.floor((runtime.clock.now() - EPOCH_MS) / 1000 * BATCHES_PER_S);
const next: number[] = [];
const lanes: Lane[] = [];
let isLive = false;

function tick(): void {
  if (!isLive) return;
  const due = dueNow();
  const end = performance.now() + TICK_BUDGET_MS;
  for (const [at, lane] of lanes.entries()) {
    if (performance.now() > end) break;
    let n = next[at] as number;
    // Lanes take turns, so that their batches do not all come in the same millisecond.
    const until = due - (at % 4 === 0 ? 0 : 1);
    for (; n <= until; n += 1) lane.receive(batch(at, n));
    next[at] = n;
  }
  if (isLive) setTimeout(tick, TICK_MS);
}

// How late a timer was at most, by the clock; and without the time in which this thread was ready to
// run and had no core, which is the machine's and not ours.
let longestStallMs = 0;
let longestTurnMs = 0;
let lastWall = performance.now();
let lastWait = waitedMs() ?? 0;
setInterval(() => {
  const wall = performance.now();
  const wait = waitedMs() ?? 0;
  const stallMs = wall - lastWall - 1;
  longestStallMs = Math.max(longestStallMs, stallMs);
  longestTurnMs = Math.max(longestTurnMs, stallMs - (wait - lastWait));
  lastWall = wall;
  lastWait = wait;
}, 1);
let peakRss = 0;
let cpuBefore = process.cpuUsage();
let heapBefore = 0;
setInterval(() => (peakRss = Math.max(peakRss, process.memoryUsage.rss())), 5);

const metrics = createMetrics();
const replica = runtime.random.uuid();
const config = v.parse(replicaSchema, {
  peers: role === "joiner" ? [peer] : [],
  subscribeTimeoutMs: 1000,
});
const recovery = createRecovery({
  runtime,
  log: silentLog,
  metrics: createRecoveryMetrics(metrics),
  events: { emit: (kind) => ({ id: 1, ts: "", kind }) },
  store,
  discovery: staticDiscovery(role === "joiner" ? [peer as string] : [], undefined),
  config,
  replica,
  setCondition: () => {},
});
const app = createDumpHandler({
  runtime,
  log: silentLog,
  metrics: createDumpMetrics(metrics),
  store,
  replica,
  recovered: () => recovery.recovered,
});
app.get("/ping", (c) => c.text("pong"));
const server = await runtime.http.serve(
  { address: { kind: "tcp", host: "127.0.0.1", port: 0 } },
  (request) => app.fetch(request),
);

for (let at = 0; at < LANES; at += 1) {
  lanes.push(await store.open(key(at), { blockSize: BLOCK_SIZE }));
}
if (role === "source") {
  for (const [at, lane] of lanes.entries()) {
    const n = dueNow();
    const blocks = columns(at);
    lane.hold({ maxBatches: 1, maxBytes: 1 });
    await lane.commit({ key: lane.key, epoch: "e", cursor: BigInt(n), decoderState: null, blocks });
    next[at] = n + 1;
  }
  recovery.start();
  await recovery.done;
}

// Workers keep a ring of their last batches, as real ones do.
for (const [at, lane] of lanes.entries()) {
  lane.attach({
    replay: async (from, deliver) => {
      await Promise.resolve();
      for (let n = Math.max(Number(from), dueNow() - 10_000, 0); n <= dueNow() - 1; n += 1) {
        if (!deliver(batch(at, n))) return { kind: "stopped" };
      }
      return { kind: "complete" };
    },
  });
}

const index = (): PrefixIndex => store.partitions()[0]?.index as PrefixIndex;
const say = (value: unknown): void => console.log(JSON.stringify(value));
const rssMiB = (): number => process.memoryUsage.rss() / 2 ** 20;

function reset(): void {
  longestStallMs = 0;
  longestTurnMs = 0;
  peakRss = 0;
  lastWall = performance.now();
  lastWait = waitedMs() ?? 0;
  cpuBefore = process.cpuUsage();
  heapBefore = process.memoryUsage().heapTotal;
}

function figures() {
  const cpu = process.cpuUsage(cpuBefore);
  return {
    cpuMs: (cpu.user + cpu.system) / 1000,
    peakMiB: Math.max(peakRss, process.memoryUsage.rss()) / 2 ** 20,
    heapGrownMiB: (process.memoryUsage().heapTotal - heapBefore) / 2 ** 20,
    indexMiB: index().stats().bytes / 2 ** 20,
    blocks: index().stats().blocks,
    stallMs: longestStallMs,
    turnMs: longestTurnMs,
  };
}

async function command(line: string): Promise<void> {
  const [name, argument] = line.split(" ");
  switch (name) {
    case "live":
      isLive = true;
      tick();
      reset();
      say({ rssMiB: rssMiB() });
      return;
    case "reset":
      (globalThis as { gc?: () => void }).gc?.();
      reset();
      say({ rssMiB: rssMiB() });
      return;
    case "figures":
      say(figures());
      return;
    case "recover": {
      // As a process that starts: subscribed now, everything before has to come from the peer.
      const n = dueNow();
      for (const at of lanes.keys()) next[at] = n - 3;
      (globalThis as { gc?: () => void }).gc?.();
      const rssBeforeMiB = rssMiB();
      const before = performance.now();
      recovery.start();
      isLive = true;
      tick();
      reset();
      const state = await recovery.done;
      const ms = performance.now() - before;
      const status = recovery.status();
      const { lanes: outcomes, blocks, bytes, attempts } = status;
      say({ state, ms, rssBeforeMiB, outcomes, restored: blocks, bytes, attempts, ...figures() });
      return;
    }
    case "digest": {
      // Both sides say what they hold once they have stopped and applied the same batches.
      isLive = false;
      const n = Number(argument);
      for (const [at, lane] of lanes.entries()) {
        for (let one = next[at] as number; one <= n; one += 1) lane.receive(batch(at, one));
        next[at] = n + 1;
      }
      say({ last: n });
      return;
    }
    case "content": {
      while (lanes.some((lane, at) => lane.cursor !== BigInt((next[at] as number) - 1))) {
        await new Promise((resolve) => setTimeout(resolve, 10));
      }
      let sum = 0n;
      let blocks = 0;
      for (const lane of lanes) {
        const cut = lane.cut();
        blocks += cut.blocks.count;
        for (let row = 0; row < cut.blocks.count; row += 1) {
          const parent = cut.blocks.parents[row] as number;
          const above = parent < 0 ? 1n : cut.blocks.engines[parent] as bigint;
          sum += (cut.blocks.engines[row] as bigint) * 31n + (cut.blocks.keys[row] as bigint) +
            above;
        }
      }
      const live = lanes.filter((lane) => lane.state === "live").length;
      say({ blocks, sum: BigInt.asUintN(64, sum).toString(), live });
      return;
    }
    case "exit":
      await server.destroy();
      process.exit(0);
  }
}

const port = server.address.kind === "tcp" ? server.address.port : 0;
say({ port, rssMiB: rssMiB(), epochMs: EPOCH_MS });
let text = "";
process.stdin.on("data", (chunk: Uint8Array) => {
  text += new TextDecoder().decode(chunk);
  for (;;) {
    const end = text.indexOf("\n");
    if (end === -1) return;
    const name = text.slice(0, end);
    text = text.slice(end + 1);
    void command(name);
  }
});
process.stdin.on("end", () => process.exit(0));
