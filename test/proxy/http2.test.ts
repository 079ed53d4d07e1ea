/** HTTP/2 with prior knowledge on the traffic listener: streams are exchanges like any other. */

import { Buffer } from "node:buffer";
import { test } from "uvu";
import * as assert from "uvu/assert";
import {
  DATA,
  END_HEADERS,
  frame,
  FrameClient,
  GET_FIELDS,
  GOAWAY,
  H2Client,
  HEADERS,
  literals,
  PREFACE,
  RST_STREAM,
  SETTINGS,
  valuesOf as fieldValues,
} from "./h2_wire.ts";
import { Client, eventually, type Proxy, valuesOf, withProxy } from "./wire.ts";

type Field = readonly [string, string];

async function withClient(
  proxy: Proxy,
  body: (client: H2Client) => Promise<void>,
): Promise<void> {
  const client = await H2Client.to(proxy.port);
  try {
    await body(client);
  } finally {
    client.destroy();
    await eventually("the connection is gone", () => proxy.server.connections === 0);
  }
}

test("HTTP/2 and HTTP/1.1 share the port", async () => {
  await withProxy({}, async (proxy) => {
    await withClient(proxy, async (client) => {
      const h2 = await client.ask("/one").done();
      assert.is(h2.status, 200);
      assert.is(h2.body, "ok");
      const h1 = await Client.to(proxy.port);
      h1.send("GET /two HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n");
      assert.match(await h1.untilClosed(), /^HTTP\/1\.1 200 OK\r\n/);
    });
  });
});

test("a listener that does not speak HTTP/2 says so in HTTP/1.1", async () => {
  for (const [http2, isAllowed] of [["never", false], ["always", true]] as const) {
    await withProxy({ http2 }, async (proxy) => {
      const client = await Client.to(proxy.port);
      client.send(PREFACE.toString() + "\0\0\0\x04\0\0\0\0\0");
      const answer = await client.until(isAllowed ? "\x04" : "version_not_supported");
      assert.is(answer.startsWith("HTTP/1.1 505"), !isAllowed);
      client.destroy();
    });
  }
});

test("the preface may come in pieces, and what only begins like it is HTTP/1.1", async () => {
  await withProxy({}, async (proxy, upstream) => {
    const raw = new FrameClient(proxy.port);
    raw.send(PREFACE.subarray(0, 1));
    await new Promise((resolve) => setTimeout(resolve, 20));
    raw.send(PREFACE.subarray(1, 17));
    await new Promise((resolve) => setTimeout(resolve, 20));
    raw.send(PREFACE.subarray(17), frame(SETTINGS, 0, 0, Buffer.alloc(0)));
    raw.ask(1, GET_FIELDS);
    await raw.until("an answer", ({ type, stream }) => type === HEADERS && stream === 1);
    raw.destroy();
    const h1 = await Client.to(proxy.port);
    h1.send("P");
    await new Promise((resolve) => setTimeout(resolve, 20));
    h1.send("R").send("OPFIND /x HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n");
    assert.match(await h1.untilClosed(), /^HTTP\/1\.1 200 OK\r\n/);
    assert.match(await upstream.request(1), /^PROPFIND \/x HTTP\/1\.1\r\n/);
  });
});

