/** Our ZMTP peer against libzmq, both ways, over every transport. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { readSeq, requestReplay, writeSeq } from "../../src/kv/replay.ts";
import { printZmqEndpoint } from "../../src/kv/zmq_endpoint.ts";
import type { SocketType, ZmtpLimits } from "../../src/kv/zmtp.ts";
import { ZmqSocket } from "../../src/kv/zmq_socket.ts";
import { silentLog } from "../../src/observe/log.ts";
import { Libzmq } from "../support/libzmq.ts";
import { runtime } from "../support/runtime.ts";
import { until } from "../support/until.ts";

const { net, clock, random } = runtime;
const text = (value: string) => new TextEncoder().encode(value);
const EMPTY = new Uint8Array(0);

let libzmq: Libzmq;
const ours: ZmqSocket[] = [];
let folder = "";

test.before.each(() => {
  libzmq = new Libzmq();
  folder = mkdtempSync(join(tmpdir(), "zmq-"));
});
test.after.each(async () => {
  await Promise.all(ours.splice(0).map((socket) => socket.close()));
  await libzmq.stop();
  rmSync(folder, { recursive: true, force: true });
});

interface Ours {
  readonly socket: ZmqSocket;
  readonly messages: Uint8Array[][];
  ups: number;
  downs: number;
}

function open(
  type: SocketType,
  endpoint: string,
  options: { bind?: boolean; topic?: string; limits?: Partial<ZmtpLimits> } = {},
): Ours {
  const result: Ours = { socket: undefined as never, messages: [], ups: 0, downs: 0 };
  const socket = new ZmqSocket({
    net,
    clock,
    random,
    log: silentLog,
    type,
    endpoint,
    ...(options.bind === undefined ? {} : { bind: options.bind }),
    ...(options.limits === undefined ? {} : { limits: options.limits }),
    handlers: {
      up: (peer) => {
        result.ups += 1;
        if (type === "SUB") peer.subscribe(text(options.topic ?? ""));
      },
      down: () => void (result.downs += 1),
      message: (frames) => void result.messages.push(frames),
    },
  });
  ours.push(socket);
  return Object.assign(result, { socket });
}

/** Publishes probes until the subscription stands, then forgets them. */
async function joined(subscriber: Ours, id: string, topic = ""): Promise<void> {
  await until(async () => {
    await libzmq.send(id, [text(topic), writeSeq(0n), text("probe")]);
    return subscriber.messages.length > 0;
  });
  await libzmq.send(id, [text(topic), writeSeq(0n), text("joined")]);
  const isJoined = () =>
    subscriber.messages.some(([, , body]) => new TextDecoder().decode(body) === "joined");
  await until(isJoined);
  subscriber.messages.length = 0;
}

for (const transport of ["tcp IPv4", "tcp IPv6", "ipc"]) {
  test(`SUB connects to libzmq's PUB over ${transport}, frames of all sizes, in order`, async () => {
    const address = {
      "tcp IPv4": "tcp://127.0.0.1:*",
      "tcp IPv6": "tcp://[::1]:*",
      ipc: `ipc://${folder}/events`,
    }[transport] ?? "";
    const options = transport === "tcp IPv6" ? { ipv6: true } : {};
    const endpoint = await libzmq.open("PUB", "pub", address, { bind: true, options });
    const subscriber = open("SUB", endpoint);
    await joined(subscriber, "pub");
    const sizes = [0, 1, 255, 256, 257, 65_535, 65_536, 1_000_000, 3_000_000];
    for (const size of sizes) {
      const body = new Uint8Array(size).map((_, i) => i * 7 + size);
      await libzmq.send("pub", [text("topic"), writeSeq(BigInt(size)), body]);
    }
    await libzmq.send("pub", [EMPTY, EMPTY, EMPTY], undefined);
    await until(() => subscriber.messages.length === sizes.length + 1);
    subscriber.messages.slice(0, -1).forEach(([topic, seq, body], i) => {
      assert.equal(topic, text("topic"));
      assert.is(readSeq(seq ?? EMPTY), BigInt(sizes[i] ?? -1));
      assert.is(body?.length, sizes[i]);
      assert.ok(body?.every((byte, k) => byte === ((k * 7 + (sizes[i] ?? 0)) & 255)));
    });
  });
}

test("SUB takes 20,000 messages of libzmq's PUB without losing or swapping one", async () => {
  const endpoint = await libzmq.open("PUB", "pub", "tcp://127.0.0.1:*", {
    bind: true,
    options: { sendHighWaterMark: 100_000 },
  });
  const subscriber = open("SUB", endpoint);
  await joined(subscriber, "pub");
  await libzmq.send("pub", [EMPTY, writeSeq(0n), text("payload")], 20_000);
  await until(() => subscriber.messages.length === 20_000);
  assert.ok(subscriber.messages.every(([, seq], i) => readSeq(seq ?? EMPTY) === BigInt(i)));
});

