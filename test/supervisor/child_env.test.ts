import { test } from "uvu";
import * as assert from "uvu/assert";
import {
  asksFor,
  DEFAULT_CHILD_ENV,
  defaultVersionsConfig,
  VERSIOND_CHILD_ENV,
} from "../../src/config/versions.ts";
import {
  childCommand,
  childEnv,
  type ChildStart,
  parseHa,
} from "../../src/supervisor/child_env.ts";

const config = defaultVersionsConfig({
  oracle: "file:x",
  envAllow: [...DEFAULT_CHILD_ENV, ...VERSIOND_CHILD_ENV],
});
const start: ChildStart = {
  name: "v2",
  binary: "/bin/v2/devshard",
  folder: "/bin/v2",
  dataDir: "/data/v2",
  port: 5001,
  buildId: "",
};

test("case 1: a known build id is the log version", () => {
  const env = childEnv(config, {}, { ...start, buildId: "0.2.13-v2-r2" });
  assert.is(env.DEVSHARD_BINARY_LOG_VERSION, "0.2.13-v2-r2");
});

test("case 2: without one it is the slot's name", () => {
  assert.is(childEnv(config, {}, start).DEVSHARD_BINARY_LOG_VERSION, "v2");
});

test("case 3: an admin port gives log version and admin address", () => {
  const env = childEnv(config, {}, { ...start, adminPort: 5002 });
  assert.is(env.DEVSHARD_BINARY_LOG_VERSION, "v2");
  assert.is(env.DEVSHARD_ADMIN_ADDR, "127.0.0.1:5002");
});

test("case 4: an admin address of the supervisor's own is never inherited (B11)", () => {
  const own = { DEVSHARD_ADMIN_ADDR: "127.0.0.1:1", DEVSHARD_OTHER: "kept" };
  const env = childEnv(config, own, start);
  assert.is(env.DEVSHARD_ADMIN_ADDR, undefined);
  assert.is(env.DEVSHARD_OTHER, "kept");
});

test("case 5: GONKA_HA of a child is its own, not the host's", () => {
  const env = childEnv(config, { GONKA_HA: "true", GONKA_OTHER: "x" }, { ...start, ha: false });
  assert.is(env.GONKA_HA, "false");
  assert.is(env.GONKA_OTHER, "x");
});

test("case 6: what is off", () => {
  for (const text of ["", "0", "f", "false", "no", "off"]) assert.is(parseHa(text), false, text);
});

test("case 7: what is on", () => {
  for (const text of ["1", "t", "true", "yes", "on"]) assert.is(parseHa(text), true, text);
});

test("case 8: trimmed, in any case", () => {
  assert.is(parseHa(" ON "), true);
  assert.is(parseHa(" OFF "), false);
});

test("case 9: anything else is an error", () => {
  assert.throws(() => parseHa("enabled"), /GONKA_HA is "enabled"/);
});

test("nothing that is not allowed reaches a child: no secret of the supervisor (M11)", () => {
  const own = {
    PATH: "/bin",
    HOME: "/root",
    LC_ALL: "C.UTF-8",
    TZ: "UTC",
    HTTPS_PROXY: "http://proxy",
    PGPASSWORD: "for the child",
    DATABASE_URL: "postgres://",
    BATON_PEER_TOKEN: "secret",
    VERSIOND_ORACLE_URL: "https://x/?token=secret",
    AWS_SECRET_ACCESS_KEY: "secret",
    LD_PRELOAD: "/evil.so",
  };
  assert.equal(Object.keys(childEnv(config, own, start)).sort(), [
    "DATABASE_URL",
    "DEVSHARD_BINARY_LOG_VERSION",
    "HOME",
    "HTTPS_PROXY",
    "LC_ALL",
    "PATH",
    "PGPASSWORD",
    "TZ",
  ]);
  const plain = childEnv(defaultVersionsConfig({ oracle: "file:x" }), own, start);
  assert.is(plain.PGPASSWORD, undefined);
  assert.is(plain.PATH, "/bin");
});

test("GONKA_HA is set for devshard binaries only", () => {
  const other = defaultVersionsConfig({ oracle: "file:x", binaryName: "app" });
  assert.is(childEnv(other, {}, { ...start, ha: true }).GONKA_HA, undefined);
});

test("the default command line is versiond's", () => {
  const { command, args } = childCommand(config, {}, start);
  assert.is(command, "/bin/v2/devshard");
  assert.equal(args, ["--data-dir", "/data/v2", "--port", "5001"]);
});

test("a template fills in every placeholder, and leaves other braces alone", () => {
  const templated = defaultVersionsConfig({
    oracle: "file:x",
    command: [
      "/usr/bin/env",
      "-S",
      "{binary}",
      "--listen=:{port}",
      "--admin={adminPort}",
      '{"a":{}}',
    ],
    env: { PORT: "{port}", DIR: "{dataDir}", NAME: "{name}", WHERE: "{folder}" },
  });
  assert.is(asksFor(templated, "adminPort"), true);
  assert.is(asksFor(config, "adminPort"), false);
  assert.is(asksFor(templated, "peerPort"), false);
  const { command, args, env } = childCommand(templated, {}, { ...start, adminPort: 7 });
  assert.is(command, "/usr/bin/env");
  assert.equal(args, ["-S", "/bin/v2/devshard", "--listen=:5001", "--admin=7", '{"a":{}}']);
  assert.is(env.PORT, "5001");
  assert.is(env.DIR, "/data/v2");
  assert.is(env.NAME, "v2");
  assert.is(env.WHERE, "/bin/v2");
});

test("a child with a peer port is told where its predecessors have theirs, the first one too", () => {
  const withPeers = defaultVersionsConfig({
    oracle: "file:x",
    envAllow: ["BATON_*"],
    command: ["{binary}", "--peer={peerPort}"],
  });
  assert.is(asksFor(withPeers, "peerPort"), true);
  const own = { BATON_REPLICA_PREDECESSORS: '["127.0.0.1:1"]', BATON_OTHER: "kept" };
  const told = (more: Partial<ChildStart>) => childCommand(withPeers, own, { ...start, ...more });
  const first = told({ peerPort: 5003 });
  assert.equal(first.args, ["--peer=5003"]);
  assert.is(first.env.BATON_REPLICA_PREDECESSORS, "[]");
  const second = told({ peerPort: 5003, predecessors: ["127.0.0.1:5002", "127.0.0.1:5009"] });
  assert.equal(JSON.parse(second.env.BATON_REPLICA_PREDECESSORS ?? ""), [
    "127.0.0.1:5002",
    "127.0.0.1:5009",
  ]);
  // What the supervisor was told of itself is nobody else's.
  assert.is(told({}).env.BATON_REPLICA_PREDECESSORS, undefined);
  assert.is(told({}).env.BATON_OTHER, "kept");
});

test("a placeholder that is misspelt is refused", () => {
  for (const part of ["{Port}", "--x={adminport}", "{BINARY}"]) {
    assert.throws(() => defaultVersionsConfig({ oracle: "file:x", command: ["{binary}", part] }));
    assert.throws(() => defaultVersionsConfig({ oracle: "file:x", env: { A: part } }));
  }
});

test("a value that looks like a placeholder is not filled in twice", () => {
  const { args } = childCommand(config, {}, { ...start, dataDir: "/data/{port}" });
  assert.is(args[1], "/data/{port}");
});

test.run();
