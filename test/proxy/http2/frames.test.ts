/** Frames that RFC 9113 forbids, one after the other on real sockets, and what each of them costs. */

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
  GOAWAY,
  HEADERS,
  literals,
  PING,
  PREFACE,
  RST_STREAM,
  SETTINGS,
} from "../h2_wire.ts";
import { eventually, type Proxy, type Upstream, withProxy } from "../wire.ts";

const PRIORITY = 2;
const PUSH_PROMISE = 5;
const WINDOW_UPDATE = 8;
const CONTINUATION = 9;
const PADDED = 8;
const HAS_PRIORITY = 0x20;
const ERROR = {
  none: 0,
  protocol: 1,
  flowControl: 3,
  streamClosed: 5,
  frameSize: 6,
  refusedStream: 7,
  compression: 9,
  enhanceYourCalm: 11,
};
const NONE = Buffer.alloc(0);
type Field = readonly [string, string];

function u32(...values: number[]): Buffer {
  const bytes = Buffer.alloc(values.length * 4);
  values.forEach((value, at) => bytes.writeUInt32BE(value, at * 4));
  return bytes;
}

function setting(id: number, value: number): Buffer {
  return Buffer.concat([Buffer.from([0, id]), u32(value)]);
}

function get(stream: number, flags = END_HEADERS | END_STREAM): Buffer {
  return frame(HEADERS, flags, stream, literals(GET_FIELDS));
}

const POST_FIELDS: readonly Field[] = [[":method", "POST"], ...GET_FIELDS.slice(1)];

function post(stream: number, more: readonly Field[] = [], flags = END_HEADERS): Buffer {
  return frame(HEADERS, flags, stream, literals([...POST_FIELDS, ...more]));
}

/** The connection ends with a GOAWAY that says why. */
async function expectGoaway(proxy: Proxy, what: string, code: number, parts: Uint8Array[]) {
  const client = new FrameClient(proxy.port).hello().send(...parts);
  const { payload } = await client.until(`GOAWAY: ${what}`, ({ type }) => type === GOAWAY);
  assert.is(payload[7], code, what);
  await eventually(`closed: ${what}`, () => client.closed);
}

/** Only stream 1 is reset: another request on the connection is answered. */
async function expectReset(proxy: Proxy, what: string, code: number, parts: Uint8Array[]) {
  const client = new FrameClient(proxy.port).hello().send(...parts);
  const { stream, payload } = await client.until(what, ({ type }) => type === RST_STREAM);
  assert.equal([stream, payload[3]], [1, code], what);
  client.ask(101, GET_FIELDS);
  await client.until(
    `answer after: ${what}`,
    (one) => one.stream === 101 && (one.flags & END_STREAM) !== 0,
  );
  assert.is(client.frames.filter(({ type }) => type === GOAWAY).length, 0, what);
  client.destroy();
}

/** A target that does not answer, so that streams stay as they are. */
async function withSilence(body: (proxy: Proxy, upstream: Upstream) => Promise<void>) {
  await withProxy({}, async (proxy, upstream) => {
    upstream.onRequest = (side, request) => {
      if (request.includes("/ ") && !request.startsWith("POST")) side.send(upstream.answer);
    };
    await body(proxy, upstream);
    await eventually("no connection is left", () => proxy.server.connections === 0);
    assert.is(proxy.server.inflight, 0);
  });
}

test("sections 3.4 and 6.5: SETTINGS come first, whatever else there is", async () => {
  await withSilence(async (proxy) => {
    for (
      const first of [
        get(1),
        frame(PING, 0, 0, Buffer.alloc(8)),
        frame(SETTINGS, 1, 0, NONE),
        frame(99, 0, 0, NONE),
      ]
    ) {
      const client = new FrameClient(proxy.port).send(PREFACE, first);
      const { payload } = await client.until("GOAWAY", ({ type }) => type === GOAWAY);
      assert.is(payload[7], ERROR.protocol);
      await eventually("closed", () => client.closed);
    }
    await expectGoaway(proxy, "confirmed twice", ERROR.protocol, [
      frame(SETTINGS, 1, 0, NONE),
      frame(SETTINGS, 1, 0, NONE),
    ]);
  });
});

