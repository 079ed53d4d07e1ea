/** Pools whose workers are the generations of a versions service: real children, real updates. */

import { test } from "uvu";
import * as assert from "uvu/assert";
import { ConfigError } from "../../src/config/problems.ts";
import { parseConfig } from "../../src/config/load.ts";
import { basePort, type BatonProcess, startBatonProcess } from "../support/baton_process.ts";
import { type BuildOptions, FileOracle, makeBuild } from "../support/builds.ts";
import { inScratch, until } from "../support/scratch.ts";
import { MODEL, tokens, type WorkerStatus, worldOf } from "./pool_world.ts";

interface Rig {
  readonly baton: BatonProcess;
  publish(version: string, build: BuildOptions): Promise<void>;
  remove(version: string): Promise<void>;
  /** A request to the pool; the child answers with its build and pid. */
  ask(path?: string): Promise<Response>;
  pool(): Promise<WorkerStatus[]>;
  /** Leases by generation, as the versions service counts them. */
  targets(): Promise<{ version: string; generation: number; leases: number; phase: string }[]>;
}

async function withVersions(
  use: (rig: Rig) => Promise<void>,
  pool: Readonly<Record<string, unknown>> = {},
): Promise<void> {
  await inScratch(async (folder) => {
    const oracle = new FileOracle(`${folder}/oracle`);
    await oracle.write();
    const baton = await startBatonProcess(folder, {
      listen: { peer: "127.0.0.1:0" },
      services: {
        // Named before the service that it refers to.
        chat: { mount: "/v1", pool: { model: MODEL, workers: { versions: "shard" }, ...pool } },
        shard: {
          mount: "/shard",
          versions: {
            oracle: `file:${oracle.path}`,
            binaryName: "child",
            dataDir: `${folder}/data`,
            bakeMs: 0,
            basePort: basePort(),
          },
        },
      },
      shutdown: { announceMs: 0 },
    });
    const { pool: workers } = worldOf(baton, []);
    try {
      await use({
        baton,
        publish: async (version, build) => {
          await oracle.publish(version, await makeBuild({ binaryName: "child", ...build }));
        },
        remove: (version) => oracle.remove(version),
        ask: (path = "/v1/completions") =>
          fetch(baton.traffic + path, {
            method: "POST",
            body: JSON.stringify({ model: MODEL, prompt: tokens(0, 320) }),
          }),
        pool: workers,
        targets: async () => {
          const status = await (await fetch(`${baton.admin}/drain/status`)).json();
          return status.targets;
        },
      });
    } finally {
      await baton.stop();
    }
  });
}

/** Posts one block chain for a worker, as a child would that knows its version and port. */
async function postBlocks(baton: BatonProcess, worker: string): Promise<number> {
  const response = await fetch(`${baton.peer}/events`, {
    method: "POST",
    headers: { "content-type": "application/x-ndjson" },
    body: JSON.stringify({
      event_type: "stored",
      worker,
      model_name: MODEL,
      block_size: 16,
      seq: "0",
      epoch: "one",
      seq_hashes: Array.from({ length: 20 }, (_, n) => String(n + 1)),
      parent_hash: null,
      token_ids: tokens(0, 320),
    }) + "\n",
  });
  const { accepted } = await response.json();
  return accepted;
}

test("a request waits for the first generation, and a published one takes its place", async () => {
  await withVersions(async ({ baton, publish, ask, pool, targets }) => {
    const early = ask();
    await publish("v1", { id: "build-a" });
    const first = await early;
    assert.is(first.status, 200, await first.clone().text());
    assert.match(await first.text(), /^build-a /);
    const [a] = await pool();
    assert.match(a?.worker ?? "", /^v1:\d+$/);
    assert.is(await postBlocks(baton, a?.worker ?? ""), 1);
    await until(async () => (await pool())[0]?.lanes[0]?.blocks === 20, "the blocks");

    // A lease that the versions service counts is the pool's, and the other way round.
    const events = await fetch(`${baton.traffic}/shard/v1/events?count=60&ms=50`);
    assert.is((await pool())[0]?.leases, 1);
    assert.is((await targets()).find(({ generation }) => generation === 1)?.leases, 1);

    await publish("v1", { id: "build-b" });
    await until(async () => (await (await ask()).text()).startsWith("build-b "), "the new one");
    const workers = await pool();
    assert.is(workers.length, 1);
    assert.is.not(workers[0]?.worker, a?.worker);
    assert.equal(workers[0]?.lanes.map(({ blocks }) => blocks), [0]);
    // T2: what was under way when it left does not bring it back.
    assert.is(await postBlocks(baton, a?.worker ?? ""), 0);
    const listed = await (await fetch(`${baton.peer}/workers`)).text();
    assert.not.match(listed, `"${a?.worker}"`);

    const text = await events.text();
    assert.ok(text.endsWith("data: [DONE]\n\n"), "the old one was cut");
    assert.is(text.match(/build-a/g)?.length, 60);
    await until(async () => (await targets()).length === 1, "the end of the old one");
  }, { holdTimeoutMs: 30_000 });
});

test("two versions are two workers; one that is withdrawn leaves, one that crashes comes back", async () => {
  await withVersions(async ({ publish, remove, ask, pool, baton }) => {
    await publish("v1", { id: "one" });
    await publish("v2", { id: "two" });
    await until(async () => (await pool()).length === 2, "two workers");
    await remove("v2");
    await until(async () => (await pool()).length === 1, "one worker");
    assert.match((await pool())[0]?.worker ?? "", /^v1:/);
    await fetch(`${baton.traffic}/shard/v1/crash`).catch(() => {});
    // One that meets the crash itself may fail; those after it wait for the next process.
    await until(async () => (await (await ask()).text()).startsWith("one "), "the next process");
  }, { holdTimeoutMs: 30_000 });
});

function problems(services: Record<string, unknown>): string {
  try {
    parseConfig({ services });
    return "";
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error;
    return error.message;
  }
}

test("a service that is not there, or has no versions, is named in the configuration's error", () => {
  const pool = { model: "m", workers: { versions: "nobody" } };
  const said = problems({ chat: { mount: "/v1", pool } });
  assert.match(said, "services.chat.pool.workers.versions");
  assert.match(said, '"nobody"');
  assert.match(said, "the name of a service that has versions");
  const plain = { mount: "/", upstream: "http://127.0.0.1:1" };
  const other = problems({
    chat: { mount: "/v1", pool: { model: "m", workers: { versions: "plain" } } },
    plain,
  });
  assert.match(other, '"plain"');
});

test("two pools of one model need a group each, and workers with events an id each", () => {
  const worker = { id: "0", url: "http://127.0.0.1:1", kvEvents: "tcp://127.0.0.1:2" };
  const a = { mount: "/a", pool: { model: "m", workers: [] } };
  assert.match(problems({ a, b: { ...a, mount: "/b" } }), "services.b.pool.group");
  const apart = problems({
    a: { mount: "/a", pool: { model: "m", workers: [worker] } },
    b: { mount: "/b", pool: { model: "n", workers: [worker] } },
  });
  assert.match(apart, "services.b.pool.workers");
});

test.run();
