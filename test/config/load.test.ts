import { test } from "uvu";
import * as assert from "uvu/assert";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import fc from "fast-check";
import { jsonFault } from "../../src/config/json_error.ts";
import { loadConfig } from "../../src/config/load.ts";
import { ConfigError } from "../../src/config/problems.ts";
import { readSecret } from "../../src/config/secret.ts";
import { runtime } from "../support/runtime.ts";

const folder = await mkdtemp(join(tmpdir(), "baton-config-"));
test.after(() => rm(folder, { recursive: true }));

const withEnv = (environment: Record<string, string>) => ({
  files: runtime.files,
  env: () => environment,
});

async function file(name: string, text: string): Promise<string> {
  const path = join(folder, name);
  await writeFile(path, text);
  return path;
}

async function problem(load: Promise<unknown>): Promise<string> {
  try {
    await load;
  } catch (error) {
    if (error instanceof ConfigError) return error.message;
    throw error;
  }
  return "no problem";
}

test("the file that --config names wins over BATON_CONFIG", async () => {
  const one = await file("one.json", '{"stateDir":"./one"}');
  const two = await file("two.json", '\uFEFF{"stateDir":"./two"}');
  const environment = withEnv({ BATON_CONFIG: one });
  const loaded = await loadConfig(environment);
  assert.is(loaded.config.stateDir, "./one");
  assert.is(loaded.path, one);
  assert.is((await loadConfig(environment, { path: two })).config.stateDir, "./two");
});

test("a named file that is missing stops the start", async () => {
  const path = join(folder, "absent.json");
  assert.is(await problem(loadConfig(withEnv({}), { path })), `${path}: there is no such file`);
});

test("a file that is not JSON is refused with line and column, and nothing of it is printed", async () => {
  const path = await file("torn.json", '{\n  "replica": { "token": s3cret }\n}');
  const message = await problem(loadConfig(withEnv({}), { path }));
  assert.is(
    message,
    `${path}: is not JSON: see line 2, column 25 (text and keys are written in double quotes)`,
  );
  const short = await file("short.json", '{ "stateDir": ');
  assert.match(await problem(loadConfig(withEnv({}), { path: short })), "line 1, column 15");
});

test("the place where a text stops being JSON is found wherever JSON.parse refuses it", () => {
  const good = '{"a": [1, -2.5e3, true, null, "x\\n\\u00e4"], "b": {}, "c": []} ';
  fc.assert(
    fc.property(
      fc.nat(good.length),
      fc.constantFrom("", "\u0000", "}", "]", '"', ",", "x"),
      (at, put) => {
        const text = good.slice(0, at) + put + good.slice(at + 1);
        let parses = true;
        try {
          JSON.parse(text);
        } catch {
          parses = false;
        }
        assert.is(jsonFault(text)?.startsWith("is not JSON") !== true, parses, text);
      },
    ),
    { seed: 7, numRuns: 1000 },
  );
  fc.assert(
    fc.property(fc.json(), (text) => assert.is(jsonFault(text), undefined, text)),
    { seed: 8, numRuns: 1000, examples: [['"\u007f\ud800"'], ["-0"], [" 1E+2\t"]] },
  );
});

test("a file with comments, a comma too many, or a key that is there twice says so", async () => {
  const cases: [string, string][] = [
    ["{\n  // the door\n}", "is not JSON: see line 2, column 3 (JSON has no comments)"],
    ['{ "log": {}, }', "is not JSON: see line 1, column 14 (a comma before it is one too many)"],
    [
      "{ 'log': {} }",
      "is not JSON: see line 1, column 3 (text and keys are written in double quotes)",
    ],
    [
      '{ "log": {},\n "l\\u006fg": {} }',
      'has the key "l\\u006fg" twice in one object: see line 2, column 2',
    ],
    ["", "is not JSON: see line 1, column 1"],
  ];
  for (const [text, said] of cases) {
    const path = await file("faulty.json", text);
    assert.is(await problem(loadConfig(withEnv({}), { path })), `${path}: ${said}`);
  }
  for (const text of ["null", "[]", "5"]) {
    const path = await file("other.json", text);
    assert.is(
      await problem(loadConfig(withEnv({}), { path })),
      "the configuration: must be an object, { ... }",
    );
  }
});

test("values from the command line win over environment and file", async () => {
  const path = await file("three.json", '{"stateDir":"./file"}');
  const loaded = await loadConfig(withEnv({ BATON_STATE_DIR: "./env" }), {
    path,
    overrides: { BATON_STATE_DIR: { value: "./flag", option: "--data-dir" } },
  });
  assert.is(loaded.config.stateDir, "./flag");
  const overrides = { BATON_LISTEN_TRAFFIC: { value: ":99999", option: "--port" } };
  const said = await problem(loadConfig(withEnv({}), { path, overrides }));
  assert.match(said, '--port (listen.traffic) = ":99999": allowed is host:port');
});

