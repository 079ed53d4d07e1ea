/** docs/conformance-recovery.md has every number of the list, and the tests that it names exist. */

import { readFileSync } from "node:fs";
import { test } from "uvu";
import * as assert from "uvu/assert";

const read = (path: string): string =>
  readFileSync(new URL(`../../${path}`, import.meta.url), "utf8");

/** Separately checkable clauses of each requirement. */
const CLAUSES = [3, 3, 6, 8, 4, 11, 6, 3, 7, 9];
const MISTAKES = 16;
const CASES = 60;

interface Entry {
  readonly id: string;
  readonly text: string;
  readonly refs: readonly { readonly file: string; readonly title: string }[];
}

/** `- **id** what it does — \`file\` "title" "title", \`file\` "title"` */
function entriesOf(page: string): Entry[] {
  return page.split(/^- \*\*/m).slice(1).map((part) => {
    const [item = ""] = part.split(/\n\n|\n#/);
    const [, id = "", rest = ""] = /^([^*]+)\*\*([^]*)$/.exec(item) ?? [];
    const [text = "", ...named] = rest.replace(/\s+/g, " ").split(" — ");
    let file = "";
    const refs: { file: string; title: string }[] = [];
    for (const [, path, title] of named.join(" ").matchAll(/`(test\/[^`]+)`|“([^”]+)”/g)) {
      if (path !== undefined) file = path;
      else if (title !== undefined) refs.push({ file, title });
    }
    return { id, text: text.trim(), refs };
  });
}

const entries = entriesOf(read("docs/conformance-recovery.md"));

/** Titles of the tests of a file, as they are spelled there. */
function titlesOf(file: string): string[] {
  return [...read(file).matchAll(/^test\(\s*(?:"((?:[^"\\]|\\.)*)"|`([^`]*)`|'([^']*)')/gm)]
    .map(([, double, back, single]) => double ?? back ?? single ?? "");
}

test("every number of the list is there once, in order", () => {
  const wanted = [
    ...CLAUSES.flatMap((count, at) =>
      Array.from({ length: count }, (_, clause) => `R${at + 1}.${clause + 1}`)
    ),
    ...Array.from({ length: MISTAKES }, (_, at) => `mistake ${at + 1}`),
    ...Array.from({ length: CASES }, (_, at) => `kv ${at + 1}`),
  ];
  assert.equal(entries.map(({ id }) => id).filter((id) => !id.startsWith("also")), wanted);
  assert.ok(entries.some(({ id }) => id.startsWith("also")));
});

test("each says what Baton does, and names a test", () => {
  for (const { id, text, refs } of entries) {
    assert.ok(text.length > 20, `${id}: ${text}`);
    assert.ok(refs.length > 0, id);
  }
});

test("each test that is named exists, spelled so", () => {
  const known = new Map<string, string[]>();
  const missing: string[] = [];
  for (const { id, refs } of entries) {
    for (const { file, title } of refs) {
      if (!known.has(file)) known.set(file, titlesOf(file));
      // Three dots stand for what a title computes.
      const [start = "", end = ""] = title.split("…");
      const isThere = known.get(file)?.some((one) =>
        title.includes("…") ? one.startsWith(start) && one.endsWith(end) : one === title
      );
      if (isThere !== true) missing.push(`${id}: ${file} “${title}”`);
    }
  }
  assert.equal(missing, []);
});

test("cases and mistakes are in the title of a test that is named for them", () => {
  for (const { id, refs } of entries) {
    const [kind, number] = id.split(" ");
    if (number === undefined || kind === "also") continue;
    const isLabelled = refs.some(({ title }) =>
      title.includes(": ") &&
      new RegExp(`${kind} (\\d+, )*${number}(, |:)`).test(`${title.split(": ")[0]}:`)
    );
    assert.ok(isLabelled, `${id}: ${refs.map(({ title }) => title).join("; ")}`);
  }
});

test.run();
