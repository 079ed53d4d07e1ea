/** Rules 40 to 61: content, headers, targets. */

import { brotliCompressSync, deflateSync, gzipSync } from "node:zlib";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { ask, bodyOf, Client, get, statusOf, valuesOf, withProxy } from "./wire.ts";

const OK = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n";
const TEXT = "the same bytes, again and again. ".repeat(100);

/** Encoded bodies as latin1 text. */
const ENCODED: Record<string, string> = {
  gzip: gzipSync(TEXT).toString("latin1"),
  br: brotliCompressSync(TEXT).toString("latin1"),
  deflate: deflateSync(TEXT).toString("latin1"),
  zstd: "\x28\xb5\x2f\xfd made up",
  "x-unknown": "\x00\x01\xff\xfe",
};

test("rule 40: answer bytes are the child's, whatever their Content-Encoding", async () => {
  await withProxy({}, async (proxy, upstream) => {
    for (const [encoding, bytes] of Object.entries(ENCODED)) {
      upstream.answer =
        `HTTP/1.1 200 OK\r\nContent-Encoding: ${encoding}\r\nContent-Length: ${bytes.length}\r\n\r\n${bytes}`;
      const answer = await ask(proxy, get("/"));
      assert.is(bodyOf(answer), bytes, encoding);
    }
  });
});

test("rule 41: Content-Encoding and Content-Length match those bytes", async () => {
  await withProxy({}, async (proxy, upstream) => {
    for (const [encoding, bytes] of Object.entries(ENCODED)) {
      upstream.answer =
        `HTTP/1.1 200 OK\r\nContent-Encoding: ${encoding}\r\nContent-Length: ${bytes.length}\r\n\r\n${bytes}`;
      const answer = await ask(proxy, get("/"));
      assert.equal(valuesOf(answer, "content-encoding"), [encoding]);
      assert.equal(valuesOf(answer, "content-length"), [String(bytes.length)]);
    }
  });
});

test("rule 42: Accept-Encoding reaches the child unchanged, and none is added", async () => {
  await withProxy({}, async (proxy, upstream) => {
    await ask(proxy, get("/", "Accept-Encoding: zstd;q=0.9, br , identity;q=0\r\n"));
    assert.equal(valuesOf(await upstream.request(0), "accept-encoding"), [
      "zstd;q=0.9, br , identity;q=0",
    ]);
    await ask(proxy, get("/"));
    assert.equal(valuesOf(await upstream.request(1), "accept-encoding"), []);
  });
});

test("rule 43: a strong ETag covers exactly the bytes that the child sent", async () => {
  await withProxy({}, async (proxy, upstream) => {
    const bytes = ENCODED.gzip as string;
    upstream.answer =
      `HTTP/1.1 200 OK\r\nETag: "strong"\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n` +
      `${bytes.length.toString(16)}\r\n${bytes}\r\n0\r\n\r\n`;
    const answer = await ask(proxy, "GET / HTTP/1.0\r\n\r\n");
    assert.equal(valuesOf(answer, "etag"), ['"strong"']);
    assert.is(bodyOf(answer), bytes);
  });
});

test("rule 44: nothing is invented in the request", async () => {
  await withProxy({}, async (proxy, upstream) => {
    await ask(proxy, get("/"));
    const request = await upstream.request();
    const names = request.split("\r\n").slice(1, -2).map((line) =>
      line.split(":")[0]?.toLowerCase()
    );
    assert.equal(names, [
      "host",
      "x-forwarded-for",
      "x-forwarded-proto",
      "x-forwarded-host",
      "x-forwarded-port",
      "forwarded",
      "via",
      "x-request-id",
    ]);
  });
});

test("rule 45: no content-type is invented", async () => {
  await withProxy({}, async (proxy, upstream) => {
    upstream.answer = `${OK}\r\nok`;
    assert.equal(valuesOf(await ask(proxy, get("/")), "content-type"), []);
    await ask(
      proxy,
      "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi",
    );
    assert.equal(valuesOf(await upstream.request(1), "content-type"), []);
  });
});

test("rule 46: our listener compresses nothing by itself", async () => {
  await withProxy({}, async (proxy, upstream) => {
    upstream.answer =
      `HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: ${TEXT.length}\r\n\r\n${TEXT}`;
    const answer = await ask(proxy, get("/", "Accept-Encoding: gzip, br\r\n"));
    assert.equal(valuesOf(answer, "content-encoding"), []);
    assert.is(bodyOf(answer), TEXT);
  });
});

test("rule 47: two Set-Cookie lines stay two lines, in order", async () => {
  await withProxy({}, async (proxy, upstream) => {
    upstream.answer =
      `${OK}Set-Cookie: b=1, x\r\nSet-Cookie: a=2\r\nX: y\r\nSet-Cookie: b=3\r\n\r\nok`;
    assert.equal(valuesOf(await ask(proxy, get("/")), "set-cookie"), ["b=1, x", "a=2", "b=3"]);
  });
});

