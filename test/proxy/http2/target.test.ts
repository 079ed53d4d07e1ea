/** Targets that speak HTTP/2 frame by frame: what Baton makes of answers that are well-formed and not. */

import { Buffer } from "node:buffer";
import { type AddressInfo, createServer, type Server, type Socket } from "node:net";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { createForward } from "../../../src/proxy/forward.ts";
import { runtime } from "../../support/runtime.ts";
import {
  DATA,
  END_HEADERS,
  END_STREAM,
  type Frame,
  frame,
  GOAWAY,
  HEADERS,
  literals,
  PING,
  PREFACE,
  RST_STREAM,
  SETTINGS,
} from "../h2_wire.ts";
import { ask, bodyOf, Client, eventually, get, type Proxy, startProxy, statusOf } from "../wire.ts";

const WINDOW_UPDATE = 8;
const NONE = Buffer.alloc(0);

function u32(...values: number[]): Buffer {
  const bytes = Buffer.alloc(values.length * 4);
  values.forEach((value, at) => bytes.writeUInt32BE(value, at * 4));
  return bytes;
}

/** One connection that Baton made. */
class Side {
  readonly frames: Frame[] = [];
  closed = false;
  readonly socket: Socket;
  #rest: Buffer = NONE;
  #hasPreface = false;

