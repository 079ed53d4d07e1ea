/** A JSON text in pieces: the same as in one go, however it is cut, and within bounds. */

import fc from "fast-check";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { type JsonContainer, JsonPush, NotJson } from "../../src/streams/json_push.ts";

/** Puts the values together again. */
function parse(pieces: Iterable<string>): unknown {
  let result: unknown;
  let text = "";
  const open: { value: unknown[] | Record<string, unknown>; key: string }[] = [];
  const add = (value: unknown): void => {
    const outer = open.at(-1);
    if (outer === undefined) result = value;
    else if (Array.isArray(outer.value)) outer.value.push(value);
    else {
      Object.defineProperty(outer.value, outer.key, {
        value,
        enumerable: true,
        configurable: true,
        writable: true,
      });
    }
  };
  const parser = new JsonPush({
    open: (kind: JsonContainer) => void open.push({ value: kind === "array" ? [] : {}, key: "" }),
    close: () => add(open.pop()?.value),
    key(name) {
      const outer = open.at(-1);
      if (outer !== undefined) outer.key = name;
    },
    text(part, isLast) {
      text += part;
      if (!isLast) return;
      const whole = text;
      text = "";
      add(whole);
    },
    scalar: add,
  });
  for (const piece of pieces) parser.push(piece);
  parser.end();
  return result;
}

const refused = (text: string): void => {
  assert.throws(() => parse([text]), (error: unknown) => error instanceof NotJson, text);
  assert.throws(
    () => parse(text),
    (error: unknown) => error instanceof NotJson,
    `${text}, by letters`,
  );
};

test("whatever JSON.parse reads is read alike, in one piece and letter by letter", () => {
  fc.assert(
    fc.property(fc.json({ maxDepth: 5 }), fc.integer({ min: 0, max: 2 }), (text, indent) => {
      const spaced = JSON.stringify(JSON.parse(text), undefined, indent);
      const value: unknown = JSON.parse(spaced);
      for (const pieces of [[spaced], [...spaced].flatMap((letter) => letter.split(""))]) {
        assert.is(JSON.stringify(parse(pieces)), JSON.stringify(value));
      }
    }),
    { seed: 5, numRuns: 500 },
  );
});

test("escapes, and letters of two units, survive any cut", () => {
  const text =
    '{"a\\n\\u00e9":["\\"\\\\\\/\\b\\f\\r\\t\\ud83d\\ude00\u{1f600}",-0.5e-3,true,null]}';
  const value: unknown = JSON.parse(text);
  for (let cut = 0; cut <= text.length; cut += 1) {
    assert.equal(parse([text.slice(0, cut), "", text.slice(cut)]), value);
  }
});

test("what is not JSON is refused", () => {
  for (
    const text of [
      "",
      " ",
      "[",
      "]",
      "{",
      "[1,]",
      "[,1]",
      "[1 2]",
      "[}",
      '{"a"}',
      '{"a":}',
      '{"a":1,}',
      "{a:1}",
      "{1:1}",
      '"a',
      '"a\nb"',
      '"\\x"',
      '"\\u12g4"',
      "01",
      "1.",
      "-",
      "+1",
      ".5",
      "1e",
      "nul",
      "NaN",
      "Infinity",
      "tru e",
      "1 1",
      "[]]",
      '""""',
      "{}{}",
      '{"a":1 "b":2}',
      "[1:2]",
    ]
  ) refused(text);
});

test("depth, keys and numbers have bounds; strings are the target's to bound", () => {
  assert.equal(parse(["[".repeat(32) + "]".repeat(32)]) !== undefined, true);
  refused("[".repeat(33) + "]".repeat(33));
  refused(`{"${"k".repeat(257)}":1}`);
  refused("9".repeat(33));
  const long = "x".repeat(100_000);
  assert.is(parse(['"', long, long, '"']), long + long);
});

test.run();
