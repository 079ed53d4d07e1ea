import { test } from "uvu";
import * as assert from "uvu/assert";
import { CalledOff } from "../../src/supervisor/wait.ts";
import { NotWarm, waitWarm } from "../../src/supervisor/warm_up.ts";
import { runtime } from "../support/runtime.ts";

async function serve(answer: () => Response): Promise<{ port: number; close(): Promise<void> }> {
  const server = await runtime.http.serve(
    { address: { kind: "tcp", host: "127.0.0.1", port: 0 } },
    () => answer(),
  );
  if (server.address.kind !== "tcp") throw new Error("not TCP");
  return { port: server.address.port, close: () => server.destroy() };
}

function wait(port: number | undefined, options: Partial<Parameters<typeof waitWarm>[1]> = {}) {
  return waitWarm(runtime, {
    port,
    path: "/ready",
    field: "recovery_complete",
    timeoutMs: 10_000,
    intervalMs: 10,
    probeTimeoutMs: 500,
    isOldAlive: () => true,
    ...options,
  });
}

async function thrown(promise: Promise<unknown>): Promise<unknown> {
  return await promise.then(() => assert.unreachable(), (error: unknown) => error);
}

const body = (value: unknown): Response => new Response(JSON.stringify(value));

test("case 116: the wait ends only when recovery_complete is true", async () => {
  let asked = 0;
  const server = await serve(() => body({ recovery_complete: ++asked > 3 }));
  assert.is(await wait(server.port), "warm");
  assert.is(asked, 4);
  await server.close();
});

test("case 117: without the field, or without a readable body, the switch is not held", async () => {
  for (const answer of [body({ ready: true }), body([]), new Response("ok"), body(null)]) {
    const server = await serve(() => answer.clone());
    assert.is(await wait(server.port), "not_told");
    await server.close();
  }
});

test("case 118: when the old child dies meanwhile the switch happens", async () => {
  let alive = true;
  const server = await serve(() => {
    alive = false;
    return body({ recovery_complete: false });
  });
  assert.is(await wait(server.port, { isOldAlive: () => alive }), "old_gone");
  await server.close();
});

test("case 119: one that never gets warm is given up at the timeout", async () => {
  const server = await serve(() => body({ recovery_complete: false }));
  assert.instance(await thrown(wait(server.port, { timeoutMs: 80 })), NotWarm);
  await server.close();
});

test("cases 120 and 121: a host that drains, or any other caller that gives up, ends the wait", async () => {
  for (const reason of ["the service is going down", "cancelled"]) {
    const controller = new AbortController();
    const server = await serve(() => body({ recovery_complete: false }));
    const waiting = thrown(wait(server.port, { signal: controller.signal }));
    controller.abort(new Error(reason));
    const error = await waiting;
    assert.instance(error, CalledOff);
    assert.is((error as Error).message, reason);
    await server.close();
  }
});

test("case 122: without a port to ask there is nothing to wait for", async () => {
  assert.is(await wait(undefined), "not_told");
});

test("an unanswered question counts as not yet", async () => {
  let asked = 0;
  const server = await serve(() => {
    asked += 1;
    if (asked === 1) throw new Error("broken");
    return body({ recovery_complete: asked > 2 });
  });
  const result = await wait(server.port);
  assert.ok(result === "warm" || result === "not_told");
  await server.close();
});

test.run();
