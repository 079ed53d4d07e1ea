/** Windows, in both directions: who may send how much, and that everything arrives in the end. */

import { Buffer } from "node:buffer";
import { test } from "uvu";
import * as assert from "uvu/assert";
import {
  DATA,
  END_HEADERS,
  END_STREAM,
  frame,
  FrameClient,
  GET_FIELDS,
  HEADERS,
  literals,
  PREFACE,
  RST_STREAM,
  SETTINGS,
} from "../h2_wire.ts";
import { eventually, type Upstream, withProxy } from "../wire.ts";

const WINDOW_UPDATE = 8;
const NONE = Buffer.alloc(0);

function u32(value: number): Buffer {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32BE(value);
  return bytes;
}

function initialWindow(bytes: number): Buffer {
  return frame(SETTINGS, 0, 0, Buffer.concat([Buffer.from([0, 4]), u32(bytes)]));
}

function widen(stream: number, by: number): Buffer {
  return frame(WINDOW_UPDATE, 0, stream, u32(by));
}

/** Bytes of a pattern in which no two places within 251 bytes look alike. */
function pattern(size: number, first: number): Buffer {
  return Buffer.from(Uint8Array.from({ length: size }, (_, at) => (first + at) % 251));
}

function dataOf(client: FrameClient, stream: number): Buffer {
  const frames = client.frames.filter((one) => one.type === DATA && one.stream === stream);
  return Buffer.concat(frames.map(({ payload }) => payload));
}

function sentBytes(client: FrameClient): number {
  return client.frames.reduce(
    (sum, { type, payload }) => sum + (type === DATA ? payload.length : 0),
    0,
  );
}

function hasEnded(client: FrameClient, stream: number): boolean {
  return client.frames.some((one) => one.stream === stream && (one.flags & END_STREAM) !== 0);
}

/** Waits until no byte has come for a while. */
async function untilQuiet(client: FrameClient): Promise<number> {
  let [before, since] = [-1, 0];
  await eventually("nothing more comes", () => {
    const now = sentBytes(client);
    if (now !== before) [before, since] = [now, performance.now()];
    return now > 0 && performance.now() - since > 100;
  });
  return before;
}

function answerWith(upstream: Upstream, bodies: ReadonlyMap<string, Buffer>): void {
  upstream.onRequest = (side, request) => {
    const path = request.split(" ")[1] ?? "";
    const body = bodies.get(path) ?? NONE;
    side.send(`HTTP/1.1 200 OK\r\nContent-Length: ${body.length}\r\n\r\n`);
    side.socket.write(body);
  };
}

function path(name: string): readonly (readonly [string, string])[] {
  return GET_FIELDS.map((field) => field[0] === ":path" ? [":path", name] as const : field);
}

test("the connection's window is shared by its streams, and every byte comes once it is widened", async () => {
  await withProxy({}, async (proxy, upstream) => {
    const names = ["/a", "/b", "/c", "/d"];
    answerWith(upstream, new Map(names.map((name, at) => [name, pattern(150_000 + at, at)])));
    const client = new FrameClient(proxy.port).send(PREFACE, initialWindow(1_000_000));
    names.forEach((name, at) => client.ask(1 + 2 * at, path(name)));
    assert.is(await untilQuiet(client), 65_535);
    // Of a window that is opened wide enough for one frame each, each gets one.
    const before = names.map((_, at) => dataOf(client, 1 + 2 * at).length);
    client.send(widen(0, 4 * 16_384));
    await untilQuiet(client);
    const grew = names.map((_, at) => dataOf(client, 1 + 2 * at).length - (before[at] as number));
    assert.is(grew.reduce((sum, bytes) => sum + bytes, 0), 4 * 16_384);
    assert.ok(grew.filter((bytes) => bytes > 0).length >= 3, grew.join());
    while (!names.every((_, at) => hasEnded(client, 1 + 2 * at))) {
      client.send(widen(0, 10_000));
      await new Promise((resolve) => setTimeout(resolve, 1));
    }
    names.forEach((_, at) => {
      assert.ok(dataOf(client, 1 + 2 * at).equals(pattern(150_000 + at, at)));
    });
    client.destroy();
  });
});

test("a stream's window bounds only that stream", async () => {
  await withProxy({}, async (proxy, upstream) => {
    answerWith(upstream, new Map([["/big", pattern(200_000, 3)], ["/small", Buffer.from("hi")]]));
    const client = new FrameClient(proxy.port).send(PREFACE, initialWindow(1000));
    client.ask(1, path("/big"));
    assert.is(await untilQuiet(client), 1000);
    client.ask(3, path("/small"));
    await eventually("the other is answered", () => hasEnded(client, 3));
    client.send(widen(1, 1), widen(0, 10));
    await eventually("one byte more", () => dataOf(client, 1).length === 1001);
    client.send(widen(1, 500_000), widen(0, 500_000));
    await eventually("all", () => hasEnded(client, 1));
    assert.ok(dataOf(client, 1).equals(pattern(200_000, 3)));
    client.destroy();
  });
});

test("a setting that makes windows smaller than what was sent holds the stream back (section 6.9.2)", async () => {
  await withProxy({}, async (proxy, upstream) => {
    answerWith(upstream, new Map([["/big", pattern(50_000, 7)]]));
    const client = new FrameClient(proxy.port).send(PREFACE, initialWindow(20_000));
    client.ask(1, path("/big"));
    assert.is(await untilQuiet(client), 20_000);
    // 10,000 less than was used: a widening by as much gives nothing yet.
    client.send(initialWindow(10_000), widen(1, 10_000));
    assert.is(await untilQuiet(client), 20_000);
    client.send(widen(1, 5));
    await eventually("five bytes", () => sentBytes(client) === 20_005);
    client.send(initialWindow(60_000));
    await eventually("all", () => hasEnded(client, 1));
    assert.ok(dataOf(client, 1).equals(pattern(50_000, 7)));
    client.destroy();
  });
});

