/** A pool end to end: real mock workers, a real Baton, KV events over HTTP. */

import { test } from "uvu";
import * as assert from "uvu/assert";
import { until } from "../support/scratch.ts";
import { MODEL, tokens, withPool } from "./pool_world.ts";

test("a prompt goes to the worker that holds its beginning", async () => {
  await withPool(3, async ({ ask, stats }) => {
    for (const start of [0, 10_000, 20_000, 30_000]) {
      await (await ask({ prompt: tokens(start, 320) })).text();
    }
    for (const start of [0, 10_000, 20_000, 30_000]) {
      const response = await ask({ prompt: [...tokens(start, 320), ...tokens(90_000, 32)] });
      const { usage } = await response.json();
      assert.is(usage.prompt_tokens_details.cached_tokens, 320, `the prompt at ${start}`);
    }
    assert.is(stats().reduce((sum, { requests }) => sum + requests, 0), 8);
  });
});

test("prompts that nobody holds are spread by load", async () => {
  await withPool(3, async ({ ask, stats }) => {
    const answers = Array.from({ length: 9 }, (_, n) => ask({ prompt: tokens(n * 5_000, 256) }));
    for (const answer of await Promise.all(answers)) await answer.text();
    for (const { requests } of stats()) assert.ok(requests >= 2, `${requests} requests`);
  }, { worker: { decodeMsPerToken: 50 } });
});

test("text prompts find the worker that had the same text before", async () => {
  await withPool(3, async ({ ask, stats }) => {
    const prompt = "Once upon a time there was a prompt that was long enough. ".repeat(20);
    for (let n = 0; n < 4; n += 1) await (await ask({ prompt: `${prompt}${n}` })).text();
    assert.equal(stats().map(({ requests }) => requests).sort(), [0, 0, 4]);
  });
});

test("a stream passes byte for byte, and is a lease of its worker until it ends", async () => {
  await withPool(1, async ({ ask, pool }) => {
    const response = await ask({ prompt: tokens(0, 64), max_tokens: 20, stream: true });
    assert.is(response.headers.get("content-type"), "text/event-stream");
    await until(async () => (await pool())[0]?.leases === 1);
    const text = await response.text();
    assert.is(text.split("\n\n").length, 22);
    assert.ok(text.endsWith("data: [DONE]\n\n"));
    await until(async () => (await pool())[0]?.leases === 0);
    assert.is((await pool())[0]?.load.requests, 0);
  }, { worker: { decodeMsPerToken: 20 } });
});

test("a client that leaves frees the lease and the load, and the worker is told", async () => {
  await withPool(1, async ({ ask, pool, stats }) => {
    const controller = new AbortController();
    const response = await ask(
      { prompt: tokens(0, 64), max_tokens: 10_000, stream: true },
      { signal: controller.signal },
    );
    await response.body?.getReader().read();
    controller.abort();
    await until(() => stats()[0]?.aborted === 1);
    await until(async () => {
      const [worker] = await pool();
      return worker?.leases === 0 && worker.load.requests === 0;
    });
  }, { worker: { decodeMsPerToken: 20 } });
});

test("a worker that is gone costs no request, and nothing is executed twice", async () => {
  await withPool(3, async ({ ask, workers, stats }) => {
    await workers[1]?.close();
    for (let n = 0; n < 30; n += 1) {
      const response = await ask({ prompt: tokens(n * 1_000, 64) }, {
        headers: { "x-request-id": `request-${n}` },
      });
      assert.is(response.status, 200, await response.text());
    }
    const executed = stats().flatMap((one) => Object.entries(one.executed));
    assert.is(executed.length, 30);
    assert.ok(executed.every(([, times]) => times === 1));
  });
});

test("without any worker the answer is an error in OpenAI's shape, not a broken connection", async () => {
  await withPool(2, async ({ ask, workers }) => {
    for (const worker of workers) await worker.close();
    const response = await ask({ prompt: tokens(0, 64) });
    assert.ok([502, 503].includes(response.status), String(response.status));
    const { error } = await response.json();
    assert.type(error.message, "string");
    assert.is(error.type, "server_error");
    assert.type(error.code, "string");
  });
});

test("what is wrong with a request is said in OpenAI's shape, and reaches no worker", async () => {
  await withPool(1, async ({ baton, ask, stats }) => {
    const unknown = await ask({ model: "another", prompt: "x" });
    assert.is(unknown.status, 404);
    assert.is((await unknown.json()).error.code, "model_not_found");
    for (const body of ["not json", "[1]", '"text"', ""]) {
      const response = await fetch(`${baton.traffic}/v1/completions`, { method: "POST", body });
      assert.is(response.status, 400, body);
      assert.is((await response.json()).error.type, "invalid_request_error");
    }
    assert.is(stats()[0]?.requests, 0);
  });
});

test("an error of the worker passes untouched and does not count against it", async () => {
  await withPool(1, async ({ baton, ask }) => {
    const response = await fetch(`${baton.traffic}/v1/nothing`, {
      method: "POST",
      body: JSON.stringify({ model: MODEL }),
    });
    assert.is(response.status, 404);
    assert.is((await response.json()).error.message, "no route /v1/nothing");
    assert.is((await ask({ prompt: tokens(0, 16) })).status, 200);
  });
});

test("the models of all workers are one list, also when one of them is down", async () => {
  await withPool(2, async ({ baton, workers }) => {
    await workers[0]?.close();
    const response = await fetch(`${baton.traffic}/v1/models`);
    assert.is(response.status, 200);
    const { object, data } = await response.json();
    assert.is(object, "list");
    assert.equal(data.map((model: { id: string }) => model.id), [MODEL]);
  });
});

test("a session stays with its worker while others are as good", async () => {
  await withPool(3, async ({ ask, stats }) => {
    for (let n = 0; n < 6; n += 1) {
      const headers = { "x-session-id": "one session" };
      await (await ask({ prompt: tokens(n * 7_000, 48) }, { headers })).text();
    }
    assert.equal(stats().map(({ requests }) => requests).sort(), [0, 0, 6]);
  });
});

test.run();