test("a secret that cannot be read stops the start, by name and without a value", async () => {
  const empty = await file("empty.token", " \n");
  const path = await file("secret.json", JSON.stringify({ admin: { token: { file: empty } } }));
  assert.is(
    await problem(loadConfig(withEnv({}), { path })),
    `admin.token: the secret's file ${empty} is empty`,
  );
  const unset = await file("unset.json", '{"admin":{"token":{"env":"ADMIN_TOKEN"}}}');
  assert.is(
    await problem(loadConfig(withEnv({}), { path: unset })),
    "admin.token: the environment variable ADMIN_TOKEN is not set",
  );
  const loaded = await loadConfig(withEnv({ ADMIN_TOKEN: "x" }), { path: unset });
  assert.equal(loaded.config.admin.token, { env: "ADMIN_TOKEN" });
});

test("a secret's file is read anew each time, without the white space around it", async () => {
  const path = await file("rotated.token", "first\n");
  assert.is(await readSecret(withEnv({}), { file: path }), "first");
  await writeFile(path, "  second  \n");
  assert.is(await readSecret(withEnv({}), { file: path }), "second");
});

test("a Baton that is told of its predecessors, if only that it has none, is a replica", async () => {
  const path = await file("alone.json", "{}");
  const load = (value: string) =>
    loadConfig(withEnv({ BATON_REPLICA_PREDECESSORS: value, BATON_LISTEN_PEER: "127.0.0.1:0" }), {
      path,
    });
  assert.equal((await load("[]")).config.replica?.predecessors, []);
  assert.equal((await load("[]")).config.replica?.peers, []);
  const two = await load('["127.0.0.1:5002","[::1]:5009"]');
  assert.equal(two.config.replica?.predecessors, ["127.0.0.1:5002", "[::1]:5009"]);
  for (
    const value of ['["10.0.0.2:8082"]', '["127.0.0.1"]', '["127.0.0.1:0"]', '["http://[::1]:1"]']
  ) {
    assert.match(await problem(load(value)), /BATON_REPLICA_PREDECESSORS.*on this machine/, value);
  }
});

test("threads that cannot share the listener are a doubt, not an error", async () => {
  const doubts = async (listen: Record<string, unknown>, workers = 2) => {
    const path = await file("threads.json", JSON.stringify({ listen, traffic: { workers } }));
    return (await loadConfig(withEnv({}), { path })).warnings.join();
  };
  assert.match(await doubts({ traffic: "unix:/run/s" }), /workers is 2, .* the unix socket/);
  assert.match(await doubts({ descriptor: 3 }), /workers is 2, .*listen\.descriptor/);
  assert.is(await doubts({ descriptor: 3 }, 1), "");
  assert.is(await doubts({ traffic: "127.0.0.1:80" }), "");
});

test("a proxy variable that has no effect is a doubt, where something is fetched", async () => {
  const load = async (oracle: string, variable: string) => {
    const services = { app: { mount: "/", versions: { oracle } } };
    const path = await file("proxy.json", JSON.stringify({ services }));
    return (await loadConfig(withEnv({ [variable]: "socks5://p:1" }), { path })).warnings.join();
  };
  assert.match(
    await load("https://o.test/v", "ALL_PROXY"),
    /^ALL_PROXY is for children only: .*HTTP_/,
  );
  assert.match(await load("https://o.test/v", "all_proxy"), /^all_proxy is/);
  assert.is(await load("file:./versions.json", "ALL_PROXY"), "");
});

test("a peer port for builds that may not overlap is a doubt, not an error", async () => {
  const load = async (versions: Record<string, unknown>) => {
    const services = {
      router: {
        mount: "/",
        versions: { oracle: "file:x", command: ["{binary}", "{peerPort}"], ...versions },
      },
    };
    const path = await file("overlap.json", JSON.stringify({ services }));
    return (await loadConfig(withEnv({}), { path })).warnings;
  };
  assert.equal(await load({ binaryName: "baton" }), []);
  const [never] = await load({ binaryName: "baton", overlap: "never" });
  assert.match(never ?? "", /^services\.router\.versions\.overlap is never: .*nobody/);
  // Devshard's rule, which is the default.
  assert.match((await load({}))[0] ?? "", /overlap is ask/);
  assert.equal(await load({ overlap: "never", command: ["{binary}", "{port}"] }), []);
});

test.run();
