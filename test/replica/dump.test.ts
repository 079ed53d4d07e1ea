/** Our own dump format: written, read, cut off, damaged and forged. */

import { test } from "uvu";
import * as assert from "uvu/assert";
import { laneId } from "../../src/kv/lane_key.ts";
import { DumpBroken, DumpRefused, type LaneLine } from "../../src/replica/dump_format.ts";
import { type DumpSink, readDump } from "../../src/replica/dump_reader.ts";
import { dumpSlices, type DumpSource } from "../../src/replica/dump_writer.ts";
import type { LaneCut } from "../../src/replica/lane_port.ts";
import { runtime } from "../support/runtime.ts";
import { seeded } from "./support/sim_clock.ts";
import { keyOf, makeCut, Shelf } from "./support/shelf.ts";

const decoder = new TextDecoder();
const encoder = new TextEncoder();

async function write(store: Shelf, more: Partial<DumpSource> = {}): Promise<Uint8Array> {
  const slices = await Array.fromAsync(dumpSlices({ store, replica: "r1", nowMs: 0, ...more }));
  const all = new Uint8Array(slices.reduce((sum, slice) => sum + slice.length, 0));
  let at = 0;
  for (const slice of slices) {
    all.set(slice, at);
    at += slice.length;
  }
  return all;
}

interface Taken {
  readonly cuts: LaneCut[];
  readonly loads: unknown[];
  readonly error: unknown;
  readonly totals: unknown;
}

async function read(
  bytes: Uint8Array | AsyncIterable<Uint8Array>,
  more: Partial<DumpSink> & { maxLaneBlocks?: number } = {},
): Promise<Taken> {
  const cuts: LaneCut[] = [];
  const loads: unknown[] = [];
  const { maxLaneBlocks = 1_000_000, ...sink } = more;
  const chunks = bytes instanceof Uint8Array ? once(bytes) : bytes;
  try {
    const totals = await readDump(chunks, {
      lane: () => true,
      commit: (cut) => void cuts.push(cut),
      load: (load) => void loads.push(load),
      ...sink,
    }, { clock: runtime.clock, maxLaneBlocks });
    return { cuts, loads, error: undefined, totals };
  } catch (error) {
    return { cuts, loads, error, totals: undefined };
  }
}

async function* once(bytes: Uint8Array): AsyncGenerator<Uint8Array> {
  yield bytes;
}

async function* inPieces(bytes: Uint8Array, size: number): AsyncGenerator<Uint8Array> {
  for (let at = 0; at < bytes.length; at += size) yield bytes.slice(at, at + size);
}

function lines(bytes: Uint8Array): string[] {
  return decoder.decode(bytes).split("\n").slice(0, -1);
}

function joined(lines: readonly string[]): Uint8Array {
  return encoder.encode(lines.map((line) => `${line}\n`).join(""));
}

function sameCut(a: LaneCut | undefined, b: LaneCut, what: string): void {
  assert.ok(a !== undefined, what);
  assert.equal(a.key, b.key, what);
  assert.is(a.epoch, b.epoch, what);
  assert.is(a.cursor, b.cursor, what);
  assert.equal(a.decoderState, b.decoderState, what);
  assert.is(a.degraded, b.degraded, what);
  assert.is(a.blocks.count, b.blocks.count, what);
  for (const column of ["parents", "locals", "engines", "tiers", "copies"] as const) {
    assert.equal([...a.blocks[column]], [...b.blocks[column]], `${what}: ${column}`);
  }
}

const CUTS = [
  makeCut(keyOf("0"), 1000),
  makeCut(keyOf("1", { dpRank: 3 }), 65, { chain: 65, cursor: 2n ** 64n - 1n }),
  makeCut(keyOf("mixed"), 300, {
    chain: 7,
    tiers: (row) => 1 + (row % 15),
    copies: (row) => 1 + (row % 3),
    decoderState: {
      reader: {
        groups: [[0, true], [3, false]],
        namespaces: {
          salts: ["tenant \u{1f600}", `"${"\\".repeat(50_000)}\n`],
          blocks: BigUint64Array.from({ length: 5000 }, (_, at) => 2n ** 64n - 1n - BigInt(at)),
          of: Int32Array.from({ length: 5000 }, (_, at) => at % 4 - 2),
          counts: Uint16Array.from({ length: 5000 }, (_, at) => 1 + at % 3),
        },
      },
      digests: [["18446744073709551615", 123]],
    },
    degraded: "the replay ring starts at batch 7",
  }),
  makeCut(keyOf("empty"), 0, { cursor: 0n }),
];

