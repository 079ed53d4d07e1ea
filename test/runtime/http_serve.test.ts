import * as nodeTls from "node:tls";
import { connect, type Socket } from "node:net";
import { join } from "node:path";
import process from "node:process";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { type HttpServer, ListenFailed } from "../../src/runtime/runtime.ts";
import { runtime } from "../support/runtime.ts";
import { authority, clientCert, clientKey, serverCert, serverKey } from "./certificates.ts";
import { inFolder, rejection, until } from "./support.ts";

const encoder = new TextEncoder();
const loopback = { kind: "tcp", host: "127.0.0.1", port: 0 } as const;
const MIB = 1024 * 1024;

type App = (request: Request, info: { remoteAddress: string }) => Response | Promise<Response>;

/** Serves the app on a free port while `action` runs, and cuts what is left afterwards. */
async function withServer(
  app: App,
  action: (server: HttpServer, port: number) => Promise<void>,
): Promise<void> {
  const server = await runtime.http.serve({ address: loopback }, app);
  try {
    await action(server, portOf(server));
  } finally {
    await server.destroy();
  }
}

function portOf(server: HttpServer): number {
  return server.address.kind === "tcp" ? server.address.port : -1;
}

/** A raw client that has sent `text` and records what comes back. */
class RawClient {
  readonly socket: Socket;
  received = "";
  isClosed = false;

  constructor(port: number, text: string) {
    this.socket = connect({ port, host: "127.0.0.1" });
    this.socket.on("data", (chunk) => {
      this.received += chunk.toString("latin1");
    });
    this.socket.on("error", () => {});
    this.socket.on("close", () => {
      this.isClosed = true;
    });
    this.socket.write(text);
  }

  get body(): string {
    return this.received.slice(this.received.indexOf("\r\n\r\n") + 4);
  }
}

const get = (path: string) => `GET ${path} HTTP/1.1\r\nhost: test\r\n\r\n`;

/** A stream whose controller is kept, with what its consumer did to it. */
function openStream() {
  const state = { isCancelled: false };
  let controller: ReadableStreamDefaultController<Uint8Array> | undefined;
  const stream = new ReadableStream<Uint8Array>({
    start: (given) => {
      controller = given;
    },
    cancel: () => {
      state.isCancelled = true;
    },
  });
  const push = (text: string) => controller?.enqueue(encoder.encode(text));
  return { stream, state, push, close: () => controller?.close(), fail: fail };
  function fail() {
    controller?.error(new Error("secret of the body"));
  }
}

test("a request arrives whole, with the address of its sender", async () => {
  const app: App = async (request, info) =>
    Response.json({
      method: request.method,
      path: new URL(request.url).pathname,
      header: request.headers.get("x-a"),
      body: await request.text(),
      remoteAddress: info.remoteAddress,
    }, { status: 201 });
  await withServer(app, async (_server, port) => {
    const answer = await runtime.http.fetch(`http://127.0.0.1:${port}/a/b`, {
      method: "POST",
      headers: { "x-a": "1" },
      body: "hello",
    });
    assert.is(answer.status, 201);
    assert.equal(await answer.json(), {
      method: "POST",
      path: "/a/b",
      header: "1",
      body: "hello",
      remoteAddress: "127.0.0.1",
    });
  });
});

test("an answer in memory has its length, cookies stay apart, and no header is made up", async () => {
  const app: App = () => {
    const headers = new Headers({ "x-a": "1" });
    headers.append("set-cookie", "a=1");
    headers.append("set-cookie", "b=2");
    return new Response(encoder.encode("hello"), { headers });
  };
  await withServer(app, async (_server, port) => {
    const client = new RawClient(port, get("/"));
    await until("the answer came", () => client.body === "hello");
    const head = client.received.toLowerCase();
    assert.match(head, "content-length: 5\r\n");
    assert.match(head, "set-cookie: a=1\r\nset-cookie: b=2\r\n");
    assert.not.match(head, "content-type");
    client.socket.destroy();
  });
});

