/**
 * Random histories of one worker, seen through a connection that loses, repeats, breaks and delays,
 * against what the worker itself holds.
 *
 * What must hold at the end, once all has calmed down: the index has exactly the worker's blocks, or
 * the lane says that it is degraded, and then it holds nothing that the worker does not hold.
 */
import fc from "fast-check";
import { test } from "uvu";
import * as assert from "uvu/assert";
import type { KvEvent } from "../../src/kv/blocks.ts";
import type { LaneBatch } from "../../src/kv/lane.ts";
import { PrefixIndex } from "../../src/kv/prefix_index.ts";
import {
  batch,
  BLOCK_SIZE,
  clear,
  createWorld,
  hashOf,
  remove,
  Ring,
  store,
  type World,
} from "./lane_world.ts";
import { calm, StillClock } from "../support/still_clock.ts";

/** The worker: what it holds, its ring, and its incarnation. */
class Worker {
  readonly ring: Ring;
  readonly ringSize: number;
  readonly held = new Set<bigint>();
  incarnation = 0;
  #next = 0n;

  constructor(ring: Ring, ringSize: number) {
    this.ring = ring;
    this.ringSize = ringSize;
  }

  /** Each name is a sequence of its own, so removals take nothing else with them. */
  publish(names: readonly number[], isRemoval: boolean, isClear: boolean): LaneBatch {
    const events: KvEvent[] = [];
    if (isClear) {
      this.held.clear();
      events.push(clear);
    }
    for (const name of names) {
      const hash = hashOf(name, this.incarnation);
      if (isRemoval && this.held.has(hash)) {
        this.held.delete(hash);
        events.push(remove([name], this.incarnation));
      } else if (!isRemoval && !this.held.has(hash)) {
        this.held.add(hash);
        events.push(store([name], { incarnation: this.incarnation }));
      }
    }
    const made = batch(this.#next++, ...events);
    this.ring.batches.push(made);
    while (this.ring.batches.length > this.ringSize) this.ring.batches.shift();
    return made;
  }

  restart(): void {
    this.incarnation += 1;
    this.held.clear();
    this.ring.batches = [];
    this.#next = 0n;
  }
}

type Step =
  | { readonly kind: "publish"; readonly names: number[]; readonly removal: boolean }
  | { readonly kind: "clear" | "lose" | "repeat" | "break" | "restart" | "stall" | "answer" };

const steps = fc.array(
  fc.oneof(
    {
      weight: 12,
      arbitrary: fc.record({
        kind: fc.constant("publish" as const),
        names: fc.array(fc.integer({ min: 1, max: 12 }), { minLength: 1, maxLength: 4 }),
        removal: fc.boolean(),
      }),
    },
    { weight: 3, arbitrary: fc.record({ kind: fc.constant("lose" as const) }) },
    { weight: 2, arbitrary: fc.record({ kind: fc.constant("repeat" as const) }) },
    { weight: 1, arbitrary: fc.record({ kind: fc.constant("clear" as const) }) },
    { weight: 1, arbitrary: fc.record({ kind: fc.constant("break" as const) }) },
    { weight: 1, arbitrary: fc.record({ kind: fc.constant("restart" as const) }) },
    { weight: 1, arbitrary: fc.record({ kind: fc.constant("stall" as const) }) },
    { weight: 2, arbitrary: fc.record({ kind: fc.constant("answer" as const) }) },
  ),
  { minLength: 5, maxLength: 60 },
) as fc.Arbitrary<Step[]>;

const index = await PrefixIndex.create({ blockSize: BLOCK_SIZE });

async function play(
  history: readonly Step[],
  options: { hasRing: boolean; ringSize: number; maxBatches: number },
): Promise<{ world: World; worker: Worker }> {
  const clock = new StillClock();
  const ring = new Ring(clock);
  const worker = new Worker(ring, options.ringSize);
  const world = await createWorld({
    index,
    hasRing: options.hasRing,
    ring,
    clock,
    limits: { maxBatches: options.maxBatches },
  });
  const { lane } = world;
  let isConnected = true;
  let last: LaneBatch | undefined;
  let open = (): void => {};
  lane.sourceUp(false);
  await calm();
  const reconnect = () => {
    if (!isConnected) lane.sourceUp(true);
    isConnected = true;
  };
  for (const step of history) {
    switch (step.kind) {
      case "publish":
      case "clear": {
        const isClear = step.kind === "clear";
        const names = step.kind === "publish" ? step.names : [];
        reconnect();
        last = worker.publish(names, step.kind === "publish" && step.removal, isClear);
        lane.receive(last);
        break;
      }
      case "lose":
        worker.publish([worker.ring.requests.length % 12 + 1], false, false);
        break;
      case "repeat":
        if (last !== undefined && isConnected) lane.receive(last);
        break;
      case "break":
        lane.sourceDown("broken");
        isConnected = false;
        last = undefined;
        break;
      case "restart":
        lane.sourceDown("worker ended");
        isConnected = false;
        last = undefined;
        worker.restart();
        break;
      case "stall":
        ring.gate ??= new Promise((resolve) => open = resolve);
        break;
      case "answer":
        open();
        ring.gate = undefined;
        await calm();
    }
  }
  open();
  ring.gate = undefined;
  await calm();
  // The worker goes on a little, so that the last hole shows.
  reconnect();
  lane.receive(worker.publish([1], false, false));
  await calm();
  await clock.advance(100_000);
  return { world, worker };
}

function check(world: World, worker: Worker): void {
  const engines = [...world.index.snapshot(world.lane.handle).engines];
  const ghosts = engines.filter((hash) => !worker.held.has(hash));
  assert.equal(ghosts, [], `ghosts in state ${world.lane.state}`);
  const { state } = world.lane;
  assert.ok(state === "live" || state === "degraded", state);
  if (state === "live") assert.is(engines.length, worker.held.size);
  const copies = world.index.snapshot(world.lane.handle).copies;
  assert.ok(copies.every((count) => count === 1), "something was applied twice");
}

for (
  const [name, options, seed] of [
    ["a ring that has everything", { hasRing: true, ringSize: 1000, maxBatches: 1000 }, 101],
    ["a ring of five batches", { hasRing: true, ringSize: 5, maxBatches: 1000 }, 102],
    ["no ring", { hasRing: false, ringSize: 0, maxBatches: 1000 }, 103],
    ["a buffer of two batches", { hasRing: true, ringSize: 30, maxBatches: 2 }, 104],
  ] as const
) {
  test(`no history leaves anything false in the index, or something missing unsaid: ${name}`, async () => {
    await fc.assert(
      fc.asyncProperty(steps, async (history) => {
        const { world, worker } = await play(history, options);
        check(world, worker);
        if (name === "a ring that has everything") assert.is(world.lane.state, "live");
        world.lane.close();
      }),
      { seed, numRuns: 2000 },
    );
  });
}

test.run();
