/** Recovery from a peer over real HTTP, with the real store and index on both sides. */

import { test } from "uvu";
import * as assert from "uvu/assert";
import type { EngineEvent, EngineStored } from "../../src/kv/engine_event.ts";
import type { Lane, LaneBatch } from "../../src/kv/lane.ts";
import type { LaneCut } from "../../src/replica/lane_port.ts";
import { runtime } from "../support/runtime.ts";
import { dumpOf } from "./support/loop.ts";
import { makeCut } from "./support/shelf.ts";
import {
  closeAll,
  contentOf,
  laneKey,
  sourceReplica,
  store,
  storedEvent,
  type TestReplica,
  testReplica,
  until,
} from "./support/replica.ts";

const KEYS = [laneKey("0"), laneKey("1"), laneKey("1", { dpRank: 1 })];
const [KEY] = KEYS as [typeof KEYS[0]];

function lane(replica: TestReplica, key = KEY): Lane {
  const found = replica.store.lane(key);
  if (found === undefined) throw new Error("no such lane");
  return found;
}

/** Waits until all that was received is in the index: it goes there in slices. */
async function applied(...replicas: TestReplica[]): Promise<void> {
  const lanes = replicas.flatMap(({ store }) => store.lanes());
  await until(() => lanes.every((one) => one.waiting.bytes === 0), "all events applied");
}

async function close(...replicas: TestReplica[]): Promise<void> {
  for (const replica of replicas) await replica.close();
}

test("kv 42: a joiner takes over every lane of its peer, cursor and all", async () => {
  const source = await sourceReplica({ lanes: KEYS });
  for (const [at, key] of KEYS.entries()) {
    store(lane(source, key), 0, BigInt(at + 1), 0, 100);
    store(lane(source, key), 1, BigInt(at + 1), 100, 30);
    store(lane(source, key), 2, BigInt(at + 7), 0, 5);
  }
  await applied(source);
  const joiner = await testReplica({ lanes: KEYS, peers: [source.url] });
  joiner.recovery.start();
  assert.is(await joiner.recovery.done, "recovered");
  await applied(joiner);
  for (const key of KEYS) {
    assert.equal(contentOf(lane(joiner, key)), contentOf(lane(source, key)));
    assert.is(lane(joiner, key).cursor, 2n);
    assert.is(lane(joiner, key).epoch, lane(source, key).epoch);
  }
  assert.is(joiner.recovery.status().lanes.restored, 3);
  assert.is(joiner.recovery.status().blocks, 3 * 135);
  assert.is(joiner.conditions.at(-1)?.ok, true);
  await close(joiner, source);
});

test("kv 17: the only peer is taken off the list in the middle of the transfer", async () => {
  const source = await sourceReplica({ lanes: [KEY] });
  store(lane(source), 0, 1n, 0, 5000);
  await until(() => lane(source).blocks === 5000, "all blocks in the source");
  const listeners = new Set<() => void>();
  let peers = [{ url: source.url, serving: true, terminating: false }];
  const joiner = await testReplica({
    lanes: [KEY],
    discovery: {
      start: () => Promise.resolve(),
      stop: () => {},
      current: () => peers,
      onChange: (listener) => {
        listeners.add(listener);
        return () => listeners.delete(listener);
      },
    },
  });
  joiner.recovery.start();
  const { recovery } = joiner;
  // On a quick machine it may be over between two looks.
  const hasBegun = () => recovery.status().state === "fetching" || recovery.recovered;
  await until(hasBegun, "an attempt");
  peers = [];
  for (const listener of listeners) listener();
  assert.is(await joiner.recovery.done, "recovered");
  assert.is(joiner.recovery.status().attempts.length, 1);
  assert.equal(contentOf(lane(joiner)), contentOf(lane(source)));
  await close(joiner, source);
});

test("kv 31, 33: the listener answers before recovery, with 503 and Retry-After", async () => {
  const joiner = await testReplica({ lanes: [KEY], peers: ["http://127.0.0.1:9"] });
  for (const isStarted of [false, true]) {
    if (isStarted) joiner.recovery.start();
    const response = await fetch(`${joiner.url}/dump`);
    assert.is(response.status, 503);
    assert.is(response.headers.get("retry-after"), "1");
    assert.is((await response.json() as { error: { code: string } }).error.code, "not_ready");
  }
  await close(joiner);
});