test("rule 48: repeated lines stay repeated lines, Cookie included", async () => {
  await withProxy({}, async (proxy, upstream) => {
    upstream.answer = `${OK}X-R: 1\r\nX-R: 2\r\n\r\nok`;
    const answer = await ask(proxy, get("/", "X-Q: 1\r\nCookie: a=1\r\nX-Q: 2\r\nCookie: b=2\r\n"));
    const request = await upstream.request();
    assert.equal(valuesOf(request, "x-q"), ["1", "2"]);
    assert.equal(valuesOf(request, "cookie"), ["a=1", "b=2"]);
    assert.equal(valuesOf(answer, "x-r"), ["1", "2"]);
  });
});

test("rule 49: the case and the order of header lines are kept both ways", async () => {
  await withProxy({}, async (proxy, upstream) => {
    upstream.answer = `${OK}zEbRa: 1\r\nAPPLE: 2\r\nmango: 3\r\n\r\nok`;
    const answer = await ask(proxy, get("/", "zEbRa: 1\r\nAPPLE: 2\r\nmango: 3\r\n"));
    assert.match(await upstream.request(), "zEbRa: 1\r\nAPPLE: 2\r\nmango: 3\r\n");
    assert.match(answer, "zEbRa: 1\r\nAPPLE: 2\r\nmango: 3\r\n");
  });
});

test("rule 50: bytes from 0x80 up pass unchanged in header values", async () => {
  await withProxy({}, async (proxy, upstream) => {
    const bytes = "\x80\xa0\xe9\xff \xc3\xa9";
    upstream.answer = `${OK}X-B: ${bytes}\r\n\r\nok`;
    const answer = await ask(proxy, get("/", `X-A: ${bytes}\r\n`));
    assert.equal(valuesOf(await upstream.request(), "x-a"), [bytes]);
    assert.equal(valuesOf(answer, "x-b"), [bytes]);
  });
});

test("rule 50: empty values and inner spaces pass unchanged", async () => {
  await withProxy({}, async (proxy, upstream) => {
    await ask(proxy, get("/", "X-Empty:\r\nX-In: a  b\tc\r\n"));
    const request = await upstream.request();
    assert.equal(valuesOf(request, "x-empty"), [""]);
    assert.equal(valuesOf(request, "x-in"), ["a  b\tc"]);
  });
});

test("rule 51: the child's Date and Server are kept, and a Date is added once if absent", async () => {
  await withProxy({}, async (proxy, upstream) => {
    upstream.answer = `${OK}Date: Thu, 01 Jan 1970 00:00:00 GMT\r\nServer: child/1\r\n\r\nok`;
    const kept = await ask(proxy, get("/"));
    assert.equal(valuesOf(kept, "date"), ["Thu, 01 Jan 1970 00:00:00 GMT"]);
    assert.equal(valuesOf(kept, "server"), ["child/1"]);
    upstream.answer = `${OK}\r\nok`;
    const added = await ask(proxy, get("/"));
    assert.is(valuesOf(added, "date").length, 1);
    assert.ok(!Number.isNaN(Date.parse(valuesOf(added, "date")[0] ?? "")));
    assert.equal(valuesOf(added, "server"), []);
  });
});

test("rule 52: Via is appended, entries before it are kept", async () => {
  await withProxy({ pseudonym: "me" }, async (proxy, upstream) => {
    await ask(proxy, get("/", "Via: 1.0 first, 1.1 second (comment)\r\n"));
    assert.equal(valuesOf(await upstream.request(), "via"), [
      "1.0 first, 1.1 second (comment)",
      "1.1 me",
    ]);
  });
});

test("rule 52: a request that has passed us twice is a loop: 508", async () => {
  await withProxy({ pseudonym: "me" }, async (proxy, upstream) => {
    assert.is(statusOf(await ask(proxy, get("/", "Via: 1.1 me, 1.1 other\r\n"))), 200);
    const loop = await ask(proxy, get("/", "Via: 1.1 me, 1.1 other\r\nVia: 1.1 me\r\n"));
    assert.is(statusOf(loop), 508);
    assert.is(upstream.requests.length, 1);
    assert.is(statusOf(await ask(proxy, get("/", "Via: 1.1 me2, 1.1 xme, 1.1 me\r\n"))), 200);
  });
});

test("rule 53: X-Forwarded-For is replaced for strangers", async () => {
  await withProxy({}, async (proxy, upstream) => {
    await ask(proxy, get("/", "X-Forwarded-For: 1.1.1.1\r\nX-Forwarded-For: 2.2.2.2\r\n"));
    assert.equal(valuesOf(await upstream.request(), "x-forwarded-for"), ["127.0.0.1"]);
  });
});

