import { test } from "uvu";
import * as assert from "uvu/assert";
import { Hono } from "hono";
import { createAdminApp } from "../../src/http/admin.ts";
import { eventStream } from "../../src/http/event_stream.ts";
import { createLifecycle } from "../../src/lifecycle/mod.ts";
import { EventJournal } from "../../src/observe/events.ts";
import { silentLog } from "../../src/observe/log.ts";
import { createMetrics } from "../../src/observe/metrics.ts";
import { runtime } from "../support/runtime.ts";
import { settle, VirtualClock } from "../support/virtual_clock.ts";

function journal(keep = 2000): EventJournal {
  return EventJournal.inMemory({ runtime, log: silentLog, keep });
}

const never = new AbortController().signal;

function stream(
  events: EventJournal,
  more: { format?: "sse" | "ndjson"; since?: number; follow?: boolean; ending?: AbortSignal } = {},
) {
  const clock = new VirtualClock();
  const response = eventStream({
    journal: events,
    clock,
    format: "ndjson",
    since: 0,
    follow: false,
    ending: never,
    ...more,
  });
  return { clock, response };
}

const ids = (text: string) =>
  text.split("\n").filter((line) => line !== "").map((line) => JSON.parse(line).id);

test("NDJSON gives what there is after a number, and ends", async () => {
  const events = journal();
  for (let index = 0; index < 250; index += 1) events.emit("tick", { index });
  assert.equal(ids(await stream(events, { since: 247 }).response.text()), [248, 249, 250]);
  assert.is(ids(await stream(events).response.text()).length, 250);
  assert.equal(ids(await stream(events, { since: 250 }).response.text()), []);
});

test("server-sent events carry number, kind and the event", async () => {
  const events = journal();
  events.emit("swap_done", { version: "v1" });
  const text = await stream(events, { format: "sse" }).response.text();
  const [id, kind, data] = text.split("\n");
  assert.is(id, "id: 1");
  assert.is(kind, "event: swap_done");
  assert.is(JSON.parse(data?.slice("data: ".length) ?? "").version, "v1");
  assert.ok(text.endsWith("\n\n"));
});

test("a follower gets each later event once, and signs of life while it is quiet", async () => {
  const events = journal();
  events.emit("a");
  const { clock, response } = stream(events, { format: "sse", follow: true });
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  assert.is((await reader.read()).value, ": alive\n\n");
  assert.match((await reader.read()).value ?? "", /^id: 1\n/);
  const quiet = reader.read();
  await clock.advance(15_000);
  assert.is((await quiet).value, ": alive\n\n");
  const next = reader.read();
  await settle();
  events.emit("b");
  assert.match((await next).value ?? "", /^id: 2\nevent: b\n/);
  await reader.cancel();
  await settle();
  assert.is(clock.pending, 0);
});

test("a reader that was away too long is told what it missed", async () => {
  const events = journal(10);
  for (let index = 0; index < 100; index += 1) events.emit("tick");
  const lines = (await stream(events, { since: 50 }).response.text()).trimEnd().split("\n");
  assert.equal(JSON.parse(lines[0] ?? ""), { kind: "events_lost", from: 51, to: 90 });
  assert.is(JSON.parse(lines[1] ?? "").id, 91);
  assert.is(lines.length, 11);
});

test("a number that the journal has not reached is another journal's: all of this one is sent", async () => {
  const events = journal();
  for (let index = 0; index < 3; index += 1) events.emit("tick");
  assert.equal(ids(await stream(events, { since: 4 }).response.text()), [1, 2, 3]);
  assert.equal(ids(await stream(events, { since: 3 }).response.text()), []);
  const { response } = stream(events, { since: 500, follow: true });
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  assert.is((await reader.read()).value, "\n");
  assert.equal(ids((await reader.read()).value ?? ""), [1, 2, 3]);
  await reader.cancel();
});

test("HEAD gets the headers, and leaves nobody who listens", async () => {
  const events = journal();
  let listening = 0;
  const subscribe = events.subscribe.bind(events);
  events.subscribe = (listener) => {
    listening += 1;
    const leave = subscribe(listener);
    return () => {
      listening -= 1;
      return leave();
    };
  };
  const app = createAdminApp({
    log: silentLog,
    clock: runtime.clock,
    lifecycle: createLifecycle(),
    metrics: createMetrics(),
    events,
    version: "1",
    versions: () => [],
    workers: () => [],
    peers: () => [],
    recovery: () => ({}),
    ui: new Map(),
    ending: never,
  });
  const accept = { accept: "text/event-stream" };
  const head = await app.request("/api/v1/events", { method: "HEAD", headers: accept });
  assert.is(head.status, 200);
  assert.is(head.headers.get("content-type"), "text/event-stream; charset=utf-8");
  assert.is(listening, 0);
  const followed = await app.request("/api/v1/events", { headers: accept });
  assert.is(listening, 1);
  await followed.body?.cancel();
  assert.is(listening, 0);
});

test("a reader that does not read costs no memory: it has a cursor, not a queue", async () => {
  const events = journal(100);
  const { response } = stream(events, { follow: true });
  const reader = response.body!.getReader();
  await reader.read();
  for (let index = 0; index < 5000; index += 1) events.emit("tick");
  await settle();
  let lines = 0;
  while (lines < 100) {
    const { value } = await reader.read();
    lines += new TextDecoder().decode(value).split("\n").filter((line) => line !== "").length;
  }
  assert.ok(lines <= 202, `${lines} lines were held for it`);
  await reader.cancel();
});

test("streams end in good order when the process goes down", async () => {
  const events = journal();
  const ending = new AbortController();
  const { response, clock } = stream(events, { follow: true, ending: ending.signal });
  const text = response.text();
  await settle();
  events.emit("last");
  ending.abort();
  assert.match(await text, '"kind":"last"');
  assert.is(clock.pending, 0);
});

test("over a real connection: events arrive one by one, and a client that leaves is let go", async () => {
  const events = journal();
  const app = new Hono();
  app.get("/events", () => {
    const { clock } = runtime;
    return eventStream({
      journal: events,
      clock,
      format: "sse",
      since: 0,
      follow: true,
      ending: never,
    });
  });
  const server = await runtime.http.serve(
    { address: { kind: "tcp", host: "127.0.0.1", port: 0 } },
    (request) => app.fetch(request),
  );
  const port = server.address.kind === "tcp" ? server.address.port : 0;
  const response = await runtime.http.fetch(`http://127.0.0.1:${port}/events`);
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  assert.match((await reader.read()).value ?? "", ": alive");
  for (const kind of ["one", "two"]) {
    events.emit(kind);
    assert.match((await reader.read()).value ?? "", `event: ${kind}`);
  }
  await reader.cancel();
  await server.close();
});

test.run();
