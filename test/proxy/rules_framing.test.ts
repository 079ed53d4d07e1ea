/** Rules 1 to 24: message framing and hop-by-hop headers. */

import { Buffer } from "node:buffer";
import { test } from "uvu";
import * as assert from "uvu/assert";
import {
  ask,
  bodyOf,
  Client,
  eventually,
  get,
  headOf,
  statusOf,
  valuesOf,
  withProxy,
} from "./wire.ts";
import { DATA, END_HEADERS, frame, FrameClient, GET_FIELDS } from "./h2_wire.ts";

const OK = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n";

test("rule 1: headers named in Connection do not cross, in any case, order or number of lines", async () => {
  await withProxy({}, async (proxy, upstream) => {
    await ask(
      proxy,
      "GET /x HTTP/1.1\r\nX-One: 1\r\nHost: a\r\nConnection:\r\nConnection: x-ONE , X-Two\r\nX-Two: 2\r\n" +
        "connection: close, x-three\r\nX-THREE: 3\r\nX-Four: 4\r\n\r\n",
    );
    const request = await upstream.request();
    for (const name of ["x-one", "x-two", "x-three", "connection"]) {
      assert.equal(valuesOf(request, name), [], name);
    }
    assert.equal(valuesOf(request, "x-four"), ["4"]);
  });
});

test("rule 1: a Connection header cannot take the framing or the Host away", async () => {
  await withProxy({}, async (proxy, upstream) => {
    await ask(
      proxy,
      "POST /x HTTP/1.1\r\nHost: a\r\nConnection: close, host, content-length\r\nContent-Length: 2\r\n\r\nhi",
    );
    const request = await upstream.request();
    assert.equal(valuesOf(request, "host"), ["a"]);
    assert.equal(valuesOf(request, "content-length"), ["2"]);
    assert.equal(bodyOf(request), "hi");
  });
});

test("rule 2: connection-specific headers never cross in either direction", async () => {
  await withProxy({}, async (proxy, upstream) => {
    upstream.answer =
      `${OK}Connection: keep-alive\r\nKeep-Alive: timeout=5\r\nProxy-Connection: x\r\nUpgrade: foo\r\n` +
      "TE: trailers\r\nTrailer: X-T\r\n\r\nok";
    const answer = await ask(
      proxy,
      get(
        "/",
        "Keep-Alive: 1\r\nProxy-Connection: keep-alive\r\nUpgrade: foo\r\nTrailer: X-T\r\nTE: gzip\r\n",
      ),
    );
    const request = await upstream.request();
    for (const name of ["keep-alive", "proxy-connection", "upgrade", "te", "trailer"]) {
      assert.equal(valuesOf(request, name), [], `request ${name}`);
      assert.equal(valuesOf(answer, name), [], `answer ${name}`);
    }
    assert.equal(valuesOf(request, "connection"), []);
    assert.equal(valuesOf(request, "transfer-encoding"), []);
    assert.equal(valuesOf(answer, "connection"), ["close"]);
  });
});

test("rule 3: Proxy-Authenticate and Proxy-Authorization are not relayed", async () => {
  await withProxy({}, async (proxy, upstream) => {
    upstream.answer = `${OK}Proxy-Authenticate: Basic\r\n\r\nok`;
    const answer = await ask(proxy, get("/", "Proxy-Authorization: Basic eA==\r\n"));
    assert.equal(valuesOf(await upstream.request(), "proxy-authorization"), []);
    assert.equal(valuesOf(answer, "proxy-authenticate"), []);
  });
});

test("rule 4: a client cannot delete our stamps by naming them in Connection", async () => {
  await withProxy({}, async (proxy, upstream) => {
    await ask(
      proxy,
      get(
        "/",
        "Connection: x-forwarded-for, x-request-id, via, forwarded\r\nX-Forwarded-For: 6.6.6.6\r\n",
      ),
    );
    const request = await upstream.request();
    assert.equal(valuesOf(request, "x-forwarded-for"), ["127.0.0.1"]);
    assert.equal(valuesOf(request, "x-request-id").length, 1);
    assert.equal(valuesOf(request, "via").length, 1);
    assert.match(valuesOf(request, "forwarded")[0] ?? "", "for=127.0.0.1");
  });
});

