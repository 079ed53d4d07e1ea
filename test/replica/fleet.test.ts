/**
 * Recovery between whole Batons as processes: how they find each other, what several of them do at
 * once, how it ends when it cannot succeed, and what people see of it.
 */

import http from "node:http";
import { mkdir } from "node:fs/promises";
import { createServer } from "node:net";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { dumpSlices } from "../../src/replica/dump_writer.ts";
import {
  basePort,
  type BatonProcess,
  runBaton,
  runVerb,
  startBatonProcess,
} from "../support/baton_process.ts";
import { FakeEngine } from "../support/fake_engine.ts";
import { startMockWorker } from "../support/mock_worker.ts";
import { runtime } from "../support/runtime.ts";
import { inScratch, until } from "../support/scratch.ts";
import { FakeKube, slice } from "./support/fake_kube.ts";
import { keyOf, makeCut, Shelf } from "./support/shelf.ts";

const MODEL = "org/model:7b";
/** Whatever a test comes to: nothing of it stays behind. */
const leftovers: (() => unknown)[] = [];
let running = 0;

async function fleet(use: (world: World) => Promise<void>): Promise<void> {
  await inScratch(async (folder) => {
    try {
      await use(new World(folder));
    } finally {
      for (const end of leftovers.splice(0).reverse()) await end();
    }
  });
}

class World {
  readonly folder: string;

  constructor(folder: string) {
    this.folder = folder;
  }

  async baton(
    config: Record<string, unknown>,
    env: Record<string, string> = {},
  ): Promise<BatonProcess> {
    const folder = `${this.folder}/${running++}`;
    await mkdir(folder);
    const shutdown = { announceMs: 0 };
    const listen = { peer: "127.0.0.1:0" };
    const baton = await startBatonProcess(folder, { shutdown, listen, ...config }, { env });
    leftovers.push(async () => {
      baton.signal("SIGKILL");
      await baton.exited;
    });
    return baton;
  }
}

/** A pool with a worker for each engine, whose ids are their places. */
function pool(engines: readonly { endpoint: string; replayEndpoint: string | undefined }[]) {
  const workers = engines.map(({ endpoint, replayEndpoint }, id) => ({
    id: String(id),
    url: "http://127.0.0.1:9",
    kvEvents: endpoint,
    replay: replayEndpoint,
  }));
  return { chat: { mount: "/v1", pool: { model: MODEL, blockSize: 16, workers } } };
}

async function engine(): Promise<FakeEngine> {
  const made = await FakeEngine.start({ runtime, ringBatches: 1000 });
  leftovers.push(() => made.close());
  return made;
}

interface Ready {
  readonly ready: boolean;
  readonly recovery_complete?: boolean;
  readonly conditions: readonly { name: string; ok: boolean; reason: string }[];
}

const json = async <T>(url: string): Promise<T> => await (await fetch(url)).json() as T;
const ready = (baton: BatonProcess): Promise<Ready> => json(`${baton.admin}/ready`);
const isReady = async (baton: BatonProcess): Promise<boolean> => (await ready(baton)).ready;
const recovery = (baton: BatonProcess) =>
  json<Record<string, unknown>>(`${baton.admin}/api/v1/recovery`);

async function metric(baton: BatonProcess, name: string): Promise<number | undefined> {
  const text = await (await fetch(`${baton.admin}/metrics`)).text();
  const line = text.split("\n").find((one) => one.startsWith(`${name} `));
  return line === undefined ? undefined : Number(line.slice(name.length));
}

/** A peer that is no Baton: it answers as it is told. */
async function strangePeer(handle: http.RequestListener): Promise<string> {
  const server = http.createServer(handle);
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", () => resolve()));
  leftovers.push(() => {
    server.closeAllConnections();
    server.close();
  });
  return `http://127.0.0.1:${(server.address() as { port: number }).port}`;
}

// --------------------------------------------------------------------------------- who is there

