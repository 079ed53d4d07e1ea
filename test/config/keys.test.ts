/** What must hold for all keys at once, and for all input. */

import { test } from "uvu";
import * as assert from "uvu/assert";
import fc from "fast-check";
import { environmentName, withValue } from "../../src/config/environment.ts";
import { configKeys } from "../../src/config/json_schema.ts";
import { parseConfig } from "../../src/config/load.ts";
import { ConfigError } from "../../src/config/problems.ts";

const FILE = {
  services: {
    shard: { mount: "/shard", versions: { oracle: "file:./versions.json" } },
    chat: { mount: "/v1", pool: { model: "m", workers: [] } },
    plain: { mount: "/", upstream: "http://127.0.0.1:3000" },
  },
  replica: { token: { env: "TOKEN" } },
};

function messages(environment: Record<string, string>): string {
  try {
    parseConfig(FILE, environment);
    return "";
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error;
    return error.message;
  }
}

/** Each key as a real path of FILE: below services it is that service's own kind. */
const paths = configKeys().map(({ path, schema }) => ({ path, schema }))
  .filter(({ path }) => !path.includes("[]") && path[0] !== "$schema")
  .map(({ path, schema }) => {
    const kind = path[2] ?? "";
    const name = { versions: "shard", pool: "chat", upstream: "plain" }[kind] ?? "plain";
    return { path: path.map((key, at) => (at === 1 && key === "*" ? name : key)), schema };
  })
  // Names below a service are the operator's own (variables of children, overrides).
  .filter(({ path }) => !path.includes("*"));

test("every key has its variable, and a value that it does not take is named with both", () => {
  let refused = 0;
  for (const { path } of paths) {
    const name = environmentName(path);
    const said = messages({ [name]: "\u0001 no such value" });
    assert.not.match(said, "there is no such key", `${name} is not known`);
    // Half an alternative is refused for what is missing, not for what is there.
    if (said !== "" && !said.includes("this key is required")) {
      refused += 1;
      // An alternative is refused as a whole, under the key above it.
      assert.match(said, `${name} (${path.slice(0, -2).join(".")}`, name);
    }
  }
  assert.ok(paths.length > 100, `${paths.length} keys`);
  assert.ok(refused > 80, `${refused} refuse it`);
});

test("a default that is written out, in the file or as a variable, changes nothing", () => {
  const config = parseConfig(FILE);
  const expected = JSON.stringify(config);
  const into = (at: unknown, key: string): unknown =>
    typeof at === "object" && at !== null && !Array.isArray(at)
      ? (at as Record<string, unknown>)[key]
      : undefined;
  let written = 0;
  for (const { path, schema } of paths) {
    // In an object that is not there a default stands only together with the rest of it.
    const around = path.slice(0, -1).reduce<unknown>(into, config);
    if (schema.default === undefined || around === undefined || Array.isArray(around)) continue;
    const value = schema.default;
    const object = typeof value === "object";
    const text = object ? JSON.stringify(value) : String(value);
    if (text === "") continue;
    written += 1;
    // The variable of an object would replace what FILE has there.
    if (!object || Array.isArray(value)) {
      const byVariable = parseConfig(FILE, { [environmentName(path)]: ` ${text} ` });
      assert.is(JSON.stringify(byVariable), expected, environmentName(path));
      assert.is(JSON.stringify(parseConfig(withValue(FILE, path, value))), expected);
    }
  }
  assert.ok(written > 80, `${written} defaults`);
});

test("whatever a file holds, the answer is a configuration or a list of problems", () => {
  fc.assert(
    fc.property(fc.json({ maxDepth: 4 }), fc.constantFrom(...paths), (json, { path }) => {
      const value = JSON.parse(json) as unknown;
      for (const file of [value, withValue(FILE, path, value)]) {
        try {
          const config = parseConfig(file);
          assert.ok(Object.isFrozen(config));
        } catch (error) {
          assert.instance(error, ConfigError);
          const { problems } = error as ConfigError;
          assert.ok(problems.length > 0 && problems.every((one) => one.allowed !== ""));
        }
      }
    }),
    { seed: 11, numRuns: 600 },
  );
});

test("whatever the environment holds, the answer is a configuration or a list of problems", () => {
  const names = fc.oneof(
    fc.constantFrom(...paths.map(({ path }) => environmentName(path))),
    fc.string({ maxLength: 20 }).map((name) => `BATON_${name}`),
  );
  fc.assert(
    fc.property(
      fc.dictionary(names, fc.string({ maxLength: 30 }), { maxKeys: 5 }),
      (environment) => {
        messages(environment);
      },
    ),
    { seed: 12, numRuns: 1000 },
  );
});

test.run();
