import { test } from "uvu";
import * as assert from "uvu/assert";
import fc from "fast-check";
import { Hono } from "hono";
import { createLifecycle } from "../../src/lifecycle/mod.ts";
import { settle, VirtualClock } from "../support/virtual_clock.ts";

test("case 173: a drain refuses new work, and is done when the last exchange ends", async () => {
  const clock = new VirtualClock();
  const lifecycle = createLifecycle({ clock });
  const release = lifecycle.admit();
  assert.ok(release);
  let result: unknown;
  lifecycle.drain({ timeoutMs: 1000 }).then((value) => (result = value));
  await settle();
  assert.is(lifecycle.inflight, 1);
  assert.is(lifecycle.admit(), undefined);
  await clock.advance(1000);
  assert.equal(result, { drained: false, left: 1 });

  let again: unknown;
  lifecycle.drain().then((value) => (again = value));
  await settle();
  assert.is(again, undefined);
  release();
  release();
  await settle();
  assert.is(lifecycle.inflight, 0);
  assert.equal(again, { drained: true, left: 0 });
  assert.is(clock.pending, 0);
});

test("case 220: while announcing the host is not ready and still takes work; force ends that", async () => {
  const clock = new VirtualClock();
  const lifecycle = createLifecycle({ clock, announceMs: 5000 });
  assert.ok(lifecycle.ready);
  lifecycle.beginDrain();
  assert.is(lifecycle.state, "announcing");
  assert.not(lifecycle.ready);
  const release = lifecycle.admit();
  assert.ok(release);
  lifecycle.force();
  assert.is(lifecycle.state, "forcing");
  assert.ok(lifecycle.forced.aborted);
  assert.is(lifecycle.admit(), undefined);
  await lifecycle.closed();
  assert.is(clock.pending, 0, "the announce timer is gone");
});

test("admission closes when the announce window is over", async () => {
  const clock = new VirtualClock();
  const lifecycle = createLifecycle({ clock, announceMs: 5000 });
  lifecycle.beginDrain();
  await clock.advance(4999);
  assert.ok(lifecycle.accepting);
  await clock.advance(1);
  assert.is(lifecycle.state, "draining");
  await lifecycle.closed();
});

test("case 223: what becomes available promotes a starting host, never a draining one", () => {
  const starting = createLifecycle({ waitForAvailable: true });
  assert.is(starting.admit(), undefined);
  starting.available();
  assert.is(starting.state, "serving");
  const draining = createLifecycle({ waitForAvailable: true, announceMs: 5000 });
  draining.beginDrain();
  draining.available();
  assert.is(draining.state, "draining");
});

test("case 224: a promotion that races a drain never opens the host again", () => {
  for (let round = 0; round < 64; round += 1) {
    const lifecycle = createLifecycle({ waitForAvailable: true });
    const seen: boolean[] = [];
    lifecycle.onChange(() => seen.push(lifecycle.accepting));
    const steps = [() => lifecycle.available(), () => lifecycle.beginDrain()];
    if (round % 2 === 0) steps.reverse();
    for (const step of steps) step();
    lifecycle.available();
    assert.is(lifecycle.accepting, false);
    assert.is(seen.at(-1), false);
  }
});

test("readiness needs every condition, and says which one is missing", () => {
  const lifecycle = createLifecycle();
  lifecycle.conditions.set("recovery", false, "3 of 8 lanes");
  assert.not(lifecycle.ready);
  assert.equal(lifecycle.readyStatus(), {
    ready: false,
    draining: false,
    inflight: 0,
    conditions: [
      { name: "serving", ok: true, reason: "serving" },
      { name: "recovery", ok: false, reason: "3 of 8 lanes" },
    ],
  });
  lifecycle.conditions.set("recovery", true);
  assert.ok(lifecycle.ready);
  lifecycle.conditions.set("oracle", false, "unreachable");
  assert.not(lifecycle.ready);
  lifecycle.conditions.remove("oracle");
  assert.ok(lifecycle.ready);
});

test("idle waits are for one busy period: the next one counts anew", async () => {
  const lifecycle = createLifecycle();
  for (let period = 0; period < 3; period += 1) {
    const release = lifecycle.admit();
    let idle = false;
    lifecycle.idle().then(() => (idle = true));
    await settle();
    assert.not(idle);
    release?.();
    await settle();
    assert.ok(idle);
  }
});

test("whatever happens in whatever order, the count is exact and a drain ends at zero", async () => {
  const step = fc.constantFrom("admit", "release", "twice", "drain", "force", "available", "wait");
  await fc.assert(
    fc.asyncProperty(fc.array(step, { maxLength: 60 }), async (steps) => {
      const clock = new VirtualClock();
      const lifecycle = createLifecycle({ clock, announceMs: 10, waitForAvailable: true });
      const open: (() => void)[] = [];
      const ended: (() => void)[] = [];
      let drained = false;
      for (const one of steps) {
        const accepting = lifecycle.accepting;
        if (one === "admit") {
          const release = lifecycle.admit();
          assert.is(release !== undefined, accepting);
          if (release !== undefined) open.push(release);
        } else if (one === "release") {
          const release = open.shift();
          release?.();
          if (release !== undefined) ended.push(release);
        } else if (one === "twice") ended.at(-1)?.();
        else if (one === "drain") lifecycle.drain().then(() => (drained = true));
        else if (one === "force") lifecycle.force();
        else if (one === "available") lifecycle.available();
        else await clock.advance(10);
        assert.is(lifecycle.inflight, open.length);
        assert.not(lifecycle.ready && lifecycle.draining);
      }
      if (!lifecycle.draining) lifecycle.drain().then(() => (drained = true));
      const asked = steps.includes("drain") || !steps.includes("force");
      await clock.advance(10);
      assert.is(drained, asked && open.length === 0);
      for (const release of open) release();
      await settle();
      assert.is(drained, asked);
      assert.is(lifecycle.inflight, 0);
      assert.is(clock.pending, 0);
    }),
    { seed: 173, numRuns: 150 },
  );
});

