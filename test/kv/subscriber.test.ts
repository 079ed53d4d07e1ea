/** Subscriptions over real sockets, against the fake engine in all its dialects and moods. */
import { encode } from "@msgpack/msgpack";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { createKvStore, type IndexStore } from "../../src/kv/create_kv_store.ts";
import type { Lane } from "../../src/kv/lane.ts";
import { requestReplay, writeSeq } from "../../src/kv/replay.ts";
import { Subscription, type SubscriptionOptions } from "../../src/kv/subscriber.ts";
import { createMetrics, type Metrics } from "../../src/observe/metrics.ts";
import { DIALECTS, FakeEngine, type FakeEngineOptions } from "../support/fake_engine.ts";
import { runtime } from "../support/runtime.ts";
import { until } from "../support/until.ts";

const { net, clock, random } = runtime;
const KEY = { model: "m", group: "default", worker: "7", dpRank: 0 };

let store: IndexStore;
let metrics: Metrics;
const engines: FakeEngine[] = [];
const subscriptions: Subscription[] = [];

test.before.each(async () => {
  metrics = createMetrics();
  store = await createKvStore({ clock, random, metrics });
});
test.after.each(async () => {
  await Promise.all(subscriptions.splice(0).map((one) => one.stop()));
  await Promise.all(engines.splice(0).map((one) => one.close()));
});

async function engineOf(options: Partial<FakeEngineOptions> = {}): Promise<FakeEngine> {
  const engine = await FakeEngine.start({ runtime, blockSize: 4, ...options });
  engines.push(engine);
  return engine;
}

/** Starts to listen to an engine, and waits until its subscription stands. */
async function listen(
  engine: FakeEngine,
  options: Partial<SubscriptionOptions> = {},
): Promise<{ subscription: Subscription; lane: Lane }> {
  const replayEndpoint = engine.replayEndpoint;
  const subscription = new Subscription({
    store,
    net,
    clock,
    random,
    key: KEY,
    blockSize: 4,
    endpoint: engine.endpoint,
    ...(replayEndpoint === undefined ? {} : { replayEndpoint }),
    limits: { reconnect: { firstMs: 20, mostMs: 200 } },
    ...options,
  });
  subscriptions.push(subscription);
  await subscription.start();
  await until(() => engine.subscribers > 0, "the subscription");
  const lane = store.lane(options.key ?? KEY);
  if (lane === undefined) throw new Error("no lane");
  return { subscription, lane };
}

const tokens = (from: number, blocks: number) =>
  Array.from({ length: 4 * blocks }, (_, i) => from + i);

function depth(prompt: readonly number[], options: { salt?: string; lora?: string } = {}): number {
  const partition = store.partition("m", "default");
  const [match] = partition?.index.match({ tokens: Uint32Array.from(prompt), ...options }) ?? [];
  return match?.device ?? 0;
}

for (const dialect of DIALECTS) {
  test(`${dialect}: stores, removals, clears, adapters, salts, groups, replays and restarts`, async () => {
    const engine = await engineOf({ dialect });
    const hashes = engine.store(tokens(1, 3));
    engine.publish();
    const { lane } = await listen(engine);
    await until(() => lane.cursor === 0n, "what was published before");
    assert.is(depth(tokens(1, 3)), 3);
    await until(() => lane.state === "live");

    engine.store(tokens(13, 2), { parent: hashes[2] ?? 0n });
    engine.store(tokens(1, 1), { salt: "tenant" });
    if (dialect !== "sglang") engine.store(tokens(1, 2), { lora: "adapter" });
    engine.store(tokens(500, 1), { groupIndex: 1, specKind: "mamba" });
    engine.store(tokens(600, 1), { groupIndex: 0, specKind: "full_attention" });
    engine.store(tokens(700, 1), { locality: "REMOTE" });
    engine.publish();
    await until(() => lane.cursor === 1n);
    assert.is(depth(tokens(1, 5)), 5);
    assert.is(depth(tokens(1, 5), { salt: "tenant" }), 1);
    if (dialect !== "sglang") assert.is(depth(tokens(1, 5), { lora: "adapter" }), 2);
    assert.is(depth(tokens(500, 1)), 0);
    assert.is(depth(tokens(600, 1)), 1);
    assert.is(depth(tokens(700, 1)), 0);

    // Two batches get lost; the next one shows it.
    engine.store(tokens(800, 1));
    engine.lose();
    engine.remove(hashes.slice(2));
    engine.lose();
    engine.store(tokens(900, 1));
    engine.publish();
    await until(() => lane.cursor === 4n);
    assert.is(depth(tokens(800, 1)), 1);
    assert.is(depth(tokens(900, 1)), 1);
    assert.is(depth(tokens(1, 5)), 2);
    assert.is(engine.replayRequests.at(-1), 2n);

    engine.duplicate();
    engine.clear();
    engine.publish();
    await until(() => lane.cursor === 5n);
    assert.is(lane.blocks, 0);

    engine.store(tokens(1, 3));
    engine.publish();
    await until(() => depth(tokens(1, 3)) === 3);
    await engine.restart();
    await until(() => lane.blocks === 0, "T1: nothing is credited to the new process");
    await until(() => engine.subscribers > 0);
    engine.store(tokens(1, 2));
    engine.publish();
    await until(() => depth(tokens(1, 3)) === 2);
    assert.is(lane.cursor, 0n);
    await until(() => lane.state === "live");
  });
}

