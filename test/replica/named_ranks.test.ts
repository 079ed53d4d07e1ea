/** Ranks that nobody has registered, only batches name them: a joiner has them from its peers too. */

import { test } from "uvu";
import * as assert from "uvu/assert";
import type { Lane } from "../../src/kv/lane.ts";
import { Subscription } from "../../src/kv/subscriber.ts";
import { createLog } from "../../src/observe/log.ts";
import { FakeEngine, type FakeEngineOptions } from "../support/fake_engine.ts";
import { runtime } from "../support/runtime.ts";
import { dumpOf } from "./support/loop.ts";
import {
  closeAll,
  laneKey,
  sourceReplica,
  store,
  type TestReplica,
  testReplica,
  type TestReplicaOptions,
  until,
} from "./support/replica.ts";
import { makeCut } from "./support/shelf.ts";
import { seeded } from "./support/sim_clock.ts";

const { net, clock, random } = runtime;
const REGISTERED = laneKey("w");
const NAMED = laneKey("w", { dpRank: 3 });

const engines: FakeEngine[] = [];
const subscriptions: Subscription[] = [];

test.after.each(async () => {
  await Promise.all(subscriptions.splice(0).map((one) => one.stop()));
  await Promise.all(engines.splice(0).map((one) => one.close()));
  await closeAll();
});

async function engineOf(options: Partial<FakeEngineOptions> = {}): Promise<FakeEngine> {
  const engine = await FakeEngine.start({ runtime, blockSize: 4, ...options });
  engines.push(engine);
  return engine;
}

async function listen(
  replica: TestReplica,
  engine: FakeEngine,
  key = REGISTERED,
): Promise<void> {
  const before = engine.subscribers;
  const { endpoint, replayEndpoint } = engine;
  const subscription = new Subscription({
    store: replica.store,
    net,
    clock,
    random,
    key,
    blockSize: 4,
    endpoint,
    ...(replayEndpoint === undefined ? {} : { replayEndpoint }),
    limits: { reconnect: { firstMs: 20, mostMs: 200 } },
  });
  subscriptions.push(subscription);
  await subscription.start();
  await until(() => engine.subscribers > before, "the subscription");
}

/** A joiner that listens, and holds back what it hears, but has asked nobody yet. */
async function joinerOf(
  engine: FakeEngine,
  options: TestReplicaOptions,
): Promise<TestReplica> {
  const joiner = await testReplica(options);
  const { maxBufferedBatches } = options.config ?? {};
  const maxBatches = typeof maxBufferedBatches === "number" ? maxBufferedBatches : 1000;
  joiner.store.holdAll({ maxBatches, maxBytes: 1 << 20 });
  await listen(joiner, engine);
  return joiner;
}

/** From now on the source hears nothing more. */
async function deafen(engine: FakeEngine): Promise<void> {
  subscriptions[0]?.pause();
  await until(() => engine.subscribers < subscriptions.length, "the end of the subscription");
}

let next = 0;

/** Publishes `blocks` new blocks of a rank as one batch; their hashes. */
function publish(engine: FakeEngine, rank: number, blocks: number): bigint[] {
  engine.dpRank = rank;
  const hashes = engine.store(Array.from({ length: 4 * blocks }, () => next++));
  engine.publish();
  return hashes;
}

function remove(engine: FakeEngine, rank: number, hashes: readonly bigint[]): void {
  engine.dpRank = rank;
  engine.remove(hashes);
  engine.publish();
}

function held(lane: Lane | undefined): string[] {
  return lane === undefined ? [] : [...lane.cut().blocks.engines].map(String).sort();
}

function texts(hashes: Iterable<bigint>): string[] {
  return [...hashes].map(String).sort();
}

/** Waits until the replica has all that the engine has published so far. */
async function heard(replica: TestReplica, engine: FakeEngine): Promise<void> {
  const last = engine.nextSeq - 1n;
  await until(
    () => replica.store.lanes().every((lane) => lane.cursor === last && lane.waiting.bytes === 0),
    `batch ${last} everywhere`,
  );
}

/** A source that has followed an engine with the ranks 0 and 3 from its first batch on. */
async function sourceOf(engine: FakeEngine): Promise<TestReplica> {
  const source = await sourceReplica();
  await listen(source, engine);
  return source;
}

