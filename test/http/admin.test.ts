import { test } from "uvu";
import * as assert from "uvu/assert";
import { BatonError } from "../../src/errors.ts";
import { type AdminOptions, createAdminApp } from "../../src/http/admin.ts";
import { adminOpenApi } from "../../src/http/openapi.ts";
import { createLifecycle } from "../../src/lifecycle/mod.ts";
import { EventJournal } from "../../src/observe/events.ts";
import { silentLog } from "../../src/observe/log.ts";
import { createMetrics } from "../../src/observe/metrics.ts";
import { runtime } from "../support/runtime.ts";

interface Called {
  name: string;
  verb: string;
  options: unknown;
}

function admin(more: Partial<AdminOptions> = {}) {
  const calls: Called[] = [];
  const lifecycle = createLifecycle();
  const events = EventJournal.inMemory({ runtime, log: silentLog });
  const metrics = createMetrics();
  const ending = new AbortController();
  const app = createAdminApp({
    log: silentLog,
    clock: runtime.clock,
    lifecycle,
    metrics,
    events,
    version: "9.9.9",
    versions: () => [
      {
        service: "shard",
        list: () => [{ name: "v1", phase: "serving" }, { name: "v2", phase: "starting" }],
        control: (name, verb, options) => {
          calls.push({ name, verb, options });
          if (verb === "rollback") {
            throw new BatonError("conflict", "there is no build to go back to");
          }
          return Promise.resolve({ state: "paused" });
        },
      },
      {
        service: "other",
        list: () => [{ name: "v2", phase: "serving" }],
        control: () => Promise.resolve({}),
      },
    ],
    workers: () => [{ id: "0", lanes: [] }],
    peers: () => [{ url: "http://10.0.0.2:8082" }],
    recovery: () => ({ state: "recovered" }),
    ui: new Map([["index.html", { contentType: "text/html", body: "<!doctype html>" }]]),
    ending: ending.signal,
    ...more,
  });
  return { app, calls, lifecycle, events, metrics, ending };
}

const post = (body?: unknown) => ({
  method: "POST",
  ...(body === undefined ? {} : { body: JSON.stringify(body) }),
});

test("versions are listed with their service", async () => {
  const { app } = admin();
  const { versions } = await (await app.request("/api/v1/versions")).json();
  assert.equal(versions, [
    { service: "shard", name: "v1", phase: "serving" },
    { service: "shard", name: "v2", phase: "starting" },
    { service: "other", name: "v2", phase: "serving" },
  ]);
});

test("one version is found by its name, and by its service when two have it", async () => {
  const { app } = admin();
  const one = await app.request("/api/v1/versions/v1");
  assert.equal(await one.json(), { service: "shard", name: "v1", phase: "serving" });
  const both = await app.request("/api/v1/versions/v2");
  assert.is(both.status, 409);
  assert.equal((await both.json()).error.services, ["shard", "other"]);
  const chosen = await app.request("/api/v1/versions/v2?service=other");
  assert.is((await chosen.json()).service, "other");
  assert.is((await app.request("/api/v1/versions/v9")).status, 404);
  assert.is((await app.request("/api/v1/versions/v1?service=other")).status, 404);
});

test("operators' calls reach the service with their options", async () => {
  const { app, calls } = admin();
  const sha256 = "AB".repeat(32);
  const answer = await app.request("/api/v1/versions/v1/pin", post({ sha256, reason: "incident" }));
  assert.is(answer.status, 200);
  assert.equal(await answer.json(), { service: "shard", name: "v1", done: "pin", state: "paused" });
  await app.request("/api/v1/versions/v1/pause", post());
  assert.equal(calls, [
    { name: "v1", verb: "pin", options: { sha256: sha256.toLowerCase(), reason: "incident" } },
    { name: "v1", verb: "pause", options: {} },
  ]);
});

test("a call that cannot be is 409 with the reason", async () => {
  const { app } = admin();
  const answer = await app.request("/api/v1/versions/v1/rollback", post());
  assert.is(answer.status, 409);
  assert.equal(await answer.json(), {
    error: { code: "conflict", message: "there is no build to go back to" },
  });
});

