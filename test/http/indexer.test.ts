/** The indexer API as a client of Dynamo's standalone indexer would call it. */
import { Hono } from "hono";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { createApp, refuseOtherMethods } from "../../src/http/app.ts";
import { createIndexerApi, type IndexerApiOptions } from "../../src/http/indexer.ts";
import { createKvStore, type IndexStore } from "../../src/kv/create_kv_store.ts";
import { EventsDoor } from "../../src/kv/events_door.ts";
import { parseU64Json } from "../../src/kv/u64_json.ts";
import { KvWorkers } from "../../src/kv/workers.ts";
import { silentLog } from "../../src/observe/log.ts";
import { FakeEngine } from "../support/fake_engine.ts";
import { runtime } from "../support/runtime.ts";
import { until } from "../support/until.ts";

const { net, clock, random } = runtime;
const BIG = 18446744073709551615n;

let store: IndexStore;
let workers: KvWorkers;
let app: Hono;
const engines: FakeEngine[] = [];

async function setUp(options: Partial<IndexerApiOptions> = {}): Promise<void> {
  store = await createKvStore({ clock, random });
  const limits = { reconnect: { firstMs: 20, mostMs: 200 } };
  workers = new KvWorkers({ store, net, clock, random, limits });
  const events = new EventsDoor({ store, clock });
  app = createApp(silentLog);
  app.route("/", createIndexerApi({ store, workers, events, ...options }));
  refuseOtherMethods(app);
}

test.before.each(() => setUp());
test.after.each(async () => {
  await workers.stop();
  store.closeAll();
  await Promise.all(engines.splice(0).map((engine) => engine.close()));
});

async function call(method: string, path: string, body?: string | object) {
  const response = await app.request(path, {
    method,
    ...(body === undefined ? {} : { body: typeof body === "string" ? body : JSON.stringify(body) }),
  });
  const text = await response.text();
  return { status: response.status, text, json: parseU64Json(text) as Record<string, never> };
}

async function engineOf(options: Partial<Parameters<typeof FakeEngine.start>[0]> = {}) {
  const engine = await FakeEngine.start({ runtime, blockSize: 4, ...options });
  engines.push(engine);
  return engine;
}

const registration = (engine: { endpoint: string; replayEndpoint?: string | undefined }) => ({
  instance_id: 7,
  endpoint: engine.endpoint,
  replay_endpoint: engine.replayEndpoint,
  model_name: "m",
  block_size: 4,
});

const nowhere = { endpoint: "tcp://127.0.0.1:1" };
const tokens = (from: number, blocks: number) =>
  Array.from({ length: 4 * blocks }, (_, i) => from + i);

test("a worker is registered, heard, asked about and unregistered", async () => {
  const engine = await engineOf();
  engine.store(tokens(1, 3));
  engine.publish();
  const made = await call("POST", "/register", registration(engine));
  assert.is(made.status, 201);
  assert.equal(made.json, { status: "ok" });
  const query = { token_ids: tokens(1, 5), model_name: "m" };
  await until(async () => (await call("POST", "/query", query)).text.includes("12"));
  const { json } = await call("POST", "/query", query);
  assert.equal(json, {
    scores: { "7": { "0": 12 } },
    frequencies: [],
    instances: { "7": { longest_matched: 12, gpu: 12, dp: { "0": 12 }, cpu: 12, disk: 12 } },
  });
  const gone = await call("POST", "/unregister", { instance_id: 7, model_name: "m" });
  assert.is(gone.status, 200);
  assert.is((await call("POST", "/query", query)).status, 404);
  assert.is((await call("POST", "/unregister", { instance_id: 7, model_name: "m" })).status, 404);
});

test("tiers: cpu and disk include the faster ones", async () => {
  const engine = await engineOf();
  const hashes = engine.store(tokens(1, 1));
  const second = engine.store(tokens(5, 1), { parent: hashes[0] ?? 0n, medium: "CPU" });
  engine.store(tokens(9, 2), { parent: second[0] ?? 0n, medium: "DISK" });
  engine.publish();
  await call("POST", "/register", registration(engine));
  const query = { token_ids: tokens(1, 4), model_name: "m" };
  await until(async () => (await call("POST", "/query", query)).text.includes('"disk":16'));
  const { json } = await call("POST", "/query", query);
  assert.equal(json["instances"], {
    "7": { longest_matched: 16, gpu: 4, dp: { "0": 4 }, cpu: 8, disk: 16 },
  });
});

