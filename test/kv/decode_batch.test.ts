/** Batches of every dialect, from bytes. */
import { encode } from "@msgpack/msgpack";
import { readFileSync } from "node:fs";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { BatchDecoder, BatchUndecodable, decodeBatch } from "../../src/kv/decode_batch.ts";
import type { EngineEvent, EngineStored } from "../../src/kv/engine_event.ts";

const pack = (value: unknown): Uint8Array => encode(value, { useBigInt64: true });
const U64 = 2n ** 64n - 1n;

function decode(...events: unknown[]): readonly EngineEvent[] {
  return decodeBatch(pack([1.5, events])).events;
}

function stored(event: unknown): EngineStored {
  const [first] = decode(event);
  if (first?.kind !== "engine_stored") throw new Error(`decoded as ${first?.kind}`);
  return first;
}

const map = (fields: Record<string, unknown> = {}): Record<string, unknown> => ({
  type: "BlockStored",
  block_hashes: [11n, 12n],
  parent_block_hash: null,
  token_ids: [1, 2, 3, 4],
  block_size: 2,
  ...fields,
});

test("a batch as vLLM 0.26 really sends it", () => {
  const golden = JSON.parse(
    readFileSync(new URL("../data/kv_events_golden.json", import.meta.url), "utf8"),
  ).vllm_0_26_batch;
  const [event] = golden.events;
  const wire = { ...event, block_hashes: event.block_hashes.map((hash: string) => BigInt(hash)) };
  const batch = decodeBatch(pack([golden.ts, [wire], golden.data_parallel_rank]));
  assert.is(batch.rank, 0);
  assert.is(batch.timestamp, golden.ts);
  const [decoded] = batch.events;
  if (decoded?.kind !== "engine_stored") throw new Error("not a store");
  assert.equal([...decoded.hashes], [15760518052499183552n]);
  assert.equal([...decoded.tokens], event.token_ids);
  assert.is(decoded.blockSize, 16);
  assert.is(decoded.medium, "GPU");
  assert.is(decoded.groupIndex, 0);
  assert.is(decoded.specKind, "full_attention");
  assert.is(decoded.parent, undefined);
  assert.is(decoded.extraKeys, undefined);
});

test("arrays and maps, also mixed in one batch, mean the same", () => {
  const array = ["BlockStored", [11n, 12n], 7n, [1, 2, 3, 4], 2, null, "CPU", "adapter", [
    null,
    ["adapter"],
  ]];
  const same = map({
    parent_block_hash: 7n,
    medium: "CPU",
    lora_name: "adapter",
    extra_keys: [null, ["adapter"]],
    lora_id: null,
  });
  const [first, second, third] = decode(array, same, ["AllBlocksCleared"]);
  assert.equal({ ...first, isArray: true }, { ...second, isArray: true });
  assert.is(third?.kind, "engine_cleared");
});

test("an array may end early, after the block size", () => {
  const event = stored(["BlockStored", [1n], null, [5, 6], 2]);
  assert.is(event.medium, undefined);
  assert.equal([...event.tokens], [5, 6]);
});

test("hashes are u64 whatever integer they come as, and bytes count by their last eight", () => {
  const digest = new Uint8Array(32).map((_, i) => i + 1);
  const event = stored(map({
    block_hashes: [0, 127, 128, 70_000, 2 ** 32 - 1, U64, -1n, -1, -33, -40_000, digest],
    parent_block_hash: -(2n ** 63n),
  }));
  assert.equal([...event.hashes], [
    0n,
    127n,
    128n,
    70_000n,
    2n ** 32n - 1n,
    U64,
    U64,
    U64,
    U64 - 32n,
    BigInt.asUintN(64, -40_000n),
    0x191a1b1c1d1e1f20n,
  ]);
  assert.is(event.parent, 2n ** 63n);
});

test("kv 157: a hash of 32 bytes, of fewer than eight, and none of no bytes", () => {
  assert.equal([...stored(map({ block_hashes: [Uint8Array.of(1, 2)] })).hashes], [0x0102n]);
  assert.is(decode(map({ block_hashes: [new Uint8Array(0)] })).length, 0);
});

