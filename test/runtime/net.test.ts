import { access, stat, writeFile } from "node:fs/promises";
import * as nodeNet from "node:net";
import { join } from "node:path";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { test } from "uvu";
import * as assert from "uvu/assert";
import {
  type Address,
  type ByteSocket,
  ConnectFailed,
  type Listener,
  ListenFailed,
  type SocketHandlers,
} from "../../src/runtime/runtime.ts";
import { runtime } from "../support/runtime.ts";
import { inFolder, ownEnv, program, rejection, until } from "./support.ts";

const { net } = runtime;
const loopback: Address = { kind: "tcp", host: "127.0.0.1", port: 0 };
const MIB = 1024 * 1024;
/** A label of more than 63 bytes: unknown without asking a name server. */
const impossibleName = `${"x".repeat(64)}.invalid`;

/** Records what a socket tells, in order. */
class Record implements SocketHandlers {
  readonly events: string[] = [];
  text = "";
  bytes = 0;
  drains = 0;
  error: Error | undefined;
  onData?: () => void;

  data(chunk: Uint8Array): void {
    this.bytes += chunk.length;
    if (this.bytes < 1000) this.text += new TextDecoder("latin1").decode(chunk);
    this.onData?.();
  }
  end(): void {
    this.events.push("end");
  }
  drain(): void {
    this.drains++;
  }
  close(error?: Error): void {
    this.events.push("close");
    this.error = error;
  }
  get isClosed(): boolean {
    return this.events.includes("close");
  }
}

interface Pair {
  readonly client: ByteSocket;
  readonly server: ByteSocket;
  readonly atClient: Record;
  readonly atServer: Record;
}

/** A connected pair of our sockets over `address`; the listener and both ends are closed afterwards. */
async function withPair(address: Address, action: (pair: Pair) => Promise<void>): Promise<void> {
  const atServer = new Record();
  const atClient = new Record();
  let server: ByteSocket | undefined;
  const listener = await net.listen({ address }, (socket) => {
    server = socket;
    socket.handle(atServer);
  });
  const client = await net.connect(listener.address, { timeoutMs: 20_000 });
  client.handle(atClient);
  await until("the connection is accepted", () => server !== undefined);
  if (server === undefined) throw new Error("unreachable");
  try {
    await action({ client, server, atClient, atServer });
  } finally {
    client.destroy();
    server.destroy();
    await listener.close();
  }
}

/** Serves each accepted socket as an echo, closing when the other side does. */
function listenEcho(address: Address): Promise<Listener> {
  return net.listen({ address }, (socket) => {
    socket.handle({
      data: (chunk) => void socket.write(chunk.slice()),
      end: () => socket.end(),
      drain: () => {},
      close: () => {},
    });
  });
}

async function echoed(address: Address, text: string): Promise<string> {
  const socket = await net.connect(address, { timeoutMs: 20_000 });
  const record = new Record();
  socket.handle(record);
  socket.write(text);
  socket.end();
  await until("the echo has ended", () => record.isClosed);
  return record.text;
}

function portOf(address: Address): number {
  return address.kind === "tcp" ? address.port : -1;
}

test("bytes go both ways over IPv4, IPv6 and a unix socket", async () => {
  await inFolder(async (folder) => {
    const addresses: Address[] = [
      loopback,
      { kind: "tcp", host: "::1", port: 0 },
      { kind: "unix", path: join(folder, "s") },
    ];
    for (const address of addresses) {
      const listener = await listenEcho(address);
      if (listener.address.kind === "tcp") assert.ok(listener.address.port > 0);
      assert.is(await echoed(listener.address, "hello"), "hello");
      await listener.close();
    }
  });
});

test("a string is written as latin1, bytes as they are", async () => {
  await withPair(loopback, async ({ client, atServer }) => {
    client.write("\xe9\xff\x00");
    client.write(new Uint8Array([1, 2, 255]));
    await until("all bytes came", () => atServer.bytes === 6);
    assert.is(atServer.text, "\xe9\xff\x00\x01\x02\xff");
  });
});

