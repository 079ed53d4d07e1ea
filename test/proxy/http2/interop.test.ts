/** Other implementations on the other end: bytes of all sizes arrive as they were sent. */

import { Buffer } from "node:buffer";
import { execFile } from "node:child_process";
import { createHash } from "node:crypto";
import http2 from "node:http2";
import type { AddressInfo } from "node:net";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { serverCert, serverKey } from "../../runtime/certificates.ts";
import { eventually, type Proxy, type ProxyOptions, startProxy, withProxy } from "../wire.ts";

/** A generator with a seed (mulberry32). */
function randomFrom(seed: number): (below: number) => number {
  let state = seed;
  return (below) => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) % below;
  };
}

function randomBytes(random: (below: number) => number, size: number): Buffer {
  const words = new Uint32Array(Math.ceil(size / 4));
  for (let at = 0; at < words.length; at++) words[at] = random(2 ** 32);
  return Buffer.from(words.buffer).subarray(0, size);
}

function digest(bytes: Uint8Array): string {
  return createHash("sha256").update(bytes).digest("hex");
}

/** A child that sends back what it gets, over HTTP/2, in pieces. */
async function withEcho(options: ProxyOptions, body: (proxy: Proxy) => Promise<void>) {
  const server = http2.createServer();
  server.on("session", (session) => session.on("error", () => {}));
  server.on("stream", (stream, headers) => {
    stream.on("error", () => {});
    const pieces: Uint8Array[] = [];
    stream.on("data", (chunk: Uint8Array) => pieces.push(chunk));
    stream.on("end", () => {
      const all = Buffer.concat(pieces);
      stream.respond({
        ":status": 200,
        "x-digest": digest(all),
        "x-sent": headers["x-mark"] ?? "",
      });
      stream.end(all);
    });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  const address = { kind: "tcp", host: "127.0.0.1", port } as const;
  const proxy = await startProxy(address, { ...options, protocol: "h2c" });
  try {
    await body(proxy);
    await eventually("all leases are released", () => proxy.target.leases === 0);
  } finally {
    await proxy.close();
    server.close();
  }
}

const TLS = { pair: { cert: serverCert, key: serverKey }, minVersion: "TLSv1.2" } as const;

for (
  const [name, options, scheme] of [
    ["in the clear", {}, "http"],
    ["over TLS", { tls: TLS }, "https"],
  ] as const
) {
  test(`node:http2 on both sides, ${name}: bodies of all sizes, many at once, come back whole`, async () => {
    await withEcho(options, async (proxy) => {
      const random = randomFrom(7541);
      const client = http2.connect(`${scheme}://127.0.0.1:${proxy.port}`, {
        rejectUnauthorized: false,
        settings: { initialWindowSize: 20_000 },
      });
      client.on("error", () => {});
      const sizes = [0, 1, 16_383, 16_384, 16_385, 65_535, 65_536, 131_072, 400_000];
      for (let round = 0; round < 3; round++) {
        const asked = Array.from({ length: 24 }, async (_, at) => {
          const sent = randomBytes(random, sizes[at] ?? random(150_000));
          const mark = "m".repeat(random(300));
          const stream = client.request({ ":method": "POST", ":path": `/${at}`, "x-mark": mark });
          let told: http2.IncomingHttpHeaders = {};
          let ended = false;
          const pieces: Uint8Array[] = [];
          stream.on("response", (headers) => (told = headers));
          stream.on("data", (chunk: Uint8Array) => pieces.push(chunk));
          stream.on("end", () => (ended = true));
          stream.on("error", () => {});
          const cut = random(sent.length + 1);
          stream.write(sent.subarray(0, cut));
          setTimeout(() => stream.end(sent.subarray(cut)), random(5));
          await eventually("the answer ends", () => ended);
          assert.is(told["x-digest"], digest(sent));
          assert.is(told["x-sent"], mark);
          assert.is(digest(Buffer.concat(pieces)), digest(sent));
        });
        await Promise.all(asked);
      }
      assert.is(proxy.server.connections, 1);
      client.destroy();
    });
  });
}

test("curl with prior knowledge, where there is one: headers, a body each way, HEAD", async () => {
  const curl = (...args: string[]): Promise<string> =>
    new Promise((resolve, reject) => {
      execFile("curl", ["-s", "--max-time", "10", ...args], (error, stdout) => {
        if (error === null) resolve(stdout);
        else reject(error);
      });
    });
  const version = await curl("--version").catch(() => "");
  // A machine without it has the tests above.
  if (!version.includes("HTTP2")) return;
  await withProxy({}, async (proxy, upstream) => {
    upstream.answer = "HTTP/1.1 200 OK\r\nX-Own: a\r\nContent-Length: 5\r\n\r\nhello";
    const url = `http://127.0.0.1:${proxy.port}/x`;
    const told = await curl("-i", "--http2-prior-knowledge", "-d", "posted", url);
    assert.match(told, /^HTTP\/2 200 \r\nx-own: a\r\n/);
    assert.match(told, /hello$/);
    assert.match(await upstream.request(), /^POST \/x HTTP\/1\.1\r\n[\s\S]*posted$/);
    upstream.answer = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
    assert.match(await curl("-I", "--http2-prior-knowledge", url), /content-length: 5/);
  });
});

test.run();
