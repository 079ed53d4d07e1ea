/** JSON with integers of 64 bits. */
import fc from "fast-check";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { parseU64Json, printU64Json, toU64, workerNumber } from "../../src/kv/u64_json.ts";

const U64 = 2n ** 64n - 1n;

test("kv 57: u64 above 2^53 round-trip bit for bit as plain numbers", () => {
  const text = '{"a":13226331709069118873,"b":[18446744073709551615,-9223372036854775808,0]}';
  const value = parseU64Json(text);
  assert.equal(value, { a: 13226331709069118873n, b: [U64, -(2n ** 63n), 0] });
  assert.is(printU64Json(value), text);
});

test("kv 138: hashes are printed as plain numbers", () => {
  assert.is(
    printU64Json({ tokens_hash: U64, small: 5n }),
    '{"tokens_hash":18446744073709551615,"small":5}',
  );
});

test("any tree of 64-bit integers, doubles and text survives", () => {
  const leaf = fc.oneof(
    fc.bigInt({ min: -(2n ** 63n), max: U64 }).filter((n) => n > 2n ** 53n || n < -(2n ** 53n)),
    fc.integer().map((n) => n === 0 ? 0 : n),
    fc.double({ noNaN: true, noDefaultInfinity: true }).filter((n) => !Number.isInteger(n)),
    fc.string(),
    fc.boolean(),
    fc.constant(null),
  );
  const key = fc.string().filter((text) => text !== "__proto__");
  const tree = fc.letrec((tie) => ({
    node: fc.oneof(
      { maxDepth: 4 },
      leaf,
      fc.array(tie("node"), { maxLength: 6 }),
      fc.dictionary(key, tie("node"), { maxKeys: 5, noNullPrototype: true }),
    ),
  })).node;
  fc.assert(
    fc.property(tree, (value) => {
      assert.equal(parseU64Json(printU64Json(value)), value);
    }),
    { seed: 41, numRuns: 1000 },
  );
});

test("digits inside of text and fractions are left alone", () => {
  assert.equal(parseU64Json('["12345678901234567890",1.2345678901234567890,1e300]'), [
    "12345678901234567890",
    1.2345678901234567,
    1e300,
  ]);
});

test("u64 from numbers, bigints, decimal and hexadecimal text", () => {
  assert.equal(
    [5, U64, -1, -1n, "18446744073709551615", "-1", "0xff", "0"].map(toU64),
    [5n, U64, U64, U64, U64, U64, 255n, 0n],
  );
  for (
    const bad of [1.5, 2 ** 60, U64 + 1n, -(2n ** 63n) - 1n, "", "1x", "0x", "01", null, {}, "1e3"]
  ) {
    assert.is(toU64(bad), undefined, String(bad));
  }
});

test("worker names that are u64 are numbers in Dynamo's API, others stay text", () => {
  assert.equal(
    ["7", "18446744073709551615", "07", "18446744073709551616", "pod-1"].map(workerNumber),
    [
      7n,
      U64,
      "07",
      "18446744073709551616",
      "pod-1",
    ],
  );
});

test.run();
