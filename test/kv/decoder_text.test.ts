/** A decoder state as text in pieces: the same state comes out, and no piece of work takes long. */

import fc from "fast-check";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { type DecoderState, readDecoderState } from "../../src/kv/decoder_state.ts";
import { decoderText, DecoderTextReader } from "../../src/kv/decoder_text.ts";
import { Namespaces, type NamespaceState } from "../../src/kv/namespaces.ts";
import { NotJson } from "../../src/streams/json_push.ts";

function read(pieces: Iterable<string>): DecoderState {
  const reader = new DecoderTextReader();
  for (const piece of pieces) reader.push(piece);
  return reader.finish();
}

const textOf = (state: unknown): string => [...decoderText(state)].join("");

function columns(
  rows: readonly (readonly [bigint, number, number])[],
  salts: string[],
): NamespaceState {
  return {
    salts,
    blocks: BigUint64Array.from(rows, ([block]) => block),
    of: Int32Array.from(rows, ([, of]) => of),
    counts: Uint16Array.from(rows, ([, , count]) => count),
  };
}

test("every state comes out as it went in, wherever its text is cut", () => {
  const row = fc.tuple(
    fc.bigInt({ min: 0n, max: 2n ** 64n - 1n }),
    fc.integer({ min: -2, max: 3 }),
    fc.integer({ min: 1, max: 65_535 }),
  );
  const states = fc.record({
    groups: fc.array(fc.tuple(fc.nat(1e6), fc.boolean()), { maxLength: 5 }),
    digests: fc.array(
      fc.tuple(fc.bigInt({ min: 0n, max: 2n ** 64n - 1n }).map(String), fc.maxSafeNat()),
      { maxLength: 5 },
    ),
    rows: fc.option(fc.array(row, { maxLength: 40, minLength: 1 })),
    salts: fc.array(fc.string({ unit: "binary", maxLength: 20 }), { maxLength: 4 }),
  });
  fc.assert(
    fc.property(
      states,
      fc.integer({ min: 1, max: 50 }),
      ({ groups, digests, rows, salts }, size) => {
        const namespaces = rows === null ? {} : { namespaces: columns(rows, salts) };
        const state: DecoderState = { reader: { groups, ...namespaces }, digests };
        const text = textOf(state);
        JSON.parse(text);
        const pieces: string[] = [];
        for (let at = 0; at < text.length; at += size) pieces.push(text.slice(at, at + size));
        assert.equal(read(pieces), state);
        assert.equal(readDecoderState(read(pieces)), state);
      },
    ),
    { seed: 11, numRuns: 300 },
  );
});

test("the text is what it always was: plain JSON with hexadecimal digits and numbers", () => {
  const namespaces = columns([[1n, 0, 1], [2n ** 64n - 1n, -1, 2]], ["tenant"]);
  assert.is(
    textOf({ reader: { groups: [[2, true]], namespaces }, digests: [["5", 77]] }),
    '{"reader":{"groups":[[2,true]],"namespaces":{"salts":["tenant"],' +
      '"blocks":"0000000000000001ffffffffffffffff","of":[0,-1],"counts":[1,2]}},' +
      '"digests":[["5",77]]}',
  );
});

test("members of later versions are passed over", () => {
  const text = '{"more":{"of":["x",{"reader":5}],"deep":[[[1]]]},"reader":{"roots":[[1,2,3]],' +
    '"groups":[[1,true]],"namespaces":{"kind":null,"salts":[],"blocks":"","of":[]}},"digests":[]}';
  const state = read([text]);
  assert.equal(state.reader.groups, [[1, true]]);
  assert.is(state.reader.namespaces?.blocks.length, 0);
});

