/** docs/lifecycle.md: a foreign program that is rolled by Baton keeps its cache, as the page says. */

import { test } from "uvu";
import * as assert from "uvu/assert";
import { readFileSync } from "node:fs";
import { writeFile } from "node:fs/promises";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { basePort, runVerb, startBatonProcess } from "../support/baton_process.ts";
import { inScratch, until } from "../support/scratch.ts";

const root = fileURLToPath(new URL("../../", import.meta.url));
const example = `${root}docs/examples/warm_start.ts`;
const page = readFileSync(`${root}docs/lifecycle.md`, "utf8");

test("the page shows the example and its configuration as they are", () => {
  const blocks = [...page.matchAll(/```ts\n([\s\S]*?)```/g)].map(([, text]) => text);
  assert.ok(blocks.includes(readFileSync(example, "utf8")));
});

/** The `versions` of the page's configuration. */
function versionsOfPage(): Record<string, unknown> {
  const json = /```json baton\.json\n([\s\S]*?)```/.exec(page)?.[1] ?? "";
  return JSON.parse(json).services.app.versions;
}

test("a new build of the example has the cache of the one before", async () => {
  const onDeno = "Deno" in globalThis;
  const words = [process.execPath, ...onDeno ? ["run", "-A", "--no-check", "--quiet"] : []];
  await inScratch(async (folder) => {
    const baton = await startBatonProcess(folder, {
      services: {
        app: {
          mount: "/",
          versions: {
            ...versionsOfPage(),
            oracle: `file:${folder}/versions.json`,
            basePort: basePort(),
            bakeMs: 50,
            drainPollMs: 20,
          },
        },
      },
      shutdown: { announceMs: 0, budgetMs: 1_000_000 },
    });
    const ask = async (): Promise<string | null> => {
      const response = await fetch(`${baton.traffic}/v1/dear/why`);
      assert.is(await response.text(), "WHY");
      return response.headers.get("x-cache");
    };
    const publish = async (id: string): Promise<void> => {
      const line = [...words, example].map((word) => `'${word}'`).join(" ");
      await writeFile(`${folder}/${id}`, `#!/bin/sh\n# ${id}\ncd '${root}'\nexec ${line}\n`);
      const config = `${folder}/baton.json`;
      const done = await runVerb(["publish", "v1", `${folder}/${id}`, "--config", config]);
      assert.is(done.code, 0, done.stderr);
      const switched = () => baton.log.filter(({ event }) => event === "traffic_switched").length;
      const before = switched();
      await until(() => switched() > before, `the switch to ${id}`);
    };
    try {
      await publish("one");
      assert.equal([await ask(), await ask()], ["miss", "hit"]);
      for (const id of ["two", "three"]) {
        await publish(id);
        assert.is(await ask(), "hit", id);
      }
      const logs = await runVerb(["logs", "v1", "--config", `${folder}/baton.json`]);
      assert.match(logs.stdout, /nobody to ask: empty[^]*1 answers from 127\.0\.0\.1:\d+/);
    } finally {
      assert.is(await baton.stop(), 0);
    }
  });
});

test.run();
