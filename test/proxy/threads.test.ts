/** The traffic listener in two real threads: swaps under load, holds, cuts, drains, and a lost thread. */

import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { BatonError } from "../../src/errors.ts";
import { createLog } from "../../src/observe/log.ts";
import { createMetrics } from "../../src/observe/metrics.ts";
import type { Exchange, Forward } from "../../src/proxy/exchange.ts";
import { type Lease, Target } from "../../src/proxy/target.ts";
import {
  startThreadedTraffic,
  type ThreadedService,
  type ThreadedTraffic,
} from "../../src/threads/threaded_traffic.ts";
import type { ListenerSettings } from "../../src/threads/messages.ts";
import type { Thread } from "../../src/runtime/threads_contract.ts";
import { runtime } from "../support/runtime.ts";
import { H2Client } from "./h2_wire.ts";
import { bodyOf, Client, eventually, statusOf } from "./wire.ts";

/** A child: answers with its number, as fast or as slowly as the path says. */
class Child {
  readonly number: number;
  requests = 0;
  /** Set when the test stops it; a request after that is one that came too late. */
  stopped = false;
  late = 0;
  readonly #server: Server;
  target!: Target;

  constructor(number: number) {
    this.number = number;
    this.#server = createServer((request, response) => {
      this.requests += 1;
      if (this.stopped) this.late += 1;
      if (request.url === "/stream") {
        response.write("begun ");
        return;
      }
      if (request.url === "/via") return response.end(`via ${request.headers.via}.`);
      const answer = () => response.end(`child ${number}`);
      if (request.url === "/slow") setTimeout(answer, 300);
      else answer();
    });
    this.#server.keepAliveTimeout = 60_000;
  }

  async start(): Promise<this> {
    await new Promise<void>((resolve) => this.#server.listen(0, "127.0.0.1", resolve));
    const { port } = this.#server.address() as AddressInfo;
    this.target = new Target({
      service: "svc",
      version: "v1",
      generation: this.number,
      address: { kind: "tcp", host: "127.0.0.1", port },
    });
    return this;
  }

  stop(): void {
    this.stopped = true;
    this.#server.closeAllConnections();
    this.#server.close();
  }
}

/** A versions service in small: one version, held while nobody serves it. */
class SmallService implements ThreadedService {
  readonly byVersion = true;
  readonly hidden = ["/drain"];
  current: Child | undefined;
  asked = 0;
  readonly #listeners = new Set<() => void>();
  #waiting: (() => void)[] = [];
  readonly service = {
    name: "svc",
    mounts: ["/svc"],
    handle: (exchange: Exchange, forward: Forward) => this.#serve(exchange, forward),
    // Only of v1 there is hope.
    startHoldMs: ({ path }: { path: string }) => path.startsWith("/svc/v1") ? 20_000 : 0,
  };

  direct(): readonly (readonly [string, Target])[] {
    return this.current === undefined ? [] : [["v1", this.current.target]];
  }

