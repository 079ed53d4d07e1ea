/** Rules 62 to 78: connections, streams, time. */

import { Buffer } from "node:buffer";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { createForward } from "../../src/proxy/forward.ts";
import { ConnectFailed } from "../../src/runtime/runtime.ts";
import { runtime } from "../support/runtime.ts";
import { upstreamAddress } from "../../src/proxy/upstream_service.ts";
import {
  ask,
  bodyOf,
  Client,
  eventually,
  get,
  headOf,
  NOBODY,
  startProxy,
  statusOf,
  Upstream,
  type UpstreamSide,
  valuesOf,
  withProxy,
} from "./wire.ts";
import { DATA, FrameClient, GET_FIELDS } from "./h2_wire.ts";

const OK = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n";
const CHUNKED = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
const KEEP = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const UPGRADE =
  "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n" +
  "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n" +
  "Sec-WebSocket-Protocol: p1,p2\r\n\r\n";
const SWITCH = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" +
  "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

const silent = () => {};

for (const how of ["FIN", "RST"] as const) {
  const leave = (client: Client) => how === "RST" ? client.reset() : client.destroy();

  test(`rule 62: client gone (${how}) while waiting for headers closes the child's connection`, async () => {
    await withProxy({}, async (proxy, upstream) => {
      upstream.onRequest = silent;
      const client = await Client.to(proxy.port);
      client.send(KEEP);
      await upstream.request();
      leave(client);
      await (await upstream.side()).untilGone();
      await eventually("the line is logged", () => proxy.lines.length === 1);
      assert.is(proxy.lines[0]?.status, 499);
      assert.is(proxy.outcomes[0]?.result, "client_closed");
      assert.is(proxy.target.leases, 0);
    });
  });

  test(`rule 63: client gone (${how}) in the middle of a download closes the child's connection`, async () => {
    await withProxy({}, async (proxy, upstream) => {
      upstream.onRequest = (side) => side.send(`${CHUNKED}5\r\nhello\r\n`);
      const client = await Client.to(proxy.port);
      client.send(KEEP);
      await client.until("hello");
      leave(client);
      await (await upstream.side()).untilGone();
      await eventually("the line is logged", () => proxy.lines.length === 1);
      assert.is(proxy.lines[0]?.status, 499);
    });
  });

  test(`rule 64: client gone (${how}) in the middle of an upload is an aborted request for the child`, async () => {
    for (const framing of ["Content-Length: 100", "Transfer-Encoding: chunked"]) {
      await withProxy({}, async (proxy, upstream) => {
        const client = await Client.to(proxy.port);
        client.send(`POST / HTTP/1.1\r\nHost: a\r\n${framing}\r\n\r\n5\r\nhello\r\n`);
        const side = await upstream.side();
        await side.until("hello");
        leave(client);
        await side.untilGone();
        assert.is(upstream.requests.length, 0);
        assert.not.ok(side.received.endsWith("0\r\n\r\n"));
      });
    }
  });
}

test("rule 65: a client that half-closes before its answer counts as gone", async () => {
  await withProxy({}, async (proxy, upstream) => {
    upstream.onRequest = silent;
    const client = await Client.to(proxy.port);
    client.send(KEEP);
    await upstream.request();
    client.socket.end();
    await (await upstream.side()).untilGone();
    await client.untilClosed();
    await eventually("the line is logged", () => proxy.lines.length === 1);
    assert.is(proxy.lines[0]?.status, 499);
  });
});

for (const how of ["FIN", "RST"] as const) {
  test(`rule 66: a child that dies (${how}) in mid-body never looks like a clean end`, async () => {
    const starts: [string, string][] = [
      ["HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhello", "hello"],
      [`${CHUNKED}5\r\nhello\r\n`, "hello"],
      [`${CHUNKED}50\r\nhello`, "hello"],
    ];
    for (const [start, sign] of starts) {
      await withProxy({}, async (proxy, upstream) => {
        upstream.onRequest = (side) => side.send(start);
        const client = await Client.to(proxy.port);
        client.send(KEEP);
        await client.until(sign);
        const side = await upstream.side();
        if (how === "RST") side.socket.resetAndDestroy();
        else side.socket.destroy();
        const answer = await client.untilClosed();
        assert.ok(answer.includes("hello"));
        assert.not.match(answer, /0\r\n\r\n$/);
        assert.not.match(answer, /error/i);
        await eventually("the line is logged", () => proxy.lines.length === 1);
        assert.is(proxy.lines[0]?.reason, "upstream_reset");
      });
    }
  });
}

