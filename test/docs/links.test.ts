/** What the documentation points at exists: functions in files, pages, scripts, verbs. */

import { test } from "uvu";
import * as assert from "uvu/assert";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { dirname, join, normalize } from "node:path";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("../../", import.meta.url));
const read = (path: string) => readFileSync(join(root, path), "utf8");
const pages = [
  "README.md",
  ...readdirSync(join(root, "docs"), { recursive: true }).map((name) => `docs/${name}`)
    .filter((name) => name.endsWith(".md")),
];

/** True when a TypeScript source declares the name: a function, class, type, constant or member. */
function declares(source: string, name: string): boolean {
  const declared = new RegExp(
    `^(export )?(async )?(function\\*?|class|const|let|interface|type|enum) ${name}\\b`,
    "m",
  );
  const member = new RegExp(
    `^\\s+(readonly |static |async |get |set |override )*#?${name}\\??(<[^>]*>)?(\\((?!.*;$)|:| =)`,
    "m",
  );
  return declared.test(source) || member.test(source);
}

test("every file and function that a page names exists", () => {
  let named = 0;
  const missing: string[] = [];
  for (const page of pages) {
    for (const [, file = "", name] of read(page).matchAll(/`(src\/[\w/.-]+\.ts)(?:#(\w+))?`/g)) {
      named += 1;
      if (!existsSync(join(root, file))) missing.push(`${page}: ${file}`);
      else if (name !== undefined && !declares(read(file), name)) {
        missing.push(`${page}: ${file}#${name}`);
      }
    }
  }
  assert.equal(missing, []);
  assert.ok(named > 50, `${named} are named`);
});

test("a name that is only used, or only begins so, is not declared", () => {
  const source = "import { used } from './x.ts';\nexport function longer() {\n  used();\n}\n";
  assert.ok(declares(source, "longer"));
  assert.not(declares(source, "long"));
  assert.not(declares(source, "used"));
  assert.not(declares("export function f() { return g(1); }", "g"));
  assert.ok(declares("class A {\n  async #hidden(): Promise<void> {}\n}", "hidden"));
});

test("links between pages lead somewhere", () => {
  const broken: string[] = [];
  for (const page of pages) {
    for (const [, link = ""] of read(page).matchAll(/\]\((?!https?:|#)([^)#\s]+)[^)]*\)/g)) {
      const path = normalize(join(dirname(page), link));
      if (!existsSync(join(root, path))) broken.push(`${page} -> ${link}`);
    }
  }
  assert.equal(broken, []);
});

test("scripts that a page names exist", () => {
  const missing: string[] = [];
  for (const page of pages) {
    for (const [, script = ""] of read(page).matchAll(/\b(scripts\/[a-z-]+)\b(?!\/)/g)) {
      if (!existsSync(join(root, script))) missing.push(`${page}: ${script}`);
    }
  }
  assert.equal(missing, []);
});

test("the figures of the README are those of the page on performance", () => {
  const page = read("docs/performance.md");
  let figures = 0;
  for (const [row] of read("README.md").matchAll(/^\|.*`scripts\/bench [^|]*\|$/gm)) {
    const cells = row.replace(/`[^`]*`/g, "").split("|").slice(1, -2);
    for (const [figure] of cells.join("|").matchAll(/\d+(,\d{3})*(\.\d+)?/g)) {
      figures += 1;
      assert.ok(
        new RegExp(`(?<![\\d.,])${figure}(?![\\d]|[.,]\\d)`).test(page),
        `${figure}: ${row}`,
      );
    }
  }
  assert.ok(figures > 15, `${figures} figures`);
});

test("every dependency has its reason, and no other has one", () => {
  const { dependencies, devDependencies, optionalDependencies } = JSON.parse(read("package.json"));
  const used = Object.keys({ ...dependencies, ...devDependencies, ...optionalDependencies });
  const reasons = [...read("docs/dependencies.md").matchAll(/^\| ([^|]+) \|/gm)]
    .flatMap(([, names = ""]) => names.split(","))
    .map((name) => name.trim())
    .filter((name) => name !== "package" && !/^-+$/.test(name));
  assert.equal(reasons.sort(), used.sort());
});

test.run();
