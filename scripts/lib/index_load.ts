/**
 * One measurement of the index in a process of its own; prints one line of JSON.
 *
 *   index_load.ts <index|map> <blocks> <lanes> [blocks in an event]
 *
 * Sequences of 256 blocks of 16 tokens, each in one lane, arrive as events of 64 blocks (or as many
 * as said). Tokens and hashes come from a counter, so that nothing but the index takes memory.
 *
 * All times are processor time, all threads together, which on a core of its own is the time of the
 * clock, and on a shared one is not spoiled by others.
 */

import process from "node:process";
import { PrefixIndex } from "../../src/kv/prefix_index.ts";
import { cpuMs, median, percentile } from "./bench.ts";
import { MapIndex } from "./map_index.ts";

const BLOCK_SIZE = 16;
const CHAIN = 256;
const LONG_PROMPT = 400;

type Event = Parameters<PrefixIndex["apply"]>[1];

const [kind = "index", blocksText = "1000000", lanesText = "64", eventText = "64"] = process.argv
  .slice(2);
const blocks = Number(blocksText);
const laneCount = Number(lanesText);
const perEvent = Number(eventText);
const chains = Math.ceil(blocks / CHAIN);
const rounds = blocks > 4_000_000 ? 2 : 4;

/** Writes the tokens of a chain from block `first` on: the same ones each time it is asked. */
function fillTokens(tokens: Uint32Array, chain: number, first: number): void {
  const start = first * BLOCK_SIZE;
  let state = Math.imul(chain + 1, 0x9e3779b1);
  for (let i = 0; i < tokens.length; i++) {
    state = (Math.imul(chain ^ (start + i), 0x85ebca77) + 0x27d4eb2f) >>> 0;
    tokens[i] = (state ^ (state >>> 15)) % 150_000;
  }
}

/** Engine hashes of a chain's blocks: any numbers will do if they are spread and unique. */
function fillHashes(hashes: BigUint64Array, chain: number, first: number): void {
  const halves = new Uint32Array(hashes.buffer, hashes.byteOffset, hashes.length * 2);
  for (let i = 0; i < hashes.length; i++) {
    const n = chain * CHAIN + first + i + 1;
    halves[2 * i] = Math.imul(n, 0x9e3779b1);
    halves[2 * i + 1] = Math.imul(n, 0x85ebca6b) ^ (n >>> 7);
  }
}

function hashOf(chain: number, block: number): bigint {
  const one = new BigUint64Array(1);
  fillHashes(one, chain, block);
  return one[0] ?? 0n;
}

/** Events that store a chain's blocks from `first` on, in buffers that are made once. */
class EventPool {
  readonly #made: { hashes: BigUint64Array; tokens: Uint32Array }[] = [];
  #next = 0;

  reset(): void {
    this.#next = 0;
  }

  stored(chain: number, first: number): Event {
    let buffers = this.#made[this.#next];
    if (buffers === undefined) {
      buffers = {
        hashes: new BigUint64Array(perEvent),
        tokens: new Uint32Array(perEvent * BLOCK_SIZE),
      };
      this.#made.push(buffers);
    }
    this.#next += 1;
    fillHashes(buffers.hashes, chain, first);
    fillTokens(buffers.tokens, chain, first);
    const parent = first === 0 ? undefined : hashOf(chain, first - 1);
    return { kind: "stored", parent, ...buffers, blockSize: BLOCK_SIZE, tier: "device" };
  }
}

function createIndex(): Promise<PrefixIndex | MapIndex> {
  return (kind === "map" ? MapIndex : PrefixIndex).create({ blockSize: BLOCK_SIZE });
}

const pool = new EventPool();

/** Chains in growth: blocks of many sequences arrive in turns, as from a busy fleet. */
const OPEN_CHAINS = 512;

function* arrivals(): Generator<[number, number]> {
  for (let base = 0; base < chains; base += OPEN_CHAINS) {
    const end = Math.min(chains, base + OPEN_CHAINS);
    for (let first = 0; first < CHAIN; first += perEvent) {
      for (let chain = base; chain < end; chain++) yield [chain, first];
    }
  }
}

let index = await createIndex();
let lanes: number[] = [];
const laneOf = (chain: number) => lanes[chain % laneCount] ?? 0;
const eventsAtOnce = Math.max(1, Math.floor(16_384 / perEvent));
let batch: [number, Event][] = [];
let applyMs = 0, applied = 0;

/** Applies what is gathered. */
function applyBatch(): void {
  const start = cpuMs();
  for (const [lane, event] of batch) applied += index.apply(lane, event).applied;
  applyMs += cpuMs() - start;
  batch = [];
  pool.reset();
}

let longestMs = 0;

/** The same with a look at the clock after each event, which costs the rate a few per cent. */
function watchBatch(): void {
  const start = cpuMs();
  let before = start;
  for (const [lane, event] of batch) {
    applied += index.apply(lane, event).applied;
    const now = cpuMs();
    longestMs = Math.max(longestMs, now - before);
    before = now;
  }
  applyMs += before - start;
  batch = [];
  pool.reset();
}