test("a connection serves several requests, also empty and HEAD ones", async () => {
  const app: App = (request) => {
    const { pathname } = new URL(request.url);
    if (pathname === "/empty") return new Response(null, { status: 204 });
    return new Response(request.method === "HEAD" ? null : `at ${pathname}`);
  };
  await withServer(app, async (_server, port) => {
    const client = new RawClient(port, get("/one"));
    await until("the first answer", () => client.received.endsWith("at /one"));
    client.socket.write(get("/empty"));
    await until("the second answer", () => client.received.includes("204 No Content"));
    client.socket.write(get("/x").replace("GET", "HEAD"));
    await until("the third answer", () => client.received.split("HTTP/1.1").length === 4);
    client.socket.write(get("/two"));
    await until("the fourth answer", () => client.received.endsWith("at /two"));
    client.socket.destroy();
  });
});

test("a handler that throws becomes a bare 500", async () => {
  const app: App = () => {
    throw new Error("secret");
  };
  await withServer(app, async (_server, port) => {
    const answer = await runtime.http.fetch(`http://127.0.0.1:${port}/`);
    assert.is(answer.status, 500);
    assert.not.match(await answer.text(), "secret");
  });
});

test("the head and each chunk of a stream leave at once", async () => {
  const body = openStream();
  await withServer(() => new Response(body.stream), async (_server, port) => {
    const client = new RawClient(port, get("/"));
    await until("the head came", () => client.received.includes("\r\n\r\n"));
    for (const word of ["one", "two", "three"]) {
      body.push(word);
      await until(`${word} came`, () => client.received.includes(word));
    }
    body.close();
    await until("the end came", () => client.received.endsWith("0\r\n\r\n"));
    client.socket.destroy();
  });
});

test("a body that fails breaks the transfer: no end is sent, nothing is appended", async () => {
  const cases: [string, Record<string, string>][] = [
    ["chunked", {}],
    ["with a length", { "content-length": "100" }],
  ];
  for (const [name, headers] of cases) {
    const body = openStream();
    await withServer(() => new Response(body.stream, { headers }), async (_server, port) => {
      const client = new RawClient(port, get("/"));
      body.push("part");
      await until(`${name}: the part came`, () => client.received.includes("part"));
      body.fail();
      await until(`${name}: the connection is cut`, () => client.isClosed);
      assert.match(client.received, /part(\r\n)?$/);
    });
  }
});

test("a body that fails before its first byte is not taken for an empty one", async () => {
  const app: App = () =>
    new Response(
      new ReadableStream({
        start(controller) {
          controller.error(new Error("secret of the body"));
        },
      }),
    );
  await withServer(app, async (_server, port) => {
    const answer = runtime.http.fetch(`http://127.0.0.1:${port}/`).then((got) => got.text());
    assert.not.match((await rejection(answer)).message, "secret");
  });
});

test("a body that fails while its reader reads nothing breaks the transfer too", async () => {
  let fail = () => {};
  let isWaiting = false;
  const app: App = () => {
    let sent = 0;
    return new Response(
      new ReadableStream({
        async pull(controller) {
          if (sent >= 64 * MIB) return;
          sent += MIB;
          controller.enqueue(new Uint8Array(MIB));
          isWaiting = false;
          fail = () => controller.error(new Error("secret of the body"));
          await Promise.resolve();
        },
      }, { highWaterMark: 0 }),
    );
  };
  await withServer(app, async (_server, port) => {
    const client = new RawClient(port, get("/"));
    client.socket.pause();
    while (!isWaiting) {
      isWaiting = true;
      await new Promise((resolve) => setTimeout(resolve, 200));
    }
    fail();
    await new Promise((resolve) => setTimeout(resolve, 50));
    client.socket.resume();
    await until("the connection is cut", () => client.isClosed);
    assert.not.match(client.received.slice(-100), "\r\n0\r\n\r\n");
    assert.not.match(client.received.slice(-100), "secret");
  });
});