test("kv 41, mistake 1: Batons that start together, each told that the others serve, all get ready", async () => {
  await fleet(async (world) => {
    const hosts = ["127.0.0.21", "127.0.0.22", "127.0.0.23"];
    const ports = hosts.map(basePort);
    const peers = hosts.map((host, at) => `http://${host}:${ports[at]}`);
    const worker = await engine();
    const batons = await Promise.all(hosts.map((host, at) =>
      world.baton({
        listen: { peer: `${host}:${ports[at]}` },
        services: pool([worker]),
        // The list names each of them, itself too.
        replica: { peers },
      })
    ));
    for (const baton of batons) {
      await until(() => isReady(baton), "readiness");
      assert.match(String((await recovery(baton)).state), /^(empty_bootstrap|recovered)$/);
    }
    // And they work: what the worker says is known to all of them.
    worker.store(Array.from({ length: 64 }, (_, token) => token));
    worker.publish();
    for (const baton of batons) {
      const blocks = async () => /"trailer","lanes":1,"blocks":4/.test(await dump(baton));
      await until(blocks, "the worker's blocks");
    }
  });
});

test("mistake 1, kv 18, 25: a roll-out through EndpointSlices, idle and then with an index, never waits for equals", async () => {
  await fleet(async (world) => {
    const kube = new FakeKube();
    await kube.start();
    leftovers.push(() => kube.stop());
    const worker = await engine();
    let pods = 0;
    /** A pod as Kubernetes shows it: listed before it is ready, serving when its probe says so. */
    const pod = async () => {
      const name = `pod-${pods}`;
      const host = `127.0.0.${31 + pods++}`;
      const port = basePort();
      const show = (conditions: { ready: boolean; serving: boolean; terminating: boolean }) =>
        kube.set(slice(name, [{ addresses: [host], conditions }], {
          ports: [{ name: "peer", port }],
        }));
      show({ ready: false, serving: false, terminating: false });
      const kubernetes = {
        namespace: "ns",
        service: "peers",
        port: "peer",
        apiServer: kube.url,
        tokenFile: `${world.folder}/token`,
        caFile: `${world.folder}/ca`,
      };
      const baton = await world.baton({
        listen: { peer: `${host}:${port}` },
        services: pool([worker]),
        replica: { peers: { kubernetes } },
      }, { POD_IP: host });
      await until(() => isReady(baton), `${name} to be ready`);
      show({ ready: true, serving: true, terminating: false });
      return {
        baton,
        url: `http://${host}:${port}`,
        stop: async () => {
          show({ ready: false, serving: true, terminating: true });
          assert.is(await baton.stop(), 0);
          kube.delete(name);
        },
      };
    };
    const state = async (baton: BatonProcess) => (await recovery(baton)).state;
    // The first of all; then one that comes after it, and one for which only a leaving one is there.
    let old = await pod();
    assert.is(await state(old.baton), "empty_bootstrap");
    const second = await pod();
    assert.is(await state(second.baton), "recovered", "an empty dump of one that serves is enough");
    await old.stop();
    old = second;
    worker.store(Array.from({ length: 160 }, (_, token) => token));
    worker.publish();
    const blocks = async (baton: BatonProcess) =>
      Number(/"trailer","lanes":1,"blocks":(\d+)/.exec(await dump(baton))?.[1]);
    await until(async () => await blocks(old.baton) === 10, "the worker's blocks");
    for (let roll = 0; roll < 2; roll += 1) {
      const next = await pod();
      assert.is(await state(next.baton), "recovered");
      assert.is((await recovery(next.baton)).blocks, 10);
      assert.is(await blocks(next.baton), 10);
      const listed = await json<{ peers: { url: string }[] }>(`${next.baton.admin}/api/v1/peers`);
      assert.equal(listed.peers.map(({ url }) => url), [old.url], "never itself");
      await old.stop();
      old = next;
    }
    await until(async () => {
      const { peers } = await json<{ peers: unknown[] }>(`${old.baton.admin}/api/v1/peers`);
      return peers.length === 0;
    }, "the end of the last peer's slice");
  });
});

