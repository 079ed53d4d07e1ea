/** The stand-in for @std/streams does what the original's documentation says. */

import {
  LimitedBytesTransformStream,
  mergeReadableStreams,
  TextLineStream,
  toArrayBuffer,
  toJson,
  toText,
} from "@std/streams";
import { test } from "uvu";
import * as assert from "uvu/assert";

async function lines(chunks: string[], options?: { allowCR?: boolean }): Promise<string[]> {
  const found: string[] = [];
  const stream = ReadableStream.from(chunks).pipeThrough(new TextLineStream(options));
  for await (const line of stream) found.push(line);
  return found;
}

test("TextLineStream cuts at LF and CRLF wherever the chunks end", async () => {
  const text = "a\r\nbc\n\nd\re\r\n";
  for (let size = 1; size <= text.length; size += 1) {
    const chunks = text.match(new RegExp(`[^]{1,${size}}`, "g")) as string[];
    assert.equal(await lines(chunks), ["a", "bc", "", "d\re"], `chunks of ${size}`);
  }
});

test("TextLineStream gives a last line without its end, and none for an empty rest", async () => {
  assert.equal(await lines(["a\nb"]), ["a", "b"]);
  assert.equal(await lines(["a\n"]), ["a"]);
  assert.equal(await lines([]), []);
});

test("TextLineStream ends lines at a lone CR when asked", async () => {
  assert.equal(await lines(["a\rb\r", "\nc\r"], { allowCR: true }), ["a", "b", "c"]);
});

test("LimitedBytesTransformStream lets whole chunks through up to the limit, then ends", async () => {
  const bytes = (length: number) => new Uint8Array(length);
  const limited = (error: boolean) =>
    ReadableStream.from([bytes(3), bytes(2), bytes(1)])
      .pipeThrough(new LimitedBytesTransformStream(5, { error }));
  assert.is((await toArrayBuffer(limited(false))).byteLength, 5);
  let thrown: unknown;
  await toArrayBuffer(limited(true)).catch((error: unknown) => (thrown = error));
  assert.instance(thrown, RangeError);
});

test("mergeReadableStreams gives the chunks of all, and fails when one fails", async () => {
  const merged = mergeReadableStreams(ReadableStream.from([1, 2]), ReadableStream.from([10]));
  const found: number[] = [];
  for await (const value of merged) found.push(value);
  assert.equal(found.sort((a, b) => a - b), [1, 2, 10]);
  const broken = new ReadableStream<number>({ start: (c) => c.error(new Error("broken")) });
  let message = "";
  const reader = mergeReadableStreams(new ReadableStream<number>(), broken).getReader();
  await reader.read().catch((error: Error) => (message = error.message));
  assert.is(message, "broken");
});

test("cancelling a merged stream cancels its sources", async () => {
  const cancelled: string[] = [];
  const source = (name: string) =>
    new ReadableStream<string>({ cancel: () => void cancelled.push(name) });
  await mergeReadableStreams(source("a"), source("b")).cancel();
  assert.equal(cancelled, ["a", "b"]);
});

test("toText joins strings and decodes bytes that are cut inside a letter", async () => {
  const bytes = new TextEncoder().encode("grün");
  assert.is(await toText(ReadableStream.from([bytes.subarray(0, 3), bytes.subarray(3)])), "grün");
  assert.is(await toText(ReadableStream.from(["a", "b"])), "ab");
  assert.equal(await toJson(ReadableStream.from(['{"a":', "1}"])), { a: 1 });
});

test.run();
