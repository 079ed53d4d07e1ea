import { test } from "uvu";
import * as assert from "uvu/assert";
import { ConfigError } from "../../src/config/problems.ts";
import { parseConfig } from "../../src/config/load.ts";
import type { Config } from "../../src/config/schema.ts";
import type { VersionsConfig } from "../../src/config/versions.ts";
import { parseDuration, parseNameList, parseSwitch } from "../../src/config/versiond_values.ts";
import { ENVIRONMENT_SERVICE, withoutFile } from "../../src/config/without_file.ts";

const ORACLE = { VERSIOND_ORACLE_URL: "http://oracle:9100/versions" };

function load(
  environment: Record<string, string>,
): { config: Config; versions: VersionsConfig; warnings: readonly string[] } {
  const alone = withoutFile(environment);
  const config = parseConfig({}, environment, alone);
  const versions = config.services[ENVIRONMENT_SERVICE]?.versions;
  if (versions === undefined) throw new Error("no service was made");
  return { config, versions, warnings: alone?.warnings ?? [] };
}

function refused(environment: Record<string, string>, ...messages: RegExp[]): void {
  try {
    load(environment);
  } catch (error) {
    assert.instance(error, ConfigError);
    for (const message of messages) assert.match((error as Error).message, message);
    return;
  }
  assert.unreachable("it was accepted");
}

test("case 174: versiond's names without the oracle's address", () => {
  refused({ VERSIOND_POLL_INTERVAL: "10s" }, /VERSIOND_ORACLE_URL: this variable is required/);
  refused({ ...ORACLE, VERSIOND_ORACLE_URL: "  ", VERSIOND_FORCE: "v1" }, /VERSIOND_ORACLE_URL/);
});

test("case 175: the defaults", () => {
  const { config, versions } = load(ORACLE);
  assert.is(versions.oracle, "http://oracle:9100/versions");
  assert.is(versions.pollIntervalMs, 30_000);
  assert.is(versions.binDir, "/opt/versiond/bin");
  assert.is(versions.dataDir, "/opt/versiond/data");
  assert.is(versions.binaryName, "devshard");
  assert.is(versions.basePort, 5000);
  assert.is(versions.killGraceMs, 600_000);
  assert.is(versions.drainCushionMs, 600_000);
  assert.is(config.shutdown.budgetMs, 25 * 60_000);
  assert.is(config.shutdown.announceMs, 5_000);
  assert.is(versions.readyTimeoutMs, 60_000);
  assert.is(versions.readyMaxWaitMs, 32 * 60_000);
  assert.is(versions.drainTimeoutMs, 15 * 60_000);
  assert.is(versions.drainPollMs, 1_000);
  assert.is(versions.recoveryTimeoutMs, 30 * 60_000);
  assert.is(versions.retainInstalls, 3);
  assert.equal(config.services[ENVIRONMENT_SERVICE]?.mount, ["/", "/devshard"]);
  assert.is(config.stateDir, "/opt/versiond/data/.baton");
});

test("case 178: HA refuses local builds", () => {
  refused(
    { ...ORACLE, GONKA_HA: "true", VERSIOND_OVERRIDE_v5: "/tmp/x" },
    /VERSIOND_OVERRIDE_v5.*GONKA_HA/,
  );
  load({ ...ORACLE, GONKA_HA: "false", VERSIOND_OVERRIDE_v5: "/tmp/x" });
  assert.is(load({ ...ORACLE, GONKA_HA: "ON" }).versions.ha, "ON");
  refused({ ...ORACLE, GONKA_HA: "enabled" }, /GONKA_HA = "enabled"/);
});

