/** `GET /dump` as a client sees it. */

import { connect } from "node:net";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { createMetrics } from "../../src/observe/metrics.ts";
import { silentLog } from "../../src/observe/log.ts";
import { createDumpHandler, type DumpHandlerOptions } from "../../src/replica/dump_handler.ts";
import { createDumpMetrics } from "../../src/replica/dump_metrics.ts";
import { runtime } from "../support/runtime.ts";
import {
  closeAll,
  contentOf,
  laneKey,
  sourceReplica,
  store,
  testReplica,
} from "./support/replica.ts";
import { keyOf, makeCut, Shelf } from "./support/shelf.ts";
import { DEADLINE_MS } from "../support/until.ts";

interface Served {
  readonly url: string;
  readonly port: number;
  metric(name: string): Promise<string | undefined>;
  close(): Promise<void>;
}

async function serve(
  shelf: Shelf,
  more: Partial<DumpHandlerOptions> & { host?: string } = {},
): Promise<Served> {
  const metrics = createMetrics();
  const { host = "127.0.0.1", ...options } = more;
  const app = createDumpHandler({
    runtime,
    log: silentLog,
    metrics: createDumpMetrics(metrics),
    store: shelf,
    replica: "r1",
    recovered: () => true,
    ...options,
  });
  const server = await runtime.http.serve(
    { address: { kind: "tcp", host, port: 0 } },
    (request) => app.fetch(request),
  );
  const port = server.address.kind === "tcp" ? server.address.port : 0;
  return {
    url: `http://${host.includes(":") ? `[${host}]` : host}:${port}/dump`,
    port,
    metric: async (name) => {
      const line = (await metrics.text()).split("\n").find((one) => one.startsWith(`${name} `));
      return line?.slice(name.length + 1);
    },
    close: () => server.destroy(),
  };
}

const SMALL = (): Shelf => new Shelf([makeCut(keyOf("0"), 100), makeCut(keyOf("1"), 10)]);
/** More than the buffers of sockets hold. */
const LARGE_CUT = makeCut(keyOf("0"), 300_000);
const LARGE = (): Shelf => new Shelf([LARGE_CUT]);

test("kv 32: recovered and empty: 200, and a whole dump of nothing", async () => {
  const served = await serve(new Shelf([]));
  const lines = await fetch(served.url);
  assert.is(lines.status, 200);
  assert.is(lines.headers.get("content-type"), "application/x-ndjson");
  assert.is(lines.headers.get("cache-control"), "no-store");
  const text = await lines.text();
  assert.match(text, /^{"kind":"header".*}\n{"kind":"trailer","lanes":0,"blocks":0}\n$/);
  const json = await fetch(served.url, { headers: { accept: "application/json" } });
  assert.is(json.headers.get("content-type"), "application/json");
  assert.is(await json.text(), "{}");
  await served.close();
});

test("kv 34: max_bytes that is too small: 413; 0 or absent: no limit", async () => {
  const served = await serve(SMALL());
  for (const accept of ["application/json", "application/x-ndjson"]) {
    const get = (query: string) => fetch(served.url + query, { headers: { accept } });
    const refused = await get("?max_bytes=1");
    assert.is(refused.status, 413);
    assert.is((await refused.json() as { error: { code: string } }).error.code, "body_too_large");
    for (const query of ["", "?max_bytes=0", "?max_bytes=1000000"]) {
      const response = await get(query);
      assert.is(response.status, 200);
      await response.arrayBuffer();
    }
  }
  // What is not asked for does not count.
  const lane = encodeURIComponent(`["model","default","1",0]`);
  const part = await fetch(`${served.url}?max_bytes=2000&lane=${lane}`);
  assert.is(part.status, 200);
  assert.match(await part.text(), /"kind":"trailer","lanes":1,"blocks":10}/);
  await served.close();
});

