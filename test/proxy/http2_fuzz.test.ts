/**
 * Strangers that send frames in any order, and go in the middle: nothing breaks and nothing is left.
 */

import { Buffer } from "node:buffer";
import { test } from "uvu";
import * as assert from "uvu/assert";
import {
  DATA,
  frame,
  FrameClient,
  GET_FIELDS,
  GOAWAY,
  HEADERS,
  literals,
  PING,
  RST_STREAM,
  SETTINGS,
} from "./h2_wire.ts";
import { Client, eventually, statusOf, withProxy } from "./wire.ts";

/** A generator with a seed (mulberry32). */
function randomFrom(seed: number): (below: number) => number {
  let state = seed;
  return (below) => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) % below;
  };
}

function u32(...values: number[]): Buffer {
  const bytes = Buffer.alloc(values.length * 4);
  values.forEach((value, at) => bytes.writeUInt32BE(value, at * 4));
  return bytes;
}

test("four hundred connections of random frames leave no lease and no connection behind", async () => {
  const random = randomFrom(20261130);
  const CONTINUATION = 9;
  const WINDOW_UPDATE = 8;
  await withProxy({}, async (proxy, upstream) => {
    upstream.onRequest = (side) => {
      const kind = random(4);
      if (kind === 0) return;
      if (kind === 1) return side.socket.destroy();
      if (kind === 2) return void side.send("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort");
      side.send(upstream.answer);
    };
    for (let round = 0; round < 40; round++) {
      const clients = Array.from({ length: 10 }, () => new FrameClient(proxy.port).hello());
      for (const client of clients) {
        let next = 1;
        const some = () => 1 + 2 * random(Math.max(1, (next + 1) >> 1));
        for (let count = random(30); count > 0; count--) {
          const flags = random(4) === 0 ? random(256) : 5;
          switch (random(12)) {
            case 0:
              client.send(frame(RST_STREAM, 0, some(), u32(random(14))));
              break;
            case 1:
              client.send(frame(DATA, random(2), some(), Buffer.alloc(random(2000))));
              break;
            case 2:
              client.send(frame(GOAWAY, 0, 0, u32(random(9), random(14))));
              break;
            case 3:
              client.send(frame(SETTINGS, random(2), 0, Buffer.alloc(0)));
              break;
            case 4:
              client.send(frame(PING, random(2), 0, Buffer.alloc(8)));
              break;
            case 5:
              client.send(frame(WINDOW_UPDATE, 0, random(2) * some(), u32(random(2 ** 20))));
              break;
            case 6:
              if (random(6) === 0) {
                client.send(frame(random(16), random(256), some(), Buffer.alloc(random(40), 7)));
              }
              break;
            case 7:
              if (random(6) === 0) {
                client.send(frame(CONTINUATION, 4, some(), literals(GET_FIELDS)));
              }
              break;
            default:
              client.send(frame(HEADERS, flags, next, literals(GET_FIELDS)));
              next += 2;
          }
        }
      }
      await new Promise((resolve) => setTimeout(resolve, 5));
      for (const client of clients) {
        if (random(2) === 0) client.socket.resetAndDestroy();
        else client.destroy();
      }
    }
    await eventually("no connection is left", () => proxy.server.connections === 0);
    await eventually("nothing is in flight", () => proxy.server.inflight === 0);
    await eventually("no lease is left", () => proxy.target.leases === 0);
    upstream.onRequest = undefined;
    const client = await Client.to(proxy.port);
    client.send("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n");
    assert.is(statusOf(await client.until("ok")), 200);
    client.destroy();
  });
});

test("connections that go wrong at a random byte end, and only they do", async () => {
  const random = randomFrom(9113);
  await withProxy({}, async (proxy) => {
    const plain = Buffer.concat([
      frame(HEADERS, 4, 1, literals([[":method", "POST"], ...GET_FIELDS.slice(1)])),
      frame(DATA, 8, 1, Buffer.from([2, 1, 1, 1, 0, 0])),
      frame(HEADERS, 5, 1, literals([["x-trailer", "1"]])),
      frame(SETTINGS, 0, 0, Buffer.from([0, 4, 0, 1, 0, 0, 0, 1, 0, 0, 0, 100])),
      frame(HEADERS, 0, 3, literals(GET_FIELDS.slice(0, 2))),
      frame(9, 4, 3, literals(GET_FIELDS.slice(2))),
      frame(DATA, 1, 3, Buffer.alloc(100)),
      frame(8, 0, 0, u32(1000)),
      frame(HEADERS, 0x25, 5, Buffer.concat([Buffer.alloc(5), literals(GET_FIELDS)])),
      frame(PING, 0, 0, Buffer.alloc(8)),
    ]);
    for (let round = 0; round < 60; round++) {
      const clients = Array.from({ length: 10 }, () => {
        const bytes = Buffer.from(plain);
        for (let flips = 1 + random(4); flips > 0; flips--) {
          bytes[random(bytes.length)] = random(256);
        }
        const client = new FrameClient(proxy.port).hello();
        const cut = random(bytes.length);
        client.send(bytes.subarray(0, cut));
        setTimeout(() => client.send(bytes.subarray(cut)), random(3));
        return client;
      });
      // Another connection is answered meanwhile.
      const good = new FrameClient(proxy.port).hello().ask(1, GET_FIELDS);
      await good.until("an answer", ({ type }) => type === HEADERS);
      for (const client of [...clients, good]) client.destroy();
    }
    await eventually("no connection is left", () => proxy.server.connections === 0);
    await eventually("nothing is in flight", () => proxy.server.inflight === 0);
  });
});

test.run();
