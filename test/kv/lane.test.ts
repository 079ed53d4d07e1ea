/** Order, holes, duplicates, restarts, and the hand-off from a peer's cut. */
import { test } from "uvu";
import * as assert from "uvu/assert";
import { decoderText, DecoderTextReader } from "../../src/kv/decoder_text.ts";
import { LaneGap, type LaneState } from "../../src/kv/lane.ts";
import { batch, clear, createWorld, remove, Ring, store, type World } from "./lane_world.ts";
import { calm as settle, StillClock } from "../support/still_clock.ts";

/** Receives and lets what follows from it happen. */
async function give(world: World, ...batches: Parameters<World["lane"]["receive"]>[0][]) {
  for (const item of batches) world.lane.receive(item);
  await settle();
}

/** A lane that has everything up to batch `last`, each batch storing the block of its number + 1. */
async function liveWorld(last: number, options: Parameters<typeof createWorld>[0] = {}) {
  const world = await createWorld(options);
  for (let seq = 0; seq <= last; seq++) {
    const item = batch(seq, store([seq + 1]));
    world.ring.batches.push(item);
    world.lane.receive(item);
  }
  await settle();
  return world;
}

const upTo = (count: number) => Array.from({ length: count }, (_, i) => i + 1);

test("batches in order are applied at once", async () => {
  const world = await liveWorld(2);
  assert.is(world.lane.state, "live");
  assert.is(world.lane.cursor, 2n);
  assert.equal(world.held(), [1, 2, 3]);
});

test("a hole is filled with exactly what is missing, before the batch that showed it", async () => {
  const world = await liveWorld(1, { hasRing: true });
  const lost = [batch(2, store([3])), batch(3, store([4]))];
  const next = batch(4, remove([3]));
  world.ring.batches.push(...lost, next);
  const states: LaneState[] = [];
  world.lane.receive(next);
  states.push(world.lane.state);
  await settle();
  states.push(world.lane.state);
  assert.equal(world.ring.requests, [2n]);
  assert.equal(states, ["replaying", "live"]);
  assert.equal(world.held(), [1, 2, 4]);
  assert.is(world.lane.cursor, 4n);
  assert.match(await world.metrics(), /baton_kv_gaps_total 1\n/);
  assert.match(await world.metrics(), /baton_kv_gap_batches_count\{where="live"\} 1\n/);
  assert.match(await world.metrics(), /baton_kv_replayed_batches_total 3\n/);
});

test("kv 163: a replay that brings the live batch too applies it once", async () => {
  const world = await liveWorld(0, { hasRing: true });
  const [lost, next] = [batch(1, store([7])), batch(2, store([8]))];
  world.ring.batches.push(lost, next);
  await give(world, next, next);
  const copies = world.index.snapshot(world.lane.handle).copies;
  assert.equal([...copies], [1, 1, 1]);
  assert.is(world.lane.cursor, 2n);
});

test("live batches that come during a replay follow it", async () => {
  const world = await liveWorld(0, { hasRing: true });
  const rest = [1, 2, 3, 4].map((seq) => batch(seq, store([seq + 1])));
  let go = (): void => {};
  world.ring.gate = new Promise((resolve) => go = resolve);
  world.ring.batches.push(...rest.slice(0, 2));
  await give(world, ...rest.slice(2));
  assert.is(world.lane.waiting.batches, 2);
  go();
  await settle();
  assert.equal(world.held(), upTo(5));
  assert.is(world.lane.waiting.batches, 0);
});