test("a client that leaves cancels the body and aborts the request; a whole answer does not", async () => {
  const body = openStream();
  const aborted: string[] = [];
  const app: App = (request) => {
    const { pathname } = new URL(request.url);
    request.signal.addEventListener("abort", () => aborted.push(pathname));
    return new Response(pathname === "/stream" ? body.stream : "whole");
  };
  await withServer(app, async (_server, port) => {
    assert.is(await (await runtime.http.fetch(`http://127.0.0.1:${port}/whole`)).text(), "whole");
    const client = new RawClient(port, get("/stream"));
    body.push("x");
    await until("the stream has begun", () => client.received.includes("x\r\n"));
    client.socket.destroy();
    await until("the body is cancelled", () => body.state.isCancelled);
    await until("the request is aborted", () => aborted.length > 0);
    assert.equal(aborted, ["/stream"]);
  });
});

test("a client that leaves before the answer aborts the request", async () => {
  let isAborted = false;
  let isAsked = false;
  const app: App = (request) =>
    new Promise((resolve) => {
      isAsked = true;
      request.signal.addEventListener("abort", () => {
        isAborted = true;
        resolve(new Response("late"));
      });
    });
  await withServer(app, async (_server, port) => {
    const client = new RawClient(port, get("/"));
    await until("the request came", () => isAsked);
    client.socket.destroy();
    await until("it is aborted", () => isAborted);
  });
});

test("a client that reads nothing stops the body's source", async () => {
  let produced = 0;
  const app: App = () =>
    new Response(
      new ReadableStream({
        pull(controller) {
          produced += 65_536;
          controller.enqueue(new Uint8Array(65_536));
        },
      }, { highWaterMark: 0 }),
    );
  await withServer(app, async (_server, port) => {
    const client = new RawClient(port, get("/"));
    client.socket.pause();
    await until("the answer begins", () => produced > 0);
    for (let last = -1; produced !== last;) {
      last = produced;
      await new Promise((resolve) => setTimeout(resolve, 200));
    }
    assert.ok(produced < 32 * MIB, `${produced} bytes`);
    client.socket.destroy();
  });
});

test("an upload that the app does not read is not taken into memory", async () => {
  let isAsked = false;
  const app: App = (request) => {
    isAsked = true;
    return new Promise((resolve) =>
      request.signal.addEventListener("abort", () => resolve(new Response()))
    );
  };
  await withServer(app, async (_server, port) => {
    const before = process.memoryUsage().rss;
    const client = new RawClient(
      port,
      `POST / HTTP/1.1\r\nhost: test\r\ncontent-length: ${1024 * MIB}\r\n\r\n`,
    );
    await until("the request came", () => isAsked);
    const piece = new Uint8Array(MIB);
    let sent = 0;
    let last = -1;
    while (sent !== last) {
      last = sent;
      while (client.socket.writableLength < MIB && sent < 1024 * MIB) {
        client.socket.write(piece);
        sent += MIB;
      }
      await new Promise((resolve) => setTimeout(resolve, 200));
    }
    assert.ok(sent < 64 * MIB, `${sent} bytes`);
    assert.ok(process.memoryUsage().rss - before < 200 * MIB);
    client.socket.destroy();
  });
});

test("close refuses newcomers, drops idle connections, and waits for a streaming answer", async () => {
  const body = openStream();
  const app: App = (request) =>
    new Response(new URL(request.url).pathname === "/stream" ? body.stream : "whole");
  await withServer(app, async (server, port) => {
    const idle = new RawClient(port, get("/"));
    const silent = new RawClient(port, "");
    const half = new RawClient(port, "GET / HT");
    const busy = new RawClient(port, get("/stream"));
    body.push("one");
    await until("all are there", () => idle.body === "whole" && busy.received.includes("one"));
    let isClosed = false;
    const closed = server.close().then(() => {
      isClosed = true;
    });
    await until("the idle ones are gone", () => idle.isClosed && silent.isClosed && half.isClosed);
    await rejection(runtime.http.fetch(`http://127.0.0.1:${port}/`));
    body.push("two");
    await until("the stream goes on", () => busy.received.includes("two"));
    assert.is(isClosed, false);
    body.close();
    await closed;
    await until("the stream ends well", () => busy.received.endsWith("0\r\n\r\n"));
    await until("its connection is closed", () => busy.isClosed);
  });
});

