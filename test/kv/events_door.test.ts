/** KV events as JSON lines: what a line may say, and that it goes through the same lanes. */
import { test } from "uvu";
import * as assert from "uvu/assert";
import { createKvStore, type IndexStore } from "../../src/kv/create_kv_store.ts";
import { EventsDoor } from "../../src/kv/events_door.ts";
import { LineRefused, readEventLine } from "../../src/kv/mooncake.ts";
import { byteLines } from "../../src/streams/byte_lines.ts";
import { runtime } from "../support/runtime.ts";
import { until } from "../support/until.ts";

const { clock, random } = runtime;
const KEY = { model: "m", group: "default", worker: "7", dpRank: 0 };

let store: IndexStore;
let door: EventsDoor;
test.before.each(async () => {
  store = await createKvStore({ clock, random });
  door = new EventsDoor({ store, clock });
});

const line = (fields: Record<string, unknown> = {}) => ({
  event_type: "stored",
  model_name: "m",
  block_size: 2,
  backend_id: "7",
  seq_hashes: [1],
  token_ids: [10, 11],
  ...fields,
});

const read = (fields: Record<string, unknown>, known = 0) =>
  readEventLine(JSON.stringify(fields), () => known);

/** Posts lines as one body, cut into small chunks, and waits until they are applied. */
async function post(...lines: (Record<string, unknown> | string)[]) {
  const text = lines.map((one) => typeof one === "string" ? one : JSON.stringify(one)).join("\n");
  const bytes = new TextEncoder().encode(text);
  const chunks = (async function* () {
    const size = bytes.length > 1_000_000 ? 65_536 : 7;
    for (let at = 0; at < bytes.length; at += size) {
      await Promise.resolve();
      yield bytes.slice(at, at + size);
    }
  })();
  const answer = await door.take(byteLines(chunks, { maxLineBytes: 100_000 }));
  await until(() => store.lanes().every((lane) => lane.waiting.bytes === 0));
  return answer;
}

const depth = (...tokens: number[]): number =>
  store.partition("m", "default")?.index.match({ tokens: Uint32Array.from(tokens) })[0]?.device ??
    0;

test("a line in RFC 1403's names, with its envelope", () => {
  const made = read(line({
    event_id: 5,
    timestamp: 1700000000000,
    additional_salt: "tenant",
    lora_name: "adapter",
    tenant_id: "ignored",
    medium: "CPU",
    dp_rank: 2,
    parent_hash: "18446744073709551615",
    base_block_idx: 3,
    seq: 9,
    epoch: "e1",
    seq_hashes: ["0xff", 2],
    token_ids: [1, 2, 3, 4],
    routing_group: "g",
  }));
  assert.equal(made.key, { model: "m", group: "g", worker: "7", dpRank: 2 });
  assert.is(made.seq, 9n);
  assert.is(made.epoch, "e1");
  assert.equal(made.event, {
    kind: "stored",
    parent: 2n ** 64n - 1n,
    hashes: BigUint64Array.of(255n, 2n),
    tokens: Uint32Array.of(1, 2, 3, 4),
    blockSize: 2,
    tier: "host",
    lora: "adapter",
    salt: "tenant",
  });
});

test("the short names win; a worker may be a number", () => {
  const made = read(line({ worker: 18446744073709551615n.toString(), model: "x", group: "h" }));
  assert.equal(made.key, { model: "x", group: "h", worker: "18446744073709551615", dpRank: 0 });
  assert.is(read(line({ backend_id: 12 })).key.worker, "12");
});

test("blocks by their token hashes need neither tokens nor a block size", () => {
  const made = read({
    event_type: "stored",
    model: "m",
    worker: "w",
    seq_hashes: [1, 2],
    tokens_hashes: [3, -1],
  });
  assert.equal(made.event, {
    kind: "stored_hashed",
    parent: undefined,
    hashes: BigUint64Array.of(1n, 2n),
    locals: BigUint64Array.of(3n, 2n ** 64n - 1n),
    tier: "device",
  });
});

test("a block size that no index can have costs its line and not the body", async () => {
  const answer = await post(
    line({
      backend_id: "big",
      block_size: 2 ** 31,
      model_name: "other",
      seq_hashes: [5],
      token_ids: undefined,
      tokens_hashes: [9],
    }),
    "",
    line(),
  );
  assert.is(answer.accepted, 1);
  assert.is(answer.refused[0]?.line, 1);
  assert.match(answer.refused[0]?.reason ?? "", /block size of 2147483648/);
  assert.is(depth(10, 11), 1);
});