for (
  const [mode, reason] of [
    ["empty", "empty"],
    ["late", "started_after_requested"],
    ["holes", "non_contiguous"],
    ["short", "ended_before_target"],
  ] as const
) {
  test(`kv 164: a replay that is ${mode} is given up for a reason of its own`, async () => {
    const world = await liveWorld(3, { hasRing: true });
    world.ring.batches = {
      empty: [],
      late: [batch(6, store([70])), batch(7), batch(8)],
      holes: [...world.ring.batches, batch(6, store([70])), batch(7), batch(8)],
      short: world.ring.batches.slice(0, 4),
    }[mode];
    // A ring that starts below what was asked for, as one that ignores the number would.
    const { batches } = world.ring;
    world.lane.attach({
      replay: (from, deliver) => {
        world.ring.requests.push(from);
        for (const item of batches) {
          if (!deliver(item)) return Promise.resolve({ kind: "stopped" });
        }
        return Promise.resolve({ kind: "complete" });
      },
    });
    world.lane.receive(batch(9, store([10])));
    await world.clock.advance(60_000);
    assert.is(world.lane.state, "degraded");
    assert.match(world.lane.lastError ?? "", new RegExp(`: ${reason}`));
    assert.match(await world.metrics(), /baton_kv_replays_total\{outcome="/);
    assert.ok((await world.metrics()).includes(`outcome="${reason}"`));
    // Nothing from before the hole is left; what the ring still had after it is in.
    assert.equal(world.held(), mode === "late" || mode === "holes" ? [10, 70] : [10]);
    assert.is(world.lane.cursor, 9n);
  });
}

test("kv 165: without a replay endpoint a hole is counted, and live goes on from nothing", async () => {
  const world = await liveWorld(2);
  await give(world, batch(10, store([50])), batch(11, store([51])));
  assert.is(world.lane.state, "degraded");
  assert.equal(world.held(), [50, 51]);
  assert.match(await world.metrics(), /baton_kv_lost_batches_total 7\n/);
});

test("where the operator says so, blocks from before a hole are kept", async () => {
  const world = await liveWorld(2, { onLostEvents: "keep" });
  await give(world, batch(10, store([50])));
  assert.is(world.lane.state, "degraded");
  assert.equal(world.held(), [1, 2, 3, 50]);
});

test("a publisher that clears all its blocks ends a degradation", async () => {
  const world = await liveWorld(2);
  await give(world, batch(10, store([50])), batch(11, clear, store([60])));
  assert.is(world.lane.state, "live");
  assert.equal(world.held(), [60]);
});

test("a replay that does not answer is tried again, then given up; live goes on meanwhile", async () => {
  const world = await liveWorld(0, { hasRing: true, limits: { replayAttempts: 3 } });
  world.ring.mode = "silent";
  await give(world, batch(5, store([6])));
  assert.is(world.lane.state, "replaying");
  await world.clock.advance(30_000);
  assert.equal(world.ring.requests, [1n, 1n, 1n]);
  assert.is(world.lane.state, "degraded");
  assert.match(world.lane.lastError ?? "", /timeout/);
  assert.equal(world.held(), [6]);
});

test("a replay that fails once is no loss", async () => {
  const world = await liveWorld(0, { hasRing: true });
  world.ring.mode = "refused";
  const [lost, next] = [batch(1, store([2])), batch(2, store([3]))];
  world.ring.batches.push(lost, next);
  await give(world, next);
  world.ring.mode = "normal";
  await world.clock.advance(1_000);
  assert.is(world.lane.state, "live");
  assert.equal(world.held(), [1, 2, 3]);
});

test("a ring that drops every third batch for a slow reader is asked again until all is there", async () => {
  const world = await liveWorld(0, { hasRing: true });
  world.ring.mode = "holes";
  for (let seq = 1; seq <= 20; seq++) world.ring.batches.push(batch(seq, store([seq + 1])));
  const next = batch(21, store([22]));
  world.ring.batches.push(next);
  await give(world, next);
  await world.clock.advance(5_000);
  assert.equal(world.held(), upTo(22));
  assert.is(world.lane.state, "live");
});

test("duplicates are dropped, however often they come", async () => {
  const world = await createWorld();
  const items = [batch(0, store([1])), batch(1, store([2])), batch(2, remove([2]))];
  await give(world, ...items, ...items, ...items.slice(1));
  assert.equal(world.held(), [1]);
  assert.is(world.lane.cursor, 2n);
  assert.is(world.lane.state, "live");
  assert.match(await world.metrics(), /type="batch",status="duplicate"\} 5/);
});

test("a number used for other content is a new publisher: the lane is cleared", async () => {
  const world = await liveWorld(9);
  const { epoch } = world.lane;
  await give(world, batch(0, store([1], { incarnation: 1 })));
  assert.is.not(world.lane.epoch, epoch);
  assert.equal(world.held(1), [1]);
  assert.is(world.lane.cursor, 0n);
  assert.is(world.lane.state, "live");
});

test("a new publisher whose first batches were missed is replayed from its start", async () => {
  const world = await liveWorld(9, { hasRing: true });
  world.ring.batches = [0, 1, 2, 3].map((seq) => batch(seq, store([seq + 1], { incarnation: 1 })));
  await give(world, world.ring.batches[3] ?? batch(3));
  assert.equal(world.ring.requests, [0n]);
  assert.equal(world.held(1), upTo(4));
});

test("a number far behind is a new publisher even where nothing is remembered of it", async () => {
  const world = await liveWorld(600);
  await give(world, batch(4, store([5], { incarnation: 1 })));
  assert.equal(world.held(1), [5]);
  assert.is(world.lane.state, "degraded");
});

test("an epoch that is named and changes clears the lane", async () => {
  const world = await createWorld();
  await give(world, { ...batch(0, store([1])), epoch: "a" }, {
    ...batch(1, store([2])),
    epoch: "a",
  });
  assert.is(world.lane.epoch, "a");
  await give(world, { ...batch(0, store([3])), epoch: "b" });
  assert.is(world.lane.epoch, "b");
  assert.equal(world.held(), [3]);
});

test("first blocks that come under other hashes are a new publisher's", async () => {
  const world = await createWorld();
  const event = (hash: bigint) => ({
    kind: "engine_stored" as const,
    hashes: BigUint64Array.of(hash),
    parent: undefined,
    tokens: Uint32Array.of(1, 2),
    isBigram: false,
    blockSize: 2,
    medium: "GPU",
    lora: undefined,
    salt: undefined,
    extraKeys: undefined,
    multimodal: undefined,
    groupIndex: undefined,
    specKind: undefined,
    locality: undefined,
    isArray: false,
  });
  await give(world, batch(0, event(5n), store([40])), batch(1, event(6n)));
  assert.equal([...world.index.snapshot(world.lane.handle).engines], [6n]);
  assert.is(world.lane.state, "degraded");
});

test("an event that the index cannot take costs only itself", async () => {
  const world = await createWorld();
  const huge = {
    kind: "engine_stored" as const,
    hashes: BigUint64Array.of(5n),
    parent: undefined,
    tokens: Uint32Array.of(1, 2),
    isBigram: false,
    blockSize: 2,
    medium: undefined,
    lora: undefined,
    salt: undefined,
    extraKeys: [[new Uint8Array(2_000_000)]],
    multimodal: undefined,
    groupIndex: undefined,
    specKind: undefined,
    locality: undefined,
    isArray: false,
  };
  const adapter = { ...store([7]), lora: "x".repeat(2_000_000) };
  await give(world, batch(0, store([1]), huge, adapter, store([2])));
  assert.equal(world.held(), [1, 2]);
  assert.is(world.lane.cursor, 0n);
  assert.match(await world.metrics(), /type="engine_stored",status="failed"\} 1/);
});