test("sections 4.2 and 6: sizes that a frame cannot have", async () => {
  await withSilence(async (proxy) => {
    const wrong: [string, Buffer][] = [
      ["too large", frame(DATA, 0, 1, Buffer.alloc(16_385))],
      ["too large, of an unknown type", frame(77, 0, 1, Buffer.alloc(16_385))],
      ["PRIORITY", frame(PRIORITY, 0, 1, Buffer.alloc(4))],
      ["RST_STREAM", frame(RST_STREAM, 0, 1, Buffer.alloc(5))],
      ["SETTINGS", frame(SETTINGS, 0, 0, Buffer.alloc(5))],
      ["SETTINGS, confirmed", frame(SETTINGS, 1, 0, Buffer.alloc(6))],
      ["PING", frame(PING, 0, 0, Buffer.alloc(7))],
      ["GOAWAY", frame(GOAWAY, 0, 0, Buffer.alloc(7))],
      ["WINDOW_UPDATE", frame(WINDOW_UPDATE, 0, 0, Buffer.alloc(3))],
      ["DATA without its padding", frame(DATA, PADDED, 1, NONE)],
      ["HEADERS without its padding", frame(HEADERS, 4 | PADDED, 3, NONE)],
      ["HEADERS without its priority", frame(HEADERS, 4 | HAS_PRIORITY, 3, Buffer.alloc(4))],
    ];
    for (const [what, bytes] of wrong) {
      await expectGoaway(proxy, what, ERROR.frameSize, [post(1), bytes]);
    }
  });
});

test("section 6: frames on a kind of stream that is not theirs", async () => {
  await withSilence(async (proxy) => {
    for (const type of [DATA, HEADERS, PRIORITY, RST_STREAM, CONTINUATION]) {
      const size = type === PRIORITY ? 5 : 4;
      const bytes = frame(type, 4, 0, Buffer.alloc(size, 1));
      await expectGoaway(proxy, `type ${type}`, ERROR.protocol, [bytes]);
    }
    for (const [type, size] of [[SETTINGS, 6], [PING, 8], [GOAWAY, 8]] as const) {
      const bytes = frame(type, 0, 1, Buffer.alloc(size));
      await expectGoaway(proxy, `type ${type}`, ERROR.protocol, [post(1), bytes]);
    }
    const push = frame(PUSH_PROMISE, 4, 1, Buffer.concat([u32(2), literals(GET_FIELDS)]));
    await expectGoaway(proxy, "section 8.4", ERROR.protocol, [post(1), push]);
  });
});

test("sections 6.1 and 6.2: padding is no more than the payload, and is no data", async () => {
  await withSilence(async (proxy) => {
    const tooMuch = Buffer.from([3, 1, 2]);
    await expectGoaway(proxy, "DATA", ERROR.protocol, [post(1), frame(DATA, PADDED, 1, tooMuch)]);
    await expectGoaway(proxy, "HEADERS", ERROR.protocol, [frame(HEADERS, 4 | PADDED, 1, tooMuch)]);
  });
  await withProxy({}, async (proxy, upstream) => {
    const fields = literals([...POST_FIELDS, ["content-length", "5"]]);
    const head = Buffer.concat([Buffer.from([7, 0, 0, 0, 0, 9]), fields, Buffer.alloc(7)]);
    const client = new FrameClient(proxy.port).hello();
    client.send(
      frame(HEADERS, END_HEADERS | PADDED | HAS_PRIORITY, 1, head),
      frame(DATA, PADDED, 1, Buffer.concat([Buffer.from([4]), Buffer.from("he"), Buffer.alloc(4)])),
      frame(DATA, PADDED, 1, Buffer.from([2, 0, 0])),
      frame(DATA, PADDED | END_STREAM, 1, Buffer.concat([Buffer.from([0]), Buffer.from("llo")])),
    );
    assert.match(await upstream.request(), /\r\n\r\nhello$/);
    await client.until("the answer", ({ type }) => type === DATA);
    client.destroy();
  });
});

