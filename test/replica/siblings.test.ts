/**
 * Replicas that recover at the same time, and whose only source dies in the middle: each has restored
 * lanes that the others lack, and gives them.
 */

import { test } from "uvu";
import * as assert from "uvu/assert";
import { laneId, type LaneKey } from "../../src/kv/lane_key.ts";
import { dumpOf, Loop, ndjson } from "./support/loop.ts";
import { dumpSlices } from "../../src/replica/dump_writer.ts";
import { SCOPE_HEADER } from "../../src/replica/dump_handler.ts";
import { BatonError, errorResponse } from "../../src/errors.ts";
import {
  closeAll,
  contentOf,
  laneKey,
  sourceReplica,
  store,
  type TestReplica,
  testReplica,
  until,
} from "./support/replica.ts";
import { emptyCut, keyOf, makeCut, Shelf } from "./support/shelf.ts";

test.after(closeAll);

const KEYS = ["0", "1", "2", "3"].map((worker) => laneKey(worker));

/** A source with four lanes that gives the n-th who asks only his part, and then goes down. */
async function mortalSource(parts: readonly (readonly LaneKey[])[]) {
  let asked = 0;
  const source: TestReplica = await sourceReplica({
    lanes: KEYS,
    wrap: (app) => async (request) => {
      const part = parts[asked++];
      if (part === undefined) return new Response("down", { status: 502 });
      const url = new URL(request.url);
      for (const key of part) url.searchParams.append("lane", laneId(key));
      const whole = await (await app.fetch(new Request(url))).text();
      // The trailer does not come any more.
      return ndjson(new TextEncoder().encode(whole.slice(0, whole.indexOf(`{"kind":"trailer"`))));
    },
  });
  for (const [at, key] of KEYS.entries()) {
    const lane = source.store.lane(key);
    assert.ok(lane);
    store(lane, 0, BigInt(at + 1), 0, 20 + at);
  }
  return source;
}

async function joiners(count: number, source: TestReplica): Promise<TestReplica[]> {
  const urls: string[] = [];
  const made: TestReplica[] = [];
  for (let at = 0; at < count; at += 1) {
    const one = await testReplica({
      lanes: KEYS,
      discovery: {
        start: () => Promise.resolve(),
        stop: () => {},
        current: () =>
          [source.url, ...urls.filter((url) => url !== one.url)].map((url) => ({
            url,
            serving: undefined,
            terminating: false,
          })),
        onChange: () => () => {},
      },
    });
    urls.push(one.url);
    made.push(one);
  }
  return made;
}

const states = (replica: TestReplica): string[] =>
  replica.recovery.status().laneReports.map(({ outcome }) => outcome);

test("two joiners with different lanes of a source that died complete each other", async () => {
  const [a, b, c, d] = KEYS as [LaneKey, LaneKey, LaneKey, LaneKey];
  const source = await mortalSource([[a, b], [c, d]]);
  const both = await joiners(2, source);
  for (const one of both) one.recovery.start();
  for (const one of both) assert.is(await one.recovery.done, "recovered");
  for (const one of both) {
    assert.equal(states(one), ["restored", "restored", "restored", "restored"]);
    for (const key of KEYS) {
      const had = source.store.lane(key);
      const has = one.store.lane(key);
      assert.ok(had && has);
      assert.equal(contentOf(has), contentOf(had));
      assert.is(has.cursor, had.cursor);
    }
  }
});

test("what none of them has begins empty, and they do not wait for each other for ever", async () => {
  const [a, b] = KEYS as [LaneKey, LaneKey];
  const source = await mortalSource([[a], [b], [a, b]]);
  const three = await joiners(3, source);
  for (const one of three) one.recovery.start();
  // 502 is no proof that the source has nothing: it is waited for until it is known to be gone.
  await until(() => three.every((one) => one.recovery.status().lanes.restored === 2), "both lanes");
  await source.close();
  const ends = await Promise.all(three.map((one) => one.recovery.done));
  // The first one gives up; to the others it can say then that nobody has the rest.
  assert.ok(ends.includes("degraded"));
  for (const [at, one] of three.entries()) {
    const rest = ends[at] === "degraded" ? "degraded" : "cold";
    assert.equal(states(one), ["restored", "restored", rest, rest]);
    assert.equal(KEYS.map((key) => one.store.lane(key)?.blocks), [20, 21, 0, 0]);
    if (rest === "cold") continue;
    assert.match(one.recovery.status().reason, /^2 lanes are degraded: no peer has an index/);
  }
});

