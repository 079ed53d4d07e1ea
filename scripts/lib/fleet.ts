/**
 * Real processes for the demo and the benches: Batons, mock workers, builds of the child program.
 *
 * Everything lives in one folder that goes away at the end, on ports that the system chose; every
 * process that was started here is ended here, by its pid.
 */

import { type ChildProcess, spawn } from "node:child_process";
import { createWriteStream, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { type BuildOptions, makeBuild } from "../../test/support/builds.ts";
import { runtimeCommand, type RuntimeName } from "./bench.ts";

const ROOT = fileURLToPath(new URL("../..", import.meta.url));
const START_LIMIT_MS = 30_000;

export interface BatonProcess {
  readonly traffic: string;
  readonly admin: string;
  readonly peer: string;
  readonly pid: number;
  /** When the process was started, by `performance.now()`. */
  readonly startedAt: number;
  stop(signal?: NodeJS.Signals): Promise<void>;
}

export interface BatonPorts {
  readonly traffic: number;
  readonly admin: number;
  readonly peer: number;
}

export class Fleet {
  readonly folder = mkdtempSync(join(tmpdir(), "baton-"));
  readonly #runtime: RuntimeName;
  readonly #running = new Set<ChildProcess>();

  constructor(runtime: RuntimeName) {
    this.#runtime = runtime;
  }

  path(...parts: string[]): string {
    return join(this.folder, ...parts);
  }

  async ports(): Promise<BatonPorts> {
    const [traffic = 0, admin = 0, peer = 0] = await freePorts(3);
    return { traffic, admin, peer };
  }

  /** Starts a Baton with this configuration (listeners and state folder are filled in). */
  startBaton(name: string, ports: BatonPorts, config: Record<string, unknown>): BatonProcess {
    const address = (port: number) => `127.0.0.1:${port}`;
    const file = this.path(`${name}.json`);
    writeFileSync(
      file,
      JSON.stringify(
        {
          listen: {
            traffic: address(ports.traffic),
            admin: address(ports.admin),
            peer: address(ports.peer),
          },
          stateDir: this.path(name),
          shutdown: { announceMs: 0 },
          ...config,
        },
        null,
        2,
      ),
    );
    const startedAt = performance.now();
    const child = this.#spawn(name, [...this.#baton(), "serve", "--config", file]);
    return {
      traffic: `http://${address(ports.traffic)}`,
      admin: `http://${address(ports.admin)}`,
      peer: `http://${address(ports.peer)}`,
      pid: child.pid ?? 0,
      startedAt,
      stop: (signal = "SIGTERM") => end(child, signal),
    };
  }

  /** Starts a mock worker and waits for its address. */
  async startMockWorker(name: string, args: readonly string[]): Promise<string> {
    const main = join(ROOT, "scripts/lib/mock_worker_main.ts");
    const child = this.#spawn(name, [...runtimeCommand(ROOT, "node"), main, "--id", name, ...args]);
    return await new Promise((resolve, reject) => {
      child.once("exit", (code) => reject(new Error(`${name} exited with ${code}`)));
      child.stdout?.once("data", (line: Uint8Array) => resolve(JSON.parse(String(line)).url));
    });
  }

  /** Makes a build of the child program and publishes it, as an operator would. */
  async publish(oracle: string, version: string, build: BuildOptions): Promise<void> {
    const made = await makeBuild(build);
    const file = this.path(`${build.id}.zip`);
    writeFileSync(file, made.bytes);
    const args = ["publish", version, file, "--oracle", oracle, "--binary-name", "child"];
    const child = this.#spawn(`publish-${build.id}`, [...this.#baton(), ...args]);
    const code = await new Promise((resolve) => child.once("exit", resolve));
    if (code !== 0) {
      throw new Error(`baton publish exited with ${code}: ${this.log(`publish-${build.id}`)}`);
    }
  }

  /** What a process has written so far. */
  log(name: string): string {
    return readFileSync(this.path(`${name}.log`), "utf8");
  }

  /** Ends everything and removes the folder. */
  async close(): Promise<void> {
    await Promise.all([...this.#running].map((child) => end(child, "SIGTERM")));
    rmSync(this.folder, { recursive: true, force: true });
  }

  #baton(): string[] {
    return [...runtimeCommand(ROOT, this.#runtime), join(ROOT, "src/main.ts")];
  }

  #spawn(name: string, command: readonly string[]): ChildProcess {
    const [program = "", ...args] = command;
    const child = spawn(program, args, {
      stdio: ["ignore", "pipe", "pipe"],
      cwd: this.folder,
      env: { PATH: process.env["PATH"], HOME: process.env["HOME"], NO_COLOR: "1" },
    });
    const log = createWriteStream(this.path(`${name}.log`), { flags: "a" });
    child.stdout?.pipe(log, { end: false });
    child.stderr?.pipe(log, { end: false });
    this.#running.add(child);
    child.once("close", () => {
      this.#running.delete(child);
      log.end();
    });
    return child;
  }
}

/** Asks until `accept` says yes to the answer. Throws after half a minute, saying what came last. */
export async function until<T>(
  what: string,
  ask: () => Promise<T>,
  accept: (answer: T) => boolean,
  limitMs = START_LIMIT_MS,
): Promise<T> {
  const deadline = performance.now() + limitMs;
  let last: unknown;
  while (performance.now() < deadline) {
    try {
      const answer = await ask();
      if (accept(answer)) return answer;
      last = JSON.stringify(answer);
    } catch (error) {
      last = error;
    }
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  throw new Error(`waited in vain for ${what}; last: ${last}`);
}

// deno-lint-ignore no-explicit-any -- answers of several shapes, read by the demo and the benches
export async function getJson(url: string): Promise<any> {
  return await (await fetch(url)).json();
}

/** Ports that are free now, on loopback. */
async function freePorts(count: number): Promise<number[]> {
  const servers = await Promise.all(
    Array.from({ length: count }, () =>
      new Promise<ReturnType<typeof createServer>>((resolve) => {
        const server = createServer().listen(0, "127.0.0.1", () => resolve(server));
      })),
  );
  return await Promise.all(servers.map((server) => {
    const address = server.address();
    const port = typeof address === "object" && address !== null ? address.port : 0;
    return new Promise<number>((resolve) => server.close(() => resolve(port)));
  }));
}

async function end(child: ChildProcess, signal: NodeJS.Signals): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const gone = new Promise<void>((resolve) => child.once("exit", () => resolve()));
  child.kill(signal);
  const timer = setTimeout(() => child.kill("SIGKILL"), 15_000);
  await gone;
  clearTimeout(timer);
}