  onChange(listener: () => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  async #serve(exchange: Exchange, forward: Forward): Promise<void> {
    this.asked += 1;
    if (!exchange.path.startsWith("/svc/v1")) throw new BatonError("unknown_version", "no such");
    if (exchange.path === "/svc/v1/drain") throw new BatonError("not_found", "nothing is here");
    for (;;) {
      const lease = this.current?.target.claim(exchange.requestId, 0);
      if (lease === undefined) {
        await new Promise<void>((resolve) => this.#waiting.push(resolve));
        if (exchange.finished) return;
        continue;
      }
      await forward(exchange, lease, { target: exchange.target.slice("/svc/v1".length) });
      return;
    }
  }

  /** Reachable first, then the old one is retired; stops it once it is drained. */
  async swapTo(next: Child | undefined): Promise<void> {
    const old = this.current;
    this.current = next;
    for (const listener of this.#listeners) listener();
    for (const wake of this.#waiting.splice(0)) wake();
    await old?.target.retire();
    old?.stop();
  }

  get waiting(): number {
    return this.#waiting.length;
  }
}

interface Stage {
  readonly traffic: ThreadedTraffic;
  readonly service: SmallService;
  readonly port: number;
  /** Every thread that was ever started. */
  readonly started: readonly Thread[];
  readonly gate: { accepting: boolean; draining: boolean };
  metricsText(): Promise<string>;
}

async function withThreads(
  body: (stage: Stage) => Promise<void>,
  settings: Partial<ListenerSettings> = {},
): Promise<void> {
  const service = new SmallService();
  const gate = { accepting: true, draining: false };
  const metrics = createMetrics();
  const started: Thread[] = [];
  const start = (module: URL): Thread => {
    const thread = runtime.threads.start(module);
    started.push(thread);
    return thread;
  };
  const traffic = await startThreadedTraffic({
    runtime: { ...runtime, threads: { start, parent: undefined } },
    log: createLog({ write: () => {}, now: () => 0 }),
    metrics,
    threads: 2,
    settings: {
      listen: { address: { kind: "tcp", host: "127.0.0.1", port: 0 } },
      logLevel: "error",
      ownPaths: ["/healthz"],
      http2: "always",
      ...settings,
    },
    services: [service],
    timeouts: () => undefined,
    appFetch: (request) => Response.json({ path: new URL(request.url).pathname }),
    gate: () => gate,
  });
  const { address } = traffic;
  if (address.kind !== "tcp") throw new Error("no port");
  try {
    const { port } = address;
    await body({ traffic, service, port, gate, started, metricsText: () => metrics.text() });
  } finally {
    const closed = traffic.close();
    traffic.destroy();
    await closed;
    service.current?.stop();
  }
}

function ask(path: string, method = "GET"): string {
  const body = method === "POST" ? "Content-Length: 4\r\n\r\nbody" : "\r\n";
  return `${method} ${path} HTTP/1.1\r\nHost: a.test\r\n${body}`;
}

test("requests of many connections are served by both threads, and what is ours by the main one", async () => {
  await withThreads(async ({ traffic, service, port, metricsText }) => {
    await service.swapTo(await new Child(1).start());
    const clients = await Promise.all(Array.from({ length: 24 }, () => Client.to(port)));
    await eventually("the connections are counted", () => traffic.connections === 24);
    // A request may overtake the first table, and is then asked about; soon none is any more.
    let rounds = 0;
    for (let asked = -1; asked !== service.asked; rounds++) {
      asked = service.asked;
      for (const client of clients) client.send(ask("/svc/v1/x"));
      for (const client of clients) {
        assert.is(bodyOf(await client.until("child 1")), "child 1");
        client.received = "";
      }
      assert.ok(rounds < 20);
    }
    const [client] = clients as [Client];
    client.received = "";
    client.send(ask("/healthz"));
    assert.match(await client.until("}"), /"path":"\/healthz"/);
    client.received = "";
    client.send(ask("/svc/v2/x"));
    assert.match(await client.until("}}"), /HTTP\/1\.1 404 /);
    const h2 = await H2Client.to(port);
    assert.is((await h2.ask("/svc/v1/h2").done()).body, "child 1");
    h2.destroy();
    const end = performance.now() + 10_000;
    const wanted = `method="GET",status="200"} ${24 * rounds + 1}`;
    for (let text = ""; !text.includes(`service="svc",${wanted}`);) {
      if (performance.now() > end) throw new Error(`metrics: ${text}`);
      await new Promise((resolve) => setTimeout(resolve, 20));
      text = await metricsText();
    }
    for (const one of clients) one.destroy();
  });
});

test("fifty swaps under load: nothing fails, nothing is cut, no child is asked after its end", async () => {
  await withThreads(async ({ service, port }) => {
    const children: Child[] = [await new Child(1).start()];
    await service.swapTo(children[0]);
    let done = false;
    let sent = 0;
    const failures: string[] = [];
    const load = async (at: number): Promise<void> => {
      const client = await Client.to(port);
      while (!done) {
        client.received = "";
        client.send(ask(`/svc/v1/${at}`, at % 2 === 0 ? "POST" : "GET"));
        sent += 1;
        await eventually("an answer", () => /child \d+$/.test(client.received) || client.fin);
        if (statusOf(client.received) !== 200) failures.push(client.received.slice(0, 200));
      }
      client.destroy();
    };
    const running = Array.from({ length: 8 }, (_, at) => load(at));
    for (let swap = 2; swap <= 51; swap++) {
      const next = await new Child(swap).start();
      children.push(next);
      await service.swapTo(next);
    }
    await eventually("some load", () => sent > 100);
    done = true;
    await Promise.all(running);
    assert.equal(failures, []);
    assert.is(children.reduce((sum, { late }) => sum + late, 0), 0);
    // Each request was executed once.
    assert.is(children.reduce((sum, { requests }) => sum + requests, 0), sent);
  });
});

test("a stream holds its target over a swap; it is listed, warned of and cut from the main thread", async () => {
  await withThreads(async ({ service, port }) => {
    const old = await new Child(1).start();
    await service.swapTo(old);
    const client = await Client.to(port);
    client.send(ask("/svc/v1/stream"));
    await client.until("begun");
    await eventually("the lease is counted by kind", () => old.target.count("stream") === 1);
    assert.is(old.target.leases, 1);
    const cut: string[] = [];
    old.target.onCut((lease: Lease, failure) => cut.push(`${lease.kind} ${failure}`));
    let drained = false;
    const swapped = service.swapTo(await new Child(2).start()).then(() => (drained = true));
    await eventually("the lease is known one by one", () => old.target.open().length === 1);
    const next = await Client.to(port);
    next.send(ask("/svc/v1/x"));
    assert.is(bodyOf(await next.until(/child \d/)), "child 2");
    assert.is(drained, false);
    assert.is(old.target.open()[0]?.kind, "stream");
    old.target.open()[0]?.cut?.("deadline");
    await swapped;
    assert.is(old.target.leases, 0);
    await client.untilClosed();
    assert.equal(cut, ["stream deadline"]);
    next.destroy();
  });
});

test("a request waits in the main thread until somebody serves, and a client may leave meanwhile", async () => {
  await withThreads(async ({ service, port }) => {
    const waiting = await Client.to(port);
    waiting.send(ask("/svc/v1/x", "POST"));
    const leaving = await Client.to(port);
    leaving.send(ask("/svc/v1/x"));
    await eventually("both wait", () => service.waiting === 2);
    leaving.destroy();
    const child = await new Child(1).start();
    await new Promise((resolve) => setTimeout(resolve, 100));
    await service.swapTo(child);
    assert.is(bodyOf(await waiting.until(/child \d/)), "child 1");
    await eventually("no lease is left", () => child.target.leases === 0);
    assert.is(child.requests, 1);
    waiting.destroy();
  });
});

test("a child that refuses is reported, and the main thread decides what becomes of the request", async () => {
  await withThreads(async ({ service, port }) => {
    const gone = await new Child(1).start();
    gone.stop();
    let reports = 0;
    gone.target.onConnectFailure(() => {
      reports += 1;
      if (reports === 1) void new Child(2).start().then((next) => service.swapTo(next));
    });
    await service.swapTo(gone);
    const client = await Client.to(port);
    client.send(ask("/svc/v1/x"));
    const answer = await client.until(/child 2|\}\}/);
    assert.ok(reports >= 1);
    assert.ok([200, 502].includes(statusOf(answer)), answer);
    assert.is(service.asked, 1);
    client.destroy();
  });
});

test("a closed gate lets nothing in, and idle comes only after the last answer", async () => {
  await withThreads(async ({ traffic, service, port, gate }) => {
    await service.swapTo(await new Child(1).start());
    const slow = await Client.to(port);
    slow.send(ask("/svc/v1/slow"));
    await eventually("it is in flight", () => traffic.inflight === 1);
    gate.accepting = false;
    gate.draining = true;
    traffic.tellGate();
    traffic.drain();
    let isIdle = false;
    const idle = traffic.idle().then(() => (isIdle = true));
    // What comes before a thread has heard of it is let in, and counted.
    let status = 200;
    for (let count = 0; status !== 503; count++) {
      assert.ok(count < 1000 && status === 200, `status ${status}`);
      const client = await Client.to(port);
      client.send(ask("/svc/v1/x"));
      status = statusOf(await client.untilClosed());
    }
    if (!slow.received.includes("child")) assert.is(isIdle, false);
    assert.is(bodyOf(await slow.until(/child \d/)), "child 1");
    await idle;
    assert.is(traffic.inflight, 0);
    slow.destroy();
  });
});

test("a thread that is lost costs what was on it; its target drains, and another takes its place", async () => {
  await withThreads(async ({ service, port, started }) => {
    const old = await new Child(1).start();
    await service.swapTo(old);
    const clients = await Promise.all(Array.from({ length: 16 }, () => Client.to(port)));
    for (const client of clients) client.send(ask("/svc/v1/stream"));
    for (const client of clients) await client.until("begun");
    const cut: string[] = [];
    old.target.onCut((lease, failure) => cut.push(`${lease.kind} ${failure}`));
    const swapped = service.swapTo(await new Child(2).start());
    await eventually("all are known one by one", () => old.target.open().length === 16);
    await started[0]?.terminate();
    await eventually(
      "its connections are closed",
      () => clients.some(({ closed, fin }) => closed || fin),
    );
    await eventually("another has begun", () => started.length === 3);
    for (const lease of old.target.open()) lease.cut?.("deadline");
    await swapped;
    assert.is(old.target.leases, 0);
    assert.ok(cut.includes("stream thread_ended"));
    assert.is(cut.length, 16);
    for (let count = 0; count < 10; count++) {
      const client = await Client.to(port);
      client.send(ask("/svc/v1/x"));
      assert.is(bodyOf(await client.until(/child \d/)), "child 2");
      client.destroy();
    }
    for (const client of clients) client.destroy();
  });
});

test("all threads have one name in Via, so that a circle is found wherever it comes back", async () => {
  await withThreads(async ({ service, port }) => {
    await service.swapTo(await new Child(1).start());
    const names = new Set<string>();
    for (let count = 0; count < 16; count++) {
      const client = await Client.to(port);
      client.send(ask("/svc/v1/via"));
      names.add(bodyOf(await client.until(/via [^.]+\./)));
      client.destroy();
    }
    assert.is(names.size, 1, [...names].join());
    assert.match([...names][0] ?? "", /^via 1\.1 baton-/);
  });
});

test("the limit on connections is one for all threads, and a lost thread's are free again", async () => {
  await withThreads(async ({ service, port, started }) => {
    await service.swapTo(await new Child(1).start());
    const isServed = async (client: Client): Promise<boolean> => {
      client.received = "";
      client.send(ask("/svc/v1/x"));
      await eventually("an answer", () => /child 1|\}\}/.test(client.received));
      return statusOf(client.received) === 200;
    };
    /** Fills what is free; a place may be given back a moment after its connection is gone. */
    const fill = async (count: number): Promise<Client[]> => {
      const clients: Client[] = [];
      const end = performance.now() + 10_000;
      while (clients.length < count) {
        const client = await Client.to(port);
        if (await isServed(client)) clients.push(client);
        else client.destroy();
        assert.ok(performance.now() < end, `${clients.length} of ${count} were served`);
      }
      return clients;
    };
    const assertFull = async (): Promise<void> => {
      for (let count = 0; count < 8; count++) {
        const client = await Client.to(port);
        assert.not(await isServed(client));
        client.destroy();
      }
    };
    const first = await fill(6);
    await assertFull();
    first.pop()?.destroy();
    first.push(...await fill(1));
    await assertFull();
    await started[0]?.terminate();
    await eventually("another has begun", () => started.length === 3);
    const left = first.filter(({ closed, fin }) => !closed && !fin);
    left.push(...await fill(6 - left.length));
    await assertFull();
    for (const client of [...first, ...left]) client.destroy();
  }, { limits: { connections: 6 } });
});