test("an answer without a body, and the end of one, need no window", async () => {
  await withProxy({}, async (proxy, upstream) => {
    answerWith(upstream, new Map());
    const client = new FrameClient(proxy.port).send(PREFACE, initialWindow(0));
    client.ask(1, path("/empty"));
    await eventually("answered", () => hasEnded(client, 1));
    client.destroy();
  });
});

test("uploads: windows are given back as the target reads, in large pieces", async () => {
  await withProxy({}, async (proxy, upstream) => {
    const size = 3_000_000;
    const body = pattern(size, 1);
    upstream.onData = () => {};
    const client = new FrameClient(proxy.port).hello();
    await client.until("settings", ({ type }) => type === SETTINGS);
    const fields = literals([
      [":method", "POST"],
      ...GET_FIELDS.slice(1),
      ["content-length", String(size)],
    ]);
    client.send(frame(HEADERS, END_HEADERS, 1, fields));
    // As they are told: 64 KiB less one for the connection at first, 128 KiB for the stream.
    let [sent, read, connection, stream] = [0, 0, 65_535, 128 * 1024];
    let updates = 0;
    while (sent < size) {
      for (; read < client.frames.length; read++) {
        const one = client.frames[read];
        if (one?.type !== WINDOW_UPDATE) continue;
        updates += 1;
        const by = Buffer.from(one.payload).readUInt32BE();
        if (one.stream === 0) connection += by;
        else stream += by;
      }
      const length = Math.min(size - sent, connection, stream, 16_384);
      if (length > 0) {
        client.send(frame(DATA, 0, 1, body.subarray(sent, sent + length)));
        [sent, connection, stream] = [sent + length, connection - length, stream - length];
      } else await new Promise((resolve) => setTimeout(resolve, 1));
    }
    client.send(frame(DATA, END_STREAM, 1, NONE));
    const side = await upstream.side();
    const end = body.toString("latin1");
    await eventually("all has come", () => side.received.length > size);
    await eventually("as it was sent", () => side.received.endsWith(end));
    assert.ok(updates < 100, `${updates} updates`);
    client.destroy();
  });
});

test("bodies that nobody reads do not hold up the others of their connection", async () => {
  await withProxy({}, async (proxy, upstream) => {
    upstream.onData = (side) => {
      if (side.received.startsWith("POST")) side.socket.pause();
      else if (side.received.endsWith("\r\n\r\n")) side.send(upstream.answer);
    };
    const client = new FrameClient(proxy.port).hello();
    await client.until("settings", ({ type }) => type === SETTINGS);
    const fields = literals([
      [":method", "POST"],
      ...GET_FIELDS.slice(1),
      ["content-length", "9000000"],
    ]);
    // Four streams send all that their windows allow, and more when they get it.
    const left = new Map<number, number>();
    let connection = 65_535;
    let read = 0;
    for (const stream of [1, 3, 5, 7]) {
      client.send(frame(HEADERS, END_HEADERS, stream, fields));
      left.set(stream, 128 * 1024);
    }
    const pump = (): number => {
      let count = 0;
      for (; read < client.frames.length; read++) {
        const one = client.frames[read];
        if (one?.type !== WINDOW_UPDATE) continue;
        const by = Buffer.from(one.payload).readUInt32BE();
        if (one.stream === 0) connection += by;
        else left.set(one.stream, (left.get(one.stream) ?? 0) + by);
      }
      for (const [stream, window] of left) {
        const length = Math.min(window, connection, 16_384);
        if (length <= 0) continue;
        client.send(frame(DATA, 0, stream, Buffer.alloc(length)));
        left.set(stream, window - length);
        connection -= length;
        count += length;
      }
      return count;
    };
    let quietSince = performance.now();
    await eventually("all four are stuck", () => {
      if (pump() > 0) quietSince = performance.now();
      return performance.now() - quietSince > 150;
    });
    assert.ok(connection > 0, "the connection's window is open");
    client.ask(9, GET_FIELDS);
    await eventually("another request is answered", () => hasEnded(client, 9));
    for (const stream of [1, 3, 5, 7]) client.send(frame(RST_STREAM, 0, stream, u32(8)));
    await eventually("they are given up", () => proxy.target.leases === 0);
    client.destroy();
  });
});

test("a client that asks and does not read is not read either, and costs little", async () => {
  await withProxy({}, async (proxy, upstream) => {
    upstream.answer = `HTTP/1.1 200 OK\r\nx-large: ${"x".repeat(8000)}\r\n` +
      "Content-Length: 0\r\n\r\n";
    const client = new FrameClient(proxy.port).hello();
    await client.until("settings", ({ type }) => type === SETTINGS);
    client.socket.pause();
    let asked = 0;
    let before = -1;
    let since = performance.now();
    await eventually("the target hears no more", () => {
      for (let at = 0; at < 20 && client.socket.writableLength < 65_536; at++, asked++) {
        client.ask(1 + 2 * asked, GET_FIELDS);
      }
      const now = upstream.requests.length;
      if (now !== before) [before, since] = [now, performance.now()];
      return performance.now() - since > 300;
    });
    assert.ok(asked > upstream.requests.length, `${asked} asked, ${upstream.requests.length} told`);
    client.destroy();
    await eventually("it is over", () => proxy.server.connections === 0);
  });
});

test.run();