test("what is not such a state is refused, and never kept without end", () => {
  for (
    const text of [
      "5",
      '"what?"',
      "[]",
      '{"reader":5}',
      '{"reader":{"groups":5}}',
      '{"reader":{"groups":[5]}}',
      '{"reader":{"groups":[["x",true]]}}',
      '{"reader":{"groups":[[1,true,2]]}}',
      '{"reader":{"groups":[[]]}}',
      `{"reader":{"groups":[${Array.from({ length: 1025 }, (_, at) => `[${at},true]`)}]}}`,
      '{"reader":{"namespaces":[]}}',
      '{"reader":{"namespaces":{"blocks":"zz"}}}',
      '{"reader":{"namespaces":{"blocks":"0"}}}',
      '{"reader":{"namespaces":{"blocks":["0000000000000001"]}}}',
      '{"reader":{"namespaces":{"of":["1"]}}}',
      '{"reader":{"namespaces":{"of":[0.5]}}}',
      '{"reader":{"namespaces":{"of":[1e300]}}}',
      '{"reader":{"namespaces":{"counts":[0]}}}',
      '{"reader":{"namespaces":{"salts":[5]}}}',
      '{"digests":[["x",1]]}',
      '{"digests":[["5",{}]]}',
      `{"digests":[${Array.from({ length: 257 }, (_, at) => `["${at}",1]`)}]}`,
    ]
  ) {
    assert.throws(() => read([text]), (error: unknown) => error instanceof TypeError, text);
  }
  assert.throws(() => read(["{"]), (error: unknown) => error instanceof NotJson);
  assert.throws(
    () => read(["[".repeat(1000)]),
    (error: unknown) => error instanceof TypeError || error instanceof NotJson,
  );
  // The digits in the middle of the text are looked at as they come.
  const reader = new DecoderTextReader();
  reader.push('{"reader":{"namespaces":{"blocks":"');
  for (const digits of ["000000000000000g", "000000-000000000", "F000000000000000"]) {
    assert.throws(() => reader.push(digits), (error: unknown) => error instanceof TypeError);
  }
});

test("columns that do not fit each other, or name a salt that is not there, are refused whole", async () => {
  const good = columns([[1n, 0, 1], [2n, -2, 1]], ["a"]);
  const bad = [
    { ...good, of: new Int32Array(1) },
    { ...good, counts: new Uint16Array(3) },
    { ...good, salts: [] },
  ];
  for (const state of bad) {
    assert.throws(() => Namespaces.from(state), (error: unknown) => error instanceof TypeError);
    const refused = await Namespaces.fromInSlices(state, () => Promise.resolve())
      .then(() => undefined, (error: unknown) => error);
    assert.ok(refused instanceof TypeError);
  }
  assert.equal(Namespaces.from(good).of(1n), { salt: "a" });
  assert.is(Namespaces.from(good).of(2n), "ambiguous");
});

test("a hundred thousand salted blocks are copied, written, read and put back a little at a time", async () => {
  const size = 100_000;
  const spaces = new Namespaces();
  for (let at = 0; at < size; at += 100) {
    const hashes = BigUint64Array.from({ length: 100 }, (_, row) => BigInt(at + row + 1));
    spaces.stored(hashes, `tenant-${at % 1000}`);
  }
  let breaks = 0;
  const pause = (): Promise<void> => {
    breaks += 1;
    return Promise.resolve();
  };
  const state = await spaces.stateInSlices(pause);
  assert.ok(breaks >= 40, `${breaks} breaks`);
  let parts = 0;
  let longest = 0;
  const reader = new DecoderTextReader();
  for (const part of decoderText({ reader: { groups: [], namespaces: state }, digests: [] })) {
    parts += 1;
    longest = Math.max(longest, part.length);
    reader.push(part);
  }
  assert.ok(longest <= 16_384 && parts > 100, `${parts} parts, the longest of ${longest} letters`);
  breaks = 0;
  const copy = await Namespaces.fromInSlices(reader.finish().reader.namespaces, pause);
  assert.ok(breaks >= 40, `${breaks} breaks`);
  for (const block of [1n, 55_555n, 100_000n]) assert.equal(copy.of(block), spaces.of(block));
  const rows = ({ salts, blocks, of }: NamespaceState): string[] =>
    [...blocks].map((block, at) => `${block} ${salts[of[at] ?? -1]}`).sort();
  assert.equal(rows(copy.state() as NamespaceState), rows(state as NamespaceState));
});

test.run();