test("u64 worker ids, hashes and cursors are exact both ways", async () => {
  const engine = await engineOf();
  engine.store(tokens(1, 2));
  engine.publish();
  const body = JSON.stringify(registration(engine)).replace(
    '"instance_id":7',
    `"instance_id":${BIG}`,
  );
  assert.is((await call("POST", "/register", body)).status, 201);
  const locals = () =>
    store.partition("m", "default")?.index.locals(Uint32Array.from(tokens(1, 2)));
  await until(() => store.lanes()[0]?.blocks === 2);
  const unsigned = [...locals() ?? []];
  const signed = unsigned.map((hash) => BigInt.asIntN(64, hash));
  for (const hashes of [unsigned, signed]) {
    const answer = await call(
      "POST",
      "/query_by_hash",
      `{"model_name":"m","block_hashes":[${hashes.join(",")}]}`,
    );
    assert.equal(answer.json["scores"], { [BIG.toString()]: { "0": 8 } });
  }
  const { text } = await call("GET", "/workers");
  assert.ok(text.includes(`"instance_id":${BIG}`), text);
  assert.is(
    (await call("POST", "/unregister", `{"instance_id":${BIG},"model_name":"m"}`)).status,
    200,
  );
});

test("kv 168: a body over 8 MiB is refused", async () => {
  const filler = " ".repeat(8 * 1024 * 1024);
  for (const path of ["/query", "/query_by_hash", "/register"]) {
    assert.is((await call("POST", path, `{${filler}}`)).status, 413);
  }
  assert.is((await call("POST", "/query", '{"model_name":"x"}')).status, 404);
});

test("kv 169: test routes are absent by default, present when asked for", async () => {
  assert.is((await call("POST", "/test/pause_listener", {})).status, 404);
  await workers.stop();
  await setUp({ testRoutes: true });
  assert.is((await call("POST", "/test/pause_listener", "junk")).status, 400);
  assert.is((await call("POST", "/test/pause_listener", { instance_id: 1 })).status, 404);
});

test("kv 170: workers unfiltered, by model, by group, none; tenants are not echoed", async () => {
  await call("POST", "/register", { ...registration(nowhere), tenant_id: "secret" });
  await call("POST", "/register", {
    ...registration(nowhere),
    instance_id: 8,
    routing_group: "g",
    additional_salt: "x",
  });
  await until(() => store.lanes().length === 2);
  const ids = async (path: string) =>
    ((await call("GET", path)).json as unknown as { instance_id: number }[])
      .map((row) => row.instance_id);
  assert.equal(await ids("/workers"), [7, 8]);
  assert.equal(await ids("/workers?model_name=m&tenant_id=other"), [7, 8]);
  assert.equal(await ids("/workers?routing_group=g"), [8]);
  assert.equal(await ids("/workers?model_name=other"), []);
  assert.not((await call("GET", "/workers")).text.includes("secret"));
});

test("a row of /workers says what its lanes do and what went wrong", async () => {
  await call("POST", "/register", registration(nowhere));
  await until(async () => (await call("GET", "/workers")).text.includes("last_error"));
  const [row] = (await call("GET", "/workers")).json as unknown as Record<string, unknown>[];
  const { listeners, ...rest } = row ?? {};
  assert.equal(rest, {
    instance_id: 7,
    source: "zmq",
    status: "pending",
    model_name: "m",
    routing_group: "default",
    block_size: 4,
    endpoints: { "0": nowhere.endpoint },
  });
  const [listener] = Object.values(listeners as Record<string, Record<string, unknown>>);
  assert.is(listener?.["endpoint"], nowhere.endpoint);
  assert.is(listener?.["status"], "pending");
  assert.is(listener?.["state"], "subscribing");
  assert.is(listener?.["cursor"], null);
  assert.is(listener?.["blocks"], 0);
});

test("kv 173: a salt on /query_by_hash is refused, even an empty one", async () => {
  await store.open({ model: "m", group: "default", worker: "w", dpRank: 0 }, { blockSize: 4 });
  const query = (salt: unknown) =>
    call("POST", "/query_by_hash", { block_hashes: [1], model_name: "m", cache_salt: salt });
  assert.is((await query("tenant")).status, 400);
  assert.is((await query("")).status, 400);
  assert.is((await query(null)).status, 200);
  assert.is((await query(undefined)).status, 200);
});