test("without a replay endpoint a restarted worker's blocks go as soon as it is back", async () => {
  const engine = await engineOf({ replayEndpoint: null });
  const { lane } = await listen(engine);
  engine.store(tokens(1, 2));
  engine.publish();
  await until(() => lane.blocks === 2);
  await engine.restart();
  await until(() => lane.blocks === 0);
  await until(() => engine.subscribers > 0);
  engine.store(tokens(1, 1));
  engine.publish();
  await until(() => lane.blocks === 1);
  await until(() => lane.state === "live");
});

test("a worker that connects to us", async () => {
  const folder = mkdtempSync(join(tmpdir(), "kv-"));
  const endpoint = `ipc://${folder}/events`;
  const subscription = new Subscription({
    store,
    net,
    clock,
    random,
    key: KEY,
    blockSize: 4,
    endpoint,
    bind: true,
  });
  subscriptions.push(subscription);
  await subscription.start();
  const engine = await engineOf({ endpoint, connect: true, replayEndpoint: null });
  await until(() => engine.subscribers > 0);
  engine.store(tokens(1, 2));
  engine.publish();
  await until(() => depth(tokens(1, 2)) === 2);
  rmSync(folder, { recursive: true, force: true });
});

test("ranks that batches name get lanes of their own; one publisher's numbers count for all", async () => {
  const engine = await engineOf({ replayEndpoint: null });
  const { lane } = await listen(engine);
  const send = (seq: number, rank: number | null, from: number) => {
    const event = {
      type: "BlockStored",
      block_hashes: [seq + 1],
      parent_block_hash: null,
      token_ids: tokens(from, 1),
      block_size: 4,
    };
    engine.sendFrames([
      new Uint8Array(0),
      writeSeq(BigInt(seq)),
      encode([seq, [event], ...(rank === null ? [] : [rank])]),
    ]);
  };
  send(0, null, 10);
  send(1, 3, 20);
  send(2, 0, 30);
  send(3, 3, 40);
  const other = () => store.lane({ ...KEY, dpRank: 3 });
  await until(() => other()?.cursor === 3n && lane.cursor === 3n);
  assert.is(lane.blocks, 2);
  assert.is(other()?.blocks, 2);
  await until(() => other()?.state === "live");
  await until(() => lane.state === "live");
});

test("a rank that a batch names first after a snapshot of the registered one is not taken for complete", async () => {
  const engine = await engineOf({ dpRank: 3, ringBatches: 2 });
  const { lane } = await listen(engine);
  for (let seq = 0; seq < 5; seq++) {
    engine.raw({ type: "Ignored" });
    engine.lose();
  }
  const { key, epoch } = lane;
  const none = new BigUint64Array();
  await lane.commit({
    key,
    epoch,
    cursor: 4n,
    decoderState: undefined,
    blocks: {
      count: 0,
      engines: none,
      locals: none,
      keys: none,
      parents: new Int32Array(),
      tiers: new Uint8Array(),
      copies: new Uint16Array(),
    },
  });
  engine.store(tokens(1, 2));
  engine.publish();
  const other = () => store.lane({ ...KEY, dpRank: 3 });
  await until(() => other()?.cursor === 5n && lane.cursor === 5n);
  await until(() => other()?.state === "degraded");
  assert.match(other()?.lastError ?? "", /the replay ring starts at batch 4/);
  assert.is(lane.state, "live");
});