test("rule 5: the same stripping holds for answers, interim answers and 101", async () => {
  await withProxy({}, async (proxy, upstream) => {
    upstream.answer =
      "HTTP/1.1 103 Early Hints\r\nConnection: X-Hint\r\nX-Hint: 1\r\nLink: </a>\r\n\r\n" +
      `${OK}Connection: X-Priv\r\nX-Priv: secret\r\nX-Pub: yes\r\n\r\nok`;
    const answer = await ask(proxy, get("/"));
    assert.not.match(answer, /X-Hint|X-Priv/i);
    assert.match(answer, "Link: </a>");
    assert.match(answer, "X-Pub: yes");
    upstream.answer =
      "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade, X-Priv\r\nUpgrade: websocket\r\nX-Priv: 1\r\nX-Pub: 2\r\n\r\n";
    const client = await Client.to(proxy.port);
    client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
    const switched = await client.until("\r\n\r\n");
    assert.is(statusOf(switched), 101);
    assert.not.match(switched, /X-Priv/i);
    assert.equal(valuesOf(switched, "connection"), ["Upgrade"]);
    assert.equal(valuesOf(switched, "x-pub"), ["2"]);
    client.destroy();
  });
});

test("rule 6: TE: trailers is forwarded, every other TE value is dropped", async () => {
  await withProxy({}, async (proxy, upstream) => {
    await ask(proxy, get("/", "TE: gzip, trailers;q=0.5, deflate\r\n"));
    assert.equal(valuesOf(await upstream.request(0), "te"), ["trailers"]);
    await ask(proxy, get("/", "TE: gzip\r\n"));
    assert.equal(valuesOf(await upstream.request(1), "te"), []);
  });
});

test("rule 7: response trailers reach an HTTP/1.1 client that sent TE: trailers, and no other", async () => {
  await withProxy({}, async (proxy, upstream) => {
    upstream.answer =
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 7\r\nX-More: 8\r\n\r\n";
    const asked = await ask(proxy, get("/", "TE: trailers\r\n"));
    assert.ok(asked.endsWith("2\r\nok\r\n0\r\nX-Sum: 7\r\nX-More: 8\r\n\r\n"), asked);
    const silent = await ask(proxy, get("/"));
    assert.ok(silent.endsWith("2\r\nok\r\n0\r\n\r\n"), silent);
  });
});

test("rule 8: request trailers are forwarded as trailers, never as headers", async () => {
  await withProxy({}, async (proxy, upstream) => {
    await ask(
      proxy,
      "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n" +
        "2\r\nhi\r\n0\r\nX-Trail: 1\r\n\r\n",
    );
    const request = await upstream.request();
    assert.equal(valuesOf(request, "x-trail"), []);
    assert.is(bodyOf(request), "2\r\nhi\r\n0\r\nX-Trail: 1\r\n\r\n");
  });
});

test("rules 7 and 8: what frames, addresses or stamps a message never crosses as a trailer", async () => {
  const trailers = "Host: b\r\nX-Sum: 7\r\nConnection: x-sum\r\nTE: trailers\r\nVia: 1.1 c\r\n" +
    "x-forwarded-for: 192.0.2.1\r\nX-More: 8\r\n";
  const kept = "2\r\nhi\r\n0\r\nX-Sum: 7\r\nX-More: 8\r\n\r\n";
  await withProxy({}, async (proxy, upstream) => {
    upstream.answer = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n" +
      `0\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n${trailers}\r\n`;
    const answer = await ask(
      proxy,
      "POST / HTTP/1.1\r\nHost: a\r\nConnection: close, TE\r\nTE: trailers\r\n" +
        `Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n${trailers}\r\n`,
    );
    assert.is(bodyOf(await upstream.request()), kept);
    assert.is(bodyOf(answer), kept);
    const h2 = new FrameClient(proxy.port).hello();
    h2.ask(1, GET_FIELDS, END_HEADERS).send(frame(DATA, 0, 1, Buffer.from("hi")));
    h2.ask(1, [["content-length", "9"], ["x-sum", "7"], ["host", "b"]]);
    assert.is(bodyOf(await upstream.request(1)), "2\r\nhi\r\n0\r\nx-sum: 7\r\n\r\n");
    h2.destroy();
  });
});

