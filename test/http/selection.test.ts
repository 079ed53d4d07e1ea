/** The selection API as a gateway would call it, over pools whose workers are only names. */

import { Hono } from "hono";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { createApp, refuseOtherMethods } from "../../src/http/app.ts";
import { createIndexerApi } from "../../src/http/indexer.ts";
import { createSelectionApi } from "../../src/http/selection.ts";
import { ApproximateIndex } from "../../src/kv/approximate.ts";
import { createKvStore, type IndexStore } from "../../src/kv/create_kv_store.ts";
import { EventsDoor } from "../../src/kv/events_door.ts";
import { parseU64Json } from "../../src/kv/u64_json.ts";
import { KvWorkers } from "../../src/kv/workers.ts";
import { silentLog } from "../../src/observe/log.ts";
import { createMetrics } from "../../src/observe/metrics.ts";
import { Target } from "../../src/proxy/target.ts";
import { SessionAffinity } from "../../src/router/affinity.ts";
import { LoadBook } from "../../src/router/load.ts";
import { PoolMembers } from "../../src/router/pool_members.ts";
import { Reservations } from "../../src/router/reservations.ts";
import { createRouteMetrics } from "../../src/router/route_metrics.ts";
import { Selector } from "../../src/router/selector.ts";
import { WorkerChoice } from "../../src/router/worker_choice.ts";
import { runtime } from "../support/runtime.ts";
import { until } from "../support/scratch.ts";

const { clock, random, net } = runtime;
const BLOCK = 4;

let store: IndexStore;
let app: Hono;
let pools: { members: PoolMembers; targets: Map<string, Target> }[];
let undo: (() => void)[];

async function pool(model: string, workers: string[], maxInflight?: number): Promise<Selector> {
  const members = new PoolMembers({
    model,
    group: "default",
    blockSize: BLOCK,
    store,
    listeners: new KvWorkers({ store, net, clock, random }),
    clock,
    log: silentLog,
    maxInflight,
  });
  const targets = new Map<string, Target>();
  for (const [n, id] of workers.entries()) {
    const address = { kind: "tcp", host: "127.0.0.1", port: 9000 + n } as const;
    const target = new Target({ service: model, version: id, generation: 1, address });
    targets.set(id, target);
    await members.add({ id, dpRank: 0, url: `http://127.0.0.1:${9000 + n}`, target });
  }
  const load = new LoadBook();
  const index = () => ApproximateIndex.create({ clock, blockSize: BLOCK });
  const [speculative, decisions, texts] = [await index(), await index(), await index()];
  const choice = new WorkerChoice({
    model,
    group: "default",
    blockSize: BLOCK,
    textChunkBytes: 128,
    weights: {},
    temperature: 0,
    clock,
    random,
    members,
    load,
    sessions: new SessionAffinity({ clock, ttlMs: 60_000 }),
    metrics: createRouteMetrics(createMetrics(), model, load),
    store,
    speculative,
    decisions,
    texts,
  });
  const reservations = new Reservations({
    clock,
    book: load,
    isSchedulable: ({ worker }) => members.get(worker)?.available === true,
  });
  pools.push({ members, targets });
  undo.push(() => {
    reservations.close();
    for (const one of [speculative, decisions, texts]) one.close();
  });
  return new Selector({
    model,
    group: "default",
    blockSize: BLOCK,
    members,
    choice,
    load,
    reservations,
  });
}

test.before.each(async () => {
  store = await createKvStore({ clock, random });
  pools = [];
  undo = [];
});
test.after.each(() => {
  for (const one of undo) one();
  store.closeAll();
});

function serve(selectors: Selector[]): void {
  app = createApp(silentLog);
  const workers = new KvWorkers({ store, net, clock, random });
  const events = new EventsDoor({ store, clock });
  app.route("/", createIndexerApi({ store, workers, events }));
  app.route("/", createSelectionApi({ selectors: () => selectors, random }));
  refuseOtherMethods(app);
}

// deno-lint-ignore no-explicit-any -- answers of a JSON API, looked at field by field
type Answer = { status: number; json: any };

