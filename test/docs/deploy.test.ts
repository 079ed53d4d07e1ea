/** docs/deploy/, the Containerfile and scripts/image: what they say is accepted, fits, and exists. */

import { test } from "uvu";
import * as assert from "uvu/assert";
import { spawnSync } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { chmod, mkdir, symlink, writeFile } from "node:fs/promises";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { parseConfig } from "../../src/config/load.ts";
import { peerAddress } from "../../src/config/rules.ts";
import type { Config } from "../../src/config/schema.ts";
import { runVerb } from "../support/baton_process.ts";
import { parseYaml, type Yaml } from "../support/plain_yaml.ts";
import { inScratch } from "../support/scratch.ts";

const root = fileURLToPath(new URL("../../", import.meta.url));
const read = (name: string): string => readFileSync(`${root}docs/deploy/${name}`, "utf8");

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

/** The manifests of a file, with what the tests ask them. */
class Manifests {
  readonly all: Yaml[];

  constructor(file: string) {
    this.all = parseYaml(read(file));
  }

  one(kind: string, name: string): Yaml {
    const found = this.all.filter((each) =>
      at(each, "kind") === kind && at(each, "metadata", "name") === name
    );
    assert.is(found.length, 1, `${kind} ${name}`);
    return found[0] ?? null;
  }

  configText(name: string): string {
    return String(at(this.one("ConfigMap", name), "data", "baton.json"));
  }

  portsOf(service: string): (Yaml | undefined)[] {
    return list(at(this.one("Service", service), "spec", "ports")).map((port) => at(port, "name"));
  }
}

const router = new Manifests("kubernetes-router.yaml");
const versions = new Manifests("kubernetes-versions.yaml");

test("every configuration passes baton check", async () => {
  const texts = [read("baton.json"), router.configText("baton"), versions.configText("baton-app")];
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
  const unit = new Map(
    read("baton.service").split("\n").filter((line) => /^\w+=/.test(line)).map((line) => {
      const [key = "", ...rest] = line.split("=");
      return [key, rest.join("=")] as const;
    }),
  );
  const { shutdown, stateDir } = parseConfig(JSON.parse(read("baton.json")));
  assert.ok(Number(unit.get("TimeoutStopSec")) * 1000 > shutdown.budgetMs);
  assert.is(unit.get("KillMode"), "mixed");
  assert.is(`/var/lib/${unit.get("StateDirectory")}`, stateDir);
  assert.match(read("baton.socket"), "ListenStream=0.0.0.0:8080");
  assert.is(unit.get("Requires"), "baton.socket");
});

test("systemd accepts the units, where there is one to ask", async () => {
  await inScratch(async (folder) => {
    const files = ["baton.service", "baton.socket"].map((name) => `${folder}/${name}`);
    for (const name of ["baton.service", "baton.socket"]) {
      // Only the program must be there.
      await writeFile(
        `${folder}/${name}`,
        read(name).replaceAll("/usr/bin/node", process.execPath),
      );
    }
    const verified = spawnSync("systemd-analyze", ["verify", ...files], { encoding: "utf8" });
    if (verified.error !== undefined) return assert.match(String(verified.error), "ENOENT");
    assert.equal([verified.status, verified.stderr.trim()], [0, ""]);
  });
});

/** What a workload needs whatever it is for; `controller` is the Deployment or StatefulSet. */
function checkWorkload(manifests: Manifests, controller: Yaml, name: string): Config {
  const config = parseConfig(JSON.parse(manifests.configText(name)));
  const pod = at(controller, "spec", "template", "spec");
  const container = at(pod, "containers", 0);
  for (const each of manifests.all) {
    for (const key of ["apiVersion", "kind"]) assert.type(at(each, key), "string");
  }
  const grace = Number(at(pod, "terminationGracePeriodSeconds"));
  assert.ok(grace * 1000 > config.shutdown.budgetMs, `${name}: ${grace} s`);
  assert.equal(at(container, "lifecycle", "preStop", "exec", "command"), ["baton", "drain"]);
  // Ports of the container are those that Baton listens on.
  const ports = new Map(
    list(at(container, "ports")).map((port) => [at(port, "name"), at(port, "containerPort")]),
  );
  const { traffic, admin } = config.listen;
  const peer = peerAddress(config);
  const addresses = Object.entries({ traffic, admin, ...(peer === undefined ? {} : { peer }) });
  assert.equal([...ports.keys()], addresses.map(([listener]) => listener));
  for (const [listener, address] of addresses) {
    assert.is(address.kind, "tcp", listener);
    if (address.kind === "tcp") assert.is(ports.get(listener), address.port, listener);
  }
  for (const probe of ["readinessProbe", "livenessProbe"]) {
    assert.ok(ports.has(at(container, probe, "httpGet", "port")), probe);
  }
  // Services and the budget select the pods.
  const labels = at(controller, "spec", "template", "metadata", "labels");
  assert.equal(at(controller, "spec", "selector", "matchLabels"), labels);
  assert.equal(at(manifests.one("Service", name), "spec", "selector"), labels);
  const budget = manifests.one("PodDisruptionBudget", name);
  assert.equal(at(budget, "spec", "selector", "matchLabels"), labels);
  // Secrets that the configuration takes from the environment are there, and so are the volumes.
  const env = list(at(container, "env")).map((variable) => at(variable, "name"));
  for (const [, secret = ""] of manifests.configText(name).matchAll(/"env": "(\w+)"/g)) {
    assert.ok(env.includes(secret), secret);
  }
  const volumes = [
    ...list(at(pod, "volumes")).map((volume) => at(volume, "name")),
    ...list(at(controller, "spec", "volumeClaimTemplates")).map((claim) =>
      at(claim, "metadata", "name")
    ),
  ];
  const mounts = list(at(container, "volumeMounts"));
  for (const mount of mounts) assert.ok(volumes.includes(at(mount, "name")));
  // The paths that the image tells Baton to use.
  const containerfile = readFileSync(`${root}Containerfile`, "utf8");
  for (const path of ["/etc/baton", "/var/lib/baton"]) {
    assert.ok(mounts.some((mount) => at(mount, "mountPath") === path), path);
    assert.match(containerfile, `=${path}`);
  }
  return config;
}

