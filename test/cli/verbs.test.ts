/** The command line without a running Baton: arguments, help, check, publish, exit codes. */

import { test } from "uvu";
import * as assert from "uvu/assert";
import { readFileSync } from "node:fs";
import { readFile, writeFile } from "node:fs/promises";
import { parseArguments, UsageError } from "../../src/cli/arguments.ts";
import { statusText } from "../../src/cli/status_text.ts";
import { BATON_VERSION } from "../../src/version.ts";
import { runBaton, runVerb } from "../support/baton_process.ts";
import { runtime } from "../support/runtime.ts";
import { inScratch } from "../support/scratch.ts";

const RULES = { options: ["config", "lines"], flags: ["follow"], plain: [1, 2] } as const;
const parse = (...words: string[]) => parseArguments(words, RULES);

function usageError(action: () => unknown): string {
  try {
    action();
  } catch (error) {
    if (error instanceof UsageError) return error.message;
    throw error;
  }
  return "no error";
}

test("options take the next word or what follows the equals sign, flags take none", () => {
  const given = parse("v1", "--config", "a.json", "--follow", "--lines=5");
  assert.equal(given.plain, ["v1"]);
  assert.is(given.option("config"), "a.json");
  assert.is(given.whole("lines", 0, 10), 5);
  assert.ok(given.flag("follow"));
  assert.not(parse("v1").flag("follow"));
  assert.is(parse("v1").option("config"), undefined);
  assert.equal(parse("--", "--follow").plain, ["--follow"]);
});

test("what a verb does not take is refused", () => {
  assert.is(usageError(() => parse("v1", "--what")), "unknown option --what");
  assert.is(usageError(() => parse("v1", "-f")), "unknown option -f");
  assert.is(usageError(() => parse("v1", "--config")), "--config needs a value");
  assert.is(usageError(() => parse("v1", "--config", "")), "--config needs a value");
  assert.is(usageError(() => parse("v1", "--config=")), "--config needs a value");
  assert.is(usageError(() => parse("v1", "--config", "--follow")), "--config needs a value");
  assert.is(parse("v1", "--config=--odd").option("config"), "--odd");
  assert.is(
    usageError(() => parse("v1", "--conifg", "x")),
    "unknown option --conifg; did you mean --config?",
  );
  assert.is(usageError(() => parse("v1", "--follow=yes")), "--follow takes no value");
  assert.is(usageError(() => parse()), "an argument is missing");
  assert.is(usageError(() => parse("a", "b", "c")), "unexpected argument c");
  for (const lines of ["11", "-1", "x", "1.5"]) {
    const message = usageError(() => parse("v1", `--lines=${lines}`).whole("lines", 0, 10));
    assert.is(message, "--lines must be a whole number from 0 to 10");
  }
});

test("help lists every verb, and each verb has its own", async () => {
  const { code, stdout } = await runBaton(["help"]);
  assert.is(code, 0);
  const verbs = [...stdout.matchAll(/^ {2}(\w+) {2,}/gm)].map(([, verb]) => verb ?? "");
  assert.ok(verbs.includes("serve") && verbs.includes("rollback"), stdout);
  for (const words of [["publish", "--help"], ["publish", "-h"], ["help", "publish"]]) {
    const one = await runVerb(words);
    assert.is(one.code, 0);
    assert.match(one.stdout, "usage: baton publish <version> <file>");
  }
});

test("an unknown verb and a wrong option end with code 2", async () => {
  const unknown = await runBaton(["server"]);
  assert.is(unknown.code, 2);
  assert.match(unknown.stderr, 'there is no verb "server"; did you mean serve?');
  for (const words of [["help", "server"], ["server", "--help"]]) {
    assert.is((await runVerb(words)).code, 2, words.join(" "));
  }
  const two = await runVerb(["version", "1"]);
  assert.is(two.code, 2);
  assert.match(two.stderr, "unexpected argument 1");
  const wrong = await runVerb(["check", "--colour"]);
  assert.is(wrong.code, 2);
  assert.match(wrong.stderr, "unknown option --colour");
  assert.match(wrong.stderr, "usage: baton check");
});

test("the version is the package's", async () => {
  const root = new URL("../../", import.meta.url);
  assert.is(JSON.parse(readFileSync(new URL("package.json", root), "utf8")).version, BATON_VERSION);
  const { stdout } = await runVerb(["version"]);
  assert.match(stdout, `baton ${BATON_VERSION} (${"Deno" in globalThis ? "deno" : "node"} `);
});