test("rule 66: for a client without chunks the break is a reset", async () => {
  await withProxy({}, async (proxy, upstream) => {
    upstream.onRequest = (side) => side.send(`${CHUNKED}5\r\nhello\r\n`);
    const client = await Client.to(proxy.port);
    client.send("GET / HTTP/1.0\r\n\r\n");
    await client.until("hello");
    (await upstream.side()).socket.destroy();
    await eventually("the client sees a reset", () => client.error !== undefined || client.closed);
    assert.ok(client.error !== undefined, "the end must not look clean");
  });
});

test("rule 66: a body that ends with the connection ends cleanly on FIN, and breaks on reset", async () => {
  await withProxy({}, async (proxy, upstream) => {
    upstream.onRequest = (side) => {
      side.send("HTTP/1.1 200 OK\r\n\r\nhello");
      side.socket.end();
    };
    const clean = await ask(proxy, get("/"));
    assert.ok(clean.endsWith("5\r\nhello\r\n0\r\n\r\n"), clean);
    upstream.onRequest = (side) => side.send("HTTP/1.1 200 OK\r\n\r\nhello");
    const client = await Client.to(proxy.port);
    client.send(KEEP);
    await client.until("hello");
    (await upstream.side(1)).socket.resetAndDestroy();
    assert.not.match(await client.untilClosed(), /0\r\n\r\n$/);
  });
});

test("rule 67: bytes that came before the child died are delivered", async () => {
  await withProxy({}, async (proxy, upstream) => {
    const body = "x".repeat(40_000);
    upstream.onRequest = (side) => {
      side.send(`HTTP/1.1 200 OK\r\nContent-Length: 50000\r\n\r\n${body}`);
      side.socket.end();
    };
    const answer = await ask(proxy, get("/"));
    assert.is(bodyOf(answer), body);
  });
});