test("case 179: custom values are used", () => {
  const { config, versions } = load({
    ...ORACLE,
    VERSIOND_POLL_INTERVAL: " 10s ",
    VERSIOND_BIN_DIR: "/tmp/bin",
    VERSIOND_DATA_DIR: "/tmp/data",
    VERSIOND_BINARY_NAME: "myapp",
    VERSIOND_HOST_SHUTDOWN_BUDGET: "12m",
    VERSIOND_DRAIN_ANNOUNCE: "9s",
    VERSIOND_READY_PATH: "/up",
    VERSIOND_READY_TIMEOUT: "2m",
    VERSIOND_READY_MAX_WAIT: "1h",
    VERSIOND_RECOVERY_TIMEOUT: "45m",
    VERSIOND_DRAIN_PATH: "/bye",
    VERSIOND_DRAIN_STATUS_PATH: "/bye/status",
    VERSIOND_DRAIN_TIMEOUT: "1m30s",
    VERSIOND_DRAIN_POLL_INTERVAL: "250ms",
    VERSIOND_DRAIN_KILL_GRACE: "30s",
    DEVSHARD_SHUTDOWN_GRACE: "2m",
    VERSIOND_NON_HA_VERSIONS: "v1, v2;v3",
  });
  assert.is(versions.pollIntervalMs, 10_000);
  assert.is(versions.binDir, "/tmp/bin");
  assert.is(versions.dataDir, "/tmp/data");
  assert.is(config.stateDir, "/tmp/data/.baton");
  assert.is(versions.binaryName, "myapp");
  assert.is(config.shutdown.budgetMs, 720_000);
  assert.is(config.shutdown.announceMs, 9_000);
  assert.is(versions.readyPath, "/up");
  assert.is(versions.readyTimeoutMs, 120_000);
  assert.is(versions.readyMaxWaitMs, 3_600_000);
  assert.is(versions.recoveryTimeoutMs, 2_700_000);
  assert.is(versions.drainPath, "/bye");
  assert.is(versions.drainStatusPath, "/bye/status");
  assert.is(versions.drainTimeoutMs, 90_000);
  assert.is(versions.drainPollMs, 250);
  assert.is(versions.killGraceMs, 30_000);
  assert.is(versions.drainCushionMs, 30_000);
  assert.is(versions.childGraceMs, 120_000);
  assert.equal(versions.nonHaVersions, ["v1", "v2", "v3"]);
});

test("case 180: a duration that is none refuses the start (B36)", () => {
  for (
    const name of [
      "VERSIOND_POLL_INTERVAL",
      "VERSIOND_HOST_SHUTDOWN_BUDGET",
      "VERSIOND_DRAIN_ANNOUNCE",
      "VERSIOND_READY_TIMEOUT",
      "DEVSHARD_SHUTDOWN_GRACE",
    ]
  ) {
    for (const value of ["soon", "10", "-5s", "5 s", "1d"]) {
      refused({ ...ORACLE, [name]: value }, new RegExp(`${name} = "${value}"`));
    }
  }
});

test("case 181: a poll interval of nothing", () => {
  refused({ ...ORACLE, VERSIOND_POLL_INTERVAL: "0s" }, /VERSIOND_POLL_INTERVAL = "0s"/);
});

test("case 182: an announcement of nothing is accepted: there is no balancer", () => {
  for (const value of ["0s", "0"]) {
    assert.is(load({ ...ORACLE, VERSIOND_DRAIN_ANNOUNCE: value }).config.shutdown.announceMs, 0);
  }
});

test("case 183: an announcement that no balancer can notice", () => {
  for (const value of ["500ms", "2s", "4s"]) {
    refused({ ...ORACLE, VERSIOND_DRAIN_ANNOUNCE: value }, /announceMs/);
  }
});

test("case 184: an announcement that uses up the whole budget", () => {
  refused(
    { ...ORACLE, VERSIOND_DRAIN_ANNOUNCE: "10s", VERSIOND_HOST_SHUTDOWN_BUDGET: "10s" },
    /announceMs.*less than shutdown.budgetMs/,
  );
});

test("case 185: announce 5s in a budget of 90s, with graces that fit in", () => {
  const { config } = load({
    ...ORACLE,
    VERSIOND_DRAIN_ANNOUNCE: "5s",
    VERSIOND_HOST_SHUTDOWN_BUDGET: "90s",
    VERSIOND_DRAIN_KILL_GRACE: "30s",
    DEVSHARD_SHUTDOWN_GRACE: "30s",
  });
  assert.is(config.shutdown.budgetMs, 90_000);
});