test("after a new connection the last batch is asked for again, and proves the publisher", async () => {
  const world = await liveWorld(3, { hasRing: true });
  const missed = batch(4, store([5]));
  world.ring.batches.push(missed);
  world.lane.sourceUp(true);
  await settle();
  assert.equal(world.ring.requests, [3n]);
  assert.equal(world.held(), upTo(5));
  assert.is(world.lane.state, "live");
});

test("after a new connection a ring with other content means a new publisher", async () => {
  const world = await liveWorld(3, { hasRing: true });
  world.ring.batches = [0, 1, 2, 3, 4].map((seq) =>
    batch(seq, store([seq + 1], { incarnation: 1 }))
  );
  world.lane.sourceUp(true);
  await settle();
  assert.equal(world.ring.requests, [3n, 0n]);
  assert.equal(world.held(1), upTo(5));
  assert.is(world.lane.state, "live");
});

test("T1: a worker that restarted and has said nothing yet gets no credit", async () => {
  const world = await liveWorld(3, { hasRing: true });
  world.ring.batches = [];
  world.lane.sourceUp(true);
  await settle();
  assert.equal(world.held(), []);
  const without = await liveWorld(3);
  without.lane.sourceUp(true);
  assert.equal(without.held(), []);
});

test("while a worker cannot prove that it is the same, its batches wait", async () => {
  const world = await liveWorld(3, { hasRing: true });
  world.ring.mode = "silent";
  world.lane.sourceUp(true);
  const next = batch(4, store([5]));
  world.ring.batches.push(next);
  await give(world, next);
  assert.is(world.lane.cursor, 3n);
  world.ring.mode = "normal";
  await world.clock.advance(10_000);
  assert.equal(world.held(), upTo(5));
});

test("a check finds the last batches before a silence, and says nothing when there are none", async () => {
  const world = await liveWorld(1, { hasRing: true });
  world.lane.sourceUp(false);
  await settle();
  const states: string[] = [];
  world.lane.check();
  states.push(world.lane.state);
  await settle();
  assert.equal(world.ring.requests, [1n, 1n]);
  world.ring.batches.push(batch(2, store([3])));
  world.lane.check();
  states.push(world.lane.state);
  await settle();
  assert.equal(states, ["live", "live"]);
  assert.equal(world.held(), [1, 2, 3]);
  assert.is(world.lane.state, "live");
});

