/** The ZMTP peer where libzmq would not go: broken, hostile, silent and slow counterparts. */
import fc from "fast-check";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { BadEndpoint, parseZmqEndpoint, printZmqEndpoint } from "../../src/kv/zmq_endpoint.ts";
import { type SocketType, ZmtpConnection, type ZmtpLimits } from "../../src/kv/zmtp.ts";
import {
  FrameCutter,
  readCommand,
  readProperties,
  writeCommand,
  writeFrame,
  writeGreeting,
  writeMessage,
  writeProperties,
  ZmtpError,
} from "../../src/kv/zmtp_frames.ts";
import type { ByteSocket, SocketHandlers } from "../../src/runtime/runtime.ts";
import { StillClock } from "../support/still_clock.ts";

const text = (value: string) => new TextEncoder().encode(value);
const join = (...parts: Uint8Array[]) => Uint8Array.from(parts.flatMap((part) => [...part]));

/** A socket whose other side is the test. */
class TestSocket implements ByteSocket {
  readonly remoteAddress = "127.0.0.1";
  readonly remotePort = 1;
  readonly localPort = 2;
  readonly written: Uint8Array[] = [];
  pendingBytes = 0;
  isDestroyed = false;
  handlers: SocketHandlers | undefined;

  handle(handlers: SocketHandlers): void {
    this.handlers = handlers;
  }
  write(data: Uint8Array | string): boolean {
    if (typeof data !== "string") this.written.push(data);
    return true;
  }
  writeAround(): boolean {
    throw new Error("ZMTP does not write around");
  }
  pause(): void {}
  resume(): void {}
  end(): void {}
  destroy(): void {
    this.isDestroyed = true;
  }
  /** All that was written, as frames after the greeting. */
  frames(): { flags: number; body: Uint8Array }[] {
    const frames: { flags: number; body: Uint8Array }[] = [];
    const cutter = new FrameCutter(1e9, (flags, body) => void frames.push({ flags, body }));
    cutter.push(join(...this.written).subarray(64));
    return frames;
  }
}

interface Session {
  readonly clock: StillClock;
  readonly socket: TestSocket;
  readonly connection: ZmtpConnection;
  readonly messages: Uint8Array[][];
  readonly subscriptions: [boolean, string][];
  readonly seen: { isReady: boolean; closed: number; error: Error | undefined };
  say(...parts: Uint8Array[]): void;
}

function session(type: SocketType = "SUB", limits: Partial<ZmtpLimits> = {}): Session {
  const clock = new StillClock();
  const socket = new TestSocket();
  const messages: Uint8Array[][] = [];
  const subscriptions: [boolean, string][] = [];
  const seen: Session["seen"] = { isReady: false, closed: 0, error: undefined };
  const connection = new ZmtpConnection(socket, { clock, type, limits }, {
    ready: () => void (seen.isReady = true),
    message: (frames) => void messages.push(frames),
    subscription: (isWanted, prefix) => {
      subscriptions.push([isWanted, new TextDecoder().decode(prefix)]);
    },
    closed: (error) => {
      seen.closed += 1;
      seen.error = error;
    },
  });
  const say = (...parts: Uint8Array[]) => parts.forEach((part) => socket.handlers?.data(part));
  return { clock, socket, connection, messages, subscriptions, seen, say };
}

function greeting(change: (bytes: Uint8Array) => void = () => {}): Uint8Array {
  const bytes = writeGreeting();
  change(bytes);
  return bytes;
}

const ready = (type: string) => writeCommand("READY", writeProperties({ "Socket-Type": type }));

function established(type: SocketType = "SUB", limits: Partial<ZmtpLimits> = {}): Session {
  const made = session(type, limits);
  const partner = { SUB: "PUB", PUB: "SUB", DEALER: "ROUTER", ROUTER: "DEALER" }[type];
  made.say(greeting(), ready(partner));
  assert.ok(made.seen.isReady);
  return made;
}

test("frames come out whole, wherever the stream is cut", () => {
  const frame = fc.tuple(fc.constantFrom(0, 1, 4), fc.uint8Array({ maxLength: 600 }));
  fc.assert(
    fc.property(
      fc.array(frame, { maxLength: 8 }),
      fc.array(fc.integer({ min: 1, max: 300 }), { minLength: 1 }),
      (frames, cuts) => {
        const stream = join(...frames.map(([flags, body]) => writeFrame(flags, body)));
        const out: [number, Uint8Array][] = [];
        const cutter = new FrameCutter(10_000, (flags, body) => void out.push([flags, body]));
        for (let at = 0, i = 0; at < stream.length; i++) {
          const size = cuts[i % cuts.length] ?? 1;
          cutter.push(stream.slice(at, at + size));
          at += size;
        }
        assert.equal(out, frames);
      },
    ),
    { seed: 31, numRuns: 300 },
  );
});

