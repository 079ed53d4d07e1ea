import { test } from "uvu";
import * as assert from "uvu/assert";
import { UsageReader } from "../../src/router/usage_reader.ts";

function read(text: string, chunkBytes: number): number | undefined {
  const reader = new UsageReader();
  const bytes = new TextEncoder().encode(text);
  for (let at = 0; at < bytes.length; at += chunkBytes) {
    reader.add(bytes.subarray(at, at + chunkBytes));
  }
  return reader.cachedTokens();
}

const usage = (cached: number) =>
  `"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":${cached}}}`;

test("the count is found however the answer is cut into chunks", () => {
  for (const before of [0, 100, 2_000, 2_048, 5_000]) {
    const text = `{"choices":[{"text":"${"x".repeat(before)}"}],${usage(320)}}`;
    for (const size of [1, 7, 64, 2_047, 2_048, 2_049, 100_000]) {
      assert.is(read(text, size), 320, `${before} bytes before, chunks of ${size}`);
    }
  }
});

test("the last one counts, as in a stream that reports as it goes", () => {
  assert.is(read(`data: {${usage(1)}}\n\ndata: {${usage(2)}}\n\ndata: [DONE]\n\n`, 10), 2);
});

test("a text that talks about it is no report", () => {
  const text = JSON.stringify({ choices: [{ text: '"cached_tokens": 7' }] });
  assert.is(read(text, 9), undefined);
});

test("an answer without it, an empty one, and a number that was cut say nothing", () => {
  assert.is(read("", 1), undefined);
  assert.is(read('{"choices":[]}', 5), undefined);
  assert.is(read('{"usage":{"prompt_tokens_details":null}}', 5), undefined);
  assert.is(read('"cached_tokens":99999999999999', 5), undefined);
});

test("what is beyond the last 2 KiB is not kept", () => {
  assert.is(read(`{${usage(5)},"more":"${"x".repeat(3_000)}"}`, 64), undefined);
});

test("the chunks stay as they are", () => {
  const chunk = new TextEncoder().encode(`{${usage(5)}}`.padEnd(5_000));
  const copy = chunk.slice();
  new UsageReader().add(chunk);
  assert.equal(chunk, copy);
});

test.run();