test("both ends know the addresses", async () => {
  await withPair(loopback, async ({ client, server }) => {
    assert.equal([client.remoteAddress, server.remoteAddress], ["127.0.0.1", "127.0.0.1"]);
    assert.is(client.remotePort, server.localPort);
    assert.is(server.remotePort, client.localPort);
    await Promise.resolve();
  });
});

test("half-close: after the other side's FIN we can still answer, and both close in good order", async () => {
  await withPair(loopback, async ({ client, server, atClient, atServer }) => {
    client.write("question");
    client.end();
    await until("the server sees the end", () => atServer.events.length > 0);
    assert.equal(atServer.events, ["end"]);
    assert.is(atServer.text, "question");
    server.write("answer");
    server.end();
    await until("both are closed", () => atClient.isClosed && atServer.isClosed);
    assert.is(atClient.text, "answer");
    assert.equal(atClient.events, ["end", "close"]);
    assert.equal(atServer.events, ["end", "close"]);
    assert.equal([atClient.error, atServer.error], [undefined, undefined]);
  });
});

test("end sends everything queued before the FIN", async () => {
  await withPair(loopback, async ({ client, server, atServer }) => {
    for (let i = 0; i < 16; i++) client.write(new Uint8Array(MIB));
    client.end();
    await until("the server sees the end", () => atServer.events.includes("end"));
    assert.is(atServer.bytes, 16 * MIB);
    server.end();
  });
});

test("destroy with reset closes a unix socket, which has none", async () => {
  await inFolder(async (folder) => {
    const address: Address = { kind: "unix", path: join(folder, "s") };
    await withPair(address, async ({ client, server, atClient, atServer }) => {
      server.destroy(true);
      await until("the client sees the end", () => atClient.events.length > 0);
      client.destroy(true);
      await until("both are closed", () => atClient.isClosed && atServer.isClosed);
    });
  });
});

test("destroy with reset is seen as a reset, without it as an end", async () => {
  await withPair(loopback, async ({ server, atClient, atServer }) => {
    server.destroy(true);
    await until("the client is closed", () => atClient.isClosed && atServer.isClosed);
    assert.ok(atClient.error !== undefined);
    assert.not.ok(atClient.events.includes("end"));
    assert.is(atServer.error, undefined);
  });
  await withPair(loopback, async ({ client, server, atClient, atServer }) => {
    server.destroy();
    await until("the client sees the end", () => atClient.events.length > 0);
    assert.equal(atClient.events, ["end"]);
    client.end();
    await until("the client is closed", () => atClient.isClosed);
    assert.is(atClient.error, undefined);
    assert.equal(atServer.events, ["close"]);
    assert.is(atServer.error, undefined);
  });
});

test("destroy drops what is queued and closes exactly once", async () => {
  await withPair(loopback, async ({ client, server, atClient }) => {
    server.pause();
    while (client.pendingBytes < 4 * MIB) client.write(new Uint8Array(MIB));
    client.destroy();
    client.destroy(true);
    client.end();
    client.write("ignored");
    await until("the client is closed", () => atClient.isClosed);
    await new Promise((resolve) => setTimeout(resolve, 0));
    assert.equal(atClient.events, ["close"]);
    assert.is(atClient.error, undefined);
  });
});

test("a reader that reads nothing stops the writer; drain comes once per refusal", async () => {
  await withPair(loopback, async ({ client, server, atClient, atServer }) => {
    server.pause();
    let written = 0;
    const writeUntilFull = () => {
      do written += 65_536; while (client.write(new Uint8Array(65_536)));
    };
    // The kernel's own buffers take some megabytes; what it does not take stays with us.
    for (let before = 0; client.pendingBytes === 0 || client.pendingBytes !== before;) {
      if (client.pendingBytes === 0) writeUntilFull();
      before = client.pendingBytes;
      await new Promise((resolve) => setTimeout(resolve, 200));
    }
    const drains = atClient.drains;
    assert.is(atServer.bytes, 0);
    server.resume();
    await until("the writer drains", () => atClient.drains === drains + 1);
    await until("all bytes came", () => atServer.bytes === written);
    assert.is(client.pendingBytes, 0);
    // Nothing was refused since, so no drain may come.
    client.write("x");
    await until("the last byte came", () => atServer.bytes === written + 1);
    assert.is(atClient.drains, drains + 1);
  });
});