test("lines cannot open models and workers without end", async () => {
  door = new EventsDoor({ store, clock, limits: { partitions: 2, lanes: 3 } });
  const one = (model: string, worker: string) => line({ model_name: model, backend_id: worker });
  const answer = await post(
    one("m", "1"),
    one("n", "1"),
    one("o", "1"),
    one("m", "2"),
    one("m", "3"),
    one("m", "2"),
  );
  assert.equal(answer.refused, [
    { line: 3, reason: "there are 2 models and groups already" },
    { line: 5, reason: "there are 3 workers and ranks already" },
  ]);
  assert.is(answer.accepted, 4);
});

test("removals and clears", () => {
  assert.equal(read(line({ event_type: "removed", medium: "DISK" })).event, {
    kind: "removed",
    hashes: BigUint64Array.of(1n),
    tier: "disk",
  });
  assert.equal(read({ event_type: "cleared", model: "m", worker: "w" }).event, { kind: "cleared" });
});

test("what is wrong with a line is said in words", () => {
  const refusals: [unknown, RegExp][] = [
    [line({ model_name: "" }), /model_name is missing/],
    [line({ backend_id: null }), /worker is missing/],
    [line({ event_type: "moved" }), /event_type/],
    [line({ block_size: 0.5 }), /block_size/],
    [line({ block_size: null }), /block_size is missing/],
    [line({ token_ids: [1] }), /1 token_ids for 1 blocks of 2/],
    [line({ token_ids: undefined }), /token_ids/],
    [line({ token_ids: [1, -1] }), /token id/],
    [line({ seq_hashes: [] }), /empty/],
    [line({ seq_hashes: 5 }), /not a list/],
    [line({ seq_hashes: [1.5] }), /64-bit/],
    [line({ seq_hashes: [1, 1], token_ids: [1, 2, 3, 4] }), /twice/],
    [line({ parent_hash: 1 }), /its own parent/],
    [line({ tokens_hashes: [1, 2] }), /differ in length/],
    [line({ dp_rank: -1 }), /dp_rank is not a whole number from 0 to 4294967295/],
    [line({ block_size: 0 }), /block_size is not a whole number from 1 /],
    ...["x", -1, "-1", 1.5, 1e300, "18446744073709551616", [1]].map(
      (seq): [unknown, RegExp] => [line({ seq }), /seq is not a whole number from 0 to 2\^64 - 1/],
    ),
    [line({ epoch: 5 }), /epoch/],
    [line({ medium: 5 }), /medium/],
    [line({ worker: "x".repeat(600) }), /too long/],
    [[1], /not a JSON object/],
  ];
  for (const [value, reason] of refusals) {
    assert.throws(
      () => readEventLine(JSON.stringify(value), () => 0),
      (error: unknown) => error instanceof LineRefused && reason.test(error.message),
    );
  }
  assert.throws(() => readEventLine("{", () => 0), /not JSON/);
});

test("lines are counted, refused ones listed by number, and the rest applied", async () => {
  const answer = await post(
    line(),
    "",
    "not json",
    line({ seq_hashes: [2], parent_hash: 1, token_ids: [12, 13], block_size: undefined }),
    line({ block_size: 4, seq_hashes: [3], token_ids: [1, 2, 3, 4] }),
  );
  assert.equal(answer, {
    accepted: 2,
    refused: [
      { line: 3, reason: "not JSON" },
      { line: 5, reason: "the partition has blocks of 2 tokens, not 4" },
    ],
    refused_count: 2,
  });
  assert.is(depth(10, 11, 12, 13), 2);
  // Nobody knows what came before lines that have no numbers.
  assert.is(store.lane(KEY)?.state, "degraded");
});

test("a long list of refusals is cut, and counted", async () => {
  const answer = await post(...Array.from({ length: 250 }, () => "x"));
  assert.is(answer.refused.length, 100);
  assert.is(answer.refused_count, 250);
});

test("numbered lines: one number is one batch, a repeated body changes nothing", async () => {
  const body = [
    line({ seq: 0 }),
    line({ seq: 0, seq_hashes: [2], parent_hash: 1, token_ids: [12, 13] }),
    line({ seq: 1, event_type: "removed", seq_hashes: [2] }),
  ];
  await post(...body);
  await post(...body);
  const lane = store.lane(KEY);
  assert.is(lane?.cursor, 1n);
  assert.is(lane?.blocks, 1);
  assert.equal([...lane?.cut().blocks.copies ?? []], [1]);
});

