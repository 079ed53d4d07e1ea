/** docs/dump-format.md: its example is what is written, and what it says can be read without us. */

import { readFileSync } from "node:fs";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { printReport, verifyDump } from "../../src/replica/verify_dump.ts";
import { runtime } from "../support/runtime.ts";
import { EXAMPLE_CUTS, exampleDump } from "./support/example_dump.ts";

const page = readFileSync(new URL("../../docs/dump-format.md", import.meta.url), "utf8");
const example = /```ndjson\n([^`]+)```/.exec(page)?.[1] ?? "";

const stream = (text: string | Uint8Array): ReadableStream<Uint8Array> =>
  ReadableStream.from([typeof text === "string" ? new TextEncoder().encode(text) : text]);

test("the example is what is written for the lanes that it describes", async () => {
  assert.fixture(example, await exampleDump());
});

test("the example verifies, and is described as the page does", async () => {
  const report = await verifyDump(stream(example), runtime);
  assert.is(report.error, undefined);
  assert.equal(
    report.lanes.map((
      { worker, dpRank, blocks, cursor, degraded },
    ) => [worker, dpRank, blocks, cursor, degraded]),
    [
      ["0", 0, 3, "13226331709069118873", null],
      ["pod-a", 1, 4, "7", "the replay ring starts at batch 5"],
    ],
  );
  assert.is(report.loads, 1);
});

test("a reader made from the page alone finds the same blocks and digests", () => {
  interface Line {
    readonly kind: string;
    readonly [field: string]: unknown;
  }
  const lines = example.trimEnd().split("\n");
  let lane = -1;
  let rows: string[] = [];
  let hashed: number[] = [];
  let head: Line | undefined;
  for (const text of lines) {
    const line = JSON.parse(text) as Line;
    if (line.kind === "lane") {
      lane += 1;
      rows = [];
      hashed = padded(text);
      head = line;
    } else if (line.kind === "decoder") {
      hashed.push(...padded(String(line.text)));
    } else if (line.kind === "run") {
      const column = (name: string): Uint8Array | undefined =>
        line[name] === undefined
          ? undefined
          : Uint8Array.from(atob(String(line[name])), (letter) => letter.charCodeAt(0));
      for (let row = 0; row < Number(line.count); row += 1) {
        const bytes = new Uint8Array(24);
        const view = new DataView(bytes.buffer);
        bytes.set((column("engines") as Uint8Array).subarray(row * 8, row * 8 + 8), 0);
        bytes.set((column("locals") as Uint8Array).subarray(row * 8, row * 8 + 8), 8);
        const parents = column("parents");
        if (parents === undefined) view.setInt32(16, row - 1, true);
        else bytes.set(parents.subarray(row * 4, row * 4 + 4), 16);
        view.setUint16(20, column("tiers")?.[row] ?? Number(head?.tier), true);
        const copies = column("copies");
        view.setUint16(22, copies === undefined ? 1 : (copies[row * 2] as number), true);
        rows.push([
          view.getBigUint64(0, true),
          view.getBigUint64(8, true),
          view.getInt32(16, true),
          view.getUint16(20, true),
          view.getUint16(22, true),
        ].join(" "));
        hashed.push(...bytes);
      }
    } else if (line.kind === "lane_end") {
      assert.is(line.digest, murmur(hashed, 0) + murmur(hashed, 1));
      const blocks = EXAMPLE_CUTS[lane]?.blocks;
      const wanted = Array.from({ length: blocks?.count ?? 0 }, (_, row) =>
        [
          blocks?.engines[row],
          blocks?.locals[row],
          blocks?.parents[row],
          blocks?.tiers[row],
          blocks?.copies[row],
        ].join(" "));
      assert.equal(rows, wanted);
    }
  }
  assert.is(lane, 1);
});

/** UTF-8 bytes, filled up with zeros to a multiple of 4. */
function padded(text: string): number[] {
  const bytes = [...new TextEncoder().encode(text)];
  while (bytes.length % 4 !== 0) bytes.push(0);
  return bytes;
}

/** MurmurHash3_x86_32 in plain 64-bit arithmetic. */
function murmur(bytes: readonly number[], seed: number): string {
  const mask = 0xffffffffn;
  const rotate = (x: bigint, by: bigint): bigint => ((x << by) | (x >> (32n - by))) & mask;
  let h = BigInt(seed);
  for (let at = 0; at < bytes.length; at += 4) {
    let k = 0n;
    for (let byte = 3; byte >= 0; byte -= 1) k = (k << 8n) | BigInt(bytes[at + byte] as number);
    k = (rotate((k * 0xcc9e2d51n) & mask, 15n) * 0x1b873593n) & mask;
    h = (rotate(h ^ k, 13n) * 5n + 0xe6546b64n) & mask;
  }
  h ^= BigInt(bytes.length);
  h = ((h ^ (h >> 16n)) * 0x85ebca6bn) & mask;
  h = ((h ^ (h >> 13n)) * 0xc2b2ae35n) & mask;
  return (h ^ (h >> 16n)).toString(16).padStart(8, "0");
}

test("the digest is MurmurHash3 as others compute it", () => {
  // Values that are published with the algorithm's test vectors.
  assert.is(murmur([0x21, 0x43, 0x65, 0x87], 0), "f55b516b");
  assert.is(murmur([], 1), "514e28b7");
});

test("verifying tells a cut dump, a packed one, one of Dynamo's, and garbage apart", async () => {
  const cut = await verifyDump(stream(example.slice(0, -20)), runtime);
  assert.match(cut.error ?? "", /DumpBroken/);
  assert.is(cut.lanes.length, 2);
  assert.match(printReport(cut).join("\n"), /NOT WHOLE after 2 lanes, 7 blocks/);
  const gzip = new CompressionStream("gzip") as TransformStream<Uint8Array, Uint8Array>;
  const packed = await verifyDump(stream(example).pipeThrough(gzip), runtime);
  assert.is(packed.error, undefined);
  assert.is(packed.blocks, 7);
  const event = `{"worker_id":5,"event":{"event_id":0,"dp_rank":1,"data":{"stored":` +
    `{"parent_hash":null,"blocks":[{"block_hash":1,"tokens_hash":2}]}}}}`;
  const dynamo = await verifyDump(
    stream(`{"a:b:c":{"block_size":16,"events":[${event}]}}`),
    runtime,
  );
  assert.is(dynamo.error, undefined);
  assert.is(dynamo.format, "dynamo");
  assert.equal(
    dynamo.lanes.map((
      { model, group, worker, dpRank, blocks },
    ) => [model, group, worker, dpRank, blocks]),
    [["a:b", "c", "5", 1, 1]],
  );
  for (const garbage of ["", "<html>", "{", "\u0000\u0001", "null"]) {
    assert.ok((await verifyDump(stream(garbage), runtime)).error, JSON.stringify(garbage));
  }
});

test.run();
