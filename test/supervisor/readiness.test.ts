import { test } from "uvu";
import * as assert from "uvu/assert";
import {
  isAbsent,
  NotReady,
  probe,
  saysInitializing,
  waitReady,
} from "../../src/supervisor/readiness.ts";
import { CalledOff } from "../../src/supervisor/wait.ts";
import { basePort } from "../support/baton_process.ts";
import { runtime } from "../support/runtime.ts";

type Handler = (path: string) => Response | Promise<Response>;

/** Serves until the test is over; answers are chosen by path. */
async function serve(handler: Handler): Promise<{ port: number; close: () => Promise<void> }> {
  const server = await runtime.http.serve(
    { address: { kind: "tcp", host: "127.0.0.1", port: 0 } },
    (request) => handler(new URL(request.url).pathname),
  );
  if (server.address.kind !== "tcp") throw new Error("not TCP");
  return { port: server.address.port, close: () => server.destroy() };
}

const PATHS = { readyPath: "/ready", healthPath: "/healthz" };
const PROBE = { timeoutMs: 500, readBody: true };
const text = (status: number, body = ""): Response => new Response(body, { status });
const forever = new Promise<never>(() => {});

function wait(
  port: number,
  options: Partial<Parameters<typeof waitReady>[2]> & { adminPort?: number; readyPath?: string } =
    {},
) {
  const { adminPort, readyPath, ...rest } = options;
  return waitReady(
    runtime,
    {
      port,
      ...PATHS,
      ...(readyPath === undefined ? {} : { readyPath }),
      ...(adminPort === undefined ? {} : { adminPort }),
    },
    {
      windowMs: 5_000,
      maxWindowMs: 5_000,
      intervalMs: 10,
      probeTimeoutMs: 500,
      passes: 2,
      exited: forever,
      ...rest,
    },
  );
}

async function refusal(promise: Promise<unknown>): Promise<NotReady> {
  try {
    await promise;
  } catch (error) {
    assert.instance(error, NotReady, String(error));
    return error as NotReady;
  }
  throw new Error("it became ready");
}

test("case 93: no admin, /ready 404, /healthz 200: ready", async () => {
  const server = await serve((path) => text(path === "/healthz" ? 200 : 404));
  const result = await wait(server.port);
  assert.is(result.legacy, true);
  await server.close();
});

test("case 94: no admin, a custom path that is 404: not ready, and no fallback", async () => {
  const asked: string[] = [];
  const server = await serve((path) => {
    asked.push(path);
    return text(path === "/custom" ? 404 : 200);
  });
  const error = await refusal(
    wait(server.port, { readyPath: "/custom", windowMs: 60, maxWindowMs: 60 }),
  );
  assert.is(error.class, "ready_absent");
  assert.not(asked.includes("/healthz"));
  await server.close();
});

test("case 95: admin ready and public 503 is not ready; public 200 is", async () => {
  let health = 503;
  let asked = 0;
  const publicServer = await serve((path) => {
    if (path === "/healthz") asked += 1;
    return text(health);
  });
  const admin = await serve(() => text(200));
  const target = { port: publicServer.port, adminPort: admin.port, ...PATHS };
  assert.is((await probe(runtime, target, PROBE)).class, "initializing");
  assert.is(asked, 1);
  health = 200;
  assert.is((await probe(runtime, target, PROBE)).class, "ready");
  await publicServer.close();
  await admin.close();
});

test("case 96: both must be good in one attempt: admin ready only while public is not, never ready", async () => {
  let attempt = 0;
  let adminAsked = 0;
  const admin = await serve(() => {
    adminAsked += 1;
    attempt += 1;
    return text(attempt % 2 === 1 ? 200 : 503);
  });
  const publicServer = await serve(() => text(attempt % 2 === 1 ? 503 : 200));
  await refusal(
    wait(publicServer.port, { adminPort: admin.port, windowMs: 600, maxWindowMs: 600 }),
  );
  assert.ok(adminAsked >= 2);
  await publicServer.close();
  await admin.close();
});

test("case 97: /ready 404 is ready by the fallback where it is allowed, and not where it is not", async () => {
  const server = await serve((path) => text(path === "/healthz" ? 200 : 404));
  const allowed = await probe(runtime, { port: server.port, ...PATHS }, PROBE);
  assert.equal([allowed.class, allowed.legacy], ["ready", true]);
  const withAdmin = await probe(
    runtime,
    { port: server.port, adminPort: server.port, ...PATHS },
    PROBE,
  );
  assert.is(withAdmin.class, "ready_absent");
  await server.close();
});