  constructor(socket: Socket, taken: (side: Side, frame: Frame) => void) {
    this.socket = socket;
    socket.on("error", () => {});
    socket.on("close", () => (this.closed = true));
    socket.on("data", (chunk: Uint8Array) => {
      this.#rest = Buffer.concat([this.#rest, chunk]);
      if (!this.#hasPreface) {
        if (this.#rest.length < PREFACE.length) return;
        assert.ok(this.#rest.subarray(0, PREFACE.length).equals(PREFACE));
        this.#hasPreface = true;
        this.#rest = this.#rest.subarray(PREFACE.length);
      }
      while (this.#rest.length >= 9) {
        const length = this.#rest.readUIntBE(0, 3);
        if (this.#rest.length < 9 + length) return;
        const one = {
          type: this.#rest.readUInt8(3),
          flags: this.#rest.readUInt8(4),
          stream: this.#rest.readUInt32BE(5),
          payload: this.#rest.subarray(9, 9 + length),
        };
        this.#rest = this.#rest.subarray(9 + length);
        this.frames.push(one);
        taken(this, one);
      }
    });
  }

  send(...parts: Uint8Array[]): this {
    this.socket.write(Buffer.concat(parts));
    return this;
  }

  /** A whole answer, or its beginning. */
  answer(stream: number, status: string, body?: string, more: [string, string][] = []): this {
    const fields: [string, string][] = [[":status", status], ...more];
    const flags = END_HEADERS | (body === undefined ? END_STREAM : 0);
    this.send(frame(HEADERS, flags, stream, literals(fields)));
    if (body !== undefined) this.send(frame(DATA, END_STREAM, stream, Buffer.from(body)));
    return this;
  }
}

interface Stage {
  readonly proxy: Proxy;
  readonly sides: Side[];
  /** Called with each request; answers "ok" unless it is replaced. */
  onRequest: (side: Side, stream: number) => void;
}

async function onStage(
  body: (stage: Stage) => Promise<void>,
  settings: Buffer = frame(SETTINGS, 0, 0, NONE),
  idleConnectionMs = 4000,
): Promise<void> {
  const sides: Side[] = [];
  const server: Server = createServer({ noDelay: true }, (socket) => {
    const side = new Side(socket, (_side, one) => {
      if (one.type === HEADERS) stage.onRequest(side, one.stream);
    });
    sides.push(side);
    side.send(settings);
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  const address = { kind: "tcp", host: "127.0.0.1", port } as const;
  const proxy = await startProxy(address, {
    protocol: "h2c",
    forward: createForward({ runtime, timeouts: { connectMs: 1000 }, idleConnectionMs }),
  });
  const stage: Stage = {
    proxy,
    sides,
    onRequest: (side, stream) => void side.answer(stream, "200", "ok"),
  };
  try {
    await body(stage);
    await eventually("all leases are released", () => proxy.target.leases === 0);
  } finally {
    await proxy.close();
    for (const { socket } of sides) socket.destroy();
    server.close();
  }
}

const POST = get("/").replace("GET", "POST");

test("the connection begins as RFC 9113 section 3.4 has it, and is shared", async () => {
  await onStage(async ({ proxy, sides }) => {
    const answers = await Promise.all([1, 2, 3].map((at) => ask(proxy, get(`/${at}`))));
    assert.equal(answers.map(statusOf), [200, 200, 200]);
    assert.is(sides.length, 1);
    const [first, second] = sides[0]?.frames ?? [];
    assert.equal([first?.type, first?.flags], [SETTINGS, 0]);
    // SETTINGS_ENABLE_PUSH is 0.
    assert.ok(Buffer.from(first?.payload ?? []).includes(Buffer.from([0, 2, 0, 0, 0, 0])));
    assert.is(second?.type, WINDOW_UPDATE);
    const streams = sides[0]?.frames.filter(({ type }) => type === HEADERS);
    assert.equal(streams?.map(({ stream }) => stream), [1, 3, 5]);
    await eventually(
      "theirs are confirmed",
      () => sides[0]?.frames.some(({ type, flags }) => type === SETTINGS && flags === 1),
    );
  });
});

test("section 6.8: streams above the last of a GOAWAY were not processed, and go elsewhere", async () => {
  await onStage(async (stage) => {
    let count = 0;
    stage.onRequest = (side, stream) => {
      count += 1;
      if (count < 3) return;
      stage.onRequest = (other, id) => void other.answer(id, "200", "second");
      side.send(frame(GOAWAY, 0, 0, u32(3, 0)));
      // Those that were taken are answered on the old connection.
      side.answer(1, "200", "first").answer(3, "200", "first");
      assert.is(stream, 5);
    };
    const asked = [1, 2].map(() => ask(stage.proxy, get("/")));
    await eventually("two are there", () => count === 2);
    // A POST is no exception: nothing was done with it.
    const third = ask(stage.proxy, POST);
    const answers = await Promise.all([...asked, third]);
    assert.equal(answers.map(statusOf), [200, 200, 200]);
    assert.match(answers[0] ?? "", /first/);
    assert.match(answers[2] ?? "", /second/);
    assert.is(stage.sides.length, 2);
    await eventually("the old connection ends", () => stage.sides[0]?.closed === true);
  });
});

test("a GOAWAY that takes all streams lets them end, and new requests have a new connection", async () => {
  await onStage(async (stage) => {
    let held: (() => void) | undefined;
    stage.onRequest = (side, stream) => {
      held = () => void side.answer(stream, "200", "late");
      side.send(frame(GOAWAY, 0, 0, u32(2 ** 31 - 1, 0)));
      stage.onRequest = (other, id) => void other.answer(id, "200", "new");
    };
    const slow = ask(stage.proxy, get("/slow"));
    await eventually("it is there", () => held !== undefined);
    let answer = "";
    await eventually("a new connection", () => {
      if (answer === "") {
        answer = "asked";
        void ask(stage.proxy, get("/")).then((text) => (answer = text));
      }
      return answer.startsWith("HTTP");
    });
    assert.match(answer, /new/);
    held?.();
    assert.match(await slow, /late/);
    await eventually("the old one is closed", () => stage.sides[0]?.closed === true);
  });
});

test("answers that are malformed are a 502, and the connection goes on", async () => {
  const wrong: [string, [string, string][], string?][] = [
    ["no status", [["x-a", "1"]]],
    ["a status that is none", [[":status", "20"]]],
    ["two statuses", [[":status", "200"], [":status", "200"]]],
    ["a status behind a field", [["x-a", "1"], [":status", "200"]]],
    ["a pseudo field of requests", [[":status", "200"], [":path", "/"]]],
    ["101", [[":status", "101"]]],
    ["an interim answer that ends", [[":status", "103"]]],
    ["connection", [[":status", "200"], ["connection", "close"]]],
    ["capitals", [[":status", "200"], ["X-A", "1"]]],
    ["a line end", [[":status", "200"], ["x-a", "1\r\nx-b: 2"]]],
    ["a length without a body", [[":status", "200"], ["content-length", "3"]]],
    ["two lengths", [[":status", "200"], ["content-length", "0"], ["content-length", "0"]]],
  ];
  await onStage(async (stage) => {
    for (const [what, fields] of wrong) {
      stage.onRequest = (side, stream) =>
        void side.send(frame(HEADERS, END_HEADERS | END_STREAM, stream, literals(fields)));
      const answer = await ask(stage.proxy, POST);
      assert.is(statusOf(answer), 502, what);
      const reset = stage.sides[0]?.frames.findLast(({ type }) => type === RST_STREAM);
      assert.is(reset?.payload[3], 1, what);
    }
    stage.onRequest = (side, stream) => void side.send(frame(DATA, 0, stream, Buffer.from("x")));
    assert.is(statusOf(await ask(stage.proxy, POST)), 502, "data before the head");
    stage.onRequest = (side, stream) => void side.answer(stream, "200", "fine");
    assert.match(await ask(stage.proxy, POST), /fine/);
    assert.is(stage.sides.length, 1);
  });
});

test("a request that was answered, however badly, or ended by the target, is not sent again", async () => {
  const ends: [string, (stream: number) => Buffer][] = [
    ["upstream_bad_response", (stream) => frame(HEADERS, 5, stream, literals([["x-a", "1"]]))],
    ["upstream_bad_response", (stream) => frame(DATA, 0, stream, Buffer.from("x"))],
    ["upstream_reset", (stream) => frame(RST_STREAM, 0, stream, u32(8))],
    ["upstream_reset", (stream) => frame(RST_STREAM, 0, stream, u32(2))],
    ["upstream_bad_response", () => frame(DATA, 0, 99, NONE)],
  ];
  await onStage(async (stage) => {
    for (const [reason, end] of ends) {
      const before = stage.proxy.outcomes.length;
      // A connection that was used before might have been stale.
      stage.onRequest = (side, stream) => void side.answer(stream, "200", "ok");
      assert.is(statusOf(await ask(stage.proxy, get("/"))), 200);
      let count = 0;
      stage.onRequest = (side, stream) => {
        count += 1;
        side.send(end(stream));
      };
      assert.match(await ask(stage.proxy, get("/")), /^HTTP\/1\.1 502 /m);
      assert.is(count, 1);
      assert.is(stage.proxy.outcomes[before + 1]?.reason, reason);
    }
  });
});

test("a target that takes no streams is a 502, and no connection to it stays", async () => {
  const none = frame(SETTINGS, 0, 0, Buffer.concat([Buffer.from([0, 3]), u32(0)]));
  const away = Buffer.concat([frame(SETTINGS, 0, 0, NONE), frame(GOAWAY, 0, 0, u32(0, 0))]);
  for (const settings of [none, away]) {
    await onStage(async ({ proxy, sides }) => {
      assert.is(statusOf(await ask(proxy, get("/"))), 502);
      assert.ok(sides.length <= 3);
      await eventually("all are closed", () => sides.every(({ closed }) => closed));
    }, settings);
  }
});

test("a connection whose request was given up before it was made is not kept for ever", async () => {
  await onStage(
    async ({ proxy, sides }) => {
      const client = await Client.to(proxy.port);
      client.send(get("/"));
      const side = await eventually("it connects", () => sides[0]);
      client.destroy();
      await eventually("the client has left", () => proxy.outcomes.length === 1);
      side?.send(frame(SETTINGS, 0, 0, NONE));
      await eventually("it is closed", () => side?.closed);
      assert.is(sides.length, 1);
    },
    NONE,
    100,
  );
});

test("a body that is not as long as it says breaks the answer", async () => {
  await onStage(async (stage) => {
    const client = await Client.to(stage.proxy.port);
    stage.onRequest = (side, stream) =>
      void side.answer(stream, "200", "short", [["content-length", "10"]]);
    client.send(get("/"));
    assert.not.match(await client.untilClosed(), /"error"|0\r\n\r\n$/);
    assert.is(stage.proxy.outcomes[0]?.result, "upstream_failed");
    const long = await Client.to(stage.proxy.port);
    stage.onRequest = (side, stream) =>
      void side.answer(stream, "200", "longer", [["content-length", "2"]]);
    long.send(get("/"));
    assert.is(bodyOf(await long.untilClosed()).length <= 2, true);
    assert.is(stage.proxy.outcomes[1]?.result, "upstream_failed");
  });
});

test("frames that end a connection end it with a 502, and the next request has another", async () => {
  const wrong: [string, (stream: number) => Buffer][] = [
    ["too large", (stream) => frame(DATA, 0, stream, Buffer.alloc(16_385))],
    ["PUSH_PROMISE", (stream) => frame(5, 4, stream, Buffer.concat([u32(2), NONE]))],
    ["a stream of the server's own", () => frame(HEADERS, 5, 2, literals([[":status", "200"]]))],
    ["a stream that is idle", () => frame(HEADERS, 5, 99, literals([[":status", "200"]]))],
    ["a block that is none", (stream) => frame(HEADERS, 5, stream, Buffer.from([0x80]))],
    ["interim answers without end", (stream) =>
      Buffer.concat(
        Array.from(
          { length: 2000 },
          () => frame(HEADERS, 4, stream, literals([[":status", "103"]])),
        ),
      )],
    ["push allowed", () => frame(SETTINGS, 0, 0, Buffer.from([0, 2, 0, 0, 0, 1]))],
  ];
  await onStage(async (stage) => {
    for (const [what, bytes] of wrong) {
      stage.onRequest = (side, stream) => void side.send(bytes(stream));
      assert.match(await ask(stage.proxy, POST), /^HTTP\/1\.1 502 /m, what);
      const side = stage.sides.at(-1);
      await eventually(`GOAWAY: ${what}`, () => side?.frames.some(({ type }) => type === GOAWAY));
    }
    stage.onRequest = (side, stream) => void side.answer(stream, "200", "fine");
    assert.match(await ask(stage.proxy, POST), /fine/);
    assert.is(stage.sides.length, wrong.length + 1);
  });
});

test("a header section over the limit is a 502, and the connection goes on", async () => {
  await onStage(async (stage) => {
    stage.onRequest = (side, stream) => {
      const field = literals([["x-large", "y".repeat(120)]]);
      const block = Buffer.concat([
        literals([[":status", "200"]]),
        ...Array.from({ length: 600 }, () => field),
      ]);
      for (let at = 0; at < block.length; at += 16_000) {
        const isLast = at + 16_000 >= block.length;
        const flags = (isLast ? END_HEADERS : 0) | (at === 0 ? END_STREAM : 0);
        side.send(frame(at === 0 ? HEADERS : 9, flags, stream, block.subarray(at, at + 16_000)));
      }
    };
    assert.is(statusOf(await ask(stage.proxy, POST)), 502);
    stage.onRequest = (side, stream) => void side.answer(stream, "200", "fine");
    assert.match(await ask(stage.proxy, POST), /fine/);
    assert.is(stage.sides.length, 1);
  });
});

test("a target whose number of streams changes is asked no more at once", async () => {
  const streams = (most: number): Buffer =>
    frame(SETTINGS, 0, 0, Buffer.concat([Buffer.from([0, 3]), u32(most)]));
  await onStage(async (stage) => {
    const held: (() => void)[] = [];
    stage.onRequest = (side, stream) => held.push(() => void side.answer(stream, "200", "ok"));
    const first = [1, 2].map(() => ask(stage.proxy, get("/")));
    await eventually("two at once", () => held.length === 2);
    stage.sides[0]?.send(streams(1), frame(PING, 0, 0, Buffer.alloc(8)));
    await eventually("it is known", () => stage.sides[0]?.frames.some(({ type }) => type === PING));
    for (const answer of held.splice(0)) answer();
    assert.equal((await Promise.all(first)).map(statusOf), [200, 200]);
    const second = [1, 2, 3].map(() => ask(stage.proxy, get("/")));
    await eventually("each has a connection", () => held.length === 3);
    const used = stage.sides.map(({ frames }) =>
      frames.filter(({ type }) => type === HEADERS).length
    );
    assert.equal(used[0], 3);
    for (const answer of held.splice(0)) answer();
    assert.equal((await Promise.all(second)).map(statusOf), [200, 200, 200]);
  }, streams(2));
});

test("what does not speak HTTP/2 is no target: 502", async () => {
  await onStage(async (stage) => {
    const answer = await ask(stage.proxy, get("/"));
    assert.is(statusOf(answer), 502);
    assert.match(answer, /upstream_connect_failed/);
  }, Buffer.from("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"));
});

test("a target that never tells its settings is too slow: 504", async () => {
  await onStage(async (stage) => {
    const answer = await ask(stage.proxy, get("/"));
    assert.is(statusOf(answer), 504);
    await eventually("given up", () => stage.sides[0]?.closed === true);
  }, NONE);
});

test("an answer before the request has ended is relayed, and the rest is not sent", async () => {
  await onStage(async (stage) => {
    stage.onRequest = (side, stream) => {
      side.answer(stream, "413", "no");
      side.send(frame(RST_STREAM, 0, stream, u32(0)));
    };
    const client = await Client.to(stage.proxy.port);
    client.send("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 1000000\r\n\r\nbegun");
    assert.is(statusOf(await client.until("no")), 413);
    client.destroy();
    await eventually("outcome", () => stage.proxy.outcomes.length === 1);
    assert.is(stage.proxy.outcomes[0]?.result, "complete");
  });
});

test.run();
