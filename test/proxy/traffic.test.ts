/** The listener as a whole: draining, limits, the log, services that read or answer by themselves. */

import { test } from "uvu";
import * as assert from "uvu/assert";
import { createLifecycle } from "../../src/lifecycle/mod.ts";
import { runtime } from "../support/runtime.ts";
import {
  ask,
  bodyOf,
  Client,
  eventually,
  get,
  NOBODY,
  startProxy,
  statusOf,
  Upstream,
  valuesOf,
  withProxy,
} from "./wire.ts";
import { H2Client } from "./h2_wire.ts";

const KEEP = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

test("while draining, answers end their connections and new connections are still served", async () => {
  await withProxy({}, async (proxy) => {
    const client = await Client.to(proxy.port);
    client.send(KEEP);
    assert.equal(valuesOf(await client.until("ok"), "connection"), []);
    proxy.server.drain();
    client.received = "";
    client.send(KEEP);
    const last = await client.untilClosed();
    assert.is(statusOf(last), 200);
    assert.equal(valuesOf(last, "connection"), ["close"]);
    const late = await Client.to(proxy.port);
    late.send(KEEP);
    assert.is(statusOf(await late.untilClosed()), 200);
  });
});

test("closing stops accepting, ends idle connections, and lets exchanges finish", async () => {
  await withProxy({}, async (proxy, upstream) => {
    const idle = await Client.to(proxy.port);
    idle.send(KEEP);
    await idle.until("ok");
    upstream.onRequest = () => {};
    const busy = await Client.to(proxy.port);
    busy.send(KEEP);
    await upstream.request(1);
    const closed = proxy.server.close();
    await eventually("the idle connection ends", () => idle.fin || idle.closed);
    assert.is(busy.fin, false);
    let refused = false;
    await Client.to(proxy.port).catch(() => (refused = true));
    assert.ok(refused);
    const [side] = upstream.sides.filter((one) => !one.closed && one.received.length > 0);
    side?.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone");
    const answer = await busy.untilClosed();
    assert.equal([bodyOf(answer), valuesOf(answer, "connection")], ["done", ["close"]]);
    idle.destroy();
    await closed;
  });
});

test("nothing is admitted once the lifecycle says so, and an exchange counts until its last byte", async () => {
  const lifecycle = createLifecycle({ clock: runtime.clock });
  await withProxy({ lifecycle }, async (proxy, upstream) => {
    upstream.onRequest = (side) => {
      side.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n");
    };
    const client = await Client.to(proxy.port);
    client.send(KEEP);
    await client.until("hi");
    assert.is(lifecycle.inflight, 1);
    lifecycle.beginDrain();
    const late = await ask(proxy, KEEP);
    assert.is(statusOf(late), 503);
    assert.match(late, '"draining"');
    assert.is(valuesOf(late, "retry-after").length, 1);
    upstream.sides[0]?.send("0\r\n\r\n");
    await client.until("0\r\n\r\n");
    await eventually("nothing is in flight", () => lifecycle.inflight === 0);
    client.destroy();
  });
});

test("what comes before anything is served waits as long as its service says, and then goes on", async () => {
  const lifecycle = createLifecycle({ clock: runtime.clock, waitForAvailable: true });
  let startHoldMs = 20_000;
  await withProxy({ lifecycle, startHoldMs: () => startHoldMs }, async (proxy, upstream) => {
    const held = [await Client.to(proxy.port), await Client.to(proxy.port)];
    held[0]?.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello");
    held[1]?.send(KEEP);
    const gone = await Client.to(proxy.port);
    gone.send(KEEP);
    await eventually("all three are there", () => proxy.server.inflight === 3);
    gone.destroy();
    await eventually("who left does not wait", () => proxy.server.inflight === 2);
    startHoldMs = 50;
    assert.match(await ask(proxy, KEEP), '"not_ready"');
    startHoldMs = 0;
    const refused = await ask(proxy, KEEP);
    assert.equal([statusOf(refused), valuesOf(refused, "retry-after")], [503, ["1"]]);
    assert.is(upstream.requests.length, 0);
    assert.is(lifecycle.inflight, 0);
    lifecycle.available();
    for (const client of held) {
      const answer = await client.until("ok");
      assert.equal([statusOf(answer), valuesOf(answer, "connection")], [200, []]);
      client.destroy();
    }
    assert.is(upstream.requests.length, 2);
    await eventually("nothing is in flight", () => lifecycle.inflight === 0);
  });
});