test("check names what would be served", async () => {
  await inScratch(async (folder) => {
    const file = `${folder}/baton.json`;
    const services = {
      shard: { mount: ["/", "/devshard"], versions: { oracle: "file:./versions.json" } },
      plain: { mount: "/plain", upstream: "http://127.0.0.1:3000" },
    };
    await writeFile(file, JSON.stringify({ services, listen: { peer: "127.0.0.1:8082" } }));
    const { code, stdout } = await runVerb(["check", "--config", file]);
    assert.is(code, 0);
    assert.match(stdout, "traffic 0.0.0.0:8080, admin 127.0.0.1:8081, peer 127.0.0.1:8082\n");
    assert.match(stdout, "service shard at /, /devshard: versions from file:./versions.json\n");
    assert.match(stdout, "service plain at /plain: upstream http://127.0.0.1:3000\n");
    assert.ok(stdout.endsWith("ok\n"));
  });
});

test("publish writes an artifact and its entry; what it cannot publish changes nothing", async () => {
  await inScratch(async (folder) => {
    const oracle = `${folder}/versions.json`;
    const program = `${folder}/app`;
    await writeFile(program, "#!/bin/sh\nexit 0\n");
    const args = ["--oracle", oracle, "--binary-name", "app"];
    const done = await runVerb(["publish", "v1", program, ...args]);
    assert.is(done.code, 0, done.stderr);
    const published = JSON.parse(done.stdout);
    const listed = JSON.parse(await readFile(oracle, "utf8"));
    assert.is(listed.versions[0].name, "v1");
    assert.is(listed.versions[0].sha256, published.sha256);
    const before = await readFile(oracle, "utf8");
    for (const bad of [["../v1", program], ["v1", `${folder}/absent`], ["v1", folder]]) {
      const failed = await runVerb(["publish", ...bad, ...args]);
      assert.is(failed.code, 1, bad.join(" "));
      assert.match(failed.stderr, /^baton publish: /);
    }
    assert.is(await readFile(oracle, "utf8"), before);
  });
});

test("publish and logs ask for a service when the configuration leaves it open", async () => {
  await inScratch(async (folder) => {
    const file = `${folder}/baton.json`;
    const versions = (name: string) => ({
      mount: `/${name}`,
      versions: { oracle: `file:${folder}/${name}.json`, binaryName: "app" },
    });
    await writeFile(file, JSON.stringify({ services: { a: versions("a"), b: versions("b") } }));
    const publish = await runVerb(["publish", "v1", file, "--config", file]);
    assert.is(publish.code, 2);
    assert.match(publish.stderr, "several services have versions (a, b); say --service <name>");
    const logs = await runVerb(["logs", "v1", "--config", file]);
    assert.is(logs.code, 1, "the command line is right: nothing was printed yet");
    assert.match(logs.stderr, "there is no log of a version v1: no process of it has printed");
    const other = await runVerb(["logs", "v1", "--service", "c", "--config", file]);
    assert.is(other.code, 2);
    assert.match(other.stderr, "the configuration has no service c with versions");
  });
});

test("verbs that ask a running Baton say when nobody answers", async () => {
  const { code, stderr } = await runVerb(["status", "--admin", "http://127.0.0.1:1"]);
  assert.is(code, 1);
  assert.match(stderr, "baton status: no answer from http://127.0.0.1:1");
});

test("an address that is no URL, and one where no Baton answers, are told apart", async () => {
  const bare = await runVerb(["status", "--admin", "127.0.0.1:8081"]);
  assert.is(bare.code, 2);
  assert.match(bare.stderr, "--admin = 127.0.0.1:8081: give a URL as http://127.0.0.1:8081");
  const named = await runVerb(["drain"], { BATON_ADMIN_URL: "localhost" });
  assert.is(named.code, 2);
  assert.match(named.stderr, "BATON_ADMIN_URL = localhost: give a URL");
  const server = await runtime.http.serve(
    { address: { kind: "tcp", host: "127.0.0.1", port: 0 } },
    () => new Response("<p>hello</p>"),
  );
  try {
    const { address } = server;
    const admin = address.kind === "tcp" ? `http://127.0.0.1:${address.port}` : "";
    for (const verb of [["status"], ["drain"], ["resume", "v1"]]) {
      const { code, stderr } = await runVerb([...verb, "--admin", admin]);
      assert.is(code, 1, verb.join(" "));
      assert.match(stderr, "with 200: is that the admin listener of a Baton?");
    }
  } finally {
    await server.destroy();
  }
});