test("kv 37: a joiner is not ready before its peer's dump has come to its end", async () => {
  let release: () => void = () => {};
  const gate = new Promise<void>((resolve) => (release = resolve));
  const source = await sourceReplica({
    lanes: [KEY],
    wrap: (app) => async (request) => {
      await gate;
      return await app.fetch(request);
    },
  });
  store(lane(source), 0, 1n, 0, 10);
  await applied(source);
  const joiner = await testReplica({ lanes: [KEY], peers: [source.url] });
  joiner.recovery.start();
  await until(() => joiner.recovery.status().state === "fetching", "an attempt");
  assert.is(joiner.recovery.recovered, false);
  assert.is((await fetch(`${joiner.url}/dump`)).status, 503);
  release();
  await joiner.recovery.done;
  assert.is((await fetch(`${joiner.url}/dump`)).status, 200);
  await close(joiner, source);
});

test("kv 46, 47: what is held back meets the snapshot's cursor, older is dropped, a hole is replayed", async () => {
  const source = await sourceReplica({ lanes: KEYS });
  const batch = (seq: bigint): LaneBatch => ({ seq, events: [storedOf(seq)] });
  for (const key of KEYS) {
    for (let seq = 0n; seq <= 50n; seq += 1n) lane(source, key).receive(batch(seq));
  }
  await applied(source);
  const joiner = await testReplica({ lanes: KEYS, peers: [source.url] });
  const [old, hole, silent] = KEYS as [typeof KEY, typeof KEY, typeof KEY];
  const asked: bigint[] = [];
  for (const [at, key] of KEYS.entries()) {
    const ring = Array.from({ length: [52, 61, 60][at] as number }, (_, seq) => batch(BigInt(seq)));
    joiner.store.holdAll({ maxBatches: 1000, maxBytes: 1e6 });
    lane(joiner, key).attach({
      replay: (from, deliver) => {
        asked.push(from);
        for (const one of ring) if (one.seq >= from && !deliver(one)) break;
        return Promise.resolve({ kind: "complete" });
      },
    });
  }
  for (let seq = 40n; seq <= 51n; seq += 1n) lane(joiner, old).receive(batch(seq));
  lane(joiner, hole).receive(batch(60n));
  joiner.recovery.start();
  assert.is(await joiner.recovery.done, "recovered");
  // The source goes on to where each of the joiner's lanes is now.
  for (let seq = 51n; seq <= 51n; seq += 1n) lane(source, old).receive(batch(seq));
  for (let seq = 51n; seq <= 60n; seq += 1n) lane(source, hole).receive(batch(seq));
  for (let seq = 51n; seq <= 59n; seq += 1n) lane(source, silent).receive(batch(seq));
  await applied(source, joiner);
  assert.is(lane(joiner, old).cursor, 51n);
  assert.is(lane(joiner, hole).cursor, 60n);
  assert.ok(asked.every((from) => from >= 50n), "the ring is asked for the hole only");
  for (const key of KEYS) {
    assert.is(lane(joiner, key).state === "degraded", false);
    assert.equal(contentOf(lane(joiner, key)), contentOf(lane(source, key)));
  }
  await close(joiner, source);
});

function storedOf(seq: bigint) {
  return {
    kind: "stored" as const,
    parent: undefined,
    hashes: BigUint64Array.of(seq + 1_000_000n),
    tokens: Uint32Array.of(Number(seq), 1, 2, 3),
    blockSize: 4,
    tier: "device" as const,
  };
}