test("section 5.1: frames of streams that were never opened", async () => {
  await withSilence(async (proxy) => {
    const wrong: [string, Buffer][] = [
      ["DATA", frame(DATA, 0, 1, NONE)],
      ["RST_STREAM", frame(RST_STREAM, 0, 1, u32(8))],
      ["WINDOW_UPDATE", frame(WINDOW_UPDATE, 0, 1, u32(1))],
      ["CONTINUATION", frame(CONTINUATION, 4, 1, literals(GET_FIELDS))],
      ["an even number", get(2)],
      ["DATA of an even number", frame(DATA, 0, 2, NONE)],
    ];
    for (const [what, bytes] of wrong) await expectGoaway(proxy, what, ERROR.protocol, [bytes]);
    await expectGoaway(proxy, "a number left out before", ERROR.protocol, [get(5), get(3)]);
  });
});

test("section 5.1: frames of streams that the client has ended", async () => {
  await withSilence(async (proxy) => {
    const ended = post(1, [], END_HEADERS | END_STREAM);
    await expectReset(proxy, "DATA", ERROR.streamClosed, [ended, frame(DATA, 0, 1, NONE)]);
    await expectReset(proxy, "HEADERS", ERROR.streamClosed, [ended, post(1)]);
    const reset = frame(RST_STREAM, 0, 1, u32(8));
    const data = frame(DATA, 0, 1, Buffer.from("x"));
    await expectReset(proxy, "DATA after a reset", ERROR.streamClosed, [ended, reset, data]);
    await expectGoaway(proxy, "HEADERS after a reset", ERROR.streamClosed, [ended, reset, post(1)]);
    // What may be under way is let pass.
    const client = new FrameClient(proxy.port).hello().send(ended, reset, reset);
    client.send(frame(WINDOW_UPDATE, 0, 1, u32(5)), frame(PRIORITY, 0, 1, u32(0, 0).subarray(3)));
    client.ask(3, GET_FIELDS);
    await client.until("an answer", ({ type, stream }) => type === HEADERS && stream === 3);
    client.destroy();
  });
});

test("section 5.1: what crosses a reset of ours is ignored, and counts in the window", async () => {
  await withProxy({}, async (proxy, upstream) => {
    const client = new FrameClient(proxy.port).hello();
    // Refused before it became a request; the rest of it is under way.
    client.send(post(1, [["Upper", "case"]]));
    client.send(frame(DATA, 0, 1, Buffer.alloc(16_000)), frame(DATA, END_STREAM, 1, NONE));
    client.send(frame(HEADERS, 5, 1, literals([["x-trailer", "1"]])));
    client.ask(3, GET_FIELDS);
    await client.until("an answer", ({ type, stream }) => type === DATA && stream === 3);
    assert.equal(client.frames.filter(({ type }) => type === GOAWAY), []);
    assert.is(upstream.requests.length, 1);
    client.destroy();
  });
});

test("section 5.3.1 of RFC 7540: a stream that depends on itself", async () => {
  await withSilence(async (proxy) => {
    const self = Buffer.from([0, 0, 0, 1, 9]);
    await expectGoaway(proxy, "PRIORITY", ERROR.protocol, [frame(PRIORITY, 0, 1, self)]);
    const head = Buffer.concat([self, literals(GET_FIELDS)]);
    await expectGoaway(proxy, "HEADERS", ERROR.protocol, [
      frame(HEADERS, 5 | HAS_PRIORITY, 1, head),
    ]);
  });
});

test("section 6.5.2: values that a setting cannot have", async () => {
  await withSilence(async (proxy) => {
    for (
      const [id, value, code] of [
        [2, 2, ERROR.protocol],
        [4, 2 ** 31, ERROR.flowControl],
        [5, 16_383, ERROR.protocol],
        [5, 2 ** 24, ERROR.protocol],
      ] as const
    ) {
      const bytes = frame(SETTINGS, 0, 0, setting(id, value));
      await expectGoaway(proxy, `setting ${id} = ${value}`, code, [bytes]);
    }
    const client = new FrameClient(proxy.port).hello();
    client.send(
      frame(
        SETTINGS,
        0,
        0,
        Buffer.concat([setting(2, 0), setting(99, 7), setting(5, 2 ** 24 - 1)]),
      ),
    );
    const isConfirmed = (): boolean =>
      client.frames.filter(({ type, flags }) => type === SETTINGS && flags === 1).length === 2;
    await eventually("both are confirmed", isConfirmed);
    client.destroy();
  });
});

