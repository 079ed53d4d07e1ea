/**
 * What a peer may send us, and where each of it ends: every case has a bound, leaves nothing half
 * done, and the next peer is asked.
 */

import { test } from "uvu";
import * as assert from "uvu/assert";
import { memoryUsage } from "node:process";
import { fetchDump } from "../../src/replica/fetch_dump.ts";
import type { LaneCut } from "../../src/replica/lane_port.ts";
import { DUMP_CONTENT_TYPE } from "../../src/replica/dump_format.ts";
import { readDump } from "../../src/replica/dump_reader.ts";
import { readDynamoDump } from "../../src/replica/dynamo_reader.ts";
import { parseJsonU64 } from "../../src/streams/json_u64.ts";
import { parseU64Json } from "../../src/kv/u64_json.ts";
import { runtime } from "../support/runtime.ts";
import { type Answer, dumpOf, Loop, ndjson } from "./support/loop.ts";
import { emptyCut, keyOf, makeCut } from "./support/shelf.ts";

const CUT = makeCut(keyOf("0"), 100);
const OTHER = makeCut(keyOf("1"), 100);
const BOTH = [CUT, OTHER];
const encoder = new TextEncoder();

async function linesOf(cuts = BOTH): Promise<string[]> {
  const text = await (await dumpOf(cuts)(new Request("http://x/dump"))).text();
  return text.trimEnd().split("\n");
}

const [HEADER = "", LANE = "", RUN = ""] = await linesOf();

function body(...lines: string[]): Answer {
  return () => ndjson(encoder.encode(lines.map((line) => `${line}\n`).join("")));
}

/** `first`, then `next` as often as anybody reads. Counts what was taken. */
function endless(first: string, next: string | Uint8Array<ArrayBuffer>) {
  const piece = typeof next === "string" ? encoder.encode(next) : next;
  const source = {
    bytes: 0,
    isCancelled: false,
    answer: (() =>
      ndjson(
        new ReadableStream({
          start: (controller) => controller.enqueue(encoder.encode(first)),
          pull(controller) {
            source.bytes += piece.length;
            controller.enqueue(piece);
          },
          cancel() {
            source.isCancelled = true;
          },
        }, { highWaterMark: 0 }),
      )) as Answer,
  };
  return source;
}

/** The bad peer alone first, then a good one too: how the bad one's attempt ended. */
async function afterBad(bad: Answer, config: Record<string, unknown> = {}) {
  const loop = new Loop({ lanes: BOTH.map((cut) => emptyCut(cut.key)), config });
  loop.members("bad");
  loop.answer("bad", bad);
  loop.answer("good", dumpOf(BOTH));
  loop.start();
  for (let turn = 0; turn < 200 && loop.recovery.status().attempts.length === 0; turn += 1) {
    await loop.pass(100);
  }
  const [attempt] = loop.recovery.status().attempts;
  const committed = loop.store.lanes().map((lane) => lane.commits.length);
  loop.members("bad", "good");
  assert.is(await loop.run(), "recovered");
  assert.equal(loop.store.lanes().map((lane) => lane.blocks), [100, 100]);
  return { attempt, committed, loop };
}

async function fails(bad: Answer, reason: RegExp, committed = [0, 0]): Promise<void> {
  const outcome = await afterBad(bad);
  assert.is(outcome.attempt?.outcome, "failed");
  assert.match(outcome.attempt?.reason ?? "", reason);
  assert.equal(outcome.committed, committed);
}

const changed = (line: string, fields: Record<string, unknown>): string =>
  JSON.stringify({ ...JSON.parse(line), ...fields });
/** As `changed`, for numbers that only text can say. */
const spelled = (line: string, field: string, text: string): string =>
  changed(line, { [field]: "@@" }).replace('"@@"', text);

test("a line without an end", async () => {
  const source = endless(`${HEADER}\n{"kind":"`, "x".repeat(65_536));
  await fails(source.answer, /a line has over 131072 bytes/);
  assert.ok(source.bytes <= 4 * 65_536);
  assert.ok(source.isCancelled, "nobody goes on reading");
});