test("kv 51: a buffer that overflows while the dump comes in means another snapshot", async () => {
  let release: () => void = () => {};
  let asked = 0;
  const gate = new Promise<void>((resolve) => (release = resolve));
  const source = await sourceReplica({
    lanes: [KEY],
    wrap: (app) => async (request) => {
      asked += 1;
      const response = await app.fetch(request);
      // The cut is made now; the bytes come after the joiner's buffer has overflown.
      const bytes = await response.arrayBuffer();
      if (asked === 1) await gate;
      return new Response(bytes, { headers: response.headers });
    },
  });
  store(lane(source), 0, 1n, 0, 3);
  await applied(source);
  const joiner = await testReplica({
    lanes: [KEY],
    peers: [source.url],
    config: { maxBufferedBatches: 5 },
  });
  joiner.recovery.start();
  await until(() => asked === 1, "the first request");
  for (let seq = 1; seq <= 20; seq += 1) {
    store(lane(source), seq, BigInt(seq + 1), 0, 3);
    store(lane(joiner), seq, BigInt(seq + 1), 0, 3);
  }
  await applied(source);
  release();
  assert.is(await joiner.recovery.done, "recovered");
  await applied(joiner);
  assert.is(asked, 2);
  assert.is(lane(joiner).state, "live");
  assert.is(lane(joiner).cursor, 20n);
  assert.equal(contentOf(lane(joiner)), contentOf(lane(source)));
  await close(joiner, source);
});

test("events that go on while the dump is written are neither lost nor taken twice", async () => {
  const keys = Array.from({ length: 8 }, (_, worker) => laneKey(String(worker)));
  const source = await sourceReplica({ lanes: keys });
  const joiner = await testReplica({ lanes: keys, peers: [source.url] });
  const ring: LaneBatch[] = [];
  const publish = (count: number): void => {
    const seq = BigInt(ring.length);
    const batch = { seq, events: [storedEvent(seq % 40n, 0, count)] };
    ring.push(batch);
    for (const key of keys) {
      for (const replica of [source, joiner]) lane(replica, key).receive(batch);
    }
  };
  joiner.store.holdAll({ maxBatches: 10_000, maxBytes: 1e8 });
  for (const key of keys) {
    lane(joiner, key).attach({
      replay: async (from, deliver) => {
        await Promise.resolve();
        for (const batch of ring) if (batch.seq >= from && !deliver(batch)) break;
        return { kind: "complete" };
      },
    });
  }
  for (let time = 0; time < 40; time += 1) publish(200);
  const timer = setInterval(() => publish(200), 1);
  joiner.recovery.start();
  assert.is(await joiner.recovery.done, "recovered");
  clearInterval(timer);
  publish(5);
  for (const key of keys) {
    await until(() => lane(joiner, key).cursor === lane(source, key).cursor, "the same cursor");
    assert.is(lane(joiner, key).state, "live", lane(joiner, key).lastError);
    assert.equal(contentOf(lane(joiner, key)), contentOf(lane(source, key)));
  }
  await close(joiner, source);
});

test("kv 58: a salted parent in the snapshot, an unsalted live child: hashed with the parent's salt", async () => {
  const source = await sourceReplica({ lanes: [KEY] });
  const joiner = await testReplica({ lanes: [KEY], peers: [source.url] });
  lane(source).receive({ seq: 0n, events: [engineStored(1n, undefined, { salt: "tenant-a" })] });
  await applied(source);
  joiner.recovery.start();
  assert.is(await joiner.recovery.done, "recovered");
  const child = { seq: 1n, events: [engineStored(2n, 1n)] };
  lane(source).receive(child);
  lane(joiner).receive(child);
  const unsalted = await sourceReplica({ lanes: [KEY] });
  lane(unsalted).receive({ seq: 0n, events: [engineStored(1n, undefined), engineStored(2n, 1n)] });
  await applied(source, joiner, unsalted);
  assert.is(contentOf(lane(joiner)).length, 2);
  assert.equal(contentOf(lane(joiner)), contentOf(lane(source)));
  assert.is.not(contentOf(lane(joiner)).join(), contentOf(lane(unsalted)).join());
  await close(joiner, source, unsalted);
});

test("kv 59: a learned cache group is restored, so that a removal that only names it counts", async () => {
  const source = await sourceReplica({ lanes: [KEY] });
  const joiner = await testReplica({ lanes: [KEY], peers: [source.url] });
  const group = { groupIndex: 3, specKind: "full_attention" };
  lane(source).receive({
    seq: 0n,
    events: [engineStored(1n, undefined, group), engineStored(2n, undefined, group)],
  });
  await applied(source);
  joiner.recovery.start();
  assert.is(await joiner.recovery.done, "recovered");
  assert.is(contentOf(lane(joiner)).length, 2);
  const removal: EngineEvent = {
    kind: "engine_removed",
    hashes: BigUint64Array.of(1n),
    medium: undefined,
    groupIndex: 3,
    specKind: undefined,
    locality: undefined,
  };
  for (const replica of [source, joiner]) lane(replica).receive({ seq: 1n, events: [removal] });
  await applied(source, joiner);
  assert.is(contentOf(lane(joiner)).length, 1);
  assert.equal(contentOf(lane(joiner)), contentOf(lane(source)));
  await close(joiner, source);
});