test("SUB binds and libzmq's PUB connects, as engines do by default", async () => {
  const subscriber = open("SUB", "tcp://127.0.0.1:0", { bind: true });
  const endpoint = printZmqEndpoint(await subscriber.socket.bound);
  await libzmq.open("PUB", "pub", endpoint);
  await joined(subscriber, "pub");
  await libzmq.send("pub", [EMPTY, writeSeq(3n), text("hello")]);
  await until(() => subscriber.messages.length === 1);
  assert.is(subscriber.ups, 1);
});

test("SUB gets only the topics that it asked for", async () => {
  const endpoint = await libzmq.open("PUB", "pub", "tcp://127.0.0.1:*", { bind: true });
  const subscriber = open("SUB", endpoint, { topic: "kv@" });
  await joined(subscriber, "pub", "kv@pod");
  await libzmq.send("pub", [text("other"), writeSeq(1n), text("no")]);
  await libzmq.send("pub", [text("kv@pod"), writeSeq(2n), text("yes")]);
  await until(() => subscriber.messages.length === 1);
  assert.equal(subscriber.messages[0]?.[2], text("yes"));
});

for (const [name, topics] of [["2", []], ["3", [text("topic")]]] as const) {
  test(`DEALER reads replies of ${name} frames from libzmq's ROUTER, to the end`, async () => {
    const endpoint = await libzmq.open("ROUTER", "ring", "tcp://127.0.0.1:*", { bind: true });
    const seqs = [5n, 6n, 7n];
    const end = [...topics.map(() => EMPTY), writeSeq(2n ** 64n - 1n), EMPTY];
    await libzmq.echo("ring", [
      ...seqs.map((seq) => [EMPTY, ...topics, writeSeq(seq), text(`batch ${seq}`)]),
      [EMPTY, ...end],
    ]);
    const got: [bigint, string][] = [];
    const stop = new AbortController().signal;
    const result = await requestReplay({ net, clock, endpoint }, 5n, (seq, payload) => {
      got.push([seq, new TextDecoder().decode(payload)]);
      return true;
    }, stop);
    assert.equal(result, { kind: "complete" });
    assert.equal(got, seqs.map((seq) => [seq, `batch ${seq}`]));
    await until(() => libzmq.asked.length === 1);
    assert.equal(libzmq.asked, [[EMPTY, writeSeq(5n)]]);
  });
}

test("a quiet connection stays: libzmq's heartbeats are answered, and it answers ours", async () => {
  const endpoint = await libzmq.open("PUB", "pub", "tcp://127.0.0.1:*", {
    bind: true,
    options: { heartbeatInterval: 200, heartbeatTimeout: 4_000, heartbeatTimeToLive: 5_000 },
  });
  const subscriber = open("SUB", endpoint, {
    limits: { heartbeatMs: 200, heartbeatTimeoutMs: 5_000 },
  });
  await joined(subscriber, "pub");
  // Longer than every time-out above: who does not answer is cut by the other side.
  await new Promise((resolve) => setTimeout(resolve, 6_000));
  await libzmq.send("pub", [EMPTY, writeSeq(1n), text("still here")]);
  await until(() => subscriber.messages.length === 1);
  assert.is(subscriber.ups, 1);
  assert.is(subscriber.downs, 0);
});

test("SUB comes back after the publisher's process was killed", async () => {
  const endpoint = await libzmq.open("PUB", "pub", "tcp://127.0.0.1:*", { bind: true });
  const subscriber = open("SUB", endpoint);
  await joined(subscriber, "pub");
  await libzmq.stop(true);
  await until(() => subscriber.downs > 0);
  libzmq = new Libzmq();
  await libzmq.open("PUB", "pub", endpoint, { bind: true });
  await joined(subscriber, "pub");
  assert.is(subscriber.ups, 2);
});

test("our PUB feeds libzmq's SUB, and our ROUTER answers libzmq's DEALER", async () => {
  const wanted: string[] = [];
  const publisher: ZmqSocket = new ZmqSocket({
    net,
    clock,
    random,
    log: silentLog,
    type: "PUB",
    endpoint: "tcp://127.0.0.1:0",
    bind: true,
    handlers: {
      message: () => {},
      subscription: (_isWanted, prefix, peer) => {
        wanted.push(new TextDecoder().decode(prefix));
        peer.send([text("kv"), writeSeq(9n), text("body")]);
      },
    },
  });
  ours.push(publisher);
  const endpoint = printZmqEndpoint(await publisher.bound);
  await libzmq.open("SUB", "sub", endpoint, { subscribe: "k" });
  assert.equal(await libzmq.receive("sub", 1), [[text("kv"), writeSeq(9n), text("body")]]);
  assert.equal(wanted, ["k"]);

  const router: ZmqSocket = new ZmqSocket({
    net,
    clock,
    random,
    log: silentLog,
    type: "ROUTER",
    endpoint: "tcp://127.0.0.1:0",
    bind: true,
    handlers: { message: (frames, peer) => void peer.send([...frames, text("answer")]) },
  });
  ours.push(router);
  await libzmq.open("DEALER", "dealer", printZmqEndpoint(await router.bound));
  await libzmq.send("dealer", [EMPTY, text("question")]);
  assert.equal(await libzmq.receive("dealer", 1), [[EMPTY, text("question"), text("answer")]]);
});

test.run();
