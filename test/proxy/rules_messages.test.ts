/** Rules 25 to 39: methods, status codes, bodies. */

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

const OK = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n";

test("rule 25: a GET with a body reaches the child with its body", async () => {
  await withProxy({}, async (proxy, upstream) => {
    await ask(
      proxy,
      "GET /q HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello",
    );
    const request = await upstream.request();
    assert.is(bodyOf(request), "hello");
    assert.equal(valuesOf(request, "content-length"), ["5"]);
  });
});

test("rule 26: HEAD stays HEAD, with the child's content-length, no body and no wait", async () => {
  await withProxy({}, async (proxy, upstream) => {
    const heads = ["Content-Length: 1234\r\n", "Transfer-Encoding: chunked\r\n", ""];
    const client = await Client.to(proxy.port);
    for (const [index, lines] of heads.entries()) {
      upstream.answer = `HTTP/1.1 200 OK\r\n${lines}X-Index: ${index}\r\n\r\n`;
      client.send(`HEAD /${index} HTTP/1.1\r\nHost: a\r\n\r\n`);
      await client.until(new RegExp(`X-Index: ${index}\r\n[^]*\r\n\r\n`));
      assert.match(await upstream.request(index), `HEAD /${index} `);
    }
    client.send("HEAD /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    const all = await client.untilClosed();
    assert.equal(valuesOf(all, "content-length"), ["1234"]);
    assert.is(all.split("HTTP/1.1 200 OK").length, 5);
    assert.ok(
      all.split("\r\n\r\n").every((part) => part === "" || part.startsWith("HTTP/1.1")),
      all,
    );
  });
});

test("rule 27: 204 and 304 have no body; 304 keeps etag, length and type of the child", async () => {
  await withProxy({}, async (proxy, upstream) => {
    upstream.answer = "HTTP/1.1 204 No Content\r\nX-A: 1\r\n\r\n";
    const empty = await ask(proxy, get("/"));
    assert.is(statusOf(empty), 204);
    assert.is(bodyOf(empty), "");
    assert.equal(valuesOf(empty, "content-length"), []);
    assert.equal(valuesOf(empty, "transfer-encoding"), []);
    upstream.answer =
      'HTTP/1.1 304 Not Modified\r\nETag: "x"\r\nContent-Length: 999\r\nContent-Type: text/css\r\n\r\n';
    const same = await ask(proxy, get("/"));
    assert.is(statusOf(same), 304);
    assert.is(bodyOf(same), "");
    assert.equal(valuesOf(same, "etag"), ['"x"']);
    assert.equal(valuesOf(same, "content-length"), ["999"]);
    assert.equal(valuesOf(same, "content-type"), ["text/css"]);
  });
});

test("rule 28: a redirect of the child is passed on, never followed", async () => {
  await withProxy({}, async (proxy, upstream) => {
    upstream.answer = "HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n";
    const answer = await ask(proxy, get("/"));
    assert.is(statusOf(answer), 302);
    assert.equal(valuesOf(answer, "location"), ["/elsewhere"]);
    assert.is(upstream.requests.length, 1);
  });
});

test("rule 29: odd status codes pass", async () => {
  await withProxy({}, async (proxy, upstream) => {
    for (const status of [299, 418, 451, 599, 600, 999]) {
      upstream.answer = `HTTP/1.1 ${status} Odd\r\nContent-Length: 2\r\n\r\nok`;
      const answer = await ask(proxy, get("/"));
      assert.is(statusOf(answer), status);
      assert.is(bodyOf(answer), "ok");
    }
  });
});

test("rule 30: the reason phrase is passed on, also an empty one", async () => {
  await withProxy({}, async (proxy, upstream) => {
    upstream.answer = "HTTP/1.1 200 Fine Th\xe4nks\r\nContent-Length: 0\r\n\r\n";
    assert.ok((await ask(proxy, get("/"))).startsWith("HTTP/1.1 200 Fine Th\xe4nks\r\n"));
    upstream.answer = "HTTP/1.1 200 \r\nContent-Length: 0\r\n\r\n";
    assert.ok((await ask(proxy, get("/"))).startsWith("HTTP/1.1 200 \r\n"));
    upstream.answer = "HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n";
    assert.ok((await ask(proxy, get("/"))).startsWith("HTTP/1.1 200 \r\n"));
  });
});

test("rule 31: CONNECT is 405 with an answer, and the child is not contacted", async () => {
  await withProxy({}, async (proxy, upstream) => {
    const answer = await ask(
      proxy,
      "CONNECT other.test:443 HTTP/1.1\r\nHost: other.test:443\r\nConnection: close\r\n\r\n",
    );
    assert.is(statusOf(answer), 405);
    assert.ok(valuesOf(answer, "allow").length === 1);
    assert.is(upstream.sides.length, 0);
  });
});

test("rule 32: TRACE is 405", async () => {
  await withProxy({}, async (proxy, upstream) => {
    const answer = await ask(proxy, "TRACE / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert.is(statusOf(answer), 405);
    assert.is(upstream.sides.length, 0);
  });
});

test("rule 33: OPTIONS * is answered by us, OPTIONS /path by the child", async () => {
  await withProxy({}, async (proxy, upstream) => {
    const star = await ask(proxy, "OPTIONS * HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert.is(statusOf(star), 204);
    assert.match(valuesOf(star, "allow")[0] ?? "", "OPTIONS");
    assert.is(upstream.sides.length, 0);
    await ask(proxy, "OPTIONS /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert.match(await upstream.request(), "OPTIONS /x HTTP/1.1");
    assert.is(statusOf(await ask(proxy, "GET * HTTP/1.1\r\nHost: a\r\n\r\n")), 400);
  });
});

test("rule 34: unknown methods pass as they are and share one metric label", async () => {
  await withProxy({}, async (proxy, upstream) => {
    for (const [index, method] of ["BREW", "patch", "X-Y_Z", "PRIVATE"].entries()) {
      const answer = await ask(
        proxy,
        `${method} /m HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n`,
      );
      assert.is(statusOf(answer), 200, method);
      assert.ok((await upstream.request(index)).startsWith(`${method} /m HTTP/1.1\r\n`));
    }
    const text = await proxy.metricsText();
    assert.match(text, 'method="OTHER"');
    assert.not.match(text, "BREW");
  });
});

test("rule 35: Expect: 100-continue is passed on, the 100 comes back, the body is not lost", async () => {
  await withProxy({}, async (proxy, upstream) => {
    upstream.onData = (side) => {
      if (side.taken === 0 && side.received.includes("\r\n\r\n")) {
        side.taken = 1;
        side.send("HTTP/1.1 100 Continue\r\n\r\n");
      }
      if (side.received.endsWith("hello")) side.send(`${OK}\r\nok`);
    };
    const client = await Client.to(proxy.port);
    client.send(
      "PUT /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n",
    );
    await client.until("HTTP/1.1 100 Continue\r\n\r\n");
    assert.match((await upstream.side()).received, /Expect: 100-continue/i);
    client.send("hello");
    const answer = await client.untilClosed();
    assert.ok(answer.endsWith("ok"));
    assert.match(answer, "HTTP/1.1 200 OK");
  });
});

test("rule 35: a child that refuses instead of saying 100, or says nothing, is no deadlock", async () => {
  await withProxy({}, async (proxy, upstream) => {
    upstream.onData = (side) => {
      if (side.taken > 0 || !side.received.includes("\r\n\r\n")) return;
      side.taken = 1;
      side.send("HTTP/1.1 417 Expectation Failed\r\nContent-Length: 0\r\n\r\n");
    };
    const put = "PUT /x HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n";
    const refused = await Client.to(proxy.port);
    assert.is(statusOf(await refused.send(put).untilClosed()), 417);
    upstream.onData = (side) => {
      if (side.received.endsWith("hello")) side.send(`${OK}\r\nok`);
    };
    const patient = await Client.to(proxy.port);
    patient.send(put);
    await eventually("the head arrives", () => upstream.sides[1]?.received.includes("\r\n\r\n"));
    patient.send("hello");
    await patient.until("ok");
    patient.destroy();
  });
});

test("rule 36: a child's 413 before the upload ends is relayed at once", async () => {
  await withProxy({}, async (proxy, upstream) => {
    upstream.onData = (side) => {
      if (side.taken > 0 || !side.received.includes("\r\n\r\n")) return;
      side.taken = 1;
      side.send("HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\n\r\nbig");
    };
    const client = await Client.to(proxy.port);
    client.send(
      `POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\n${"x".repeat(50_000)}`,
    );
    const answer = await client.until("big");
    assert.is(statusOf(answer), 413);
    await client.untilClosed();
    await (await upstream.side()).untilGone();
  });
});

test("rule 37: 103 is relayed before the final answer and its headers are not repeated there", async () => {
  await withProxy({}, async (proxy, upstream) => {
    upstream.onRequest = (side) =>
      side.send("HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\n\r\n");
    const client = await Client.to(proxy.port);
    client.send(get("/"));
    const hints = await client.until("\r\n\r\n");
    assert.is(statusOf(hints), 103);
    assert.match(hints, "Link: </a.css>");
    (await upstream.side()).send(`${OK}\r\nok`);
    const all = await client.untilClosed();
    const final = all.slice(all.indexOf("HTTP/1.1 200"));
    assert.equal(valuesOf(final, "link"), []);
    assert.is(bodyOf(final), "ok");
    const old = await Client.to(proxy.port);
    upstream.onRequest = (side) =>
      side.send(`HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n${OK}\r\nok`);
    old.send("GET / HTTP/1.0\r\n\r\n");
    assert.not.match(await old.untilClosed(), "103");
  });
});

test("rule 38: a POST with Content-Length: 0 stays one", async () => {
  await withProxy({}, async (proxy, upstream) => {
    await ask(
      proxy,
      "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
    );
    const request = await upstream.request();
    assert.equal(valuesOf(request, "content-length"), ["0"]);
    assert.equal(valuesOf(request, "transfer-encoding"), []);
  });
});

test("rule 38: a POST without any body framing gets none", async () => {
  await withProxy({}, async (proxy, upstream) => {
    await ask(proxy, "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    const request = await upstream.request();
    assert.equal(valuesOf(request, "content-length"), []);
    assert.equal(valuesOf(request, "transfer-encoding"), []);
  });
});

test("rule 39: the request's content-length is kept, without chunks", async () => {
  await withProxy({}, async (proxy, upstream) => {
    const body = "x".repeat(300_000);
    const client = await Client.to(proxy.port);
    client.send(
      `POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: ${body.length}\r\n\r\n`,
    );
    client.send(body.slice(0, 1000));
    await new Promise((resolve) => setTimeout(resolve, 5));
    client.send(body.slice(1000));
    await client.untilClosed();
    const request = await upstream.request();
    assert.equal(valuesOf(request, "content-length"), [String(body.length)]);
    assert.is(bodyOf(request), body);
    assert.not.match(headOf(request), /transfer-encoding/i);
  });
});

test.run();