test("what a replay had for a rank that no batch had named yet is asked for again", async () => {
  for (const ringBatches of [100, 2]) {
    const engine = await engineOf({ ringBatches });
    const key = { ...KEY, worker: `ring ${ringBatches}` };
    const { lane } = await listen(engine, { key });
    const publish = (rank: number, from: number, isLost = false): void => {
      engine.dpRank = rank;
      engine.store(tokens(from, 2));
      if (isLost) engine.lose();
      else engine.publish();
    };
    publish(0, 100);
    await until(() => lane.cursor === 0n && lane.state === "live", "the registered rank");
    publish(3, 200, true);
    publish(0, 300);
    await until(() => lane.cursor === 2n && lane.state === "live", "the hole is filled");
    publish(3, 400);
    const other = () => store.lane({ ...key, dpRank: 3 });
    await until(() => other()?.cursor === 3n && other()?.state !== "replaying", "the new rank");
    assert.is(other()?.state, ringBatches === 100 ? "live" : "degraded");
    assert.is(other()?.blocks, ringBatches === 100 ? 4 : 2);
  }
});

test("a batch that was lost just before the first that names a rank may have been of that rank", async () => {
  for (const replayEndpoint of [undefined, null]) {
    const engine = await engineOf(replayEndpoint === null ? { replayEndpoint } : {});
    const key = { ...KEY, worker: `${replayEndpoint}` };
    const { lane } = await listen(engine, { key });
    engine.dpRank = 0;
    engine.store(tokens(100, 2));
    engine.publish();
    await until(() => lane.state === "live", "the registered rank");
    engine.dpRank = 3;
    engine.store(tokens(200, 2));
    engine.lose();
    engine.store(tokens(300, 2));
    engine.publish();
    const other = () => store.lane({ ...key, dpRank: 3 });
    await until(() => other()?.cursor === 2n && other()?.state !== "replaying", "the new rank");
    assert.is(other()?.state, replayEndpoint === null ? "degraded" : "live");
    assert.is(other()?.blocks, replayEndpoint === null ? 2 : 4);
  }
});

test("a new process is told from the one before also by a rank that was named a moment ago", async () => {
  const engine = await engineOf();
  const { lane } = await listen(engine);
  const publish = (rank: number, from: number): void => {
    engine.dpRank = rank;
    engine.store(tokens(from, 2));
    engine.publish();
  };
  publish(0, 100);
  await until(() => lane.state === "live", "the registered rank");
  engine.replayMode = "silent";
  publish(3, 200);
  const other = () => store.lane({ ...KEY, dpRank: 3 });
  await until(() => other()?.state === "replaying", "the new rank");
  await engine.restart();
  engine.replayMode = "normal";
  // The numbers that the new rank begins after are used again, and for that rank.
  publish(3, 300);
  publish(0, 400);
  publish(3, 500);
  await until(() => other()?.cursor === 2n && other()?.state === "live", "the new process");
  assert.is(other()?.blocks, 4);
});

test("kv 160: messages of 2 or 4 frames, and numbers of 7 bytes, are skipped", async () => {
  const engine = await engineOf();
  const { subscription, lane } = await listen(engine);
  const [none, seq] = [new Uint8Array(0), writeSeq(0n)];
  engine.sendFrames([none, seq]);
  engine.sendFrames([none, seq, none, none]);
  engine.sendFrames([none, new Uint8Array(7), none]);
  engine.store(tokens(1, 1));
  engine.publish();
  await until(() => lane.blocks === 1);
  assert.match(subscription.lastError ?? "", /3 frames, sequence of 7 bytes/);
  assert.match(await metrics.text(), /type="batch",status="bad_frames"\} 3/);
});

