import { serve } from "@hono/node-server";
import { createLifecycle } from "baton/lifecycle";
import { Hono } from "hono";
import process from "node:process";

const lifecycle = createLifecycle();

// What clients use. Each exchange counts until the last byte of its answer was read.
const app = new Hono();
app.use(lifecycle.middleware());
app.get("/", (context) => context.text("hello\n"));
app.get("/count", () => {
  const lines = new ReadableStream<Uint8Array>({
    async start(controller) {
      for (let line = 1; line <= 5; line += 1) {
        controller.enqueue(new TextEncoder().encode(`${line}\n`));
        await new Promise((resolve) => setTimeout(resolve, 200));
      }
      controller.close();
    },
  });
  return new Response(lines);
});

// What a supervisor, Kubernetes or an operator asks: on a listener of its own.
const admin = serve({
  fetch: lifecycle.routes().fetch,
  hostname: "127.0.0.1",
  port: Number(process.env.ADMIN_PORT),
});
const server = serve({ fetch: app.fetch, port: Number(process.env.PORT) });

// Not ready until the cache is warm, whatever else is well.
lifecycle.conditions.set("cache", false, "warming up");
setTimeout(() => lifecycle.conditions.set("cache", true), 300);

process.on("SIGTERM", async () => {
  const { drained, left } = await lifecycle.drain({ timeoutMs: 30_000 });
  if (!drained) console.error(`${left} exchanges are cut`);
  server.close();
  admin.close();
});
