/**
 * The property of recovery: afterwards the joiner's index equals that of somebody who saw every
 * event, except for lanes that it reports as degraded, and those hold nothing false.
 */

import { test } from "uvu";
import * as assert from "uvu/assert";
import process from "node:process";
import { Replica, World } from "./support/sim_world.ts";

const SEEDS = Number(process.env.BATON_PROPERTY_SEEDS ?? 1000);
const FIRST = Number(process.env.BATON_PROPERTY_FIRST ?? 1);

interface Tally {
  exact: number;
  degraded: number;
  blocks: number;
  states: Map<string, number>;
}

async function run(seed: number, tally: Tally): Promise<void> {
  const dice = new World({ seed, workers: 1, ring: 1, loss: 0, restart: 0, hasReplay: true });
  const world = new World({
    seed: seed * 7919,
    workers: 1 + dice.pick(3),
    ring: [5, 30, 200][dice.pick(3)] as number,
    loss: [0, 0.02, 0.2][dice.pick(3)] as number,
    restart: [0, 0.003, 0.02][dice.pick(3)] as number,
    hasReplay: dice.chance() < 0.85,
  });
  const { clock } = world;
  const sources = [new Replica(world, "a", { peers: [] }), new Replica(world, "b", { peers: [] })];
  for (const source of sources) {
    await source.open();
    source.subscribe();
    source.recovery.start();
  }
  const joiner = new Replica(world, "joiner", {
    subscribeTimeoutMs: 200,
    recoveryBudgetMs: 20_000,
    idleTimeoutMs: 3000,
    maxBufferedBatches: [4, 50, 10_000][world.pick(3)],
  });
  // Events come all the time, until everything has calmed down.
  let isPublishing = true;
  const publish = (): void => {
    if (!isPublishing) return;
    const worker = world.workers[world.pick(world.workers.length)];
    if (world.chance() < world.options.restart) worker?.restart();
    else worker?.publish();
    clock.after(1 + world.pick(12), publish);
  };
  publish();
  await clock.run(() => false, world.pick(1500));
  const view = (replica: Replica) => ({ url: replica.url, serving: true, terminating: false });
  joiner.peers.replace(sources.map(view));
  for (const source of sources) {
    const cuts = world.pick(4);
    source.plan = {
      cutAfter: (answer) => answer <= cuts ? world.pick(6000) : undefined,
    };
  }
  // One of the two may die, leave or come back meanwhile.
  const [a, b] = sources as [Replica, Replica];
  if (world.chance() < 0.3) clock.after(world.pick(2000), () => (a.isDown = true));
  if (world.chance() < 0.3) clock.after(world.pick(2000), () => joiner.peers.replace([view(b)]));
  await joiner.open();
  joiner.recovery.start();
  for (const worker of world.workers) {
    clock.after(world.pick(300), () => joiner.subscribe([worker]));
  }
  let state: string | undefined;
  joiner.recovery.done.then((ended) => (state = ended), (error) => (state = String(error)));
  await clock.run(() => state !== undefined, 120_000);
  assert.ok(state !== undefined, `seed ${seed}: the recovery never ended`);
  tally.states.set(state, (tally.states.get(state) ?? 0) + 1);
  await clock.run(() => false, world.pick(500));
  isPublishing = false;
  await clock.run(() => false, 1000);
  for (const worker of world.workers) await worker.flush();
  await clock.run(() => false, 20_000);
  for (const worker of world.workers) {
    const lane = joiner.lane(worker);
    const truth = worker.rows;
    const rows = joiner.rows(worker);
    const where =
      `seed ${seed}, worker ${worker.key.worker}, recovery ${state}, lane ${lane.state}`;
    tally.blocks += rows.length;
    if (lane.state === "live") {
      tally.exact += 1;
      assert.equal(rows, truth, `${where}: not what the worker has`);
    } else {
      assert.is(lane.state, "degraded", where);
      tally.degraded += 1;
      const known = new Set(truth.map(withoutTiers));
      for (const row of rows) assert.ok(known.has(withoutTiers(row)), `${where}: a ghost, ${row}`);
    }
  }
  for (const replica of [...sources, joiner]) {
    replica.recovery.stop();
    for (const worker of world.workers) worker.unsubscribe(replica.lane(worker));
    replica.store.closeAll();
  }
}

function withoutTiers(row: string): string {
  return row.slice(0, row.lastIndexOf(" "));
}

test(`kv 52: after ${SEEDS} recoveries with faults no live lane differs and no lane has a ghost`, async () => {
  const tally: Tally = { exact: 0, degraded: 0, blocks: 0, states: new Map() };
  for (let seed = FIRST; seed < FIRST + SEEDS; seed += 1) await run(seed, tally);
  if (process.env.BATON_PROPERTY_SEEDS !== undefined) console.log(tally);
  // A run in which everything ends degraded or empty would prove nothing.
  assert.ok(tally.exact > tally.degraded);
  assert.ok(tally.blocks > SEEDS);
});

test.run();