/** Sends something that must be refused with 400 and checks that the child saw nothing of it. */
async function refused(request: string, status = 400): Promise<void> {
  await withProxy({}, async (proxy, upstream) => {
    const answer = await ask(proxy, request);
    assert.is(statusOf(answer), status, JSON.stringify({ request, answer }));
    assert.is(upstream.requests.length, 0, JSON.stringify(request));
    assert.equal(valuesOf(answer, "connection"), ["close"]);
  });
}

test("rule 9: Content-Length with Transfer-Encoding is 400 and nothing reaches the child", async () => {
  const tail = "5\r\nhello\r\n0\r\n\r\n";
  const start = "POST / HTTP/1.1\r\nHost: a\r\n";
  await refused(`${start}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n${tail}`);
  await refused(`${start}Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n${tail}`);
});

test("rule 10: two different Content-Length are 400, and so are two equal ones", async () => {
  const start = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n";
  await refused(`${start}Content-Length: 6\r\n\r\nhello!`);
  await refused(`${start}Content-Length: 5\r\n\r\nhello`);
  await refused("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5, 5\r\n\r\nhello");
  await refused("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n\r\nhello");
  await refused("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\nhello");
  await refused("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x5\r\n\r\nhello");
  await refused("POST / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\nhello");
  await refused("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\nhello");
});

test("rule 11: transfer codings other than one plain chunked are 400", async () => {
  const codings = [
    "identity",
    "xchunked",
    "chunked, identity",
    "chunked, chunked",
    "gzip, chunked",
    "chunked\r\nTransfer-Encoding: chunked",
    "\x0bchunked",
    "",
  ];
  for (const coding of codings) {
    await refused(
      `POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: ${coding}\r\n\r\n2\r\nhi\r\n0\r\n\r\n`,
    );
  }
});

test("rule 12: a chunked DELETE or OPTIONS keeps its framing", async () => {
  await withProxy({}, async (proxy, upstream) => {
    for (const [index, method] of ["DELETE", "OPTIONS"].entries()) {
      await ask(
        proxy,
        `${method} /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n` +
          "3\r\nabc\r\n0\r\n\r\n",
      );
      const request = await upstream.request(index);
      assert.equal(valuesOf(request, "transfer-encoding"), ["chunked"]);
      assert.equal(valuesOf(request, "content-length"), []);
      assert.is(bodyOf(request), "3\r\nabc\r\n0\r\n\r\n");
    }
  });
});

test("rule 13: chunk extensions are accepted and not forwarded", async () => {
  await withProxy({}, async (proxy, upstream) => {
    upstream.answer =
      'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;a=b;c="d"\r\nok\r\n0;last\r\n\r\n';
    const answer = await ask(
      proxy,
      "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n" +
        "2;name=value\r\nhi\r\n0\r\n\r\n",
    );
    assert.is(bodyOf(await upstream.request()), "2\r\nhi\r\n0\r\n\r\n");
    assert.is(bodyOf(answer), "2\r\nok\r\n0\r\n\r\n");
  });
});

test("rule 13: chunk sizes that overflow and bare LF in chunk lines are 400 and end the connection", async () => {
  const start = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
  const bodies = [
    "fffffffffffffffff\r\nhi\r\n0\r\n\r\n",
    "2\nhi\r\n0\r\n\r\n",
    "2\r\nhi\n0\r\n\r\n",
    "g\r\nhi\r\n0\r\n\r\n",
    "-2\r\nhi\r\n0\r\n\r\n",
    "2\r\nhiX\r\n0\r\n\r\n",
  ];
  for (const body of bodies) {
    await withProxy({}, async (proxy, upstream) => {
      const answer = await ask(proxy, start + body);
      assert.is(statusOf(answer), 400, JSON.stringify({ body, answer }));
      assert.is(upstream.requests.length, 0, body);
      for (const side of upstream.sides) await side.untilGone();
    });
  }
});