test("kv 161: an undecodable batch is not applied, and the next one asks for it", async () => {
  const engine = await engineOf();
  const { lane, subscription } = await listen(engine);
  engine.store(tokens(1, 1));
  engine.publish();
  await until(() => lane.cursor === 0n);
  engine.sendPayload(Uint8Array.of(0xc1, 1, 2));
  await until(() => subscription.lastError !== undefined);
  assert.is(lane.cursor, 0n);
  assert.match(subscription.lastError ?? "", /batch 1 cannot be decoded/);
  engine.store(tokens(50, 1));
  engine.publish();
  await until(() => lane.cursor === 2n);
  // kv 162: in the replay it is skipped; nobody has its content, so what was held is given up.
  assert.ok(engine.replayRequests.includes(1n));
  await until(() => lane.state === "degraded");
  assert.is(depth(tokens(50, 1)), 1);
  assert.is(depth(tokens(1, 1)), 0);
});

test("T5: one bad event does not cost its batch", async () => {
  const engine = await engineOf();
  const { lane } = await listen(engine);
  engine.raw({ type: "BlockStored", block_hashes: "none" });
  engine.raw({ type: "SomethingNew", x: 1 });
  engine.store(tokens(1, 1));
  engine.publish();
  await until(() => lane.blocks === 1);
  await until(() => lane.state === "live");
});

test("kv 162: an answer with a wrong number of frames ends the replay", async () => {
  const engine = await engineOf();
  engine.store(tokens(1, 1));
  engine.publish();
  engine.replayMode = "garbage";
  const endpoint = engine.replayEndpoint ?? "";
  const stop = new AbortController().signal;
  const end = await requestReplay({ net, clock, endpoint }, 0n, () => true, stop);
  assert.equal(end, { kind: "failed", message: "an answer of 6 frames" });
});

test("a replay that never answers times out; live goes on after it", async () => {
  const engine = await engineOf();
  const { lane } = await listen(engine, {
    limits: { replay: { idleTimeoutMs: 100 }, reconnect: { firstMs: 20, mostMs: 200 } },
  });
  await until(() => lane.state === "live");
  engine.replayMode = "silent";
  engine.store(tokens(1, 1));
  engine.lose();
  engine.store(tokens(50, 1));
  engine.publish();
  await until(() => lane.state === "degraded");
  assert.is(depth(tokens(50, 1)), 1);
  assert.match(lane.lastError ?? "", /timeout/);
});

test("a replay is given up when its lane is closed", async () => {
  const engine = await engineOf();
  const { subscription, lane } = await listen(engine);
  await until(() => lane.state === "live");
  engine.replayMode = "silent";
  engine.lose();
  engine.publish();
  await until(() => lane.state === "replaying");
  await subscription.stop();
  assert.is(store.lane(KEY), undefined);
});

test("a ring that leaves batches out for a slow reader is asked until all are there", async () => {
  const engine = await engineOf();
  engine.replayMode = "holes";
  for (let i = 0; i < 30; i++) {
    engine.store(tokens(10 * i, 1));
    engine.publish();
  }
  const { lane } = await listen(engine);
  await until(() => lane.blocks === 30);
});

test("a ring of thousands of batches is taken in slices, and completely", async () => {
  const engine = await engineOf();
  for (let i = 0; i < 3000; i++) {
    engine.store(tokens(100 * i, 5));
    engine.publish();
  }
  const { lane } = await listen(engine);
  await until(() => lane.state === "live");
  assert.is(lane.blocks, 15_000);
});

test("what cannot wait is dropped, counted, and fetched again from the ring", async () => {
  const engine = await engineOf();
  const { lane, subscription } = await listen(engine, {
    limits: { intake: { maxBatches: 3, maxBytes: 1000 }, reconnect: { firstMs: 20, mostMs: 200 } },
  });
  await until(() => lane.state === "live");
  for (let i = 0; i < 400; i++) {
    engine.store(tokens(100 * i, 2));
    engine.publish();
  }
  await until(() => lane.blocks > 0);
  await until(() => {
    engine.store(tokens(7, 1));
    engine.publish();
    return lane.blocks === 801;
  });
  const text = await metrics.text();
  if (/overflow_batches_total\{place="frames"\}/.test(text)) {
    assert.match(subscription.lastError ?? "", /batches dropped/);
  }
  await until(() => lane.state === "live");
});

