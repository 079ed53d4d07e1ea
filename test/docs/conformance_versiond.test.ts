import { readFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { test } from "uvu";
import * as assert from "uvu/assert";

const ROOT = new URL("../../", import.meta.url);
const text = (path: string) => readFile(fileURLToPath(new URL(path, ROOT)), "utf8");
const CASES = 273;

const rows = [
  ...(await text("docs/conformance-versiond.md")).matchAll(/^\| (\d+) +\| (.+?) +\|$/gm),
]
  .map(([, number, cell = ""]) => ({ number: Number(number), cell }));

test("every case of the list is there once, in order", () => {
  assert.equal(
    rows.map((row) => row.number),
    Array.from({ length: CASES }, (_, index) => index + 1),
  );
});

test("each row names a test, or says why there is none", () => {
  for (const { number, cell } of rows) {
    assert.ok(cell.includes(".test.ts") || cell.length > 30, `case ${number}: ${cell}`);
  }
});

test("a file that is named for a case exists, and has a test with the case's number", async () => {
  const files = new Map<string, string>();
  for (const { number, cell } of rows) {
    const named = [...cell.matchAll(/`(test\/[^`]+)`/g)].map(([, path = ""]) => path);
    for (const path of named) {
      if (!files.has(path)) files.set(path, await text(path));
    }
    // A row that is nothing but files claims that each of them has the case.
    if (!/^(`test\/[^`]+`(, )?)+( \(.*\))?$/.test(cell)) continue;
    for (const path of named) {
      const content = files.get(path) ?? "";
      const titles = [...content.matchAll(/"cases? ([^:"]+):/g)].map(([, numbers = ""]) => numbers);
      assert.ok(titles.some((numbers) => mentions(numbers, number)), `case ${number} in ${path}`);
    }
  }
});

/** `12`, `12, 14`, `12 and 13`, `12-15`, `12 to 15` */
function mentions(numbers: string, wanted: number): boolean {
  return numbers.split(/, | and /).some((part) => {
    const [from, to] = part.split(/ ?(?:-|to) ?/).map(Number);
    return from !== undefined && from <= wanted && wanted <= (to ?? from);
  });
}

test.run();
