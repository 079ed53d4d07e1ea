import { test } from "uvu";
import * as assert from "uvu/assert";
import { ApproximateIndex, withSpeculation } from "../../src/kv/approximate.ts";
import { PrefixIndex } from "../../src/kv/prefix_index.ts";
import { VirtualClock } from "../support/virtual_clock.ts";

const A = { worker: "a", dpRank: 0 }, A1 = { worker: "a", dpRank: 1 };
const B = { worker: "b", dpRank: 0 };

/** The hashes of a made-up sequence. */
function sequence(...blocks: number[]) {
  return { locals: BigUint64Array.from(blocks, BigInt) };
}

async function fixture(options: { ttlMs?: number; maxBlocks?: number; blockSize?: number } = {}) {
  const clock = new VirtualClock();
  const index = await ApproximateIndex.create({ clock, blockSize: 4, ...options });
  const depths = (...blocks: number[]) =>
    Object.fromEntries(
      index.match(sequence(...blocks)).map((m) => [`${m.worker}${m.dpRank}`, m.device]).sort(),
    );
  return { clock, index, depths };
}

test("kv 117: a decision is found at once, as far as it goes", async () => {
  const { index, depths } = await fixture();
  index.insert(A, sequence(1));
  assert.equal(depths(1, 2), { a0: 1 });
  index.insert(A, sequence(1, 2, 3));
  assert.equal(depths(1, 2, 4), { a0: 2 });
  assert.equal(depths(9), {});
  const tokens = Uint32Array.from({ length: 11 }, (_, i) => i);
  index.insert(B, { tokens });
  assert.is(index.match({ tokens })[0]?.device, 2);
  assert.equal(index.match({ tokens, salt: "other" }), []);
  index.close();
});

test("kv 118: a decision is gone after its time, also if nobody asks", async () => {
  const { clock, index, depths } = await fixture();
  index.insert(A, sequence(1, 2, 3));
  await clock.advance(119_999);
  assert.equal(depths(1, 2, 3), { a0: 3 });
  await clock.advance(1);
  assert.is(index.blocks, 0);
  assert.equal(depths(1, 2, 3), {});
  assert.is(clock.pending, 0);
});

test("kv 119: the same decision again starts the time anew", async () => {
  const { clock, index, depths } = await fixture();
  index.insert(A, sequence(1, 2));
  await clock.advance(100_000);
  index.insert(A, sequence(1, 2));
  await clock.advance(100_000);
  assert.equal(depths(1, 2), { a0: 2 });
  await clock.advance(20_000);
  assert.equal(depths(1, 2), {});
});

test("kv 119: a longer decision keeps the shorter one's blocks, and the other way round", async () => {
  const { clock, index, depths } = await fixture();
  index.insert(A, sequence(1, 2));
  await clock.advance(60_000);
  index.insert(A, sequence(1, 2, 3));
  await clock.advance(60_000);
  assert.equal(depths(1, 2, 3), { a0: 3 });
  index.insert(A, sequence(1, 2));
  await clock.advance(60_000);
  assert.equal(depths(1, 2, 3), { a0: 2 });
  await clock.advance(60_000);
  assert.is(index.blocks, 0);
});

test("a branch that expires leaves the shared part to the others", async () => {
  const { clock, index, depths } = await fixture();
  index.insert(A, sequence(1, 2, 3, 4));
  await clock.advance(1_000);
  index.insert(A, sequence(1, 2, 5));
  await clock.advance(119_000);
  assert.equal([depths(1, 2, 3), depths(1, 2, 5)], [{ a0: 2 }, { a0: 3 }]);
  assert.is(index.blocks, 3);
  index.close();
});

test("kv 120: decisions of one moment expire together", async () => {
  const { clock, index, depths } = await fixture();
  for (const block of [1, 2, 3]) index.insert(A, sequence(block));
  await clock.advance(119_999);
  assert.equal([depths(1), depths(2), depths(3)], [{ a0: 1 }, { a0: 1 }, { a0: 1 }]);
  await clock.advance(1);
  assert.equal([depths(1), depths(2), depths(3)], [{}, {}, {}]);
});

test("kv 121, 122: a rank or a worker that is removed takes only its own", async () => {
  const { clock, index, depths } = await fixture();
  for (const rank of [A, A1, B]) index.insert(rank, sequence(1, 2));
  index.removeRank(A);
  assert.equal(depths(1, 2), { a1: 2, b0: 2 });
  index.insert(A, sequence(1, 2));
  index.removeWorker("a");
  index.removeWorker("nobody");
  index.removeRank({ worker: "b", dpRank: 7 });
  assert.equal(depths(1, 2), { b0: 2 });
  await clock.advance(120_000);
  assert.is(index.blocks, 0);
});