async function call(method: string, path: string, body?: object): Promise<Answer> {
  const response = await app.request(path, {
    method,
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
  return { status: response.status, json: parseU64Json(await response.text()) };
}

const prompt = (count = 16) => ({ token_ids: Array.from({ length: count }, (_, n) => n + 1) });

async function load(): Promise<[unknown, number, number, number][]> {
  const { json } = await call("GET", "/loads");
  return json.map((row: Record<string, number>) => [
    row.worker_id,
    row.active_prefill_tokens,
    row.active_decode_blocks,
    row.active_requests,
  ]);
}

/** Posts what a worker stored, and waits until it is in the index. */
async function hold(worker: string, model: string, held: number[]): Promise<void> {
  const { status } = await call("POST", "/events", {
    event_type: "stored",
    worker,
    model_name: model,
    block_size: BLOCK,
    seq: "0",
    epoch: "one",
    seq_hashes: Array.from({ length: held.length / BLOCK }, (_, n) => String(n + 1)),
    parent_hash: null,
    token_ids: held,
  });
  assert.is(status, 202);
  const lane = store.lane({ worker, model, group: "default", dpRank: 0 });
  await until(() => lane?.blocks === held.length / BLOCK, "the blocks");
}

test("kv 183: without workers a selection is 503", async () => {
  serve([await pool("m", [])]);
  assert.is((await call("POST", "/select", prompt())).status, 503);
});

test("kv 185: a selection echoes its name, says what it found, and books nothing", async () => {
  serve([await pool("m", ["1"])]);
  const { status, json } = await call("POST", "/select", { ...prompt(), selection_id: "a" });
  assert.is(status, 200);
  assert.equal(json, {
    worker_id: 1,
    dp_rank: 0,
    endpoint: "http://127.0.0.1:9000",
    block_size: BLOCK,
    overlap: { longest_matched: 0, gpu: 0, dp: { 0: 0 }, cpu: 0, disk: 0 },
    effective_prefill_tokens: 16,
    potential_decode_blocks: 4,
    selection_id: "a",
  });
  assert.equal(await load(), [[1, 0, 0, 0]]);
});

test("kv 186: overlap scores list every worker in order, those without blocks too", async () => {
  serve([await pool("m", ["3", "1", "2"])]);
  const { json } = await call("POST", "/overlap_scores", prompt());
  const ids = json.map((row: { worker_id: number }) => row.worker_id);
  assert.equal(ids, [1, 2, 3]);
});

test("kv 187, 188: select and reserve books, progress is reported, a delete frees", async () => {
  serve([await pool("m", ["1"])]);
  const body = { ...prompt(18), selection_id: "a" };
  const { status, json } = await call("POST", "/select_and_reserve", body);
  assert.equal([status, json.selection_id, json.isl_tokens], [200, "a", 18]);
  assert.equal(await load(), [[1, 18, 5, 1]]);
  assert.is((await call("POST", "/select_and_reserve", body)).status, 409);
  assert.is((await call("POST", "/reservations/a/prefill_complete")).status, 200);
  assert.equal(await load(), [[1, 0, 5, 1]]);
  await call("POST", "/reservations/a/output_block");
  assert.equal(await load(), [[1, 0, 6, 1]]);
  const wrong = await call("POST", "/reservations/a/output_block", { decay_fraction: 1.5 });
  assert.is(wrong.status, 400);
  assert.equal((await call("DELETE", "/reservations/a")).json, { status: "ok" });
  assert.equal(await load(), [[1, 0, 0, 0]]);
  assert.is((await call("DELETE", "/reservations/a")).status, 404);
});

test("kv 187: without a name one is made", async () => {
  serve([await pool("m", ["1"])]);
  const { json } = await call("POST", "/select_and_reserve", prompt());
  assert.is((await call("DELETE", `/reservations/${json.selection_id}`)).status, 200);
});

test("kv 189: an explicit reservation books; more prefill than prompt is 400, no such worker 404", async () => {
  serve([await pool("m", ["1"])]);
  const explicit = { selection_id: "a", worker_id: 1, isl_tokens: 16 };
  const more = { ...explicit, effective_prefill_tokens: 17 };
  assert.is((await call("POST", "/reservations", more)).status, 400);
  assert.is((await call("POST", "/reservations", { ...explicit, worker_id: 9 })).status, 404);
  assert.is((await call("POST", "/reservations", { ...explicit, dp_rank: 3 })).status, 404);
  const cached = { ...explicit, effective_prefill_tokens: 0 };
  assert.is((await call("POST", "/reservations", cached)).status, 201);
  assert.equal(await load(), [[1, 0, 4, 1]]);
});

test("kv 190, 191, 192: a remembered selection is booked once; an unknown one 404; no name 400", async () => {
  serve([await pool("m", ["1", "2"])]);
  const { json } = await call("POST", "/select", { ...prompt(), selection_id: "a" });
  const booked = await call("POST", "/reservations", { selection_id: "a" });
  assert.equal([booked.status, booked.json.worker_id], [201, json.worker_id]);
  await call("DELETE", "/reservations/a");
  assert.is((await call("POST", "/reservations", { selection_id: "a" })).status, 404);
  assert.is((await call("POST", "/reservations", { selection_id: "b" })).status, 404);
  assert.is((await call("POST", "/reservations", {})).status, 400);
});

test("kv 194: a selection belongs to its model, and another's name does not take it", async () => {
  serve([await pool("m", ["1"]), await pool("n", ["1"])]);
  const body = { ...prompt(), selection_id: "a", model_name: "m" };
  assert.is((await call("POST", "/select", body)).status, 200);
  const other = { selection_id: "a", model_name: "n" };
  assert.is((await call("POST", "/reservations", other)).status, 404);
  const own = { selection_id: "a", model_name: "m" };
  assert.is((await call("POST", "/reservations", own)).status, 201);
  assert.is((await call("POST", "/select", prompt())).status, 400);
  assert.is((await call("POST", "/select", { ...prompt(), model_name: "x" })).status, 404);
});

test("kv 195: a selection whose worker is gone is 503 and kept; its bookings are released", async () => {
  serve([await pool("m", ["1"])]);
  await call("POST", "/select", { ...prompt(), selection_id: "a" });
  pools[0]?.members.setReady("1", false);
  assert.is((await call("POST", "/reservations", { selection_id: "a" })).status, 503);
  pools[0]?.members.setReady("1", true);
  assert.is((await call("POST", "/reservations", { selection_id: "a" })).status, 201);
});

test("kv 205, 206: pins and lists of workers are kept to; all full is 429, nobody left 503", async () => {
  serve([await pool("m", ["1", "2"], 1)]);
  for (const id of [1, 2, 1, 2]) {
    const pinned = { ...prompt(), pinned_worker: { worker_id: id } };
    assert.is((await call("POST", "/select", pinned)).json.worker_id, id);
    const allowed = { ...prompt(), allowed_worker_ids: [id] };
    assert.is((await call("POST", "/select", allowed)).json.worker_id, id);
  }
  const nobody = { ...prompt(), allowed_worker_ids: [7] };
  assert.is((await call("POST", "/select", nobody)).status, 503);
  const leases = [...pools[0]?.targets.values() ?? []].map((target) => target.claim("x", 0));
  assert.is((await call("POST", "/select", prompt())).status, 429);
  const pinned = { ...prompt(), pinned_worker: { worker_id: 1 } };
  assert.is((await call("POST", "/select", pinned)).status, 429);
  for (const lease of leases) lease?.release();
});

test("what a worker holds draws the prompt, by tokens and by hashes, unless the request overrides it", async () => {
  serve([await pool("m", ["1", "2"])]);
  await hold("2", "m", prompt().token_ids);
  const { json } = await call("POST", "/select", prompt());
  assert.equal([json.worker_id, json.overlap.gpu, json.effective_prefill_tokens], [2, 16, 0]);
  const index = store.partition("m", "default")?.index;
  const locals = [...index?.locals(Uint32Array.from(prompt().token_ids)) ?? []].map(String);
  const byHash = { block_hashes: locals, sequence_hashes: locals, isl_tokens: 16 };
  assert.is((await call("POST", "/select", byHash)).json.worker_id, 2);
  for (const odd of [{ sequence_hashes: [] }, { isl_tokens: 0 }]) {
    assert.is((await call("POST", "/select", { ...byHash, ...odd })).status, 400);
  }
  const override = { router_config_override: { overlap_score_credit: 0 } };
  const chosen = new Set<number>();
  for (let n = 0; n < 64; n += 1) {
    chosen.add((await call("POST", "/select", { ...prompt(), ...override })).json.worker_id);
  }
  assert.is(chosen.size, 2);
  const salted = await call("POST", "/select", { ...prompt(), cache_salt: "tenant" });
  assert.is(salted.json.overlap.gpu, 0);
});

test("bodies that are none, and wrong fields, are 400; a wrong method is 405", async () => {
  serve([await pool("m", ["1"])]);
  for (
    const body of [
      [],
      {},
      { token_ids: "x" },
      { token_ids: [-1] },
      { ...prompt(), router_config_override: 1 },
      { ...prompt(), router_config_override: { router_temperature: "hot" } },
      { ...prompt(), pinned_worker: {} },
    ]
  ) assert.is((await call("POST", "/select", body)).status, 400, JSON.stringify(body));
  assert.is((await call("GET", "/select")).status, 405);
});

test.run();