test("a check finds a worker that became another one", async () => {
  const world = await liveWorld(3, { hasRing: true });
  world.lane.sourceUp(false);
  await settle();
  world.ring.batches = [batch(0, store([1], { incarnation: 1 }))];
  world.lane.check();
  await settle();
  assert.equal(world.held(1), [1]);
  assert.is(world.lane.state, "live");
});

test("a check that is not answered costs nothing, before and after the next batch", async () => {
  const world = await liveWorld(3, { hasRing: true });
  world.lane.sourceUp(false);
  await settle();
  world.ring.mode = "silent";
  world.lane.check();
  await settle();
  await give(world, batch(4, store([5])));
  assert.equal(world.held(), upTo(5));
  world.lane.check();
  await world.clock.advance(60_000);
  await give(world, batch(5, store([6])));
  assert.equal(world.held(), upTo(6));
  assert.is(world.lane.state, "live");
});

test("T6: a removal that came live, after its store was lost, removes it", async () => {
  const world = await liveWorld(0, { hasRing: true });
  const [lost, next] = [batch(1, store([9])), batch(2, remove([9]))];
  world.ring.batches.push(lost, next);
  await give(world, next);
  assert.equal(world.held(), [1]);
});

test("a worker that is met late is taken from where its ring begins, and said to be degraded", async () => {
  const world = await createWorld({ hasRing: true });
  world.ring.batches = [7, 8, 9].map((seq) => batch(seq, store([seq])));
  world.lane.sourceUp(false);
  await settle();
  assert.equal(world.ring.requests, [0n]);
  assert.equal(world.held(), [7, 8, 9]);
  assert.is(world.lane.state, "degraded");
  await give(world, batch(10, store([10])));
  assert.is(world.lane.cursor, 10n);
});

test("T2: a closed lane stays empty whatever is still under way", async () => {
  const world = await liveWorld(2, { hasRing: true });
  let go = (): void => {};
  world.ring.gate = new Promise((resolve) => go = resolve);
  world.ring.batches.push(batch(3, store([4])), batch(4, store([5])));
  await give(world, batch(4, store([5])));
  world.lane.close();
  go();
  await settle();
  world.lane.receive(batch(5, store([6])));
  world.lane.sourceUp(true);
  world.lane.degrade("late");
  await settle();
  assert.is(world.index.stats().blocks, 0);
  assert.is(world.index.match({ tokens: Uint32Array.of(1, 2) }).length, 0);
});

test("a buffer that is full drops its oldest batches, says so, and the ring gives them back", async () => {
  const world = await liveWorld(0, { hasRing: true, limits: { maxBatches: 3 } });
  let go = (): void => {};
  world.ring.gate = new Promise((resolve) => go = resolve);
  const rest = [2, 3, 4, 5, 6, 7].map((seq) => batch(seq, store([seq + 1])));
  world.ring.batches.push(batch(1, store([2])));
  await give(world, ...rest);
  assert.is(world.lane.waiting.batches, 3);
  world.ring.batches.push(...rest);
  go();
  await settle();
  assert.equal(world.held(), upTo(8));
  assert.match(await world.metrics(), /baton_kv_buffer_overflow_batches_total\{place="lane"\} 3/);
  assert.match(await world.metrics(), /baton_kv_buffer_bytes 0\n/);
  const peak = /baton_kv_buffer_peak_bytes (\d+)/.exec(await world.metrics())?.[1];
  assert.ok(Number(peak) > 0, `a peak of ${peak}`);
});

// --------------------------------------------------------------------------------- the hand-off

const LIMITS = { maxBatches: 1000, maxBytes: 1_000_000 };

/** A peer with all batches up to 50, and a joiner that holds back. */
async function handOff(options: { hasRing?: boolean; maxBatches?: number } = {}) {
  const peer = await liveWorld(50);
  const ring = new Ring(new StillClock(), ...peer.ring.batches);
  const joiner = await createWorld({ hasRing: options.hasRing ?? true, ring, clock: ring.clock });
  joiner.lane.hold({ ...LIMITS, maxBatches: options.maxBatches ?? LIMITS.maxBatches });
  return { peer, joiner, ring };
}

test("a held lane keeps batches back and is proven by the first", async () => {
  const { joiner } = await handOff({ hasRing: false });
  joiner.lane.attach({ replay: undefined });
  assert.is(joiner.lane.state, "subscribing");
  await give(joiner, batch(40, store([1])));
  assert.is(joiner.lane.state, "buffering");
  assert.ok(joiner.lane.isProven);
  assert.equal(joiner.held(), []);
});

