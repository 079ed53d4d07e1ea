import { test } from "uvu";
import * as assert from "uvu/assert";
import { Hono } from "hono";
import { createPeerApp } from "../../src/http/peer.ts";
import { sameSecret } from "../../src/http/token.ts";
import { createTrafficApp } from "../../src/http/traffic.ts";
import { createLifecycle } from "../../src/lifecycle/mod.ts";
import { silentLog } from "../../src/observe/log.ts";

function traffic() {
  const lifecycle = createLifecycle({ waitForAvailable: true });
  const app = createTrafficApp({
    log: silentLog,
    lifecycle,
    versions: () => [{
      healthz: () => [{ name: "v1", port: 5000, status: "running" }],
      serves: (version) => version === "v1",
    }],
  });
  return { app, lifecycle };
}

test("case 240: /readyz is on the traffic listener, 503 until serving, never stored", async () => {
  const { app, lifecycle } = traffic();
  const before = await app.request("/readyz");
  assert.is(before.status, 503);
  assert.is(before.headers.get("cache-control"), "no-store");
  lifecycle.available();
  const after = await app.request("/readyz");
  assert.is(after.status, 200);
  assert.is(await after.text(), "ready\n");
});

test("case 238: a version is ready when it serves, whatever the host's other conditions", async () => {
  const { app, lifecycle } = traffic();
  lifecycle.available();
  lifecycle.conditions.set("oracle", false, "unreachable");
  assert.is((await app.request("/readyz")).status, 503);
  assert.is((await app.request("/readyz?version=v1")).status, 200);
  assert.is((await app.request("/readyz?version=v2")).status, 503);
});

test("case 238: an announcing host has no ready version", async () => {
  const lifecycle = createLifecycle({ announceMs: 5000 });
  const app = createTrafficApp({
    log: silentLog,
    lifecycle,
    versions: () => [{ healthz: () => [], serves: () => true }],
  });
  assert.is((await app.request("/readyz?version=v1")).status, 200);
  lifecycle.beginDrain();
  assert.is(lifecycle.state, "announcing");
  assert.is((await app.request("/readyz?version=v1")).status, 503);
  lifecycle.force();
});

test("case 239: without a child GET and HEAD are 503, other methods 405 with Allow", async () => {
  const app = createTrafficApp({
    log: silentLog,
    lifecycle: createLifecycle({ waitForAvailable: true }),
    versions: () => [],
  });
  for (const path of ["/readyz", "/readyz?version=v1"]) {
    for (const method of ["GET", "HEAD"]) {
      assert.is((await app.request(path, { method })).status, 503, `${method} ${path}`);
    }
  }
  const wrong = await app.request("/readyz", { method: "POST" });
  assert.is(wrong.status, 405);
  assert.is(wrong.headers.get("allow"), "GET, HEAD");
});

test("/healthz is the array of versiond, for any method", async () => {
  const { app } = traffic();
  for (const method of ["GET", "POST"]) {
    const answer = await app.request("/healthz", { method });
    assert.is(answer.status, 200);
    assert.equal(await answer.json(), [{ name: "v1", port: 5000, status: "running" }]);
  }
});

test("lifecycle paths are not on the traffic listener", async () => {
  const { app } = traffic();
  for (const path of ["/ready", "/drain", "/drain/status", "/metrics", "/api/v1/versions"]) {
    for (const method of ["GET", "POST"]) {
      assert.is((await app.request(path, { method })).status, 404, `${method} ${path}`);
    }
  }
});

function peer(readToken?: () => Promise<string>) {
  const indexer = new Hono();
  indexer.get(
    "/dump",
    () => new Response("{}\n", { headers: { "content-type": "application/x-ndjson" } }),
  );
  indexer.get("/health", (context) => context.json({ status: "ok" }));
  indexer.post("/query", (context) => context.json({ scores: {} }));
  return createPeerApp({
    log: silentLog,
    lifecycle: createLifecycle(),
    apps: [indexer],
    ...(readToken === undefined ? {} : { readToken }),
  });
}

test("the peer listener has the dump, the rooms' apps and /ready", async () => {
  const app = peer();
  assert.is((await app.request("/ready")).status, 200);
  assert.is((await app.request("/dump")).status, 200);
  assert.is((await app.request("/health")).status, 200);
  assert.is((await app.request("/query", { method: "POST" })).status, 200);
  assert.is((await app.request("/query")).status, 405);
  assert.is((await app.request("/query")).headers.get("allow"), "POST");
  assert.is((await app.request("/absent")).status, 404);
  assert.is((await app.request("/drain", { method: "POST" })).status, 404);
});

test("with a shared token everything but /ready needs it", async () => {
  const app = peer(() => Promise.resolve("shared"));
  const headers = { authorization: "Bearer shared" };
  assert.is((await app.request("/ready")).status, 200);
  for (const path of ["/dump", "/health", "/absent"]) {
    assert.is((await app.request(path)).status, 401, path);
  }
  assert.is((await app.request("/dump", { headers })).status, 200);
  assert.is((await app.request("/health", { headers })).status, 200);
});

test("secrets are the same only when they are equal", async () => {
  assert.ok(await sameSecret("abc", "abc"));
  for (const other of ["", "ab", "abcd", "abd", "ABC"]) assert.not(await sameSecret(other, "abc"));
});

test.run();
