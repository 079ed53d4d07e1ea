import { test } from "uvu";
import * as assert from "uvu/assert";
import { byteLines, LineCut, LineTooLong } from "../../src/streams/byte_lines.ts";
import { NotJson, readNdjson, writeNdjson } from "../../src/streams/ndjson.ts";

const encoder = new TextEncoder();
const decoder = new TextDecoder();

async function* pieces(text: string, size: number): AsyncGenerator<Uint8Array> {
  const bytes = encoder.encode(text);
  // One buffer used again and again: what a reader keeps it has to copy.
  const buffer = new Uint8Array(size);
  for (let at = 0; at < bytes.length; at += size) {
    const part = bytes.subarray(at, at + size);
    buffer.set(part);
    yield buffer.subarray(0, part.length);
  }
}

async function lines(
  text: string,
  size: number,
  more: { maxLineBytes?: number; unendedLine?: "accept" | "refuse" } = {},
): Promise<string[]> {
  const found: string[] = [];
  for await (const batch of byteLines(pieces(text, size), { maxLineBytes: 100, ...more })) {
    for (const line of batch) found.push(decoder.decode(line));
  }
  return found;
}

async function failure(work: Promise<unknown>): Promise<unknown> {
  try {
    await work;
  } catch (error) {
    return error;
  }
  return undefined;
}

test("lines are the same whatever the size of the chunks", async () => {
  const text = "one\n\nthrée\nfour";
  for (let size = 1; size <= 20; size += 1) {
    assert.equal(await lines(text, size), ["one", "", "thrée", "four"], `chunks of ${size}`);
  }
});

test("a line over the limit ends the reading before it is buffered", async () => {
  for (const size of [1, 7, 300]) {
    const error = await failure(lines(`ok\n${"x".repeat(101)}\n`, size));
    assert.instance(error, LineTooLong);
  }
  assert.equal(await lines("x".repeat(100) + "\n", 7), ["x".repeat(100)]);
});

test("an endless line without a line feed is given up at the limit", async () => {
  let sent = 0;
  async function* endless(): AsyncGenerator<Uint8Array> {
    for (;;) {
      sent += 10;
      yield new Uint8Array(10).fill(120);
    }
  }
  const read = async () => {
    for await (const _ of byteLines(endless(), { maxLineBytes: 1000 }));
  };
  assert.instance(await failure(read()), LineTooLong);
  assert.is(sent, 1010);
});

test("a last line without its line feed is accepted, or is a cut, as one asks", async () => {
  assert.equal(await lines("a\nb", 2), ["a", "b"]);
  assert.equal(await lines("a\nb\n", 2, { unendedLine: "refuse" }), ["a", "b"]);
  assert.instance(await failure(lines("a\nb", 2, { unendedLine: "refuse" })), LineCut);
});

test("NDJSON goes out and comes in again", async () => {
  const records = [{ a: 1 }, ["x\ny"], null, "z"];
  const found: unknown[] = [];
  for await (const batch of readNdjson(writeNdjson(records), { maxLineBytes: 100 })) {
    found.push(...batch);
  }
  assert.equal(found, records);
});

test("a line that is not JSON is told by its number", async () => {
  const read = async () => {
    for await (const _ of readNdjson(pieces('{"a":1}\n\n{oops\n', 4), { maxLineBytes: 100 }));
  };
  const error = await failure(read());
  assert.instance(error, NotJson);
  assert.is((error as NotJson).line, 3);
});

test.run();