test("what waits for the first moment of serving is sent away by a drain that comes first", async () => {
  const lifecycle = createLifecycle({ clock: runtime.clock, waitForAvailable: true });
  await withProxy({ lifecycle, startHoldMs: () => 20_000 }, async (proxy, upstream) => {
    const client = await Client.to(proxy.port);
    client.send(KEEP);
    await eventually("it waits", () => proxy.server.inflight === 1);
    lifecycle.beginDrain();
    assert.match(await client.untilClosed(), '"draining"');
    assert.is(upstream.requests.length, 0);
  });
});

test("an exchange whose bytes wait for a slow reader still counts as in flight", async () => {
  const lifecycle = createLifecycle({ clock: runtime.clock });
  await withProxy({ lifecycle }, async (proxy, upstream) => {
    const body = "x".repeat(12_000_000);
    upstream.onRequest = (side) => {
      side.send(`HTTP/1.1 200 OK\r\nContent-Length: ${body.length}\r\n\r\n${body}`);
    };
    const client = await Client.to(proxy.port);
    client.socket.pause();
    client.send(KEEP);
    await upstream.request();
    await new Promise((resolve) => setTimeout(resolve, 100));
    assert.is(lifecycle.inflight, 1);
    client.socket.resume();
    await eventually("all is read", () => client.received.length > body.length);
    await eventually("nothing is in flight", () => lifecycle.inflight === 0);
    client.destroy();
  });
});