test("rule 53: X-Forwarded-For is extended for trusted peers, several lines become one", async () => {
  await withProxy({ trustedProxies: ["127.0.0.0/8"] }, async (proxy, upstream) => {
    await ask(proxy, get("/", "X-Forwarded-For: 1.1.1.1\r\nX-Forwarded-For: 2.2.2.2, ::1\r\n"));
    assert.equal(valuesOf(await upstream.request(), "x-forwarded-for"), [
      "1.1.1.1, 2.2.2.2, ::1, 127.0.0.1",
    ]);
  });
});

test("rule 54: the other forwarding headers are replaced for strangers", async () => {
  await withProxy({}, async (proxy, upstream) => {
    await ask(
      proxy,
      "GET / HTTP/1.1\r\nHost: a.test:81\r\nConnection: close\r\nX-Forwarded-Proto: https\r\n" +
        "X-Forwarded-Host: evil\r\nX-Forwarded-Port: 1\r\nForwarded: for=6.6.6.6\r\n\r\n",
    );
    const request = await upstream.request();
    assert.equal(valuesOf(request, "x-forwarded-proto"), ["http"]);
    assert.equal(valuesOf(request, "x-forwarded-host"), ["a.test:81"]);
    assert.equal(valuesOf(request, "x-forwarded-port"), ["81"]);
    assert.equal(valuesOf(request, "forwarded"), ['for=127.0.0.1;host="a.test:81";proto=http']);
  });
});

test("rule 54: a trusted peer's forwarding headers are kept, and Forwarded is extended", async () => {
  await withProxy({ trustedProxies: ["127.0.0.1"] }, async (proxy, upstream) => {
    await ask(
      proxy,
      get(
        "/",
        "X-Forwarded-Proto: https\r\nX-Forwarded-Host: good\r\nX-Forwarded-Port: 443\r\n" +
          "Forwarded: for=1.1.1.1;proto=https\r\n",
      ),
    );
    const request = await upstream.request();
    assert.equal(valuesOf(request, "x-forwarded-proto"), ["https"]);
    assert.equal(valuesOf(request, "x-forwarded-host"), ["good"]);
    assert.equal(valuesOf(request, "x-forwarded-port"), ["443"]);
    assert.equal(valuesOf(request, "forwarded"), [
      "for=1.1.1.1;proto=https, for=127.0.0.1;host=a.test;proto=http",
    ]);
    await ask(proxy, get("/"));
    const bare = await upstream.request(1);
    assert.equal(valuesOf(bare, "x-forwarded-proto"), ["http"]);
    assert.equal(valuesOf(bare, "x-forwarded-for"), ["127.0.0.1"]);
  });
});