test("kv 141: token pairs are Eagle's, and flattened", () => {
  const event = stored(map({ token_ids: [[1, 2], [2, 3], [3, 4], [4, 5]] }));
  assert.ok(event.isBigram);
  assert.equal([...event.tokens], [1, 2, 3, 4, 5]);
});

test("token ids of every width, as text too, and none beyond 32 bits", () => {
  const ids = [0, 127, 128, 255, 256, 65_535, 65_536, 2 ** 32 - 1];
  assert.equal([...stored(map({ token_ids: ids })).tokens], ids);
  assert.equal([...stored(map({ token_ids: ids.map(String) })).tokens], ids);
  assert.equal([...stored(map({ token_ids: ids.map(BigInt) })).tokens], ids);
  for (const bad of [-1, 2 ** 32, 1.5, "x", "", null, "99999999999"]) {
    assert.is(decode(map({ token_ids: [1, 2, 3, bad] })).length, 0, String(bad));
  }
});

test("kv 142: slot 7 is an adapter's name, or SGLang's map with the salt", () => {
  const base = ["BlockStored", [1n], null, [5, 6], 2, null, "GPU"];
  assert.is(stored([...base, "adapter"]).lora, "adapter");
  const salted = stored([...base, { cache_salt: "tenant", other: [1, { a: 2 }] }]);
  assert.is(salted.salt, "tenant");
  assert.is(salted.lora, undefined);
  assert.is(stored([...base, {}]).salt, undefined);
  assert.is(stored([...base, null]).salt, undefined);
});

test("kv 144: cache_salt of a map", () => {
  assert.is(stored(map({ cache_salt: "tenant" })).salt, "tenant");
});

test("an adapter that has only a number is kept apart by it", () => {
  assert.is(stored(map({ lora_id: 3 })).lora, "lora_id:3");
  assert.is(stored(map({ lora_id: 3, lora_name: "a" })).lora, "a");
  assert.is(stored(map({ lora_id: 0 })).lora, undefined);
});

test("extra keys of all kinds", () => {
  const event = stored(map({
    extra_keys: [["name", ["image", 5], Uint8Array.of(9), 7, 1.5, true, null, []], null],
  }));
  assert.equal(event.extraKeys, [
    ["name", { id: "image", offset: 5 }, Uint8Array.of(9), 7n, "float:1.5", "bool:true"],
    [],
  ]);
});

test("kv 146: group index and kind from maps and from array tails", () => {
  const base = ["BlockStored", [1n], null, [5, 6], 2, null, "GPU", null, null];
  const seen = (event: unknown) => {
    const { groupIndex, specKind, locality } = stored(event);
    return [groupIndex, specKind, locality];
  };
  assert.equal(seen(base), [undefined, undefined, undefined]);
  assert.equal(seen([...base, 0]), [0, undefined, undefined]);
  assert.equal(seen([...base, 1]), [1, undefined, undefined]);
  assert.equal(seen([...base, 3, "mamba"]), [3, "mamba", undefined]);
  assert.equal(seen([...base, "full_attention"]), [undefined, "full_attention", undefined]);
  assert.equal(seen([...base, 2, "sliding_window", 4096, "LOCAL", "gpu"]), [
    2,
    "sliding_window",
    "LOCAL",
  ]);
  assert.equal(seen([...base, null, null, null, "REMOTE"]), [undefined, undefined, "REMOTE"]);
  assert.equal(seen(map({ group_idx: 4, kv_cache_spec_kind: "mamba", locality: "LOCAL" })), [
    4,
    "mamba",
    "LOCAL",
  ]);
});

test("kv 147: multimodal list, group and kind in a tail are all kept", () => {
  const infos = [null, { mm_objects: [{ mm_hash: 42n, offsets: [[0, 3]] }] }];
  const event = stored([
    "BlockStored",
    [1n, 2n],
    null,
    [5, 6, 7, 8],
    2,
    null,
    "GPU",
    null,
    null,
    infos,
    1,
    "full_attention",
    128,
  ]);
  assert.equal(event.multimodal, [[], [42n]]);
  assert.is(event.groupIndex, 1);
  assert.is(event.specKind, "full_attention");
});

