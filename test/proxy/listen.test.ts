/** Every form of the traffic listener, through the whole of Baton as a process. */

import { spawn } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import { type AddressInfo, createServer as createTcp, type Server } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { connect as connectTls } from "node:tls";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { batonCommand, plainEnvironment, startBatonProcess } from "../support/baton_process.ts";
import { authority, serverCert, serverKey } from "../runtime/certificates.ts";
import { bodyOf, Client, eventually, statusOf } from "./wire.ts";

const GET = "GET /x HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n";

async function withUpstream(
  body: (folder: string, services: Record<string, unknown>) => Promise<void>,
  where: "tcp" | "ipv6" | "unix" = "tcp",
): Promise<void> {
  const folder = await mkdtemp(join(tmpdir(), "baton-listen-"));
  const server = createServer((request, response) => {
    response.setHeader("content-length", "2");
    response.end(request.headers["x-forwarded-for"] === undefined ? "no" : "ok");
  });
  const path = join(folder, "up.sock");
  await new Promise<void>((resolve) => {
    if (where === "unix") server.listen(path, resolve);
    else server.listen(0, where === "ipv6" ? "::1" : "127.0.0.1", resolve);
  });
  const { port } = server.address() as AddressInfo;
  const upstream = where === "unix"
    ? `unix:${path}`
    : where === "ipv6"
    ? `http://[::1]:${port}`
    : `http://127.0.0.1:${port}`;
  try {
    await body(folder, { plain: { mount: "/", upstream } });
  } finally {
    server.closeAllConnections();
    server.close();
    await rm(folder, { recursive: true, force: true });
  }
}

function portOf(url: string): number {
  return Number(/:(\d+)$/.exec(url)?.[1]);
}

async function ask(port: number | string, host?: string): Promise<string> {
  return await (await Client.to(port, host)).send(GET).untilClosed();
}

test("IPv6, in front and behind", async () => {
  await withUpstream(async (folder, services) => {
    const baton = await startBatonProcess(folder, {
      services,
      listen: { traffic: "[::1]:0" },
      shutdown: { announceMs: 0 },
    });
    assert.is(bodyOf(await ask(portOf(baton.traffic), "::1")), "ok");
    assert.is(await baton.stop(), 0);
  }, "ipv6");
});

test("unix sockets, in front and behind; one that a killed Baton left is taken over", async () => {
  await withUpstream(async (folder, services) => {
    const path = join(folder, "traffic.sock");
    const config = {
      services,
      listen: { traffic: `unix:${path}` },
      shutdown: { announceMs: 0 },
      traffic: { trustedProxies: ["unix"] },
    };
    const first = await startBatonProcess(folder, config);
    assert.is(statusOf(await ask(path)), 200);
    first.signal("SIGKILL");
    await first.exited;
    const second = await startBatonProcess(folder, config);
    assert.is(statusOf(await ask(path)), 200);
    assert.is(await second.stop(), 0);
  }, "unix");
});