test("kv 174: an unknown partition is 404", async () => {
  const query = { token_ids: [1], model_name: "m", routing_group: "other" };
  assert.is((await call("POST", "/query", query)).status, 404);
  assert.is(
    (await call("POST", "/query_by_hash", { block_hashes: [], model_name: "m" })).status,
    404,
  );
});

test("kv 175, 176: unregistering forgets the cursor of its rank only; registering again begins anew", async () => {
  const [first, second] = [await engineOf(), await engineOf()];
  await call("POST", "/register", registration(first));
  await call("POST", "/register", { ...registration(second), dp_rank: 1 });
  for (const engine of [first, second]) {
    engine.store(tokens(1, 2));
    engine.publish();
  }
  const lane = (dpRank: number) =>
    store.lane({ model: "m", group: "default", worker: "7", dpRank });
  await until(() => lane(0)?.cursor === 0n && lane(1)?.cursor === 0n);
  await call("POST", "/unregister", { instance_id: 7, model_name: "m", dp_rank: 0 });
  assert.is(lane(0), undefined);
  assert.is(lane(1)?.cursor, 0n);
  const again = { ...registration(first), replay_endpoint: undefined };
  assert.is((await call("POST", "/register", again)).status, 201);
  await until(() => lane(0) !== undefined);
  assert.is(lane(0)?.cursor, undefined);
  assert.is(lane(0)?.blocks, 0);
});

test("kv 178: a worker whose last listener went is not listed any more", async () => {
  await call("POST", "/register", registration(nowhere));
  await call("POST", "/unregister", { instance_id: 7, model_name: "m", dp_rank: 0 });
  assert.equal((await call("GET", "/workers")).json, []);
});

test("kv 179: a second registration of a rank, another partition, another block size: 409", async () => {
  const base = registration(nowhere);
  await call("POST", "/register", base);
  assert.is((await call("POST", "/register", base)).status, 409);
  assert.is(
    (await call("POST", "/register", { ...base, dp_rank: 1, model_name: "x" })).status,
    409,
  );
  assert.is((await call("POST", "/register", { ...base, dp_rank: 1, block_size: 8 })).status, 409);
  await until(() => store.lanes().length === 1);
  const other = { ...base, instance_id: 9, block_size: 8 };
  assert.is((await call("POST", "/register", other)).status, 409);
  assert.is((await call("POST", "/register", { ...base, dp_rank: 1 })).status, 201);
});

test("kv 180: pausing needs a pending or active listener, resuming a paused one", async () => {
  await workers.stop();
  await setUp({ testRoutes: true });
  await call("POST", "/register", registration(nowhere));
  const body = { instance_id: 7 };
  assert.is((await call("POST", "/test/resume_listener", body)).status, 409);
  assert.is((await call("POST", "/test/pause_listener", body)).status, 200);
  assert.is((await call("POST", "/test/pause_listener", body)).status, 409);
  assert.is((await call("POST", "/test/resume_listener", body)).status, 200);
});

test("bad registrations are 400, each with its reason", async () => {
  const base = registration(nowhere);
  const bad: [object, RegExp][] = [
    [{ ...base, endpoint: "127.0.0.1:5557" }, /bad ZMQ endpoint/],
    [{ ...base, endpoint: "inproc://x" }, /bad ZMQ endpoint/],
    [{ ...base, replay_endpoint: "tcp://::1:5" }, /bad ZMQ endpoint/],
    [{ ...base, instance_id: undefined }, /instance_id is missing/],
    [{ ...base, instance_id: -1 }, /instance_id/],
    [{ ...base, model_name: "" }, /model_name is missing/],
    [{ ...base, block_size: 0 }, /block_size/],
    [{ ...base, dp_rank: 1.5 }, /dp_rank/],
    [[], /not a JSON object/],
  ];
  for (const [body, reason] of bad) {
    const answer = await call("POST", "/register", body);
    assert.is(answer.status, 400);
    assert.match(answer.text, reason);
  }
  assert.is((await call("POST", "/query", '{"model_name":"m","token_ids":[1')).status, 400);
});

test("queries that are not well made are 400", async () => {
  await store.open({ model: "m", group: "default", worker: "w", dpRank: 0 }, { blockSize: 4 });
  for (const token_ids of ["x", [-1], [2 ** 32], [1.5], ["1"]]) {
    assert.is((await call("POST", "/query", { model_name: "m", token_ids })).status, 400);
  }
  const body = '{"model_name":"m","block_hashes":[1.5]}';
  assert.is((await call("POST", "/query_by_hash", body)).status, 400);
});

