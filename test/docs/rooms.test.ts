/** The rules of the house that a machine can check: who may import whom, and who may touch the machine. */

import { test } from "uvu";
import * as assert from "uvu/assert";
import { readdirSync, readFileSync } from "node:fs";
import { dirname, join, normalize } from "node:path";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("../../", import.meta.url));

/** Leaves that every room may import; `runtime` only for its types and errors. */
const LEAVES = ["config", "errors.ts", "observe", "runtime", "streams", "version.ts"];
/** What else a room may import. */
const BELOW: Readonly<Record<string, readonly string[]>> = {
  "main.ts": ["cli"],
  cli: ["host", "http", "kv", "lifecycle", "proxy", "replica", "router", "supervisor"],
  host: ["http", "kv", "lifecycle", "proxy", "replica", "router", "supervisor", "threads"],
  http: ["kv", "lifecycle", "proxy", "replica", "router", "supervisor"],
  router: ["kv", "proxy", "lifecycle"],
  replica: ["kv", "lifecycle"],
  supervisor: ["proxy", "lifecycle"],
  threads: ["proxy", "lifecycle", "router"],
  proxy: ["lifecycle"],
  kv: [],
  lifecycle: [],
  streams: [],
  observe: [],
  config: [],
  runtime: [],
  "errors.ts": [],
  "version.ts": [],
};

interface Import {
  readonly from: string;
  readonly to: string;
  readonly isType: boolean;
}

const files = readdirSync(join(root, "src"), { recursive: true })
  .map((name) => `src/${name}`)
  // What AssemblyScript compiles is no TypeScript, though it is called so.
  .filter((name) => name.endsWith(".ts") && !name.includes("/assembly/"));
const sources = new Map(files.map((file) => [file, readFileSync(join(root, file), "utf8")]));
const statements = /^(?:import|export)\s+(type\s+)?(?:[^;"]*?\sfrom\s+)?"([^"]+)"/gm;
const imports: Import[] = [...sources].flatMap(([file, source]) =>
  [...source.matchAll(statements)].map(([, type, to = ""]) => ({
    from: file,
    to: to.startsWith(".") ? normalize(join(dirname(file), to)) : to,
    isType: type !== undefined,
  }))
);
const roomOf = (file: string): string => file.split("/")[1] ?? "";
const isOwn = (file: string): boolean => file.startsWith("src/");

test("rooms import only rooms below them", () => {
  const wrong = imports.filter(({ from, to }) => {
    if (!isOwn(to) || roomOf(from) === roomOf(to)) return false;
    return !LEAVES.includes(roomOf(to)) && !(BELOW[roomOf(from)] ?? []).includes(roomOf(to));
  });
  assert.equal(wrong.map(({ from, to }) => `${from} -> ${to}`), []);
});

test("of the runtime the rooms know the record alone", () => {
  const wrong = imports.filter(({ from, to }) =>
    isOwn(to) && roomOf(to) === "runtime" && roomOf(from) !== "runtime" &&
    !/^src\/runtime\/(runtime|load|\w+_contract)\.ts$/.test(to)
  );
  assert.equal(wrong.map(({ from, to }) => `${from} -> ${to}`), []);
  const loads = imports.filter(({ to }) => to === "src/runtime/load.ts").map(({ from }) => from);
  // The program, and each of its threads.
  assert.equal(loads.filter((file) => file !== "src/threads/main.ts"), ["src/main.ts"]);
});

test("only src/runtime imports what touches the machine", () => {
  const machine = /^(node:|undici|@hono\/node-server|zeromq)/;
  const wrong = imports.filter(({ from, to }) => machine.test(to) && roomOf(from) !== "runtime");
  assert.equal(wrong.map(({ from, to }) => `${from} -> ${to}`), []);
});

test("only src/runtime names Deno, process or Buffer", () => {
  const wrong = files.filter((file) => {
    if (roomOf(file) === "runtime") return false;
    const code = (sources.get(file) ?? "").replace(/\/\*[\s\S]*?\*\/|\/\/.*$/gm, "")
      .replace(/"(?:[^"\\\n]|\\.)*"|`[^`]*`/g, '""');
    return /\bDeno\.|(?<![.\w#])process\.(env|argv|cwd|stdin|stdout|stderr)\b|\bBuffer\./.test(
      code,
    );
  });
  assert.equal(wrong, []);
});

test("no file imports itself by way of others", () => {
  const next = new Map<string, string[]>();
  for (const { from, to, isType } of imports) {
    if (!isType && isOwn(to)) next.set(from, [...next.get(from) ?? [], to]);
  }
  const done = new Set<string>();
  const circles: string[] = [];
  const walk = (file: string, path: readonly string[]): void => {
    const at = path.indexOf(file);
    if (at >= 0) circles.push([...path.slice(at), file].join(" -> "));
    if (at >= 0 || done.has(file)) return;
    for (const to of next.get(file) ?? []) walk(to, [...path, file]);
    done.add(file);
  };
  for (const file of files) walk(file, []);
  assert.equal(circles, []);
});

test("there is code to check", () => {
  assert.ok(files.length > 100 && imports.length > 300);
});

test.run();
