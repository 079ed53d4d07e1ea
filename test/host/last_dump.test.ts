/** A replica that goes down lets a peer finish the dump that it is reading, however long that takes. */

import { connect } from "node:net";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { startBatonProcess } from "../support/baton_process.ts";
import { FakeEngine } from "../support/fake_engine.ts";
import { runtime } from "../support/runtime.ts";
import { inScratch, until } from "../support/scratch.ts";

/** More than what sockets hold of an answer that nobody reads. */
const BLOCKS = 400_000;
/** Longer than what other exchanges of the peer listener get. */
const SLOW_MS = 6_000;

test("a dump that is being read outlasts the end of everything else", async () => {
  const engine = await FakeEngine.start({ runtime, blockSize: 4 });
  try {
    await inScratch(async (folder) => {
      const baton = await startBatonProcess(folder, {
        listen: { peer: "127.0.0.1:0" },
        services: {
          chat: {
            mount: "/v1",
            pool: {
              model: "m",
              blockSize: 4,
              workers: [{ id: "0", url: "http://127.0.0.1:9", kvEvents: engine.endpoint }],
            },
          },
        },
        shutdown: { announceMs: 0 },
      });
      await until(() => engine.subscribers === 1, "the subscription");
      for (let at = 0; at < BLOCKS * 4; at += 4000) {
        engine.store(Array.from({ length: 4000 }, (_, n) => at + n));
        engine.publish();
      }
      await until(async () => {
        const { workers } = await (await fetch(`${baton.admin}/api/v1/workers`)).json();
        return workers[0]?.lanes[0]?.blocks === BLOCKS;
      }, "the blocks");

      const socket = connect(Number(new URL(baton.peer ?? "").port), "127.0.0.1");
      let answer = "";
      const ended = new Promise<void>((resolve) => socket.on("close", () => resolve()));
      socket.setEncoding("latin1");
      socket.on("data", (text) => {
        if (answer === "") socket.pause();
        answer += text;
      });
      socket.write("GET /dump HTTP/1.1\r\nhost: peer\r\nconnection: close\r\n\r\n");
      await until(() => answer !== "", "the begin of the dump");
      baton.signal("SIGTERM");
      const isStopping = () =>
        baton.log.some((line) => line.event === "host_state" && line.to === "stopping");
      await until(isStopping, "the end of everything else");
      await new Promise((resolve) => setTimeout(resolve, SLOW_MS));
      assert.not.ok(baton.log.some((line) => line.event === "dump_served"), "it was in the middle");
      socket.resume();
      await ended;
      assert.match(answer, /^HTTP\/1\.1 200 /);
      const [end] = answer.slice(-300).match(/\{"kind":"trailer"[^]*$/) ?? [];
      assert.match(end ?? "", /^\{[^\n]*\}\n\r\n0\r\n\r\n$/, "its trailer, and the transfer's end");
      assert.is(await baton.exited, 0);
      const served = baton.log.find((line) => line.event === "dump_served");
      assert.is(served?.blocks, BLOCKS);
    });
  } finally {
    await engine.close();
  }
});

test.run();