test("T2: a worker that is removed with events in flight ends empty, and stays so", async () => {
  const engine = await engineOf();
  const { subscription } = await listen(engine);
  for (let i = 0; i < 200; i++) {
    engine.store(tokens(100 * i, 5));
    engine.publish();
  }
  await subscription.stop();
  assert.is(store.lane(KEY), undefined);
  assert.is(store.partition("m", "default"), undefined);
  assert.ok(store.wasClosed(KEY));
});

test("pausing keeps the blocks; resuming fetches what was missed", async () => {
  const engine = await engineOf();
  const { subscription, lane } = await listen(engine);
  engine.store(tokens(1, 1));
  engine.publish();
  await until(() => lane.blocks === 1);
  subscription.pause();
  assert.is(subscription.status, "paused");
  await until(() => engine.subscribers === 0);
  engine.store(tokens(50, 1));
  engine.publish();
  assert.is(lane.blocks, 1);
  subscription.resume();
  await until(() => lane.blocks === 2);
  assert.is(subscription.status, "active");
});

test("kv 181: the late end of an old connection does not change a listener that was resumed", async () => {
  const engine = await engineOf();
  const { subscription, lane } = await listen(engine);
  await until(() => lane.state === "live");
  subscription.pause();
  subscription.resume();
  await until(() => subscription.status === "active");
  await until(() => engine.subscribers === 1, "the old connection's end");
  engine.store(tokens(1, 1));
  engine.publish();
  await until(() => lane.blocks === 1);
  assert.is(subscription.status, "active");
  assert.is(subscription.lastError, undefined);
  assert.is(lane.lastError, undefined);
});

test("kv 177: stopping ends a listener in every phase, and what it waits for", async () => {
  const engine = await engineOf();
  const { endpoint } = engine;
  const make = (worker: string, to: string) =>
    new Subscription({
      store,
      net,
      clock,
      random,
      key: { ...KEY, worker },
      blockSize: 4,
      endpoint: to,
      replayEndpoint: to,
    });
  const notStarted = make("a", endpoint);
  const starting = make("b", endpoint);
  const waiting = make("c", "tcp://127.0.0.1:1");
  await waiting.start();
  const started = starting.start().then(() => "started", () => "refused");
  await Promise.all([notStarted.stop(), starting.stop(), waiting.stop()]);
  await started;
  assert.equal(store.lanes(), []);
  assert.equal(store.partitions(), []);
  await until(() => engine.subscribers === 0);
});

test("batches that got lost before a silence are found without a next one", async () => {
  const engine = await engineOf();
  const { lane } = await listen(engine, { limits: { idleCheckMs: 50 } });
  engine.store(tokens(1, 1));
  engine.publish();
  await until(() => lane.blocks === 1);
  engine.store(tokens(50, 1));
  engine.lose();
  await until(() => lane.blocks === 2);
  await until(() => lane.state === "live");
});

test("a worker that is not there yet is tried until it is", async () => {
  const first = await engineOf();
  const { endpoint, replayEndpoint } = first;
  await first.close();
  const subscription = new Subscription({
    store,
    net,
    clock,
    random,
    key: KEY,
    blockSize: 4,
    endpoint,
    ...(replayEndpoint === undefined ? {} : { replayEndpoint }),
    limits: { reconnect: { firstMs: 20, mostMs: 100 } },
  });
  subscriptions.push(subscription);
  await subscription.start();
  await until(() => subscription.lastError !== undefined);
  assert.is(subscription.status, "pending");
  assert.is(store.lane(KEY)?.state, "subscribing");
  const engine = await engineOf({ endpoint, replayEndpoint: replayEndpoint ?? null });
  engine.store(tokens(1, 2));
  engine.publish();
  await until(() => depth(tokens(1, 2)) === 2);
  assert.is(subscription.status, "active");
});

test("a slow lane never stops the reading of its socket", async () => {
  const engine = await engineOf();
  const { lane } = await listen(engine);
  await until(() => lane.state === "live");
  lane.hold({ maxBatches: 10, maxBytes: 1e9 });
  for (let i = 0; i < 500; i++) {
    engine.store(tokens(100 * i, 2));
    engine.publish();
  }
  await until(() => lane.waiting.batches === 10);
  const overflow = /overflow_batches_total\{place="lane"\} 490/;
  await until(async () => overflow.test(await metrics.text()), "490 batches let go");
  lane.release();
  await until(() => lane.blocks === 1000);
  await until(() => lane.state === "live");
});

test.run();
