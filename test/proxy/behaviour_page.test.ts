/** The page of the proxy's behaviour and its tests cover every rule. */

import { readdirSync, readFileSync } from "node:fs";
import { test } from "uvu";
import * as assert from "uvu/assert";

const RULES = 78;

test("every rule from 1 to 78 has a row on the page and a test with its number", () => {
  const page = readFileSync(new URL("../../docs/proxy-behaviour.md", import.meta.url), "utf8");
  const here = new URL(".", import.meta.url);
  const tests = readdirSync(here)
    .filter((file) => file.endsWith(".test.ts"))
    .map((file) => readFileSync(new URL(file, here), "utf8"))
    .join("\n");
  for (let rule = 1; rule <= RULES; rule++) {
    assert.match(page, new RegExp(`^\\| ${rule} +\\| \\S`, "m"), `rule ${rule} on the page`);
    assert.match(tests, new RegExp(`["\`]rule ${rule}: `), `a test of rule ${rule}`);
  }
  assert.not.match(page, new RegExp(`^\\| ${RULES + 1} +\\|`, "m"));
});

test("every file that the page names exists", () => {
  const root = new URL("../../", import.meta.url);
  const page = readFileSync(new URL("docs/proxy-behaviour.md", root), "utf8");
  for (const [, file] of page.matchAll(/`((?:src|test)\/[\w/.]+\.ts)`/g)) {
    assert.ok(readFileSync(new URL(file as string, root)).length > 0, file);
  }
});

test.run();