test("an empty query matches nothing", async () => {
  await store.open({ model: "m", group: "default", worker: "w", dpRank: 0 }, { blockSize: 4 });
  const { json } = await call("POST", "/query", { model_name: "m", token_ids: [] });
  assert.equal(json, { scores: {}, frequencies: [], instances: {} });
});

test("names with ':' keep to their partition", async () => {
  const engine = await engineOf();
  engine.store(tokens(1, 1));
  engine.publish();
  await call("POST", "/register", { ...registration(engine), model_name: "a:b" });
  await until(() => store.lanes()[0]?.blocks === 1);
  const ask = (model_name: string, routing_group: string) =>
    call("POST", "/query", { model_name, routing_group, token_ids: tokens(1, 1) });
  assert.is((await ask("a:b", "default")).status, 200);
  assert.is((await ask("a", "b:default")).status, 404);
});

test("peers are registered, listed and deregistered", async () => {
  const url = "http://10.0.0.2:8082";
  assert.is((await call("POST", "/register_peer", { url })).status, 201);
  assert.equal((await call("GET", "/peers")).json, [url]);
  assert.is((await call("POST", "/deregister_peer", { url })).status, 200);
  assert.is((await call("POST", "/deregister_peer", { url })).status, 404);
  assert.is((await call("POST", "/register_peer", { url: "ftp://x" })).status, 400);
});

test("health is 200; other methods are 405, other paths 404, as JSON", async () => {
  assert.equal((await call("GET", "/health")).json, { status: "ok" });
  assert.is((await call("GET", "/register")).status, 405);
  assert.is((await call("GET", "/nothing")).status, 404);
});

test("POST /events: 202 with counts; its workers are listed, and can be unregistered", async () => {
  const lines = [
    {
      event_type: "stored",
      model: "m",
      worker: "pod-1",
      block_size: 4,
      seq_hashes: [1],
      token_ids: tokens(1, 1),
    },
    { event_type: "boom" },
  ];
  const body = lines.map((line) => JSON.stringify(line)).join("\n");
  const answer = await call("POST", "/events", body);
  assert.is(answer.status, 202);
  assert.equal(answer.json, {
    accepted: 1,
    refused: [{ line: 2, reason: "model_name is missing" }],
    refused_count: 1,
  });
  await until(() => store.lanes()[0]?.blocks === 1);
  const [row] = (await call("GET", "/workers")).json as unknown as Record<string, unknown>[];
  assert.is(row?.["instance_id"], "pod-1");
  assert.is(row?.["source"], "http");
  const gone = await call("POST", "/unregister", { instance_id: "pod-1", model_name: "m" });
  assert.is(gone.status, 200);
  assert.equal((await call("GET", "/workers")).json, []);
  assert.match((await call("POST", "/events", body)).text, /worker was removed/);
});

test("POST /events takes gzip, and refuses a line without end", async () => {
  const line = JSON.stringify({ event_type: "cleared", model: "m", worker: "w", block_size: 4 });
  const stream = new Blob([line]).stream().pipeThrough(new CompressionStream("gzip"));
  const response = await app.request("/events", {
    method: "POST",
    headers: { "content-encoding": "gzip" },
    body: await new Response(stream).arrayBuffer(),
  });
  assert.is(response.status, 202);
  assert.is((await call("POST", "/events", "x".repeat(9 * 1024 * 1024))).status, 413);
});

test("POST /events: a body that is not what its header says, or breaks off, is the sender's fault", async () => {
  const post = async (
    encoding: string,
    body: BodyInit,
  ): Promise<{ status: number; text: string }> => {
    const response = await app.request("/events", {
      method: "POST",
      headers: { "content-encoding": encoding },
      body,
      duplex: "half",
    } as RequestInit);
    return { status: response.status, text: await response.text() };
  };
  const line = JSON.stringify({ event_type: "cleared", model: "m", worker: "w", block_size: 4 });
  const stream = new Blob([line.repeat(50)]).stream().pipeThrough(new CompressionStream("gzip"));
  const packed = await new Response(stream).arrayBuffer();
  assert.is((await post("gzip", line)).status, 400);
  assert.is((await post("gzip", packed.slice(0, packed.byteLength - 9))).status, 400);
  assert.match((await post("br", line)).text, /content-encoding br is not understood/);
  const broken = new ReadableStream({
    pull: (controller) => controller.error(new TypeError("the connection broke")),
  });
  assert.is((await post("identity", broken)).status, 400);
  assert.is((await post("identity", line)).status, 202);
});

test.run();