test("a held lane is proven by a probe of the ring that brings nothing", async () => {
  const { joiner, ring } = await handOff();
  joiner.lane.sourceUp(false);
  await settle();
  assert.is(joiner.lane.state, "buffering");
  assert.equal(ring.requests, [2n ** 64n - 2n]);
});

test("a cut that was put in before the connection stood goes when its publisher cannot be asked", async () => {
  const { peer, joiner } = await handOff({ hasRing: false });
  joiner.lane.attach({ replay: undefined });
  await joiner.lane.commit(peer.lane.cut());
  assert.equal(joiner.held(), upTo(51));
  // By now it may be another process, whose numbers happen to go on where the cut ends.
  joiner.lane.sourceUp(false);
  await settle();
  assert.equal(joiner.held(), []);
  await give(joiner, batch(51, store([1], { incarnation: 1 })));
  assert.is(joiner.lane.state, "degraded");
  assert.equal(joiner.held(1), [1]);
});

for (const end of ["release", "degrade"] as const) {
  test(`what was held back before the connection broke is of nobody known: ${end} lets it go`, async () => {
    const { joiner } = await handOff({ hasRing: false });
    joiner.lane.attach({ replay: undefined });
    joiner.lane.sourceUp(false);
    await give(joiner, batch(60, store([1])), batch(61, store([2])));
    joiner.lane.sourceDown("reset");
    joiner.lane.sourceUp(true);
    if (end === "release") joiner.lane.release();
    else joiner.lane.degrade("given up");
    await settle();
    assert.equal(joiner.held(), []);
    await give(joiner, batch(4, store([7], { incarnation: 1 })));
    assert.equal(joiner.held(1), [7]);
    assert.is(joiner.lane.cursor, 4n);
  });
}

test("kv 45: cursor 50, first live 51: nothing is missing, nothing lost", async () => {
  const { peer, joiner, ring } = await handOff();
  ring.batches.push(batch(51, store([52])));
  await give(joiner, ring.batches[51] ?? batch(51));
  await joiner.lane.commit(peer.lane.cut());
  // Only what proves that the cut is of this publisher is asked for.
  assert.equal(ring.requests, [50n]);
  assert.equal(joiner.held(), upTo(52));
  assert.is(joiner.lane.state, "live");
  assert.is(joiner.lane.cursor, 51n);
  assert.is(joiner.lane.epoch, peer.lane.epoch);
});

test("kv 46: cursor 50, first live 40: 40 to 50 are dropped, 51 is applied", async () => {
  const { peer, joiner, ring } = await handOff();
  await give(joiner, ...peer.ring.batches.slice(40), batch(51, remove([41])));
  await joiner.lane.commit(peer.lane.cut());
  assert.equal(ring.requests, []);
  assert.equal(joiner.held(), upTo(51).filter((name) => name !== 41));
  assert.is(joiner.lane.state, "live");
});

test("kv 47: cursor 50, first live 60: the ring gives 51 to 59, before 60", async () => {
  const { peer, joiner, ring } = await handOff();
  for (let seq = 51; seq <= 59; seq++) ring.batches.push(batch(seq, store([seq + 1])));
  const live = batch(60, remove([60]));
  ring.batches.push(live);
  await give(joiner, live);
  await joiner.lane.commit(peer.lane.cut());
  // Batch 50 is asked for too, to prove that the cut is of this publisher.
  assert.equal(ring.requests, [50n]);
  assert.equal(joiner.held(), upTo(59));
  assert.is(joiner.lane.cursor, 60n);
  assert.is(joiner.lane.state, "live");
  const metrics = await joiner.metrics();
  assert.match(metrics, /baton_kv_gap_batches_sum\{where="hand_off"\} 9\n/);
  assert.match(metrics, /baton_kv_gap_batches_bucket\{le="10",where="hand_off"\} 1\n/);
});

test("kv 48: a ring that begins later than needed: the commit fails, the lane is empty and held", async () => {
  const { peer, joiner, ring } = await handOff();
  const later = Array.from({ length: 10 }, (_, i) => batch(51 + i, store([52 + i])));
  ring.batches = later.slice(4);
  await give(joiner, ...later.slice(9));
  const error = await joiner.lane.commit(peer.lane.cut()).then(() => undefined, (e: unknown) => e);
  if (!(error instanceof LaneGap)) throw new Error("committed");
  assert.is(error.reason, "started_after_requested");
  assert.is(error.from, 51n);
  assert.is(error.to, 55n);
  assert.equal(joiner.held(), []);
  assert.is(joiner.lane.state, "buffering");
  // Another peer has a cut that is new enough.
  await give(peer, ...later.slice(0, 6));
  await joiner.lane.commit(peer.lane.cut());
  assert.is(joiner.lane.state, "live");
  assert.equal(joiner.held(), upTo(61));
});