test("rule 14: a space before the colon, control bytes, folds and lone CR in a header are 400", async () => {
  const lines = [
    "X-A : 1",
    " X-A: 1",
    "X-A: 1\r\n folded",
    "X-A: 1\r\n\tfolded",
    "X-A: a\0b",
    "X-A: a\x01b",
    "X-A: a\x7fb",
    "X-A: a\rb",
    "X-A",
    ": 1",
    "X(A): 1",
    "X\x80: 1",
  ];
  for (const line of lines) await refused(`GET / HTTP/1.1\r\nHost: a\r\n${line}\r\n\r\n`);
});

test("rule 15: bare LF line ends are 400", async () => {
  await refused("GET / HTTP/1.1\nHost: a\n\n");
  await refused("GET / HTTP/1.1\r\nHost: a\nX-A: 1\r\n\r\n");
  await refused("GET / HTTP/1.1\r\nHost: a\r\nX-A: 1\n\r\n");
  await refused("GET / HTTP/1.1\r\nHost: a\r\nX-A: 1\r\n\n");
});

test("rule 16: exactly one valid Host, or 400", async () => {
  await refused("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n");
  await refused("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n");
  await refused("GET / HTTP/1.1\r\nX: y\r\n\r\n");
  for (const host of ["", "a b", "user@host", "a/b", "a?b", "[::1", "a:b", "a, b", "a:80:80"]) {
    await refused(`GET / HTTP/1.1\r\nHost: ${host}\r\n\r\n`);
  }
});

test("rule 17: a header section over the limit is 431, one under it passes", async () => {
  await withProxy({ limits: { headerBytes: 4096 } }, async (proxy, upstream) => {
    const small = await ask(proxy, get("/", `X-Big: ${"a".repeat(3900)}\r\n`));
    assert.is(statusOf(small), 200);
    const large = await ask(proxy, get("/", `X-Big: ${"a".repeat(5000)}\r\n`));
    assert.is(statusOf(large), 431);
    const many = await ask(proxy, get("/", "X-Many: a\r\n".repeat(600)));
    assert.is(statusOf(many), 431);
    const client = await Client.to(proxy.port);
    client.send("GET / HTTP/1.1\r\nHost: a\r\n");
    for (let at = 0; at < 40 && !client.fin; at++) {
      client.send(`X-Slow-${at}: ${"b".repeat(1000)}\r\n`);
      await new Promise((resolve) => setTimeout(resolve, 2));
    }
    assert.is(statusOf(await client.untilClosed()), 431);
    assert.is(upstream.requests.length, 1);
  });
});

test("rule 18: a request target over the limit is 414", async () => {
  await withProxy({ limits: { targetBytes: 1000 } }, async (proxy, upstream) => {
    assert.is(statusOf(await ask(proxy, get("/" + "a".repeat(900)))), 200);
    assert.is(statusOf(await ask(proxy, get("/" + "a".repeat(1000)))), 414);
    const client = await Client.to(proxy.port);
    client.send("GET /");
    for (let at = 0; at < 40 && !client.fin; at++) {
      client.send("c".repeat(100));
      await new Promise((resolve) => setTimeout(resolve, 2));
    }
    assert.is(statusOf(await client.untilClosed()), 414);
    assert.is(upstream.requests.length, 1);
  });
});

test("rule 19: an upstream header section over the limit is 502", async () => {
  await withProxy({}, async (proxy, upstream) => {
    upstream.answer = `${OK}X-Big: ${"a".repeat(60_000)}\r\n\r\nok`;
    assert.is(statusOf(await ask(proxy, get("/"))), 200);
    upstream.answer = `${OK}X-Big: ${"a".repeat(70_000)}\r\n\r\nok`;
    const answer = await ask(proxy, get("/"));
    assert.is(statusOf(answer), 502);
    assert.match(answer, "upstream_bad_response");
  });
});

test("rule 20: conflicting Content-Length from the child are 502", async () => {
  await withProxy({}, async (proxy, upstream) => {
    for (
      const lines of [
        "Content-Length: 2\r\nContent-Length: 3",
        "Content-Length: 2, 3",
        "Content-Length: x",
      ]
    ) {
      upstream.answer = `HTTP/1.1 200 OK\r\n${lines}\r\n\r\nok`;
      assert.is(statusOf(await ask(proxy, get("/"))), 502, lines);
    }
  });
});