test("rule 54: x-request-id is kept if it is sound, else replaced, and always echoed", async () => {
  await withProxy({}, async (proxy, upstream) => {
    const kept = await ask(proxy, get("/", "X-Request-ID: abc-123\r\n"));
    assert.equal(valuesOf(await upstream.request(0), "x-request-id"), ["abc-123"]);
    assert.equal(valuesOf(kept, "x-request-id"), ["abc-123"]);
    const replaced = await ask(proxy, get("/", 'X-Request-ID: "<b>"\r\n'));
    const minted = valuesOf(await upstream.request(1), "x-request-id");
    assert.is(minted.length, 1);
    assert.not.match(minted[0] ?? "", "<b>");
    assert.equal(valuesOf(replaced, "x-request-id"), minted);
    await ask(
      proxy,
      get("/", "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n"),
    );
    assert.equal(valuesOf(await upstream.request(2), "traceparent"), [
      "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    ]);
  });
});

test("rule 55: Host reaches the child as the client sent it", async () => {
  await withProxy({}, async (proxy, upstream) => {
    const hosts = [
      "Example.TEST.",
      "a:8080",
      "[::1]:81",
      "[2001:db8::1]",
      "a_b.test",
      "xn--ls8h.test",
    ];
    for (const [index, host] of hosts.entries()) {
      await ask(proxy, `GET / HTTP/1.1\r\nHost: ${host}\r\nConnection: close\r\n\r\n`);
      assert.equal(valuesOf(await upstream.request(index), "host"), [host]);
    }
  });
});

test("rule 56: path bytes pass unchanged", async () => {
  await withProxy({}, async (proxy, upstream) => {
    const paths = [
      "//",
      "//a//b",
      "/a%2Fb",
      "/a%2fb",
      "/%2e%2e/x",
      "/./a",
      "/a/../b",
      "/%7euser",
      "/~user",
      "/%zz",
      "/a;b=1/c",
      "/a//",
      "/a{b}|^`\"<>'\\c",
      "/%",
      "/@:!$&'()*+,;=",
    ];
    for (const [index, path] of paths.entries()) {
      await ask(proxy, get(path));
      assert.is((await upstream.request(index)).split(" ")[1], path);
    }
  });
});

test("rule 57: routing looks at a normalised copy, which no spelling slips past", async () => {
  const seen: string[] = [];
  const handle = (exchange: { path: string; respond(response: Response): void }) => {
    seen.push(exchange.path);
    exchange.respond(new Response("admin"));
  };
  await withProxy({ mounts: ["/admin"], handle }, async (proxy, upstream) => {
    const inside = [
      "/admin",
      "/admin/",
      "/admin?x",
      "//admin",
      "/admin//x",
      "/x/../admin",
      "/x/%2e%2e/admin",
      "/x/.%2E/admin/y",
      "/%61dmin",
      "/./admin",
      "\\admin",
      "/x\\..\\admin",
      "/x%5c..%5cadmin",
      "/x/..%2fadmin",
      "/%2fadmin",
    ].map((path) => path.startsWith("/") ? path : `/${path}`);
    for (const path of inside) {
      assert.match(bodyOf(await ask(proxy, get(path))), "admin", path);
    }
    for (const path of ["/adminx", "/admin/../x", "/admin%2f..%2fx", "/Admin", "/x/admin"]) {
      assert.is(statusOf(await ask(proxy, get(path))), 404, path);
    }
    assert.is(upstream.sides.length, 0);
    assert.ok(seen.every((path) => path === "/admin" || path.startsWith("/admin/")));
  });
});

test("rule 58: query bytes pass unchanged", async () => {
  await withProxy({}, async (proxy, upstream) => {
    const queries = [
      "?",
      "?a&&b",
      "?'",
      '?"',
      "?a;b",
      "?%zz",
      "?a[]=1",
      "?a|b",
      "??",
      "?a=../b",
      "?a=\\b",
    ];
    for (const [index, query] of queries.entries()) {
      await ask(proxy, get(`/p${query}`));
      assert.is((await upstream.request(index)).split(" ")[1], `/p${query}`);
    }
  });
});

test("rule 59: an absolute-form target replaces Host and is forwarded in origin form", async () => {
  await withProxy({}, async (proxy, upstream) => {
    const forms: [string, string, string][] = [
      ["http://other.test:81/x?y", "other.test:81", "/x?y"],
      ["http://other.test", "other.test", "/"],
      ["HTTPS://other.test?q", "other.test", "/?q"],
      ["http://[::1]:80//a", "[::1]:80", "//a"],
    ];
    for (const [index, [target, host, path]] of forms.entries()) {
      await ask(proxy, get(target));
      const request = await upstream.request(index);
      assert.equal(valuesOf(request, "host"), [host]);
      assert.is(request.split(" ")[1], path);
      assert.equal(valuesOf(request, "x-forwarded-host"), [host]);
    }
    for (
      const target of [
        "http://user@evil/",
        "http:///x",
        "ftp://a/",
        "a.test:80",
        "x",
        "http://a b/",
      ]
    ) {
      assert.is(statusOf(await ask(proxy, get(target))), 400, target);
    }
  });
});

test("rule 60: no target changes the upstream's authority", async () => {
  await withProxy({}, async (proxy, upstream) => {
    for (
      const [index, target] of [
        "//evil.test/x",
        "/\\\\evil.test",
        "/@evil.test",
        "/http://evil.test/",
      ].entries()
    ) {
      const answer = await ask(proxy, get(target));
      assert.is(statusOf(answer), 200);
      const request = await upstream.request(index);
      assert.is(request.split(" ")[1], target);
      assert.equal(valuesOf(request, "host"), ["a.test"]);
    }
    assert.is(statusOf(await ask(proxy, get("/x#fragment"))), 400);
  });
});

test("rule 61: CR and LF in a value that we stamp are refused, not a crash", async () => {
  const handle = (exchange: { respond(response: Response): void }) => {
    const response = new Response("x");
    Object.defineProperty(response, "headers", {
      value: new Map([["x-bad", "a\r\nx-smuggled: 1"]]),
    });
    exchange.respond(response);
  };
  await withProxy({ handle }, async (proxy) => {
    const answer = await ask(proxy, get("/"));
    assert.is(statusOf(answer), 500);
    assert.not.match(answer, "smuggled");
    const client = await Client.to(proxy.port);
    client.send("GET / HTTP/1.1\r\nHost: a\r\nX-Request-ID: a\rb\r\n\r\n");
    assert.is(statusOf(await client.untilClosed()), 400);
  });
});

test("rule 61: a pseudonym that is no token is refused at the start", async () => {
  let refused = false;
  await withProxy({ pseudonym: "a\r\nb" }, () => Promise.resolve()).catch((error: unknown) => {
    refused = error instanceof RangeError;
  });
  assert.ok(refused);
});

test.run();