function engineStored(
  hash: bigint,
  parent: bigint | undefined,
  more: Partial<EngineStored> = {},
): EngineStored {
  return {
    kind: "engine_stored",
    hashes: BigUint64Array.of(hash),
    parent,
    tokens: Uint32Array.of(1, 2, 3, Number(hash)),
    isBigram: false,
    blockSize: 4,
    lora: undefined,
    salt: undefined,
    extraKeys: undefined,
    multimodal: undefined,
    isArray: false,
    medium: undefined,
    groupIndex: undefined,
    specKind: undefined,
    locality: undefined,
    ...more,
  };
}

test("lanes come from different peers, and what nobody has begins cold", async () => {
  const [one, two, none] = KEYS as [typeof KEY, typeof KEY, typeof KEY];
  const a = await sourceReplica({ lanes: [one] });
  const b = await sourceReplica({ lanes: [two] });
  store(lane(a, one), 0, 1n, 0, 10);
  store(lane(b, two), 0, 2n, 0, 20);
  await applied(a, b);
  const joiner = await testReplica({ lanes: KEYS, peers: [a.url, b.url] });
  joiner.recovery.start();
  assert.is(await joiner.recovery.done, "recovered");
  const reports = joiner.recovery.status().laneReports;
  assert.equal(reports.map(({ source, outcome }) => [source, outcome]), [
    [a.url, "restored"],
    [b.url, "restored"],
    [undefined, "cold"],
  ]);
  assert.is(lane(joiner, none).isHeld, false);
  store(lane(joiner, none), 0, 9n, 0, 4);
  assert.is(lane(joiner, none).state, "live");
  await close(joiner, a, b);
});

test("a restored replica is a source for the next one", async () => {
  const first = await sourceReplica({ lanes: [KEY] });
  store(lane(first), 0, 1n, 0, 500);
  await applied(first);
  const second = await testReplica({ lanes: [KEY], peers: [first.url] });
  second.recovery.start();
  await second.recovery.done;
  await first.close();
  const third = await testReplica({ lanes: [KEY], peers: [second.url] });
  third.recovery.start();
  assert.is(await third.recovery.done, "recovered");
  assert.equal(contentOf(lane(third)), contentOf(lane(second)));
  assert.is(contentOf(lane(third)).length, 500);
  await close(second, third);
});

test("R9: many joiners at once: the source serves two dumps at a time, and all get ready", async () => {
  let most = 0;
  let refused = 0;
  const source: TestReplica = await sourceReplica({
    lanes: [KEY],
    wrap: (app) => async (request) => {
      const response = await app.fetch(request);
      const active = /^baton_kv_dumps_active (\d+)/m.exec(await source.metrics.text())?.[1];
      most = Math.max(most, Number(active));
      if (response.status !== 200) {
        refused += 1;
        assert.ok(Number(response.headers.get("retry-after")) >= 1);
      }
      return response;
    },
  });
  store(lane(source), 0, 1n, 0, 200_000);
  await until(() => lane(source).blocks === 200_000, "all blocks in the source");
  const joiners = await Promise.all(
    Array.from({ length: 6 }, () => testReplica({ lanes: [KEY], peers: [source.url] })),
  );
  for (const joiner of joiners) joiner.recovery.start();
  for (const joiner of joiners) {
    assert.is(await joiner.recovery.done, "recovered");
    assert.is(lane(joiner).blocks, 200_000);
  }
  assert.ok(refused > 0, "some were told to come back");
  assert.is(most, 2, "dumps at once");
  await close(source, ...joiners);
});

