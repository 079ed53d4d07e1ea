/** A side that speaks first: what it says before anybody listens must not get lost. */
import { once } from "node:events";
import { createServer } from "node:net";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { runtime } from "../support/runtime.ts";
import { until } from "../support/until.ts";

test("bytes that come with the connection reach whoever handles it", async () => {
  const server = createServer((socket) => {
    socket.on("error", () => {});
    socket.write("hello ");
    setTimeout(() => socket.write("world"), 1);
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  const address = server.address();
  const port = address !== null && typeof address === "object" ? address.port : 0;
  try {
    for (let round = 0; round < 50; round++) {
      const socket = await runtime.net.connect({ kind: "tcp", host: "127.0.0.1", port }, {
        timeoutMs: 10_000,
      });
      let heard = "";
      socket.handle({
        data: (chunk) => void (heard += new TextDecoder().decode(chunk)),
        end: () => {},
        drain: () => {},
        close: () => {},
      });
      assert.is(heard, "", "nothing may come before handle returns");
      await until(() => heard.length >= "hello world".length);
      assert.is(heard, "hello world");
      socket.destroy();
    }
  } finally {
    server.close();
  }
});

test.run();