test("a name is looked up: whoever listens behind it is the peer", async () => {
  await fleet(async (world) => {
    const worker = await engine();
    const first = await world.baton({ services: pool([worker]), replica: { peers: [] } });
    await until(() => isReady(first), "the first one");
    worker.store(Array.from({ length: 64 }, (_, token) => token));
    worker.publish();
    await until(async () => /"blocks":4}\n$/.test(await dump(first)), "its blocks");
    const port = Number(new URL(first.peer ?? "").port);
    const second = await world.baton({
      services: pool([worker]),
      replica: { peers: { dns: "localhost", port, refreshMs: 200 } },
    });
    await until(() => isReady(second), "the second one");
    const { state, blocks } = await recovery(second);
    assert.equal([state, blocks], ["recovered", 4]);
  });
});

async function dump(baton: BatonProcess): Promise<string> {
  return await (await fetch(`${baton.peer}/dump`)).text();
}

// ----------------------------------------------------------------------- when it does not succeed

test("kv 31, 33, 60: a peer that is 503 for ever: the policy decides, and gauge and readiness show it", async () => {
  await fleet(async (world) => {
    const worker = await engine();
    const peer = await strangePeer((_, response) => response.writeHead(503).end("no"));
    const replica = { peers: [peer], recoveryBudgetMs: 5000, subscribeTimeoutMs: 0 };
    const [stay, start] = await Promise.all([
      world.baton({
        services: pool([worker]),
        replica: { ...replica, onRecoveryFailure: "stay-unready" },
      }),
      world.baton({ services: pool([worker]), replica }),
    ]);
    await until(() => isReady(start), "the one that starts degraded");
    assert.is(await metric(start, `baton_kv_recovery_state{state="degraded"}`), 1);
    assert.ok((await metric(start, `baton_kv_recovery_attempts_total{outcome="busy"}`) ?? 0) >= 1);
    assert.is(await metric(start, `baton_kv_recovery_lanes_total{outcome="degraded"}`), 1);
    const gauge = () => metric(stay, `baton_kv_recovery_state{state="stuck"}`);
    await until(async () => await gauge() === 1, "the other one to be stuck");
    const response = await fetch(`${stay.admin}/ready`);
    assert.is(response.status, 503);
    const body = await response.json() as Ready;
    assert.is(body.recovery_complete, false);
    const condition = body.conditions.find(({ name }) => name === "recovery");
    assert.match(condition?.reason ?? "", /^stuck: the budget is used up/);
    const refused = await fetch(`${stay.peer}/dump`);
    assert.is(refused.status, 503);
    assert.is(refused.headers.get("retry-after"), "1");
    assert.match(await refused.text(), /"code":"not_ready"/);
    // The traffic listener's readiness, which balancers ask, is no other.
    assert.is((await fetch(`${stay.traffic}/readyz`)).status, 503);
  });
});

test("kv 26, 39: told to stop while a dump comes in, it goes at once, and its ports are free", async () => {
  await fleet(async (world) => {
    const worker = await engine();
    let asked = 0;
    const peer = await strangePeer((_, response) => {
      asked += 1;
      response.writeHead(200, { "content-type": "application/x-ndjson" }).write(" ");
    });
    const joiner = await world.baton({ services: pool([worker]), replica: { peers: [peer] } });
    await until(() => asked > 0, "the request");
    assert.is((await ready(joiner)).ready, false);
    assert.is(await joiner.stop(), 0);
    const ends = joiner.log.filter(({ event }) =>
      /^recovery_(finished|stopped|failed)$/.test(event)
    );
    assert.equal(ends.map(({ event, level }) => [event, level]), [["recovery_stopped", "info"]]);
    const taken = createServer();
    const { hostname, port } = new URL(joiner.peer ?? "");
    await new Promise<void>((resolve, reject) => {
      taken.on("error", reject);
      taken.listen(Number(port), hostname, () => resolve());
    });
    taken.close();
  });
});