test("destroy cuts what is left, also after close has begun", async () => {
  for (const closesFirst of [false, true]) {
    const body = openStream();
    const server = await runtime.http.serve({ address: loopback }, () => new Response(body.stream));
    const client = new RawClient(portOf(server), get("/"));
    body.push("part");
    await until("the part came", () => client.received.includes("part"));
    const closed = closesFirst ? server.close() : undefined;
    await server.destroy();
    await closed;
    await until("the connection is cut", () => client.isClosed);
    await until("the body is cancelled", () => body.state.isCancelled);
    assert.not.match(client.received, "0\r\n\r\n");
  }
});

test("a port in use is refused, and can be shared on request", async () => {
  const app: App = () => new Response("hello");
  const first = await runtime.http.serve({ address: loopback, reusePort: true }, app);
  const error = await rejection(runtime.http.serve({ address: first.address }, app));
  assert.instance(error, ListenFailed);
  assert.is((error as ListenFailed).reason, "in-use");
  const second = await runtime.http.serve({ address: first.address, reusePort: true }, app);
  await Promise.all([first.close(), second.close()]);
});

test("IPv6 and unix sockets", async () => {
  await inFolder(async (folder) => {
    const app: App = (_request, info) => new Response(`from ${info.remoteAddress}`);
    const six = await runtime.http.serve({ address: { kind: "tcp", host: "::1", port: 0 } }, app);
    const answer = await runtime.http.fetch(`http://[::1]:${portOf(six)}/`);
    assert.is(await answer.text(), "from ::1");
    await six.close();
    const path = join(folder, "s");
    const unix = await runtime.http.serve({ address: { kind: "unix", path } }, app);
    const other = await runtime.http.fetch("http://name.test/", { unixPath: path });
    assert.is(await other.text(), "from ");
    await unix.close();
  });
});

test("an IPv4 client of a listener for both families is told as IPv4", async () => {
  const app: App = (_request, info) => new Response(info.remoteAddress);
  const both = await runtime.http.serve({ address: { kind: "tcp", host: "::", port: 0 } }, app);
  const answer = await runtime.http.fetch(`http://127.0.0.1:${portOf(both)}/`);
  assert.is(await answer.text(), "127.0.0.1");
  await both.close();
});

test("requests that two parsers could read differently are refused", async () => {
  const head = "host: test\r\n";
  const requests = [
    `POST / HTTP/1.1\r\n${head}content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n`,
    `POST / HTTP/1.1\r\n${head}content-length: 5\r\ncontent-length: 6\r\n\r\nhello!`,
    `POST / HTTP/1.1\r\n${head}content-length: +2\r\n\r\nhi`,
    `POST / HTTP/1.1\r\n${head}transfer-encoding: xchunked\r\n\r\n0\r\n\r\n`,
    `POST / HTTP/1.1\r\n${head}transfer-encoding: chunked\r\n\r\n2z\r\nhi\r\n0\r\n\r\n`,
    "GET / HTTP/1.1\nhost: test\n\n",
    `GET / HTTP/1.1\r\n${head}x-a: 1\r\n 2\r\n\r\n`,
    "GET / HTTP/1.1\r\nhost : test\r\n\r\n",
    `GET / HTTP/1.1\r\n${head}x-a: 1\r2\r\n\r\n`,
    "GET / HTTP/1.1\r\n\r\n",
  ];
  const app: App = async (request) => new Response(await request.text());
  await withServer(app, async (_server, port) => {
    for (const request of requests) {
      const client = new RawClient(port, request);
      await until(`an answer to ${JSON.stringify(request)}`, () => client.isClosed);
      assert.match(client.received, /^HTTP\/1\.1 400 /, request);
    }
    const huge = new RawClient(port, `GET / HTTP/1.1\r\n${head}x-a: ${"x".repeat(20_000)}\r\n\r\n`);
    await until("an answer to a huge head", () => huge.isClosed);
    assert.match(huge.received, /^HTTP\/1\.1 431 /);
  });
});