test("TensorRT-LLM's mm_keys", () => {
  const key = { type: "mm_key", hash: "00000000000000ff" + "0".repeat(48), start_offset: 3 };
  assert.equal(stored(map({ mm_keys: [[key], []] })).multimodal, [[255n], []]);
});

test("removals in both shapes, with medium and group", () => {
  const [array, object] = decode(
    ["BlockRemoved", [1n, -2n], "CPU", 3, "mamba"],
    {
      type: "BlockRemoved",
      block_hashes: [1n, -2n],
      medium: "CPU",
      group_idx: 3,
      kv_cache_spec_kind: "mamba",
      remaining_copy_counts: [1, 2],
    },
  );
  assert.equal(array, object);
  if (array?.kind !== "engine_removed") throw new Error("not a removal");
  assert.equal([...array.hashes], [1n, U64 - 1n]);
  assert.is(array.groupIndex, 3);
});

test("kv 158: a batch of two elements, and a batch as a map", () => {
  assert.is(decodeBatch(pack([0, []])).rank, undefined);
  const batch = decodeBatch(pack({
    other: { deep: [[1]] },
    data_parallel_rank: 3,
    events: [map()],
    ts: 9.5,
  }));
  assert.is(batch.rank, 3);
  assert.is(batch.timestamp, 9.5);
  assert.is(batch.events.length, 1);
  assert.is(decodeBatch(pack({ events: [], attn_dp_rank: 2 })).rank, 2);
});

test("ranks are cast to u32; more batch slots are passed over", () => {
  assert.is(decodeBatch(pack([0, [], -1, { more: 1 }])).rank, 2 ** 32 - 1);
  assert.is(decodeBatch(pack([0, [], null])).rank, undefined);
});

test("kv 159: unknown tags, unknown keys and bad fields cost their event, not the batch", () => {
  const batch = decodeBatch(pack([0, [
    map({ session_id: "s", something_new: [{ a: [1] }], 5: 6 }),
    { type: "BlockMoved", block_hashes: [1n] },
    ["Ignored", 1, 2],
    ["BlockStored", "no list"],
    map({ block_hashes: ["text"] }),
    map({ token_ids: undefined }),
    { block_hashes: [1n] },
    [],
    7,
    null,
    ["BlockRemoved", [9n]],
  ]]));
  assert.is(batch.events.length, 2);
  assert.is(batch.events[1]?.kind, "engine_removed");
  assert.is(batch.refused.length, 8);
});

test("kv 161: bytes that are no batch are undecodable as a whole", () => {
  const good = pack([0, [map()]]);
  const bad: Uint8Array[] = [
    new Uint8Array(0),
    Uint8Array.of(0xc1),
    pack("text"),
    pack([]),
    pack([0]),
    pack([0, "events"]),
    pack({ ts: 0 }),
    pack([0, [map()]]).subarray(0, good.length - 1),
    Uint8Array.of(...good, 0),
    Uint8Array.of(0x92, 0x00, 0xdd, 0xff, 0xff, 0xff, 0xff),
    Uint8Array.of(0x92, 0x00, 0x91, 0xc1),
  ];
  for (const payload of bad) {
    assert.throws(
      () => decodeBatch(payload),
      (error: unknown) => error instanceof BatchUndecodable,
    );
  }
});

test("a batch can be read in steps", () => {
  const events = Array.from({ length: 50 }, (_, i) => map({ block_hashes: [BigInt(i), 1n] }));
  const decoder = new BatchDecoder(pack([0, events, 1]));
  let steps = 0;
  while (!decoder.step(200)) steps += 1;
  assert.ok(steps > 10);
  assert.is(decoder.batch.events.length, 50);
  assert.is(decoder.batch.rank, 1);
});

test("nesting without end neither overflows the stack nor takes long", () => {
  const payload = new Uint8Array(200_000).fill(0x91);
  payload.set([0x92, 0x00]);
  assert.throws(() => decodeBatch(payload), (error: unknown) => error instanceof BatchUndecodable);
});

test.run();