test("case 186: the listener is :8080", () => {
  assert.equal(load(ORACLE).config.listen.traffic, { kind: "tcp", host: "0.0.0.0", port: 8080 });
  assert.equal(load({ ...ORACLE, VERSIOND_LISTEN_ADDR: ":9999" }).config.listen.traffic, {
    kind: "tcp",
    host: "0.0.0.0",
    port: 9999,
  });
});

test("case 187: forced versions, in order", () => {
  assert.equal(load({ ...ORACLE, VERSIOND_FORCE: "v1,v2,v3" }).versions.force, ["v1", "v2", "v3"]);
});

test("case 188: an override's underscores are dots, and the raw name is not there", () => {
  const { overrides } = load({ ...ORACLE, VERSIOND_OVERRIDE_v0_2_11: "/tmp/x" }).versions;
  assert.equal(overrides, { "v0.2.11": "/tmp/x" });
});

test("case 189: force empty", () => {
  assert.equal(load({ ...ORACLE, VERSIOND_FORCE: "" }).versions.force, []);
  assert.equal(load({ ...ORACLE, VERSIOND_FORCE: " , " }).versions.force, []);
});

test("case 190: force is trimmed, empty parts are dropped", () => {
  assert.equal(load({ ...ORACLE, VERSIOND_FORCE: " v1 , v2 , " }).versions.force, ["v1", "v2"]);
});

test("case 191: a forced dotted name meets its underscore override", () => {
  const { force, overrides } = load({
    ...ORACLE,
    VERSIOND_FORCE: "v0.2.11",
    VERSIOND_OVERRIDE_v0_2_11: "/tmp/x",
  }).versions;
  assert.ok(force.every((name) => Object.hasOwn(overrides, name)));
});

test("children started under versiond's names get what its children read", () => {
  const { envAllow, allowInsecure } = load(ORACLE).versions;
  for (const name of ["PATH", "PG*", "DATABASE_URL", "DEVSHARD_*", "GONKA_*"]) {
    assert.ok(envAllow.includes(name), name);
  }
  assert.is(allowInsecure, true);
  const ours = load({ BATON_ORACLE_URL: "https://o.test/" }).versions;
  assert.not(ours.envAllow.includes("PG*"));
  assert.is(ours.allowInsecure, false);
});

test("what is accepted only for versiond's sake, or means nothing here, is said aloud", () => {
  assert.match(load(ORACLE).warnings.join(), /VERSIOND_ORACLE_URL is not encrypted/);
  assert.equal(load({ VERSIOND_ORACLE_URL: "https://o.test/" }).warnings, []);
  const { warnings } = load({
    VERSIOND_ORACLE_URL: "https://o.test/",
    VERSIOND_CONSENSUS_PARAMS_URL: "http://node/params",
    VERSIOND_POL_INTERVAL: "1s",
    VERSIOND_STOP_GRACE_PERIOD: "30m",
    VERSIOND_ROUTING_CATALOG_URL: "http://x/",
  });
  assert.is(warnings.length, 2);
  assert.match(warnings[0] ?? "", /VERSIOND_CONSENSUS_PARAMS_URL has no effect/);
  assert.match(warnings[1] ?? "", /VERSIOND_POL_INTERVAL is not a variable/);
});

