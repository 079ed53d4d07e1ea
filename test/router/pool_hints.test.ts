/** What a joiner learns of its peer's load and sessions, and what a liar cannot do with it. */

import { test } from "uvu";
import * as assert from "uvu/assert";
import { MAX_LOAD_TEXT } from "../../src/replica/load_provider.ts";
import { SessionAffinity } from "../../src/router/affinity.ts";
import { choose } from "../../src/router/choice.ts";
import { poolWeights } from "../../src/router/cost.ts";
import { InheritedLoad } from "../../src/router/inherited_load.ts";
import { LoadBook } from "../../src/router/load.ts";
import { createPoolHints, MAX_SESSIONS_TOLD } from "../../src/router/pool_hints.ts";
import { VirtualClock } from "../support/virtual_clock.ts";

const NAMES = ["a", "b", "c"];
const A = { worker: "a", dpRank: 0 };
const B = { worker: "b", dpRank: 0 };
const POOL = { model: "m", group: "g" };
const TTL_MS = 60_000;

function replica(names: readonly string[] = NAMES) {
  const clock = new VirtualClock();
  const inherited = new InheritedLoad(clock);
  const load = new LoadBook(inherited);
  const sessions = new SessionAffinity({ clock, ttlMs: TTL_MS });
  // Of a worker only its rank matters here.
  const get = (id: string) => names.includes(id) ? { dpRank: 0 } as never : undefined;
  const hints = createPoolHints({ ...POOL, members: { get }, load, inherited, sessions });
  const choice = () =>
    choose(
      names.map((worker) => ({ worker, dpRank: 0, load: load.load({ worker, dpRank: 0 }) })),
      { tokens: 64, blockSize: 16 },
      { weights: poolWeights(16) },
      () => 0.5,
    ).candidate.worker;
  return { clock, inherited, load, sessions, hints, choice };
}

/** As it travels: text. */
const told = (from: ReturnType<typeof replica>): unknown[] =>
  JSON.parse(JSON.stringify([...from.hints.tell()]));

const zero = { prefillTokens: 0, decodeBlocks: 0, requests: 0 };

test("a joiner chooses as its peer does, right after the recovery", () => {
  const source = replica();
  source.load.book(A, { prefillTokens: 4000, promptBlocks: 300 });
  source.load.book(A, { prefillTokens: 10, promptBlocks: 5 });
  source.load.book({ worker: "c", dpRank: 0 }, { prefillTokens: 100, promptBlocks: 20 });
  const joiner = replica();
  assert.equal(joiner.hints.take(told(source)), { loads: 2, sessions: 0 });
  for (const worker of NAMES) {
    const rank = { worker, dpRank: 0 };
    assert.equal(joiner.load.load(rank), source.load.load(rank), worker);
  }
  assert.is(source.choice(), "b");
  assert.is(joiner.choice(), "b");
  const [first] = joiner.load.loads();
  assert.is(first, undefined, "it is not told on as load of ours");
});

test("inherited load fades by half in half a minute, adds to our own, and is gone after some minutes", async () => {
  const { clock, hints, load, inherited } = replica();
  hints.take([{ hint: "load", ...POOL, ...A, prefillTokens: 800, decodeBlocks: 40, requests: 4 }]);
  const own = load.book(A, { prefillTokens: 7, promptBlocks: 1 });
  assert.equal(load.load(A), { prefillTokens: 807, decodeBlocks: 41, requests: 5 });
  own.release();
  await clock.advance(30_000);
  assert.equal(load.load(A), { prefillTokens: 400, decodeBlocks: 20, requests: 2 });
  await clock.advance(30_000);
  assert.is(load.load(A).prefillTokens, 200);
  await clock.advance(90_000);
  assert.equal(load.load(A), zero);
  hints.take([{ hint: "load", ...POOL, ...A, prefillTokens: 800, decodeBlocks: 40, requests: 4 }]);
  inherited.forget("a");
  assert.equal(load.load(A), zero);
});

