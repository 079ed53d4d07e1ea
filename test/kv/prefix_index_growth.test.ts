/** The index while it grows, at its bound, and while closed lanes are taken apart. */
import fc from "fast-check";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { TIERS } from "../../src/kv/blocks.ts";
import { PrefixIndex } from "../../src/kv/prefix_index.ts";
import { ModelLane, noResult, rowsOf } from "./model.ts";
import { DEADLINE_MS } from "../support/until.ts";

/** A generator of u32 that is the same in every run. */
function generator(seed: number): () => number {
  let state = seed;
  return () => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return state >>> 0;
  };
}

interface Chain {
  readonly lane: number;
  readonly hashes: BigUint64Array;
  readonly locals: BigUint64Array;
  /** Blocks that are still held. */
  held: number;
}

class Grower {
  readonly index: PrefixIndex;
  readonly lanes: number[];
  readonly chains: Chain[] = [];
  readonly random = generator(42);
  blocks = 0;

  constructor(index: PrefixIndex, lanes: number) {
    this.index = index;
    this.lanes = Array.from({ length: lanes }, (_, i) => index.openLane(`w${i}`, 0));
  }

  below(limit: number): number {
    return this.random() % limit;
  }

  add(): void {
    const count = 1 + this.below(20);
    const lane = this.lanes[this.below(this.lanes.length)] ?? 0;
    const hashes = new BigUint64Array(count), locals = new BigUint64Array(count);
    for (const half of [new Uint32Array(hashes.buffer), new Uint32Array(locals.buffer)]) {
      for (let i = 0; i < half.length; i++) half[i] = this.random();
    }
    const event = { kind: "stored_hashed", parent: undefined, hashes, locals } as const;
    assert.is(this.index.apply(lane, { ...event, tier: "device" }).applied, count);
    this.chains.push({ lane, hashes, locals, held: count });
    this.blocks += count;
  }

  /** Removes a chain from some place on. */
  cut(): void {
    const at = this.below(this.chains.length);
    const chain = this.chains[at];
    if (chain === undefined) return;
    const from = this.below(chain.held);
    const hashes = chain.hashes.slice(from, from + 1);
    this.index.apply(chain.lane, { kind: "removed", hashes, tier: "device" });
    this.blocks -= chain.held - from;
    chain.held = from;
    if (from > 0) return;
    this.chains[at] = this.chains.at(-1) ?? chain;
    this.chains.pop();
  }

  check(chain: Chain): void {
    const [match] = this.index.match({ locals: chain.locals });
    assert.is(match?.device, chain.held);
    assert.is(match?.lane, chain.lane);
  }
}

test("every block is found at every moment of the growth to 250,000", async () => {
  const index = await PrefixIndex.create({ blockSize: 16 });
  const grower = new Grower(index, 50);
  for (let step = 0; grower.blocks < 250_000; step++) {
    grower.add();
    if (step % 3 === 0) grower.cut();
    const chain = grower.chains[grower.below(grower.chains.length)];
    if (chain !== undefined) grower.check(chain);
    if (step % 8_000 === 0) { for (const one of grower.chains) grower.check(one); }
  }
  for (const chain of grower.chains) grower.check(chain);
  assert.is(index.stats().blocks, grower.blocks);
  const bytesEach = index.stats().bytes / grower.blocks;
  assert.ok(bytesEach <= 64, `${bytesEach} bytes for each block`);
  while (grower.chains.length > 0) grower.cut();
  assert.is(index.stats().blocks, 0);
  assert.is(index.stats().nodes, 0);
});

test("lanes that close while the table grows leave nothing, and harm nothing", async () => {
  const index = await PrefixIndex.create({ blockSize: 16 });
  const grower = new Grower(index, 20);
  for (let round = 0; round < 20; round++) {
    for (let i = 0; i < 1_500; i++) grower.add();
    const lane = grower.lanes[round] ?? -1;
    index.closeLane(lane);
    grower.lanes[round] = index.openLane(`again${round}`, 0);
    const gone = grower.chains.filter((chain) => chain.lane === lane);
    for (const chain of gone.slice(0, 50)) {
      assert.equal(index.match({ locals: chain.locals }), []);
    }
    const left = grower.chains.filter((chain) => chain.lane !== lane);
    grower.chains.splice(0, Infinity, ...left);
    for (let i = 0; i < 200; i++) {
      const chain = left[grower.below(left.length)];
      if (chain !== undefined) grower.check(chain);
    }
  }
  while (!index.tidy());
  const held = grower.chains.reduce((sum, chain) => sum + chain.held, 0);
  assert.is(index.stats().blocks, held);
  assert.is(index.stats().nodes, held);
  for (const chain of grower.chains) grower.check(chain);
});