test("a replica that recovers gives lanes only to those who ask for no more, and never a whole dump", async () => {
  const [a] = KEYS as [LaneKey];
  const source = await mortalSource([[a]]);
  const [joiner] = await joiners(1, source);
  assert.ok(joiner);
  const before = await fetch(`${joiner.url}/dump?restored=1`);
  assert.is(before.status, 503, "nothing is restored yet");
  assert.is((await before.json()).error.restored, 0);
  joiner.recovery.start();
  await until(() => joiner.recovery.status().lanes.restored === 1, "the first lane");
  const whole = await fetch(`${joiner.url}/dump`);
  assert.is(whole.status, 503);
  const { error } = await whole.json();
  assert.is(error.code, "not_ready");
  assert.is(error.restored, 1);
  assert.is(error.hasSource, false);
  const part = await fetch(`${joiner.url}/dump?restored=1`);
  assert.is(part.status, 200);
  assert.is(part.headers.get(SCOPE_HEADER), "restored");
  const lines = (await part.text()).trimEnd().split("\n").map((line) => JSON.parse(line));
  assert.equal(lines.filter(({ kind }) => kind === "lane").map(({ worker }) => worker), ["0"]);
  assert.is(lines.at(-1).lanes, 1);
  const other = `${joiner.url}/dump?restored=1&lane=${encodeURIComponent(laneId(laneKey("1")))}`;
  const nothing = await (await fetch(other)).text();
  assert.not.match(nothing, /"kind":"lane"/, "cold lanes are not given");
  joiner.recovery.stop();
  await joiner.recovery.done.catch(() => {});
});

// ------------------------------------------------------------------------- the loop, in virtual time

const CUTS = [makeCut(keyOf("0"), 100), makeCut(keyOf("1"), 100)];
const EMPTY = CUTS.map((cut) => emptyCut(cut.key));

/** A sibling that has restored these lanes and has no source. */
function sibling(cuts: typeof CUTS, asked: string[] = []): (request: Request) => Response {
  return (request) => {
    const url = new URL(request.url);
    asked.push(url.search);
    if (url.searchParams.get("restored") === null) {
      return errorResponse(
        new BatonError("not_ready", "no", {
          retryAfterS: 1,
          detail: { hasSource: false, restored: cuts.length },
        }),
      );
    }
    const wanted = url.searchParams.getAll("lane");
    const slices = dumpSlices({
      store: new Shelf(cuts),
      replica: "sibling",
      nowMs: 0,
      wanted: (lane) => wanted.includes(laneId(lane.key)),
    });
    const response = ndjson(ReadableStream.from(slices));
    response.headers.set(SCOPE_HEADER, "restored");
    return response;
  };
}

test("a sibling's lanes are the last resort: a source that has all is asked, and nobody else", async () => {
  for (const seed of [1, 2, 3, 4]) {
    const loop = new Loop({ seed, lanes: EMPTY });
    loop.members("a", "b");
    const asked: string[] = [];
    loop.answer("a", sibling(CUTS, asked));
    loop.answer("b", dumpOf(CUTS));
    loop.start();
    assert.is(await loop.run(), "recovered");
    assert.ok(asked.every((search) => !search.includes("restored")));
  }
});

test("a sibling's part says nothing about what others have: the rest is not taken for nobody's", async () => {
  const loop = new Loop({ lanes: EMPTY });
  loop.members("a", "b");
  loop.answer("a", sibling(CUTS.slice(0, 1)));
  let tries = 0;
  loop.answer("b", (request) => {
    tries += 1;
    return tries < 3 ? new Response("no", { status: 500 }) : dumpOf(CUTS)(request);
  });
  loop.start();
  assert.is(await loop.run(), "recovered");
  const { laneReports, attempts } = loop.recovery.status();
  assert.equal(laneReports.map(({ source }) => source), ["http://a:8082", "http://b:8082"]);
  assert.ok(attempts.some(({ outcome, lanes }) => outcome === "some_lanes" && lanes === 1));
});

test("a sibling that always offers and never helps ends in the usual number of empty rounds", async () => {
  const loop = new Loop({ lanes: EMPTY });
  loop.members("a");
  loop.answer("a", sibling([makeCut(keyOf("stranger"), 5)]));
  loop.start();
  assert.is(await loop.run(), "empty_bootstrap");
  assert.ok(loop.clock.monotonic() < 5000);
});

test("what comes from a sibling makes nobody else wait for us", async () => {
  const loop = new Loop({ lanes: EMPTY });
  loop.members("a");
  const had: boolean[] = [];
  const give = sibling(CUTS.slice(0, 1));
  loop.answer("a", async (request) => {
    const response = give(request);
    if (response.status !== 200 || response.body === null) return response;
    const bytes = new Uint8Array(await response.arrayBuffer());
    const headers = response.headers;
    return new Response(
      new ReadableStream({
        async start(controller) {
          controller.enqueue(bytes.slice(0, 300));
          await new Promise<void>((resolve) => loop.clock.after(100, resolve));
          had.push(loop.recovery.hasSource);
          controller.enqueue(bytes.slice(300));
          controller.close();
        },
      }),
      { headers },
    );
  });
  loop.start();
  await loop.run();
  assert.ok(had.length > 0 && had.every((one) => !one));
});

test.run();