test("bad bodies of operators' calls are refused before the service sees them", async () => {
  const { app, calls } = admin();
  const bodies: [string, number][] = [
    ["{", 400],
    ["[]", 400],
    ['{"sha":"x"}', 400],
    ['{"sha256":"abc"}', 400],
    ['{"reason":1}', 400],
    ['{"traffic":true}', 400],
    [`{"reason":"${"x".repeat(5000)}"}`, 413],
  ];
  for (const [body, status] of bodies) {
    const answer = await app.request("/api/v1/versions/v1/deny", { method: "POST", body });
    assert.is(answer.status, status, body.slice(0, 40));
  }
  const other = await app.request("/api/v1/versions/v1/deny", post({ traffic: true }));
  assert.equal(await other.json(), {
    error: {
      code: "bad_request",
      message: 'there is no field "traffic" here',
      allowed: ["sha256", "reason"],
    },
  });
  let pulled = 0;
  const endless = new ReadableStream<Uint8Array>({
    pull(controller) {
      pulled += 1;
      controller.enqueue(new Uint8Array(1024).fill(32));
    },
  });
  const request = new Request("http://127.0.0.1/api/v1/versions/v1/deny", {
    method: "POST",
    body: endless,
    duplex: "half",
  } as RequestInit);
  assert.is((await app.fetch(request)).status, 413);
  assert.ok(pulled < 20, `${pulled} chunks of an endless body were read`);
  assert.equal(calls, []);
});

test("workers, peers and the recovery are what the rooms hand in", async () => {
  const { app } = admin();
  const json = async (path: string) => {
    const answer = await app.request(path);
    assert.is(answer.headers.get("cache-control"), "no-store", path);
    return await answer.json();
  };
  assert.equal(await json("/api/v1/workers"), { workers: [{ id: "0", lanes: [] }] });
  assert.equal(await json("/api/v1/peers"), { peers: [{ url: "http://10.0.0.2:8082" }] });
  assert.equal(await json("/api/v1/recovery"), { state: "recovered" });
});

test("unknown paths are 404 and wrong methods 405 with Allow, as JSON", async () => {
  const { app } = admin();
  const unknown = await app.request("/nothing/here");
  assert.is(unknown.status, 404);
  assert.is((await unknown.json()).error.code, "not_found");
  const wrong = await app.request("/api/v1/versions", { method: "DELETE" });
  assert.is(wrong.status, 405);
  assert.is(wrong.headers.get("allow"), "GET, HEAD");
  assert.is((await wrong.json()).error.code, "method_not_allowed");
  assert.is((await app.request("/api/v1/versions/v1/pause")).headers.get("allow"), "POST");
  assert.is((await app.request("/ready", { method: "PUT" })).status, 405);
});

test("a handler that breaks is a 500 without any detail", async () => {
  const { app } = admin({
    recovery: () => {
      throw new Error("secret path /etc/x");
    },
  });
  const answer = await app.request("/api/v1/recovery");
  assert.is(answer.status, 500);
  assert.equal(await answer.json(), { error: { code: "internal", message: "internal error" } });
});

test("with a token only its bearer is answered, also for paths that do not exist", async () => {
  let token = "right";
  const { app } = admin({ readToken: () => Promise.resolve(token) });
  const status = async (authorization?: string, path = "/api/v1/versions") =>
    (await app.request(path, authorization === undefined ? {} : { headers: { authorization } }))
      .status;
  assert.is(await status(), 401);
  assert.is(await status("Bearer wrong"), 401);
  assert.is(await status("Bearer"), 401);
  assert.is(await status("Basic right"), 401);
  assert.is(await status("Bearer rightx"), 401);
  assert.is(await status("Bearer right"), 200);
  assert.is(await status("bearer right"), 200);
  for (const path of ["/ready", "/metrics", "/openapi.json", "/nothing"]) {
    assert.is(await status(undefined, path), 401, path);
  }
  assert.is(await status(undefined, "/ui/"), 200, "the page asks for the token itself");
  token = "rotated";
  assert.is(await status("Bearer right"), 401);
  assert.is(await status("Bearer rotated"), 200);
});

