import { test } from "uvu";
import * as assert from "uvu/assert";
import { appendFile, mkdtemp, readFile, rm, stat, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { EventJournal } from "../../src/observe/events.ts";
import { createLog, silentLog } from "../../src/observe/log.ts";
import { runtime } from "../support/runtime.ts";

const folders: string[] = [];
async function newFolder(): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), "baton-events-"));
  folders.push(folder);
  return folder;
}
test.after(async () => {
  for (const folder of folders) await rm(folder, { recursive: true });
});

const open = (folder: string, more: { keep?: number; maxFileBytes?: number } = {}) =>
  EventJournal.open({ runtime, log: silentLog, folder, ...more });

test("events are numbered from 1 and given back from any number on", () => {
  const journal = EventJournal.inMemory({ runtime, log: silentLog });
  assert.is(journal.lastId, 0);
  assert.is(journal.oldestId, undefined);
  for (const name of ["a", "b", "c"]) journal.emit("swap", { name });
  assert.equal(journal.since(0).map((event) => event.id), [1, 2, 3]);
  assert.equal(journal.since(2).map((event) => event.name), ["c"]);
  assert.equal(journal.since(3), []);
  assert.equal(journal.since(99), []);
});

test("memory is bounded: the oldest events go", () => {
  const journal = EventJournal.inMemory({ runtime, log: silentLog, keep: 10 });
  for (let index = 0; index < 1000; index += 1) journal.emit("tick");
  assert.is(journal.since(0).length, 10);
  assert.is(journal.oldestId, 991);
  assert.is(journal.lastId, 1000);
});

test("events hold plain JSON: u64 as text, errors as their message, and cannot be changed", () => {
  const journal = EventJournal.inMemory({ runtime, log: silentLog });
  const event = journal.emit("x", { seq: 18446744073709551615n, error: new Error("no"), id: 77 });
  assert.is(event.seq, "18446744073709551615");
  assert.is(event.error, "no");
  assert.is(event.id, 1, "an event cannot choose its number");
  assert.throws(() => {
    (event as Record<string, unknown>).kind = "y";
  });
});

test("subscribers see each event once, and one that throws harms nobody", () => {
  const lines: string[] = [];
  const log = createLog({ write: (line) => lines.push(line), now: () => 0 });
  const journal = EventJournal.inMemory({ runtime, log });
  const seen: number[] = [];
  journal.subscribe(() => {
    throw new Error("bad listener");
  });
  const unsubscribe = journal.subscribe((event) => seen.push(event.id));
  journal.emit("a");
  journal.emit("b");
  unsubscribe();
  journal.emit("c");
  assert.equal(seen, [1, 2]);
  assert.is(lines.length, 3);
});

test("a restart goes on counting and still has what was there", async () => {
  const folder = await newFolder();
  const first = await open(folder);
  first.emit("a", { n: 1 });
  first.emit("b");
  await first.close();
  const second = await open(folder);
  assert.equal(second.since(0).map((event) => event.kind), ["a", "b", "journal_closed"]);
  assert.is(second.emit("c").id, 4);
  await second.close();
});

test("after a crash no number is given twice, and a torn last line is skipped", async () => {
  const folder = await newFolder();
  const first = await open(folder);
  first.emit("a");
  await first.flushed();
  await appendFile(join(folder, "events.ndjson"), '{"id":2,"ts":"2026-01-01T00:0');
  const second = await open(folder);
  const next = second.emit("b");
  assert.ok(next.id > 2, `numbered ${next.id}`);
  await second.close();
  const third = await open(folder);
  assert.equal(third.since(0).map((event) => event.kind), ["a", "b", "journal_closed"]);
  await third.close();
  await first.close();
});

test("a file of anything else does not stop the start", async () => {
  const folder = await newFolder();
  await writeFile(
    join(folder, "events.ndjson"),
    Buffer.concat([
      Buffer.from([0xff, 0xfe, 0, 10]),
      Buffer.from('null\n[]\n{"id":"1"}\n{"id":3,"ts":"x","kind":"kept"}\n'),
      Buffer.from('{"id":2,"ts":"x","kind":"out of order"}\n'),
    ]),
  );
  const journal = await open(folder);
  assert.equal(journal.since(0).map((event) => event.kind), ["kept"]);
  await journal.close();
});

test("the files are bounded: the current one is rotated, two are kept", async () => {
  const folder = await newFolder();
  const journal = await open(folder, { maxFileBytes: 4096, keep: 10_000 });
  for (let index = 0; index < 500; index += 1) {
    journal.emit("tick", { index });
    if (index % 10 === 0) await journal.flushed();
  }
  await journal.close();
  for (const name of ["events.ndjson", "events.1.ndjson"]) {
    assert.ok((await stat(join(folder, name))).size <= 4096, name);
  }
  const again = await open(folder, { maxFileBytes: 4096 });
  const kept = again.since(0).map((event) => event.id);
  assert.is(kept.at(-1), 501);
  assert.equal(kept, kept.map((_, index) => (kept[0] ?? 0) + index), "no number is missing");
  await again.close();
});

test("a folder that is taken away is made again, also when the file was about to be rotated", async () => {
  for (const maxFileBytes of [1_000_000, 200]) {
    const folder = await newFolder();
    const journal = await open(folder, { maxFileBytes });
    journal.emit("before", { text: "x".repeat(100) });
    await journal.flushed();
    await rm(folder, { recursive: true });
    journal.emit("after", { text: "x".repeat(100) });
    await journal.close();
    assert.match(await readFile(`${folder}/events.ndjson`, "utf8"), '"kind":"after"');
  }
});

test("a disk that fails costs the file, not the events", async () => {
  const folder = await newFolder();
  const broken = {
    clock: runtime.clock,
    files: { ...runtime.files, openWrite: () => Promise.reject(new Error("disk full")) },
  };
  const lines: string[] = [];
  const log = createLog({ write: (line) => lines.push(line), now: () => 0 });
  const journal = await EventJournal.open({ runtime: broken, log, folder });
  journal.emit("a");
  await journal.flushed();
  assert.is(journal.since(0).length, 1);
  assert.match(lines[0] ?? "", "event_journal_write_failed");
  await journal.close();
});

test("what is on disk is one JSON object a line", async () => {
  const folder = await newFolder();
  const journal = await open(folder);
  for (let index = 0; index < 100; index += 1) journal.emit("line", { text: "a\nb" });
  await journal.close();
  const lines = (await readFile(join(folder, "events.ndjson"), "utf8")).trimEnd().split("\n");
  assert.is(lines.length, 101);
  assert.equal(lines.map((line) => JSON.parse(line).id), lines.map((_, index) => index + 1));
});

test.run();