test("rule 21: Content-Length and Transfer-Encoding from the child are 502", async () => {
  await withProxy({}, async (proxy, upstream) => {
    upstream.answer =
      "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n";
    const answer = await ask(proxy, get("/"));
    assert.is(statusOf(answer), 502);
    assert.not.match(answer, "ok\r\n0");
  });
});

test("rule 22: an HTTP/1.0 client never sees chunked framing", async () => {
  await withProxy({}, async (proxy, upstream) => {
    upstream.answer =
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n";
    const answer = await ask(proxy, "GET / HTTP/1.0\r\n\r\n");
    assert.equal(valuesOf(answer, "transfer-encoding"), []);
    assert.is(bodyOf(answer), "abcdef");
  });
});

test("rule 22: an HTTP/1.0 client that asks for it may keep its connection", async () => {
  await withProxy({}, async (proxy) => {
    const client = await Client.to(proxy.port);
    client.send("GET /1 HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n\r\n");
    const first = await client.until("\r\n\r\nok");
    assert.equal(valuesOf(first, "connection"), ["keep-alive"]);
    client.send("GET /2 HTTP/1.0\r\nHost: a\r\n\r\n");
    await client.untilClosed();
    assert.is(client.received.split("\r\n\r\nok").length, 3);
  });
});

test("rule 23: pipelined requests are answered in order", async () => {
  await withProxy({}, async (proxy, upstream) => {
    upstream.onRequest = (side, request) => {
      const path = request.split(" ")[1] ?? "";
      const delayMs = path === "/1" ? 50 : 0;
      setTimeout(
        () => side.send(`HTTP/1.1 200 OK\r\nContent-Length: ${path.length}\r\n\r\n${path}`),
        delayMs,
      );
    };
    const client = await Client.to(proxy.port);
    client.send(
      "GET /1 HTTP/1.1\r\nHost: a\r\n\r\nPOST /2 HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc" +
        "GET /3 HTTP/1.1\r\nHost: a\r\n\r\nPOST /4 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" +
        "1\r\nx\r\n0\r\n\r\nGET /5 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    );
    const all = await client.untilClosed();
    assert.equal([...all.matchAll(/\r\n\r\n(\/\d)/g)].map((match) => match[1]), [
      "/1",
      "/2",
      "/3",
      "/4",
      "/5",
    ]);
  });
});

test("rule 23: a pipelined request cut anywhere is put together again", async () => {
  await withProxy({}, async (proxy) => {
    const request = "POST /1 HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc" +
      "POST /2 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n" +
      "GET /3 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    for (let cut = 1; cut < request.length; cut += 3) {
      const client = await Client.to(proxy.port);
      client.send(request.slice(0, cut));
      await new Promise((resolve) => setTimeout(resolve, 1));
      client.send(request.slice(cut));
      const all = await client.untilClosed();
      assert.is(all.split("HTTP/1.1 200 OK").length, 4, `cut at ${cut}: ${all}`);
    }
  });
});

test("rule 24: what is left of a request body after an early answer is never the next request", async () => {
  await withProxy({}, async (proxy, upstream) => {
    upstream.onData = (side) => {
      if (!side.received.includes("\r\n\r\n") || side.taken > 0) return;
      side.taken = 1;
      side.send("HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\n\r\nbig");
    };
    const client = await Client.to(proxy.port);
    const smuggled = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
    client.send(`POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n${"x".repeat(1000)}`);
    await client.until("big");
    client.send(smuggled);
    const answer = await client.untilClosed();
    assert.is(statusOf(answer), 413);
    assert.equal(valuesOf(answer, "connection"), ["close"]);
    assert.is(answer.split("HTTP/1.1").length, 2);
    await eventually("one line is logged", () => proxy.lines.length === 1);
    assert.not.match(headOf(upstream.sides.map((side) => side.received).join("")), "smuggled");
  });
});

test.run();