for (const replayEndpoint of [undefined, null]) {
  const ring = replayEndpoint === null ? "without a ring" : "with a ring";

  test(`${ring}: of a worker that is silent a joiner gets all ranks that its peer has`, async () => {
    const engine = await engineOf(replayEndpoint === null ? { replayEndpoint } : {});
    const source = await sourceOf(engine);
    publish(engine, 0, 5);
    const hashes = publish(engine, 3, 4);
    await until(() => held(source.store.lane(NAMED)).length === 4, "rank 3 at the source");
    await heard(source, engine);
    const joiner = await joinerOf(engine, { peers: [source.url] });
    joiner.recovery.start();
    assert.is(await joiner.recovery.done, "recovered");
    const lane = joiner.store.lane(NAMED);
    assert.equal(held(lane), texts(hashes));
    assert.is(lane?.cursor, 1n);
    const { laneReports, lanes } = joiner.recovery.status();
    assert.is(lanes.restored, 2);
    assert.equal(laneReports.map(({ dpRank }) => dpRank), [0, 3]);
    // It goes on: what the worker removes is gone, and a batch for one rank is a number for both.
    remove(engine, 3, hashes.slice(2));
    publish(engine, 0, 1);
    await heard(joiner, engine);
    assert.equal(held(lane), texts(hashes.slice(0, 2)));
    assert.is(lane?.state, "live");
  });

  test(`${ring}: batches of other ranks that came before its lane opened leave no hole`, async () => {
    const engine = await engineOf(replayEndpoint === null ? { replayEndpoint } : {});
    const source = await sourceOf(engine);
    const hashes = publish(engine, 3, 4);
    publish(engine, 0, 5);
    await heard(source, engine);
    const joiner = await joinerOf(engine, { peers: [source.url] });
    for (let at = 0; at < 10; at += 1) publish(engine, 0, 1);
    await heard(source, engine);
    // What the peer has not heard yet when it is asked, the joiner has.
    await deafen(engine);
    for (let at = 0; at < 10; at += 1) publish(engine, 0, 1);
    await until(
      () => joiner.store.lane(REGISTERED)?.waiting.batches === 20,
      "20 batches that wait",
    );
    engine.replayRequests.length = 0;
    joiner.recovery.start();
    assert.is(await joiner.recovery.done, "recovered");
    await heard(joiner, engine);
    assert.equal(held(joiner.store.lane(NAMED)), texts(hashes));
    assert.is(joiner.store.lane(NAMED)?.state, "live");
    // The highest number only asks where the ring ends.
    const asked = engine.replayRequests.filter((from) => from < 2n ** 64n - 2n);
    assert.equal(asked, [], "the ring was not needed");
  });
}

test("a batch that names the rank while the dump comes in is put on the copy", async () => {
  const engine = await engineOf({ replayEndpoint: null });
  const source = await sourceOf(engine);
  const hashes = publish(engine, 3, 4);
  await heard(source, engine);
  const joiner = await joinerOf(engine, { peers: [source.url] });
  publish(engine, 0, 1);
  await heard(source, engine);
  await deafen(engine);
  remove(engine, 3, hashes.slice(3));
  const more = publish(engine, 3, 2);
  await until(() => joiner.store.lane(NAMED)?.waiting.batches === 3, "the rank's lane, held");
  joiner.recovery.start();
  assert.is(await joiner.recovery.done, "recovered");
  await heard(joiner, engine);
  assert.equal(held(joiner.store.lane(NAMED)), texts([...hashes.slice(0, 3), ...more]));
  assert.is(joiner.store.lane(NAMED)?.state, "live");
  assert.is(joiner.recovery.status().lanes.restored, 2);
});

