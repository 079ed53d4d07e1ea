/** Targets that speak HTTP/2 with prior knowledge, behind clients of either protocol. */

import { Buffer } from "node:buffer";
import http2, { type ServerHttp2Session, type ServerHttp2Stream } from "node:http2";
import type { AddressInfo, Socket } from "node:net";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { createForward } from "../../src/proxy/forward.ts";
import { runtime } from "../support/runtime.ts";
import { H2Client, valuesOf as fieldValues } from "./h2_wire.ts";
import {
  ask,
  bodyOf,
  Client,
  eventually,
  get,
  NOBODY,
  type Proxy,
  startProxy,
  statusOf,
  valuesOf,
} from "./wire.ts";

interface Received {
  readonly stream: ServerHttp2Stream;
  readonly raw: string[];
  body: string;
  trailers: string[];
  ended: boolean;
  code: number | undefined;
}

/** An HTTP/2 server; `onStream` answers. */
class H2Target {
  readonly received: Received[] = [];
  readonly sessions: ServerHttp2Session[] = [];
  onStream: (one: Received) => void = ({ stream }) => {
    stream.respond({ ":status": 200 });
    stream.end("ok");
  };
  port = 0;
  readonly #server: http2.Http2Server;
  readonly #sockets: Socket[] = [];

