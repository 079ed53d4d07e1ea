/** A stream that a child could not finish within the host's budget: it is told in every place. */

import { writeFile } from "node:fs/promises";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { basePort, runVerb, startBatonProcess } from "../support/baton_process.ts";
import { NODE } from "../support/builds.ts";
import { inScratch, until } from "../support/scratch.ts";

/** Streams for ever, and ends at once when it is told to. */
const PROGRAM = `#!${NODE}
const http = require("node:http");
http.createServer((request, response) => {
  if (request.url === "/ready" || request.url === "/drain") return response.end();
  if (request.url === "/drain/status") return response.end('{"inflight":0}');
  setInterval(() => response.write("more\\n"), 50);
}).listen(Number(process.argv[2]), "127.0.0.1");
`;

test("what ends because its child is stopped is cut: the report, the last line and the exit code say so", async () => {
  await inScratch(async (folder) => {
    await writeFile(`${folder}/program`, PROGRAM, { mode: 0o755 });
    const baton = await startBatonProcess(folder, {
      services: {
        app: {
          mount: "/app",
          versions: {
            oracle: `file:${folder}/versions.json`,
            binaryName: "program",
            command: ["{binary}", "{port}"],
            printFlags: "never",
            basePort: basePort(),
            killGraceMs: 18_000,
            childGraceMs: 18_000,
          },
        },
      },
      // Two seconds for the stream; the rest belongs to the children's own ends.
      shutdown: { announceMs: 0, budgetMs: 20_000 },
    });
    const published = await runVerb([
      ...["publish", "v1", `${folder}/program`, "--binary-name", "program"],
      ...["--oracle", `${folder}/versions.json`],
    ]);
    assert.is(published.code, 0, published.stderr);
    await until(async () => (await fetch(`${baton.traffic}/readyz`)).ok, "the build");
    const stream = await fetch(`${baton.traffic}/app/v1/`);
    const reader = stream.body?.getReader();
    await reader?.read();
    baton.signal("SIGTERM");
    let broke = false;
    const read = async (): Promise<void> => {
      while ((await reader?.read())?.done === false);
    };
    await read().catch(() => (broke = true));
    assert.ok(broke, "a stream that broke off does not look whole");
    assert.is(await baton.exited, 3);
    const report = baton.log.find(({ event }) => event === "drain_report");
    const stopped = baton.log.find(({ event }) => event === "host_stopped");
    assert.equal([report?.cut, stopped?.cut, stopped?.forced], [1, 1, false]);
  });
});

test.run();