test("a rank of another publisher is not taken, though the worker has the same name", async () => {
  const engine = await engineOf();
  const other = await engineOf({ seed: 9 });
  const source = await sourceOf(engine);
  await listen(source, other, NAMED);
  publish(engine, 0, 5);
  publish(other, 3, 4);
  await until(() => held(source.store.lane(NAMED)).length === 4, "rank 3 at the source");
  const lines: Record<string, unknown>[] = [];
  const log = createLog({
    write: (line) => lines.push(JSON.parse(line) as Record<string, unknown>),
    now: () => 0,
  });
  const joiner = await joinerOf(engine, { peers: [source.url], log });
  joiner.recovery.start();
  assert.is(await joiner.recovery.done, "recovered");
  assert.is(joiner.store.lane(NAMED), undefined, "nobody would tell us what goes from it");
  const said = lines.find(({ event }) => event === "recovery_rank_not_taken");
  assert.is(said?.["dpRank"], 3);
  assert.match(String(said?.["reason"]), /no batch shows/);
});

test("a rank of a publisher that has started over since is not taken", async () => {
  const engine = await engineOf({ replayEndpoint: null });
  const source = await sourceOf(engine);
  publish(engine, 0, 5);
  publish(engine, 3, 4);
  await heard(source, engine);
  await deafen(engine);
  await engine.restart();
  const joiner = await joinerOf(engine, { peers: [source.url] });
  const fresh = publish(engine, 0, 1);
  publish(engine, 0, 1);
  await until(() => joiner.store.lane(REGISTERED)?.waiting.batches === 2, "2 batches that wait");
  joiner.recovery.start();
  await joiner.recovery.done;
  assert.is(joiner.store.lane(NAMED), undefined);
  await heard(joiner, engine);
  assert.ok(held(joiner.store.lane(REGISTERED)).includes(String(fresh[0])));
});

test("more than may wait has come: the copy is not joined, and the lane is empty and says so", async () => {
  const engine = await engineOf({ replayEndpoint: null });
  const source = await sourceOf(engine);
  publish(engine, 3, 4);
  publish(engine, 0, 5);
  await heard(source, engine);
  await deafen(engine);
  const config = { maxBufferedBatches: 3, recoveryBudgetMs: 1500 };
  const joiner = await joinerOf(engine, { peers: [source.url], config });
  for (let at = 0; at < 9; at += 1) publish(engine, 0, 1);
  await until(
    () => joiner.store.lane(REGISTERED)?.lastError !== undefined,
    "an overflow",
  );
  joiner.recovery.start();
  assert.is(await joiner.recovery.done, "degraded");
  const lane = joiner.store.lane(NAMED);
  assert.equal(held(lane), []);
  if (lane !== undefined) assert.is(lane.state, "degraded");
});

test("ranks that are posted are taken over, and go on where they are", async () => {
  const source = await sourceReplica({ lanes: [REGISTERED, NAMED] });
  const at = (replica: TestReplica): Lane => {
    const lane = replica.store.lane(NAMED);
    if (lane === undefined) throw new Error("no such lane");
    return lane;
  };
  store(at(source), 0, 7n, 0, 10);
  await until(() => at(source).blocks === 10, "the source's blocks");
  for (const missed of [0, 1]) {
    const joiner = await testReplica({ lanes: [REGISTERED], peers: [source.url] });
    joiner.recovery.start();
    await joiner.recovery.done;
    assert.equal(held(at(joiner)), held(at(source)));
    store(at(joiner), 1 + missed, 8n, 0, 3);
    await until(() => at(joiner).cursor === BigInt(1 + missed), "the next batch");
    assert.is(at(joiner).state, missed === 0 ? "live" : "degraded");
    assert.is(held(at(joiner)).length, missed === 0 ? 13 : 3);
  }
});

test("a peer that makes up ranks opens no more lanes than a worker may have", async () => {
  const cuts = Array.from(
    { length: 200 },
    (_, dpRank) => makeCut(laneKey("w", { dpRank }), 2, { cursor: 5n }),
  );
  const strangers = [makeCut(laneKey("stranger"), 2), makeCut(laneKey("w", { group: "no" }), 2)];
  const answer = dumpOf([...strangers, ...cuts], { size: 4 });
  const liar = await runtime.http.serve(
    { address: { kind: "tcp", host: "127.0.0.1", port: 0 } },
    (request) => answer(request),
  );
  const port = liar.address.kind === "tcp" ? liar.address.port : 0;
  const joiner = await testReplica({ lanes: [REGISTERED], peers: [`http://127.0.0.1:${port}`] });
  joiner.recovery.start();
  await joiner.recovery.done;
  assert.is(joiner.store.lanes().length, 64);
  assert.ok(joiner.store.lanes().every(({ key }) => key.worker === "w"));
  await liar.destroy();
});

