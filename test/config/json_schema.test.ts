import { test } from "uvu";
import * as assert from "uvu/assert";
import { readdirSync, readFileSync } from "node:fs";
import Ajv2020 from "ajv/dist/2020.js";
import { configurationPage, schemaFile } from "../../scripts/lib/configuration_page.ts";
import { environmentName } from "../../src/config/environment.ts";
import { configJsonSchema, configKeys } from "../../src/config/json_schema.ts";
import { parseConfig } from "../../src/config/load.ts";

const root = new URL("../../", import.meta.url);
const read = (path: string) => readFileSync(new URL(path, root), "utf8");
const validate = new Ajv2020.default({ strict: false, allErrors: true, validateFormats: false })
  .compile(
    configJsonSchema(),
  );

/** Every block of the documentation that is marked as a whole `baton.json`. */
function documented(): { where: string; value: unknown }[] {
  const pages = ["README.md", ...readdirSync(new URL("docs/", root)).map((name) => `docs/${name}`)];
  return pages.filter((page) => page.endsWith(".md")).flatMap((page) =>
    [...read(page).matchAll(/```json baton\.json\n([\s\S]*?)```/g)].map(([, block], index) => ({
      where: `${page} block ${index + 1}`,
      value: JSON.parse(block ?? "") as unknown,
    }))
  );
}

test("docs/baton.schema.json is what the schema generates (scripts/generate-docs)", () => {
  assert.ok(read("docs/baton.schema.json") === schemaFile(), "run scripts/generate-docs");
});

test("docs/configuration.md is what the schema generates (scripts/generate-docs)", () => {
  assert.ok(read("docs/configuration.md") === configurationPage(), "run scripts/generate-docs");
});

test("every baton.json in the documentation is valid, by the JSON Schema and at the start", () => {
  const examples = documented();
  assert.ok(examples.length >= 3, `${examples.length} examples`);
  for (const { where, value } of examples) {
    assert.ok(validate(value), `${where}: ${JSON.stringify(validate.errors)}`);
    try {
      parseConfig(value);
    } catch (error) {
      assert.unreachable(`${where}: ${error}`);
    }
  }
});

test("the JSON Schema refuses what the start refuses", () => {
  const wrong = [
    { listen: { traffic: 8080 } },
    { unknown: 1 },
    { services: { a: { mount: "/", extra: 1 } } },
    { services: { a: { mount: "/a/", upstream: "http://x" } } },
    { shutdown: { announceMs: -1 } },
    { replica: { token: "plain text" } },
    { log: { level: "loud" } },
  ];
  for (const value of wrong) {
    assert.not(validate(value), JSON.stringify(value));
    assert.throws(() => parseConfig(value));
  }
});

test("every key says what it means", () => {
  const silent = configKeys().filter(({ path, schema }) =>
    schema.description === undefined && !["env", "file"].includes(path.at(-1) ?? "")
  );
  assert.equal(silent.map(({ path }) => path.join(".")), []);
});

test("no two fixed keys share an environment variable", () => {
  const names = new Map<string, string>();
  for (const { path } of configKeys()) {
    if (path.includes("[]") || path.includes("*")) continue;
    const name = environmentName(path);
    const key = path.join(".");
    assert.ok((names.get(name) ?? key) === key, `${name}: ${names.get(name)} and ${key}`);
    names.set(name, key);
  }
});

test.run();