test("without a ring, a cut that no kept batch confirms is refused", async () => {
  const { peer, joiner } = await handOff({ hasRing: false });
  const next = batch(51, store([52]));
  await give(joiner, next);
  const error = await joiner.lane.commit(peer.lane.cut()).then(() => undefined, (e: unknown) => e);
  assert.ok(error instanceof LaneGap && error.reason === "no_replay_endpoint");
  assert.equal(joiner.held(), []);
  // The next cut has the batch that was kept, so it is of the same publisher.
  await give(peer, next);
  await joiner.lane.commit(peer.lane.cut());
  assert.equal(joiner.held(), upTo(52));
});

test("R4: without a ring, a connection that broke during the hold leaves no cut to be believed", async () => {
  const { peer, joiner } = await handOff({ hasRing: false });
  const last = peer.ring.batches[50];
  assert.ok(last);
  // The batch that was kept is in the cut. But that was before: another process may be there now.
  await give(joiner, last);
  joiner.lane.sourceDown("reset");
  joiner.lane.sourceUp(true);
  const error = await joiner.lane.commit(peer.lane.cut()).then(() => undefined, (e: unknown) => e);
  assert.ok(error instanceof LaneGap && error.reason === "no_replay_endpoint");
  assert.equal(joiner.held(), []);
});

test("kv 48: no other peer: the lane is cleared and degraded, and holds nothing false", async () => {
  const { peer, joiner } = await handOff({ hasRing: false });
  await give(joiner, batch(60, store([61])));
  const error = await joiner.lane.commit(peer.lane.cut()).then(() => undefined, (e: unknown) => e);
  assert.ok(error instanceof LaneGap && error.reason === "no_replay_endpoint");
  joiner.lane.degrade("no source had it");
  assert.equal(joiner.held(), [61]);
  assert.is(joiner.lane.state, "degraded");
  assert.is(joiner.lane.lastError, "no source had it");
  await give(joiner, batch(61, store([62])));
  assert.equal(joiner.held(), [61, 62]);
});

test("kv 49: no live frame: the cursor stays; a later one that does not follow is bridged", async () => {
  const { peer, joiner, ring } = await handOff();
  ring.mode = "silent";
  const committed = joiner.lane.commit(peer.lane.cut());
  await joiner.clock.advance(60_000);
  await committed;
  assert.is(joiner.lane.cursor, 50n);
  assert.equal(joiner.held(), upTo(51));
  ring.mode = "normal";
  ring.batches.push(batch(51, store([52])), batch(52, store([53])));
  await give(joiner, ring.batches[52] ?? batch(52));
  await joiner.clock.advance(1_000);
  assert.equal(joiner.held(), upTo(53));
  assert.is(joiner.lane.state, "live");
});

test("no live frame, and the ring has more than the peer had: it is taken at once", async () => {
  const { peer, joiner, ring } = await handOff();
  ring.batches.push(batch(51, store([52])), batch(52, remove([1])));
  await joiner.lane.commit(peer.lane.cut());
  assert.equal(joiner.held(), upTo(52).slice(1));
  assert.is(joiner.lane.cursor, 52n);
});

test("kv 50: the worker restarted between dump and live: the cut is dropped, live rebuilds", async () => {
  const { peer, joiner, ring } = await handOff();
  const fresh = [0, 1, 2].map((seq) => batch(seq, store([seq + 1], { incarnation: 1 })));
  ring.batches = fresh;
  await give(joiner, ...fresh);
  await joiner.lane.commit(peer.lane.cut());
  assert.equal(joiner.held(1), [1, 2, 3]);
  assert.is(joiner.lane.state, "live");
  assert.is.not(joiner.lane.epoch, peer.lane.epoch);
});

test("kv 50: the worker restarted and has passed the cut's cursor: its ring shows it", async () => {
  const { peer, joiner, ring } = await handOff();
  ring.batches = Array.from(
    { length: 71 },
    (_, seq) => batch(seq, store([seq + 1], { incarnation: 1 })),
  );
  await give(joiner, ring.batches[70] ?? batch(70));
  await joiner.lane.commit(peer.lane.cut());
  assert.equal(joiner.held(1), upTo(71));
  assert.is(joiner.lane.state, "live");
});

test("kv 50: a named epoch that differs from the cut's", async () => {
  const peer = await createWorld();
  await give(peer, { ...batch(0, store([1])), epoch: "old" });
  const joiner = await createWorld();
  joiner.lane.hold(LIMITS);
  await give(joiner, { ...batch(0, store([2])), epoch: "new" });
  await joiner.lane.commit(peer.lane.cut());
  assert.equal(joiner.held(), [2]);
  assert.is(joiner.lane.epoch, "new");
});