test("every lane that is written is read again, bit for bit, whatever the chunks", async () => {
  const bytes = await write(new Shelf(CUTS));
  for (const size of [1, 13, 1000, 65_536]) {
    const { cuts, error } = await read(inPieces(bytes, size));
    assert.is(error, undefined);
    assert.is(cuts.length, CUTS.length);
    for (const [at, cut] of CUTS.entries()) sameCut(cuts[at], cut, `lane ${at}, pieces of ${size}`);
  }
});

test("random lanes survive the trip", async () => {
  const chance = seeded(5);
  for (let round = 0; round < 60; round += 1) {
    const count = Math.floor(chance() * 400);
    const cut = makeCut(keyOf(String(round)), count, {
      chain: 1 + Math.floor(chance() * 90),
      tiers: () => 1 + Math.floor(chance() * 15),
      copies: () => 1 + Math.floor(chance() * 65_535),
    });
    // Any earlier row may be a parent.
    for (let row = 1; row < count; row += 1) {
      if (chance() < 0.3) cut.blocks.parents[row] = Math.floor(chance() * (row + 1)) - 1;
    }
    const { cuts, error } = await read(await write(new Shelf([cut])));
    assert.is(error, undefined);
    sameCut(cuts[0], cut, `round ${round}`);
  }
});

test("kv 55: a model name with a colon, and other odd names, come through", async () => {
  for (const model of ["a:b:c", "org/model:7b", 'quote"\\', "模型", " "]) {
    const cut = makeCut(keyOf("w:1", { model, group: "g:h" }), 3);
    sameCut((await read(await write(new Shelf([cut])))).cuts[0], cut, model);
  }
});

test("kv 57: hashes and cursors above 2^53 come through bit for bit", async () => {
  const cut = makeCut(keyOf("0"), 2, { cursor: 13226331709069118873n });
  cut.blocks.engines.set([2n ** 64n - 1n, 2n ** 53n + 1n]);
  cut.blocks.locals.set([13226331709069118873n, 1n]);
  sameCut((await read(await write(new Shelf([cut])))).cuts[0], cut, "large numbers");
});

test("no number in a dump needs more than 53 bits", async () => {
  for (const line of lines(await write(new Shelf(CUTS)))) {
    for (const digits of line.replace(/"(?:[^"\\]|\\.)*"/g, '""').match(/\d+/g) ?? []) {
      assert.ok(Number.isSafeInteger(Number(digits)), line.slice(0, 200));
    }
  }
});

test("a run line has at most 64 blocks, and parents come before their children", async () => {
  for (const line of lines(await write(new Shelf(CUTS)))) {
    const value = JSON.parse(line) as { kind: string; count: number };
    if (value.kind === "run") assert.ok(value.count >= 1 && value.count <= 64);
  }
  const cut = makeCut(keyOf("0"), 3);
  cut.blocks.parents[1] = 2;
  assert.instance((await read(await write(new Shelf([cut])))).error, DumpBroken);
});

test("kv 43: cut off at every line boundary, only whole lanes were given on and the dump has failed", async () => {
  const all = lines(await write(new Shelf(CUTS)));
  const ends = all.map((line) => (JSON.parse(line) as { kind: string }).kind === "lane_end");
  for (let count = 0; count < all.length; count += 1) {
    const { cuts, error } = await read(joined(all.slice(0, count)));
    assert.instance(error, DumpBroken, `after ${count} lines`);
    assert.is(cuts.length, ends.slice(0, count).filter((end) => end).length);
    for (const [at, cut] of cuts.entries()) {
      sameCut(cut, CUTS[at] as LaneCut, `after ${count} lines`);
    }
  }
});