test("a body over the limit is 413, known length or not", async () => {
  await withProxy({ limits: { bodyBytes: 1000 } }, async (proxy, upstream) => {
    const known = await ask(proxy, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\n\r\n");
    assert.is(statusOf(known), 413);
    const client = await Client.to(proxy.port);
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (let at = 0; at < 5; at++) client.send(`190\r\n${"x".repeat(400)}\r\n`);
    assert.is(statusOf(await client.untilClosed()), 413);
    assert.is(upstream.requests.length, 0);
    const fits = await ask(
      proxy,
      `POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 1000\r\n\r\n${
        "x".repeat(1000)
      }`,
    );
    assert.is(statusOf(fits), 200);
  });
});

test("connections over the limit are answered 503", async () => {
  await withProxy({ limits: { connections: 2 } }, async (proxy) => {
    const first = await Client.to(proxy.port);
    const second = await Client.to(proxy.port);
    await eventually("both are counted", () => proxy.server.connections === 2);
    const third = await Client.to(proxy.port);
    assert.is(statusOf(await third.untilClosed()), 503);
    first.destroy();
    await eventually("one has gone", () => proxy.server.connections === 1);
    const fourth = await Client.to(proxy.port);
    fourth.send(get("/"));
    assert.is(statusOf(await fourth.untilClosed()), 200);
    second.destroy();
  });
});

test("a connection that is refused does not stay because its client does", async () => {
  await withProxy({ limits: { connections: 1, lingerMs: 100 } }, async (proxy) => {
    const first = await Client.to(proxy.port);
    await eventually("it is counted", () => proxy.server.connections === 1);
    const second = await Client.to(proxy.port);
    await second.until("too many connections");
    // Nobody answers at the other end any more.
    await eventually("it is gone", () => second.send("x").closed);
    first.destroy();
  });
});

test("a connection without requests ends after its keep-alive time", async () => {
  await withProxy({ limits: { keepAliveMs: 200 } }, async (proxy) => {
    const client = await Client.to(proxy.port);
    client.send(KEEP);
    await client.until("ok");
    await client.untilClosed();
  });
});

test("a client that leaves its answer unread is cut after the write stall time", async () => {
  await withProxy({ limits: { writeStallMs: 300 } }, async (proxy, upstream) => {
    const body = "x".repeat(30_000_000);
    upstream.onRequest = (side) => {
      side.send(`HTTP/1.1 200 OK\r\nContent-Length: ${body.length}\r\n\r\n${body}`);
    };
    const client = await Client.to(proxy.port);
    client.socket.pause();
    client.send(KEEP);
    await eventually("the exchange is over", () => proxy.lines.length === 1);
    assert.is(proxy.lines[0]?.status, 499);
    client.destroy();
  });
});

test("the access log has one JSON line an exchange, with who, what, where to and how it ended", async () => {
  await withProxy({}, async (proxy, upstream) => {
    await ask(
      proxy,
      "POST /path?q HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-Request-ID: id-1\r\nContent-Length: 3\r\n\r\nabc",
    );
    upstream.onRequest = (side) => side.socket.destroy();
    await ask(proxy, get("/bad"));
    await ask(proxy, "GARBAGE\r\n\r\n");
    await eventually("three lines", () => proxy.lines.length === 3);
    const [good, bad, garbage] = proxy.lines;
    assert.is(good?.event, "request");
    assert.equal(
      [good?.request_id, good?.method, good?.target, good?.client, good?.status],
      ["id-1", "POST", "/path?q", "127.0.0.1", 200],
    );
    assert.equal([good?.service, good?.version, good?.generation], ["test", "v1", 1]);
    assert.equal([good?.bytes_in, good?.bytes_out, good?.reason], [3, 2, undefined]);
    assert.ok((good?.duration_ms as number) >= (good?.first_byte_ms as number));
    assert.equal([bad?.status, bad?.reason], [502, "upstream_reset"]);
    assert.equal([garbage?.status, garbage?.reason], [400, "bad_request"]);
  });
});

test("x-baton-generation is on answers when asked for, and never taken from the child", async () => {
  await withProxy({ showGeneration: true }, async (proxy, upstream) => {
    upstream.answer =
      "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Baton-Generation: forged\r\n\r\nok";
    assert.equal(valuesOf(await ask(proxy, get("/")), "x-baton-generation"), ["v1#1"]);
  });
});

test("what nobody is mounted for is 404, and our own paths go to the app whatever is mounted", async () => {
  const appFetch = (request: Request) => new Response(`app ${new URL(request.url).pathname}`);
  await withProxy({ mounts: ["/"], appFetch }, async (proxy) => {
    assert.match(bodyOf(await ask(proxy, get("/healthz?x"))), "app /healthz");
    for (const host of ["a:99999", "1.2.3.999", "a%zz", "xn--"]) {
      const answer = await ask(proxy, get("/healthz").replace(/Host: .*/, `Host: ${host}`));
      assert.match(bodyOf(answer), "app /healthz", host);
    }
    assert.match(bodyOf(await ask(proxy, get("//%68ealthz"))), "app /");
    assert.is(bodyOf(await ask(proxy, get("/other"))), "ok");
  });
  await withProxy({ mounts: ["/a"] }, async (proxy) => {
    assert.is(statusOf(await ask(proxy, get("/b"))), 404);
  });
});

test("a service that throws is a 500 without detail; one that forgets to answer too", async () => {
  const deeds = [
    () => {
      throw new Error("secret");
    },
    () => Promise.reject(new Error("secret")),
    () => Promise.resolve(),
  ];
  for (const handle of deeds) {
    await withProxy({ handle }, async (proxy) => {
      const answer = await ask(proxy, get("/"));
      assert.is(statusOf(answer), 500);
      assert.not.match(answer, "secret");
    });
  }
});

test("a service may read the body first and hand it to forward", async () => {
  for (
    const framing of [
      "Content-Length: 5\r\n\r\nhello",
      "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    ]
  ) {
    const upstream = await Upstream.start();
    const proxy = await startProxy(upstream.address, {
      handle: async (exchange, forward) => {
        const body = await exchange.readBody(100);
        const lease = proxy.target.claim(exchange.requestId, 0);
        if (lease !== undefined) await forward(exchange, lease, { body, target: "/other" });
      },
    });
    const client = await Client.to(proxy.port);
    client.send(
      `POST /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\nExpect: 100-continue\r\n${framing}`,
    );
    const answer = await client.untilClosed();
    assert.match(answer, "HTTP/1.1 100 Continue");
    assert.match(answer, "HTTP/1.1 200 OK");
    const request = await upstream.request();
    assert.match(request, "POST /other HTTP/1.1");
    assert.equal(valuesOf(request, "content-length"), ["5"]);
    assert.is(bodyOf(request), "hello");
    const large = await ask(
      proxy,
      `POST /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 101\r\n\r\n${
        "x".repeat(101)
      }`,
    );
    assert.is(statusOf(large), 413);
    await proxy.close();
    await upstream.close();
  }
});

test("a failure may come back to the service, which forwards to another target", async () => {
  const good = await Upstream.start();
  const failures: string[] = [];
  const other = await startProxy(good.address);
  const proxy = await startProxy(NOBODY, {
    handle: async (exchange, forward) => {
      const first = proxy.target.claim(exchange.requestId, 0);
      const second = other.target.claim(exchange.requestId, 0);
      if (first === undefined || second === undefined) throw new Error("retired");
      const outcome = await forward(exchange, first, { returnFailure: true });
      failures.push(`${outcome.result} ${outcome.reason} ${outcome.retriable}`);
      await forward(exchange, second);
    },
  });
  const answer = await ask(
    proxy,
    "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello",
  );
  assert.is(statusOf(answer), 200);
  assert.equal(failures, ["upstream_failed upstream_connect_failed true"]);
  assert.is(bodyOf(await good.request()), "hello");
  assert.is(proxy.target.leases + other.target.leases, 0);
  await proxy.close();
  await other.close();
  await good.close();
});

test("observers see the head and each piece of the answer's body", async () => {
  const seen: string[] = [];
  await withProxy({
    forwardOptions: {
      onHead: (status, headers) => seen.push(`${status} ${headers.length}`),
      onBody: (chunk) => seen.push(new TextDecoder().decode(chunk)),
    },
  }, async (proxy, upstream) => {
    upstream.answer =
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n";
    await ask(proxy, get("/"));
    assert.equal(seen, ["200 2", "ab", "c"]);
  });
});

test("a cut lease breaks its answer, or is a 503 before one, and says so", async () => {
  await withProxy({}, async (proxy, upstream) => {
    upstream.onRequest = () => {};
    const waiting = await Client.to(proxy.port);
    waiting.send(KEEP);
    await upstream.request();
    proxy.target.open()[0]?.cut?.("drain_deadline");
    assert.is(statusOf(await waiting.until("}")), 503);
    waiting.destroy();
    upstream.onRequest = (side) => {
      side.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n");
    };
    const streaming = await Client.to(proxy.port);
    streaming.send(KEEP);
    await streaming.until("hi");
    proxy.target.open()[0]?.cut?.("drain_deadline");
    assert.not.match(await streaming.untilClosed(), "0\r\n\r\n");
    await eventually("both ended", () => proxy.outcomes.length === 2);
    assert.equal(proxy.outcomes.map((one) => [one.result, one.status, one.reason]), [
      ["cut", 503, "drain_deadline"],
      ["cut", 200, "drain_deadline"],
    ]);
  });
});

test("what there is no time left for hears so, is logged as cut, and never looks whole", async () => {
  await withProxy({}, async (proxy, upstream) => {
    upstream.onRequest = (side, request) => {
      if (!request.includes("/half")) return;
      side.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n");
    };
    const waiting = await Client.to(proxy.port);
    waiting.send(get("/waiting"));
    const half = await Client.to(proxy.port);
    half.send(get("/half"));
    const old = await Client.to(proxy.port);
    old.send("GET /half/old HTTP/1.0\r\nHost: a\r\n\r\n");
    const h2 = await H2Client.to(proxy.port);
    const streams = [h2.ask("/waiting"), h2.ask("/half")];
    await Promise.all([half.until("hi"), old.until("hi"), streams[1]?.until("hi")]);
    await upstream.request(4);
    const failures: string[] = [];
    proxy.target.onCut((_lease, failure) => failures.push(failure));
    const closed = proxy.server.close();
    proxy.server.destroy();
    const refused = await waiting.untilClosed();
    assert.equal([statusOf(refused), valuesOf(refused, "retry-after")], [503, ["1"]]);
    assert.not.match(await half.untilClosed(), "0\r\n\r\n");
    await eventually("what only its end would complete is reset", () => old.closed);
    assert.is((old.error as { code?: string } | undefined)?.code, "ECONNRESET");
    for (const stream of streams) await stream.done();
    assert.equal(streams.map(({ status, ended }) => [status, ended]), [[503, true], [200, false]]);
    await closed;
    h2.destroy();
    assert.equal(failures, Array(5).fill("draining"), "a drain's report counts them");
    const logged = proxy.lines.filter(({ event }) => event === "request");
    assert.equal(
      logged.map(({ target, status, reason }) => `${target} ${status} ${reason}`).sort(),
      [
        "/half 200 draining",
        "/half 200 draining",
        "/half/old 200 draining",
        "/waiting 503 draining",
        "/waiting 503 draining",
      ],
    );
  });
});

test("a service may have limits of its own, and a call of forward limits of its own again", async () => {
  const silent = async (serviceTimeouts: object, forwardOptions: object) => {
    let answer = "";
    await withProxy({ serviceTimeouts, forwardOptions }, async (proxy, upstream) => {
      upstream.onRequest = () => {};
      answer = await ask(proxy, get("/"));
    });
    return answer;
  };
  assert.match(await silent({ firstByteMs: 150 }, {}), "first_byte");
  assert.match(await silent({ firstByteMs: 0 }, { timeouts: { firstByteMs: 150 } }), "first_byte");
});

test("a Response of a service is streamed, and a body that fails is seen to fail", async () => {
  const encoder = new TextEncoder();
  await withProxy({
    handle: (exchange) => {
      const body = new ReadableStream<Uint8Array>({
        start(controller) {
          controller.enqueue(encoder.encode("one"));
          setTimeout(() => {
            if (exchange.path === "/fail") controller.error(new Error("secret"));
            else {
              controller.enqueue(encoder.encode("two"));
              controller.close();
            }
          }, 5);
        },
      });
      exchange.respond(new Response(body, { status: 201, headers: { "x-a": "b" } }));
    },
  }, async (proxy) => {
    const good = await ask(proxy, get("/good"));
    assert.is(statusOf(good), 201);
    assert.is(bodyOf(good), "3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n");
    const failed = await ask(proxy, get("/fail"));
    assert.match(failed, "one");
    assert.not.match(failed, /0\r\n\r\n$|secret/);
  });
});

test("a client that leaves cancels the body of a Response", async () => {
  let cancelled = false;
  await withProxy({
    handle: (exchange) => {
      const body = new ReadableStream<Uint8Array>({
        pull: (controller) => controller.enqueue(new Uint8Array(1000)),
        cancel: () => {
          cancelled = true;
        },
      });
      exchange.respond(new Response(body));
    },
  }, async (proxy) => {
    const client = await Client.to(proxy.port);
    client.send(KEEP);
    await client.until("200 OK");
    client.reset();
    await eventually("the body is cancelled", () => cancelled);
  });
});

test.run();