/** One joiner in the middle of random events of three ranks, with losses. */
async function round(seed: number): Promise<{ live: number; empty: number }> {
  const chance = seeded(seed);
  const pick = (below: number): number => Math.floor(chance() * below);
  const hasRing = chance() < 0.5;
  const engine = await engineOf({
    ringBatches: 4 + pick(60),
    ...(hasRing ? {} : { replayEndpoint: null }),
  });
  const truth = new Map([0, 1, 2].map((rank) => [rank, new Set<bigint>()]));
  const act = async (): Promise<void> => {
    const rank = pick(3);
    const blocks = truth.get(rank) ?? new Set();
    const kind = chance();
    engine.dpRank = rank;
    const gone = [...blocks].filter(() => kind < 0.4 && chance() < 0.3);
    if (gone.length > 0) {
      engine.remove(gone);
      for (const hash of gone) blocks.delete(hash);
    } else if (kind < 0.95) {
      // One block each, so that any of them may go.
      const hashes = Array.from(
        { length: 1 + pick(4) },
        () => engine.store([next++, 0, 0, 0])[0] ?? 0n,
      );
      for (const hash of hashes) blocks.add(hash);
    } else {
      engine.clear();
      blocks.clear();
    }
    if (chance() < 0.1) engine.lose();
    else engine.publish();
    if (chance() < 0.3) await new Promise((resolve) => setTimeout(resolve, pick(4)));
  };
  const source = await sourceOf(engine);
  for (let at = pick(30); at >= 0; at -= 1) await act();
  const joiner = await testReplica({ peers: [source.url] });
  joiner.store.holdAll({ maxBatches: 5 + pick(100), maxBytes: 1 << 20 });
  await listen(joiner, engine);
  for (let at = pick(20); at > 0; at -= 1) await act();
  joiner.recovery.start();
  for (let at = pick(20); at > 0; at -= 1) await act();
  // A copy that could not be joined is followed by one that goes further.
  while (!joiner.recovery.recovered) {
    publish(engine, 0, 1).forEach((hash) => truth.get(0)?.add(hash));
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  for (let at = pick(10); at > 0; at -= 1) await act();
  // The last one shows what was missed before.
  await until(() => engine.subscribers >= 2, "both subscriptions");
  publish(engine, 0, 1).forEach((hash) => truth.get(0)?.add(hash));
  await until(
    () =>
      [source, joiner].every((one) =>
        one.store.lanes().every((lane) =>
          lane.cursor === engine.nextSeq - 1n && lane.waiting.batches === 0 &&
          (lane.state === "live" || lane.state === "degraded")
        )
      ),
    `the end of round ${seed}`,
    () =>
      [source, joiner].map((one) =>
        one.store.lanes().map(({ key, state, cursor, waiting, lastError }) => [
          key.dpRank,
          state,
          `${cursor} of ${engine.nextSeq}`,
          waiting.batches,
          lastError,
        ])
      ),
  );
  let live = 0;
  let empty = 0;
  for (const lane of joiner.store.lanes()) {
    const blocks = held(lane);
    const should = texts(truth.get(lane.key.dpRank) ?? []);
    const ghosts = blocks.filter((hash) => !should.includes(hash));
    assert.equal(ghosts, [], `seed ${seed}, rank ${lane.key.dpRank}: ghosts`);
    if (lane.state === "live") {
      assert.equal(blocks, should, `seed ${seed}, rank ${lane.key.dpRank}: live and not equal`);
      if (lane.key.dpRank !== 0) live += 1;
    } else empty += 1;
  }
  await Promise.all(subscriptions.splice(0).map((one) => one.stop()));
  await Promise.all(engines.splice(0).map((one) => one.close()));
  await closeAll();
  return { live, empty };
}

test("in random worlds no lane of a joiner has a ghost, and those that are live have all", async () => {
  let live = 0;
  for (let seed = 1; seed <= 30; seed += 1) live += (await round(seed)).live;
  assert.ok(live >= 5, `${live} ranks that only batches name were live in the end`);
});

test.run();
