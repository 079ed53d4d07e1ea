/** Tunnels on their way out: Close 1001 between two frames, the cut, and half-closed ones. */

import { test } from "uvu";
import * as assert from "uvu/assert";
import { createForward } from "../../src/proxy/forward.ts";
import { FrameBoundaries } from "../../src/proxy/websocket_frames.ts";
import { runtime } from "../support/runtime.ts";
import {
  Client,
  eventually,
  type Proxy,
  type Upstream,
  type UpstreamSide,
  withProxy,
} from "./wire.ts";

const UPGRADE = "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
const SWITCH =
  "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
const CLOSE_1001 = "\x88\x02\x03\xe9";
const MASKED_CLOSE_1001 = "\x88\x82\0\0\0\0\x03\xe9";

async function open(proxy: Proxy, upstream: Upstream): Promise<[Client, UpstreamSide]> {
  upstream.onData = (side) => {
    if (side.taken > 0 || !side.received.includes("\r\n\r\n")) return;
    side.taken = 1;
    side.received = "";
    side.send(SWITCH);
  };
  const client = await Client.to(proxy.port);
  client.send(UPGRADE);
  await client.until("\r\n\r\n");
  client.received = "";
  return [client, await upstream.side(upstream.sides.length - 1)];
}

test("the warning of a drain is Close 1001 to both sides, and nothing but the ends after it", async () => {
  await withProxy({}, async (proxy, upstream) => {
    const [client, side] = await open(proxy, upstream);
    client.send("\x81\x85\0\0\0\0hello");
    await side.until("hello");
    proxy.target.open()[0]?.warn?.();
    await client.until(CLOSE_1001);
    await side.until(MASKED_CLOSE_1001);
    side.send("\x81\x04late");
    client.send("\x88\x82\0\0\0\0\x03\xe9");
    side.socket.end();
    await client.untilClosed();
    assert.is(client.received, CLOSE_1001);
    await eventually("the lease is released", () => proxy.target.leases === 0);
  });
});

test("a Close is never put into the middle of a frame", async () => {
  await withProxy({}, async (proxy, upstream) => {
    const [client, side] = await open(proxy, upstream);
    side.send("\x81\x0ahello");
    await client.until("hello");
    client.send("\x82\xfe\x01");
    await side.until("\x82\xfe\x01");
    proxy.target.open()[0]?.warn?.();
    side.send("world\x81\x04late");
    await client.until(CLOSE_1001);
    assert.is(client.received, "\x81\x0ahelloworld" + CLOSE_1001);
    client.send("\x00\0\0\0\0" + "x".repeat(256) + "\x81\x80\0\0\0\0");
    await side.until(MASKED_CLOSE_1001);
    assert.is(side.received, "\x82\xfe\x01\x00\0\0\0\0" + "x".repeat(256) + MASKED_CLOSE_1001);
    client.destroy();
  });
});

test("a cut closes both sides, releases the lease and is reported", async () => {
  await withProxy({}, async (proxy, upstream) => {
    const [client, side] = await open(proxy, upstream);
    assert.is(proxy.target.count("tunnel"), 1);
    proxy.target.open()[0]?.cut?.("drain_deadline");
    await client.untilClosed();
    await side.untilGone();
    await eventually("it is reported", () => proxy.outcomes.length === 1);
    assert.equal([proxy.outcomes[0]?.result, proxy.outcomes[0]?.reason], ["cut", "drain_deadline"]);
    await eventually("one line", () => proxy.lines.length === 1);
    assert.equal([proxy.lines[0]?.status, proxy.lines[0]?.reason], [101, "drain_deadline"]);
  });
});

test("a tunnel of which one side has gone for good ends in time, though the other keeps quiet", async () => {
  const forward = createForward({ runtime, halfClosedMs: 200 });
  await withProxy({ forward }, async (proxy, upstream) => {
    upstream.server.prependListener("connection", (socket) => {
      socket.removeAllListeners("end");
    });
    upstream.server.on("connection", (socket) => socket.removeAllListeners("end"));
    const [client] = await open(proxy, upstream);
    client.destroy();
    await eventually("the lease is released", () => proxy.target.leases === 0);
  });
});

test("a reader that stops holds the other side of a tunnel within a few MiB", async () => {
  await withProxy({}, async (proxy, upstream) => {
    const [client, side] = await open(proxy, upstream);
    client.socket.pause();
    let sent = 0;
    const piece = "x".repeat(65536);
    let quiet = 0;
    while (quiet < 40 && sent < 64 * 2 ** 20) {
      if (side.socket.writableLength === 0) {
        side.send(piece);
        sent += piece.length;
        quiet = 0;
      } else quiet += 1;
      await new Promise((resolve) => setTimeout(resolve, 4));
    }
    assert.ok(sent < 24 * 2 ** 20, `${sent} bytes were taken`);
    client.socket.resume();
    await eventually("all of it arrives", () => client.received.length === sent);
    client.destroy();
  });
});

test("frame boundaries are found wherever the bytes are cut", () => {
  const frames = [
    [0x81, 0x05, 1, 2, 3, 4, 5],
    [0x82, 0x7e, 0x01, 0x00, ...Array<number>(256).fill(7)],
    [0x81, 0x80, 1, 2, 3, 4],
    [0x82, 0xff, 0, 0, 0, 0, 0, 1, 0, 0, 9, 9, 9, 9, ...Array<number>(65536).fill(1)],
    [0x89, 0x00],
  ];
  const bytes = new Uint8Array(frames.flat());
  const ends = new Set<number>();
  let end = 0;
  for (const frame of frames) ends.add(end += frame.length);
  for (const step of [1, 2, 3, 7, 1000, 70_000]) {
    const boundaries = new FrameBoundaries();
    const found = new Set<number>();
    for (let at = 0; at < bytes.length; at += step) {
      boundaries.advance(bytes.subarray(at, at + step));
      if (boundaries.atBoundary) found.add(Math.min(at + step, bytes.length));
    }
    for (const at of found) assert.ok(ends.has(at), `step ${step} at ${at}`);
    if (step === 1) assert.equal(found, ends);
  }
  const boundaries = new FrameBoundaries();
  boundaries.advance(bytes.subarray(0, 3));
  assert.is(boundaries.toBoundary(bytes.subarray(3)), 4);
});

test("what there is no time left for hears Close 1001 too, and is logged as cut", async () => {
  await withProxy({}, async (proxy, upstream) => {
    const [client, side] = await open(proxy, upstream);
    const closed = proxy.server.close();
    proxy.server.destroy();
    await client.untilClosed();
    assert.is(client.received, CLOSE_1001);
    await side.until(MASKED_CLOSE_1001);
    await closed;
    const logged = proxy.lines.filter(({ event }) => event === "request");
    assert.equal(logged.map(({ status, reason }) => [status, reason]), [[101, "draining"]]);
  });
});

test.run();
