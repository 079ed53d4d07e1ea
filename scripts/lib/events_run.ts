/**
 * One run of the `events` bench, on whichever runtime starts it: raw msgpack payloads through intake,
 * lane and index. Prints one JSON line of figures, in processor time.
 */

import { decode, encode } from "@msgpack/msgpack";
import { BatchIntake } from "../../src/kv/batch_intake.ts";
import { createKvStore } from "../../src/kv/create_kv_store.ts";
import { loadRuntime } from "../../src/runtime/load.ts";
import { cpuMs, median, percentile } from "./bench.ts";

const BLOCK_SIZE = 16;
const BLOCKS = 200_000;
const ROUNDS = 5;

type Shape = "array" | "map";

/** Payloads of batches; `blocks` in each event, `events` in each batch. Sequences of 256 blocks. */
function payloads(shape: Shape, events: number, blocks: number): Uint8Array[] {
  const made: Uint8Array[] = [];
  let hash = 1n;
  let token = 1;
  const nextHash = (): bigint =>
    hash = (hash * 6364136223846793005n + 1442695040888963407n) &
      (2n ** 64n - 1n);
  let parent: bigint | null = null;
  let depth = 0;
  for (let count = 0; count < BLOCKS;) {
    const batch: unknown[] = [];
    for (let e = 0; e < events; e++) {
      if (depth >= 256) {
        parent = null;
        depth = 0;
      }
      const hashes = Array.from({ length: blocks }, nextHash);
      const tokens = Array.from({ length: blocks * BLOCK_SIZE }, () => {
        token ^= token << 13;
        token ^= token >>> 17;
        token ^= token << 5;
        return (token >>> 0) % 151_000;
      });
      const fields = [hashes, parent, tokens, BLOCK_SIZE, null, "GPU", null, [null], 0];
      batch.push(
        shape === "array" ? ["BlockStored", ...fields, "full_attention"] : {
          type: "BlockStored",
          block_hashes: hashes,
          parent_block_hash: parent,
          token_ids: tokens,
          block_size: BLOCK_SIZE,
          lora_id: null,
          medium: "GPU",
          lora_name: null,
          extra_keys: [null],
          group_idx: 0,
          kv_cache_spec_kind: "full_attention",
        },
      );
      parent = hashes[blocks - 1] ?? null;
      depth += blocks;
      count += blocks;
    }
    made.push(encode([1789095808.5 + made.length, batch, 0], { useBigInt64: true }));
  }
  return made;
}

interface Run {
  readonly blocksPerS: number;
  /** Processor time between two turns of the event loop. */
  readonly pausesMs: readonly number[];
}

const { clock, random } = await loadRuntime();
const store = await createKvStore({ clock, random });
const keyOf = (worker: string) => ({ model: "m", group: "default", worker, dpRank: 0 });
// One index for all rounds, as in a process that lives on: this lane keeps it.
await store.open(keyOf("keeper"), { blockSize: BLOCK_SIZE });
let runs = 0;

async function run(batches: readonly Uint8Array[]): Promise<Run> {
  const key = keyOf(`worker-${runs++}`);
  const lane = await store.open(key, { blockSize: BLOCK_SIZE });
  const intake = new BatchIntake({
    slices: store.slices,
    meters: store.meters,
    limits: { maxBatches: 1e6, maxBytes: 2 ** 31 },
    deliver: ({ seq, batch, digest, bytes }) => {
      lane.receive({ seq, digest, bytes, events: batch.events });
      return true;
    },
    undecodable: (_seq, reason) => {
      throw new Error(reason);
    },
  });
  const pausesMs: number[] = [];
  let last = cpuMs();
  let isRunning = true;
  const watch = (): void => {
    const now = cpuMs();
    pausesMs.push(now - last);
    last = now;
    if (isRunning) setTimeout(watch, 0);
  };
  setTimeout(watch, 0);
  await new Promise((resolve) => setTimeout(resolve, 5));
  const start = cpuMs();
  // As a socket delivers them: some at a time, with a turn of the event loop in between.
  const per = Math.max(1, Math.floor(256 * 1024 / (batches[0]?.length ?? 1)));
  for (let i = 0; i < batches.length; i += per) {
    for (let k = i; k < Math.min(batches.length, i + per); k++) {
      intake.push(BigInt(k), batches[k] ?? new Uint8Array(0));
    }
    await new Promise((resolve) => setImmediate(resolve));
  }
  while (lane.cursor !== BigInt(batches.length - 1)) {
    await new Promise((resolve) => setImmediate(resolve));
  }
  const elapsedMs = cpuMs() - start;
  isRunning = false;
  const { blocks } = lane;
  if (blocks < BLOCKS) throw new Error(`only ${blocks} blocks arrived`);
  store.close(key);
  for (const { index } of store.partitions()) while (!index.tidy());
  return { blocksPerS: blocks / elapsedMs * 1000, pausesMs };
}

/** What the general decoder alone takes for the same bytes. */
function decodeOnly(batches: readonly Uint8Array[]): number {
  const start = cpuMs();
  for (const payload of batches) decode(payload, { useBigInt64: true });
  return BLOCKS / (cpuMs() - start) * 1000;
}

const figures: Record<string, number> = {};
const pauses: number[] = [];
for (const shape of ["array", "map"] as const) {
  for (const [name, events, blocks] of [["single", 32, 1], ["prompt", 4, 64]] as const) {
    const batches = payloads(shape, events, blocks);
    const speeds: number[] = [];
    const others: number[] = [];
    for (let round = 0; round < ROUNDS; round++) {
      const result = await run(batches);
      speeds.push(result.blocksPerS);
      pauses.push(...result.pausesMs);
      if (round < 3) others.push(decodeOnly(batches));
    }
    figures[`${shape}_${name}_blocks_per_s`] = Math.round(median(speeds));
    figures[`${shape}_${name}_msgpack_library_decode_only_blocks_per_s`] = Math.round(
      median(others),
    );
  }
}
figures["pause_p99_ms"] = percentile(pauses, 0.99);
figures["longest_pause_ms"] = Math.max(...pauses);
console.log(JSON.stringify(figures));