test("an operator's verb takes the options that mean something to it", async () => {
  const admin = ["--admin", "http://127.0.0.1:1"];
  const refused = await runVerb(["pause", "v1", "--sha256", "x", ...admin]);
  assert.is(refused.code, 2);
  assert.match(refused.stderr, /unknown option --sha256\nusage: baton pause <version> .*--traffic/);
  assert.is((await runVerb(["pin", "v1", "--sha256", "x", ...admin])).code, 1, "nobody answers");
});

test("a decision that was not saved is said on standard error, with code 1", async () => {
  let answer: Record<string, unknown> = { done: "pause", paused: true };
  const server = await runtime.http.serve(
    { address: { kind: "tcp", host: "127.0.0.1", port: 0 } },
    () => Response.json(answer),
  );
  const { address } = server;
  const admin = address.kind === "tcp" ? `http://127.0.0.1:${address.port}` : "";
  try {
    assert.is((await runVerb(["pause", "v1", "--admin", admin])).code, 0);
    answer = { ...answer, saved: false, warning: "in effect, but not saved" };
    const ended = await runVerb(["pause", "v1", "--admin", admin]);
    assert.is(ended.code, 1);
    assert.is(ended.stderr, "pause v1: in effect, but not saved\n");
    assert.equal(JSON.parse(ended.stdout), answer);
  } finally {
    await server.destroy();
  }
});

test("the status text shows generations, what is missing, and who owes answers", () => {
  const text = statusText({
    url: "http://127.0.0.1:8081",
    ready: {
      ready: false,
      draining: false,
      inflight: 3,
      conditions: [
        { name: "serving", ok: true, reason: "serving" },
        { name: "recovery", ok: false, reason: "3 of 8 lanes" },
        { name: "tls certificate", ok: true, reason: "valid until tomorrow" },
      ],
    },
    drain: { targets: [{ service: "shard", version: "v1", leases: 0 }] },
    versions: {
      versions: [
        {
          service: "shard",
          name: "v1",
          generations: [{
            generation: 2,
            role: "current",
            phase: "running",
            buildId: "b7",
            sha256: "b".repeat(64),
          }],
        },
        {
          service: "shard",
          name: "v2",
          goal: `listed ${"a".repeat(64)}`,
          generations: [],
          notes: ["a sentence that is longer than sixty letters, and is not cut at its end"],
        },
      ],
    },
    workers: {
      workers: [{
        service: "chat",
        worker: "w0",
        leases: 2,
        load: { prefillTokens: 640 },
        lanes: [{ dpRank: 0, state: "live", cursor: "51", blocks: 678 }],
      }],
    },
    peers: { peers: [] },
    recovery: {
      state: "fetching",
      reason: "receiving the dump of http://b:8082",
      elapsedMs: 1500,
      lanes: { restored: 3, pending: 5, degraded: 0 },
      blocks: 12,
      bytes: 2_500_000,
      blocksPerS: 8,
      etaMs: 2000,
      source: "http://b:8082",
      attempts: [
        { peer: "http://a:8082", outcome: "failed", reason: "status 401\n" },
        { peer: "http://b:8082", outcome: "some_lanes" },
      ],
      laneReports: [
        { worker: "w0", outcome: "degraded", reason: "a hole" },
        { worker: "w1", outcome: "degraded", reason: "a hole" },
        { worker: "w2", outcome: "restored" },
      ],
    },
  });
  const lines = text.split("\n");
  assert.is(lines[0], "baton at http://127.0.0.1:8081: not ready, 3 in flight");
  assert.is(lines[1], "  waiting for recovery: 3 of 8 lanes");
  assert.is(lines[2], "  tls certificate: valid until tomorrow");
  assert.match(text, /shard +v1 +2 +current +running +b7 b{12} /);
  assert.match(text, /shard +v2 .* listed a{12}\n/);
  assert.match(
    text,
    "\n  shard v2: a sentence that is longer than sixty letters, and is not cut at",
  );
  assert.match(text, /chat +w0 +2 +640 +0 +live +51 +678/);
  assert.ok(text.includes("  fetching: receiving the dump of http://b:8082\n"), text);
  assert.match(
    text,
    "lanes 3 restored, 5 pending; 12 blocks; 2.5 MB; 8 blocks/s; 1.5 s so far; 2.0 s left",
  );
  assert.ok(
    text.includes("\n  last failure: http://a:8082: status 401\n  2 degraded: a hole"),
    text,
  );
  assert.not.match(text, "owing answers");
  assert.not.match(text, "peers");
});

test.run();