test("mistake 1: two replicas without an index, each the other's only peer, both get ready", async () => {
  const ports: TestReplica[] = [];
  const peers: string[][] = [[], []];
  for (const own of peers) {
    ports.push(
      await testReplica({
        lanes: [KEY],
        discovery: {
          start: () => Promise.resolve(),
          stop: () => {},
          current: () => own.map((url) => ({ url, serving: undefined, terminating: false })),
          onChange: () => () => {},
        },
      }),
    );
  }
  const [a, b] = ports as [TestReplica, TestReplica];
  peers[0]?.push(b.url);
  peers[1]?.push(a.url);
  a.recovery.start();
  b.recovery.start();
  const states = await Promise.all([a.recovery.done, b.recovery.done]);
  for (const state of states) assert.ok(state === "empty_bootstrap" || state === "recovered");
  await close(a, b);
});

test("a peer that sends well-made nonsense costs the lane its content and nothing else", async () => {
  const good = makeCut(KEY, 50, { cursor: 5n });
  const twice = makeCut(KEY, 50, { cursor: 5n });
  twice.blocks.engines.fill(7n);
  const nonsense: LaneCut[] = [
    twice,
    { ...good, decoderState: { reader: { groups: [["x"]] }, digests: [["y", {}]] } },
    { ...good, decoderState: "what?" },
    { ...good, decoderState: { reader: { namespaces: { salts: [], blocks: "zz", of: [9] } } } },
    { ...good, cursor: 2n ** 64n - 1n },
  ];
  for (const [at, cut] of nonsense.entries()) {
    const server = await runtime.http.serve(
      { address: { kind: "tcp", host: "127.0.0.1", port: 0 } },
      (request) => dumpOf([cut], { size: 4 })(request),
    );
    const port = server.address.kind === "tcp" ? server.address.port : 0;
    const joiner = await testReplica({
      lanes: [KEY],
      peers: [`http://127.0.0.1:${port}`],
      config: { recoveryBudgetMs: 2000 },
    });
    lane(joiner).attach({ replay: () => Promise.resolve({ kind: "complete" }) });
    joiner.recovery.start();
    await joiner.recovery.done;
    // Whatever was made of it, the worker's own events are what counts in the end.
    lane(joiner).receive({ seq: 0n, events: [{ kind: "cleared" }] });
    lane(joiner).receive({ seq: 1n, events: [storedOf(1n)] });
    await until(() => lane(joiner).cursor === 1n, `case ${at}: the lane goes on`);
    await applied(joiner);
    assert.is(contentOf(lane(joiner)).length, 1, `case ${at}`);
    await close(joiner);
    await server.destroy();
  }
});

test("the token is asked for, and a joiner that has it recovers", async () => {
  const source = await sourceReplica({ lanes: [KEY], token: "s3cret" });
  store(lane(source), 0, 1n, 0, 10);
  await applied(source);
  assert.is((await fetch(`${source.url}/dump`)).status, 401);
  const stranger = await testReplica({
    lanes: [KEY],
    peers: [source.url],
    config: { recoveryBudgetMs: 4000 },
  });
  stranger.recovery.start();
  assert.is(await stranger.recovery.done, "degraded");
  assert.match(stranger.recovery.status().attempts[0]?.reason ?? "", /status 401/);
  const friend = await testReplica({ lanes: [KEY], peers: [source.url], token: "s3cret" });
  friend.recovery.start();
  assert.is(await friend.recovery.done, "recovered");
  assert.is(lane(friend).blocks, 10);
  await close(source, stranger, friend);
});

test("compressed when it is asked for, to the same end", async () => {
  const source = await sourceReplica({ lanes: [KEY] });
  store(lane(source), 0, 1n, 0, 5000);
  await until(() => lane(source).blocks === 5000, "all blocks in the source");
  const plain = await fetch(`${source.url}/dump`, { headers: { "accept-encoding": "identity" } });
  const plainBytes = (await plain.arrayBuffer()).byteLength;
  const joiner = await testReplica({ lanes: [KEY], peers: [source.url], config: { gzip: true } });
  joiner.recovery.start();
  assert.is(await joiner.recovery.done, "recovered");
  assert.equal(contentOf(lane(joiner)), contentOf(lane(source)));
  assert.ok(joiner.recovery.status().bytes < plainBytes * 0.9);
  await close(joiner, source);
});

test.after(closeAll);
test.run();
