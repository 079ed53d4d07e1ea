/**
 * Baton keeps the contract that it asks of its children: lifecycle paths on the admin listener only,
 * a drain that is answered by its status. Cases of 4.27.
 */

import http from "node:http";
import type { AddressInfo } from "node:net";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { type BatonProcess, startBatonProcess } from "../support/baton_process.ts";
import { inScratch, until } from "../support/scratch.ts";

interface Case {
  readonly baton: BatonProcess;
  /** Ends the requests that wait at the upstream. */
  release(): void;
  admin(path: string, method?: string): Promise<{ status: number; body: Record<string, unknown> }>;
}

/** Baton in front of an upstream that answers when it is told to. */
async function asChild(action: (one: Case) => Promise<void>): Promise<void> {
  const waiting: http.ServerResponse[] = [];
  const upstream = http.createServer((request, response) => {
    if (request.url === "/wait") waiting.push(response);
    else response.end("work");
  });
  await new Promise<void>((resolve) => upstream.listen(0, "127.0.0.1", resolve));
  const { port } = upstream.address() as AddressInfo;
  await inScratch(async (folder) => {
    const baton = await startBatonProcess(folder, {
      // A child has no balancer of its own that would have to notice first.
      shutdown: { announceMs: 0 },
      services: { plain: { mount: "/", upstream: `http://127.0.0.1:${port}` } },
    });
    try {
      await action({
        baton,
        release: () => {
          for (const response of waiting.splice(0)) response.end("late");
        },
        admin: async (path, method = "GET") => {
          const response = await fetch(baton.admin + path, { method });
          return { status: response.status, body: JSON.parse(await response.text()) };
        },
      });
    } finally {
      await baton.stop();
    }
  });
  upstream.closeAllConnections();
  await new Promise((resolve) => upstream.close(resolve));
}

const status = async (url: string, method = "GET"): Promise<number> => {
  const response = await fetch(url, { method });
  await response.arrayBuffer();
  return response.status;
};

test("case 253: readiness is private, and work in flight is counted until its last byte", async () => {
  await asChild(async ({ baton, admin, release }) => {
    await until(async () => (await admin("/ready")).status === 200, "readiness");
    // The upstream answers "work" to any path: Baton must not let these through to it.
    assert.is(await status(`${baton.traffic}/ready`), 404);
    const busy = fetch(`${baton.traffic}/wait`);
    await until(async () => (await admin("/drain/status")).body.inflight === 1, "one in flight");
    const metrics = await (await fetch(`${baton.admin}/metrics`)).text();
    assert.match(metrics, /inflight\S* 1\n/);
    release();
    assert.is(await (await busy).text(), "late");
    await until(async () => (await admin("/drain/status")).body.inflight === 0, "none in flight");
  });
});

test("case 254: a drain cannot be asked for in public; asked for in private, new work is refused", async () => {
  await asChild(async ({ baton, admin, release }) => {
    await until(async () => (await admin("/ready")).status === 200, "readiness");
    assert.is(await status(`${baton.traffic}/drain`, "POST"), 404);
    assert.is(await status(`${baton.traffic}/work`), 200);
    const busy = fetch(`${baton.traffic}/wait`);
    await until(async () => (await admin("/drain/status")).body.inflight === 1, "one in flight");
    assert.is((await admin("/drain", "POST")).status, 200);
    assert.is(await status(`${baton.traffic}/work`), 503);
    assert.is((await admin("/ready")).status, 503);
    release();
    assert.is(await (await busy).text(), "late", "what was accepted is finished");
    await until(async () => {
      const { body } = await admin("/drain/status");
      return body.inflight === 0 && body.draining === true;
    }, "the end of the drain");
  });
});

test("case 256: what is for operators is on the admin listener only", async () => {
  await asChild(async ({ baton, admin }) => {
    await until(async () => (await admin("/ready")).status === 200, "readiness");
    assert.is(await status(`${baton.admin}/metrics`), 200);
    for (const path of ["/metrics", "/api/v1/versions", "/openapi.json", "/ui/"]) {
      const response = await fetch(baton.traffic + path);
      assert.is(await response.text(), "work", `${path} belongs to the service in public`);
    }
  });
});

test.run();