test("a token that cannot be read lets nobody in", async () => {
  const { app } = admin({ readToken: () => Promise.reject(new Error("no such file")) });
  const answer = await app.request("/ready", { headers: { authorization: "Bearer x" } });
  assert.is(answer.status, 500);
  assert.equal((await answer.json()).error.message, "internal error");
});

test("web pages of other sites are refused, and foreign host names while there is no token", async () => {
  const { app, lifecycle } = admin();
  const status = async (headers: Record<string, string>) =>
    (await app.request("/drain", { method: "POST", headers })).status;
  assert.is(await status({ origin: "https://evil.example", host: "127.0.0.1:8081" }), 403);
  assert.is(await status({ origin: "null", host: "127.0.0.1:8081" }), 403);
  assert.is(await status({ "sec-fetch-site": "cross-site", host: "localhost:8081" }), 403);
  assert.is(await status({ host: "rebound.evil.example:8081" }), 403);
  assert.not(lifecycle.draining);
  const own = { origin: "http://127.0.0.1:8081", host: "127.0.0.1:8081" };
  assert.is(await status(own), 200);
  const open = admin({ readToken: () => Promise.resolve("t") });
  const headers = { host: "baton.internal:8081", authorization: "Bearer t" };
  assert.is((await open.app.request("/ready", { headers })).status, 200);
});

test("metrics are served in the Prometheus text format", async () => {
  const { app, metrics } = admin();
  metrics.counter("baton_x_total", "X.").inc();
  const answer = await app.request("/metrics");
  assert.match(answer.headers.get("content-type") ?? "", /^text\/plain; version=0\.0\.4/);
  assert.match(await answer.text(), "baton_x_total 1");
});

test("the status page is served with a policy that allows its own files only", async () => {
  const { app } = admin();
  const page = await app.request("/ui/");
  assert.is(page.status, 200);
  assert.match(page.headers.get("content-security-policy") ?? "", "default-src 'self'");
  assert.is((await app.request("/ui")).headers.get("location"), "/ui/");
  assert.is((await app.request("/ui/absent.js")).status, 404);
  assert.is((await app.request("/ui/..%2fapp.ts")).status, 404);
});

test("/openapi.json describes exactly the calls that the app answers", async () => {
  const { app } = admin();
  const document = await (await app.request("/openapi.json")).json();
  assert.is(document.openapi, "3.1.0");
  assert.is(document.info.version, "9.9.9");
  const described = new Set<string>();
  for (const [path, operations] of Object.entries(document.paths as Record<string, object>)) {
    for (const method of Object.keys(operations)) {
      described.add(`${method.toUpperCase()} ${path.replace(/\{(\w+)\}/g, ":$1")}`);
    }
  }
  const left = new Set(["GET /", "GET /ui", "GET /ui/:file"]);
  const routes = new Set(
    app.routes.filter(({ method }) => method !== "ALL").map((one) => `${one.method} ${one.path}`)
      .filter((route) => !left.has(route)),
  );
  assert.equal([...described].sort(), [...routes].sort());
});

test("the API document's operations have distinct ids and describe their parameters", () => {
  const ids = new Set<string>();
  const { paths } = adminOpenApi("1") as {
    paths: Record<string, Record<string, { operationId: string; parameters: { name: string }[] }>>;
  };
  for (const [path, operations] of Object.entries(paths)) {
    for (const operation of Object.values(operations)) {
      assert.not(ids.has(operation.operationId), operation.operationId);
      ids.add(operation.operationId);
      for (const [, name] of path.matchAll(/\{(\w+)\}/g)) {
        assert.ok(operation.parameters.some((parameter) => parameter.name === name));
      }
    }
  }
});

test.run();