test("kv 43: cut off inside of lines, the lane that was open is not given on", async () => {
  const small = [
    makeCut(keyOf("0"), 70),
    makeCut(keyOf("1"), 3, {
      decoderState: { reader: { groups: [[1, true]] }, digests: [] },
    }),
  ];
  const bytes = await write(new Shelf(small));
  const first = decoder.decode(bytes).indexOf("lane_end");
  for (let length = 0; length < bytes.length; length += 1) {
    const { cuts, error } = await read(bytes.subarray(0, length));
    assert.instance(error, DumpBroken, `after ${length} bytes`);
    if (length < first) assert.is(cuts.length, 0);
    for (const [at, cut] of cuts.entries()) sameCut(cut, small[at] as LaneCut, `${length} bytes`);
  }
});

test("kv 44: totals in the trailer that are wrong fail the dump", async () => {
  const all = lines(await write(new Shelf(CUTS)));
  for (const [from, to] of [[`"lanes":4`, `"lanes":5`], [`"blocks":1365`, `"blocks":1366`]]) {
    const trailer = (all.at(-1) as string).replace(from as string, to as string);
    assert.is.not(trailer, all.at(-1));
    const { error, cuts } = await read(joined([...all.slice(0, -1), trailer]));
    assert.instance(error, DumpBroken);
    assert.is(cuts.length, 4, "whole lanes stay");
  }
});

test("a lane that lost, gained, repeated or swapped run lines is not given on", async () => {
  const all = lines(await write(new Shelf([makeCut(keyOf("0"), 300)])));
  const runs = all.map((line, at) => (line.startsWith('{"kind":"run"') ? at : -1)).filter((at) =>
    at >= 0
  );
  const [a, b] = runs as [number, number];
  const swapped = [...all];
  [swapped[a], swapped[b]] = [all[b] as string, all[a] as string];
  const cases = [
    all.filter((_, at) => at !== a),
    [...all.slice(0, a), all[a] as string, ...all.slice(a)],
    swapped,
  ];
  for (const one of cases) {
    const { cuts, error } = await read(joined(one));
    assert.instance(error, DumpBroken);
    assert.is(cuts.length, 0);
  }
});

test("a changed epoch, cursor or decoder state breaks the digest", async () => {
  const cut = makeCut(keyOf("0"), 10, {
    decoderState: {
      reader: {
        groups: [],
        namespaces: {
          salts: ["tenant-a"],
          blocks: BigUint64Array.of(1n),
          of: Int32Array.of(0),
        },
      },
      digests: [],
    },
  });
  const text = decoder.decode(await write(new Shelf([cut])));
  for (const [from, to] of [["epoch-1", "epoch-2"], [`"41"`, `"42"`], ["tenant-a", "tenant-b"]]) {
    const { cuts, error } = await read(encoder.encode(text.replace(from as string, to as string)));
    assert.instance(error, DumpBroken);
    assert.is(cuts.length, 0);
  }
});

test("a line after the trailer, a second header or a lane that comes twice fails the dump", async () => {
  const all = lines(await write(new Shelf([makeCut(keyOf("0"), 10)])));
  const header = all[0] as string;
  const lane = all.slice(1, -1);
  const cases = [
    [...all, header],
    [...all, `{"kind":"news"}`],
    [header, ...all],
    [header, ...lane, ...lane, all.at(-1) as string],
    all.slice(1),
  ];
  for (const one of cases) assert.instance((await read(joined(one))).error, DumpBroken);
});

test("a line may be spelled in any way that JSON allows", async () => {
  const respelled = lines(await write(new Shelf(CUTS))).map((line) => {
    // The lane line is part of the digest as it is sent; all others may be written anew.
    if (line.startsWith(`{"kind":"lane"`)) return line;
    const entries = Object.entries(JSON.parse(line) as object).reverse();
    return JSON.stringify(Object.fromEntries(entries), null, " ").replaceAll("\n", " ");
  });
  const { cuts, error } = await read(joined(respelled));
  assert.is(error, undefined);
  for (const [at, cut] of CUTS.entries()) sameCut(cuts[at], cut, `lane ${at}`);
});

test("a line of a kind that is not known is passed over", async () => {
  const all = lines(await write(new Shelf([makeCut(keyOf("0"), 10)])));
  const { error, cuts } = await read(
    joined([all[0] as string, `{"kind":"news","x":1}`, ...all.slice(1)]),
  );
  assert.is(error, undefined);
  assert.is(cuts.length, 1);
});