test("without any known path a child that accepts connections is ready", async () => {
  const server = await serve(() => text(404));
  assert.is((await probe(runtime, { port: server.port, ...PATHS }, PROBE)).legacy, true);
  await server.close();
});

test("case 110: 404, 405 and 501 mean absent; 503 and 200 do not", () => {
  assert.equal([404, 405, 501, 503, 200].map(isAbsent), [true, true, true, false, false]);
});

test("case 111: which bodies of a 503 say that the child is initialising", () => {
  assert.is(saysInitializing('{"ready":false,"storage_ready":true}'), true);
  assert.is(saysInitializing('{"ready":true,"storage_ready":false}'), true);
  assert.is(saysInitializing('{"ready":false,"storage_ready":false}'), true);
  assert.is(saysInitializing("{}"), true);
  assert.is(saysInitializing('{"draining":true,"ready":false}'), false);
  assert.is(saysInitializing('{"ready":true,"storage_ready":true}'), false);
  assert.is(saysInitializing("not JSON"), false);
  assert.is(saysInitializing(""), false);
});

test("case 112: a child that initialises is waited for past its window", async () => {
  const since = performance.now();
  const server = await serve(() =>
    performance.now() - since < 350
      ? text(503, '{"ready":false,"draining":false}')
      : text(200, "{}")
  );
  await wait(server.port, { windowMs: 80, maxWindowMs: 10_000 });
  assert.ok(performance.now() - since >= 350);
  await server.close();
});

test("case 113: a closed port fails at the end of the window, as unreachable", async () => {
  const error = await refusal(
    wait(basePort(), { windowMs: 150, maxWindowMs: 60_000 }),
  );
  assert.is(error.class, "unreachable");
  assert.ok(error.waitedMs >= 150 && error.waitedMs < 10_000);
});

test("case 114: a draining 503 fails at the end of the window, as not ready", async () => {
  const server = await serve(() => text(503, '{"ready":false,"draining":true}'));
  const error = await refusal(wait(server.port, { windowMs: 80, maxWindowMs: 60_000 }));
  assert.is(error.class, "not_ready");
  assert.ok(error.waitedMs < 10_000);
  await server.close();
});

test("case 115: a readiness path that is absent for a while is waited for", async () => {
  const since = performance.now();
  const server = await serve((path) => {
    if (path === "/healthz") return text(503);
    return text(performance.now() - since < 350 ? 404 : 200);
  });
  await wait(server.port, { windowMs: 80, maxWindowMs: 10_000 });
  assert.ok(performance.now() - since >= 350);
  await server.close();
});

test("one lucky answer is not enough: passes must come in a row", async () => {
  let asked = 0;
  const answers = [200, 503, 200, 200];
  const server = await serve(() => text(answers[Math.min(asked++, 3)] ?? 200));
  await wait(server.port);
  assert.is(asked, 4);
  await server.close();
});

test("a child that takes the connection and never answers fails at the window", async () => {
  const server = await serve(() => forever);
  const error = await refusal(
    wait(server.port, { windowMs: 100, maxWindowMs: 60_000, probeTimeoutMs: 40 }),
  );
  assert.is(error.class, "unreachable");
  await server.close();
});

test("a redirect is not readiness", async () => {
  const server = await serve((path) =>
    path === "/ready"
      ? new Response(null, { status: 302, headers: { location: "/healthz" } })
      : text(200)
  );
  assert.is((await probe(runtime, { port: server.port, ...PATHS }, PROBE)).class, "not_ready");
  await server.close();
});

test("the child's exit ends the wait at once", async () => {
  let end = (): void => {};
  const exited = new Promise<void>((resolve) => (end = resolve));
  const waiting = refusal(wait(basePort(), { windowMs: 600_000, exited }));
  end();
  assert.is((await waiting).class, "exited");
});

test("a wait that is called off ends at once", async () => {
  const controller = new AbortController();
  const waiting = wait(basePort(), { windowMs: 600_000, signal: controller.signal });
  controller.abort(new Error("another build is wanted"));
  try {
    await waiting;
    assert.unreachable();
  } catch (error) {
    assert.instance(error, CalledOff);
    assert.match((error as Error).message, "another build");
  }
});

test.run();