test("without a file, BATON_<OPTION> is each option of the one service", () => {
  const { config, versions } = load({
    BATON_ORACLE_URL: "https://oracle.test/versions",
    BATON_BAKE_MS: "5000",
    BATON_HOLD_TIMEOUT_MS: "2000",
    BATON_ALLOW_INSECURE: "true",
    BATON_BINARY_NAME: "app",
    BATON_COMMAND: '["{binary}","--listen",":{port}"]',
    BATON_ENV: '{"PORT":"{port}"}',
    BATON_FORCE: "v1, v2",
    BATON_OVERLAP: "never",
    BATON_LISTEN_TRAFFIC: "127.0.0.1:0",
    BATON_STATE_DIR: "/tmp/state",
  });
  assert.is(versions.oracle, "https://oracle.test/versions");
  assert.is(versions.bakeMs, 5_000);
  assert.is(versions.holdTimeoutMs, 2_000);
  assert.is(versions.allowInsecure, true);
  assert.is(versions.binaryName, "app");
  assert.equal(versions.command, ["{binary}", "--listen", ":{port}"]);
  assert.equal(versions.env, { PORT: "{port}" });
  assert.equal(versions.force, ["v1", "v2"]);
  assert.is(versions.overlap, "never");
  assert.is(config.stateDir, "/tmp/state");
  assert.is(config.listen.traffic.kind, "tcp");
});

test("our names win over versiond's, and both may be mixed", () => {
  const { versions, config } = load({
    ...ORACLE,
    BATON_ORACLE_URL: "https://other.test/",
    VERSIOND_POLL_INTERVAL: "10s",
    BATON_BIN_DIR: "/mine",
    BATON_ALLOW_INSECURE: "false",
    BATON_STATE_DIR: "/state",
  });
  assert.is(versions.oracle, "https://other.test/");
  assert.is(versions.pollIntervalMs, 10_000);
  assert.is(versions.binDir, "/mine");
  assert.is(versions.allowInsecure, false);
  assert.is(config.stateDir, "/state");
  assert.is(
    load({ BATON_ORACLE_URL: "https://o.test/", VERSIOND_FORCE: "v1" }).versions.force[0],
    "v1",
  );
});

test("a forced or overridden name that is no version name refuses the start: it becomes a path", () => {
  refused({ ...ORACLE, VERSIOND_FORCE: "v1,../v2" }, /VERSIOND_FORCE/);
  refused({ ...ORACLE, "VERSIOND_OVERRIDE_/etc": "/tmp/x" }, /VERSIOND_OVERRIDE/);
});

test("a bad value names the variable that it came from", () => {
  refused({ ...ORACLE, VERSIOND_READY_PATH: "ready" }, /VERSIOND_READY_PATH/);
  refused({ BATON_ORACLE_URL: "https://o.test/", BATON_BAKE_MS: "soon" }, /BATON_BAKE_MS/);
  refused({ BATON_ORACLE_URL: "ftp://o.test/" }, /BATON_ORACLE_URL/);
  refused({ BATON_ORACLE_URL: "https://o.test/", BATON_BAKE_M: "5" }, /did you mean BATON_BAKE_MS/);
});

test("no oracle and nothing of versiond's: no service is made", () => {
  assert.is(withoutFile({}), undefined);
  assert.is(withoutFile({ BATON_BAKE_MS: "5" }), undefined);
  assert.is(withoutFile({ DEVSHARD_SHUTDOWN_GRACE: "5s", VERSIOND_IMAGE: "x" }), undefined);
});

test("durations in Go's form", () => {
  const cases: [string, number | undefined][] = [
    ["30s", 30_000],
    ["1h30m", 5_400_000],
    ["1.5s", 1_500],
    [".5s", 500],
    ["250ms", 250],
    ["1m0.5s", 60_500],
    ["1us", 1],
    ["1\u00b5s", 1],
    ["1ns", 1],
    ["0", 0],
    ["+5s", 5_000],
    ["-5s", -5_000],
    ["", undefined],
    ["5", undefined],
    ["s", undefined],
    ["5s5", undefined],
    ["5 s", undefined],
    ["5S", undefined],
    ["1d", undefined],
  ];
  for (const [text, ms] of cases) assert.is(parseDuration(text), ms, text);
});

test("switches and lists of names", () => {
  assert.is(parseSwitch(" Yes "), true);
  assert.is(parseSwitch("maybe"), undefined);
  assert.equal(parseNameList("v1, v2;v3  v4;"), ["v1", "v2", "v3", "v4"]);
});

test.run();