test("section 6.9: windows that are not widened, or too wide", async () => {
  await withSilence(async (proxy) => {
    const widen = (stream: number, by: number): Buffer => frame(WINDOW_UPDATE, 0, stream, u32(by));
    await expectGoaway(proxy, "by 0", ERROR.protocol, [widen(0, 0)]);
    await expectGoaway(proxy, "too wide", ERROR.flowControl, [widen(0, 2 ** 31 - 1)]);
    await expectReset(proxy, "stream by 0", ERROR.protocol, [post(1), widen(1, 0)]);
    await expectReset(proxy, "stream too wide", ERROR.flowControl, [
      post(1),
      widen(1, 2 ** 31 - 1),
    ]);
    // The reserved bit means nothing.
    const client = new FrameClient(proxy.port).hello().send(widen(0, 2 ** 31 + 1)).ask(
      1,
      GET_FIELDS,
    );
    await client.until("an answer", ({ type }) => type === HEADERS);
    client.destroy();
    const initial = frame(SETTINGS, 0, 0, setting(4, 2 ** 31 - 1));
    await expectGoaway(proxy, "by a setting", ERROR.flowControl, [post(1), widen(1, 1), initial]);
  });
});

test("section 6.9.1: a client that sends more than its windows allow", async () => {
  await withSilence(async (proxy, upstream) => {
    upstream.onData = (side) => void side.socket.pause();
    const full = frame(DATA, 0, 1, Buffer.alloc(16_384));
    // Nobody reads at the target: the stream's window of 128 KiB is not given back for ever.
    const many = Array.from({ length: 1000 }, () => full);
    const client = new FrameClient(proxy.port).hello().send(post(1), ...many);
    const { payload } = await client.until(
      "an end",
      ({ type }) => type === RST_STREAM || type === GOAWAY,
    );
    assert.is(payload.at(-1), ERROR.flowControl);
    client.destroy();
    for (const side of upstream.sides) side.socket.destroy();
  });
});

test("sections 4.3 and 6.10: a header block goes on at once, on its stream, to its end", async () => {
  await withSilence(async (proxy) => {
    const begun = frame(HEADERS, END_STREAM, 1, literals(GET_FIELDS.slice(0, 2)));
    const rest = literals(GET_FIELDS.slice(2));
    for (
      const [what, inside] of [
        ["PING", frame(PING, 0, 0, Buffer.alloc(8))],
        ["DATA", frame(DATA, 0, 1, NONE)],
        ["another HEADERS", get(3)],
        ["an unknown type", frame(99, 0, 0, NONE)],
        ["CONTINUATION of another stream", frame(CONTINUATION, 4, 3, rest)],
      ] as const
    ) {
      await expectGoaway(proxy, what, ERROR.protocol, [begun, inside]);
    }
    const ended = frame(CONTINUATION, 4, 1, rest);
    await expectGoaway(proxy, "after its end", ERROR.protocol, [begun, ended, ended]);
    const client = new FrameClient(proxy.port).hello().send(
      begun,
      frame(CONTINUATION, 0, 1, NONE),
      frame(CONTINUATION, 0, 1, rest.subarray(0, 3)),
      frame(CONTINUATION, 4, 1, rest.subarray(3)),
    );
    await client.until("an answer", ({ type }) => type === HEADERS);
    client.destroy();
    const junk = frame(HEADERS, 5, 1, Buffer.from([0x80]));
    await expectGoaway(proxy, "section 4.3", ERROR.compression, [junk]);
  });
});

test("CVE-2024-27316: a header block without end is not collected", async () => {
  await withSilence(async (proxy) => {
    const begun = frame(HEADERS, END_STREAM, 1, literals(GET_FIELDS));
    const piece = frame(CONTINUATION, 0, 1, Buffer.alloc(16_384));
    const pieces = Array.from({ length: 60 }, () => piece);
    await expectGoaway(proxy, "by bytes", ERROR.enhanceYourCalm, [begun, ...pieces]);
    const empty = Array.from({ length: 100 }, () => frame(CONTINUATION, 0, 1, NONE));
    await expectGoaway(proxy, "by frames", ERROR.enhanceYourCalm, [begun, ...empty]);
  });
});