test("kv 38: a configuration that cannot be is refused with the field's name", async () => {
  await fleet(async ({ folder }) => {
    const services = { chat: { pool: { ...pool([]).chat.pool, temperature: -1 } } };
    const file = `${folder}/bad.json`;
    const listen = { traffic: "127.0.0.1:0", admin: "127.0.0.1:0" };
    await runtime.files.writeAtomic(file, JSON.stringify({ services, listen }));
    const refused = await runVerb(["serve", "--config", file]);
    assert.is(refused.code, 2);
    assert.match(refused.stderr, /services\.chat\.pool\.temperature/);
  });
});

// ------------------------------------------------------------------------------- what people see

test("R10: progress while it lasts, in status --watch, the API, the log and metrics", async () => {
  await fleet(async (world) => {
    const workers = [await engine(), await engine()];
    const cuts = workers.map((_, at) =>
      makeCut(keyOf(String(at), { model: MODEL }), 1000 * (at + 1), { cursor: 0n })
    );
    // The first lane comes at once, the second one when it is let go.
    let letGo = (): void => {};
    const peer = await strangePeer(async (_, response) => {
      const text = await new Response(ReadableStream.from(dumpSlices({
        store: new Shelf(cuts),
        replica: "peer",
        nowMs: 0,
      }))).text();
      const half = text.indexOf(`{"kind":"lane_end"`, text.indexOf(`{"kind":"lane_end"`) + 1);
      response.writeHead(200, { "content-type": "application/x-ndjson" });
      response.write(text.slice(0, half));
      letGo = () => response.end(text.slice(half));
    });
    const joiner = await world.baton({
      services: pool(workers.map(({ endpoint }) => ({ endpoint, replayEndpoint: undefined }))),
      replica: { peers: [peer], idleTimeoutMs: 30_000, subscribeTimeoutMs: 100 },
    });
    // Batch 0 of each worker, which the peer's snapshot has, too.
    await until(() => workers.every(({ subscribers }) => subscribers === 1), "subscriptions");
    let seen = "";
    const isSeen =
      /not ready[^]*waiting for recovery: fetching[^]*recovery\n {2}fetching: receiving the dump of http:\/\/127\.0\.0\.1:\d+\n {2}lanes .*pending.*; \d+ blocks; 0\.\d MB; \d+ blocks\/s; \d+\.\d s so far; \d+\.\d s left/;
    const enough = new AbortController();
    const watch = runBaton(["status", "--watch", "--admin", joiner.admin], {
      onOutput: (stdout) => (seen = stdout),
      signal: enough.signal,
    });
    leftovers.push(() => {
      enough.abort();
      return watch;
    });
    await until(() => isSeen.test(seen), "progress on the screen");
    const during = await recovery(joiner);
    assert.is(during.state, "fetching");
    assert.is(during.source, peer);
    assert.ok(Number(during.bytes) > 1000);
    assert.is(typeof during.etaMs, "number");
    assert.is((await ready(joiner)).ready, false);
    const told = () => joiner.log.find(({ event }) => event === "recovery_progress");
    await until(() => told() !== undefined, "progress in the log");
    for (const field of ["state", "lanes", "blocks", "bytes", "blocksPerS", "source", "etaMs"]) {
      assert.ok(field in (told() ?? {}), field);
    }
    letGo();
    await until(() => isReady(joiner), "readiness");
    const done = await recovery(joiner);
    const reports = done.laneReports as { outcome: string; source?: string }[];
    assert.is(reports.length, 2);
    const attempts = done.attempts as { peer: string; outcome: string; bytes: number }[];
    assert.equal(attempts.map((one) => [one.peer, one.outcome]), [[peer, "complete"]]);
    assert.is(await metric(joiner, `baton_kv_recovery_attempts_total{outcome="complete"}`), 1);
    assert.is(await metric(joiner, "baton_kv_recovery_bytes_total"), attempts[0]?.bytes);
    assert.is(await metric(joiner, "baton_kv_recovery_blocks_total"), done.blocks);
    assert.ok((await metric(joiner, "baton_kv_recovery_seconds") ?? 0) > 0);
    const lanes = (outcome: string) =>
      metric(joiner, `baton_kv_recovery_lanes_total{outcome="${outcome}"}`);
    for (const outcome of new Set(reports.map((one) => one.outcome))) {
      assert.is(await lanes(outcome), reports.filter((one) => one.outcome === outcome).length);
    }
    await joiner.stop();
  });
});

