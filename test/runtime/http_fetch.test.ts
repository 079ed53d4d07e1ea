import { once } from "node:events";
import { connect, createServer, type Server, type Socket } from "node:net";
import { gzipSync } from "node:zlib";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { ConnectFailed } from "../../src/runtime/runtime.ts";
import { runtime } from "../support/runtime.ts";
import { rejection, until } from "./support.ts";

const { http } = runtime;
const MIB = 1024 * 1024;

interface RawServer {
  readonly url: string;
  /** What each connection has sent so far. */
  readonly requests: string[];
  readonly sockets: Socket[];
}

/** A server that hands each new connection, and what it says, to `talk`. */
async function withRawServer(
  talk: (socket: Socket, said: string) => void,
  action: (server: RawServer) => Promise<void>,
): Promise<void> {
  const requests: string[] = [];
  const sockets: Socket[] = [];
  const server: Server = createServer((socket) => {
    const index = sockets.push(socket) - 1;
    requests[index] = "";
    socket.on("error", () => {});
    socket.on("data", (chunk) => {
      requests[index] += chunk.toString("latin1");
      talk(socket, requests[index] ?? "");
    });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const address = server.address();
  if (address === null || typeof address === "string") throw new Error("no port");
  try {
    await action({ url: `http://127.0.0.1:${address.port}`, requests, sockets });
  } finally {
    for (const socket of sockets) socket.destroy();
    await new Promise((resolve) => server.close(resolve));
  }
}

/** Answers every whole head with the given bytes. */
function answering(answer: string | Uint8Array) {
  return (socket: Socket, said: string) => {
    if (said.endsWith("\r\n\r\n")) socket.write(answer);
  };
}

test("nothing is added to a request but host and connection", async () => {
  await withRawServer(
    answering("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"),
    async ({ url, requests }) => {
      await http.fetch(`${url}/a%2Fb?x=1`, { headers: { "x-a": "1" } });
      const lines = (requests[0] ?? "").trimEnd().split("\r\n");
      assert.is(lines[0], "GET /a%2Fb?x=1 HTTP/1.1");
      const names = lines.slice(1).map((line) => line.split(":")[0]?.toLowerCase()).sort();
      assert.equal(names, ["connection", "host", "x-a"]);
    },
  );
});

test("an encoded body comes as it is, under its own headers", async () => {
  const body = gzipSync("hello hello hello");
  const head = "HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n" +
    `content-length: ${body.length}\r\n\r\n`;
  await withRawServer((socket, said) => {
    if (said.endsWith("\r\n\r\n")) socket.write(Buffer.concat([Buffer.from(head), body]));
  }, async ({ url }) => {
    const answer = await http.fetch(url);
    assert.is(answer.headers.get("content-encoding"), "gzip");
    assert.equal(new Uint8Array(await answer.arrayBuffer()), new Uint8Array(body));
  });
});

test("status, reason, repeated headers and informational answers", async () => {
  const text = "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" +
    "HTTP/1.1 299 Quite Fine\r\nset-cookie: a=1\r\nset-cookie: b=2\r\nx-a: 1\r\nx-a: 2\r\n" +
    "content-length: 2\r\n\r\nok";
  await withRawServer(answering(text), async ({ url }) => {
    const answer = await http.fetch(url);
    assert.equal([answer.status, answer.statusText], [299, "Quite Fine"]);
    assert.equal(answer.headers.getSetCookie(), ["a=1", "b=2"]);
    assert.is(answer.headers.get("x-a"), "1, 2");
    assert.is(await answer.text(), "ok");
  });
});

test("HEAD, 204 and 304 have no body", async () => {
  const cases: [string, string][] = [
    ["HEAD", "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n"],
    ["GET", "HTTP/1.1 204 No Content\r\n\r\n"],
    ["GET", "HTTP/1.1 304 Not Modified\r\netag: x\r\n\r\n"],
  ];
  for (const [method, text] of cases) {
    await withRawServer(answering(text), async ({ url }) => {
      const answer = await http.fetch(url, { method });
      assert.is(answer.body, null);
      assert.is(await answer.text(), "");
    });
  }
});

test("a body of bytes goes with its length, a stream in chunks", async () => {
  const app = async (request: Request) =>
    Response.json({
      length: request.headers.get("content-length"),
      coding: request.headers.get("transfer-encoding"),
      text: await request.text(),
    });
  const server = await http.serve({ address: { kind: "tcp", host: "127.0.0.1", port: 0 } }, app);
  const url = `http://127.0.0.1:${server.address.kind === "tcp" ? server.address.port : 0}/`;
  const bytes = await http.fetch(url, { method: "PUT", body: new TextEncoder().encode("hello") });
  assert.equal(await bytes.json(), { length: "5", coding: null, text: "hello" });
  const body = ReadableStream.from(["he", "llo"]).pipeThrough(new TextEncoderStream());
  const stream = await http.fetch(url, { method: "POST", body });
  assert.equal(await stream.json(), { length: null, coding: "chunked", text: "hello" });
  const empty = await http.fetch(url, { method: "POST" });
  assert.equal(await empty.json(), { length: "0", coding: null, text: "" });
  await server.close();
});

test("a body that breaks off errors, whatever its framing", async () => {
  const heads = ["content-length: 100", "transfer-encoding: chunked"];
  for (const head of heads) {
    const part = head.startsWith("content") ? "part" : "4\r\npart\r\n";
    for (const reset of [false, true]) {
      await withRawServer((socket, said) => {
        if (said.endsWith("\r\n\r\n")) socket.write(`HTTP/1.1 200 OK\r\n${head}\r\n\r\n${part}`);
      }, async ({ url, sockets }) => {
        const answer = await http.fetch(url);
        const reader = answer.body?.getReader();
        assert.is(new TextDecoder().decode((await reader?.read())?.value), "part");
        if (reset) sockets[0]?.resetAndDestroy();
        else sockets[0]?.end();
        await rejection(reader?.read() ?? Promise.resolve());
      });
    }
  }
});

test("a connection closed without an answer rejects, but not as ConnectFailed", async () => {
  let connections = 0;
  await withRawServer((socket) => {
    connections++;
    socket.end();
  }, async ({ url }) => {
    const error = await rejection(http.fetch(url, { method: "POST", body: "x" }));
    assert.not.ok(error instanceof ConnectFailed);
    // Whether the request was acted upon is unknown, so it must not have been sent again.
    assert.is(connections, 1);
  });
});

test("an answer that is not HTTP, or has an impossible status, rejects", async () => {
  for (const text of ["SSH-2.0-x\r\n\r\n", "HTTP/1.1 999 No\r\ncontent-length: 0\r\n\r\n"]) {
    await withRawServer(answering(text), async ({ url }) => {
      await rejection(http.fetch(url));
    });
  }
});

test("a refused connection and an unknown name are ConnectFailed with their reasons", async () => {
  await withRawServer(() => {}, async ({ url }) => {
    // As long as a client has a port nobody can listen there.
    const client = connect(Number(new URL(url).port), "127.0.0.1");
    await once(client, "connect");
    const cases: [string, ConnectFailed["reason"]][] = [
      [`http://127.0.0.1:${client.localPort}/`, "refused"],
      // A label of more than 63 bytes: unknown without asking a name server.
      [`http://${"x".repeat(64)}.invalid/`, "missing"],
    ];
    for (const [target, reason] of cases) {
      const error = await rejection(http.fetch(target));
      assert.instance(error, ConnectFailed);
      assert.is((error as ConnectFailed).reason, reason);
    }
    client.destroy();
  });
});

test("redirects are answers unless following is asked for", async () => {
  const app = (request: Request) => {
    const url = new URL(request.url);
    if (url.pathname === "/loop") return Response.redirect(url, 302);
    if (url.pathname === "/from") return Response.redirect(new URL("/to?x=1", url), 302);
    if (url.pathname === "/see") return Response.redirect(new URL("/to", url), 303);
    return new Response(`${request.method} ${url.pathname}${url.search}`);
  };
  const server = await http.serve({ address: { kind: "tcp", host: "127.0.0.1", port: 0 } }, app);
  const base = `http://127.0.0.1:${server.address.kind === "tcp" ? server.address.port : 0}`;
  const plain = await http.fetch(`${base}/from`);
  assert.equal([plain.status, plain.headers.get("location")], [302, `${base}/to?x=1`]);
  const followed = await http.fetch(`${base}/from`, { redirect: "follow" });
  assert.is(await followed.text(), "GET /to?x=1");
  const seen = await http.fetch(`${base}/see`, { method: "POST", body: "x", redirect: "follow" });
  assert.is(await seen.text(), "GET /to");
  const kept = await http.fetch(`${base}/from`, { method: "POST", body: "x", redirect: "follow" });
  assert.is(kept.status, 302);
  await rejection(http.fetch(`${base}/from`, { redirect: "error" }));
  assert.match(
    (await rejection(http.fetch(`${base}/loop`, { redirect: "follow" }))).message,
    "redirects",
  );
  await server.close();
});

test("credentials do not follow a redirect to another origin", async () => {
  const seen: (string | null)[] = [];
  const address = { kind: "tcp", host: "127.0.0.1", port: 0 } as const;
  const target = await http.serve({ address }, (request) => {
    seen.push(request.headers.get("authorization"), request.headers.get("x-a"));
    return new Response("there");
  });
  const port = target.address.kind === "tcp" ? target.address.port : 0;
  const source = await http.serve(
    { address },
    () => Response.redirect(`http://127.0.0.1:${port}/`, 307),
  );
  const answer = await http.fetch(
    `http://127.0.0.1:${source.address.kind === "tcp" ? source.address.port : 0}/`,
    { redirect: "follow", headers: { authorization: "Bearer secret", "x-a": "1" } },
  );
  assert.is(await answer.text(), "there");
  assert.equal(seen, [null, "1"]);
  await source.close();
  await target.close();
});

test("an abort ends the call before the head and in the body, and closes the connection", async () => {
  const stop = new AbortController();
  await withRawServer(() => {}, async ({ url, requests, sockets }) => {
    const call = rejection(http.fetch(url, { signal: stop.signal }));
    await until("the request came", () => (requests[0] ?? "").endsWith("\r\n\r\n"));
    stop.abort(new Error("enough"));
    assert.is((await call).message, "enough");
    await until("the connection is closed", () => sockets[0]?.readyState !== "open");
  });
  const later = new AbortController();
  const head = "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\npart";
  await withRawServer(answering(head), async ({ url, sockets }) => {
    const answer = await http.fetch(url, { signal: later.signal });
    const text = rejection(answer.text());
    later.abort(new Error("enough"));
    assert.is((await text).message, "enough");
    await until("the connection is closed", () => sockets[0]?.readyState !== "open");
  });
  const early = new AbortController();
  early.abort(new Error("before"));
  assert.is(
    (await rejection(http.fetch("http://127.0.0.1:1/", { signal: early.signal }))).message,
    "before",
  );
});

test("cancelling a body closes its connection", async () => {
  const head = "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\npart";
  await withRawServer(answering(head), async ({ url, sockets }) => {
    const answer = await http.fetch(url);
    await answer.body?.cancel();
    await until("the connection is closed", () => sockets[0]?.readyState !== "open");
  });
});

test("a body that nobody reads stops its sender; read, it comes whole", async () => {
  const total = 64 * MIB;
  let sent = 0;
  await withRawServer((socket, said) => {
    if (!said.endsWith("\r\n\r\n")) return;
    socket.write(`HTTP/1.1 200 OK\r\ncontent-length: ${total}\r\n\r\n`);
    const more = () => {
      while (sent < total) {
        sent += 65_536;
        if (!socket.write(new Uint8Array(65_536).fill(sent / 65_536 % 251))) return;
      }
    };
    socket.on("drain", more);
    more();
  }, async ({ url }) => {
    const answer = await http.fetch(url);
    let last = -1;
    while (sent !== last) {
      last = sent;
      await new Promise((resolve) => setTimeout(resolve, 200));
    }
    assert.ok(sent < 32 * MIB, `${sent} bytes`);
    let received = 0;
    for await (const chunk of answer.body ?? []) {
      assert.ok(chunk.length > 0);
      assert.is(chunk[0], (Math.floor(received / 65_536) + 1) % 251);
      received += chunk.length;
    }
    assert.is(received, total);
  });
});

test("a stream of events arrives event by event", async () => {
  let socket: Socket | undefined;
  await withRawServer((client, said) => {
    if (!said.endsWith("\r\n\r\n")) return;
    socket = client;
    client.write("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
  }, async ({ url }) => {
    const answer = await http.fetch(url);
    const reader = answer.body?.getReader();
    for (const word of ["one", "two"]) {
      socket?.write(`3\r\n${word}\r\n`);
      assert.is(new TextDecoder().decode((await reader?.read())?.value), word);
    }
    socket?.write("0\r\n\r\n");
    assert.is((await reader?.read())?.done, true);
  });
});

test.run();
