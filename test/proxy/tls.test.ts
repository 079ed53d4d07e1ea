/** TLS on the traffic listener: ALPN, versions, and certificates that change under load. */

import { mkdtemp, rename, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { connect as connectTcp } from "node:net";
import { connect, type ConnectionOptions, type TLSSocket } from "node:tls";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { TlsFiles } from "../../src/host/tls_files.ts";
import { createLog } from "../../src/observe/log.ts";
import { createMetrics } from "../../src/observe/metrics.ts";
import {
  authority,
  clientCert,
  clientKey,
  serverCert,
  serverKey,
} from "../runtime/certificates.ts";
import { runtime } from "../support/runtime.ts";
import { H2Client } from "./h2_wire.ts";
import { DEADLINE_MS, eventually, type Proxy, statusOf, valuesOf, withProxy } from "./wire.ts";

const TLS = { pair: { cert: serverCert, key: serverKey }, minVersion: "TLSv1.2" } as const;
const OTHER = { cert: clientCert, key: clientKey };

/** A TLS client that speaks plain bytes. */
class TlsClient {
  received = "";
  closed = false;
  error: string | undefined;
  ready = false;
  readonly socket: TLSSocket;

  constructor(port: number, options: ConnectionOptions = {}) {
    this.socket = connect({
      port,
      host: "127.0.0.1",
      servername: "localhost",
      ca: authority,
      ALPNProtocols: ["http/1.1"],
      ...options,
    });
    this.socket.once("secureConnect", () => (this.ready = true));
    this.socket.on("data", (chunk) => (this.received += chunk.toString("latin1")));
    this.socket.on("error", (error) => (this.error = String(error)));
    this.socket.on("close", () => (this.closed = true));
  }

  static async to(port: number, options: ConnectionOptions = {}): Promise<TlsClient> {
    const client = new TlsClient(port, options);
    await eventually("the handshake is done", () => client.ready || client.closed);
    return client;
  }

  get subject(): string {
    return String(this.socket.getPeerCertificate().subject?.CN);
  }

  async ask(text: string): Promise<string> {
    this.received = "";
    this.socket.write(text);
    await eventually("an answer", () => this.received.endsWith("ok") || this.closed);
    return this.received;
  }

  destroy(): void {
    this.socket.destroy();
  }
}

const GET = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";

async function subjectNow(proxy: Proxy): Promise<string> {
  const client = await TlsClient.to(proxy.port, { rejectUnauthorized: false });
  const { subject } = client;
  client.destroy();
  return subject;
}

test("an answer of HTTP/1.0 that breaks off, or that its client leaves, ends its own connection only", async () => {
  await withProxy({ tls: TLS }, async (proxy, upstream) => {
    upstream.onRequest = (side) =>
      side.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n");
    for (const at of [0, 1]) {
      const client = await TlsClient.to(proxy.port);
      client.socket.write("GET / HTTP/1.0\r\n\r\n");
      await eventually("it has begun", () => client.received.endsWith("hello"));
      if (at === 0) (await upstream.side()).socket.destroy();
      else client.socket.end();
      await eventually("it ends", () => client.closed);
    }
    await eventually("two lines", () => proxy.lines.length === 2);
    assert.equal(proxy.lines.map(({ reason }) => reason), ["upstream_reset", "client_closed"]);
    upstream.onRequest = undefined;
    const other = await TlsClient.to(proxy.port);
    assert.is(statusOf(await other.ask(GET)), 200);
    other.destroy();
  });
});

test("ALPN chooses between h2 and http/1.1, and without it there is HTTP/1.1", async () => {
  await withProxy({ tls: TLS, http2: "always" }, async (proxy, upstream) => {
    for (const options of [{}, { ALPNProtocols: [] }]) {
      const h1 = await TlsClient.to(proxy.port, options);
      assert.is(statusOf(await h1.ask(GET)), 200);
      assert.is(statusOf(await h1.ask(GET)), 200);
      h1.destroy();
    }
    const h2 = await H2Client.to(proxy.port, {
      ca: authority,
      servername: "localhost",
    }, "https");
    const answers = await Promise.all([1, 2, 3].map((at) => h2.ask(`/${at}`).done()));
    assert.equal(answers.map(({ status, body }) => [status, body]), Array(3).fill([200, "ok"]));
    h2.destroy();
    const request = await upstream.request(2);
    assert.equal(valuesOf(request, "x-forwarded-proto"), ["https"]);
    assert.match(valuesOf(request, "forwarded")[0] ?? "", /proto=https$/);
  });
});

test("a body of some MiB crosses whole over TLS, with both protocols", async () => {
  await withProxy({ tls: TLS, http2: "always" }, async (proxy, upstream) => {
    const size = 2 * 1024 * 1024;
    upstream.answer = `HTTP/1.1 200 OK\r\nContent-Length: ${size}\r\n\r\n${"x".repeat(size)}`;
    const h1 = await TlsClient.to(proxy.port);
    h1.socket.write(GET.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n"));
    await eventually("the whole answer", () => h1.closed);
    assert.is(h1.received.length - h1.received.indexOf("\r\n\r\n") - 4, size);
    const h2 = await H2Client.to(proxy.port, { ca: authority, servername: "localhost" }, "https");
    assert.is((await h2.ask("/").done()).bytes, size);
    h2.destroy();
  });
});

test("plain text, junk and silence on the TLS port harm nobody", async () => {
  await withProxy({ tls: TLS, http2: "always" }, async (proxy, upstream) => {
    for (
      const junk of [GET, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "\x16\x03\x01\xff\xff", "\0\0\0"]
    ) {
      const socket = connectTcp({ port: proxy.port, host: "127.0.0.1" });
      socket.on("error", () => {});
      socket.end(junk, "latin1");
      let closed = false;
      socket.on("close", () => (closed = true));
      socket.resume();
      await eventually("closed", () => closed);
    }
    const client = await TlsClient.to(proxy.port);
    assert.is(statusOf(await client.ask(GET)), 200);
    client.destroy();
    assert.is(upstream.requests.length, 1);
  });
});

test("strangers that never end their handshake take as many places as there are, and no more", async () => {
  await withProxy({ tls: TLS, limits: { connections: 2 } }, async (proxy) => {
    const client = await TlsClient.to(proxy.port);
    assert.is(statusOf(await client.ask(GET)), 200);
    const strangers = [1, 2, 3, 4].map(() => {
      const socket = connectTcp({ port: proxy.port, host: "127.0.0.1" });
      const stranger = { socket, closed: false };
      socket.on("error", () => {});
      socket.on("close", () => (stranger.closed = true));
      return stranger;
    });
    const open = () => strangers.filter(({ closed }) => !closed);
    await eventually("one is not let in", () => open().length === 3);
    assert.is(statusOf(await client.ask(GET)), 200);
    open()[0]?.socket.resetAndDestroy();
    let status = 0;
    for (const end = performance.now() + DEADLINE_MS; status !== 200;) {
      assert.ok(performance.now() < end, "there is room for somebody");
      const other = await TlsClient.to(proxy.port);
      if (other.ready) status = statusOf(await other.ask(GET));
      other.destroy();
    }
    for (const { socket } of strangers) socket.resetAndDestroy();
    client.destroy();
  });
});

test("an older TLS than allowed is refused", async () => {
  await withProxy({ tls: { ...TLS, minVersion: "TLSv1.3" } }, async (proxy) => {
    const old = await TlsClient.to(proxy.port, { maxVersion: "TLSv1.2" });
    await eventually("refused", () => old.closed);
    assert.is(old.ready, false);
    const client = await TlsClient.to(proxy.port);
    assert.is(client.socket.getProtocol(), "TLSv1.3");
    client.destroy();
  });
});

test("a new certificate is for new handshakes; connections and streams that exist go on", async () => {
  await withProxy({ tls: TLS, http2: "always" }, async (proxy, upstream) => {
    const before = await TlsClient.to(proxy.port);
    assert.is(before.subject, "server");
    upstream.onRequest = (side) => {
      side.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n");
    };
    before.socket.write(GET);
    await eventually("the stream has begun", () => before.received.includes("first"));
    proxy.server.replaceCertificate(OTHER);
    assert.is(await subjectNow(proxy), "client");
    const side = await upstream.side(0);
    side.send("6\r\nsecond\r\n0\r\n\r\n");
    await eventually("the stream goes on", () => before.received.includes("second"));
    await eventually("and ends", () => before.received.endsWith("0\r\n\r\n"));
    upstream.onRequest = undefined;
    assert.is(statusOf(await before.ask(GET)), 200);
    before.destroy();
  });
});

test("the files are read again when they change, a broken pair keeps the old one and is told", async () => {
  const folder = await mkdtemp(join(tmpdir(), "baton-tls-"));
  const [cert, key] = [join(folder, "tls.crt"), join(folder, "tls.key")];
  const put = async (path: string, text: string): Promise<void> => {
    await writeFile(`${path}.new`, text);
    await rename(`${path}.new`, path);
  };
  await put(cert, serverCert);
  await put(key, serverKey);
  const lines: { event: string }[] = [];
  const log = createLog({ write: (line) => lines.push(JSON.parse(line)), now: () => 0 });
  const metrics = createMetrics();
  const conditions = new Map<string, string>();
  const files = await TlsFiles.open({
    runtime,
    log,
    metrics,
    conditions: { set: (name, _ok, reason) => void conditions.set(name, reason ?? "") },
    listener: "traffic",
    cert,
    key,
  });
  try {
    await withProxy({ tls: { pair: files.texts, minVersion: "TLSv1.2" } }, async (proxy) => {
      files.watch((pair) => proxy.server.replaceCertificate(pair));
      const kept = await TlsClient.to(proxy.port);
      assert.is(kept.subject, "server");
      // One file at a time, as a renewal does it.
      await put(cert, clientCert);
      await put(key, clientKey);
      await eventually(
        "the new pair is loaded",
        () => lines.filter(({ event }) => event === "tls_certificate_loaded").length === 2,
      );
      assert.is(await subjectNow(proxy), "client");

      await put(cert, "no certificate");
      await eventually(
        "it is refused",
        () => lines.some(({ event }) => event === "tls_certificate_refused"),
      );
      assert.is(await subjectNow(proxy), "client");
      assert.match(conditions.get("tls certificate") ?? "", /refused, an older one is in use/);
      assert.match(await metrics.text(), /baton_tls_refused\{listener="traffic"\} 1/);

      await put(cert, serverCert);
      await put(key, serverKey);
      await eventually(
        "it is put right",
        () => lines.filter(({ event }) => event === "tls_certificate_loaded").length === 3,
      );
      assert.is(await subjectNow(proxy), "server");
      assert.match(await metrics.text(), /baton_tls_refused\{listener="traffic"\} 0/);
      assert.is(statusOf(await kept.ask(GET)), 200);
      kept.destroy();
    });
  } finally {
    files.close();
    await rm(folder, { recursive: true });
  }
});

test("a start with a broken pair fails and names the files", async () => {
  const folder = await mkdtemp(join(tmpdir(), "baton-tls-"));
  const [cert, key] = [join(folder, "a.crt"), join(folder, "a.key")];
  const options = {
    runtime,
    log: createLog({ write: () => {}, now: () => 0 }),
    metrics: createMetrics(),
    conditions: { set: () => {} },
    listener: "traffic",
    cert,
    key,
  } as const;
  const failure = async (): Promise<string> =>
    await TlsFiles.open(options).then(() => "opened", (error) => String(error));
  assert.match(await failure(), /listen\.tls: .*a\.crt.*a\.key/);
  await writeFile(cert, serverCert);
  await writeFile(key, clientKey);
  assert.match(await failure(), /the key is not that of the certificate/);
  await rm(folder, { recursive: true });
});

test.run();