test("numbers that are too large, negative, broken or no numbers", async () => {
  const counts = [
    "-1",
    "0.5",
    "1e400",
    "2147483648",
    "99999999999999999999",
    '"100"',
    "null",
    "[]",
  ];
  for (const text of counts) {
    await fails(body(HEADER, spelled(LANE, "count", text)), /bad or missing "count"/);
  }
  const cursors = [
    '"18446744073709551616"',
    '"-1"',
    '"1e3"',
    '""',
    '"007"',
    "41",
    `"${"9".repeat(900)}"`,
  ];
  for (const text of cursors) {
    await fails(body(HEADER, spelled(LANE, "cursor", text)), /bad or missing "cursor"/);
  }
  for (const text of ["4294967296", "-1"]) {
    await fails(body(HEADER, spelled(LANE, "dpRank", text)), /bad or missing "dpRank"/);
  }
  for (const text of ["65", "1e9", "-5"]) {
    await fails(body(HEADER, LANE, spelled(RUN, "count", text)), /bad or missing "count"/);
  }
  await fails(body(spelled(HEADER, "blocks", "1e300")), /bad or missing "blocks"/);
});

test("millions of digits are not turned into a number", () => {
  const text = `{"block_hash":${"9".repeat(8_000_000)}}`;
  for (const parse of [parseJsonU64, parseU64Json]) {
    const { block_hash } = parse(text) as { block_hash: number };
    assert.is(block_hash, Infinity);
  }
  assert.equal(parseJsonU64("18446744073709551615"), 2n ** 64n - 1n);
});

test("JSON that is nested as deep as a line is long", async () => {
  const deep = "[".repeat(60_000) + "]".repeat(60_000);
  await fails(body(HEADER, deep), /not a JSON object/);
  await fails(body(HEADER, `{"kind":"lane","model":${deep}}`), /bad or missing "model"/);
  await fails(body(HEADER, "[".repeat(100_000)), /a line is not JSON/);
  // Where anything may stand it is carried along, and harms nobody.
  const [header = "", ...lines] = await linesOf();
  const loads: unknown[] = [];
  const loop = new Loop({
    lanes: BOTH.map((cut) => emptyCut(cut.key)),
    importLoad: (records) => loads.push(...records),
  });
  loop.members("a");
  const hint = `{"kind":"load","load":${deep.slice(0, 60_000)}${deep.slice(-60_000)}}`;
  loop.answer("a", body(header, ...lines.slice(0, -1), hint, lines.at(-1) ?? ""));
  loop.start();
  assert.is(await loop.run(), "recovered");
  assert.is(loads.length, 1);
});

test("Dynamo's shape, nested too deep, with an event without an end, with too many blocks", async () => {
  const sink = { lane: () => true, commit: () => {} };
  const options = { clock: runtime.clock, maxLaneBlocks: 3, catalogue: [keyOf("0"), keyOf("1")] };
  const read = (...chunks: string[]) =>
    readDynamoDump(ReadableStream.from(chunks.map((text) => encoder.encode(text))), sink, options);
  const failure = (reading: Promise<unknown>) =>
    reading.then(() => "none", (error: Error) => `${error.name}: ${error.message}`);
  const start = '{"model:default":{"block_size":16,"events":[';
  assert.match(
    await failure(read(start, `{"event":${"[".repeat(100_000)}${"]".repeat(100_000)}}`)),
    /DumpBroken: an event is not JSON: too deep/,
  );
  const megabyte = "x".repeat(1_000_000);
  assert.match(
    await failure(read(start, '{"event":"', ...Array.from({ length: 20 }, () => megabyte))),
    /DumpBroken: an item is too long/,
  );
  const event = (worker: number, ...hashes: number[]) =>
    JSON.stringify({
      worker_id: worker,
      event: {
        event_id: 0,
        data: {
          stored: {
            parent_hash: null,
            blocks: hashes.map((hash) => ({ block_hash: hash, tokens_hash: hash })),
          },
        },
        dp_rank: 0,
      },
    });
  // All lanes of a partition are held until it ends, so the bound is that of all of them.
  assert.match(
    await failure(read(start, event(0, 1, 2), ",", event(1, 3, 4))),
    /DumpBroken: a partition has too many blocks/,
  );
  assert.is(await failure(read(start, event(0, 1, 2), ",", event(1, 3), "]}}")), "none");
});