/** Sends 64 KiB pieces until the other side takes no more for a while; answers the bytes taken. */
async function fill(
  socket: { write(data: Uint8Array): boolean; writableLength: number },
  piece: Uint8Array = Buffer.alloc(65536, 0x61),
) {
  let taken = 0;
  let quietLooks = 0;
  while (quietLooks < 40 && taken < 64 * 1024 * 1024) {
    if (socket.writableLength === 0) {
      socket.write(piece);
      taken += piece.length;
      quietLooks = 0;
    } else quietLooks += 1;
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
  return taken;
}

test("rule 68: a client that reads nothing stops the child within a few MiB", async () => {
  await withProxy({}, async (proxy, upstream) => {
    upstream.onRequest = (side) =>
      side.send("HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n");
    const client = await Client.to(proxy.port);
    client.socket.pause();
    client.send(KEEP);
    const side = await upstream.side();
    await upstream.request();
    const taken = await fill(side.socket);
    assert.ok(taken < 24 * 1024 * 1024, `${taken} bytes were taken`);
    client.destroy();
    await eventually("the child is told", () => side.closed || side.fin);
  });
});

test("rule 68: interim answers stop the child likewise, and go on when the client reads", async () => {
  await withProxy({}, async (proxy, upstream) => {
    upstream.onRequest = () => {};
    // Nothing that HTTP/2 would make smaller.
    const hint = `HTTP/1.1 103 Early Hints\r\nSet-Cookie: ${"~".repeat(1000)}\r\n\r\n`;
    const h1 = await Client.to(proxy.port);
    h1.socket.pause();
    h1.send(KEEP);
    const h2 = new FrameClient(proxy.port).hello();
    h2.socket.pause();
    h2.ask(1, GET_FIELDS);
    await upstream.request(1);
    for (const side of upstream.sides) {
      const taken = await fill(side.socket, Buffer.from(hint.repeat(60)));
      assert.ok(taken < 24 * 1024 * 1024, `${taken} bytes were taken`);
      side.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    }
    h1.socket.resume();
    assert.is(bodyOf((await h1.until(/ok$/)).slice(-80)), "ok");
    h2.socket.resume();
    const last = await h2.until("the body", ({ type }) => type === DATA);
    assert.is(Buffer.from(last.payload).toString(), "ok");
    h1.destroy();
    h2.destroy();
  });
});

test("rule 68: who asks for more and reads nothing gets it later, and none waits in memory", async () => {
  await withProxy({}, async (proxy, upstream) => {
    const body = "x".repeat(60_000);
    upstream.answer = `HTTP/1.1 200 OK\r\nContent-Length: ${body.length}\r\n\r\n${body}`;
    const client = await Client.to(proxy.port);
    client.socket.pause();
    client.send(KEEP.repeat(499) + get("/last"));
    let asked = 0;
    for (let quietLooks = 0; quietLooks < 60 && asked < 500; quietLooks++) {
      if (upstream.requests.length > asked) quietLooks = 0;
      asked = upstream.requests.length;
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
    assert.ok(asked < 400, `${asked} answers were taken`);
    client.socket.resume();
    const received = await client.untilClosed();
    assert.is(received.split("HTTP/1.1 200 OK").length, 501);
    assert.is(upstream.requests.length, 500);
  });
});

test("rule 68: who ends its request and reads nothing is cut after the write stall time", async () => {
  await withProxy({ limits: { writeStallMs: 1000 } }, async (proxy, upstream) => {
    upstream.onData = () => {};
    const client = await Client.to(proxy.port);
    client.socket.pause();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nabcd");
    const side = await upstream.side();
    await side.until("abcd");
    side.send("HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n");
    await fill(side.socket);
    client.send("e");
    await eventually("the exchange is over", () => proxy.lines.length === 1);
    assert.is(proxy.lines[0]?.status, 499);
    client.destroy();
  });
});

test("rule 69: a child that reads nothing stops the uploading client", async () => {
  await withProxy({}, async (proxy, upstream) => {
    upstream.onData = (side) => side.socket.pause();
    const client = await Client.to(proxy.port);
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n");
    await upstream.side();
    const taken = await fill(client.socket);
    assert.ok(taken < 24 * 1024 * 1024, `${taken} bytes were taken`);
    client.destroy();
    upstream.onData = () => {};
    upstream.sides[0]?.socket.resume();
    await eventually("the lease is released", () => proxy.target.leases === 0);
  });
});

test("rule 70: the head leaves before the first body byte", async () => {
  await withProxy({}, async (proxy, upstream) => {
    upstream.onRequest = (side) => side.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n");
    const client = await Client.to(proxy.port);
    client.send(get("/"));
    const head = await client.until("\r\n\r\n");
    assert.is(statusOf(head), 200);
    assert.is(bodyOf(head), "");
    (await upstream.side()).send("hello");
    assert.is(bodyOf(await client.untilClosed()), "hello");
  });
});

test("rule 71: each SSE event leaves at once, with parameters in the type, chunked, gzipped or bare", async () => {
  const zipped = gzipSync("data: 1\n\n").toString("latin1");
  const kinds: [string, string, string][] = [
    [
      "Content-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n",
      "9\r\ndata: 1\n\n\r\n",
      "data: 1\n\n",
    ],
    ["Content-Type: text/event-stream\r\n", "data: 1\n\n", "data: 1\n\n"],
    [
      "Content-Type: text/event-stream\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n",
      `${zipped.length.toString(16)}\r\n${zipped}\r\n`,
      zipped,
    ],
    ["Content-Type: application/x-ndjson\r\nContent-Length: 100\r\n", "{}\n", "{}\n"],
  ];
  for (const [lines, event, seen] of kinds) {
    await withProxy({}, async (proxy, upstream) => {
      upstream.onRequest = (side) => side.send(`HTTP/1.1 200 OK\r\n${lines}\r\n`);
      const client = await Client.to(proxy.port);
      client.send(KEEP);
      await client.until("\r\n\r\n");
      const side = await upstream.side();
      for (let count = 1; count <= 3; count++) {
        side.send(event);
        await eventually(`event ${count}`, () => client.received.split(seen).length === count + 1);
      }
      client.destroy();
    });
  }
});

test("rule 72: no default limit ends a silent answer; only one that was configured does", async () => {
  await withProxy({}, async (proxy, upstream) => {
    upstream.onRequest = (side) => side.send(`${CHUNKED}2\r\nhi\r\n`);
    const client = await Client.to(proxy.port);
    client.send(KEEP);
    await client.until("hi");
    await new Promise((resolve) => setTimeout(resolve, 1500));
    assert.is(proxy.target.count("stream"), 1);
    (await upstream.side()).send("3\r\nyou\r\n0\r\n\r\n");
    await client.until("you\r\n0\r\n\r\n");
    client.destroy();
  });
  await withProxy({ timeouts: { idleMs: 200 } }, async (proxy, upstream) => {
    upstream.onRequest = (side) => side.send(`${CHUNKED}2\r\nhi\r\n`);
    const client = await Client.to(proxy.port);
    client.send(KEEP);
    const answer = await client.untilClosed();
    assert.not.match(answer, /0\r\n\r\n$/);
    assert.is(proxy.outcomes[0]?.reason, "upstream_timeout");
  });
});

test("rule 73: upload bytes reach the child as they come", async () => {
  await withProxy({}, async (proxy, upstream) => {
    const client = await Client.to(proxy.port);
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    await (await upstream.side()).until("\r\n\r\n");
    for (const piece of ["one", "two", "three"]) {
      client.send(`${piece.length.toString(16)}\r\n${piece}\r\n`);
      await (await upstream.side()).until(piece);
    }
    client.send("0\r\n\r\n");
    await client.until("ok");
    client.destroy();
  });
});

/** A connection that was used once, and what the child does with the second request on it. */
async function stale(method: string, second: string): Promise<{ answer: string; seen: number }> {
  let seen = 0;
  let answer = "";
  await withProxy({}, async (proxy, upstream) => {
    upstream.onRequest = (side, request) => {
      if (request.includes("/second")) {
        seen += 1;
        // Only the reused connection is stale; a fresh one works.
        if (side === upstream.sides[0]) {
          if (second === "half") side.send("HTTP/1.1 20");
          return side.socket.destroy();
        }
      }
      side.send(`${OK}\r\nok`);
    };
    const client = await Client.to(proxy.port);
    client.send("GET /first HTTP/1.1\r\nHost: a\r\n\r\n");
    await client.until("ok");
    client.received = "";
    client.send(
      `${method} /second HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi`,
    );
    answer = await client.untilClosed();
  });
  return { answer, seen };
}

test("rule 74: an idempotent request on a stale connection is sent once more", async () => {
  for (const method of ["GET", "PUT", "DELETE"]) {
    const { answer, seen } = await stale(method, "close");
    assert.is(statusOf(answer), 200, method);
    assert.is(seen, 2, method);
  }
});

test("rule 74: a POST is never sent twice, nor anything after a byte of an answer", async () => {
  for (
    const [method, second] of [["POST", "close"], ["PATCH", "close"], ["GET", "half"]] as const
  ) {
    const { answer, seen } = await stale(method, second);
    assert.is(statusOf(answer), 502, method);
    assert.is(seen, 1, method);
  }
});

test("rule 74: nothing is retried on a fresh connection", async () => {
  await withProxy({}, async (proxy, upstream) => {
    upstream.onRequest = (side) => side.socket.destroy();
    const answer = await ask(proxy, get("/"));
    assert.is(statusOf(answer), 502);
    assert.match(answer, "upstream_reset");
    assert.is(upstream.requests.length, 1);
  });
});

test("rule 74: a refused connection is tried again, then 502, and told to the target", async () => {
  const proxy = await startProxy(NOBODY);
  try {
    const answer = await ask(
      proxy,
      "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi",
    );
    assert.is(statusOf(answer), 502);
    assert.match(answer, "upstream_connect_failed");
    assert.is(proxy.target.connectFailures, 3);
    assert.is(proxy.target.leases, 0);
    assert.ok(proxy.outcomes[0]?.retriable);
  } finally {
    await proxy.close();
  }
});

test("rule 74: a connect that takes too long is a 504 at once, with no second try", async () => {
  let tries = 0;
  const connect = () => {
    tries += 1;
    return Promise.reject(new ConnectFailed("timeout", "no connection within 5000 ms"));
  };
  const forward = createForward({ runtime: { ...runtime, net: { ...runtime.net, connect } } });
  await withProxy({ forward }, async (proxy) => {
    const answer = await ask(proxy, get("/"));
    assert.is(statusOf(answer), 504);
    assert.match(answer, "upstream_timeout");
    assert.equal([tries, proxy.target.connectFailures], [1, 1]);
  });
});

test("rule 74: a child that closes idle connections gets its POSTs on fresh ones: none fails, none twice", async () => {
  await withProxy({}, async (proxy, upstream) => {
    const counts = new Map<string, number>();
    upstream.onRequest = (side, request) => {
      const path = request.split(" ")[1] ?? "";
      counts.set(path, (counts.get(path) ?? 0) + 1);
      side.send(`${OK}\r\nok`);
      setTimeout(() => side.socket.end(), Math.floor(counts.size % 7));
    };
    let failed = 0;
    const worker = async (lane: number) => {
      for (let at = 0; at < 75; at++) {
        const answer = await ask(
          proxy,
          `POST /${lane}-${at} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi`,
        );
        if (statusOf(answer) !== 200) failed += 1;
      }
    };
    await Promise.all([0, 1, 2, 3].map(worker));
    assert.is([...counts.values()].filter((count) => count > 1).length, 0);
    // Those that were on their way, one a lane, when the first of them failed.
    assert.ok(failed <= 4, `${failed} of 300 failed`);
  });
});

test("rule 74: a child that closes a connection under a request gets the next POSTs on fresh ones", async () => {
  await withProxy({}, async (proxy, upstream) => {
    const used = new Set<UpstreamSide>();
    upstream.onRequest = (side) => {
      if (used.has(side)) return void side.socket.destroy();
      used.add(side);
      side.send(`${OK}\r\nok`);
    };
    const post = "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi";
    const statuses: number[] = [];
    for (let at = 0; at < 5; at++) statuses.push(statusOf(await ask(proxy, post)));
    assert.equal(statuses, [200, 502, 200, 200, 200]);
    assert.is(upstream.requests.length, 5);
  });
});

test("rule 74: idle connections close before the child would, and at once when the target retires", async () => {
  await withProxy({}, async (proxy, upstream) => {
    const client = await Client.to(proxy.port);
    client.send(KEEP);
    await client.until("ok");
    assert.is(upstream.sides[0]?.fin, false);
    const drained = proxy.target.retire();
    await (await upstream.side()).untilGone();
    await drained;
    client.destroy();
  });
});

test("rule 74: a child that says how long it keeps a connection has it closed before that", async () => {
  const forward = createForward({ runtime, idleConnectionMs: 3_600_000 });
  await withProxy({ forward }, async (proxy, upstream) => {
    upstream.answer = `${OK}Keep-Alive: timeout=1, max=100\r\n\r\nok`;
    const client = await Client.to(proxy.port);
    client.send(KEEP);
    await client.until("ok");
    const side = await upstream.side();
    await side.untilGone();
    client.send(KEEP);
    await upstream.request(1);
    assert.is(upstream.sides.length, 2);
    client.destroy();
  });
});

test("rule 74: a target that answers nothing in time is a 504", async () => {
  await withProxy({ timeouts: { firstByteMs: 200 } }, async (proxy, upstream) => {
    upstream.onRequest = silent;
    const answer = await ask(proxy, get("/"));
    assert.is(statusOf(answer), 504);
    assert.match(answer, "first_byte");
    await (await upstream.side()).untilGone();
  });
});

test("rule 75: a head that is not complete in time is 408 and the connection ends", async () => {
  await withProxy({ limits: { headerTimeoutMs: 300 } }, async (proxy) => {
    const client = await Client.to(proxy.port);
    client.send("GET / HTTP/1.1\r\nHost: a\r\n");
    const drip = setInterval(() => client.send("X-A: b\r\n"), 50);
    const answer = await client.untilClosed();
    clearInterval(drip);
    assert.is(statusOf(answer), 408);
    const mute = await Client.to(proxy.port);
    assert.is(await mute.untilClosed(), "");
  });
});

test("rule 75: a body slower than the floor is 408, and the child sees no clean end", async () => {
  const limits = { bodyWindowMs: 300, bodyFloorBytes: 1000 };
  for (const framing of ["Content-Length: 100000", "Transfer-Encoding: chunked"]) {
    await withProxy({ limits }, async (proxy, upstream) => {
      const client = await Client.to(proxy.port);
      client.send(`POST / HTTP/1.1\r\nHost: a\r\n${framing}\r\n\r\n`);
      const drip = setInterval(() => client.send("1\r\na\r\n"), 50);
      const answer = await client.untilClosed();
      clearInterval(drip);
      assert.is(statusOf(answer), 408, framing);
      await (await upstream.side()).untilGone();
      assert.is(upstream.requests.length, 0);
    });
  }
});

test("rule 76: 101 is relayed, the frame that came with it is not lost, bytes pass both ways", async () => {
  await withProxy({}, async (proxy, upstream) => {
    upstream.onData = (side) => {
      if (side.taken === 0 && side.received.includes("\r\n\r\n")) {
        side.taken = 1;
        side.send(`${SWITCH}\x81\x05first`);
      }
    };
    const client = await Client.to(proxy.port);
    client.send(`${UPGRADE}\x81\x85\0\0\0\0early`);
    const opened = await client.until("\x81\x05first");
    assert.is(statusOf(opened), 101);
    assert.equal(valuesOf(opened, "upgrade"), ["websocket"]);
    assert.equal(valuesOf(opened, "sec-websocket-accept"), ["s3pPLMBiTxaQ9kYGzzhZRbK+xOo="]);
    const side = await upstream.side();
    await side.until("\x81\x85\0\0\0\0early");
    const head = headOf(side.received);
    assert.equal(valuesOf(head, "connection"), ["Upgrade"]);
    assert.equal(valuesOf(head, "sec-websocket-protocol"), ["p1,p2"]);
    assert.is(proxy.target.count("tunnel"), 1);
    const bytes = Array.from({ length: 256 }, (_, code) => String.fromCharCode(code)).join("");
    client.send(bytes);
    await side.until(bytes);
    side.send(bytes);
    await client.until(bytes);
    client.destroy();
    await side.untilGone();
  });
});

test("rule 76: half-close is kept in both directions", async () => {
  const upstream = await Upstream.start();
  upstream.server.prependListener("connection", (socket) => {
    // This child answers after the client's FIN.
    socket.on("end", () => socket.write("after the end"));
  });
  upstream.onData = (side) => {
    if (side.taken === 0 && side.received.includes("\r\n\r\n")) {
      side.taken = 1;
      side.send(SWITCH);
    }
  };
  const proxy = await startProxy(upstream.address);
  const client = await Client.to(proxy.port);
  client.send(UPGRADE);
  await client.until("\r\n\r\n");
  client.send("last words");
  client.socket.end();
  const answer = await client.untilClosed();
  assert.ok(answer.endsWith("after the end"), answer);
  assert.ok(upstream.sides[0]?.received.endsWith("last words"));
  await eventually("the lease is released", () => proxy.target.leases === 0);
  await proxy.close();
  await upstream.close();
});

test("rule 76: a refused upgrade is relayed and the connection goes on", async () => {
  await withProxy({}, async (proxy, upstream) => {
    upstream.answer = "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno";
    const client = await Client.to(proxy.port);
    client.send(UPGRADE);
    assert.is(statusOf(await client.until("no")), 403);
    client.received = "";
    upstream.answer = `${OK}\r\nok`;
    client.send(get("/"));
    assert.is(statusOf(await client.untilClosed()), 200);
  });
});

test("rule 76: a reset on either side closes the other and hurts nobody", async () => {
  await withProxy({}, async (proxy, upstream) => {
    upstream.onData = (side) => {
      if (side.taken === 0 && side.received.includes("\r\n\r\n")) {
        side.taken = 1;
        side.send(SWITCH);
      }
    };
    for (let round = 0; round < 20; round++) {
      const client = await Client.to(proxy.port);
      client.send(UPGRADE);
      await client.until("\r\n\r\n");
      const side = await upstream.side(round);
      if (round % 2 === 0) {
        client.reset();
        await side.untilGone();
      } else {
        side.socket.resetAndDestroy();
        await client.untilClosed();
      }
    }
    await eventually("no lease is left", () => proxy.target.leases === 0);
  });
});

test("rule 76: an upgrade that the child resets, closes or garbles is a 502", async () => {
  await withProxy({}, async (proxy, upstream) => {
    const deeds:
      ((side: { send(text: string): unknown; socket: { destroy(): unknown } }) => void)[] = [
        (side) => void side.socket.destroy(),
        (side) => void side.send("garbage\r\n\r\n"),
        (side) => void side.send("HTTP/1.1 101 X\r\nConnection: Upgrade\r\nUpgrade: other\r\n\r\n"),
      ];
    for (const deed of deeds) {
      upstream.onRequest = deed;
      const client = await Client.to(proxy.port);
      client.send(UPGRADE);
      await client.until("\r\n\r\n{");
      assert.is(statusOf(client.received), 502);
      client.destroy();
    }
  });
});

test("rule 77: h2c and unknown upgrades are answered as plain requests", async () => {
  await withProxy({}, async (proxy, upstream) => {
    const asks = [
      "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n",
      "Connection: Upgrade\r\nUpgrade: foo/2\r\n",
      "Connection: Upgrade\r\nUpgrade: h2c, websocket\r\n",
      "Upgrade: websocket\r\n",
    ];
    for (const [index, lines] of asks.entries()) {
      const client = await Client.to(proxy.port);
      client.send(`GET / HTTP/1.1\r\nHost: a\r\n${lines}\r\n`);
      const answer = await client.until("ok");
      assert.is(statusOf(answer), 200);
      const request = await upstream.request(index);
      for (const name of ["upgrade", "connection", "http2-settings"]) {
        assert.equal(valuesOf(request, name), [], `${name} for ${lines}`);
      }
      client.destroy();
    }
    upstream.answer =
      "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n";
    assert.is(statusOf(await ask(proxy, get("/"))), 502);
  });
});

test("rule 78: IPv6 upstreams, also a child that listens on ::1 only", async () => {
  const upstream = await Upstream.start({ kind: "tcp", host: "::1", port: 0 });
  const port = upstream.address.kind === "tcp" ? upstream.address.port : 0;
  const proxy = await startProxy(upstreamAddress(`http://[::1]:${port}`));
  try {
    assert.is(statusOf(await ask(proxy, get("/"))), 200);
    assert.is(statusOf(await ask(proxy, "GET / HTTP/1.0\r\n\r\n")), 200);
    assert.equal(valuesOf(await upstream.request(1), "host"), [`[::1]:${port}`]);
  } finally {
    await proxy.close();
    await upstream.close();
  }
});

test("rule 78: unix sockets on both sides", async () => {
  const folder = await mkdtemp(join(tmpdir(), "baton-"));
  const path = join(folder, "up.sock");
  const upstream = await Upstream.start({ kind: "unix", path });
  const listen = { address: { kind: "unix", path: join(folder, "in.sock") } } as const;
  const proxy = await startProxy(upstreamAddress(`unix:${path}`), { listen });
  try {
    const client = await Client.to(listen.address.path);
    client.send(get("/", "X-Forwarded-For: 9.9.9.9\r\n"));
    assert.is(statusOf(await client.untilClosed()), 200);
    const request = await upstream.request();
    assert.equal(valuesOf(request, "x-forwarded-for"), []);
    assert.match(valuesOf(request, "forwarded")[0] ?? "", "for=unknown");
  } finally {
    await proxy.close();
    await upstream.close();
    await rm(folder, { recursive: true, force: true });
  }
});

test("rule 78: the listener takes IPv6 clients", async () => {
  const upstream = await Upstream.start();
  const listen = { address: { kind: "tcp", host: "::1", port: 0 } } as const;
  const proxy = await startProxy(upstream.address, { listen });
  try {
    const client = await Client.to(proxy.port, "::1");
    client.send(get("/"));
    assert.is(statusOf(await client.untilClosed()), 200);
    const request = await upstream.request();
    assert.equal(valuesOf(request, "x-forwarded-for"), ["::1"]);
    assert.match(valuesOf(request, "forwarded")[0] ?? "", 'for="[::1]"');
  } finally {
    await proxy.close();
    await upstream.close();
  }
});

test.run();