test("kv 51: a buffer that overflows during the load makes a hole, which needs another snapshot", async () => {
  const { peer, joiner } = await handOff({ hasRing: false, maxBatches: 3 });
  const live = [51, 52, 53, 54, 55].map((seq) => batch(seq, store([seq + 1])));
  await give(joiner, ...live);
  const error = await joiner.lane.commit(peer.lane.cut()).then(() => undefined, (e: unknown) => e);
  assert.ok(error instanceof LaneGap);
  assert.is(joiner.lane.state, "buffering");
  for (const item of live.slice(0, 3)) peer.lane.receive(item);
  await settle();
  await joiner.lane.commit(peer.lane.cut());
  assert.equal(joiner.held(), upTo(56));
  assert.is(joiner.lane.state, "live");
});

test("kv 58: a salted parent in the snapshot gives its salt to an unsalted live child", async () => {
  const engineStore = (hash: bigint, parent: bigint | undefined, salt: string | undefined) => ({
    kind: "engine_stored" as const,
    hashes: BigUint64Array.of(hash),
    parent,
    tokens: Uint32Array.of(Number(hash), 7),
    isBigram: false,
    blockSize: 2,
    medium: undefined,
    lora: undefined,
    salt,
    extraKeys: undefined,
    multimodal: undefined,
    groupIndex: undefined,
    specKind: undefined,
    locality: undefined,
    isArray: false,
  });
  const peer = await createWorld();
  const first = batch(0, engineStore(5n, undefined, "tenant"));
  await give(peer, first);
  const joiner = await createWorld();
  joiner.lane.hold(LIMITS);
  await give(joiner, first, batch(1, engineStore(6n, 5n, undefined)));
  const cut = peer.lane.cut();
  const reader = new DecoderTextReader();
  for (const part of decoderText(cut.decoderState)) reader.push(part);
  await joiner.lane.commit({ ...cut, decoderState: reader.finish() });
  const [match] = joiner.index.match({ tokens: Uint32Array.of(5, 7, 6, 7), salt: "tenant" });
  assert.is(match?.device, 2);
  assert.is(joiner.index.match({ tokens: Uint32Array.of(5, 7, 6, 7) }).length, 0);
});

test("kv 59: a learned group kind is restored: a removal that names the group only is honoured", async () => {
  const peer = await createWorld();
  const first = batch(0, {
    kind: "engine_stored",
    hashes: BigUint64Array.of(5n),
    parent: undefined,
    tokens: Uint32Array.of(5, 7),
    isBigram: false,
    blockSize: 2,
    medium: undefined,
    lora: undefined,
    salt: undefined,
    extraKeys: undefined,
    multimodal: undefined,
    groupIndex: 2,
    specKind: "full_attention",
    locality: undefined,
    isArray: false,
  });
  await give(peer, first);
  const joiner = await createWorld();
  joiner.lane.hold(LIMITS);
  await give(
    joiner,
    first,
    batch(1, {
      kind: "engine_removed",
      hashes: BigUint64Array.of(5n),
      medium: undefined,
      groupIndex: 2,
      specKind: undefined,
      locality: undefined,
    }),
  );
  await joiner.lane.commit(peer.lane.cut());
  assert.is(joiner.lane.blocks, 0);
});

test("a cut whose decoder state is not well made is refused and changes nothing false", async () => {
  const { peer, joiner } = await handOff({ hasRing: false });
  const cut = peer.lane.cut();
  const columns = { salts: [], blocks: BigUint64Array.of(1n), of: Int32Array.of(5) };
  const bad = [
    { reader: { groups: 5 } },
    { digests: [["x", 1]] },
    { reader: { namespaces: { salts: [], blocks: "zz", of: [9] } } },
    { reader: { namespaces: columns } },
    { reader: { namespaces: { ...columns, of: new Int32Array(0) } } },
    "what?",
    new TypeError("it could not be read"),
  ];
  for (const decoderState of bad) {
    const error = await joiner.lane.commit({ ...cut, decoderState })
      .then(() => undefined, (reason: unknown) => reason);
    assert.ok(error instanceof TypeError);
  }
  assert.equal(joiner.held(), []);
});

/** Makes the joiner's index load only when `go` is called. */
function slowLoad(world: World): () => void {
  let go = (): void => {};
  const gate = new Promise<void>((resolve) => go = resolve);
  const { index } = world;
  index.loadInSlices = async (lane, blocks) => {
    await gate;
    index.load(lane, blocks);
  };
  return go;
}