test("sections 8.1 to 8.3: messages that are malformed cost their stream", async () => {
  const [method, scheme, path, authority] = GET_FIELDS as [Field, Field, Field, Field];
  await withSilence(async (proxy, upstream) => {
    const wrong: [string, Field[]][] = [
      ["no method", [scheme, path, authority]],
      ["no scheme", [method, path, authority]],
      ["no path", [method, scheme, authority]],
      ["an empty path", [method, scheme, [":path", ""], authority]],
      ["two methods", [...GET_FIELDS, method]],
      ["two paths", [method, scheme, path, path, authority]],
      ["two schemes", [method, scheme, scheme, path, authority]],
      ["two authorities", [...GET_FIELDS, authority]],
      ["a pseudo field behind others", [["x-a", "1"], ...GET_FIELDS]],
      ["a pseudo field of answers", [...GET_FIELDS, [":status", "200"]]],
      ["a pseudo field that there is not", [...GET_FIELDS, [":protocol", "websocket"]]],
      ["a name with capitals", [...GET_FIELDS, ["X-A", "1"]]],
      ["a name with a space", [...GET_FIELDS, ["x a", "1"]]],
      ["an empty name", [...GET_FIELDS, ["", "1"]]],
      ["a value with a line end", [...GET_FIELDS, ["x-a", "1\r\nx-b: 2"]]],
      ["a value with NUL", [...GET_FIELDS, ["x-a", "\0"]]],
      ["a value that begins with a space", [...GET_FIELDS, ["x-a", " 1"]]],
      ["connection", [...GET_FIELDS, ["connection", "x"]]],
      ["keep-alive", [...GET_FIELDS, ["keep-alive", "1"]]],
      ["proxy-connection", [...GET_FIELDS, ["proxy-connection", "x"]]],
      ["transfer-encoding", [...GET_FIELDS, ["transfer-encoding", "chunked"]]],
      ["upgrade", [...GET_FIELDS, ["upgrade", "h2c"]]],
      ["te but trailers", [...GET_FIELDS, ["te", "gzip"]]],
      ["a length of a body that is not", [...GET_FIELDS, ["content-length", "1"]]],
      ["a length that is no number", [...GET_FIELDS, ["content-length", "+0"]]],
      ["two lengths", [...GET_FIELDS, ["content-length", "0"], ["content-length", "0"]]],
      ["CONNECT with a path", [[":method", "CONNECT"], path, authority]],
      ["CONNECT without an authority", [[":method", "CONNECT"]]],
    ];
    for (const [what, fields] of wrong) {
      const head = frame(HEADERS, END_HEADERS | END_STREAM, 1, literals(fields));
      await expectReset(proxy, what, ERROR.protocol, [head]);
    }
    const data = (text: string, flags: number): Buffer => frame(DATA, flags, 1, Buffer.from(text));
    const three = post(1, [["content-length", "3"]]);
    await expectReset(proxy, "too long", ERROR.protocol, [three, data("1234", 0)]);
    await expectReset(proxy, "too short", ERROR.protocol, [three, data("12", END_STREAM)]);
    const trailers = (fields: Field[], flags: number): Buffer =>
      frame(HEADERS, flags, 1, literals(fields));
    await expectReset(proxy, "trailers that are not the end", ERROR.protocol, [
      post(1),
      trailers([["x-a", "1"]], END_HEADERS),
    ]);
    await expectReset(proxy, "pseudo fields in trailers", ERROR.protocol, [
      post(1),
      trailers([method], END_HEADERS | END_STREAM),
    ]);
    await expectReset(proxy, "too short, with trailers", ERROR.protocol, [
      three,
      data("12", 0),
      trailers([["x-a", "1"]], END_HEADERS | END_STREAM),
    ]);
    assert.ok(upstream.requests.every((request) => request.startsWith("GET / ")));
  });
});

