import { test } from "uvu";
import * as assert from "uvu/assert";
import { BatonError } from "../../src/errors.ts";
import { LoadBook } from "../../src/router/load.ts";
import { Reservations, type Selection } from "../../src/router/reservations.ts";
import { VirtualClock } from "../support/virtual_clock.ts";

const RANK = { worker: "1", dpRank: 0 };
const IDLE = { prefillTokens: 0, decodeBlocks: 0, requests: 0 };

function selection(promptTokens = 100, prefillTokens = 60): Selection {
  return {
    rank: RANK,
    promptTokens,
    size: { prefillTokens, promptBlocks: Math.ceil(promptTokens / 16) },
  };
}

function fixture(limits = {}) {
  const clock = new VirtualClock();
  const book = new LoadBook();
  const schedulable = new Set(["1"]);
  const reservations = new Reservations({
    clock,
    book,
    isSchedulable: ({ worker }) => schedulable.has(worker),
    ...limits,
  });
  return { clock, book, schedulable, reservations };
}

function codeOf(action: () => unknown): string {
  try {
    action();
  } catch (error) {
    if (error instanceof BatonError) return error.code;
    throw error;
  }
  return "none";
}

test("a booking adds to its rank only and is taken off once", () => {
  const book = new LoadBook();
  const first = book.book(RANK, { prefillTokens: 60, promptBlocks: 7 });
  const second = book.book({ worker: "1", dpRank: 1 }, { prefillTokens: 5, promptBlocks: 1 });
  assert.equal(book.load(RANK), { prefillTokens: 60, decodeBlocks: 7, requests: 1 });
  first.prefillComplete();
  first.prefillComplete();
  assert.equal(book.load(RANK), { prefillTokens: 0, decodeBlocks: 7, requests: 1 });
  first.release();
  first.release();
  first.prefillComplete();
  first.outputBlock();
  assert.equal(book.load(RANK), IDLE);
  assert.is([...book.loads()].length, 1);
  second.release();
  assert.is([...book.loads()].length, 0);
});

test("a released booking of a rank leaves a later one alone", () => {
  const book = new LoadBook();
  const first = book.book(RANK, { prefillTokens: 60, promptBlocks: 7 });
  first.release();
  const second = book.book(RANK, { prefillTokens: 10, promptBlocks: 2 });
  first.release();
  assert.equal(book.load(RANK), { prefillTokens: 10, decodeBlocks: 2, requests: 1 });
  second.release();
  assert.equal(book.load(RANK), IDLE);
});

test("ten thousand random bookings leave nothing behind", () => {
  const book = new LoadBook();
  let state = 1;
  const random = (below: number) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor(state / 2 ** 32 * below);
  };
  const open = [];
  for (let i = 0; i < 10_000; i++) {
    const rank = { worker: String(random(5)), dpRank: random(2) };
    const booking = book.book(rank, { prefillTokens: random(1000), promptBlocks: random(60) });
    open.push(booking);
    if (random(2) === 0) booking.prefillComplete();
    if (random(2) === 0) booking.outputBlock(random(11) / 10);
    if (random(3) > 0) open.splice(random(open.length), 1)[0]?.release();
  }
  for (const booking of open) booking.release();
  assert.equal([...book.loads()], []);
});

test("kv 187: a reservation books the prompt, its name is unique, deleting it frees", () => {
  const { book, reservations } = fixture();
  reservations.reserve("r", selection(100, 100));
  assert.equal(book.load(RANK), { prefillTokens: 100, decodeBlocks: 7, requests: 1 });
  assert.is(codeOf(() => reservations.reserve("r", selection())), "conflict");
  assert.is(codeOf(() => reservations.reserveSelected("r")), "conflict");
  reservations.release("r");
  assert.equal(book.load(RANK), IDLE);
  assert.is(codeOf(() => reservations.release("r")), "not_found");
});

test("kv 188: an output block adds one decode block, a fraction of 1.5 is refused", () => {
  const { book, reservations } = fixture();
  reservations.reserve("r", selection());
  reservations.outputBlock("r");
  assert.is(book.load(RANK).decodeBlocks, 8);
  assert.is(codeOf(() => reservations.outputBlock("r", 1.5)), "bad_request");
  assert.is(codeOf(() => reservations.outputBlock("r", NaN)), "bad_request");
  assert.is(book.load(RANK).decodeBlocks, 8);
  reservations.outputBlock("r", 0.5);
  assert.is(book.load(RANK).decodeBlocks, 4.5);
  assert.is(codeOf(() => reservations.outputBlock("none")), "not_found");
  reservations.release("r");
  assert.equal(book.load(RANK), IDLE);
});