test("a lane or a bound that is none is refused, and the answer says what is allowed", async () => {
  const served = await serve(SMALL());
  for (
    const [query, allowed] of [
      ["?lane=m", /lane must be \["model","group","worker",dpRank\] as JSON, not m/],
      [`?lane=${encodeURIComponent('["m","g","w"]')}`, /lane must be/],
      ["?max_bytes=abc", /max_bytes must be a whole number of bytes, not abc/],
      ["?max_bytes=-1", /max_bytes must be/],
    ] as const
  ) {
    const response = await fetch(served.url + query);
    assert.is(response.status, 400, query);
    assert.match((await response.json() as { error: { message: string } }).error.message, allowed);
  }
  const unknown = encodeURIComponent('["other", "g", "w", 0]');
  const none = await (await fetch(`${served.url}?lane=${unknown}`)).text();
  assert.match(none, /{"kind":"trailer","lanes":0,"blocks":0}\n$/);
  await served.close();
});

test("kv 34: a dump that turns out to be larger than max_bytes breaks off", async () => {
  const served = await serve(LARGE());
  const response = await fetch(`${served.url}?max_bytes=6400000`);
  assert.is(response.status, 200);
  assert.ok(await fails(response));
  await served.close();
});

test("kv 35: reached by IPv4 and by IPv6, each wherever it listens", async () => {
  const source = await sourceReplica({ lanes: [laneKey("0")] });
  const lane = source.store.lane(laneKey("0"));
  if (lane === undefined) throw new Error("no lane");
  store(lane, 0, 1n, 0, 10);
  for (const host of ["0.0.0.0", "::"]) {
    const app = createDumpHandler({
      runtime,
      log: silentLog,
      metrics: createDumpMetrics(createMetrics()),
      store: source.store,
      replica: "r1",
      recovered: () => true,
    });
    const server = await runtime.http.serve(
      { address: { kind: "tcp", host, port: 0 } },
      (request) => app.fetch(request),
    );
    const port = server.address.kind === "tcp" ? server.address.port : 0;
    const peer = host === "::" ? `http://[::1]:${port}` : `http://127.0.0.1:${port}`;
    const joiner = await testReplica({ lanes: [laneKey("0")], peers: [peer] });
    joiner.recovery.start();
    assert.is(await joiner.recovery.done, "recovered");
    const ours = joiner.store.lane(laneKey("0"));
    assert.equal(ours && contentOf(ours), contentOf(lane));
    await joiner.close();
    await server.destroy();
  }
  await source.close();
});

test("kv 36: an index that fails at once: 500; later: a body that breaks, never a 200 with an error inside", async () => {
  for (const accept of ["application/json", "application/x-ndjson"]) {
    const early = SMALL();
    const late = LARGE();
    for (const shelf of [early, late]) {
      const [lane] = shelf.lanes();
      if (lane === undefined) throw new Error("no lane");
      if (shelf === late) shelf.add(makeCut(keyOf("broken"), 5));
      const broken = shelf === late ? shelf.lane(keyOf("broken")) : lane;
      if (broken === undefined) throw new Error("no lane");
      broken.cutInSlices = () => {
        throw new Error("secret detail of the index");
      };
    }
    const first = await serve(early);
    const refused = await fetch(first.url, { headers: { accept } });
    assert.is(refused.status, 500);
    assert.not.match(await refused.text(), /secret detail/);
    await first.close();
    const second = await serve(late);
    const response = await fetch(second.url, { headers: { accept } });
    assert.is(response.status, 200);
    assert.ok(await fails(response));
    assert.is(await second.metric('baton_kv_dumps_total{end="failed"}'), "1");
    assert.is(await second.metric("baton_kv_dumps_active"), "0");
    await second.close();
  }
});

test("HEAD tells the type and takes no place", async () => {
  const served = await serve(SMALL(), { maxDumps: 1 });
  for (let time = 0; time < 3; time += 1) {
    const response = await fetch(served.url, { method: "HEAD" });
    assert.is(response.status, 200);
    assert.is(await response.text(), "");
  }
  assert.is((await fetch(served.url)).status, 200);
  await served.close();
});

