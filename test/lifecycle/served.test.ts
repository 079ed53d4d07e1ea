/** The middleware behind a real server: clients that leave, at every moment, leave nothing counted. */

import { test } from "uvu";
import * as assert from "uvu/assert";
import { connect } from "node:net";
import { Hono } from "hono";
import { createLifecycle } from "../../src/lifecycle/mod.ts";
import { runtime } from "../support/runtime.ts";
import { until } from "../support/scratch.ts";

/** An app whose answers never end by themselves, and the moment at which each one is held. */
async function served() {
  const lifecycle = createLifecycle();
  const app = new Hono();
  let letAnswer = (): void => {};
  app.use(lifecycle.middleware());
  app.get("/late", async (context) => {
    await new Promise<void>((resolve) => (letAnswer = resolve));
    return context.text("late");
  });
  app.get("/silent", () =>
    new Response(
      new ReadableStream({ start: (controller) => controller.enqueue(new Uint8Array([120])) }),
    ));
  app.get("/endless", () =>
    new Response(
      new ReadableStream({ pull: (controller) => controller.enqueue(new Uint8Array(65_536)) }),
    ));
  app.get("/fails", () =>
    new Response(
      new ReadableStream({
        pull(controller) {
          controller.enqueue(new Uint8Array([120]));
          controller.error(new Error("the source broke"));
        },
      }),
    ));
  const server = await runtime.http.serve(
    { address: { kind: "tcp", host: "127.0.0.1", port: 0 } },
    (request) => app.fetch(request),
  );
  const port = server.address.kind === "tcp" ? server.address.port : 0;
  return { lifecycle, server, port, letAnswer: () => letAnswer() };
}

/** Sends a request; resolves once the connection is made. */
function request(port: number, method: string, path: string) {
  const socket = connect(port, "127.0.0.1");
  socket.on("error", () => {});
  let received = 0;
  let closed = false;
  socket.on("data", (chunk) => (received += chunk.length));
  socket.on("close", () => (closed = true));
  socket.write(`${method} ${path} HTTP/1.1\r\nhost: a\r\n\r\n`);
  return { socket, received: () => received, closed: () => closed };
}

test("a client that leaves while the handler works, or while the answer streams, is counted out", async () => {
  const { lifecycle, server, port, letAnswer } = await served();
  for (const path of ["/late", "/silent", "/endless"]) {
    for (const how of ["fin", "reset"]) {
      const { socket, received } = request(port, "GET", path);
      await until(() => lifecycle.inflight === 1, `${path} is in flight`);
      if (path !== "/late") await until(() => received() > 0, `${path} has begun`);
      if (how === "reset") socket.resetAndDestroy();
      else socket.destroy();
      letAnswer();
      await until(() => lifecycle.inflight === 0, `${path} is over after ${how}`);
    }
  }
  await server.close();
});

test("a body that fails breaks the connection, and is counted out", async () => {
  const { lifecycle, server, port } = await served();
  const { closed } = request(port, "GET", "/fails");
  await until(closed, "the end of the connection");
  assert.is(lifecycle.inflight, 0);
  await server.close();
});

test("HEAD is counted out though its body is never read", async () => {
  const { lifecycle, server, port } = await served();
  const { socket, received } = request(port, "HEAD", "/silent");
  await until(() => received() > 0, "the answer");
  assert.is(lifecycle.inflight, 0);
  socket.destroy();
  await server.destroy();
});

test("a forced end cuts an answer so that its client can tell", async () => {
  const { lifecycle, server, port } = await served();
  const { received, closed } = request(port, "GET", "/silent");
  await until(() => received() > 0, "the first byte");
  lifecycle.beginDrain();
  lifecycle.force();
  await until(closed, "the cut");
  assert.is(lifecycle.inflight, 0);
  await server.close();
});

test.run();