test("a frame keeps its bytes although the chunk that it came in is used again", () => {
  const out: Uint8Array[] = [];
  const cutter = new FrameCutter(100, (_flags, body) => void out.push(body));
  const chunk = writeFrame(0, text("hello"));
  cutter.push(chunk);
  chunk.fill(0);
  assert.equal(out, [text("hello")]);
});

test("a length that promises too much is refused before memory is taken for it", () => {
  const cutter = new FrameCutter(1000, () => {});
  const head = Uint8Array.of(2, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff);
  assert.throws(() => cutter.push(head), (error: unknown) => error instanceof ZmtpError);
});

test("commands and properties round-trip; cut ones are refused", () => {
  const body = writeProperties({ "Socket-Type": "SUB", Identity: "" });
  assert.equal([...readProperties(body)], [["socket-type", "SUB"], ["identity", ""]]);
  for (let end = 1; end < body.length; end++) {
    const isWhole = end === writeProperties({ "Socket-Type": "SUB" }).length;
    if (isWhole) continue;
    assert.throws(() => readProperties(body.subarray(0, end)));
  }
  assert.throws(() => readCommand(Uint8Array.of()), (error: unknown) => error instanceof ZmtpError);
  assert.throws(() => readCommand(Uint8Array.of(5, 65)));
});

test("noise never raises anything but the end of the connection", () => {
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 200 }), fc.boolean(), (noise, isGreeted) => {
      const made = isGreeted ? established() : session();
      made.say(noise);
      if (made.seen.closed > 0) assert.ok(made.seen.error instanceof ZmtpError);
    }),
    { seed: 32, numRuns: 2000 },
  );
});

test("who is not a ZMTP peer is left at its first byte", () => {
  const made = session();
  made.say(text("HTTP/1.1 400 Bad Request\r\n"));
  assert.is(made.seen.error?.message, "not a ZMTP peer");
  assert.ok(made.socket.isDestroyed);
});

test("old versions, other mechanisms and wrong socket types are refused by name", () => {
  const refusal = (...parts: Uint8Array[]) => {
    const made = session("SUB");
    made.say(...parts);
    return made.seen.error?.message ?? "";
  };
  assert.match(refusal(greeting((bytes) => void (bytes[10] = 2))), /version 2 is too old/);
  const curve = greeting((bytes) => bytes.set(text("CURVE"), 12));
  assert.match(refusal(curve), /only NULL/);
  assert.match(refusal(greeting(), ready("REP")), /SUB socket cannot talk to REP/);
  const error = writeCommand("ERROR", join(Uint8Array.of(4), text("nope")));
  assert.match(refusal(greeting(), error), /refused: nope/);
  assert.match(refusal(greeting(), writeFrame(0, text("early"))), /before the handshake/);
  assert.match(refusal(greeting(), ready("PUB"), ready("PUB")), /second READY/);
  assert.match(refusal(greeting(), ready("PUB"), Uint8Array.of(0x40, 0)), /reserved flags/);
});

test("a greeting may come byte by byte", () => {
  const made = session();
  const bytes = join(greeting(), ready("PUB"), writeMessage([text("a"), text("b")]));
  for (const byte of bytes) made.say(Uint8Array.of(byte));
  assert.equal(made.messages, [[text("a"), text("b")]]);
});

test("a peer that says nothing is given up after the handshake's time", async () => {
  const made = session("SUB", { handshakeTimeoutMs: 1000 });
  await made.clock.advance(999);
  assert.is(made.seen.closed, 0);
  await made.clock.advance(1);
  assert.is(made.seen.error?.message, "no handshake in time");
});

test("a peer that falls silent is given up after the heartbeat's time, and closed once", async () => {
  const made = established("SUB", { heartbeatMs: 100, heartbeatTimeoutMs: 300 });
  await made.clock.advance(350);
  assert.is(made.seen.closed, 0);
  const pings = made.socket.frames().filter(({ body }) =>
    body[0] === 4 && readCommand(body).name === "PING"
  );
  assert.is(pings.length, 3);
  assert.equal([...readCommand(pings[0]?.body ?? text("")).body], [0, 3]);
  await made.clock.advance(100);
  assert.match(made.seen.error?.message ?? "", /nothing heard/);
  made.connection.close();
  made.socket.handlers?.close();
  assert.is(made.seen.closed, 1);
});