test("a paused reader is told nothing until it resumes, then everything in order", async () => {
  await withPair(loopback, async ({ client, server, atServer }) => {
    let sum = 0;
    atServer.onData = () => server.pause();
    for (let i = 0; i < 200; i++) {
      sum += 10_000;
      client.write(new Uint8Array(10_000));
    }
    client.end();
    while (!atServer.events.includes("end")) {
      const before = atServer.bytes;
      server.resume();
      await until(
        "a chunk or the end comes",
        () => atServer.bytes > before || atServer.events.includes("end"),
      );
      const seen = atServer.bytes;
      await new Promise((resolve) => setTimeout(resolve, 2));
      assert.is(atServer.bytes, seen);
    }
    assert.is(atServer.bytes, sum);
    server.end();
  });
});

test("a refused connection, a missing socket file and an unknown name have their reasons", async () => {
  await inFolder(async (folder) => {
    const failures: [Address, ConnectFailed["reason"]][] = [
      // A port that was free a moment ago may be somebody else's by now.
      [{ kind: "tcp", host: "127.0.0.1", port: 1 }, "refused"],
      [{ kind: "unix", path: join(folder, "none") }, "missing"],
      [{ kind: "tcp", host: impossibleName, port: 80 }, "missing"],
    ];
    for (const [target, reason] of failures) {
      const error = await rejection(net.connect(target, { timeoutMs: 20_000 }));
      assert.instance(error, ConnectFailed);
      assert.is((error as ConnectFailed).reason, reason);
    }
  });
});

/** A process that listens and is stopped: the kernel alone completes connections, while it has room. */
async function stoppedListener(...backlog: string[]) {
  let output = "";
  const child = await runtime.processes.spawn({
    ...program("listen.ts", ...backlog),
    env: ownEnv(),
    onOutput: (_stream, chunk) => {
      output += new TextDecoder().decode(chunk);
    },
  });
  await until("it listens", () => output.endsWith("\n"));
  process.kill(child.pid, "SIGSTOP");
  const address: Address = { kind: "tcp", host: "127.0.0.1", port: Number(output) };
  return { child, address };
}

test("all clients may come at once: as many connections as the kernel allows wait to be accepted", async () => {
  const kernel = Number(await runtime.files.readText("/proc/sys/net/core/somaxconn"));
  const { child, address } = await stoppedListener();
  const sockets = await Promise.allSettled(
    Array.from(
      { length: Math.min(kernel, 800) },
      () => net.connect(address, { timeoutMs: 30_000 }),
    ),
  );
  for (const socket of sockets) if (socket.status === "fulfilled") socket.value.destroy();
  child.signalGroup("SIGKILL");
  await child.exited;
  assert.equal(sockets.filter(({ status }) => status === "rejected"), []);
});

test("a connection that is not answered fails with the reason timeout", async () => {
  const { child, address } = await stoppedListener("1");
  const sockets: ByteSocket[] = [];
  let failure: unknown;
  for (let i = 0; i < 20 && failure === undefined; i++) {
    try {
      const socket = await net.connect(address, { timeoutMs: 300 });
      socket.handle(new Record());
      sockets.push(socket);
    } catch (error) {
      failure = error;
    }
  }
  for (const socket of sockets) socket.destroy();
  child.signalGroup("SIGKILL");
  await child.exited;
  assert.instance(failure, ConnectFailed);
  assert.is((failure as ConnectFailed).reason, "timeout");
});

/** Somebody else may take a port in the moment in which it is free; not five of them. */
async function reopened(listener: Listener, tries = 5): Promise<Listener> {
  await listener.close();
  try {
    return await listenEcho(listener.address);
  } catch (error) {
    if (tries === 1) throw error;
    return await reopened(await listenEcho(loopback), tries - 1);
  }
}

test("a port in use is refused, and free as soon as its listener is closed", async () => {
  const first = await listenEcho(loopback);
  const error = await rejection(listenEcho(first.address));
  assert.instance(error, ListenFailed);
  assert.is((error as ListenFailed).reason, "in-use");
  const socket = await net.connect(first.address, { timeoutMs: 20_000 });
  const record = new Record();
  socket.handle(record);
  const second = await reopened(first);
  // The socket that was accepted before the close lives on.
  socket.write("still here");
  await until("the echo comes", () => record.text === "still here");
  socket.end();
  await until("it ends", () => record.isClosed);
  await second.close();
});