// The same growth a few times: the first, in a fresh process, for its pauses (later ones have those in
// which the memory of earlier indexes is given back), the others for the rate.
const rates: number[] = [];
const rssBefore = process.memoryUsage().rss;
let rssAfter = rssBefore;
for (let round = 0; round < rounds; round++) {
  if (round > 0) index = await createIndex();
  lanes = Array.from({ length: laneCount }, (_, i) => index.openLane(`worker-${i}`, 0));
  applyMs = 0;
  applied = 0;
  const finish = round === 0 ? watchBatch : applyBatch;
  for (const [chain, first] of arrivals()) {
    batch.push([laneOf(chain), pool.stored(chain, first)]);
    if (batch.length >= eventsAtOnce) finish();
  }
  finish();
  rates.push(applied / applyMs * 1000);
  if (round === 0) rssAfter = process.memoryUsage().rss;
}

/** A generator of chains in no order. */
let state = 12345;
function someChain(): number {
  state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
  return state % chains;
}

// Look-ups of whole chains.
const prompts = Array.from({ length: 64 }, () => new Uint32Array(CHAIN * BLOCK_SIZE));
let lookMs = 0, found = 0;
for (let round = 0; lookMs < 700 && round < 400; round++) {
  for (const tokens of prompts) fillTokens(tokens, someChain(), 0);
  const start = cpuMs();
  for (const tokens of prompts) found += index.match({ tokens })[0]?.device ?? 0;
  lookMs += cpuMs() - start;
}

// Events that only remove and store again, at a constant size.
let churnMs = 0, churned = 0;
const hashes = new BigUint64Array(CHAIN);
for (let round = 0; churnMs < 700 && round < 400; round++) {
  for (let i = 0; i < 16; i++) {
    const chain = someChain();
    fillHashes(hashes, chain, 0);
    const removed = { kind: "removed", hashes: hashes.slice().reverse(), tier: "device" } as const;
    batch.push([laneOf(chain), removed]);
    for (let first = 0; first < CHAIN; first += perEvent) {
      batch.push([laneOf(chain), pool.stored(chain, first)]);
    }
  }
  const before = applied, msBefore = applyMs;
  applyBatch();
  churnMs += applyMs - msBefore;
  churned += applied - before;
}

/**
 * Look-ups of 400 blocks that come every 0.5 ms among events of 200,000 blocks a second; the time is
 * from when each was due, so that waiting behind events counts. The loop never sleeps,
 * so the processor's time is the time that goes by.
 */
function lookAmongEvents(): number[] {
  const lookEveryMs = 0.5, eventEveryMs = perEvent / 200;
  const prompt = new Uint32Array(LONG_PROMPT * BLOCK_SIZE);
  const longChain = chains + someChain();
  fillTokens(prompt, longChain, 0);
  const names = new BigUint64Array(LONG_PROMPT);
  for (let i = 0; i < LONG_PROMPT; i++) names[i] = BigInt(longChain) * 1_000_003n * BigInt(i + 1);
  const held = { kind: "stored", parent: undefined, hashes: names, tokens: prompt } as const;
  index.apply(laneOf(longChain), { ...held, blockSize: BLOCK_SIZE, tier: "device" });
  const latencies: number[] = [];
  let events: [number, Event][] = [];
  const start = cpuMs();
  let nextLook = start + lookEveryMs, nextEvent = start + eventEveryMs;
  while (latencies.length < 100) {
    const now = cpuMs();
    const event = events.pop();
    if (event === undefined) {
      // Made ahead of time, and not on the clock.
      pool.reset();
      const count = Math.max(1, Math.floor(4_096 / perEvent));
      events = Array.from({ length: count }, () => {
        const chain = someChain();
        return [laneOf(chain), pool.stored(chain, 0)];
      });
      const spent = cpuMs() - now;
      nextLook += spent;
      nextEvent += spent;
    } else if (nextEvent <= now && nextEvent <= nextLook) {
      index.apply(event[0], event[1]);
      nextEvent += eventEveryMs;
    } else {
      events.push(event);
      if (nextLook > now) continue;
      index.match({ tokens: prompt });
      latencies.push(cpuMs() - nextLook);
      nextLook += lookEveryMs;
    }
  }
  return latencies;
}

const windows = kind === "map" ? [] : Array.from({ length: 25 }, lookAmongEvents);

const stats = index.stats();
console.log(JSON.stringify({
  blocks: stats.blocks,
  applied_per_s: median(rates.slice(1)),
  first_applied_per_s: rates[0] ?? NaN,
  longest_ms: longestMs,
  looked_up_per_s: found / lookMs * 1000,
  churned_per_s: churned / churnMs * 1000,
  // The 99th of 100.
  p99_us: kind === "map" ? 0 : median(windows.map((one) => percentile(one, 0.98))) * 1000,
  p50_us: kind === "map" ? 0 : median(windows.map(median)) * 1000,
  bytes_each: stats.bytes / stats.blocks,
  rss_bytes_each: (rssAfter - rssBefore) / blocks,
}));
