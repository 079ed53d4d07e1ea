/**
 * Cuts of a lane that are made in slices, with everything that can happen to the lane in between.
 *
 * What must hold: a cut is what the lane's worker had said up to the cut's cursor, or there is none;
 * and the lane goes on as if there had been no cut, or says that it lost events.
 */
import fc from "fast-check";
import { test } from "uvu";
import * as assert from "uvu/assert";
import type { KvEvent } from "../../src/kv/blocks.ts";
import { BlockHasher } from "../../src/kv/hash.ts";
import { createKvMeters } from "../../src/kv/kv_meters.ts";
import { Lane, type LaneCut } from "../../src/kv/lane.ts";
import type { LaneIndex } from "../../src/kv/lane_content.ts";
import { RowBuilder } from "../../src/kv/lane_blocks.ts";
import { PrefixIndex } from "../../src/kv/prefix_index.ts";
import { Slices } from "../../src/kv/slices.ts";
import { silentLog } from "../../src/observe/log.ts";
import { createMetrics } from "../../src/observe/metrics.ts";
import type { Clock } from "../../src/runtime/runtime.ts";
import { calm } from "../support/still_clock.ts";
import { batch, BLOCK_SIZE, clear, remove, store } from "./lane_world.ts";
import { rowsOf } from "./model.ts";

/** Every look at it takes a millisecond, and timers fire when the test says so. */
class BusyClock implements Clock {
  #at = 0;
  #due: (() => void)[] = [];

  now(): number {
    return this.#at;
  }

  monotonic(): number {
    return this.#at++;
  }

  after(_delayMs: number, action: () => void): () => void {
    this.#due.push(action);
    return () => {
      this.#due = this.#due.filter((one) => one !== action);
    };
  }

  get isIdle(): boolean {
    return this.#due.length === 0;
  }

  /** One turn of the event loop. */
  async turn(): Promise<void> {
    for (const action of this.#due.splice(0)) action();
    await calm();
  }
}

const hasher = await BlockHasher.create();
const index = await PrefixIndex.create({ blockSize: BLOCK_SIZE });
const reference = await PrefixIndex.create({ blockSize: BLOCK_SIZE });

/** The worker, what it had said after each batch, and the lane that listens. */
class World {
  readonly clock = new BusyClock();
  readonly metrics = createMetrics();
  readonly lane: Lane;
  readonly cuts: LaneCut[] = [];
  void = 0;
  /** What each incarnation held after each of its batches. */
  readonly #said: (() => ReturnType<typeof rowsOf>)[][] = [];
  #truth = -1;
  #next = 0;
  #held: number[] = [];
  #name = 1;
  #incarnation = -1;
  #running = 0;

  constructor(maxBatches: number) {
    const { clock } = this;
    const slow: LaneIndex = {
      openLane: (worker, rank) => index.openLane(worker, rank),
      closeLane: (lane) => index.closeLane(lane),
      apply: (lane, event, most) => index.apply(lane, event, Math.min(most ?? 3, 3)),
      snapshot: (lane) => index.snapshot(lane),
      // A few rows at a time, and a turn of the event loop after each of them.
      snapshotInSlices: (lane, _pause, rows) => {
        const turn = () => new Promise<void>((resolve) => clock.after(0, resolve));
        return index.snapshotInSlices(lane, turn, rows, 3);
      },
      load: (lane, blocks) => index.load(lane, blocks),
      count: (lane) => index.count(lane),
    };
    let ids = 0;
    this.lane = new Lane({
      key: { model: "m", group: "default", worker: "w", dpRank: 0 },
      index: slow,
      settings: { blockSize: BLOCK_SIZE, hashBytes: (bytes) => hasher.bytes(bytes, 0n) },
      slices: new Slices({ clock, budgetMs: 3 }),
      clock,
      random: { number: () => 0.5, uuid: () => `id-${ids++}`, bytes: (n) => new Uint8Array(n) },
      log: silentLog,
      meters: createKvMeters(this.metrics),
      limits: { maxBatches },
    });
    this.restart();
  }

