/** Baton supervises Baton: the lifecycle that it asks of its children is the one it has itself. */

import { test } from "uvu";
import * as assert from "uvu/assert";
import http from "node:http";
import { writeFile } from "node:fs/promises";
import { basePort, batonCommand, runVerb, startBatonProcess } from "../support/baton_process.ts";
import { inScratch, until } from "../support/scratch.ts";

test("a Baton is rolled by a Baton, and a request that it holds is not cut", async () => {
  const held: http.ServerResponse[] = [];
  const upstream = http.createServer((request, response) => {
    if (request.url === "/slow") held.push(response);
    else response.end(`up ${request.url}`);
  });
  await new Promise<void>((resolve) => upstream.listen(0, "127.0.0.1", () => resolve()));
  const { port } = upstream.address() as { port: number };

  try {
    await roll(port, held);
  } finally {
    upstream.closeAllConnections();
    upstream.close();
  }
});

async function roll(port: number, held: http.ServerResponse[]): Promise<void> {
  await inScratch(async (folder) => {
    await writeFile(
      `${folder}/inner.json`,
      JSON.stringify({
        services: { plain: { mount: "/", upstream: `http://127.0.0.1:${port}` } },
        shutdown: { announceMs: 0 },
        traffic: { accessLog: false },
      }),
    );
    const { command, args } = batonCommand([]);
    const build = async (id: string): Promise<string> => {
      const script = `${folder}/${id}`;
      const words = [command, ...args].map((word) => `'${word}'`).join(" ");
      await writeFile(
        script,
        `#!/bin/sh\ncase "$1" in\n  --print-binary-version) echo ${id}; exit 0;;\n` +
          `  --print-*) echo "unknown flag: $1" >&2; exit 2;;\nesac\nexec ${words} "$@"\n`,
      );
      return script;
    };
    const outer = await startBatonProcess(folder, {
      services: {
        inner: {
          mount: "/inner",
          versions: {
            oracle: `file:${folder}/versions.json`,
            binaryName: "baton",
            command: [
              ...["{binary}", "serve", "--config", `${folder}/inner.json`],
              ...["--port", "{port}", "--admin-port", "{adminPort}", "--data-dir", "{dataDir}"],
            ],
            basePort: basePort(),
            bakeMs: 100,
            drainPollMs: 20,
            killGraceMs: 10_000,
          },
        },
      },
      shutdown: { announceMs: 0, budgetMs: 60_000 },
    });
    const publish = async (id: string): Promise<void> => {
      const file = await build(id);
      const done = await runVerb(["publish", "v1", file, "--config", `${folder}/baton.json`]);
      assert.is(done.code, 0, done.stderr);
    };
    const generations = async () => {
      const { versions } = await (await fetch(`${outer.admin}/api/v1/versions`)).json();
      return (versions[0]?.generations ?? []) as Record<string, unknown>[];
    };
    try {
      await publish("one");
      await until(async () => (await fetch(`${outer.admin}/ready`)).ok, "the inner Baton");
      assert.is(await (await fetch(`${outer.traffic}/inner/v1/a?b`)).text(), "up /a?b");
      assert.ok((await generations())[0]?.adminPort, "it is asked on its admin listener");

      const slow = fetch(`${outer.traffic}/inner/v1/slow`).then((response) => response.text());
      await until(() => held.length === 1, "the request that is held");
      await publish("two");
      await until(
        async () => (await generations()).some((one) => one.buildId === "two" && one.ready),
        "the second build",
      );
      assert.is(await (await fetch(`${outer.traffic}/inner/v1/b`)).text(), "up /b");
      assert.ok((await generations()).some((one) => one.buildId === "one"), "the first still runs");
      held[0]?.end("not cut");
      assert.is(await slow, "not cut");
      await until(
        async () => (await generations()).every((one) => one.buildId === "two"),
        "the end of the first",
      );
      const report = () => outer.log.find((line) => line.event === "drain_report");
      await until(() => report() !== undefined, "the report of the drain");
      assert.is(report()?.cut, 0);
    } catch (error) {
      const lines = outer.log.filter((line) => line.event !== "request").slice(-30);
      console.error(lines.map((line) => JSON.stringify(line)).join("\n"));
      const args = ["logs", "v1", "--lines", "40", "--config", `${folder}/baton.json`];
      console.error((await runVerb(args)).stdout);
      throw error;
    } finally {
      assert.is(await outer.stop(), 0);
    }
  });
}

test.run();