test("another version, or other hashes, are refused before anything is read", async () => {
  const text = decoder.decode(await write(new Shelf([makeCut(keyOf("0"), 10)])));
  for (const [from, to] of [[`"version":1`, `"version":2`], ["xxh3-64", "sha256"], ["1337", "0"]]) {
    const { error, cuts } = await read(encoder.encode(text.replace(from as string, to as string)));
    assert.instance(error, DumpRefused);
    assert.is(cuts.length, 0);
  }
});

test("lanes that are not wanted are passed over without being held", async () => {
  const asked: string[] = [];
  const { cuts, error } = await read(await write(new Shelf(CUTS)), {
    lane: (head: LaneLine) => {
      asked.push(head.worker);
      return head.worker === "1";
    },
  });
  assert.is(error, undefined);
  assert.equal(asked, ["0", "1", "mixed", "empty"]);
  assert.equal(cuts.map((cut) => cut.key.worker), ["1"]);
});

test("a lane that announces more blocks than allowed is not held", async () => {
  const { cuts, error } = await read(await write(new Shelf(CUTS)), { maxLaneBlocks: 500 });
  assert.is(error, undefined);
  assert.equal(cuts.map((cut) => cut.blocks.count), [65, 300, 0]);
});

test("announcing billions of blocks takes no memory", async () => {
  const all = lines(await write(new Shelf([makeCut(keyOf("0"), 64)])));
  const lane = (all[1] as string).replace(`"count":64`, `"count":2147483647`);
  const endless = async function* () {
    yield joined([all[0] as string, lane]);
    for (let at = 0; at < 100; at += 1) yield joined([all[2] as string]);
  };
  const { error } = await read(endless(), { maxLaneBlocks: 2 ** 31 });
  assert.instance(error, DumpBroken);
});

test("the reader waits for a lane to be put in before it reads on", async () => {
  let isBusy = false;
  const { error } = await read(await write(new Shelf(CUTS)), {
    commit: async () => {
      assert.is(isBusy, false);
      isBusy = true;
      await new Promise((resolve) => setTimeout(resolve, 1));
      isBusy = false;
    },
  });
  assert.is(error, undefined);
});

test("load lines come along, in order", async () => {
  const loads = [{ worker: "0", tokens: 5 }, ["x"], null];
  const taken = await read(await write(new Shelf(CUTS), { exportLoad: () => loads }));
  assert.equal(taken.loads, loads);
});

test("hints that are too large, or a provider that fails, cost the hints and not the dump", async () => {
  const exportLoad = function* () {
    yield { a: 1 };
    yield "x".repeat(200_000);
    yield { b: 2 };
    throw new Error("the router is not there");
  };
  const taken = await read(await write(new Shelf(CUTS), { exportLoad }));
  assert.is(taken.error, undefined);
  assert.equal(taken.loads, [{ a: 1 }, { b: 2 }]);
  assert.is(taken.cuts.length, CUTS.length);
});

test("kv 53: only lanes of the catalogue are written, and only when they can be gone on from", async () => {
  const store = new Shelf(CUTS);
  const slices = dumpSlices({ store, replica: "r", nowMs: 0 });
  await slices.next();
  // Closed while the dump goes on: left out, and the totals are still right.
  store.close(keyOf("mixed"));
  const rest: Uint8Array[] = [];
  for await (const slice of slices) rest.push(slice);
  const text = rest.map((slice) => decoder.decode(slice)).join("");
  assert.not.match(text, /"worker":"mixed"/);
  const held = new Shelf(CUTS);
  (held.lane(keyOf("0")) as { state: string }).state = "buffering";
  const { cuts } = await read(await write(held));
  assert.is(cuts.some((cut) => cut.key.worker === "0"), false);
});

test("a slice ends early when the turn is spent, and the dump is the same", async () => {
  const store = new Shelf([makeCut(keyOf("0"), 1000, { chain: 100 })]);
  let asked = 0;
  const sizes: number[] = [];
  const pieces: string[] = [];
  const source = { store, replica: "r1", nowMs: 0, mustRest: () => ++asked % 2 === 0 };
  for await (const slice of dumpSlices(source)) {
    sizes.push(slice.buffer.byteLength);
    pieces.push(decoder.decode(slice));
  }
  assert.is(asked, Math.ceil(1000 / 64));
  assert.ok(pieces.length > asked / 2);
  assert.ok(Math.max(...sizes) < 8192, "short slices do not keep large buffers");
  assert.is(pieces.join(""), decoder.decode(await write(store)));
});

