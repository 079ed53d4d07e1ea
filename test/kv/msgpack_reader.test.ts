/** The reader against a general MessagePack library, and against noise. */
import { decode, encode } from "@msgpack/msgpack";
import fc from "fast-check";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { BatchUndecodable, decodeBatch } from "../../src/kv/decode_batch.ts";
import { MsgpackReader } from "../../src/kv/msgpack_reader.ts";

const pack = (value: unknown): Uint8Array => encode(value, { useBigInt64: true });

/** Any value as the reader sees it. */
function read(reader: MsgpackReader): unknown {
  switch (reader.peek()) {
    case "nil":
      reader.takeNil();
      return null;
    case "bool":
      return reader.bool();
    case "int":
      return reader.bigint();
    case "float":
      return plain(reader.number());
    case "string":
      return reader.string();
    case "bytes":
      return [...reader.binary()];
    case "array":
      return Array.from({ length: reader.arrayLength() }, () => read(reader));
    case "map":
      return Array.from({ length: reader.mapLength() }, () => [read(reader), read(reader)]);
    case "ext":
      reader.skip();
      return undefined;
  }
}

/** What @msgpack/msgpack read, in the same form. */
function plain(value: unknown): unknown {
  if (typeof value === "number" && Number.isInteger(value)) return BigInt(value);
  if (value instanceof Uint8Array) return [...value];
  if (Array.isArray(value)) return value.map(plain);
  if (typeof value === "object" && value !== null) {
    return Object.entries(value).map(([key, item]) => [key, plain(item)]);
  }
  return value;
}

const anything = fc.letrec((tie) => ({
  value: fc.oneof(
    { maxDepth: 4 },
    fc.constant(null),
    fc.boolean(),
    fc.integer(),
    fc.maxSafeInteger(),
    fc.bigInt({ min: -(2n ** 63n), max: 2n ** 64n - 1n }),
    fc.double({ noNaN: true }).filter((number) => !Number.isInteger(number)),
    fc.string({ unit: "grapheme", maxLength: 60 }),
    fc.uint8Array({ maxLength: 300 }),
    fc.array(tie("value"), { maxLength: 20 }),
    fc.dictionary(fc.string().filter((key) => key !== "__proto__"), tie("value"), { maxKeys: 8 }),
  ),
})).value;

test("reads every value as a general decoder does", () => {
  fc.assert(
    fc.property(anything, (value) => {
      const bytes = pack(value);
      const reader = new MsgpackReader(bytes);
      assert.equal(read(reader), plain(decode(bytes, { useBigInt64: true })));
      assert.ok(reader.isAtEnd);
    }),
    { seed: 7, numRuns: 2000 },
  );
});

test("passes over exactly one value, whatever it is", () => {
  fc.assert(
    fc.property(anything, (value) => {
      const bytes = pack([value, 99]);
      const reader = new MsgpackReader(bytes);
      reader.arrayLength();
      reader.skip();
      assert.is(reader.number(), 99);
      assert.ok(reader.isAtEnd);
    }),
    { seed: 8, numRuns: 2000 },
  );
});

const eventLike = fc.oneof(
  fc.record({
    type: fc.constantFrom("BlockStored", "BlockRemoved", "AllBlocksCleared", "Other"),
    block_hashes: fc.oneof(
      fc.array(fc.bigInt({ min: 0n, max: 2n ** 64n - 1n }), { maxLength: 4 }),
      anything,
    ),
    parent_block_hash: fc.oneof(fc.constant(null), anything),
    token_ids: fc.oneof(fc.array(fc.nat(), { maxLength: 16 }), anything),
    block_size: fc.oneof(fc.nat(20), anything),
    extra_keys: anything,
    group_idx: anything,
  }, { requiredKeys: [] }),
  fc.array(anything, { maxLength: 14 }).map((slots) => ["BlockStored", ...slots]),
  anything,
);

test("any well-made batch is read to its end, whatever its events are", () => {
  fc.assert(
    fc.property(fc.array(eventLike, { maxLength: 6 }), (events) => {
      const batch = decodeBatch(pack([1, events, 3]));
      assert.ok(batch.events.length + batch.refused.length <= events.length);
      assert.is(batch.rank, 3);
    }),
    { seed: 9, numRuns: 2000 },
  );
});

test("a batch that is cut anywhere is undecodable", () => {
  fc.assert(
    fc.property(fc.array(eventLike, { maxLength: 4 }), fc.nat(), (events, cut) => {
      const payload = pack([1.5, events, 3]);
      const short = payload.subarray(0, cut % payload.length);
      assert.throws(
        () => decodeBatch(short),
        (error: unknown) => error instanceof BatchUndecodable,
      );
    }),
    { seed: 10, numRuns: 1000 },
  );
});

test("noise is decoded or refused, and nothing else happens", () => {
  const check = (payload: Uint8Array): void => {
    try {
      decodeBatch(payload);
    } catch (error) {
      if (!(error instanceof BatchUndecodable)) throw error;
    }
  };
  fc.assert(fc.property(fc.uint8Array({ maxLength: 200 }), check), { seed: 11, numRuns: 5000 });
  const flips = fc.array(fc.tuple(fc.nat(), fc.nat(255)), { minLength: 1, maxLength: 4 });
  fc.assert(
    fc.property(fc.array(eventLike, { maxLength: 3 }), flips, (events, changes) => {
      const payload = pack([1.5, events, 3]);
      for (const [at, byte] of changes) payload[at % payload.length] = byte;
      check(payload);
    }),
    { seed: 12, numRuns: 5000 },
  );
});

test.run();