test("paths that are the child's own are asked about, however they are written", async () => {
  await withThreads(async ({ service, port }) => {
    await service.swapTo(await new Child(1).start());
    const client = await Client.to(port);
    for (const path of ["/svc/v1/drain", "/svc/v1/drain?x=1", "/svc/v1//dr%61in"]) {
      client.received = "";
      client.send(ask(path, "POST"));
      assert.is(statusOf(await client.until("}}")), 404, path);
    }
    assert.is(service.current?.requests, 0);
    client.destroy();
  });
});

test("before anything is served a request waits if there is hope for it, and is told at once if not", async () => {
  await withThreads(async ({ traffic, service, port, gate }) => {
    gate.accepting = false;
    traffic.tellGate();
    await traffic.idle();
    const hopeless = await Client.to(port);
    hopeless.send(ask("/svc/v2/x"));
    assert.is(statusOf(await hopeless.until("}}")), 503);
    const hopeful = await Client.to(port);
    hopeful.send(ask("/svc/v1/x", "POST"));
    // An answer to a later question: by now the first one waits.
    const later = await Client.to(port);
    later.send(ask("/svc/v2/x"));
    await later.until("}}");
    assert.is(hopeful.received, "");
    await service.swapTo(await new Child(1).start());
    gate.accepting = true;
    traffic.tellGate();
    assert.is(bodyOf(await hopeful.until(/child \d/)), "child 1");
    for (const client of [hopeless, hopeful, later]) client.destroy();
  });
});

test.run();