// ------------------------------------------------------------------------------ load and sessions

test("a joiner knows its peer's load and sessions: it neither takes a busy worker for idle nor moves a session", async () => {
  await fleet(async (world) => {
    const events = { stored: () => {}, removed: () => {} };
    const mocks = await Promise.all(
      ["0", "1"].map((id) => startMockWorker({ id, model: MODEL, events, decodeMsPerToken: 50 })),
    );
    for (const mock of mocks) leftovers.push(() => mock.close());
    const workers = mocks.map(({ url }, id) => ({ id: String(id), url }));
    const services = {
      chat: { mount: "/v1", pool: { model: MODEL, blockSize: 16, workers, tries: 1 } },
    };
    const first = await world.baton({ services, replica: { peers: [] } });
    await until(() => isReady(first), "the first one");
    const ending = new AbortController();
    leftovers.push(() => ending.abort());
    const ask = async (baton: BatonProcess, session: string, tokens: number, isLong: boolean) => {
      const response = await fetch(`${baton.traffic}/v1/completions`, {
        method: "POST",
        signal: ending.signal,
        headers: { "content-type": "application/json", "x-session-id": session },
        body: JSON.stringify({
          model: MODEL,
          prompt: Array.from({ length: tokens }, (_, at) => (at * 7 + tokens) % 5000),
          max_tokens: isLong ? 2000 : 1,
          stream: isLong,
        }),
      });
      if (!isLong) await response.text();
      assert.is(response.status, 200);
      return response;
    };
    // One worker has a session with a long answer in progress, the other one has nothing to do.
    const answer = await ask(first, "long", 1600, true);
    void answer.text().catch(() => {});
    const active = () => mocks.map((mock) => mock.stats().active);
    await until(() => active().includes(1), "the answer");
    const busy = active().indexOf(1);
    const second = await world.baton({
      services,
      replica: { peers: [first.peer ?? ""] },
    });
    await until(() => isReady(second), "the second one");
    const taken = () => second.log.find(({ event }) => event === "recovery_load_taken");
    await until(() => taken() !== undefined, "the log");
    assert.is(taken()?.loads, 1);
    assert.is(taken()?.sessions, 1);
    type Workers = {
      workers: { worker: string; load: { requests: number; decodeBlocks: number } }[];
    };
    const loads = async (baton: BatonProcess) =>
      (await json<Workers>(`${baton.admin}/api/v1/workers`)).workers.map(({ load }) => load);
    const [ours, theirs] = [await loads(second), await loads(first)];
    assert.ok((ours[busy]?.requests ?? 0) > 0.5, JSON.stringify(ours));
    assert.is(ours[1 - busy]?.requests, 0);
    assert.is(theirs[busy]?.requests, 1);
    // New prompts go to the idle worker, whichever order workers have; the session stays.
    const requests = () => mocks.map((mock) => mock.stats().requests);
    const before = requests();
    for (let at = 0; at < 4; at += 1) await ask(second, `new-${at}`, 320 + at * 16, false);
    assert.is(requests()[busy], before[busy], "the busy one got none of them");
    await ask(second, "long", 64, false);
    assert.is(requests()[busy], (before[busy] ?? 0) + 1, "the session's worker");
  });
});

test.run();
