/** A pool whose workers publish KV events over ZMQ, as engines do, on real sockets. */

import { test } from "uvu";
import * as assert from "uvu/assert";
import { FakeEngine } from "../support/fake_engine.ts";
import { runtime } from "../support/runtime.ts";
import { until } from "../support/scratch.ts";
import { MODEL, tokens, withPool, type World } from "./pool_world.ts";

const COUNT = 3;

async function withEngines(
  check: (world: World, engines: FakeEngine[]) => Promise<void>,
  options: { replay: boolean } = { replay: true },
): Promise<void> {
  const engines = await Promise.all(
    Array.from({ length: COUNT }, (_, seed) =>
      FakeEngine.start({
        runtime,
        seed: seed * 100 + 1,
        ...(options.replay ? {} : { replayEndpoint: null }),
      })),
  );
  try {
    await withPool(COUNT, async (world) => {
      await until(() => engines.every((engine) => engine.subscribers === 1), "the subscriptions");
      await check(world, engines);
    }, {
      silent: true,
      keys: (n) => ({
        kvEvents: engines[n]?.endpoint,
        ...(options.replay ? { replay: engines[n]?.replayEndpoint } : {}),
      }),
    });
  } finally {
    await Promise.all(engines.map((engine) => engine.close()));
  }
}

/** The worker that a prompt is given to. */
async function chosen({ ask, stats }: World, prompt: number[]): Promise<number> {
  const before = stats().map(({ requests }) => requests);
  const response = await ask({ prompt });
  assert.is(response.status, 200, await response.text());
  return stats().findIndex(({ requests }, n) => requests > (before[n] ?? 0));
}

const blocksOf = async ({ pool }: World, n: number): Promise<number> =>
  (await pool()).find(({ worker }) => worker === `w${n}`)?.lanes[0]?.blocks ?? 0;

test("a prompt goes to the engine that published its blocks", async () => {
  await withEngines(async (world, engines) => {
    for (const n of [2, 0, 1]) {
      engines[n]?.store(tokens(n * 10_000, 320));
      engines[n]?.publish();
      await until(async () => await blocksOf(world, n) === 20, `the blocks of w${n}`);
    }
    for (const n of [1, 2, 0]) {
      const prompt = [...tokens(n * 10_000, 320), ...tokens(90_000 + n * 100, 32)];
      assert.is(await chosen(world, prompt), n);
    }
  });
});

test("T1: an engine that restarts at the same address is credited with nothing", async () => {
  await withEngines(async (world, engines) => {
    const prompt = tokens(0, 640);
    engines[1]?.store(prompt);
    engines[1]?.publish();
    await until(async () => await blocksOf(world, 1) === 40, "the blocks");
    await engines[1]?.restart();
    await until(() => engines[1]?.subscribers === 1, "the subscription after the restart");
    // Its numbers begin anew.
    engines[1]?.store(tokens(50_000, 16));
    engines[1]?.publish();
    await until(async () => await blocksOf(world, 1) === 1, "the blocks of the new process");
    engines[2]?.store(prompt.slice(0, 320));
    engines[2]?.publish();
    await until(async () => await blocksOf(world, 2) === 20, "the blocks elsewhere");
    assert.is(await chosen(world, [...prompt, 1]), 2);
  });
});

test("T1: without a replay socket too, as soon as the new process says anything", async () => {
  await withEngines(async (world, engines) => {
    for (let n = 0; n < 5; n += 1) {
      engines[0]?.store(tokens(n * 1_000, 160));
      engines[0]?.publish();
    }
    await until(async () => await blocksOf(world, 0) === 50, "the blocks");
    await engines[0]?.restart();
    await until(() => engines[0]?.subscribers === 1, "the subscription after the restart");
    engines[0]?.store(tokens(70_000, 16));
    engines[0]?.publish();
    await until(async () => await blocksOf(world, 0) === 1, "the blocks of the new process");
  }, { replay: false });
});

test("T6: what got lost on its way is replayed, and a removal after it holds", async () => {
  await withEngines(async (world, engines) => {
    const [engine] = engines;
    engine?.store(tokens(0, 32));
    engine?.publish();
    await until(async () => await blocksOf(world, 0) === 2, "the first blocks");
    const gone = engine?.store(tokens(10_000, 320)) ?? [];
    engine?.lose();
    engine?.store(tokens(20_000, 160));
    engine?.lose();
    engine?.remove(gone);
    engine?.publish();
    await until(async () => await blocksOf(world, 0) === 12, "the replay");
    assert.ok((engine?.replayRequests.length ?? 0) > 0);
    assert.is(await chosen(world, [...tokens(20_000, 160), 1]), 0);
  });
});

test("T3: an engine that cleared its cache is not preferred for what it held", async () => {
  await withEngines(async (world, engines) => {
    const prompt = tokens(0, 320);
    for (const n of [0, 1]) {
      engines[n]?.store(n === 0 ? prompt : prompt.slice(0, 160));
      engines[n]?.publish();
      await until(async () => await blocksOf(world, n) > 0, `the blocks of w${n}`);
    }
    engines[0]?.clear();
    engines[0]?.publish();
    await until(async () => await blocksOf(world, 0) === 0, "the end of the blocks");
    assert.is(await chosen(world, [...prompt, 1]), 1);
  });
});

test("what an engine published before Baton was there comes by its replay", async () => {
  const engine = await FakeEngine.start({ runtime });
  engine.store(tokens(0, 320));
  engine.publish();
  try {
    await withPool(2, async (world) => {
      // The ring is asked when the first batch shows that there were others before it.
      await until(() => engine.subscribers === 1, "the subscription");
      engine.store(tokens(40_000, 16));
      engine.publish();
      await until(async () => await blocksOf(world, 1) === 21, "the blocks");
      assert.is(await chosen(world, [...tokens(0, 320), 1]), 1);
    }, {
      silent: true,
      keys: (n) => n === 1 ? { kvEvents: engine.endpoint, replay: engine.replayEndpoint } : {},
    });
  } finally {
    await engine.close();
  }
});

test("a worker without a socket posts its events; without numbers its lane says why it is degraded", async () => {
  await withPool(1, async ({ baton, pool }) => {
    const post = async (...lines: Record<string, unknown>[]): Promise<void> => {
      const body = lines
        .map((line) => JSON.stringify({ worker: "w0", model: MODEL, block_size: 16, ...line }))
        .join("\n");
      const response = await fetch(`${baton.peer}/events`, { method: "POST", body });
      assert.equal(await response.json(), {
        accepted: lines.length,
        refused: [],
        refused_count: 0,
      });
    };
    const lane = async () => (await pool())[0]?.lanes[0];
    const stored = { event_type: "stored", seq_hashes: [1], tokens_hashes: [2] };
    await post(stored);
    await until(async () => (await lane())?.blocks === 1, "the block");
    assert.equal(await lane().then((row) => [row?.state, row?.lastError, row?.cursor]), [
      "degraded",
      "its events carry no numbers",
      undefined,
    ]);
    await post({ event_type: "cleared" }, stored);
    await until(async () => (await lane())?.state === "live", "the clear");
    assert.is((await lane())?.lastError, undefined);
  }, { silent: true });
});

test.run();
