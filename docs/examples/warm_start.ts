import { serve } from "@hono/node-server";
import { createLifecycle } from "baton/lifecycle";
import { Hono } from "hono";
import process from "node:process";

const { PORT, ADMIN_PORT, PEER_PORT, BATON_REPLICA_PREDECESSORS = "[]" } = process.env;
const lifecycle = createLifecycle();
const hostname = "127.0.0.1";

// What must not get lost with the process: answers that were dear to find.
const cache = new Map<string, string>();

const app = new Hono();
// With an admin port Baton also asks this one whether it listens.
app.get("/healthz", (context) => context.text("ok"));
app.use(lifecycle.middleware());
app.get("/dear/:question", async (context) => {
  const question = context.req.param("question");
  const known = cache.get(question);
  if (known === undefined) {
    await new Promise((resolve) => setTimeout(resolve, 500));
    cache.set(question, question.toUpperCase());
  }
  context.header("x-cache", known === undefined ? "miss" : "hit");
  return context.text(known ?? question.toUpperCase());
});

// What the generation after this one asks. It answers until the process ends, draining or not; but
// not before we have what there is, or an empty cache would pass for a whole one.
let isWarm = false;
const peers = new Hono();
peers.get("/cache", (context) => isWarm ? context.json([...cache]) : context.text("not yet", 503));

async function takeOver(): Promise<string> {
  for (const address of JSON.parse(BATON_REPLICA_PREDECESSORS) as string[]) {
    try {
      const response = await fetch(`http://${address}/cache`, {
        signal: AbortSignal.timeout(10_000),
      });
      if (!response.ok) throw new Error(`status ${response.status}`);
      for (const [question, answer] of await response.json()) cache.set(question, answer);
      return `${cache.size} answers from ${address}`;
    } catch (error) {
      console.error(`nothing from ${address}: ${error}`);
    }
  }
  return "nobody to ask: empty";
}

const servers = [
  serve({ fetch: lifecycle.routes().fetch, hostname, port: Number(ADMIN_PORT) }),
  serve({ fetch: peers.fetch, hostname, port: Number(PEER_PORT) }),
  serve({ fetch: app.fetch, hostname, port: Number(PORT) }),
];

// Not ready until that has ended: until then the generation before has the requests.
lifecycle.conditions.set("cache", false, "taking it over");
takeOver().then((how) => {
  isWarm = true;
  console.log(how);
  lifecycle.conditions.set("cache", true, how);
});

process.on("SIGTERM", async () => {
  await lifecycle.drain({ timeoutMs: 30_000 });
  for (const server of servers) server.close();
});