  constructor(options: http2.ServerOptions = {}) {
    this.#server = http2.createServer(options);
    this.#server.on("connection", (socket: Socket) => this.#sockets.push(socket));
    this.#server.on("session", (session) => {
      this.sessions.push(session);
      session.on("error", () => {});
    });
    this.#server.on("stream", (stream, _headers, _flags, raw?: string[]) => {
      const one: Received = {
        stream,
        raw: raw ?? [],
        body: "",
        trailers: [],
        ended: false,
        code: undefined,
      };
      this.received.push(one);
      stream.on("error", () => {});
      stream.on("trailers", (_h, _f, fields?: string[]) => (one.trailers = fields ?? []));
      stream.on("data", (chunk: Uint8Array) => {
        one.body += Buffer.from(chunk).toString("latin1");
      });
      stream.on("end", () => (one.ended = true));
      stream.on("close", () => (one.code = stream.rstCode ?? 0));
      this.onStream(one);
    });
  }

  async listen(): Promise<this> {
    await new Promise<void>((resolve) => this.#server.listen(0, "127.0.0.1", resolve));
    this.port = (this.#server.address() as AddressInfo).port;
    return this;
  }

  get open(): number {
    return this.sessions.filter((session) => !session.destroyed).length;
  }

  /** Ends all connections without a word about their streams. */
  cut(): void {
    for (const socket of this.#sockets.splice(0)) socket.destroy();
  }

  close(): void {
    for (const session of this.sessions) session.destroy();
    this.#server.close();
  }
}

interface Stage {
  readonly proxy: Proxy;
  readonly server: H2Target;
}

async function withTarget(
  body: (stage: Stage) => Promise<void>,
  options: http2.ServerOptions = {},
): Promise<void> {
  const server = await new H2Target(options).listen();
  const address = { kind: "tcp", host: "127.0.0.1", port: server.port } as const;
  const forward = createForward({ runtime, idleConnectionMs: 500 });
  const proxy = await startProxy(address, { protocol: "h2c", forward, http2: "always" });
  try {
    await body({ proxy, server });
    await eventually("all leases are released", () => proxy.target.leases === 0);
  } finally {
    await proxy.close();
    server.close();
  }
}

test("an HTTP/1.1 request crosses with its bytes, and many share one session", async () => {
  await withTarget(async ({ proxy, server }) => {
    const lines =
      "X-Twice: 1\r\nx-twice: 2\r\nConnection: x-priv\r\nX-Priv: no\r\nKeep-Alive: 5\r\n";
    const answers = await Promise.all(
      Array.from({ length: 10 }, (_, at) => ask(proxy, get(`/a/%2e%2e//b?${at}'`, lines))),
    );
    for (const answer of answers) {
      assert.is(statusOf(answer), 200);
      assert.match(bodyOf(answer), /^2\r\nok\r\n0\r\n\r\n$/);
    }
    assert.is(server.sessions.length, 1);
    const { raw } = server.received[0] as Received;
    assert.match(fieldValues(raw, ":path")[0] ?? "", /^\/a\/%2e%2e\/\/b\?\d'$/);
    assert.equal(fieldValues(raw, ":authority"), ["a.test"]);
    assert.equal(fieldValues(raw, "x-twice"), ["1", "2"]);
    assert.equal(fieldValues(raw, "x-forwarded-for"), ["127.0.0.1"]);
    for (const name of ["host", "connection", "x-priv", "keep-alive", "te"]) {
      assert.equal(fieldValues(raw, name), [], name);
    }
  });
});

test("bodies and trailers cross both ways, from HTTP/1.1 and from HTTP/2", async () => {
  await withTarget(async ({ proxy, server }) => {
    server.onStream = (one) => {
      one.stream.on("end", () => {
        one.stream.respond({ ":status": 200, "set-cookie": ["a=1", "b=2"] }, {
          waitForTrailers: true,
        });
        one.stream.on("wantTrailers", () => one.stream.sendTrailers({ "x-sum": "7" }));
        one.stream.end(`got ${one.body}`);
      });
    };
    const h1 = await Client.to(proxy.port);
    h1.send(
      "POST / HTTP/1.1\r\nHost: a.test\r\nTE: trailers\r\nConnection: close, TE\r\n" +
        "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-Check: 1\r\n\r\n",
    );
    const answer = await h1.untilClosed();
    assert.equal(valuesOf(answer, "set-cookie"), ["a=1", "b=2"]);
    assert.match(answer, /got abc\r\n0\r\nx-sum: 7\r\n\r\n$/);
    assert.equal(server.received[0]?.trailers, ["x-check", "1"]);
    assert.equal(fieldValues(server.received[0]?.raw ?? [], "te"), ["trailers"]);

    const h2 = await H2Client.to(proxy.port);
    const request = h2.begin("/", { te: "trailers" }, false, { "x-check": "2" });
    request.stream.end("def");
    await request.done();
    assert.is(request.body, "got def");
    assert.equal(request.trailers, ["x-sum", "7"]);
    assert.equal(server.received[1]?.trailers, ["x-check", "2"]);
    const stated = await h2.ask("/", { "content-length": "4" }, "four").done();
    assert.is(stated.body, "got four");
    assert.equal(fieldValues(server.received[2]?.raw ?? [], "content-length"), ["4"]);
    h2.destroy();
  });
});

test("HEAD, 204, an empty 200 and 103 keep their framing towards HTTP/1.1", async () => {
  await withTarget(async ({ proxy, server }) => {
    const answers: ((one: Received) => void)[] = [
      ({ stream }) => stream.respond({ ":status": 200, "content-length": 9 }, { endStream: true }),
      ({ stream }) => stream.respond({ ":status": 204 }, { endStream: true }),
      ({ stream }) => stream.respond({ ":status": 200 }, { endStream: true }),
      ({ stream }) => {
        stream.additionalHeaders({ ":status": 103, link: "</x>" });
        stream.respond({ ":status": 200, "content-length": 1 });
        stream.end("x");
      },
    ];
    server.onStream = (one) => answers.shift()?.(one);
    const client = await Client.to(proxy.port);
    client.send("HEAD / HTTP/1.1\r\nHost: a.test\r\n\r\n");
    assert.equal(valuesOf(await client.until("\r\n\r\n"), "content-length"), ["9"]);
    client.received = "";
    client.send("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n");
    assert.is(statusOf(await client.until("\r\n\r\n")), 204);
    client.received = "";
    client.send("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n");
    assert.equal(valuesOf(await client.until("\r\n\r\n"), "content-length"), ["0"]);
    client.received = "";
    client.send("GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n");
    assert.match(
      await client.untilClosed(),
      /^HTTP\/1\.1 103 [\s\S]*HTTP\/1\.1 200 [\s\S]*\r\n\r\nx$/,
    );
  });
});

test("a client that leaves resets the stream only, and the session serves on", async () => {
  await withTarget(async ({ proxy, server }) => {
    server.onStream = ({ stream }) => {
      stream.respond({ ":status": 200 });
      stream.write("begun");
    };
    const client = await Client.to(proxy.port);
    client.send("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n");
    await client.until("begun");
    client.destroy();
    await eventually("the stream is reset", () => server.received[0]?.code === 8);
    assert.is(proxy.outcomes[0]?.result, "client_closed");
    server.onStream = ({ stream }) => {
      stream.respond({ ":status": 200 }, { endStream: true });
    };
    assert.is(statusOf(await ask(proxy, get("/"))), 200);
    assert.is(server.sessions.length, 1);
  });
});

test("a stream that the target resets is a 502 before its answer and a broken one after", async () => {
  await withTarget(async ({ proxy, server }) => {
    server.onStream = ({ stream }) => stream.close(2);
    const early = await ask(proxy, get("/").replace("GET", "POST"));
    assert.is(statusOf(early), 502);
    assert.match(early, /"upstream_reset"/);
    server.onStream = ({ stream }) => {
      stream.respond({ ":status": 200 });
      stream.write("begun");
      setTimeout(() => stream.destroy(new Error("broken")), 50);
    };
    const late = await ask(proxy, get("/"));
    assert.is(statusOf(late), 200);
    assert.match(late, /begun/);
    assert.not.match(late, /\r\n0\r\n\r\n$/);
  });
});

test("a refused stream and a session that ended meanwhile are tried again, a sent POST is not", async () => {
  await withTarget(async ({ proxy, server }) => {
    let refuse = 1;
    server.onStream = ({ stream }) => {
      if (refuse-- > 0) return stream.close(7);
      stream.respond({ ":status": 200 }, { endStream: true });
    };
    assert.is(statusOf(await ask(proxy, get("/refused").replace("GET", "POST"))), 200);
    assert.is(server.received.length, 2);
    server.onStream = () => {
      server.onStream = (one) => one.stream.respond({ ":status": 200 }, { endStream: true });
      server.cut();
    };
    assert.is(statusOf(await ask(proxy, get("/get"))), 200);
    assert.is(server.received.length, 4);
    server.onStream = () => server.cut();
    assert.is(statusOf(await ask(proxy, get("/post").replace("GET", "POST"))), 502);
    assert.is(server.received.length, 5);
  });
});

test("more requests than the target takes at once wait, and all are answered", async () => {
  await withTarget(async ({ proxy, server }) => {
    let most = 0;
    let now = 0;
    server.onStream = ({ stream }) => {
      most = Math.max(most, ++now);
      setTimeout(() => {
        now -= 1;
        stream.respond({ ":status": 200 }, { endStream: true });
      }, 20);
    };
    assert.is(statusOf(await ask(proxy, get("/first"))), 200);
    const answers = await Promise.all(
      Array.from({ length: 30 }, (_, at) => ask(proxy, get(`/${at}`))),
    );
    assert.ok(answers.every((answer) => statusOf(answer) === 200));
    assert.ok(most > 1, `${most} at once`);
  }, { settings: { maxConcurrentStreams: 4 } });
});

test("a slow client stops the target, and a slow target the client", async () => {
  const MIB = 1024 * 1024;
  await withTarget(async ({ proxy, server }) => {
    let sent = 0;
    server.onStream = ({ stream }) => {
      stream.respond({ ":status": 200 });
      const piece = Buffer.alloc(65536);
      const more = () => {
        while (sent < 256 * MIB && !stream.destroyed) {
          sent += piece.length;
          if (!stream.write(piece)) return void stream.once("drain", more);
        }
      };
      more();
    };
    const client = await Client.to(proxy.port);
    client.socket.pause();
    client.send("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n");
    let before = -1;
    await eventually("the target is stopped", () => {
      const still = sent === before && sent > 0;
      before = sent;
      return still;
    });
    await new Promise((resolve) => setTimeout(resolve, 200));
    assert.ok(sent < 32 * MIB, `the target sent ${sent / MIB} MiB`);
    client.destroy();

    server.onStream = ({ stream }) => void stream.pause();
    const upload = await Client.to(proxy.port);
    upload.send(`POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: ${256 * MIB}\r\n\r\n`);
    let taken = 0;
    const piece = Buffer.alloc(65536);
    const push = () => {
      while (taken < 256 * MIB && !upload.closed) {
        taken += piece.length;
        if (!upload.socket.write(piece)) return void upload.socket.once("drain", push);
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
    server.received[1]?.stream.close(8);
    assert.is(statusOf(await upload.until("\r\n\r\n")), 502);
    upload.destroy();
  });
});

test("a retired target finishes its streams, takes no more, and its session ends with them", async () => {
  await withTarget(async ({ proxy, server }) => {
    const waiting: ServerHttp2Stream[] = [];
    server.onStream = ({ stream }) => waiting.push(stream);
    const client = await Client.to(proxy.port);
    client.send("GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n");
    await eventually("it is at the target", () => waiting.length === 1);
    let drained = false;
    void proxy.target.retire().then(() => (drained = true));
    await new Promise((resolve) => setTimeout(resolve, 50));
    assert.is(drained, false);
    waiting[0]?.respond({ ":status": 200 });
    waiting[0]?.end("last words");
    assert.match(await client.untilClosed(), /last words/);
    await eventually("drained", () => drained);
    await eventually("the session has ended", () => server.open === 0);
  });
});

test("an idle session is closed before the target would close it", async () => {
  await withTarget(async ({ proxy, server }) => {
    assert.is(statusOf(await ask(proxy, get("/"))), 200);
    await eventually("it is closed", () => server.open === 0);
    assert.is(statusOf(await ask(proxy, get("/"))), 200);
    assert.is(server.sessions.length, 2);
  });
});

test("nobody listens: 502 after three tries, and the target hears of each", async () => {
  const proxy = await startProxy(NOBODY, { protocol: "h2c" });
  const answer = await ask(proxy, get("/"));
  assert.is(statusOf(answer), 502);
  assert.match(answer, /"upstream_connect_failed"/);
  assert.is(proxy.target.connectFailures, 3);
  await proxy.close();
});

test.run();