test("sessions come along with the time that they stay bound, and ours go first", async () => {
  const source = replica();
  source.sessions.hold("old", A).release();
  await source.clock.advance(40_000);
  source.sessions.hold("busy", B);
  source.sessions.hold("moved", A).release();
  const joiner = replica();
  joiner.sessions.hold("moved", B).release();
  assert.equal(joiner.hints.take(told(source)), { loads: 0, sessions: 2 });
  assert.equal(joiner.sessions.preferred("old"), A);
  assert.equal(joiner.sessions.preferred("busy"), B);
  assert.equal(joiner.sessions.preferred("moved"), B);
  await joiner.clock.advance(20_000);
  assert.is(joiner.sessions.preferred("old"), undefined, "its time was over");
  assert.equal(joiner.sessions.preferred("busy"), B);
});

test("a session that came along stays bound for our time at most", async () => {
  const { clock, hints, sessions } = replica();
  const rows = [{ session: "s", ...A, ttlMs: 86_400_000 }];
  assert.is(hints.take([{ hint: "sessions", ...POOL, sessions: rows }]).sessions, 1);
  await clock.advance(TTL_MS);
  assert.is(sessions.preferred("s"), undefined);
});

test("records fit into a dump's line, whatever the ids are, and the latest sessions travel", () => {
  const source = replica();
  for (let n = 0; n < MAX_SESSIONS_TOLD + 100; n += 1) {
    const id = String(n);
    source.sessions.hold(id + "\u0001".repeat(256 - id.length), A).release();
  }
  const records = [...source.hints.tell()];
  for (const record of records) {
    assert.ok(JSON.stringify({ kind: "load", load: record }).length <= MAX_LOAD_TEXT);
  }
  const joiner = replica();
  assert.is(joiner.hints.take(records).sessions, MAX_SESSIONS_TOLD);
  assert.equal(joiner.sessions.preferred("100".padEnd(256, "\u0001")), A);
  assert.is(joiner.sessions.preferred("99".padEnd(256, "\u0001")), undefined);
});

test("what is false, unknown, too much or of another pool is left out by itself", () => {
  const good = { hint: "load", ...POOL, ...A, prefillTokens: 1, decodeBlocks: 1, requests: 1 };
  const bound = { session: "s", ...A, ttlMs: 1000 };
  const bad: unknown[] = [
    null,
    7,
    "load",
    [],
    {},
    { ...good, hint: "other" },
    { ...good, model: "another" },
    { ...good, group: "another" },
    { ...good, worker: "nobody" },
    { ...good, worker: "a".repeat(2000) },
    { ...good, dpRank: 1 },
    { ...good, dpRank: 0.5 },
    { ...good, prefillTokens: -1 },
    { ...good, prefillTokens: 1e300 },
    { ...good, decodeBlocks: "5" },
    { ...good, decodeBlocks: null },
    { ...good, requests: 1e9 },
    { hint: "sessions", ...POOL, sessions: "all" },
    { hint: "sessions", ...POOL, sessions: Array.from({ length: 33 }, () => bound) },
    { hint: "sessions", ...POOL, model: "another", sessions: [bound] },
    {
      hint: "sessions",
      ...POOL,
      sessions: [
        null,
        { ...bound, session: "" },
        { ...bound, session: "é".repeat(129) },
        { ...bound, worker: "nobody" },
        { ...bound, dpRank: 3 },
        { ...bound, ttlMs: 0 },
        { ...bound, ttlMs: -5 },
        { ...bound, ttlMs: 1e15 },
      ],
    },
  ];
  const { hints, load, sessions } = replica();
  assert.equal(hints.take(bad), { loads: 0, sessions: 0 });
  assert.is(sessions.size, 0);
  for (const worker of NAMES) assert.equal(load.load({ worker, dpRank: 0 }), zero);
  const mixed = [...bad, good, { hint: "sessions", ...POOL, sessions: [7, bound] }];
  assert.equal(hints.take(mixed), { loads: 1, sessions: 1 });
});

test("whatever a peer says, a worker is chosen again soon", async () => {
  const { clock, hints, choice } = replica(["a", "b"]);
  const most = { prefillTokens: 16_777_216, decodeBlocks: 16_777_216, requests: 65_536 };
  hints.take([{ hint: "load", ...POOL, ...A, ...most }]);
  assert.is(choice(), "b");
  await clock.advance(150_000);
  hints.take([{ hint: "load", ...POOL, ...B, prefillTokens: 1, decodeBlocks: 0, requests: 1 }]);
  assert.is(choice(), "a");
});

test.run();