test("the three routes answer as the protocol says, and refuse other methods", async () => {
  const lifecycle = createLifecycle();
  lifecycle.reportTargets(() => [{ service: "shard", leases: 2 }]);
  lifecycle.reportReady(() => ({ recovery_complete: true }));
  const app = lifecycle.routes();
  const ready = await app.request("/ready");
  assert.is(ready.status, 200);
  assert.is(ready.headers.get("cache-control"), "no-store");
  assert.equal(await ready.json(), {
    ready: true,
    draining: false,
    inflight: 0,
    conditions: [{ name: "serving", ok: true, reason: "serving" }],
    recovery_complete: true,
  });
  assert.is((await app.request("/drain")).status, 405);
  assert.is((await app.request("/drain")).headers.get("allow"), "POST");
  assert.is((await app.request("/ready", { method: "POST" })).status, 405);
  assert.is((await app.request("/drain/status", { method: "DELETE" })).status, 405);

  const release = lifecycle.admit();
  const drain = await app.request("/drain", { method: "POST" });
  assert.is(drain.status, 200);
  const status = {
    ready: false,
    draining: true,
    inflight: 1,
    targets: [{ service: "shard", leases: 2 }],
  };
  assert.equal(await drain.json(), status);
  assert.equal(await (await app.request("/drain/status")).json(), status);
  assert.is((await app.request("/ready")).status, 503);
  assert.is((await app.request("/ready", { method: "HEAD" })).status, 503);
  assert.is((await app.request("/drain", { method: "POST" })).status, 200, "idempotent");
  release?.();
});

/** An app with the middleware whose one answer is a stream that the test feeds. */
function streamed() {
  const lifecycle = createLifecycle();
  const app = new Hono();
  app.use(lifecycle.middleware());
  let feed!: ReadableStreamDefaultController<Uint8Array>;
  let cancelled = false;
  app.get("/", () =>
    new Response(
      new ReadableStream<Uint8Array>({
        start: (controller) => {
          feed = controller;
        },
        cancel: () => {
          cancelled = true;
        },
      }),
      { headers: { "content-type": "text/event-stream" } },
    ));
  app.get("/fails", () => {
    throw new Error("no");
  });
  app.onError((_error, context) => context.text("failed", 500));
  app.get("/empty", (context) => context.body(null, 204));
  return { lifecycle, app, feed: () => feed, cancelled: () => cancelled };
}

test("an answer counts until its last byte was read", async () => {
  const { lifecycle, app, feed } = streamed();
  const response = await app.request("/");
  assert.is(response.headers.get("content-type"), "text/event-stream");
  const reader = response.body!.getReader();
  assert.is(lifecycle.inflight, 1);
  feed().enqueue(new Uint8Array([1]));
  assert.equal((await reader.read()).value, new Uint8Array([1]));
  assert.is(lifecycle.inflight, 1);
  feed().close();
  assert.ok((await reader.read()).done);
  assert.is(lifecycle.inflight, 0);
});

test("a client that leaves ends the count and reaches the source", async () => {
  const { lifecycle, app, cancelled } = streamed();
  const response = await app.request("/");
  await response.body!.cancel();
  assert.is(lifecycle.inflight, 0);
  assert.ok(cancelled());
});

test("a body that fails ends the count and fails for the reader too", async () => {
  const { lifecycle, app, feed } = streamed();
  const response = await app.request("/");
  feed().error(new Error("gone"));
  let failure: unknown;
  await response.text().catch((error) => (failure = error));
  assert.instance(failure, Error);
  assert.is(lifecycle.inflight, 0);
});

test("HEAD, empty answers and handlers that throw leave nothing counted", async () => {
  const { lifecycle, app } = streamed();
  assert.is((await app.request("/", { method: "HEAD" })).status, 200);
  assert.is((await app.request("/empty")).status, 204);
  const failed = await app.request("/fails");
  assert.is(failed.status, 500);
  await failed.text();
  await settle();
  assert.is(lifecycle.inflight, 0);
});

test("a forced end fails the bodies that are still open", async () => {
  const { lifecycle, app } = streamed();
  const response = await app.request("/");
  lifecycle.beginDrain();
  lifecycle.force();
  let failure: unknown;
  await response.text().catch((error) => (failure = error));
  assert.instance(failure, Error);
  assert.is(lifecycle.inflight, 0);
});

test("refused requests get 503 with Retry-After and the reason's code", async () => {
  const { lifecycle, app } = streamed();
  lifecycle.beginDrain();
  const refused = await app.request("/");
  assert.is(refused.status, 503);
  assert.is(refused.headers.get("retry-after"), "1");
  assert.is((await refused.json()).error.code, "draining");
  const starting = createLifecycle({ waitForAvailable: true });
  const early = new Hono();
  early.use(starting.middleware());
  assert.is((await (await early.request("/")).json()).error.code, "not_ready");
});

test.run();
