import { test } from "uvu";
import * as assert from "uvu/assert";
import { parseConfig } from "../../src/config/load.ts";
import { ConfigError } from "../../src/config/problems.ts";

const UPSTREAM = { mount: "/", upstream: "http://127.0.0.1:3000" };

/** The problems' lines, or none. */
function problems(file: unknown, environment: Record<string, string> = {}): string[] {
  try {
    parseConfig(file, environment);
    return [];
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error;
    return error.message.split("\n");
  }
}

test("nothing configured is a valid configuration with the documented defaults", () => {
  const config = parseConfig({});
  assert.equal(config.listen.traffic, { kind: "tcp", host: "0.0.0.0", port: 8080 });
  assert.equal(config.listen.admin, { kind: "tcp", host: "127.0.0.1", port: 8081 });
  assert.is(config.listen.peer, undefined);
  assert.is(config.stateDir, "./.baton");
  assert.equal(config.services, {});
  assert.is(config.shutdown.announceMs, 5000);
  assert.is(config.shutdown.budgetMs, 1_500_000);
});

test("the configuration is frozen to its depths", () => {
  const config = parseConfig({ services: { plain: UPSTREAM } });
  for (const part of [config, config.listen, config.listen.traffic, config.services]) {
    assert.ok(Object.isFrozen(part));
  }
});