test("an HTTP/1.0 health check without a Host header is answered", async () => {
  await withServer(() => new Response("fine"), async (_server, port) => {
    const client = new RawClient(port, "GET /ready HTTP/1.0\r\n\r\n");
    await until("the connection is closed", () => client.isClosed);
    assert.match(client.received, /^HTTP\/1\.1 200 /);
    assert.is(client.body, "fine");
  });
});

test("TLS: the authority is checked, and a client certificate when one is asked for", async () => {
  const app: App = (request) => new Response(new URL(request.url).protocol);
  const tls = { cert: serverCert, key: serverKey };
  const open = await runtime.http.serve({ address: loopback, tls }, app);
  const url = `https://127.0.0.1:${portOf(open)}/`;
  assert.is(await (await runtime.http.fetch(url, { tls: { ca: authority } })).text(), "https:");
  await rejection(runtime.http.fetch(url));
  await open.close();

  const guarded = await runtime.http.serve({
    address: loopback,
    tls: { ...tls, clientCa: authority },
  }, app);
  const guardedUrl = `https://127.0.0.1:${portOf(guarded)}/`;
  const known = { ca: authority, cert: clientCert, key: clientKey };
  assert.is(await (await runtime.http.fetch(guardedUrl, { tls: known })).text(), "https:");
  await rejection(runtime.http.fetch(guardedUrl, { tls: { ca: authority } }));
  await guarded.close();
});

test("TLS: certificate and authority are replaced, and an answer that is under way goes on", async () => {
  const body = openStream();
  const tls = { cert: serverCert, key: serverKey, clientCa: authority };
  let isFirst = true;
  const server = await runtime.http.serve({ address: loopback, tls }, () => {
    const answer = new Response(isFirst ? body.stream : "short");
    isFirst = false;
    return answer;
  });
  const url = `https://127.0.0.1:${portOf(server)}/`;
  const known = { ca: authority, cert: clientCert, key: clientKey };
  const ask = async () => await (await runtime.http.fetch(url, { tls: known })).text();
  const subject = () =>
    new Promise<string>((resolve, reject) => {
      const socket = nodeTls.connect({ ...known, host: "127.0.0.1", port: portOf(server) }, () => {
        resolve(String(socket.getPeerCertificate().subject.CN));
        socket.destroy();
      });
      socket.on("error", reject);
    });
  const reader = (await runtime.http.fetch(url, { tls: known })).body?.getReader();
  body.push("before");
  assert.is(new TextDecoder().decode((await reader?.read())?.value), "before");
  // The authority of nobody's certificate.
  server.replaceTls?.({ ...tls, clientCa: serverCert });
  await rejection(ask());
  server.replaceTls?.(tls);
  assert.is(await ask(), "short");
  assert.is(await subject(), "server");
  server.replaceTls?.({ ...tls, cert: clientCert, key: clientKey });
  assert.is(await subject(), "client");
  body.push("after");
  assert.is(new TextDecoder().decode((await reader?.read())?.value), "after");
  body.close();
  assert.is((await reader?.read())?.done, true);
  await server.destroy();
});

test("close over TLS waits for a streaming answer", async () => {
  const body = openStream();
  const tls = { cert: serverCert, key: serverKey };
  const server = await runtime.http.serve(
    { address: loopback, tls },
    () => new Response(body.stream),
  );
  const url = `https://127.0.0.1:${portOf(server)}/`;
  const answer = await runtime.http.fetch(url, { tls: { ca: authority } });
  let isClosed = false;
  const closed = server.close().then(() => {
    isClosed = true;
  });
  body.push("part");
  const reader = answer.body?.getReader();
  assert.is(new TextDecoder().decode((await reader?.read())?.value), "part");
  assert.is(isClosed, false);
  body.close();
  assert.is((await reader?.read())?.done, true);
  await closed;
});

test.run();