test("CVE-2019-9512, 9515, 9518 and kin: floods of frames that move nothing", async () => {
  await withSilence(async (proxy) => {
    const floods: [string, Buffer][] = [
      ["PING", frame(PING, 0, 0, Buffer.alloc(8))],
      ["SETTINGS", frame(SETTINGS, 0, 0, NONE)],
      ["empty DATA", frame(DATA, 0, 1, NONE)],
      ["PRIORITY", frame(PRIORITY, 0, 3, Buffer.from([0, 0, 0, 0, 1]))],
      ["WINDOW_UPDATE", frame(WINDOW_UPDATE, 0, 0, u32(1))],
      ["an unknown type", frame(99, 0, 0, NONE)],
      ["DATA of a stream that is closed", frame(DATA, 0, 5, Buffer.from("x"))],
    ];
    const closed = [get(5), frame(RST_STREAM, 0, 5, u32(8)), post(7)];
    for (const [what, one] of floods) {
      const bytes = Buffer.concat(Array.from({ length: 2000 }, () => one));
      await expectGoaway(proxy, what, ERROR.enhanceYourCalm, [post(1), ...closed, bytes]);
    }
  });
});

test("CVE-2023-44487: streams opened to be reset, or to have us reset them", async () => {
  await withSilence(async (proxy, upstream) => {
    const opened: Buffer[] = [];
    for (let stream = 1; stream < 4000; stream += 2) {
      opened.push(post(stream), frame(RST_STREAM, 0, stream, u32(0)));
    }
    await expectGoaway(proxy, "by the client", ERROR.enhanceYourCalm, opened);
    const made: Buffer[] = [];
    for (let stream = 1; stream < 4000; stream += 2) {
      made.push(post(stream), frame(WINDOW_UPDATE, 0, stream, u32(0)));
    }
    await expectGoaway(proxy, "by us", ERROR.enhanceYourCalm, made);
    await eventually("no lease is left", () => proxy.target.leases === 0);
    assert.ok(upstream.requests.length < 1000);
  });
});

test("section 6.8: after GOAWAY new streams are ignored, and those that are open go on", async () => {
  await withProxy({}, async (proxy, upstream) => {
    upstream.onRequest = (side, request) => {
      if (request.includes("x-late")) side.send(upstream.answer);
      else setTimeout(() => side.send(upstream.answer), 100);
    };
    const client = new FrameClient(proxy.port).hello().ask(1, GET_FIELDS);
    await eventually("it is at the target", () => upstream.requests.length === 1);
    const closing = proxy.server.close();
    const { payload } = await client.until("GOAWAY", ({ type }) => type === GOAWAY);
    assert.equal([payload[3], payload[7]], [1, ERROR.none]);
    client.send(post(3, [["x-late", "1"]]), frame(DATA, 0, 3, Buffer.from("late")));
    client.send(frame(DATA, END_STREAM, 3, NONE));
    await client.until("the answer", ({ type, stream }) => type === DATA && stream === 1);
    await eventually("closed", () => client.closed);
    await closing;
    assert.is(upstream.requests.length, 1);
    assert.equal(client.frames.filter(({ type }) => type === RST_STREAM), []);
  });
});

test("frames cut at every byte mean the same", async () => {
  await withProxy({}, async (proxy, upstream) => {
    const parts = [
      PREFACE,
      frame(SETTINGS, 0, 0, setting(3, 100)),
      frame(99, 0, 0, Buffer.from("unknown")),
      post(1, [["content-length", "5"]]),
      frame(
        DATA,
        PADDED,
        1,
        Buffer.concat([Buffer.from([3]), Buffer.from("hel"), Buffer.alloc(3)]),
      ),
      frame(DATA, END_STREAM, 1, Buffer.from("lo")),
      frame(PING, 0, 0, Buffer.from("12345678")),
    ];
    const client = new FrameClient(proxy.port);
    for (const byte of Buffer.concat(parts)) {
      client.socket.write(Buffer.from([byte]));
      await new Promise((resolve) => setImmediate(resolve));
    }
    assert.match(await upstream.request(), /\r\n\r\nhello$/);
    const pong = await client.until("the ping's answer", ({ type }) => type === PING);
    assert.equal([pong.flags, Buffer.from(pong.payload).toString()], [1, "12345678"]);
    await client.until("an answer", ({ type }) => type === DATA);
    client.destroy();
  });
});

test.run();