test("a dump of many blocks comes in slices, none of which takes long", async () => {
  const store = new Shelf([makeCut(keyOf("0"), 200_000, { chain: 50_000 })]);
  let largest = 0;
  let slices = 0;
  for await (const slice of dumpSlices({ store, replica: "r", nowMs: 0 })) {
    slices += 1;
    largest = Math.max(largest, slice.length);
  }
  assert.ok(slices > 60);
  assert.ok(largest <= 80_000, `${largest} bytes`);
});

test("mistake 5: the producer holds one lane's columns at a time, and cuts it when its turn comes", async () => {
  const store = new Shelf([makeCut(keyOf("0"), 20_000), makeCut(keyOf("1"), 20_000)]);
  const cut: string[] = [];
  for (const lane of store.lanes()) {
    const original = lane.cutInSlices.bind(lane);
    lane.cutInSlices = () => {
      cut.push(lane.key.worker);
      return original();
    };
  }
  const slices = dumpSlices({ store, replica: "r", nowMs: 0 });
  await slices.next();
  assert.equal(cut, ["0"]);
  for await (const _ of slices);
  assert.equal(cut, ["0", "1"]);
});

test("fuzz: whatever is done to a dump, a lane is given on unchanged or not at all", async () => {
  const chance = seeded(99);
  const bytes = await write(new Shelf(CUTS.map((cut) => cut)), { exportLoad: () => [{ a: 1 }] });
  const byId = new Map(CUTS.map((cut) => [laneId(cut.key), cut]));
  let failed = 0;
  for (let round = 0; round < 800; round += 1) {
    let damaged = bytes.slice();
    const kind = chance();
    const at = Math.floor(chance() * bytes.length);
    if (kind < 0.4) damaged[at] = Math.floor(chance() * 256);
    else if (kind < 0.6) damaged[at] = (damaged[at] as number) ^ (1 << Math.floor(chance() * 8));
    else if (kind < 0.8) {
      const length = Math.floor(chance() * 200);
      damaged = new Uint8Array([...damaged.subarray(0, at), ...damaged.subarray(at + length)]);
    } else {
      const part = bytes.subarray(at, at + Math.floor(chance() * 300));
      damaged = new Uint8Array([...damaged.subarray(0, at), ...part, ...damaged.subarray(at)]);
    }
    const { cuts, error } = await read(inPieces(damaged, 4096));
    if (error !== undefined) {
      failed += 1;
      assert.ok(error instanceof DumpBroken || error instanceof DumpRefused, String(error));
    }
    for (const cut of cuts) {
      const original = byId.get(laneId(cut.key));
      // The name itself may be hit; the digest covers it, so the lane cannot come under another one.
      assert.ok(original !== undefined, `round ${round}: a lane that never was`);
      sameCut(cut, original, `round ${round}`);
    }
  }
  assert.ok(failed > 600);
});

test("fuzz: lines of any JSON, in any order, never do more than fail the dump", async () => {
  const chance = seeded(7);
  const all = lines(await write(new Shelf(CUTS)));
  const values = [null, 0, -1, 1e308, 2 ** 53, "", "x", [], {}, true, "18446744073709551616"];
  const pick = <T>(from: readonly T[]): T => from[Math.floor(chance() * from.length)] as T;
  for (let round = 0; round < 1500; round += 1) {
    const mix = Array.from({ length: 1 + Math.floor(chance() * 12) }, () => {
      const line = JSON.parse(pick(all)) as Record<string, unknown>;
      if (chance() < 0.5) line[pick(Object.keys(line))] = pick(values);
      return JSON.stringify(line);
    });
    const { error } = await read(joined([all[0] as string, ...mix]));
    if (error !== undefined) {
      assert.ok(error instanceof DumpBroken || error instanceof DumpRefused, String(error));
    }
  }
});

test.run();