test("at most so many dumps at once: the next one is told when to come back, and gets in then", async () => {
  const served = await serve(LARGE(), { maxDumps: 2 });
  const first = await fetch(served.url);
  const second = await fetch(served.url);
  const third = await fetch(served.url);
  assert.is(third.status, 503);
  assert.ok(Number(third.headers.get("retry-after")) >= 1);
  assert.is((await third.json() as { error: { code: string } }).error.code, "overloaded");
  // One reads to its end, the other one goes away: both places are free again.
  await first.arrayBuffer();
  await second.body?.cancel();
  const deadline = performance.now() + DEADLINE_MS;
  for (let free = 0; free < 2;) {
    const again = await fetch(served.url);
    if (again.status === 200) free += 1;
    await again.body?.cancel();
    assert.ok(performance.now() < deadline);
  }
  await served.close();
});

test("a reader that takes nothing loses its dump, and its place goes to others", async () => {
  const served = await serve(LARGE(), { maxDumps: 1, idleTimeoutMs: 300 });
  const socket = connect(served.port, "127.0.0.1");
  await new Promise<void>((resolve) => socket.once("connect", () => resolve()));
  socket.pause();
  socket.write("GET /dump HTTP/1.1\r\nhost: x\r\n\r\n");
  const deadline = performance.now() + DEADLINE_MS;
  while (await served.metric('baton_kv_dumps_total{end="stalled"}') !== "1") {
    assert.ok(performance.now() < deadline);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  assert.is(await served.metric("baton_kv_dumps_active"), "0");
  socket.destroy();
  const next = await fetch(served.url);
  assert.is(next.status, 200);
  await next.body?.cancel();
  await served.close();
});

test("a slow reader is no idle reader: the dump waits for it and holds little", async () => {
  const shelf = LARGE();
  const served = await serve(shelf, { idleTimeoutMs: 60_000 });
  const response = await fetch(served.url);
  const reader = response.body?.getReader();
  if (reader === undefined) throw new Error("no body");
  let bytes = 0;
  for (let reads = 0;; reads += 1) {
    const { done, value } = await reader.read();
    if (done) break;
    bytes += value.length;
    if (reads < 10) await new Promise((resolve) => setTimeout(resolve, 50));
  }
  assert.ok(bytes > 6_400_000);
  assert.is(await served.metric('baton_kv_dumps_total{end="complete"}'), "1");
  await served.close();
});

test("one may ask for some lanes only", async () => {
  const served = await serve(SMALL());
  const lane = encodeURIComponent(`["model","default","1",0]`);
  const text = await (await fetch(`${served.url}?lane=${lane}`)).text();
  assert.not.match(text, /"worker":"0"/);
  assert.match(text, /"worker":"1"/);
  assert.match(text, /"kind":"trailer","lanes":1,"blocks":10}/);
  await served.close();
});

test("gzip when it is asked for, and only then", async () => {
  const served = await serve(SMALL());
  const ask = (encoding: string) =>
    runtime.http.fetch(served.url, { headers: { "accept-encoding": encoding } });
  const packed = await ask("gzip");
  assert.is(packed.headers.get("content-encoding"), "gzip");
  const gunzip = new DecompressionStream("gzip") as TransformStream<Uint8Array, Uint8Array>;
  const text = await new Response(packed.body?.pipeThrough(gunzip)).text();
  for (const encoding of ["identity", "gzip;q=0", "br"]) {
    const plain = await ask(encoding);
    assert.is(plain.headers.get("content-encoding"), null);
    assert.is((await plain.text()).length, text.length);
  }
  await served.close();
});

test("a dump leaves room for other requests: the event loop is never held for long", async () => {
  const served = await serve(LARGE());
  let longest = 0;
  let turns = 0;
  let last = performance.now();
  const timer = setInterval(() => {
    const now = performance.now();
    longest = Math.max(longest, now - last);
    last = now;
    turns += 1;
  }, 1);
  const response = await fetch(served.url);
  await response.arrayBuffer();
  clearInterval(timer);
  // No wall-clock limit here (the bench has it): a dump in one piece would allow no turn at all.
  assert.ok(turns > 20, `${turns} turns, the longest ${longest} ms`);
  await served.close();
});

/** True if the body breaks off with an error. */
async function fails(response: Response): Promise<boolean> {
  try {
    await response.arrayBuffer();
    return false;
  } catch {
    return true;
  }
}

test.after(closeAll);
test.run();
