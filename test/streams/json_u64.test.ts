import { test } from "uvu";
import * as assert from "uvu/assert";
import fc from "fast-check";
import { NotJsonText, parseJsonU64 } from "../../src/streams/json_u64.ts";

test("kv 57: whole numbers above 2^53 keep every bit, others are numbers", () => {
  assert.is(parseJsonU64("13226331709069118873"), 13226331709069118873n);
  assert.is(parseJsonU64("18446744073709551615"), 2n ** 64n - 1n);
  assert.is(parseJsonU64("-9223372036854775808"), -(2n ** 63n));
  assert.is(parseJsonU64("9007199254740991"), 9007199254740991);
  assert.is(parseJsonU64("9007199254740993"), 9007199254740993n);
  assert.is(parseJsonU64("1.5e3"), 1500);
  assert.is(parseJsonU64("-0.25"), -0.25);
});

test("everything else is read as JSON.parse reads it", () => {
  fc.assert(
    fc.property(fc.json(), (text) => {
      assert.equal(plain(parseJsonU64(text)), JSON.parse(text));
    }),
    { seed: 1, numRuns: 500 },
  );
});

test("what JSON.parse refuses is refused", () => {
  const bad = [
    "",
    "{",
    "[1,]",
    "[1 2]",
    '{"a"}',
    '{"a":}',
    "{a:1}",
    '"\n"',
    '"abc',
    '"\\x"',
    "01",
    "1.",
    ".5",
    "1e",
    "+1",
    "nul",
    "1 1",
    "-",
    '{"a":1,}',
    "[".repeat(100) + "]".repeat(100),
  ];
  for (const text of bad) {
    assert.throws(() => parseJsonU64(text), (error: Error) => error instanceof NotJsonText, text);
  }
});

test("random damage to JSON never gives anything but a value or NotJsonText", () => {
  fc.assert(
    fc.property(
      fc.json(),
      fc.nat(),
      fc.string({ unit: "binary", minLength: 1, maxLength: 1 }),
      (text, at, letter) => {
        const where = at % (text.length + 1);
        const damaged = text.slice(0, where) + letter + text.slice(where + 1);
        try {
          parseJsonU64(damaged);
        } catch (error) {
          assert.instance(error, NotJsonText);
        }
      },
    ),
    { seed: 2, numRuns: 1000 },
  );
});

test("a key may be __proto__ and changes nothing", () => {
  const value = parseJsonU64('{"__proto__":{"a":1}}') as Record<string, unknown>;
  assert.is(Object.getPrototypeOf(value), Object.prototype);
  assert.equal(Object.keys(value), ["__proto__"]);
  assert.is(({} as { a?: number }).a, undefined);
});

/** With ordinary prototypes and numbers, for comparing. */
function plain(value: unknown): unknown {
  if (typeof value === "bigint") return Number(value);
  if (Array.isArray(value)) return value.map(plain);
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, plain(inner)]));
}

test.run();