test("every problem is told at once, with key, value and what is allowed", () => {
  const lines = problems({
    listen: { traffic: "nowhere", foo: 1 },
    stateDir: 4,
    services: { plain: { mount: "/x/", upstream: "ftp://a" } },
    log: { level: "loud" },
  });
  assert.is(lines.length, 6);
  assert.match(lines[0] ?? "", /^listen\.traffic = "nowhere": allowed is host:port/);
  assert.is(lines[1], "listen.foo = 1: allowed is nothing: there is no such key");
  assert.is(lines[2], "stateDir = 4: allowed is text");
  assert.match(lines[3] ?? "", /^services\.plain\.mount = "\/x\/": allowed is a path/);
  assert.match(lines[4] ?? "", /^services\.plain\.upstream = "ftp:\/\/a": allowed is "http:/);
  assert.is(lines[5], 'log.level = "loud": allowed is "debug", "info", "warn" or "error"');
});

test("a key that is not there is told with the one that was meant, a value with its right shape", () => {
  const versions = { oracle: "file:./v.json", bakems: 5 };
  assert.equal(problems({ services: { a: { mount: "/", versions } }, log: null, shutdown: [] }), [
    "shutdown = []: allowed is an object, not a list",
    "services.a.versions.bakems = 5: allowed is nothing: there is no such key; did you mean bakeMs?",
    "log = null: allowed is an object, { ... }",
  ]);
  const list = { services: [UPSTREAM] };
  assert.match(problems(list)[0] ?? "", /^services = \[.*\]: allowed is an object, not a list$/);
  const pool = { model: "m", workers: [{ id: "0", url: "http://a", kvEvent: "tcp://a:1" }] };
  assert.match(
    problems({ services: { a: { mount: "/", pool } } })[0] ?? "",
    /^services\.a\.pool\.workers\[0\]\.kvEvent = .*; did you mean kvEvents\?$/,
  );
  assert.match(problems({ shutdown: { budgetMs: Infinity } })[0] ?? "", '= "Infinity": allowed');
});

test("names that every object has are refused, and not left out without a word", () => {
  for (const name of ["constructor", "prototype", "__proto__"]) {
    const file = JSON.parse(`{"services":{"${name}":{"mount":"/","upstream":"http://a"}}}`);
    assert.is(problems(file)[0], `services.${name}: this name is reserved`);
  }
});

test("a service is exactly one of versions, pool and upstream", () => {
  assert.match(problems({ services: { a: { mount: "/" } } })[0] ?? "", "exactly one of");
  const both = { ...UPSTREAM, versions: { oracle: "file:./versions.json" } };
  assert.match(problems({ services: { a: both } })[0] ?? "", "exactly one of");
});

test("problems inside a list of workers name the worker", () => {
  const pool = { model: "m", workers: [{ id: "0", url: "http://a" }, { id: "b c" }] };
  assert.equal(problems({ services: { chat: { mount: "/v1", pool } } }), [
    'services.chat.pool.workers[1].id = "b c": allowed is 1 to 256 characters without spaces',
    "services.chat.pool.workers[1].url: this key is required",
  ]);
});

test("mounts that are no clean paths are refused", () => {
  for (const mount of ["", "v1", "/v1/", "//", "/a//b", "/../x", "/a/./b", "/a?b", "/a#", "/a b"]) {
    assert.is(problems({ services: { a: { ...UPSTREAM, mount } } }).length, 1, mount);
  }
  for (const mount of ["/", "/v1", "/a/b", "/.well-known/x", ["/", "/devshard"]]) {
    assert.equal(problems({ services: { a: { ...UPSTREAM, mount } } }), [], String(mount));
  }
});

test("an upstream is a host and a port, or a socket: the path is the client's", () => {
  const upstream = (url: string) => problems({ services: { a: { mount: "/", upstream: url } } });
  for (const url of ["http://a", "http://a:1/", "http://[::1]:80", "unix:/run/a.sock"]) {
    assert.equal(upstream(url), [], url);
  }
  const bad = ["http://a/x", "http://a/?q", "http://u@a", "https://a", "a:80", "unix:", "http://"];
  for (const url of bad) assert.is(upstream(url).length, 1, url);
});

test("trusted proxies and protocols are told apart from slips before the listener starts", () => {
  const traffic = (value: unknown) => problems({ traffic: value });
  for (const bad of ["10.0.0.0/33", "10.0.0.0/", "10.0.0", "::1/129", "proxy.local", ""]) {
    const [line = ""] = traffic({ trustedProxies: ["127.0.0.1", bad] });
    assert.is(
      line,
      `traffic.trustedProxies[1] = ${
        JSON.stringify(bad)
      }: allowed is an address, a CIDR range as ` +
        '"10.0.0.0/8", or "unix"',
    );
  }
  assert.equal(traffic({ trustedProxies: ["unix", "10.0.0.0/8", "::1", "fc00::/7"] }), []);
  assert.match(traffic({ upgrades: ["web socket"] })[0] ?? "", /^traffic\.upgrades\[0\] = "web so/);
  assert.equal(traffic({ upgrades: ["websocket", "h/2"] }), []);
});

test("an oracle without TLS is on this machine, or explicitly allowed", () => {
  const versions = (more: object) => problems({ services: { a: { mount: "/", versions: more } } });
  const [line = ""] = versions({ oracle: "http://user:pw@o.test/versions" });
  assert.match(line, /^services\.a\.versions\.oracle = "http:\/\/o\.test": allowed is https:/);
  assert.equal(versions({ oracle: "http://o.test/versions", allowInsecure: true }), []);
  for (const own of ["http://127.0.0.1:1/v", "http://localhost/v", "http://[::1]/v"]) {
    assert.equal(versions({ oracle: own }), [], own);
  }
});

test("two services cannot share a mount", () => {
  const lines = problems({ services: { a: UPSTREAM, b: { ...UPSTREAM, mount: ["/b", "/"] } } });
  assert.equal(lines, ['services.b.mount = "/": allowed is a path of its own: a is mounted there']);
});

test("case 186: a listen address without a host means all addresses", () => {
  const listen = (traffic: string) => parseConfig({ listen: { traffic } }).listen.traffic;
  assert.equal(listen(":8080"), { kind: "tcp", host: "0.0.0.0", port: 8080 });
  assert.equal(listen("[::1]:0"), { kind: "tcp", host: "::1", port: 0 });
  assert.equal(listen(" localhost:80 "), { kind: "tcp", host: "localhost", port: 80 });
  assert.equal(listen("unix:/run/baton.sock"), { kind: "unix", path: "/run/baton.sock" });
  for (const bad of ["8080", "a:b", "::1:80", "1.2.3.4:65536", "unix:", "http://a:1", "a b:1"]) {
    assert.is(problems({ listen: { traffic: bad } }).length, 1, bad);
  }
});

test("every key is an environment variable too, and the variable wins", () => {
  const config = parseConfig(
    { stateDir: "./x", services: { chat: { mount: "/v1", pool: { model: "m", workers: [] } } } },
    {
      BATON_STATE_DIR: " /var/lib/baton ",
      BATON_LISTEN_TRAFFIC: ":9000",
      BATON_LISTEN_ALLOW_OPEN_PEER: "true",
      BATON_SHUTDOWN_ANNOUNCE_MS: "0",
      BATON_SERVICES_CHAT_POOL_BLOCK_SIZE: "32",
      BATON_SERVICES_CHAT_POOL_WORKERS: '[{"id":"0","url":"http://127.0.0.1:9000"}]',
      PATH: "/bin",
    },
  );
  assert.is(config.stateDir, "/var/lib/baton");
  assert.equal(config.listen.traffic, { kind: "tcp", host: "0.0.0.0", port: 9000 });
  assert.is(config.listen.allowOpenPeer, true);
  assert.is(config.shutdown.announceMs, 0);
  assert.is(config.services.chat?.pool?.blockSize, 32);
  assert.equal((config.services.chat?.pool?.workers as unknown[]).length, 1);
});

test("empty variables are the same as none", () => {
  assert.is(parseConfig({}, { BATON_STATE_DIR: "  " }).stateDir, "./.baton");
});

test("lists of plain texts may be written with commas, others as JSON", () => {
  const environment = {
    BATON_REPLICA_PEERS: "http://10.0.0.2:8082, http://10.0.0.3:8082,",
    BATON_LISTEN_PEER: "10.0.0.1:8082",
  };
  assert.equal(parseConfig({}, environment).replica?.peers, [
    "http://10.0.0.2:8082",
    "http://10.0.0.3:8082",
  ]);
  const dns = {
    BATON_REPLICA_PEERS: '{"dns":"baton.internal","port":8082}',
    BATON_LISTEN_PEER: "10.0.0.1:1",
  };
  const peers = parseConfig({}, dns).replica?.peers as Record<string, unknown> | undefined;
  assert.is(peers?.dns, "baton.internal");
});

test("a service can come from the environment alone", () => {
  const services = JSON.stringify({ plain: UPSTREAM });
  assert.is(
    parseConfig({}, { BATON_SERVICES: services }).services.plain?.upstream,
    UPSTREAM.upstream,
  );
});

test("an unknown variable stops the start and the likely one is named", () => {
  assert.equal(problems({}, { BATON_LISTEN_TRAFIC: ":1" }), [
    "BATON_LISTEN_TRAFIC: there is no such key; did you mean BATON_LISTEN_TRAFFIC?",
  ]);
});

test("a bad variable is named together with its key", () => {
  assert.equal(problems({}, { BATON_SHUTDOWN_BUDGET_MS: "soon" }), [
    'BATON_SHUTDOWN_BUDGET_MS (shutdown.budgetMs) = "soon": ' +
    "allowed is a whole number of milliseconds, at least 0",
  ]);
});

test("variables that Kubernetes sets for a Service called baton are not ours", () => {
  assert.equal(
    problems({}, {
      BATON_SERVICE_HOST: "10.1.2.3",
      BATON_SERVICE_PORT: "8080",
      BATON_SERVICE_PORT_TRAFFIC: "8080",
      BATON_PORT: "tcp://10.1.2.3:8080",
      BATON_PORT_8080_TCP: "tcp://10.1.2.3:8080",
      BATON_PORT_8080_TCP_ADDR: "10.1.2.3",
      BATON_PEER_SERVICE_HOST: "10.1.2.4",
      BATON_PEER_PORT: "tcp://10.1.2.4:8082",
    }),
    [],
  );
});

test("the variable that a secret names is not a key, and its value is never printed", () => {
  const file = { replica: { peers: [], token: { env: "BATON_PEER_TOKEN" } } };
  assert.equal(problems(file, { BATON_PEER_TOKEN: "s3cret" }), []);
  const lines = problems({ replica: { token: "s3cret" }, admin: { token: { value: "s3cret" } } });
  assert.is(lines.length, 2);
  for (const line of lines) assert.not.match(line, "s3cret");
  assert.match(lines.at(-1) ?? "", '{ "env": "NAME" } or { "file": "/path" }');
});

test("two services whose names make the same variable: the variable is refused, not guessed", () => {
  const file = { services: { "a-b": UPSTREAM, a_b: { ...UPSTREAM, mount: "/x" } } };
  const lines = problems(file, { BATON_SERVICES_A_B_UPSTREAM: "http://127.0.0.1:1" });
  assert.equal(lines, [
    "BATON_SERVICES_A_B_UPSTREAM: stands for both services.a-b.upstream and services.a_b.upstream; " +
    "set them in the file",
  ]);
});

test("the admin listener off loopback needs a token", () => {
  const listen = { admin: "0.0.0.0:8081" };
  assert.match(problems({ listen })[0] ?? "", /^listen\.admin = "0\.0\.0\.0:8081": allowed is/);
  assert.equal(problems({ listen, admin: { token: { env: "TOKEN" } } }), []);
  assert.equal(problems({ listen: { admin: "[::1]:8081" } }), []);
});

test("the peer listener on a public address needs a token or an explicit word", () => {
  assert.match(problems({ replica: {} })[0] ?? "", /^listen\.peer = "0\.0\.0\.0:8082": allowed is/);
  assert.equal(problems({ replica: { token: { env: "TOKEN" } } }), []);
  assert.equal(problems({ replica: {}, listen: { allowOpenPeer: true } }), []);
  for (const own of ["10.1.2.3:1", "192.168.0.9:1", "172.16.0.1:1", "[fd00::1]:1", "127.0.0.1:1"]) {
    assert.equal(problems({ replica: {}, listen: { peer: own } }), [], own);
  }
  for (const open of ["8.8.8.8:1", "172.32.0.1:1", "[2001:db8::1]:1", "[::]:1", ":1"]) {
    assert.is(problems({ replica: {}, listen: { peer: open } }).length, 1, open);
  }
});

test("two listeners cannot have one address", () => {
  const lines = problems({ listen: { traffic: "127.0.0.1:8081" } });
  assert.match(lines[0] ?? "", "listen.traffic has this one");
  assert.equal(problems({ listen: { traffic: "127.0.0.1:0", admin: "127.0.0.1:0" } }), []);
});

test("a pool of generations names a service that has versions", () => {
  const pool = { model: "m", workers: { versions: "plain" } };
  const services = { plain: UPSTREAM, chat: { mount: "/v1", pool } };
  assert.match(problems({ services })[0] ?? "", "the name of a service that has versions");
});

test("replays without the events that they fill up are refused, wherever workers come from", () => {
  const versions = { mount: "/v", versions: { oracle: "file:./versions.json" } };
  const told = (workers: unknown) =>
    problems({ services: { a: { mount: "/", pool: { model: "m", workers } }, v: versions } });
  const worker = { id: "0", url: "http://127.0.0.1:9000", replay: "tcp://127.0.0.1:5558" };
  const cluster = { service: "w", port: "http", replayPort: "replay" };
  const [list] = told([worker]);
  assert.match(list ?? "", "services.a.pool.workers[0].replay");
  assert.match(list ?? "", "only together with kvEvents");
  const [offsets] = told({ versions: "v", replayPortOffset: 2 });
  assert.match(offsets ?? "", "workers.replayPortOffset");
  assert.match(offsets ?? "", "only together with kvEventsPortOffset");
  const [ports] = told({ kubernetes: cluster });
  assert.match(ports ?? "", "workers.kubernetes.replayPort");
  assert.match(ports ?? "", "only together with kvEventsPort");
  assert.equal(told([{ ...worker, kvEvents: "tcp://127.0.0.1:5557" }]), []);
});

test("two workers of a pool cannot have one id", () => {
  const worker = { id: "0", url: "http://127.0.0.1:1" };
  const pool = { model: "m", workers: [worker, worker] };
  assert.match(problems({ services: { chat: { mount: "/v1", pool } } })[0] ?? "", "an id that no");
});

const announce = (announceMs: number, budgetMs = 1_500_000) =>
  problems({ shutdown: { announceMs, budgetMs } });

test("case 182: no announcement is allowed", () => {
  assert.equal(announce(0), []);
});

test("case 183: an announcement shorter than the checks of a balancer is refused", () => {
  for (const ms of [500, 2000, 4000]) assert.match(announce(ms)[0] ?? "", "0, or at least 5000");
});

test("case 184: an announcement as long as the budget is refused", () => {
  assert.match(announce(10_000, 10_000)[0] ?? "", "less than shutdown.budgetMs");
});

test("case 185: 5 s of announcement in 90 s of budget is fine", () => {
  assert.equal(announce(5000, 90_000), []);
});

test("the grace of the children must fit into what the announcement leaves of the budget", () => {
  const versions = { oracle: "file:./versions.json", killGraceMs: 60_000 };
  const services = { shard: { mount: "/devshard", versions } };
  const shutdown = { announceMs: 5000, budgetMs: 60_000 };
  assert.match(
    problems({ services, shutdown })[0] ?? "",
    /^services\.shard\.versions\.killGraceMs = 60000: allowed is less than .* \(55000\)$/,
  );
});

test("a configuration that is no object at all is one clear problem", () => {
  for (const file of [[], 7, "x", null]) assert.is(problems(file).length, 1, JSON.stringify(file));
});

test.run();
