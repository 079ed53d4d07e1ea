/** Workers that are ill, full, gone or not there yet, and clients that leave. */

import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { startMockWorker } from "../support/mock_worker.ts";
import { until } from "../support/scratch.ts";
import { MODEL, tokens, withPool, type World } from "./pool_world.ts";

/** A server on a free port whose answer to everything can be changed. */
async function startServer(status = 200) {
  const state = { status, requests: 0 };
  const server = createServer((_request, response) => {
    state.requests += 1;
    response.writeHead(state.status, { "content-type": "application/json" }).end("{}");
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  return {
    state,
    url: `http://127.0.0.1:${port}`,
    close: () =>
      new Promise<void>((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}

const isIdle = ({ pool }: World) => async (): Promise<boolean> =>
  (await pool()).every(({ leases, load }) => leases === 0 && load.requests === 0);

test("at its capacity a worker leaves requests to others, then they are told to come back", async () => {
  await withPool(2, async ({ ask, pool, stats, metric }) => {
    const streams: Response[] = [];
    for (let n = 0; n < 4; n += 1) {
      streams.push(await ask({ prompt: tokens(0, 64), max_tokens: 10_000, stream: true }));
    }
    assert.equal(stats().map(({ active }) => active), [2, 2]);
    assert.ok((await pool()).every(({ full }) => full));
    const refused = await ask({ prompt: tokens(0, 64) });
    assert.is(refused.status, 429);
    assert.is(refused.headers.get("retry-after"), "1");
    const { error } = await refused.json();
    assert.is(error.code, "too_many_requests");
    assert.is(error.reason, "all_workers_overloaded");
    const name = 'baton_route_refusals_total{service="chat",code="too_many_requests"}';
    assert.is(await metric(name), 1);
    await streams[0]?.body?.cancel();
    await until(async () => (await pool()).some(({ full }) => !full), "room");
    assert.is((await ask({ prompt: tokens(0, 64) })).status, 200);
    await Promise.all(streams.slice(1).map((stream) => stream.body?.cancel()));
  }, { worker: { decodeMsPerToken: 20 }, pool: { maxInflight: 2 } });
});

test("T9: 200 requests whose clients leave, before and after the head, leave nothing behind", async () => {
  await withPool(2, async (world) => {
    const leave = async (n: number): Promise<void> => {
      const controller = new AbortController();
      const asked = world.ask(
        { prompt: tokens(n * 100, 64), max_tokens: 10_000, stream: n % 2 === 0 },
        { signal: controller.signal },
      );
      if (n % 4 === 0) await (await asked).body?.getReader().read();
      else setTimeout(() => controller.abort(), n % 7);
      controller.abort();
      await asked.catch(() => {});
    };
    for (let n = 0; n < 200; n += 20) {
      await Promise.all(Array.from({ length: 20 }, (_, at) => leave(n + at)));
    }
    await until(isIdle(world), "the end of all leases");
    await until(() => world.stats().every(({ active }) => active === 0), "the workers' rest");
    assert.is((await world.ask({ prompt: tokens(0, 64) })).status, 200);
  }, { worker: { decodeMsPerToken: 20 } });
});

test("T11: the worker sees the client leave also where the answer is no stream", async () => {
  await withPool(1, async ({ ask, stats }) => {
    const controller = new AbortController();
    const asked = ask({ prompt: tokens(0, 64), max_tokens: 10_000 }, { signal: controller.signal });
    await until(() => stats()[0]?.active === 1, "the request");
    controller.abort();
    await asked.catch(() => {});
    await until(() => stats()[0]?.aborted === 1, "the worker's end of it");
  }, { worker: { decodeMsPerToken: 20 } });
});

test("a worker that fails its probes is left out until it passes one, and the log says so", async () => {
  const ill = await startServer(500);
  try {
    await withPool(1, async ({ ask, pool, stats, metric, baton }) => {
      const isHealthy = async (): Promise<boolean> =>
        (await pool()).find(({ worker }) => worker === "ill")?.healthy === true;
      await until(async () => !await isHealthy(), "the failed probes");
      for (let n = 0; n < 8; n += 1) {
        assert.is((await ask({ prompt: tokens(n * 1_000, 64) })).status, 200);
      }
      assert.is(stats()[0]?.requests, 8);
      const gauge = 'baton_route_worker_healthy{service="chat",worker="ill"}';
      assert.is(await metric(gauge), 0);
      ill.state.status = 200;
      await until(isHealthy, "a probe that passes");
      assert.is(await metric(gauge), 1);
      const told = () => baton.log.filter(({ event }) => /^worker_(ill|well)$/.test(event));
      await until(() => told().length === 2, "both lines");
      assert.equal(
        told().map(({ event, worker, reason }) => [event, worker, reason]),
        [["worker_ill", "ill", "the probe was answered 500"], ["worker_well", "ill", undefined]],
      );
    }, {
      pool: { health: { path: "/health", intervalMs: 100, failures: 2 } },
      extraWorkers: [{ id: "ill", url: ill.url }],
    });
  } finally {
    await ill.close();
  }
});

test("an ill worker does not take the others' affinity away", async () => {
  const ill = await startServer(503);
  try {
    await withPool(2, async ({ ask, stats }) => {
      const prompts = [tokens(0, 640), tokens(5_000, 640)];
      for (const prompt of prompts) while ((await ask({ prompt })).status !== 200);
      for (let n = 0; n < 6; n += 1) {
        for (const prompt of prompts) await (await ask({ prompt: [...prompt, n] })).text();
      }
      const cached = stats().reduce((sum, one) => sum + one.cachedTokens, 0);
      assert.ok(cached >= 12 * 640, `${cached} tokens from caches`);
    }, { extraWorkers: [{ id: "ill", url: ill.url }] });
  } finally {
    await ill.close();
  }
});

test("a pool without workers holds a request for a while, then says when to come back", async () => {
  await withPool(0, async ({ ask, baton }) => {
    const response = await ask({ prompt: "x" });
    assert.is(response.status, 503);
    assert.ok(Number(response.headers.get("retry-after")) >= 1);
    const { error } = await response.json();
    assert.is(error.code, "no_worker");
    assert.is(error.reason, "no_endpoints");
    const models = await fetch(`${baton.traffic}/v1/models`);
    assert.equal((await models.json()).data.map(({ id }: { id: string }) => id), [MODEL]);
  }, { pool: { holdTimeoutMs: 200 } });
});

test("when every worker refuses, the answer says when to come back, and they are tried again", async () => {
  await withPool(2, async ({ ask, workers, metric }) => {
    const ports = workers.map(({ url }) => Number(new URL(url).port));
    await Promise.all(workers.map((worker) => worker.close()));
    const response = await ask({ prompt: tokens(0, 64) });
    assert.is(response.status, 503);
    assert.is(response.headers.get("retry-after"), "1");
    const retries = 'baton_route_retries_total{service="chat",reason="upstream_connect_failed"}';
    assert.is(await metric(retries), 2);
    const again = await startMockWorker({
      id: "w0",
      model: MODEL,
      port: ports[0] ?? 0,
      events: { stored: () => {}, removed: () => {} },
    });
    try {
      assert.is((await ask({ prompt: tokens(0, 64) })).status, 200);
    } finally {
      await again.close();
    }
  }, { silent: true });
});

test("T12: on SIGTERM streams end with [DONE], new requests are refused, and the exit is clean", async () => {
  await withPool(2, async ({ ask, baton, stats }) => {
    const stream = await ask({ prompt: tokens(0, 64), max_tokens: 100, stream: true });
    const ended = stream.text();
    baton.signal("SIGTERM");
    await until(async () => {
      const response = await ask({ prompt: tokens(0, 16) }).catch(() => undefined);
      return response === undefined || response.status === 503;
    }, "the refusal");
    assert.ok((await ended).endsWith("data: [DONE]\n\n"));
    assert.is(await baton.exited, 0);
    assert.is(stats().reduce((sum, { aborted }) => sum + aborted, 0), 0);
  }, { worker: { decodeMsPerToken: 20 } });
});

test("without events a prompt by its tokens finds the worker that had it, as long as that lives", async () => {
  await withPool(3, async ({ ask, workers, stats }) => {
    for (let n = 0; n < 4; n += 1) await (await ask({ prompt: [...tokens(0, 640), n] })).text();
    const at = stats().findIndex(({ requests }) => requests === 4);
    assert.ok(at >= 0, JSON.stringify(stats().map(({ requests }) => requests)));
    await workers[at]?.close();
    for (let n = 0; n < 3; n += 1) {
      assert.is((await ask({ prompt: [...tokens(0, 640), n] })).status, 200);
    }
    assert.equal(stats().map(({ requests }) => requests).sort(), [0, 3, 4]);
  }, { silent: true });
});

test("what was predicted and what the worker reports are counted, in answers and in streams", async () => {
  await withPool(1, async ({ ask, metric, stats }) => {
    const prompt = tokens(0, 320);
    await (await ask({ prompt })).text();
    for (const stream of [false, true]) {
      const more = stream ? { stream, stream_options: { include_usage: true } } : {};
      await (await ask({ prompt, ...more })).text();
    }
    const cached = (source: string) =>
      metric(`baton_route_cached_tokens_total{service="chat",source="${source}"}`);
    assert.is(stats()[0]?.cachedTokens, 640);
    await until(async () => await cached("reported") === 640, "the reports");
    assert.is(await cached("predicted"), 640);
    assert.is(await cached("predicted_of_reported"), 640);
    assert.is(await metric('baton_route_decisions_total{service="chat",reason="cost"}'), 3);
    assert.is(await metric('baton_route_prompts_total{service="chat",source="request"}'), 3);
    assert.is(await metric('baton_route_prompt_tokens_total{service="chat"}'), 960);
  });
});

test("the load of each worker is a metric while it has requests", async () => {
  await withPool(1, async ({ ask, metric }) => {
    const series = 'baton_route_load{service="chat",worker="w0",kind="requests"}';
    const stream = await ask({ prompt: tokens(0, 64), max_tokens: 10_000, stream: true });
    assert.is(await metric(series), 1);
    await stream.body?.cancel();
    await until(async () => await metric(series) === 0, "the end of the load");
  }, { worker: { decodeMsPerToken: 20 } });
});

test("a LoRA adapter is a model of its own: it may be asked for, and shares no blocks", async () => {
  await withPool(2, async ({ ask, metric }) => {
    await (await ask({ prompt: tokens(0, 320) })).text();
    assert.is((await ask({ model: "adapter", prompt: tokens(0, 320) })).status, 200);
    assert.is((await ask({ model: "other", prompt: tokens(0, 320) })).status, 404);
    const predicted = 'baton_route_cached_tokens_total{service="chat",source="predicted"}';
    assert.is(await metric(predicted), 0);
  }, { silent: true, pool: { adapters: ["adapter"] } });
});

test.run();