test("batches that come while a cut is loaded follow it", async () => {
  const { peer, joiner } = await handOff({ hasRing: false });
  const go = slowLoad(joiner);
  await give(joiner, peer.ring.batches[50] ?? batch(50));
  const committed = joiner.lane.commit(peer.lane.cut());
  await give(joiner, batch(51, store([52])));
  assert.is(joiner.lane.state, "loading");
  assert.is(joiner.lane.cut().blocks.count, 0);
  assert.is(joiner.lane.cut().cursor, undefined);
  let isRead = true;
  void joiner.lane.loaded.then(() => isRead = false);
  await settle();
  assert.ok(isRead);
  go();
  await committed;
  assert.not(isRead);
  assert.equal(joiner.held(), upTo(52));
  assert.is(joiner.lane.state, "live");
});

for (const happening of ["another publisher", "degrade", "close", "another commit"]) {
  test(`a load is void after ${happening}`, async () => {
    const { peer, joiner } = await handOff({ hasRing: false });
    const go = slowLoad(joiner);
    await give(joiner, peer.ring.batches[50] ?? batch(50));
    const cut = peer.lane.cut();
    const ended = joiner.lane.commit(cut).then(() => undefined, (error: unknown) => error);
    await settle();
    let isRead = true;
    void joiner.lane.loaded.then(() => isRead = false);
    let second: Promise<void> = Promise.resolve();
    if (happening === "degrade") joiner.lane.degrade("no more");
    else if (happening === "close") joiner.lane.close();
    else if (happening === "another commit") second = joiner.lane.commit(cut);
    else joiner.lane.receive(batch(3, store([4], { incarnation: 1 })));
    await settle();
    assert.ok(isRead, "what is void is still read");
    go();
    const error = await ended;
    assert.not(isRead);
    await second;
    await settle();
    assert.ok(error instanceof LaneGap, String(error));
    if (happening === "another commit") assert.equal(joiner.held(), upTo(51));
    else if (happening === "close") assert.is(joiner.index.stats().blocks, 0);
    else assert.equal(joiner.held(), []);
  });
}

test("a cut of a lane that had nothing yet does not stand for what came before the first batch", async () => {
  const peer = await createWorld();
  const joiner = await createWorld();
  joiner.lane.hold(LIMITS);
  await give(joiner, batch(5, store([6])));
  const error = await joiner.lane.commit(peer.lane.cut()).then(() => undefined, (e: unknown) => e);
  assert.ok(error instanceof LaneGap);
  assert.is(joiner.lane.state, "buffering");
  const fromStart = await createWorld();
  fromStart.lane.hold(LIMITS);
  await give(fromStart, batch(0, store([1])));
  await fromStart.lane.commit(peer.lane.cut());
  assert.equal(fromStart.held(), [1]);
  assert.is(fromStart.lane.state, "live");
});

test("a lane that is released without a snapshot goes on with what it kept", async () => {
  const joiner = await createWorld();
  joiner.lane.hold(LIMITS);
  await give(joiner, batch(0, store([1])), batch(1, store([2])));
  joiner.lane.release();
  assert.equal(joiner.held(), [1, 2]);
  assert.is(joiner.lane.state, "live");
});

test("a lane that is held, released and connected takes what its ring has", async () => {
  const joiner = await createWorld({ hasRing: true });
  joiner.ring.batches = [batch(0, store([1])), batch(1, store([2]))];
  joiner.lane.hold(LIMITS);
  joiner.lane.sourceUp(false);
  await settle();
  joiner.lane.release();
  await settle();
  assert.equal(joiner.held(), [1, 2]);
});

test("a live lane can take a newer cut in place of what it holds", async () => {
  const { peer } = await handOff();
  const stale = await createWorld();
  await give(stale, batch(10, store([500])));
  assert.is(stale.lane.state, "degraded");
  await stale.lane.commit(peer.lane.cut());
  assert.equal(stale.held(), upTo(51));
  assert.is(stale.lane.state, "live");
});

test("a cut is exact although a large batch is only half applied", async () => {
  const world = await createWorld();
  const many = Array.from({ length: 40 }, (_, i) => store(upTo(100).map((n) => n + 100 * i)));
  world.lane.receive(batch(0, store([100_000])));
  world.lane.receive(batch(1, ...many));
  const cut = world.lane.cut();
  const count = cut.blocks.count;
  assert.ok(cut.cursor === 1n ? count === 4001 : cut.cursor === 0n && count === 1);
});

test.run();