/** What comes of one dump that is packed; in real time, since unpacking happens in threads. */
async function unpacked(bytes: Uint8Array<ArrayBuffer>) {
  const taken: LaneCut[] = [];
  const outcome = await fetchDump({
    runtime: {
      clock: runtime.clock,
      http: {
        serve: () => Promise.reject(new Error("not here")),
        fetch: () =>
          Promise.resolve(
            new Response(bytes, {
              headers: { "content-type": DUMP_CONTENT_TYPE, "content-encoding": "gzip" },
            }),
          ),
      },
    },
    url: "http://bad:8082",
    replica: "joiner",
    gzip: true,
    sink: { lane: () => true, commit: (cut) => void taken.push(cut) },
    catalogue: () => [],
    maxLaneBlocks: 1000,
    idleTimeoutMs: 30_000,
    signal: new AbortController().signal,
  });
  return { outcome, taken };
}

function gzipped(texts: Iterable<string>): Promise<Uint8Array<ArrayBuffer>> {
  const pieces = ReadableStream.from(
    (function* () {
      for (const text of texts) yield encoder.encode(text);
    })(),
  ) as ReadableStream<Uint8Array<ArrayBuffer>>;
  return new Response(pieces.pipeThrough(new CompressionStream("gzip"))).bytes();
}

test("few packed bytes that stand for very many", async () => {
  const bombs: [string, RegExp][] = [
    [" ", /over 131072 bytes|over 100 times its size/],
    ["\n", /over 100 times its size|not JSON/],
    ['{"kind":"unknown"}\n', /over 100 times its size/],
    [
      `${changed(LANE, { count: 0, worker: "w" })}\n{"kind":"lane_end","count":0,"digest":""}\n`,
      /./,
    ],
  ];
  for (const [text, reason] of bombs) {
    const piece = text.repeat(Math.ceil(1_000_000 / text.length));
    const bytes = await gzipped([`${HEADER}\n`, ...Array.from({ length: 200 }, () => piece)]);
    assert.ok(bytes.length < 2_500_000, `${bytes.length} bytes for 200 MB`);
    const before = memoryUsage().rss;
    const { outcome, taken } = await unpacked(bytes);
    assert.is(outcome.kind, "failed");
    assert.match("reason" in outcome ? outcome.reason : "", reason);
    assert.ok(memoryUsage().rss - before < 100_000_000, "never all of it at once");
    assert.equal(taken, []);
  }
});

test("a dump is far from that bound; gzip that is none, or that ends in the middle, fails", async () => {
  const many = Array.from({ length: 1000 }, (_, at) => makeCut(keyOf(`worker-${at}`), 0));
  const bytes = await gzipped((await linesOf(many)).map((line) => `${line}\n`));
  const { outcome, taken } = await unpacked(bytes);
  assert.is(outcome.kind, "complete");
  assert.is(taken.length, 1000);
  for (const torn of [encoder.encode("no gzip at all"), bytes.slice(0, 1000), bytes.slice(0, 5)]) {
    const { outcome } = await unpacked(torn);
    assert.is(outcome.kind, "failed");
    const reason = "reason" in outcome ? outcome.reason : "";
    assert.is(reason, "DumpBroken: its gzip data is damaged or ends early");
  }
});

/** One byte a second, for ever. */
function drip(loop: () => Loop, text: string): ReadableStream<Uint8Array<ArrayBuffer>> {
  const bytes = encoder.encode(text);
  let at = 0;
  return new ReadableStream({
    async pull(controller) {
      await new Promise<void>((resolve) => loop().clock.after(1000, resolve));
      controller.enqueue(bytes.subarray(at % bytes.length, at % bytes.length + 1));
      at += 1;
    },
  }, { highWaterMark: 0 });
}

