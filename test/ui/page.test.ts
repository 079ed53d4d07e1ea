/** The status page: its own files in themselves, and what a browser shows of a running Baton. */

import { test } from "uvu";
import * as assert from "uvu/assert";
import { existsSync, readFileSync } from "node:fs";
import { writeFile } from "node:fs/promises";
import http from "node:http";
import { startBatonProcess } from "../support/baton_process.ts";
import { inScratch, until } from "../support/scratch.ts";

const read = (name: string) =>
  readFileSync(new URL(`../../src/ui/${name}`, import.meta.url), "utf8");
const CHROMIUM = ["/usr/bin/chromium", "/usr/bin/chromium-browser"].find((path) =>
  existsSync(path)
);

test("every element that the script asks for is in the page, and nothing comes from elsewhere", () => {
  const page = read("index.html");
  const script = read("app.js");
  const used = [...script.matchAll(/(?:\$|fill)\("([\w-]+)"/g)].map(([, id]) => id);
  assert.ok(used.length > 10);
  for (const id of used) assert.match(page, `id="${id}"`);
  for (const text of [page, script, read("style.css")]) assert.not.match(text, /https?:\/\//);
  assert.not.match(script, /innerHTML|insertAdjacentHTML|document\.write|eval\(/);
});

// A page is the browser's business; where there is no browser its parts are all that can be looked at.
if (CHROMIUM !== undefined) {
  test("a browser shows readiness, targets that owe answers, and events; a token is asked for", async () => {
    const { chromium } = await import("playwright-core");
    const held: http.ServerResponse[] = [];
    const upstream = http.createServer((_request, response) => {
      response.write("x");
      held.push(response);
    });
    await new Promise<void>((resolve) => upstream.listen(0, "127.0.0.1", () => resolve()));
    const { port } = upstream.address() as { port: number };
    const browser = await chromium.launch({ executablePath: CHROMIUM, args: ["--no-sandbox"] });
    try {
      await inScratch(async (folder) => {
        await writeFile(`${folder}/token`, "s3cret");
        const baton = await startBatonProcess(folder, {
          services: { plain: { mount: "/", upstream: `http://127.0.0.1:${port}` } },
          admin: { token: { file: `${folder}/token` } },
          shutdown: { announceMs: 0, budgetMs: 20_000 },
        });
        try {
          const errors: string[] = [];
          const page = await browser.newPage();
          page.on("pageerror", (error) => errors.push(String(error)));
          await page.goto(`${baton.admin}/ui/`);
          // The page's policy forbids to evaluate code in it: asked from outside.
          const shows = (state: string) =>
            until(async () => await page.textContent("#state") === state, `the state ${state}`);
          await page.waitForSelector("#sign-in:not([hidden])");
          assert.is(await page.textContent("#state"), "needs a token");
          await page.fill("#token", "s3cret");
          await page.click("#sign-in button");
          await shows("ready");
          assert.is(await page.title(), "Baton: ready");
          await page.waitForSelector("#events li >> text=host_state");
          const answer = await fetch(`${baton.traffic}/held`);
          await page.waitForSelector("#targets td >> text=plain");
          assert.match(await page.textContent("#summary") ?? "", "1 in flight");
          baton.signal("SIGTERM");
          await shows("draining");
          for (const response of held) response.end();
          await answer.text();
          assert.is(await baton.exited, 0);
          await shows("no answer");
          assert.equal(errors, []);
        } finally {
          await baton.stop();
        }
      });
    } finally {
      await browser.close();
      upstream.closeAllConnections();
      upstream.close();
    }
  });
}

test.run();