test("lines without numbers have no cursor, and their lane is degraded until it is cleared", async () => {
  await post(line());
  const lane = store.lane(KEY);
  assert.is(lane?.state, "degraded");
  assert.is(lane?.lastError, "its events carry no numbers");
  assert.is(lane?.cursor, undefined);
  assert.is(lane?.cut().cursor, undefined);
  assert.is(lane?.blocks, 1);
  await post(line({ event_type: "cleared" }), line({ seq_hashes: [2], token_ids: [12, 13] }));
  assert.is(lane?.state, "live");
  assert.is(lane?.cursor, undefined);
  assert.is(depth(12, 13), 1);
});

test("a publisher that begins with `cleared` is known from its beginning on, without numbers too", async () => {
  await post(line({ event_type: "cleared" }), line());
  assert.is(store.lane(KEY)?.state, "live");
});

test("lines without numbers after numbered ones, and the other way: what was held goes", async () => {
  await post(line({ seq: 0 }), line({ seq: 1, seq_hashes: [2], token_ids: [12, 13] }));
  await post(line({ seq_hashes: [3], token_ids: [14, 15] }));
  const lane = store.lane(KEY);
  assert.equal([depth(10, 11), depth(12, 13), depth(14, 15)], [0, 0, 1]);
  assert.is(lane?.state, "degraded");
  await post(line({ seq: 1, seq_hashes: [4], token_ids: [16, 17] }));
  assert.equal([depth(14, 15), depth(16, 17)], [0, 1]);
  assert.is(lane?.cursor, 1n);
  assert.is(lane?.state, "degraded", "it begins at batch 1");
  await post(line({ seq: 2, event_type: "cleared" }));
  assert.is(lane?.state, "live");
});

test("another epoch on lines without numbers clears the lane, and it stays degraded", async () => {
  await post(line({ epoch: "a" }), line({ epoch: "b", seq_hashes: [2], token_ids: [12, 13] }));
  assert.equal([depth(10, 11), depth(12, 13)], [0, 1]);
  assert.is(store.lane(KEY)?.state, "degraded");
});

test("a worker whose events come over a socket is not fed by lines", async () => {
  const lane = await store.open(KEY, { blockSize: 2, prepare: (one) => one.attach({}) });
  lane.receive({ seq: 0n, events: [read(line()).event] });
  const answer = await post(line({ seq_hashes: [2], token_ids: [12, 13] }));
  assert.equal(answer.refused, [{ line: 1, reason: "the worker's events come over ZMQ" }]);
  assert.is(lane.blocks, 1);
  assert.is(lane.state, "live");
});

test("a number that comes again with other content is a publisher that started over", async () => {
  await post(line({ seq: 0 }), line({ seq: 1, seq_hashes: [5], token_ids: [50, 51] }));
  await post(line({ seq: 0, seq_hashes: [9], token_ids: [90, 91] }));
  assert.is(store.lane(KEY)?.blocks, 1);
  assert.is(depth(90, 91), 1);
});

test("a hole in the numbers cannot be filled here: earlier blocks go, and the lane says so", async () => {
  await post(line({ seq: 0 }), line({ seq: 5, seq_hashes: [5], token_ids: [50, 51] }));
  assert.is(store.lane(KEY)?.state, "degraded");
  assert.is(depth(10, 11), 0);
  assert.is(depth(50, 51), 1);
});

test("T2: lines that were under way do not bring a removed worker back", async () => {
  await post(line());
  store.close(KEY);
  const answer = await post(line());
  assert.equal(answer.refused, [{ line: 1, reason: "the worker was removed" }]);
  assert.is(store.lane(KEY), undefined);
  await store.open(KEY, { blockSize: 2 });
  assert.is((await post(line())).accepted, 1);
});

test("a numbered batch has a bound; what is over it is refused", async () => {
  const tokens = Array.from({ length: 4000 }, (_, i) => 100_000 + i);
  const big = (i: number) =>
    line({
      seq: 0,
      seq_hashes: tokens.slice(0, 2000).map((n) => n + 10_000 * i),
      token_ids: tokens,
    });
  const answer = await post(...Array.from({ length: 400 }, (_, i) => big(i)));
  assert.ok(answer.accepted > 300 && answer.accepted < 400);
  assert.is(answer.refused[0]?.reason, "the batch is too large");
});

test("many lines are applied completely", async () => {
  const lines = Array.from(
    { length: 5000 },
    (_, i) => line({ seq_hashes: [i + 1], token_ids: [i, i + 1] }),
  );
  const answer = await post(...lines);
  assert.is(answer.accepted, 5000);
  await until(() => store.lane(KEY)?.blocks === 5000);
});

test.run();