test("the router's manifests fit the configuration in them", () => {
  const deployment = router.one("Deployment", "baton");
  const config = checkWorkload(router, deployment, "baton");
  const peers = config.replica?.peers;
  assert.ok(peers !== undefined && "kubernetes" in peers);
  if (peers !== undefined && "kubernetes" in peers) {
    assert.ok(router.portsOf(peers.kubernetes.service).includes(peers.kubernetes.port));
    const service = router.one("Service", peers.kubernetes.service);
    assert.is(at(service, "spec", "clusterIP"), "None");
    const labels = at(deployment, "spec", "template", "metadata", "labels");
    assert.equal(at(service, "spec", "selector"), labels);
  }
  const workers = config.services.chat?.pool?.workers;
  assert.ok(workers !== undefined && "kubernetes" in workers);
  if (workers !== undefined && "kubernetes" in workers) {
    const { service, port, kvEventsPort = "", replayPort = "" } = workers.kubernetes;
    for (const name of [port, kvEventsPort, replayPort]) {
      assert.ok(router.portsOf(service).includes(name), name);
    }
  }
  // What Baton may ask, and how it knows which of the endpoints it is itself.
  const [slices] = list(at(router.one("Role", "baton"), "rules"));
  assert.equal(at(slices, "resources"), ["endpointslices"]);
  assert.equal(at(slices, "verbs"), ["get", "list", "watch"]);
  const pod = at(deployment, "spec", "template", "spec");
  assert.is(at(pod, "serviceAccountName"), "baton");
  const env = list(at(pod, "containers", 0, "env"));
  assert.ok(env.some((variable) => at(variable, "name") === "POD_IP"));
});

test("the manifests of a versions service fit the configuration in them", () => {
  const set = versions.one("StatefulSet", "baton-app");
  const config = checkWorkload(versions, set, "baton-app");
  const { budgetMs, announceMs } = config.shutdown;
  const drainMs = config.services.app?.versions?.drainTimeoutMs ?? Infinity;
  assert.ok(drainMs + announceMs <= budgetMs, "a drain fits into the budget");
  const service = versions.one("Service", String(at(set, "spec", "serviceName")));
  assert.is(at(service, "spec", "clusterIP"), "None");
  assert.equal(
    at(service, "spec", "selector"),
    at(set, "spec", "template", "metadata", "labels"),
  );
  const claims = list(at(set, "spec", "volumeClaimTemplates"));
  assert.equal(claims.map((claim) => at(claim, "metadata", "name")), ["state"]);
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
    assert.match(stage, /^HEALTHCHECK .* CMD \["baton", "status"\]$/m);
    // As a list: a shell in between would keep the signals. So does the command itself: `exec`.
    assert.match(stage, /^ENTRYPOINT \["baton"\]$/m);
    assert.match(stage, /^CMD \["serve"\]$/m);
    assert.match(
      stage,
      /\\nexec (node|deno run -A --no-check) \/opt\/baton\/src\/main\.ts "\$@"\\n/,
    );
    for (const [, copied = ""] of stage.matchAll(/^COPY (\S+.*) \S+$/gm)) {
      assert.not.match(copied, "test");
    }
  }
});

test("scripts/image builds with the engine that is there, and says when there is none", async () => {
  await inScratch(async (folder) => {
    const run = (engine: string, ...args: string[]) =>
      spawnSync("/bin/bash", [`${root}scripts/image`, ...args], {
        env: { PATH: `${folder}/${engine}` },
        encoding: "utf8",
      });
    for (const engine of ["podman", "buildah", "docker", "none"]) {
      await mkdir(`${folder}/${engine}`);
      for (const tool of ["dirname", "bash"]) {
        const found = spawnSync("/bin/sh", ["-c", `command -v ${tool}`], { encoding: "utf8" });
        await symlink(found.stdout.trim(), `${folder}/${engine}/${tool}`);
      }
      if (engine === "none") continue;
      await writeFile(`${folder}/${engine}/${engine}`, '#!/bin/bash\necho "$@"\n');
      await chmod(`${folder}/${engine}/${engine}`, 0o755);
      const built = run(engine, "--runtime", "deno", "--no-cache");
      const format = engine === "docker" ? "" : " --format docker";
      assert.is(
        built.stdout,
        `build --file Containerfile --target deno --tag baton:deno${format} --no-cache .\n`,
        built.stderr,
      );
      assert.match(run(engine).stdout, "--target node --tag baton:node");
      assert.is(run(engine, "--runtime", "bun").status, 2);
    }
    const none = run("none");
    assert.is(none.status, 1);
    assert.match(none.stderr, "podman, buildah or docker");
  });
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