test("memory of a closed lane is freed without further calls", async () => {
  const index = await PrefixIndex.create({ blockSize: 16 });
  const grower = new Grower(index, 1);
  while (grower.blocks < 20_000) grower.add();
  index.closeLane(grower.lanes[0] ?? -1);
  assert.ok(index.stats().dying > 10_000);
  const deadline = performance.now() + DEADLINE_MS;
  while (index.stats().dying > 0 && performance.now() < deadline) {
    await new Promise((resolve) => setTimeout(resolve, 1));
  }
  assert.is(index.stats().dying, 0);
  assert.is(index.stats().nodes, 0);
});

test("sixty thousand lanes, opened and closed again and again", async () => {
  const index = await PrefixIndex.create({ blockSize: 16 });
  const locals = BigUint64Array.of(5n);
  const event = { kind: "stored_hashed", parent: undefined, hashes: locals, locals } as const;
  let lanes: number[] = [];
  for (let round = 0; round < 3; round++) {
    lanes = Array.from({ length: 60_000 }, (_, i) => index.openLane(`w${i}`, round));
    for (const lane of lanes) index.apply(lane, { ...event, tier: "device" });
    assert.is(index.match({ locals }).length, 60_000);
    for (const lane of lanes) index.closeLane(lane);
    assert.equal(index.match({ locals }), []);
  }
});

const step = fc.record({
  lane: fc.nat(2),
  path: fc.array(fc.nat(3), { minLength: 1, maxLength: 8, size: "max" }),
  from: fc.nat(3),
  tier: fc.oneof({ weight: 4, arbitrary: fc.constant(0) }, { weight: 1, arbitrary: fc.nat(3) }),
  op: fc.constantFrom("stored", "stored", "stored", "removed", "matched"),
});

test("at its bound the index keeps to it, and answers what its snapshots say", async () => {
  const name = (lane: number, path: readonly number[]) =>
    path.reduce((sum, n) => sum * 5n + BigInt(n) + 1n, BigInt(lane + 1) << 40n);
  const localsOf = (path: readonly number[]) => BigUint64Array.from(path, (n) => BigInt(n) + 1n);
  let evicted = 0;
  await fc.assert(
    fc.asyncProperty(
      fc.array(step, { minLength: 20, maxLength: 80, size: "max" }),
      fc.integer({ min: 2, max: 24 }),
      async (steps, maxBlocks) => {
        const index = await PrefixIndex.create({ blockSize: 2, maxBlocks });
        const lanes = [0, 1, 2].map((i) => index.openLane(`w${i}`, 0));
        for (const { lane, path, from, tier, op } of steps) {
          const handle = lanes[lane] ?? -1;
          const at = TIERS[tier] ?? "device";
          if (op === "matched") {
            index.match({ locals: localsOf(path) });
          } else if (op === "removed") {
            const hashes = BigUint64Array.of(name(lane, path));
            index.apply(handle, { kind: "removed", hashes, tier: at });
          } else {
            const first = Math.min(from, path.length - 1);
            const result = index.apply(handle, {
              kind: "stored_hashed",
              parent: first === 0 ? undefined : name(lane, path.slice(0, first)),
              hashes: BigUint64Array.from(
                path.slice(first),
                (_, i) => name(lane, path.slice(0, first + i + 1)),
              ),
              locals: localsOf(path.slice(first)),
              tier: at,
            });
            evicted += result.evicted;
          }
          assert.ok(index.stats().blocks <= maxBlocks);
        }
        const { path } = steps.at(-1) ?? { path: [] };
        for (const query of [path, [0, 0, 0, 0, 0], [1, 2, 3, 0, 1]]) {
          const locals = localsOf(query);
          const matches = index.match({ locals });
          for (const lane of lanes) {
            const model = new ModelLane();
            const pending = new Map(
              rowsOf(index.snapshot(lane)).map((row) => [String(row.engine), row]),
            );
            const put = (engine: string): void => {
              const row = pending.get(engine);
              if (row === undefined) return;
              pending.delete(engine);
              put(row.parent);
              const parent = row.parent === "undefined" ? undefined : BigInt(row.parent);
              for (const [tier, copies] of row.copies.entries()) {
                if (copies === 0) continue;
                model.store(parent, [row.engine], [row.local], tier, copies, noResult());
              }
            };
            for (const engine of [...pending.keys()]) put(engine);
            assert.is(model.count, index.count(lane));
            const { device, host, disk, external } = matches.find((one) => one.lane === lane) ?? {};
            const found = external === undefined ? undefined : { device, host, disk, external };
            assert.equal(found, model.match([...locals]));
          }
        }
      },
    ),
    { seed: 3, numRuns: 400 },
  );
  assert.ok(evicted > 1_000, String(evicted));
});

test.run();
