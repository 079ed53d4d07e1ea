/**
 * Baton as a host of versiond's: started with versiond's environment, against an oracle like its
 * mock one.
 */

import { type ChildProcess, spawn } from "node:child_process";
import { mkdir, writeFile } from "node:fs/promises";
import http from "node:http";
import type { AddressInfo } from "node:net";
import process from "node:process";
import { createInterface } from "node:readline";
import { basePort, batonCommand, onExit, plainEnvironment } from "./baton_process.ts";
import { type BuildOptions, makeBuild, type TestBuild } from "./builds.ts";
import { DEADLINE_MS, until } from "./until.ts";

/** versiond's mock oracle: a mutable list, a switch that makes it fail, and the artifacts. */
export class MockOracle {
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

export interface VersiondHost {
  readonly url: string;
  readonly log: Record<string, unknown>[];
  get(path: string): Promise<{ status: number; text: string }>;
  /** Waits until the path answers with a text that begins so. */
  serves(path: string, start: string): Promise<void>;
  healthz(): Promise<{ name: string; status: string; sha256?: string; binary_version?: string }[]>;
  /** Lets the gated answers of a version's child end. */
  openGate(version: string): Promise<void>;
  /** SIGTERM; resolves with the exit code. */
  stop(): Promise<number | null>;
}

/** Starts Baton with versiond's names, its own folders below `folder`, and quick intervals. */
export async function startHost(
  folder: string,
  oracle: MockOracle,
  more: Record<string, string> = {},
): Promise<VersiondHost> {
  await mkdir(folder, { recursive: true });
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
      BATON_BASE_PORT: String(basePort()),
      BATON_BAKE_MS: "0",
      BATON_HOLD_TIMEOUT_MS: "60000",
      BATON_RESTART_BACKOFF_MS: "50",
      SECRET_OF_THE_SUPERVISOR: "never",
      ...more,
    }),
    stdio: ["ignore", "ignore", "pipe"],
  });
  const kill = (): void => {
    if (child.pid !== undefined && child.exitCode === null) process.kill(child.pid, "SIGKILL");
  };
  const spare = onExit(kill);
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
    openGate: (version) => writeFile(`${folder}/data/${version}/gate`, ""),
    stop: () => {
      if (!ended) process.kill(child.pid ?? 0, "SIGTERM");
      const timer = setTimeout(kill, DEADLINE_MS);
      return exited.finally(() => {
        clearTimeout(timer);
        spare();
      });
    },
  };
}

/** A build of a devshard program for a slot. */
export function devshard(
  name: string,
  id: string,
  more: Partial<BuildOptions> = {},
): Promise<TestBuild> {
  return makeBuild({
    id,
    binaryName: "devshard",
    adminApi: true,
    print: { protocolVersion: name, storageMode: "postgres" },
    ...more,
  });
}