test("the target, the host and the fields cross as they came", async () => {
  await withProxy({}, async (proxy, upstream) => {
    await withClient(proxy, async (client) => {
      await client.ask("/a/%2e%2e//b;c?x='&&[]|", {
        ":authority": "Some.Test:8080",
        "x-twice": ["1", "2"],
        "x-latin": "caf\xe9",
        cookie: ["a=1", "b=2"],
        "x-request-id": "kept-1",
      }).done();
      const request = await upstream.request();
      assert.match(request, /^GET \/a\/%2e%2e\/\/b;c\?x='&&\[\]\| HTTP\/1\.1\r\n/);
      assert.equal(valuesOf(request, "host"), ["Some.Test:8080"]);
      assert.equal(valuesOf(request, "x-twice"), ["1", "2"]);
      assert.equal(valuesOf(request, "x-latin"), ["caf\xe9"]);
      assert.equal(valuesOf(request, "cookie"), ["a=1; b=2"]);
      assert.equal(valuesOf(request, "x-request-id"), ["kept-1"]);
      assert.equal(valuesOf(request, "x-forwarded-for"), ["127.0.0.1"]);
      assert.equal(valuesOf(request, "x-forwarded-proto"), ["http"]);
      assert.equal(valuesOf(request, "x-forwarded-host"), ["Some.Test:8080"]);
      assert.match(valuesOf(request, "via")[0] ?? "", /^2 baton-/);
      assert.equal(valuesOf(request, "content-length"), []);
      assert.equal(valuesOf(request, "transfer-encoding"), []);
    });
  });
});

test("a host field stands in for :authority, must agree with it, and one of them must be", async () => {
  await withProxy({}, async (proxy, upstream) => {
    const raw = new FrameClient(proxy.port).hello();
    const [method, scheme, path] = GET_FIELDS as [[string, string], [string, string], [
      string,
      string,
    ]];
    raw.ask(1, [method, scheme, path, ["host", "only.test"]]);
    raw.ask(3, [method, scheme, path, [":authority", "a.test"], ["host", "A.test"]]);
    raw.ask(5, [method, scheme, path, [":authority", "a.test"], ["host", "b.test"]]);
    for (const stream of [1, 3, 5]) {
      await raw.until(`answer ${stream}`, (one) => one.type === HEADERS && one.stream === stream);
    }
    assert.equal(valuesOf(await upstream.request(0), "host"), ["only.test"]);
    assert.equal(valuesOf(await upstream.request(1), "host"), ["a.test"]);
    await eventually("all are logged", () => proxy.lines.length >= 3);
    assert.equal(proxy.lines.map((line) => line.status).sort(), [200, 200, 400]);
    assert.is(upstream.requests.length, 2);
    assert.is(upstream.requests.length, 2);
    raw.destroy();
  });
});

test("connection-specific fields never cross, in either direction", async () => {
  await withProxy({}, async (proxy, upstream) => {
    upstream.answer =
      "HTTP/1.1 200 OK\r\nConnection: keep-alive, x-priv\r\nKeep-Alive: timeout=9\r\n" +
      "X-Priv: secret\r\nProxy-Authenticate: no\r\nContent-Length: 2\r\nSet-Cookie: a=1\r\n" +
      "Set-Cookie: b=2\r\nX-Own: yes\r\n\r\nok";
    await withClient(proxy, async (client) => {
      const answer = await client.ask("/").done();
      assert.equal(answer.values("connection"), []);
      assert.equal(answer.values("keep-alive"), []);
      assert.equal(answer.values("x-priv"), []);
      assert.equal(answer.values("proxy-authenticate"), []);
      assert.equal(answer.values("set-cookie"), ["a=1", "b=2"]);
      assert.equal(answer.values("x-own"), ["yes"]);
      assert.equal(answer.values("content-length"), ["2"]);
      assert.is(answer.values("date").length, 1);
      assert.is(answer.values("x-request-id").length, 1);
    });
  });
});

test("a malformed request never becomes one: its stream is refused, or its connection ends", async () => {
  await withProxy({}, async (proxy, upstream) => {
    const [method, scheme, path, authority] = GET_FIELDS as [Field, Field, Field, Field];
    for (
      const fields of [
        [...GET_FIELDS, ["connection", "x-priv"], ["x-priv", "secret"]],
        [...GET_FIELDS, ["transfer-encoding", "chunked"]],
        [...GET_FIELDS, ["te", "gzip"]],
        [...GET_FIELDS, ["Upper", "case"]],
        [...GET_FIELDS, [":path", "/second"]],
        [method, scheme, path],
        [method, scheme, path, [":authority", "user@a.test"]],
        [method, scheme, authority, [":path", "/with space"]],
        [method, scheme, authority, [":path", "no-slash"]],
        [method, scheme, authority, [":path", "/a#fragment"]],
        [method, scheme, authority],
      ] as Field[][]
    ) {
      const raw = new FrameClient(proxy.port).hello().ask(1, fields);
      const end = await raw.until(
        JSON.stringify(fields.at(-1)),
        ({ type, stream }) => type === GOAWAY || (stream === 1 && type !== DATA),
      );
      if (end.type === HEADERS) await eventually("400", () => proxy.lines.at(-1)?.status === 400);
      raw.destroy();
    }
    const mismatched = new FrameClient(proxy.port).hello();
    mismatched.ask(1, [...GET_FIELDS, ["content-length", "5"]], END_HEADERS);
    mismatched.send(frame(DATA, 1, 1, Buffer.from("123456")));
    await mismatched.until("refused", ({ type }) => type === RST_STREAM || type === GOAWAY);
    mismatched.destroy();
    assert.is(upstream.requests.length, 0);
    await eventually("nothing is left", () => proxy.target.leases === 0);
  });
});

test("bodies with a length keep it, others are chunked, and trailers cross both ways", async () => {
  await withProxy({}, async (proxy, upstream) => {
    upstream.answer = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x-sum\r\n\r\n" +
      "5\r\nhello\r\n0\r\nX-Sum: 5\r\n\r\n";
    await withClient(proxy, async (client) => {
      const known = await client.ask("/len", { "content-length": "4" }, "four").done();
      assert.is(known.body, "hello");
      assert.equal(known.trailers, []);
      const first = await upstream.request(0);
      assert.equal(valuesOf(first, "content-length"), ["4"]);
      assert.match(first, /\r\n\r\nfour$/);
      const trailed = client.begin("/chunks", { te: "trailers" }, false, { "x-check": "7" });
      trailed.stream.end("abc");
      await trailed.done();
      const second = await upstream.request(1);
      assert.equal(valuesOf(second, "transfer-encoding"), ["chunked"]);
      assert.equal(valuesOf(second, "te"), ["trailers"]);
      assert.match(second, /\r\n\r\n3\r\nabc\r\n0\r\nx-check: 7\r\n\r\n$/);
      assert.equal(fieldValues(trailed.trailers, "x-sum"), ["5"]);
    });
  });
});

test("HEAD, 204 and 304 have no body, and 103 comes before the answer", async () => {
  await withProxy({}, async (proxy, upstream) => {
    const answers = [
      "HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n",
      "HTTP/1.1 204 No Content\r\nX-A: 1\r\n\r\n",
      'HTTP/1.1 304 Not Modified\r\nETag: "e"\r\nContent-Length: 99\r\n\r\n',
      "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx",
    ];
    upstream.onRequest = (side) => side.send(answers.shift() ?? "");
    await withClient(proxy, async (client) => {
      const head = await client.ask("/", { ":method": "HEAD" }).done();
      assert.equal([head.status, head.bytes, head.values("content-length")], [200, 0, ["99"]]);
      assert.is((await client.ask("/").done()).status, 204);
      const cached = await client.ask("/").done();
      assert.equal([cached.status, cached.values("etag")], [304, ['"e"']]);
      const hinted = await client.ask("/").done();
      assert.equal(hinted.interim, [103]);
      assert.equal(fieldValues(hinted.interimFields[0] ?? [], "link"), ["</x>"]);
      assert.equal([hinted.status, hinted.body, hinted.values("link")], [200, "x", []]);
    });
  });
});

test("Expect: 100-continue is answered by the target, then the body goes", async () => {
  await withProxy({}, async (proxy, upstream) => {
    upstream.onData = (side) => {
      if (side.received.endsWith("\r\n\r\n")) side.send("HTTP/1.1 100 Continue\r\n\r\n");
      else if (side.received.endsWith("body")) {
        side.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
      }
    };
    await withClient(proxy, async (client) => {
      const request = client.begin("/", { expect: "100-continue", "content-length": "4" });
      await eventually("told to go on", () => request.interim.includes(100));
      request.stream.end("body");
      assert.is((await request.done()).status, 200);
    });
  });
});

test("many streams run at once on one connection, each with its own lease", async () => {
  await withProxy({}, async (proxy, upstream) => {
    const waiting: (() => void)[] = [];
    upstream.onRequest = (side) => waiting.push(() => void side.send(upstream.answer));
    await withClient(proxy, async (client) => {
      const asked = Array.from({ length: 50 }, (_, at) => client.ask(`/${at}`));
      await eventually("all are at the target", () => waiting.length === 50);
      assert.is(proxy.target.leases, 50);
      assert.is(proxy.server.inflight, 50);
      for (const answer of waiting.splice(0)) answer();
      for (const one of asked) assert.is((await one.done()).status, 200);
      await eventually("no lease is left", () => proxy.target.leases === 0);
      assert.is(proxy.server.connections, 1);
    });
  });
});

test("a client's reset ends the request at the target and counts as 499", async () => {
  await withProxy({}, async (proxy, upstream) => {
    upstream.onRequest = () => {};
    await withClient(proxy, async (client) => {
      const waiting = client.ask("/before-head");
      const side = await upstream.side(0);
      await upstream.request(0);
      waiting.stream.close(8);
      await side.untilGone();
      await eventually("logged", () => proxy.lines.length === 1);
      assert.equal([proxy.lines[0]?.status, proxy.lines[0]?.reason], [499, "client_closed"]);

      const upload = new FrameClient(proxy.port).hello();
      upload.ask(1, [...GET_FIELDS, ["content-length", "100"]], END_HEADERS);
      upload.send(frame(DATA, 0, 1, Buffer.from("part")));
      const second = await upstream.side(1);
      await second.until("part");
      upload.send(frame(RST_STREAM, 0, 1, Buffer.from([0, 0, 0, 8])));
      await second.untilGone();
      await eventually("logged", () => proxy.lines.length === 2);
      assert.is(proxy.target.leases, 0);

      upstream.onRequest = (one) =>
        one.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
      const download = client.ask("/mid-download");
      await download.until("abc");
      download.stream.close(8);
      await (await upstream.side(2)).untilGone();
      // The connection lives on.
      upstream.onRequest = undefined;
      assert.is((await client.ask("/after").done()).status, 200);
      upload.destroy();
    });
  });
});

test("a target that dies in the middle resets the stream, after the bytes that came", async () => {
  await withProxy({}, async (proxy, upstream) => {
    upstream.onRequest = (side) => {
      side.send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nfirst bytes");
      setTimeout(() => side.socket.destroy(), 30);
    };
    await withClient(proxy, async (client) => {
      const broken = await client.ask("/").done();
      assert.is(broken.body, "first bytes");
      assert.is(broken.ended, false);
      assert.is(broken.code, 2);
      await eventually("logged", () => proxy.lines.length === 1);
      assert.is(proxy.lines[0]?.reason, "upstream_reset");
      upstream.onRequest = undefined;
      assert.is((await client.ask("/").done()).status, 200);
    });
  });
});

test("every status of three digits crosses, as in HTTP/1.1", async () => {
  await withProxy({}, async (proxy, upstream) => {
    upstream.answer = "HTTP/1.1 999 Odd\r\nContent-Length: 3\r\n\r\nodd";
    await withClient(proxy, async (client) => {
      const odd = await client.ask("/").done();
      assert.equal([odd.status, odd.body], [999, "odd"]);
      upstream.answer = "HTTP/1.1 599 Odd\r\nContent-Length: 3\r\n\r\nodd";
      assert.is((await client.ask("/").done()).status, 599);
    });
  });
});

test("a client that reads nothing stops the target, a target that reads nothing the client", async () => {
  await withProxy({}, async (proxy, upstream) => {
    const MIB = 1024 * 1024;
    let sent = 0;
    upstream.onRequest = (side) => {
      side.send(`HTTP/1.1 200 OK\r\nContent-Length: ${256 * MIB}\r\n\r\n`);
      const piece = Buffer.alloc(65536);
      const more = () => {
        while (sent < 256 * MIB && !side.closed) {
          sent += piece.length;
          if (!side.socket.write(piece)) return void side.socket.once("drain", more);
        }
      };
      more();
    };
    await withClient(proxy, async (client) => {
      const download = client.begin("/down", {}, true);
      await download.headed();
      download.stream.pause();
      let before = -1;
      await eventually("the target is stopped", () => {
        const still = sent === before && sent > 0;
        before = sent;
        return still;
      });
      await new Promise((resolve) => setTimeout(resolve, 200));
      assert.ok(sent < 32 * MIB, `the target sent ${sent / MIB} MiB`);
      // Another stream of the connection is not held up by it.
      upstream.onRequest = undefined;
      assert.is((await client.ask("/other").done()).status, 200);
      download.stream.close(8);

      upstream.onData = (side) => void side.socket.pause();
      const upload = client.begin("/up");
      let taken = 0;
      const piece = Buffer.alloc(65536);
      const push = () => {
        while (taken < 256 * MIB && !upload.closed) {
          taken += piece.length;
          if (!upload.stream.write(piece)) return void upload.stream.once("drain", push);
        }
      };
      push();
      before = -1;
      await eventually("the client is stopped", () => {
        const still = taken === before && taken > 65536;
        before = taken;
        return still;
      });
      await new Promise((resolve) => setTimeout(resolve, 200));
      assert.ok(taken < 32 * MIB, `the client sent ${taken / MIB} MiB`);
      upload.stream.close(8);
      await eventually("both are over", () => proxy.target.leases === 0);
    });
  });
});

test("a large upload and a large answer pass whole, at the same time", async () => {
  await withProxy({}, async (proxy, upstream) => {
    const size = 3 * 1024 * 1024;
    const bytes = Buffer.alloc(size, "abcdefghij");
    let received = 0;
    upstream.onData = (side) => {
      received = side.received.length - side.received.indexOf("\r\n\r\n") - 4;
      if (received < size) return;
      side.socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${size}\r\n\r\n`);
      side.socket.write(bytes);
      side.received = "";
    };
    await withClient(proxy, async (client) => {
      const echo = await client.ask("/", { "content-length": String(size) }, bytes).done();
      assert.ok(received >= size);
      assert.is(echo.bytes, size);
      assert.ok(echo.body === bytes.toString("latin1"));
    });
  });
});

test("an early answer tells the client to stop its upload, and the stream ends", async () => {
  await withProxy({ limits: { bodyBytes: 1000 } }, async (proxy, upstream) => {
    await withClient(proxy, async (client) => {
      const stated = client.begin("/", { "content-length": "5000" });
      assert.is((await stated.headed()).status, 413);
      await stated.done();
      assert.is(stated.code, 0);
      const unstated = client.begin("/");
      unstated.stream.write(Buffer.alloc(900));
      await upstream.side(0);
      unstated.stream.write(Buffer.alloc(900));
      assert.is((await unstated.done()).status, 413);
      upstream.onData = (side) => {
        upstream.onData = undefined;
        side.send("HTTP/1.1 401 No\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno");
      };
      const early = client.begin("/", { "content-length": "999" });
      early.stream.write("x");
      const answered = await early.done();
      assert.equal([answered.status, answered.body], [401, "no"]);
    });
  });
});

test("limits: target 414, header section 431, an absurd one is reset, CONNECT and TRACE are 405", async () => {
  const limits = { targetBytes: 1000, headerBytes: 2000 };
  await withProxy({ limits }, async (proxy, upstream) => {
    await withClient(proxy, async (client) => {
      assert.is((await client.ask(`/${"a".repeat(1000)}`).done()).status, 414);
      assert.is((await client.ask("/", { "x-big": "a".repeat(2000) }).done()).status, 431);
      const absurd = await client.ask("/", { "x-big": "a".repeat(60_000) }).done();
      assert.equal([absurd.status, absurd.code], [0, 11]);
      assert.is((await client.ask("/", { ":method": "TRACE" }).done()).status, 405);
      assert.is((await client.ask("/fine").done()).status, 200);
      const connect = client.session.request({ ":method": "CONNECT", ":authority": "x.test:443" });
      let status = 0;
      connect.on("response", (headers) => (status = Number(headers[":status"])));
      connect.on("error", () => {});
      await eventually("CONNECT is answered", () => status === 405);
      connect.destroy();
    });
    assert.is(upstream.requests.length, 1);
  });
});

test("more streams than allowed are refused, which a client may try again", async () => {
  await withProxy({ limits: { streams: 2 } }, async (proxy, upstream) => {
    upstream.onRequest = () => {};
    const raw = new FrameClient(proxy.port).hello();
    raw.ask(1, GET_FIELDS).ask(3, GET_FIELDS).ask(5, GET_FIELDS);
    const refused = await raw.until("a refusal", ({ type }) => type === RST_STREAM);
    assert.equal([refused.stream, refused.payload[3]], [5, 7]);
    await eventually("two are at the target", () => upstream.requests.length === 2);
    raw.destroy();
    await eventually("they are given up", () => proxy.target.leases === 0);
  });
});

test("a client that opens streams only to reset them is sent away", async () => {
  await withProxy({}, async (proxy, upstream) => {
    upstream.onRequest = () => {};
    const raw = new FrameClient(proxy.port).hello();
    await raw.until("settings", ({ type }) => type === SETTINGS);
    let stream = 1;
    const cancel = Buffer.from([0, 0, 0, 8]);
    for (let round = 0; round < 100 && !raw.closed; round++) {
      for (let at = 0; at < 20; at++, stream += 2) {
        raw.ask(stream, GET_FIELDS).send(frame(RST_STREAM, 0, stream, cancel));
      }
      await new Promise((resolve) => setTimeout(resolve, 1));
    }
    const away = await raw.until("GOAWAY", ({ type }) => type === GOAWAY);
    assert.is(away.payload[7], 11);
    await eventually("the connection is closed", () => raw.closed);
    await eventually("every lease is back", () => proxy.target.leases === 0);
    assert.ok(upstream.requests.length < 1000);
  });
});

test("frames that are no HTTP/2 end the connection, and only it", async () => {
  await withProxy({}, async (proxy) => {
    for (
      const junk of [
        frame(DATA, 0, 0, Buffer.from("data on stream 0")),
        frame(HEADERS, END_HEADERS, 2, literals(GET_FIELDS)),
        frame(SETTINGS, 0, 0, Buffer.from([1, 2, 3])),
        Buffer.alloc(5000, 255),
      ]
    ) {
      const raw = new FrameClient(proxy.port).hello().send(junk);
      await eventually("closed", () => raw.closed);
    }
    await withClient(proxy, async (client) => {
      assert.is((await client.ask("/").done()).status, 200);
    });
  });
});

test("a drain announces the end, serves what is open, and closes after the last stream", async () => {
  await withProxy({}, async (proxy, upstream) => {
    const waiting: (() => void)[] = [];
    upstream.onRequest = (side) => waiting.push(() => void side.send(upstream.answer));
    const client = await H2Client.to(proxy.port);
    const slow = client.ask("/slow");
    await eventually("it is at the target", () => waiting.length === 1);
    proxy.server.drain();
    await eventually("GOAWAY", () => client.goaways.length > 0);
    // Nothing is refused by it yet: the last stream is the highest there is.
    assert.equal(client.goaways[0], { code: 0, last: 2 ** 31 - 1 });
    const closing = proxy.server.close();
    for (const answer of waiting.splice(0)) answer();
    const answer = await slow.done();
    assert.equal([answer.status, answer.body, answer.code], [200, "ok", 0]);
    await closing;
    await eventually("the connection is closed", () => client.closed);
    client.destroy();
  });
});

test("an idle connection is closed after the keep-alive time", async () => {
  await withProxy({ limits: { keepAliveMs: 200 } }, async (proxy) => {
    const client = await H2Client.to(proxy.port);
    assert.is((await client.ask("/").done()).status, 200);
    await eventually("it is closed", () => client.closed);
    assert.is(client.goaways[0]?.code, 0);
  });
});

test("a request that must be read by the service is read whole, or refused above the limit", async () => {
  const handle = async (exchange: import("../../src/proxy/exchange.ts").Exchange) => {
    const body = await exchange.readBody(10);
    exchange.respond(Response.json({ text: new TextDecoder().decode(body) }));
  };
  await withProxy({ handle }, async (proxy) => {
    await withClient(proxy, async (client) => {
      const fine = await client.ask("/", {}, "ten bytes!").done();
      assert.is(fine.body, '{"text":"ten bytes!"}');
      assert.is((await client.ask("/", {}, "eleven bytes").done()).status, 413);
      assert.is(
        (await client.ask("/", { "content-length": "11" }, "eleven byte").done()).status,
        413,
      );
    });
  });
});

test.run();