test("kv 189: an explicit reservation is checked before it books", () => {
  const { book, reservations, schedulable } = fixture();
  assert.is(codeOf(() => reservations.reserve("r", selection(100, 101))), "bad_request");
  schedulable.clear();
  assert.is(codeOf(() => reservations.reserve("r", selection())), "not_found");
  assert.equal(book.load(RANK), IDLE);
  assert.is(reservations.size, 0);
});

test("kv 190: a selection is replayed as it was made, once", () => {
  const { book, reservations } = fixture();
  const made = selection(200, 48);
  reservations.remember("s", made);
  assert.equal(book.load(RANK), IDLE);
  assert.is(reservations.reserveSelected("s"), made);
  assert.equal(book.load(RANK), { prefillTokens: 48, decodeBlocks: 13, requests: 1 });
  reservations.release("s");
  assert.is(codeOf(() => reservations.reserveSelected("s")), "not_found");
});

test("kv 191: what was never selected cannot be reserved", () => {
  assert.is(codeOf(() => fixture().reservations.reserveSelected("s")), "not_found");
});

test("kv 194: partitions do not see each other's selections", () => {
  const one = fixture(), other = fixture();
  one.reservations.remember("s", selection());
  assert.is(codeOf(() => other.reservations.reserveSelected("s")), "not_found");
  one.reservations.reserveSelected("s");
});

test("kv 195: a worker that is gone at booking keeps the selection for a retry", () => {
  const { reservations, schedulable } = fixture();
  reservations.remember("s", selection());
  schedulable.clear();
  assert.is(codeOf(() => reservations.reserveSelected("s")), "no_worker");
  schedulable.add("1");
  reservations.reserveSelected("s");
  assert.is(reservations.size, 1);
});

test("kv 196: an explicit booking discards the selection of the same name", () => {
  const { reservations } = fixture();
  reservations.remember("s", selection());
  reservations.reserve("s", selection());
  reservations.release("s");
  assert.is(codeOf(() => reservations.reserveSelected("s")), "not_found");
});

test("kv 197: without prefill tracking a booking has no prefill load", () => {
  const { book, reservations } = fixture();
  reservations.remember("s", { ...selection(), size: { prefillTokens: 0, promptBlocks: 7 } });
  reservations.reserveSelected("s");
  assert.is(book.load(RANK).prefillTokens, 0);
});

test("the latest selection of a name is the one that counts", () => {
  const { book, reservations } = fixture();
  reservations.remember("s", selection(100, 60));
  reservations.remember("s", selection(100, 20));
  reservations.reserveSelected("s");
  assert.is(book.load(RANK).prefillTokens, 20);
});

test("selections end by age, by number and by bytes, oldest first", async () => {
  const { clock, reservations } = fixture({ maxSelections: 2, maxSelectionBytes: 4096 });
  reservations.remember("old", selection());
  await clock.advance(119_999);
  reservations.remember("new", selection());
  await clock.advance(1);
  assert.is(codeOf(() => reservations.reserveSelected("old")), "not_found");
  assert.is(codeOf(() => reservations.reserveSelected("new")), "none");
  for (const name of ["a", "b", "c"]) reservations.remember(name, selection());
  assert.is(codeOf(() => reservations.reserveSelected("a")), "not_found");
  reservations.remember("large", { ...selection(), keys: new BigUint64Array(400) });
  assert.is(codeOf(() => reservations.reserveSelected("b")), "not_found");
  assert.is(codeOf(() => reservations.reserveSelected("large")), "none");
  reservations.remember("too large", { ...selection(), keys: new BigUint64Array(4000) });
  assert.is(codeOf(() => reservations.reserveSelected("too large")), "not_found");
});

test("a reservation that nobody frees ends at its absolute expiry", async () => {
  const { clock, book, reservations } = fixture();
  reservations.reserve("a", selection());
  await clock.advance(200_000);
  reservations.reserve("b", selection());
  reservations.outputBlock("a");
  await clock.advance(100_000);
  assert.is(reservations.size, 1);
  assert.is(codeOf(() => reservations.release("a")), "not_found");
  await clock.advance(200_000);
  assert.equal(book.load(RANK), IDLE);
  assert.is(clock.pending, 0);
});

test("a worker that is gone takes its reservations with it, closing takes all", () => {
  const { clock, book, reservations, schedulable } = fixture();
  schedulable.add("2");
  reservations.reserve("a", selection());
  reservations.reserve("b", { ...selection(), rank: { worker: "2", dpRank: 0 } });
  reservations.releaseWorker("1");
  assert.equal(book.load(RANK), IDLE);
  assert.is(reservations.size, 1);
  reservations.close();
  assert.equal([...book.loads()], []);
  assert.is(clock.pending, 0);
});

test("kv 223: a booking may be released twice", () => {
  const booking = new LoadBook().book(RANK, { prefillTokens: 1, promptBlocks: 1 });
  booking.release();
  booking.release();
  assert.ok(booking.released);
});

test.run();
