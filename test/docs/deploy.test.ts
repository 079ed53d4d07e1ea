/** docs/deploy.md and the Containerfile: what they say is accepted, fits together, and exists. */

import { test } from "uvu";
import * as assert from "uvu/assert";
import { existsSync, globSync, readFileSync } from "node:fs";
import { writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { parseConfig } from "../../src/config/load.ts";
import { peerAddress } from "../../src/config/rules.ts";
import { runVerb } from "../support/baton_process.ts";
import { parseYaml, type Yaml } from "../support/plain_yaml.ts";
import { inScratch } from "../support/scratch.ts";

const root = fileURLToPath(new URL("../../", import.meta.url));
const page = readFileSync(`${root}docs/deploy.md`, "utf8");

const blocks = (kind: string): string[] =>
  [...page.matchAll(new RegExp(`^\`\`\`${kind}\n([\\s\\S]*?)^\`\`\``, "gm"))]
    .map(([, block]) => block ?? "");

/** A value inside of parsed YAML: `at(pod, "spec", 0, "name")`. */
function at(value: Yaml | undefined, ...path: (string | number)[]): Yaml | undefined {
  let found = value;
  for (const step of path) {
    if (typeof found !== "object" || found === null) return undefined;
    found = (found as Record<string | number, Yaml>)[step];
  }
  return found;
}

const list = (value: Yaml | undefined): Yaml[] => Array.isArray(value) ? value : [];

function manifests(): Yaml[] {
  const [text] = blocks("yaml");
  return parseYaml(text ?? "");
}

function one(kind: string, name: string): Yaml {
  const found = manifests().filter((each) =>
    at(each, "kind") === kind && at(each, "metadata", "name") === name
  );
  assert.is(found.length, 1, `${kind} ${name}`);
  return found[0] ?? null;
}

const configInMap = (): string => String(at(one("ConfigMap", "baton"), "data", "baton.json"));
const pod = (): Yaml | undefined => at(one("Deployment", "baton"), "spec", "template", "spec");
const container = (): Yaml | undefined => at(pod(), "containers", 0);

test("every configuration passes baton check", async () => {
  const texts = [...blocks("json baton.json"), configInMap()];
  assert.is(texts.length, 2);
  await inScratch(async (folder) => {
    for (const text of texts) {
      await writeFile(`${folder}/baton.json`, text);
      const secrets = [...text.matchAll(/"env": "(\w+)"/g)].map(([, name = ""]) => name);
      const env = Object.fromEntries(secrets.map((name) => [name, `the secret ${name}`]));
      const checked = await runVerb(["check", "--config", `${folder}/baton.json`], env);
      assert.is(checked.code, 0, checked.stderr);
    }
  });
});

test("systemd waits longer than Baton drains, and signals Baton alone first", () => {
  const [text = ""] = blocks("ini baton.service");
  const unit = new Map(
    text.split("\n").filter((line) => /^\w+=/.test(line)).map((line) => {
      const [key = "", ...rest] = line.split("=");
      return [key, rest.join("=")] as const;
    }),
  );
  const { shutdown, stateDir } = parseConfig(JSON.parse(blocks("json baton.json")[0] ?? ""));
  assert.ok(Number(unit.get("TimeoutStopSec")) * 1000 > shutdown.budgetMs);
  assert.is(unit.get("KillMode"), "mixed");
  assert.is(`/var/lib/${unit.get("StateDirectory")}`, stateDir);
  const [socket = ""] = blocks("ini baton.socket");
  assert.match(socket, "ListenStream=0.0.0.0:8080");
  assert.is(unit.get("Requires"), "baton.socket");
});

test("the manifests fit the configuration in them", () => {
  const config = parseConfig(JSON.parse(configInMap()));
  const spec = one("Deployment", "baton");
  for (const each of manifests()) {
    for (const key of ["apiVersion", "kind"]) assert.type(at(each, key), "string");
  }
  const grace = Number(at(pod(), "terminationGracePeriodSeconds"));
  assert.ok(grace * 1000 > config.shutdown.budgetMs);
  // Ports of the container are those that Baton listens on.
  const ports = new Map(
    list(at(container(), "ports")).map((port) => [at(port, "name"), at(port, "containerPort")]),
  );
  const { traffic, admin } = config.listen;
  const addresses = { traffic, admin, peer: peerAddress(config) };
  for (const [name, address] of Object.entries(addresses)) {
    assert.is(address?.kind, "tcp", name);
    if (address?.kind === "tcp") assert.is(ports.get(name), address.port, name);
  }
  for (const probe of ["readinessProbe", "livenessProbe"]) {
    assert.ok(ports.has(at(container(), probe, "httpGet", "port")), probe);
  }
  // Services select the pods, and have the ports that are asked for by name.
  const labels = at(spec, "spec", "template", "metadata", "labels");
  const selectors = [
    at(spec, "spec", "selector", "matchLabels"),
    at(one("Service", "baton"), "spec", "selector"),
    at(one("Service", "baton-peers"), "spec", "selector"),
    at(one("PodDisruptionBudget", "baton"), "spec", "selector", "matchLabels"),
  ];
  for (const selector of selectors) assert.equal(selector, labels);
  const portsOf = (service: string) =>
    list(at(one("Service", service), "spec", "ports")).map((port) => at(port, "name"));
  const peers = config.replica?.peers;
  assert.ok(peers !== undefined && "kubernetes" in peers);
  if (peers !== undefined && "kubernetes" in peers) {
    assert.ok(portsOf(peers.kubernetes.service).includes(peers.kubernetes.port));
    assert.is(at(one("Service", peers.kubernetes.service), "spec", "clusterIP"), "None");
  }
  const workers = config.services.chat?.pool?.workers;
  assert.ok(workers !== undefined && "kubernetes" in workers);
  if (workers !== undefined && "kubernetes" in workers) {
    const { service, port, kvEventsPort = "", replayPort = "" } = workers.kubernetes;
    for (const name of [port, kvEventsPort, replayPort]) {
      assert.ok(portsOf(service).includes(name), name);
    }
  }
  // What Baton may ask, and what it has to be told.
  const [slices] = list(at(one("Role", "baton"), "rules"));
  assert.equal(at(slices, "verbs"), ["get", "list", "watch"]);
  assert.is(at(pod(), "serviceAccountName"), "baton");
  const env = list(at(container(), "env")).map((variable) => at(variable, "name"));
  for (const name of ["POD_IP", "BATON_PEER_TOKEN", "BATON_ADMIN_TOKEN"]) {
    assert.ok(env.includes(name), name);
  }
  const volumes = list(at(pod(), "volumes")).map((volume) => at(volume, "name"));
  for (const mount of list(at(container(), "volumeMounts"))) {
    assert.ok(volumes.includes(at(mount, "name") ?? null));
  }
});

test("every metric that a page on running Baton names exists", () => {
  const known = new Set<string>();
  for (const file of globSync("src/**/*.ts", { cwd: root })) {
    const source = readFileSync(`${root}${file}`, "utf8");
    for (const [, name = ""] of source.matchAll(/"(baton_[a-z0-9_]+)"/g)) known.add(name);
  }
  const unknown: string[] = [];
  let named = 0;
  for (const name of ["deploy", "operations", "recovery"]) {
    const text = readFileSync(`${root}docs/${name}.md`, "utf8");
    for (const [metric] of text.matchAll(/\bbaton_[a-z0-9_]+\b/g)) {
      named += 1;
      const plain = metric.replace(/_(bucket|sum|count)$/, "");
      if (!known.has(metric) && !known.has(plain)) unknown.push(`${name}: ${metric}`);
    }
  }
  assert.equal(unknown, []);
  assert.ok(named > 30, `${named} are named`);
});

test("the image is made of files that are there, runs without root, and starts what exists", () => {
  const text = readFileSync(`${root}Containerfile`, "utf8");
  const stages = text.split(/^FROM /m).slice(2);
  assert.is(stages.length, 2);
  const ignored = readFileSync(`${root}.dockerignore`, "utf8").split("\n");
  for (const [, from = "", names = ""] of text.matchAll(/^COPY (--from=\S+ )?(.*) \S+$/gm)) {
    for (const name of from === "" ? names.split(" ") : []) {
      assert.ok(existsSync(`${root}${name}`), name);
      assert.ok(ignored.includes(`!${name.split("/")[0]}`), name);
    }
  }
  for (const stage of stages) {
    assert.match(stage, /^USER 1000:1000$/m);
    assert.match(stage, /^HEALTHCHECK [\s\S]*?CMD \[.*"status"/m);
    // As a list: a shell in between would keep the signals.
    assert.match(stage, /^ENTRYPOINT \[.*"\/opt\/baton\/src\/main\.ts"\]$/m);
    assert.match(stage, /^CMD \["serve", "--config", "\/etc\/baton\/baton\.json"\]$/m);
    for (const [, copied = ""] of stage.matchAll(/^COPY (\S+.*) \S+$/gm)) {
      assert.not.match(copied, "test");
    }
  }
});

test("the reader of YAML refuses what it does not know", () => {
  assert.equal(parseYaml('a: 1\nb:\n  - c: "x"\n    d: [1, 2]\n  - plain\nt: |\n  x\n   y\n'), [
    { a: 1, b: [{ c: "x", d: [1, 2] }, "plain"], t: "x\n y\n" },
  ]);
  for (const text of ["a: 1\na: 2\n", "a: &x 1\n", "a:\n   b: 1\n  c: 2\n", "\ta: 1\n", "just\n"]) {
    assert.throws(() => parseYaml(text), undefined, text);
  }
});

test.run();
