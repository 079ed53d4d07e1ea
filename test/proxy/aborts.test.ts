/**
 * Ten thousand exchanges that all end badly, in every way that we know: afterwards no lease, no
 * socket and no memory is left behind.
 */

import { readdirSync, readlinkSync } from "node:fs";
import { createServer, type Socket } from "node:net";
import process from "node:process";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { Target } from "../../src/proxy/target.ts";
import { runtime } from "../support/runtime.ts";
import { Client, eventually, NOBODY, startProxy } from "./wire.ts";

const UPGRADE =
  "GET /tunnel HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";

/** A child that does what the path says, at the worst moment. */
function misbehave(socket: Socket): void {
  let text = "";
  socket.on("error", () => {});
  socket.on("end", () => socket.end());
  socket.on("data", (chunk: Uint8Array) => {
    text += new TextDecoder().decode(chunk);
    if (!text.includes("\r\n\r\n")) return;
    const path = text.split(" ")[1] ?? "";
    text = "";
    switch (path) {
      case "/silent":
        return;
      case "/reset":
        return void socket.resetAndDestroy();
      case "/fin":
        return void socket.end();
      case "/garbage":
        return void socket.write("garbage\r\n\r\n");
      case "/short":
        socket.write("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort");
        return void socket.end();
      case "/torn":
        socket.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n");
        return void setTimeout(() => socket.resetAndDestroy(), 1);
      case "/stream":
        return void socket.write(
          "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        );
      case "/tunnel":
        return void socket.write(
          "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        );
      case "/close":
        socket.write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        return void socket.resetAndDestroy();
      default:
        socket.write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    }
  });
}

type Deed = (client: Client) => Promise<unknown>;
const ask = (path: string, lines = "") => `GET ${path} HTTP/1.1\r\nHost: a\r\n${lines}\r\n`;
const later = (client: Client, text: string) => client.until(text).catch(() => {});

const DEEDS: Record<string, Deed> = {
  "reset without a byte": async (client) => await client.reset(),
  "reset in the head": async (client) => await client.send("GET / HT").reset(),
  "FIN in the head": async (client) => {
    client.send("GET / HTTP/1.1\r\nHo").socket.end();
    await client.untilClosed();
  },
  "reset while waiting": async (client) => {
    client.send(ask("/silent"));
    await pause(2);
    client.reset();
  },
  "FIN while waiting": async (client) => {
    client.send(ask("/silent"));
    await pause(2);
    client.destroy();
  },
  "half-close while waiting": async (client) => {
    client.send(ask("/silent")).socket.end();
    await client.untilClosed();
  },
  "gone at once": async (client) => await client.send(ask("/silent")).reset(),
  "reset in a download": async (client) => {
    client.send(ask("/stream"));
    await later(client, "hello");
    client.reset();
  },
  "FIN in a download": async (client) => {
    client.send(ask("/stream"));
    await later(client, "hello");
    client.destroy();
  },
  "reset in an upload": async (client) => {
    client.send("POST /up HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\nsome");
    await pause(1);
    client.reset();
  },
  "FIN in a chunked upload": async (client) => {
    client.send(
      "POST /silent HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nsome\r\n",
    );
    await pause(1);
    client.destroy();
  },
  "a broken chunked upload": async (client) => {
    client.send("POST /silent HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n");
    await client.untilClosed();
  },
  "a child that resets": (client) => whole(client, "/reset"),
  "a child that sends FIN": (client) => whole(client, "/fin"),
  "a child that sends garbage": (client) => whole(client, "/garbage"),
  "a child that ends short": (client) => client.send(ask("/short")).untilClosed(),
  "a child that tears a stream": (client) => client.send(ask("/torn")).untilClosed(),
  "a child that closes after its answer": (client) => whole(client, "/close"),
  "a tunnel that the client resets": async (client) => {
    client.send(UPGRADE);
    await later(client, "\r\n\r\n");
    client.reset();
  },
  "a tunnel that the client ends": async (client) => {
    client.send(UPGRADE);
    await later(client, "\r\n\r\n");
    client.destroy();
  },
  "a service that throws": (client) => whole(client, "/throw"),
  "a target that refuses": (client) => whole(client, "/dead"),
  "a bad request": (client) => client.send("GET / HTTP/1.1\r\n\r\n").untilClosed(),
  "gone after pipelining": async (client) => {
    client.send(ask("/a") + ask("/silent") + ask("/b"));
    await later(client, "ok");
    client.reset();
  },
};

function whole(client: Client, path: string): Promise<string> {
  return client.send(ask(path, "Connection: close\r\n")).untilClosed();
}

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

/** Bytes in use by live objects and buffers, garbage collected first. */
function memoryInUse(): number {
  setFlagsFromString("--expose-gc");
  const collect = runInNewContext("gc") as () => void;
  for (let round = 0; round < 3; round++) collect();
  const { heapUsed, external, arrayBuffers } = process.memoryUsage();
  return heapUsed + external + arrayBuffers;
}

function openSockets(): number {
  let count = 0;
  for (const fd of readdirSync("/proc/self/fd")) {
    try {
      if (readlinkSync(`/proc/self/fd/${fd}`).startsWith("socket:")) count += 1;
    } catch { /* the descriptor of this very listing */ }
  }
  return count;
}

test("10,000 aborts of all kinds leave no lease, no socket and no memory behind", async () => {
  const child = createServer({ allowHalfOpen: true }, misbehave);
  await new Promise<void>((resolve) => child.listen(0, "127.0.0.1", resolve));
  const bound = child.address();
  if (bound === null || typeof bound === "string") throw new Error("no port");
  const dead = new Target({
    service: "test",
    version: "dead",
    generation: 1,
    address: NOBODY,
  });
  const live = new Target({
    service: "test",
    version: "live",
    generation: 1,
    address: { kind: "tcp", host: "127.0.0.1", port: bound.port },
  });
  let forwards = 0;
  const proxy = await startProxy(live.address, {
    accessLog: false,
    handle: async (exchange, forward) => {
      if (exchange.path === "/throw") throw new Error("on purpose");
      const target = exchange.path === "/dead" ? dead : live;
      const lease = target.claim(exchange.requestId, runtime.clock.monotonic());
      if (lease === undefined) throw new Error("retired");
      await forward(exchange, lease);
      assert.ok(lease.released);
      forwards += 1;
    },
  });
  const deeds = Object.values(DEEDS);
  const socketsBefore = openSockets();
  const run = async (count: number) => {
    let next = 0;
    const worker = async () => {
      while (next < count) {
        const deed = deeds[next++ % deeds.length] as Deed;
        const client = await Client.to(proxy.port);
        await deed(client);
        client.destroy();
      }
    };
    await Promise.all(Array.from({ length: 24 }, worker));
    await eventually("every connection has ended", () => proxy.server.connections === 0);
    await eventually("no lease is left", () => live.leases + dead.leases === 0);
    await eventually("nothing is in flight", () => proxy.server.inflight === 0);
  };
  try {
    await run(3000);
    const before = memoryInUse();
    await run(7000);
    const grown = memoryInUse() - before;
    assert.ok(forwards > 5000, `${forwards} forwards`);
    await Promise.all([live.retire(), dead.retire()]);
    // Deno opens a pair of sockets for itself at the first connect.
    await eventually("no socket is left", () => openSockets() <= socketsBefore + 2);
    assert.ok(grown < 8 * 2 ** 20, `memory grew by ${grown} bytes`);
  } finally {
    await proxy.close();
    child.close();
    child.unref();
  }
});

test.run();