test("an inherited descriptor is accepted on, told by the configuration or by systemd's names", async () => {
  await withUpstream(async (folder, services) => {
    const file = join(folder, "baton.json");
    for (const told of [true, false]) {
      const listener: Server = createTcp();
      await new Promise<void>((resolve) => listener.listen(0, "127.0.0.1", resolve));
      const { port } = listener.address() as AddressInfo;
      const { _handle: handle } = listener as unknown as { _handle?: { fd?: number } };
      // A Deno parent cannot tell the descriptor of its own listener.
      if (handle?.fd === undefined) return void listener.close();
      await writeFile(
        file,
        JSON.stringify({
          services,
          stateDir: join(folder, `state-${told}`),
          listen: { admin: "127.0.0.1:0", ...(told ? { descriptor: 3 } : {}) },
          // It cannot be shared: one thread serves it, whatever is asked for.
          traffic: { workers: told ? 1 : 2 },
          shutdown: { announceMs: 0 },
        }),
      );
      const { command, args } = batonCommand(["serve", "--config", file]);
      // The shell's pid is Baton's after `exec`, as it is under systemd.
      const script = told ? 'exec "$@"' : 'LISTEN_PID=$$ LISTEN_FDS=1 exec "$@"';
      const child = spawn("/bin/sh", ["-c", script, "sh", command, ...args], {
        env: plainEnvironment(),
        stdio: ["ignore", "ignore", "pipe", handle.fd],
      });
      // From here on only the child has it.
      listener.close();
      let log = "";
      child.stderr?.on("data", (chunk) => (log += chunk));
      let ended = false;
      child.on("close", () => (ended = true));
      const kill = () => void (!ended && child.pid !== undefined && process.kill(child.pid, 9));
      process.on("exit", kill);
      await eventually(
        `it listens: ${log}`,
        () => /"listening","listener":"traffic"/.test(log) || ended,
      );
      assert.match(log, new RegExp(`"address":"127\\.0\\.0\\.1:${port}".*"descriptor":3`));
      assert.is(log.includes('"threads_not_used"'), !told);
      assert.is(bodyOf(await ask(port)), "ok");
      if (child.pid !== undefined) process.kill(child.pid, "SIGTERM");
      await eventually("it has ended", () => ended);
    }
  });
});

test("two processes share a port with reusePort, and one may go", async () => {
  await withUpstream(async (folder, services) => {
    const config = (state: string, traffic: string) => ({
      services,
      stateDir: join(folder, state),
      listen: { traffic, reusePort: true },
      shutdown: { announceMs: 0 },
    });
    const first = await startBatonProcess(folder, config("a", "127.0.0.1:0"));
    const port = portOf(first.traffic);
    const second = await startBatonProcess(folder, config("b", `127.0.0.1:${port}`));
    assert.is(await first.stop(), 0);
    for (let count = 0; count < 5; count++) assert.is(bodyOf(await ask(port)), "ok");
    assert.is(await second.stop(), 0);
  });
});

test("TLS, and two threads on one port, from the configuration to the wire", async () => {
  await withUpstream(async (folder, services) => {
    const [cert, key] = [join(folder, "tls.crt"), join(folder, "tls.key")];
    await writeFile(cert, serverCert);
    await writeFile(key, serverKey);
    const baton = await startBatonProcess(folder, {
      services,
      listen: { traffic: "127.0.0.1:0", tls: { cert, key } },
      traffic: { workers: 2 },
      shutdown: { announceMs: 0 },
    });
    const port = portOf(baton.traffic);
    for (let count = 0; count < 10; count++) {
      let received = "";
      let closed = false;
      const socket = connectTls({
        port,
        host: "127.0.0.1",
        servername: "localhost",
        ca: authority,
      });
      socket.on("data", (chunk) => (received += chunk.toString("latin1")));
      socket.on("error", (error) => (received += String(error)));
      socket.on("close", () => (closed = true));
      socket.write(GET);
      await eventually("an answer", () => closed);
      assert.is(bodyOf(received), "ok", received);
    }
    assert.is(await baton.stop(), 0);
    assert.equal(baton.noise, []);
  });
});

test("what threads cannot share the main thread serves alone, and the log says so", async () => {
  await withUpstream(async (folder, services) => {
    const path = join(folder, "traffic.sock");
    const baton = await startBatonProcess(folder, {
      services,
      listen: { traffic: `unix:${path}` },
      traffic: { workers: 2, trustedProxies: ["unix"] },
      shutdown: { announceMs: 0 },
    });
    for (let count = 0; count < 5; count++) assert.is(statusOf(await ask(path)), 200);
    const told = baton.log.find(({ event }) => event === "threads_not_used");
    assert.is(told?.reason, "listen.traffic is a unix socket");
    assert.is(await baton.stop(), 0);
  });
});

test.run();