test("slow loris: no head, a head and no body, a body or an error that drips", async () => {
  for (const what of ["head", "body", "drip", "refusal", "silent refusal"]) {
    const loop = new Loop({ config: { idleTimeoutMs: 5000 }, seed: 3 });
    loop.members("slow");
    const never = new Promise<never>(() => {});
    const silent = new ReadableStream({ pull: () => never });
    loop.answer("slow", () => {
      if (what === "head") return never;
      if (what === "body") return ndjson(silent);
      if (what === "drip") return ndjson(drip(() => loop, HEADER));
      const body = what === "refusal" ? drip(() => loop, "why not") : silent;
      return new Response(body, { status: 500 });
    });
    loop.answer("good", dumpOf([CUT]));
    loop.start();
    await loop.pass(100);
    loop.members("slow", "good");
    assert.is(await loop.run(), "recovered", what);
    assert.ok(loop.clock.monotonic() < 12_000, `${what}: ${loop.clock.monotonic()} ms`);
    assert.is(loop.recovery.status().attempts[0]?.outcome, "failed", what);
  }
});

test("an error whose text has no end is read no further than its beginning", async () => {
  const source = endless("", "x".repeat(1024));
  const { attempt } = await afterBad((request) =>
    new Response((source.answer(request) as Response).body, { status: 500 })
  );
  assert.match(attempt?.reason ?? "", /^status 500: x{200}$/);
  assert.ok(source.bytes <= 8192);
  assert.ok(source.isCancelled);
});

test("a lane whose digest does not match, with the lanes before it kept", async () => {
  const lines = await linesOf();
  const first = lines.findIndex((line) => line.includes('"lane_end"'));
  const wrong = lines.with(first, changed(lines[first] ?? "", { digest: "0000000000000000" }));
  await fails(body(...wrong), /digest does not match/);
  const last = lines.findLastIndex((line) => line.includes('"lane_end"'));
  for (const digest of ["", "0", "x".repeat(1000)]) {
    const torn = lines.with(last, changed(lines[last] ?? "", { digest }));
    await fails(body(...torn), /digest does not match/, [1, 0]);
  }
});

test("a lane that comes twice, in one dump", async () => {
  const lines = await linesOf();
  const end = lines.findIndex((line) => line.includes('"lane_end"'));
  const lane = lines.slice(1, end + 1);
  await fails(body(HEADER, ...lane, ...lane), /a lane comes twice/, [1, 0]);
});

test("lanes outside the catalogue, without an end: others have their turn, and none is kept", async () => {
  const stranger = (await linesOf([makeCut(keyOf("stranger"), 64)])).slice(1, -1)
    .map((line) => `${line}\n`).join("");
  const loop = new Loop({
    lanes: [emptyCut(CUT.key)],
    config: { recoveryBudgetMs: 20_000, idleTimeoutMs: 5000 },
  });
  loop.members("bad");
  let sent = 0;
  loop.answer("bad", () =>
    ndjson(
      new ReadableStream({
        start: (controller) => controller.enqueue(encoder.encode(`${HEADER}\n`)),
        async pull(controller) {
          sent += 1;
          if (sent % 10 === 0) await new Promise<void>((resolve) => loop.clock.after(100, resolve));
          controller.enqueue(encoder.encode(stranger.repeat(50)));
        },
      }, { highWaterMark: 0 }),
    ));
  loop.answer("good", dumpOf([CUT]));
  loop.start();
  await loop.pass(1000);
  loop.members("bad", "good");
  assert.is(await loop.run(), "recovered");
  assert.ok(loop.clock.monotonic() < 12_000);
  assert.match(loop.recovery.status().attempts[0]?.reason ?? "", /no lane in 10000 ms/);
  assert.equal(loop.store.lanes().map((lane) => lane.key.worker), ["0"]);
});

test("hints without an end: some are taken, and the memory for them has a bound", async () => {
  const hint = `{"kind":"load","load":"${"x".repeat(60_000)}"}\n`;
  let taken = 0;
  let left = 1000;
  const chunks = (async function* () {
    yield encoder.encode(`${HEADER}\n`);
    for (; left > 0; left -= 1) yield encoder.encode(hint);
    yield encoder.encode('{"kind":"trailer","lanes":0,"blocks":0}\n');
  })();
  await readDump(chunks, {
    lane: () => false,
    commit: () => {},
    load: (load) => taken += String(load).length,
  }, { clock: runtime.clock, maxLaneBlocks: 1 });
  assert.ok(taken > 4_000_000 && taken <= 8 * 1024 * 1024);
});

test.run();