test("kv 123: blocks that events brought do not expire with the decisions beside them", async () => {
  const clock = new VirtualClock();
  const events = await PrefixIndex.create({ blockSize: 4 });
  const lane = events.openLane("a", 0);
  const speculative = await ApproximateIndex.create({ clock, blockSize: 4, ttlMs: 2_000 });
  const routed = sequence(1, 2, 3);
  speculative.insert(A, routed);
  speculative.insert(B, routed);
  const depths = () =>
    Object.fromEntries(
      withSpeculation(events.match(routed), speculative.match(routed))
        .map((m) => [m.worker, m.device]).sort(),
    );
  assert.equal(depths(), { a: 3, b: 3 });
  const { locals } = sequence(1, 2);
  const event = { kind: "stored_hashed", parent: undefined, hashes: locals, locals } as const;
  events.apply(lane, { ...event, tier: "device" });
  assert.equal(depths(), { a: 3, b: 3 });
  await clock.advance(2_000);
  assert.equal(depths(), { a: 2 });
  await clock.advance(1_000_000);
  assert.equal(depths(), { a: 2 });
});

test("speculation raises slower tiers with the device, and lowers nothing", () => {
  const known = { lane: 0, ...A, device: 2, host: 5, disk: 5, external: 6 };
  const guess = (device: number) => [
    { lane: 9, ...A, device, host: device, disk: device, external: device },
  ];
  assert.equal(withSpeculation([known], guess(3)), [{ ...known, device: 3 }]);
  assert.equal(withSpeculation([known], guess(1)), [known]);
  assert.equal(
    withSpeculation([known], guess(9)),
    [{ ...known, device: 9, host: 9, disk: 9, external: 9 }],
  );
  assert.equal(withSpeculation([known], []), [known]);
});

test("kv 124: hash lists of different length are refused", async () => {
  const { index, depths } = await fixture();
  const wrong = { ...sequence(1, 2), keys: BigUint64Array.of(1n) };
  assert.throws(() => index.insert(A, wrong), /differ in number/);
  assert.equal(depths(1), {});
  index.insert(A, { ...sequence(1, 2), keys: BigUint64Array.of(1n, 2n) });
  assert.equal(depths(1, 2), { a0: 2 });
  index.close();
});

test("kv 125: a closed index refuses, and has nothing running", async () => {
  const { clock, index } = await fixture();
  index.insert(A, sequence(1));
  index.close();
  index.close();
  assert.is(clock.pending, 0);
  assert.throws(() => index.insert(A, sequence(1)), /closed/);
  assert.throws(() => index.match(sequence(1)), /closed/);
});

test("kv 126: over its bound it gives up the oldest decisions, down to 80 %", async () => {
  const { index, depths } = await fixture({ maxBlocks: 10 });
  for (const start of [10, 20, 30, 40, 50]) index.insert(A, sequence(start, start + 1));
  assert.is(index.blocks, 10);
  index.insert(A, sequence(10, 11));
  assert.is(index.blocks, 10, "a known sequence needs no room");
  index.insert(B, sequence(60, 61));
  assert.is(index.blocks, 8);
  assert.equal([depths(20, 21), depths(30, 31)], [{}, {}]);
  assert.equal([depths(10, 11), depths(40, 41), depths(60, 61)], [{ a0: 2 }, { a0: 2 }, { b0: 2 }]);
  index.close();
});

test("text is matched in chunks of bytes, with adapters and salts apart", async () => {
  const { index } = await fixture({ blockSize: 64 });
  const text = "Où est la capitale ? ".repeat(20);
  index.insert(A, { text });
  const [match] = index.match({ text: text + "and something more" });
  assert.is(match?.device, Math.floor(new TextEncoder().encode(text).length / 64));
  assert.is(index.match({ text: text.slice(0, 150) + "x".repeat(200) })[0]?.device, 2);
  assert.equal(index.match({ text: "x" + text }), []);
  assert.equal(index.match({ text, salt: "t" }), []);
  assert.equal(index.match({ text, lora: "l" }), []);
  assert.equal(index.match({ text: "short" }), []);
  index.insert(A, { text: "short" });
  index.close();
});

test("long texts are hashed in pieces with the same result", async () => {
  const { index } = await fixture({ blockSize: 256 });
  const text = Array.from({ length: 300_000 }, (_, i) => String.fromCharCode(97 + i * i % 23)).join(
    "",
  );
  index.insert(A, { text: text.repeat(4) });
  assert.is(index.match({ text: text.repeat(4) })[0]?.device, Math.floor(1_200_000 / 256));
  assert.is(index.match({ text: text + "!" })[0]?.device, Math.floor(300_000 / 256));
  index.close();
});

test("a hot prefix outlives any number of decisions over it", async () => {
  const { clock, index, depths } = await fixture();
  for (let i = 0; i < 150; i++) {
    index.insert(A, sequence(1, 2, 1_000 + i));
    await clock.advance(1_000);
  }
  assert.equal(depths(1, 2), { a0: 2 });
  assert.is(index.blocks, 2 + 119);
  await clock.advance(119_000);
  assert.is(index.blocks, 0);
});

test.run();