  restart(): void {
    if (this.#truth >= 0) reference.closeLane(this.#truth);
    this.#truth = reference.openLane("w", 0);
    this.#incarnation += 1;
    this.#said.push([]);
    this.#next = 0;
    this.#held = [];
  }

  publish(kind: "stores" | "removes" | "clears", seed: number, sequences: number): void {
    const events: KvEvent[] = [];
    if (kind === "clears") {
      events.push(clear);
      this.#held = [];
    }
    const incarnation = this.#incarnation;
    for (let i = 0; i < sequences; i++) {
      const some = this.#held[(seed * 31 + i * 17) % (this.#held.length || 1)];
      if (kind === "removes") {
        if (some === undefined) break;
        this.#held = this.#held.filter((name) => name !== some);
        events.push(remove([some], incarnation));
        continue;
      }
      const names = Array.from({ length: 1 + seed % 6 }, () => this.#name++);
      const isChild = some !== undefined && (seed + i) % 3 !== 0;
      events.push(store(names, { incarnation, ...(isChild ? { parent: some } : {}) }));
      this.#held.push(...names);
    }
    for (const event of events) reference.apply(this.#truth, event);
    const blocks = reference.snapshot(this.#truth);
    this.#said[incarnation]?.push(() => rowsOf(blocks));
    this.lane.receive({ ...batch(this.#next++, ...events), epoch: `e${incarnation}` });
  }

  cut(rows?: RowBuilder): void {
    this.#running += 1;
    void this.lane.cutInSlices(rows).then((cut) => {
      this.#running -= 1;
      if (cut === undefined) this.void += 1;
      else this.cuts.push(cut);
    });
  }

  /** Until nothing is left to do. */
  async rest(): Promise<void> {
    await calm();
    for (let turn = 0; !this.clock.isIdle || this.#running > 0; turn++) {
      assert.ok(turn < 5_000, "it never ends");
      await this.clock.turn();
    }
  }

  said(epoch: string, cursor: bigint | undefined): ReturnType<typeof rowsOf> {
    const rows = this.#said[Number(epoch.slice(1))]?.[Number(cursor ?? -1n)];
    return rows === undefined ? [] : rows();
  }

  check(cut: LaneCut): void {
    const said = this.said(cut.epoch, cut.cursor);
    const rows = rowsOf(cut.blocks);
    if (cut.degraded === undefined) {
      assert.equal(rows, said);
      return;
    }
    const known = new Set(said.map((row) => row.engine));
    assert.ok(rows.every((row) => known.has(row.engine)), "a block that the worker does not have");
  }

  /** The lane as it is now, against the last batch of the worker. */
  async checkEnd(): Promise<void> {
    this.check(this.lane.cut());
    assert.is(this.lane.waiting.batches, 0);
    assert.is(this.lane.cursor, this.#next === 0 ? this.lane.cursor : BigInt(this.#next - 1));
    const text = await this.metrics.text();
    const overflows = Number(/baton_kv_\w*overflow\w*\{[^}]*\} (\d+)/.exec(text)?.[1] ?? 0);
    if (overflows > 0) lost += 1;
  }

  close(): void {
    this.lane.close();
    reference.closeLane(this.#truth);
  }
}

let lost = 0;

const publish = (kind: "stores" | "removes" | "clears", sequences: fc.Arbitrary<number>) =>
  fc.record({ op: fc.constant(kind), seed: fc.nat(100), sequences });
const plain = (...ops: string[]) => fc.constantFrom(...ops).map((op) => ({ op }));
const step = fc.oneof(
  { weight: 8, arbitrary: publish("stores", fc.integer({ min: 1, max: 4 })) },
  // More than is applied in one step.
  { weight: 1, arbitrary: publish("stores", fc.constant(220)) },
  { weight: 4, arbitrary: publish("removes", fc.integer({ min: 1, max: 5 })) },
  { weight: 1, arbitrary: publish("clears", fc.constant(1)) },
  { weight: 5, arbitrary: plain("cut", "own cut") },
  { weight: 14, arbitrary: plain("turn") },
  { weight: 1, arbitrary: plain("restart", "hold", "release", "degrade") },
) as fc.Arbitrary<
  { op: string; seed?: number; sequences?: number }
>;

async function play(world: World, one: { op: string; seed?: number; sequences?: number }) {
  const { op, seed = 0, sequences = 0 } = one;
  if (op === "stores" || op === "removes" || op === "clears") world.publish(op, seed, sequences);
  else if (op === "cut") world.cut();
  else if (op === "own cut") world.cut(new RowBuilder(false));
  else if (op === "turn") await world.clock.turn();
  else if (op === "restart") world.restart();
  else if (op === "hold") world.lane.hold({ maxBatches: 1_000, maxBytes: 1e6 });
  else if (op === "release") world.lane.release();
  else if (op === "degrade") world.lane.degrade("told to");
}

test("a cut in slices is exact wherever events come between, and the lane goes on as without it", async () => {
  let cuts = 0, voids = 0, moved = 0;
  await fc.assert(
    fc.asyncProperty(
      fc.array(step, { minLength: 10, maxLength: 60, size: "max" }),
      fc.constantFrom(2, 5, 1_000),
      async (steps, maxBatches) => {
        const world = new World(maxBatches);
        world.publish("stores", 5, 4);
        for (const one of steps) {
          await play(world, one);
        }
        world.lane.release();
        await world.rest();
        world.publish("stores", 1, 1);
        await world.rest();
        for (const cut of world.cuts) world.check(cut);
        await world.checkEnd();
        cuts += world.cuts.length;
        voids += world.void;
        moved += world.cuts.filter((cut) => cut.cursor !== world.lane.cursor).length;
        world.close();
      },
    ),
    { seed: 7, numRuns: 400 },
  );
  assert.ok(cuts > 1_000, `${cuts} cuts`);
  assert.ok(moved > 500, `${moved} cuts of a lane that went on`);
  assert.ok(voids > 100, `${voids} void cuts`);
  assert.ok(lost > 20, `${lost} lanes that lost events by overflow`);
});

test("events that come during a cut wait, and are applied after it", async () => {
  const world = new World(1_000);
  for (let i = 0; i < 4; i++) world.publish("stores", 5, 4);
  await world.rest();
  world.cut();
  await calm();
  for (let i = 0; i < 3; i++) world.publish("stores", 5, 1);
  await world.clock.turn();
  assert.is(world.lane.cursor, 3n);
  assert.is(world.lane.waiting.batches, 3);
  assert.is(world.lane.state, "live");
  await world.rest();
  assert.is(world.lane.cursor, 6n);
  assert.is(world.cuts[0]?.cursor, 3n);
  await world.checkEnd();
  world.close();
});

test("who asks while a cut is being made gets that one; the next one is a new one", async () => {
  const world = new World(1_000);
  world.publish("stores", 5, 4);
  await world.rest();
  assert.is(world.lane.cutInSlices(), world.lane.cutInSlices());
  world.cut();
  world.publish("stores", 5, 4);
  await world.rest();
  world.cut();
  await world.rest();
  assert.equal(world.cuts.map((cut) => cut.cursor), [0n, 1n]);
  world.close();
});

test("who brings memory for a cut gets one of its own there, after the one that is being made", async () => {
  const world = new World(1_000);
  const [first, second] = [new RowBuilder(false), new RowBuilder(false)];
  world.publish("stores", 5, 4);
  await world.rest();
  world.cut(first);
  world.cut(second);
  world.cut();
  // The one that is being made is not of this any more; those after it are.
  world.publish("stores", 5, 4);
  await world.rest();
  assert.equal(world.cuts.map((cut) => cut.cursor), [0n, 1n, 1n]);
  for (const cut of world.cuts) world.check(cut);
  world.cut(first);
  await world.rest();
  const [overwritten, other, , again] = world.cuts;
  assert.is(again?.blocks.engines.buffer, first.finish().engines.buffer);
  assert.is.not(other?.blocks.engines.buffer, again?.blocks.engines.buffer);
  assert.is(overwritten?.blocks.keys.length, 0);
  if (other !== undefined) world.check(other);
  if (again !== undefined) world.check(again);
  world.close();
});

test("a lane that is closed, cleared or degraded during a cut has none", async () => {
  for (const what of ["close", "degrade", "restart"]) {
    const world = new World(1_000);
    world.publish("stores", 5, 4);
    await world.rest();
    world.cut();
    await world.clock.turn();
    if (what === "close") world.lane.close();
    else if (what === "degrade") world.lane.degrade("told to");
    else {
      world.restart();
      world.publish("stores", 5, 4);
    }
    await world.rest();
    assert.is(world.void, 1, what);
    assert.is(world.cuts.length, 0, what);
    world.close();
  }
});

test("a cut waits for the end of the batch that is half applied", async () => {
  const world = new World(1_000);
  world.publish("stores", 3, 4);
  world.publish("stores", 5, 600);
  assert.is(world.lane.cursor, 0n, "the second batch takes more than its turn");
  world.cut();
  world.publish("stores", 5, 1);
  await world.rest();
  assert.is(world.cuts[0]?.cursor, 1n);
  for (const cut of world.cuts) world.check(cut);
  await world.checkEnd();
  world.close();
});

test.run();