test("an address that is not ours, and a path in no folder, are unavailable", async () => {
  await inFolder(async (folder) => {
    const addresses: Address[] = [
      { kind: "tcp", host: "192.0.2.1", port: 0 },
      { kind: "tcp", host: impossibleName, port: 0 },
      { kind: "unix", path: join(folder, "none", "s") },
    ];
    for (const address of addresses) {
      const error = await rejection(listenEcho(address));
      assert.instance(error, ListenFailed);
      assert.is((error as ListenFailed).reason, "unavailable");
    }
  });
});

test("two listeners share a port when both ask for it", async () => {
  const counts = [0, 0];
  const listen = (index: number, address: Address) =>
    net.listen({ address, reusePort: true }, (socket) => {
      counts[index] = (counts[index] ?? 0) + 1;
      socket.handle({
        ...new Record(),
        data() {},
        end: () => socket.end(),
        drain() {},
        close() {},
      });
    });
  const first = await listen(0, loopback);
  const second = await listen(1, first.address);
  for (let i = 0; i < 60; i++) {
    const socket = await net.connect(first.address, { timeoutMs: 20_000 });
    const record = new Record();
    socket.handle(record);
    socket.end();
    await until("it is closed", () => record.isClosed);
  }
  assert.is((counts[0] ?? 0) + (counts[1] ?? 0), 60);
  assert.ok((counts[0] ?? 0) > 0 && (counts[1] ?? 0) > 0, counts.join("/"));
  await first.close();
  await second.close();
});

test("the socket file of a dead listener is replaced, that of a live one is not", async () => {
  await inFolder(async (folder) => {
    const path = join(folder, "s");
    const child = await runtime.processes.spawn({
      ...program("listen_on_path.ts", path),
      env: ownEnv(),
    });
    // The file is there from the bind on, a moment before the listen.
    await until("it listens", async () => {
      const socket = await net.connect({ kind: "unix", path }, { timeoutMs: 20_000 })
        .catch(() => undefined);
      socket?.destroy();
      return socket !== undefined;
    });
    const live = await rejection(listenEcho({ kind: "unix", path }));
    assert.is((live as ListenFailed).reason, "in-use");
    child.signalGroup("SIGKILL");
    await child.exited;
    assert.ok((await stat(path)).isSocket());
    const listener = await listenEcho({ kind: "unix", path });
    assert.is(await echoed(listener.address, "hello"), "hello");
    await listener.close();
    assert.not.ok(await access(path).then(() => true, () => false));
    await writeFile(path, "a plain file");
    assert.instance(await rejection(listenEcho({ kind: "unix", path })), ListenFailed);
  });
});

test("a listening descriptor is taken over from the parent process", async () => {
  const child = program("accept_on_descriptor.ts");
  let output = "";
  const node = fileURLToPath(new URL("../../node_modules/.bin/node", import.meta.url));
  const parent = await runtime.processes.spawn({
    command: node,
    args: [
      fileURLToPath(new URL("./programs/hand_over_listener.ts", import.meta.url)),
      child.command,
      ...child.args,
    ],
    env: ownEnv(),
    onOutput: (_stream, chunk) => {
      output += new TextDecoder().decode(chunk);
    },
  });
  await until("both have spoken", () => output.split("\n").length === 3);
  const port = Number(output.split("\n").find((line) => line.startsWith("port "))?.slice(5));
  assert.ok(output.includes("accepting\n"), output);
  assert.is(await echoed({ kind: "tcp", host: "127.0.0.1", port }, "hello"), "hello");
  parent.signalGroup("SIGKILL");
  await parent.exited;
});

test("bytes sent together with the connection are not lost before the owner listens", async () => {
  const record = new Record();
  const listener = await net.listen({ address: loopback }, (socket) => socket.handle(record));
  const raw = nodeNet.connect(portOf(listener.address), "127.0.0.1");
  raw.on("error", () => {});
  raw.write("early");
  raw.end();
  await until("the bytes came", () => record.text === "early" && record.events.includes("end"));
  raw.destroy();
  await listener.close();
});

test.run();
