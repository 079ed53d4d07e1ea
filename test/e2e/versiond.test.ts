/**
 * Baton in versiond's place: started with versiond's environment only, an oracle over plain HTTP,
 * zips of a program that knows the print flags and has an admin listener. Cases of 4.28.
 */

import { type ChildProcess, spawn } from "node:child_process";
import { readFile } from "node:fs/promises";
import http from "node:http";
import type { AddressInfo } from "node:net";
import process from "node:process";
import { createInterface } from "node:readline";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { batonCommand, plainEnvironment } from "../support/baton_process.ts";
import { type BuildOptions, makeBuild, type TestBuild } from "../support/builds.ts";
import { inScratch, until } from "../support/scratch.ts";

/** versiond's mock oracle: a mutable list, a switch that makes it fail, and the artifacts. */
class Oracle {
  versions: Record<string, unknown>[] = [];
  failing = false;
  polls = 0;
  readonly #files = new Map<string, Uint8Array>();
  readonly #server = http.createServer((request, response) => {
    const file = this.#files.get(request.url ?? "");
    if (file !== undefined) return void response.end(file);
    if (request.url !== "/versions") return void response.writeHead(404).end();
    this.polls += 1;
    if (this.failing) return void response.writeHead(500).end();
    response.end(JSON.stringify({ versions: this.versions }));
  });

  async start(): Promise<void> {
    await new Promise<void>((resolve) => this.#server.listen(0, "127.0.0.1", resolve));
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  add(name: string, build: TestBuild, sha256 = build.sha256): void {
    this.#files.set(`/${build.sha256}.zip`, build.bytes);
    const entry = { name, port: 0, binary: `${this.url}/${build.sha256}.zip`, sha256 };
    this.versions = [...this.versions.filter((one) => one.name !== name), entry];
  }

  remove(name: string): void {
    this.versions = this.versions.filter((one) => one.name !== name);
  }

  /** Waits until three more polls have been answered. */
  async cycles(): Promise<void> {
    const from = this.polls;
    await until(() => this.polls >= from + 3, "three polls");
  }

  close(): Promise<unknown> {
    this.#server.closeAllConnections();
    return new Promise((resolve) => this.#server.close(resolve));
  }
}

interface Host {
  readonly url: string;
  readonly log: Record<string, unknown>[];
  get(path: string): Promise<{ status: number; text: string }>;
  /** Waits until the path answers with a text that begins so. */
  serves(path: string, start: string): Promise<void>;
  healthz(): Promise<{ name: string; status: string; sha256?: string; binary_version?: string }[]>;
  stop(): Promise<number | null>;
}

async function startHost(folder: string, oracle: Oracle): Promise<Host> {
  const { command, args } = batonCommand(["serve"]);
  const child: ChildProcess = spawn(command, args, {
    cwd: folder,
    env: plainEnvironment({
      VERSIOND_ORACLE_URL: `${oracle.url}/versions`,
      VERSIOND_POLL_INTERVAL: "150ms",
      VERSIOND_BIN_DIR: `${folder}/bin`,
      VERSIOND_DATA_DIR: `${folder}/data`,
      VERSIOND_DRAIN_POLL_INTERVAL: "50ms",
      VERSIOND_DRAIN_KILL_GRACE: "5s",
      DEVSHARD_SHUTDOWN_GRACE: "5s",
      VERSIOND_DRAIN_ANNOUNCE: "0s",
      BATON_LISTEN_TRAFFIC: "127.0.0.1:0",
      BATON_LISTEN_ADMIN: "127.0.0.1:0",
      BATON_BASE_PORT: String(20_000 + Math.floor(Math.random() * 20_000)),
      BATON_BAKE_MS: "0",
      BATON_RESTART_BACKOFF_MS: "50",
      SECRET_OF_THE_SUPERVISOR: "never",
    }),
    stdio: ["ignore", "ignore", "pipe"],
  });
  const kill = (): void => {
    if (child.pid !== undefined && child.exitCode === null) process.kill(child.pid, "SIGKILL");
  };
  process.on("exit", kill);
  const log: Record<string, unknown>[] = [];
  const exited = new Promise<number | null>((resolve) => child.on("close", resolve));
  let address = "";
  createInterface({ input: child.stderr as NodeJS.ReadableStream }).on("line", (text) => {
    try {
      const line = JSON.parse(text) as Record<string, unknown>;
      log.push(line);
      if (line.event === "listening" && line.listener === "traffic") address = String(line.address);
    } catch {
      log.push({ event: "noise", text });
    }
  });
  let ended = false;
  void exited.then(() => ended = true);
  await until(() => address !== "" || ended, "the traffic listener");
  if (address === "") throw new Error(`it ended: ${JSON.stringify(log)}`);
  const url = `http://${address}`;
  const get = async (path: string) => {
    const response = await fetch(url + path);
    return { status: response.status, text: await response.text() };
  };
  return {
    url,
    log,
    get,
    serves: (path, start) =>
      until(async () => {
        const { status, text } = await get(path);
        return status === 200 && text.startsWith(start);
      }, `${path} = ${start}`),
    healthz: async () => JSON.parse((await get("/healthz")).text),
    stop: () => {
      process.kill(child.pid ?? 0, "SIGTERM");
      const timer = setTimeout(kill, 20_000);
      return exited.finally(() => {
        clearTimeout(timer);
        process.off("exit", kill);
      });
    },
  };
}

function devshard(name: string, id: string, more: Partial<BuildOptions> = {}): Promise<TestBuild> {
  return makeBuild({
    id,
    binaryName: "devshard",
    adminApi: true,
    print: { protocolVersion: name, storageMode: "postgres" },
    ...more,
  });
}

async function onHost(
  action: (host: Host, oracle: Oracle, folder: string) => Promise<void>,
): Promise<void> {
  const oracle = new Oracle();
  await oracle.start();
  try {
    await inScratch(async (folder) => {
      const host = await startHost(folder, oracle);
      try {
        await action(host, oracle, folder);
      } finally {
        await host.stop();
      }
    });
  } finally {
    await oracle.close();
  }
}

test("case 258, 261, 267, 268: published versions are served on both paths, with SSE and /healthz", async () => {
  await onHost(async (host, oracle, folder) => {
    const build = await devshard("v1", "v1-r1");
    oracle.add("v1", build);
    await host.serves("/v1/x", "v1-r1");
    await host.serves("/devshard/v1/x", "v1-r1");
    const path = (await host.get("/devshard/v1/a/b?q=1%2F2")).text.split(" ")[2];
    assert.is(path, "/a/b?q=1%2F2");
    const events = (await host.get("/v1/events?count=5")).text;
    assert.is(events.split("\n\n").filter((event) => event.startsWith("data: v1-r1")).length, 5);

    oracle.add("v2", await devshard("v2", "v2-r1"));
    await host.serves("/v2/x", "v2-r1");
    await host.serves("/v1/x", "v1-r1");
    const health = await host.healthz();
    assert.equal(health.map((item) => [item.name, item.status, item.binary_version]), [
      ["v1", "running", "v1-r1"],
      ["v2", "running", "v2-r1"],
    ]);
    assert.is(health[0]?.sha256, build.sha256);

    const { env, argv } = JSON.parse((await host.get("/v1/env")).text);
    assert.is(env.DEVSHARD_BINARY_LOG_VERSION, "v1-r1");
    assert.match(env.DEVSHARD_ADMIN_ADDR, /^127\.0\.0\.1:\d+$/);
    assert.is(env.GONKA_HA, "false");
    assert.is(env.SECRET_OF_THE_SUPERVISOR, undefined);
    assert.is(env.VERSIOND_ORACLE_URL, undefined);
    assert.is(env.DEVSHARD_SHUTDOWN_GRACE, "5s");
    assert.equal(argv.slice(0, 3), ["--data-dir", `${folder}/data/v1`, "--port"]);
    const record = `${folder}/bin/v1/${build.sha256}/install.json`;
    assert.is(JSON.parse(await readFile(record, "utf8")).archive_sha256, build.sha256);
    const warnings = host.log.filter((line) => line.event === "configuration");
    assert.equal(warnings.length, 1, "plain http is accepted, and said");
  });
});

test("case 259: a child that is told to exit comes back; requests meanwhile wait instead of failing", async () => {
  await onHost(async (host, oracle) => {
    oracle.add("v1", await devshard("v1", "v1-r1"));
    await host.serves("/v1/x", "v1-r1");
    const pid = (await host.get("/v1/x")).text.split(" ")[1];
    const crash = await fetch(`${host.url}/v1/crash`, { method: "POST" });
    assert.is(crash.status, 502);
    await until(() => host.log.some((line) => line.event === "child_exited"), "its end");
    const { status, text } = await host.get("/v1/x");
    assert.is(status, 200, "held until the new process served");
    assert.is.not(text.split(" ")[1], pid);
  });
});

test("case 260, 263: a restart finds its install and its list, also while the oracle fails", async () => {
  const oracle = new Oracle();
  await oracle.start();
  await inScratch(async (folder) => {
    oracle.add("v1", await devshard("v1", "v1-r1"));
    const first = await startHost(folder, oracle);
    await first.serves("/v1/x", "v1-r1");
    oracle.failing = true;
    await oracle.cycles();
    assert.is((await first.get("/v1/x")).status, 200, "case 263");
    assert.is(await first.stop(), 0);
    const second = await startHost(folder, oracle);
    await second.serves("/v1/x", "v1-r1");
    assert.equal((await second.healthz()).map((item) => item.status), ["running"]);
    assert.not(second.log.some((line) => line.event === "download_started"));
    oracle.failing = false;
    await oracle.cycles();
    assert.is((await second.get("/v1/x")).status, 200);
    assert.is(await second.stop(), 0);
  });
  await oracle.close();
});

test("case 262, 264: a deleted version is 404, an emptied list is ignored", async () => {
  await onHost(async (host, oracle) => {
    oracle.add("v1", await devshard("v1", "v1-r1"));
    oracle.add("v2", await devshard("v2", "v2-r1"));
    await host.serves("/v1/x", "v1-r1");
    await host.serves("/v2/x", "v2-r1");
    oracle.remove("v2");
    await until(async () => (await host.get("/v2/x")).status === 404, "404");
    await until(async () => (await host.healthz()).length === 1, "its end");
    oracle.versions = [];
    await oracle.cycles();
    assert.is((await host.get("/v1/x")).status, 200);
  });
});

test("case 265, 266: a wrong or invalid hash: the old build keeps serving, a new slot never serves", async () => {
  await onHost(async (host, oracle) => {
    const build = await devshard("v1", "v1-r1");
    const next = await devshard("v1", "v1-r2");
    oracle.add("v1", build);
    await host.serves("/v1/x", "v1-r1");
    oracle.add("v1", next, "not a hash");
    await oracle.cycles();
    oracle.add("v1", next, "f".repeat(64));
    const refused = (name: string) => () =>
      host.log.some((line) =>
        line.event === "rollout_failed" && line.version === name && line.class === "hash"
      );
    await until(refused("v1"), "the refusal");
    await host.serves("/v1/x", "v1-r1");
    assert.equal((await host.healthz()).map((item) => [item.status, item.sha256]), [
      ["running", build.sha256],
    ]);
    oracle.add("v9", next, "e".repeat(64));
    await until(refused("v9"), "the refusal of v9");
    // Known but without a build that may run: not 404, so that no gateway gives the host up for it.
    assert.is((await host.get("/v9/x")).status, 503);
    oracle.add("v1", next);
    await host.serves("/v1/x", "v1-r2");
  });
});

test("case 269: a long request ends on the old build while new ones go to the new", async () => {
  await onHost(async (host, oracle) => {
    oracle.add("v1", await devshard("v1", "v1-r1"));
    await host.serves("/v1/x", "v1-r1");
    let ended = false;
    const slow = host.get("/v1/slow?ms=4000").then((answer) => {
      ended = true;
      return answer;
    });
    await host.get("/v1/x");
    oracle.add("v1", await devshard("v1", "v1-r2"));
    await host.serves("/v1/x", "v1-r2");
    assert.not(ended, "the long request is still on its way");
    const during = await host.healthz();
    assert.equal(during.map((item) => [item.binary_version, item.status]).sort(), [
      ["v1-r1", "draining"],
      ["v1-r2", "running"],
    ]);
    assert.equal(await slow, { status: 200, text: "v1-r1" });
    await until(async () => (await host.healthz()).length === 1, "the end of the drain");
  });
});

test.run();
