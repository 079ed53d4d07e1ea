/** versiond's cases for HTTP/2 on both sides (159 to 168): what of them holds here, and how. */

import http2, { type ServerHttp2Session } from "node:http2";
import type { AddressInfo } from "node:net";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { createForward } from "../../src/proxy/forward.ts";
import { DEFAULT_LIMITS } from "../../src/proxy/limits.ts";
import type { Target } from "../../src/proxy/target.ts";
import { runtime } from "../support/runtime.ts";
import { FrameClient, H2Client, SETTINGS } from "./h2_wire.ts";
import { ask, bodyOf, eventually, get, type Proxy, startProxy, statusOf } from "./wire.ts";

/** A child that speaks HTTP/2 and answers when it is told to. */
interface Child {
  readonly sessions: ServerHttp2Session[];
  readonly versions: Set<string>;
  waiting: (() => void)[];
  /** Answers all that waits, and from now on at once. */
  release(): void;
}

interface StageOptions {
  readonly http2?: "always" | "never";
  readonly idleConnectionMs?: number;
  readonly firstByteMs?: number;
  /** A child that takes requests and is never heard of again. */
  readonly dead?: boolean;
}

async function onStage(
  options: StageOptions,
  body: (proxy: Proxy, child: Child, target: Target) => Promise<void>,
): Promise<void> {
  let holding = true;
  const child: Child = {
    sessions: [],
    versions: new Set(),
    waiting: [],
    release: () => {
      holding = false;
      for (const answer of child.waiting.splice(0)) answer();
    },
  };
  const server = http2.createServer((request, response) => {
    child.versions.add(request.httpVersion);
    const answer = (): void => void response.end("whole body");
    if (options.dead === true) return;
    if (holding && request.url.startsWith("/wait")) child.waiting.push(answer);
    else answer();
  });
  server.on("session", (session) => {
    child.sessions.push(session);
    session.on("error", () => {});
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  const address = { kind: "tcp", host: "127.0.0.1", port } as const;
  const { firstByteMs } = options;
  const proxy = await startProxy(address, {
    protocol: "h2c",
    http2: options.http2 ?? "always",
    forward: createForward({ runtime, idleConnectionMs: options.idleConnectionMs ?? 60_000 }),
    forwardOptions: firstByteMs === undefined ? {} : { timeouts: { firstByteMs } },
  });
  try {
    await body(proxy, child, proxy.target);
    await eventually("all leases are released", () => proxy.target.leases === 0);
  } finally {
    await proxy.close();
    for (const session of child.sessions) session.destroy();
    server.close();
  }
}

test("case 159: the listener tells how many streams it takes: what is configured, not 0 and not endless", async () => {
  await onStage({}, async (proxy) => {
    const client = new FrameClient(proxy.port).hello();
    const { payload } = await client.until("settings", ({ type }) => type === SETTINGS);
    const told = new Map<number, number>();
    for (let at = 0; at + 6 <= payload.length; at += 6) {
      const field = new DataView(payload.buffer, payload.byteOffset + at, 6);
      told.set(field.getUint16(0), field.getUint32(2));
    }
    // SETTINGS_MAX_CONCURRENT_STREAMS (RFC 9113 section 6.5.2).
    assert.is(told.get(3), DEFAULT_LIMITS.streams);
    assert.ok(DEFAULT_LIMITS.streams > 100);
    client.destroy();
  });
});

test("case 160: HTTP/1.1 clients are served as ever on a listener that takes HTTP/2", async () => {
  await onStage({}, async (proxy, child) => {
    const answer = await ask(proxy, get("/chat"));
    assert.is(statusOf(answer), 200);
    assert.match(answer, /^HTTP\/1\.1 200/);
    assert.match(bodyOf(answer), "whole body");
    assert.equal([...child.versions], ["2.0"]);
  });
});

async function shareConnections(streams: number): Promise<void> {
  await onStage({}, async (proxy, child) => {
    const client = await H2Client.to(proxy.port);
    assert.is((await client.ask("/warm-up").done()).status, 200);
    const asked = Array.from({ length: streams }, (_, at) => client.ask(`/wait/${at}`));
    await eventually("all are at the child", () => child.waiting.length === streams);
    assert.is(proxy.server.connections, 1);
    assert.is(child.sessions.length, 1);
    assert.equal([...child.versions], ["2.0"]);
    child.release();
    for (const one of asked) assert.is((await one.done()).status, 200);
    client.destroy();
  });
}

test("case 161: 8 streams at once need one connection to Baton and one to the child", async () => {
  await shareConnections(8);
});

test("case 162: 101 streams at once need no more connections than 8 do", async () => {
  await shareConnections(101);
});

test("case 164: a listener without HTTP/2 ends a client that begins with its preface", async () => {
  await onStage({ http2: "never" }, async (proxy) => {
    const client = new FrameClient(proxy.port).hello();
    await eventually("it is closed", () => client.closed);
    assert.not(client.frames.some(({ type }) => type === SETTINGS));
    assert.is(statusOf(await ask(proxy, get("/"))), 200);
  });
});

test("case 165: a listener that closes waits for the stream that runs, and its body is whole", async () => {
  await onStage({}, async (proxy, child) => {
    const client = await H2Client.to(proxy.port);
    const slow = client.ask("/wait");
    await eventually("it is at the child", () => child.waiting.length === 1);
    let closed = false;
    const closing = proxy.server.close().then(() => (closed = true));
    await eventually("GOAWAY", () => client.goaways.length > 0);
    assert.not(closed);
    child.release();
    const answer = await slow.done();
    assert.equal([answer.status, answer.body], [200, "whole body"]);
    await closing;
    client.destroy();
  });
});

test("case 166: requests that come before the child's settings wait for them: one connection all the same", async () => {
  await onStage({}, async (proxy, child) => {
    const client = await H2Client.to(proxy.port);
    const asked = Array.from({ length: 101 }, (_, at) => client.ask(`/wait/${at}`));
    await eventually("all are at the child", () => child.waiting.length === 101);
    assert.is(child.sessions.length, 1);
    child.release();
    for (const one of asked) assert.is((await one.done()).status, 200);
    client.destroy();
  });
});

test("case 167: a session without streams is closed after its idle time, and another one made", async () => {
  await onStage({ idleConnectionMs: 100 }, async (proxy, child) => {
    assert.is(statusOf(await ask(proxy, get("/"))), 200);
    await eventually("it is closed", () => child.sessions[0]?.destroyed === true);
    assert.is(statusOf(await ask(proxy, get("/"))), 200);
    assert.is(child.sessions.length, 2);
  });
});

test("case 168: a child that is not heard of any more costs its requests a 504, never an empty success", async () => {
  await onStage({ dead: true, firstByteMs: 150 }, async (proxy) => {
    const client = await H2Client.to(proxy.port);
    const answers = await Promise.all([1, 2, 3].map((at) => client.ask(`/${at}`).done()));
    assert.equal(answers.map((answer) => answer.status), [504, 504, 504]);
    client.destroy();
  });
});

test.run();