test("whoever is heard in time stays", async () => {
  const made = established("SUB", { heartbeatMs: 100, heartbeatTimeoutMs: 300 });
  for (let i = 0; i < 20; i++) {
    await made.clock.advance(250);
    made.say(writeCommand("PONG", new Uint8Array(0)));
  }
  assert.is(made.seen.closed, 0);
});

test("a PING is answered with its context, and its time to live is kept", async () => {
  const made = established("SUB", { heartbeatMs: 100, heartbeatTimeoutMs: 10_000 });
  made.say(writeCommand("PING", join(Uint8Array.of(0, 2), text("context"))));
  const last = made.socket.frames().at(-1);
  assert.equal(readCommand(last?.body ?? text("")), { name: "PONG", body: text("context") });
  await made.clock.advance(301);
  assert.match(made.seen.error?.message ?? "", /nothing heard/);
});

test("a peer of version 3.0 gets subscriptions as messages and no PING", async () => {
  const made = session("SUB", { heartbeatMs: 100, heartbeatTimeoutMs: 200 });
  made.say(greeting((bytes) => void (bytes[11] = 0)), ready("PUB"));
  made.connection.subscribe(text("kv"));
  const last = made.socket.frames().at(-1);
  assert.is(last?.flags, 0);
  assert.equal(last?.body, Uint8Array.of(1, ...text("kv")));
  await made.clock.advance(5_000);
  assert.is(made.seen.closed, 0);
});

test("a publisher hears subscriptions in both forms", () => {
  const made = established("PUB");
  made.say(
    writeCommand("SUBSCRIBE", text("a")),
    writeFrame(0, Uint8Array.of(1, ...text("b"))),
    writeCommand("CANCEL", text("a")),
    writeFrame(0, Uint8Array.of(0, ...text("b"))),
    writeFrame(0, text("x")),
  );
  assert.equal(made.subscriptions, [[true, "a"], [true, "b"], [false, "a"], [false, "b"]]);
  assert.is(made.messages.length, 0);
});

test("messages of too many frames or bytes end the connection", () => {
  const many = established("SUB", { maxFrames: 4 });
  many.say(writeMessage([1, 2, 3, 4, 5].map((byte) => Uint8Array.of(byte))));
  assert.match(many.seen.error?.message ?? "", /more than 4 frames/);
  const large = established("SUB", { maxFrameBytes: 100 });
  large.say(writeMessage([new Uint8Array(60), new Uint8Array(60)]));
  assert.match(large.seen.error?.message ?? "", /over 100 bytes/);
  const frame = established("SUB", { maxFrameBytes: 100 });
  frame.say(writeFrame(0, new Uint8Array(101)));
  assert.match(frame.seen.error?.message ?? "", /over the limit of 100/);
});

test("nothing is queued for a peer that does not read", () => {
  const made = established("DEALER", { maxUnsentBytes: 10 });
  assert.ok(made.connection.send([text("fits")]));
  made.socket.pendingBytes = 11;
  assert.not(made.connection.send([text("does not")]));
  made.say(writeCommand("PING", Uint8Array.of(0, 0)));
  assert.match(made.seen.error?.message ?? "", /does not read/);
});

test("nothing is sent before the handshake and after the end", () => {
  const made = session("DEALER");
  assert.not(made.connection.send([text("early")]));
  made.say(greeting(), ready("ROUTER"));
  assert.ok(made.connection.send([text("now")]));
  made.connection.close();
  assert.not(made.connection.send([text("late")]));
  assert.is(made.seen.error, undefined);
});

test("endpoints: what is taken, and what is refused with a reason", () => {
  const same = ["tcp://127.0.0.1:5557", "tcp://[::1]:5557", "tcp://host.name:1", "ipc:///tmp/x"];
  for (const endpoint of same) {
    assert.is(printZmqEndpoint(parseZmqEndpoint(endpoint).address), endpoint);
  }
  assert.ok(parseZmqEndpoint("tcp://*:5557").isWildcard);
  const bad = [
    "127.0.0.1:5557",
    "tcp://",
    "tcp://host",
    "tcp://::1:5557",
    "tcp://[::1:5557",
    "tcp://host:0",
    "tcp://host:65536",
    "tcp://host:99999999",
    "udp://host:1",
    "inproc://name",
    "ipc://@name",
    "tcp://ho st:1",
    "",
  ];
  for (const endpoint of bad) {
    assert.throws(
      () => parseZmqEndpoint(endpoint),
      (error: unknown) => error instanceof BadEndpoint,
      endpoint,
    );
  }
});

test.run();
