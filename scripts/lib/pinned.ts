/** Programs pinned to one core, with their CPU time: what the data path benches start. */

import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { readdirSync, readFileSync } from "node:fs";
import { connect, createServer } from "node:net";

const TICKS_PER_S = 100;

export class Pinned {
  readonly name: string;
  readonly process: ChildProcess;
  output = "";

  /** `core` is a number, or several as in "0,1". */
  constructor(name: string, core: number | string, command: readonly string[]) {
    this.name = name;
    this.process = spawn("taskset", ["-c", String(core), ...command], {
      stdio: ["ignore", "pipe", "pipe"],
    });
    this.process.stdout?.on("data", (chunk) => (this.output += chunk));
    this.process.stderr?.on("data", (chunk) => (this.output += chunk));
  }

  /** The port that the program prints as its first line. */
  async printedPort(): Promise<number> {
    const end = Date.now() + 15_000;
    while (!/^\d+\s/m.test(this.output)) {
      if (Date.now() > end || this.process.exitCode !== null) {
        throw new Error(`${this.name} did not start: ${this.output}`);
      }
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
    return Number(/^(\d+)\s/m.exec(this.output)?.[1]);
  }

  /** CPU time of the program and its children so far, in microseconds. */
  cpuUs(): number {
    let ticks = 0;
    for (const pid of family(this.process.pid ?? 0)) {
      const fields = statFields(pid);
      if (fields !== undefined) ticks += Number(fields[11]) + Number(fields[12]);
    }
    return ticks * 1_000_000 / TICKS_PER_S;
  }

  /** CPU time of the program's first thread so far, in microseconds. */
  mainThreadCpuUs(): number {
    const pid = this.process.pid ?? 0;
    const fields = statFields(pid, `task/${pid}/`);
    return (Number(fields?.[11] ?? 0) + Number(fields?.[12] ?? 0)) * 1_000_000 / TICKS_PER_S;
  }

  /** Resident memory of the program and its children, in bytes. */
  rssBytes(): number {
    let pages = 0;
    for (const pid of family(this.process.pid ?? 0)) pages += Number(statFields(pid)?.[21] ?? 0);
    return pages * 4096;
  }

  async stop(): Promise<void> {
    if (this.process.exitCode !== null || this.process.signalCode !== null) return;
    this.process.kill("SIGTERM");
    const timer = setTimeout(() => this.process.kill("SIGKILL"), 1000);
    await once(this.process, "exit");
    clearTimeout(timer);
  }
}

/** Fields of /proc/pid/stat from the third (state) on. */
function statFields(pid: number, thread = ""): string[] | undefined {
  try {
    const text = readFileSync(`/proc/${pid}/${thread}stat`, "latin1");
    return text.slice(text.lastIndexOf(")") + 2).split(" ");
  } catch {
    return undefined;
  }
}

function family(root: number): number[] {
  const pids = [root];
  for (const name of readdirSync("/proc")) {
    const pid = Number(name);
    if (!Number.isInteger(pid)) continue;
    const parent = Number(statFields(pid)?.[1]);
    if (parent === root) pids.push(pid);
  }
  return pids;
}

/** A port that is free now. */
export async function freePort(): Promise<number> {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const address = server.address();
  server.close();
  if (address === null || typeof address === "string") throw new Error("no port");
  return address.port;
}

/** Waits until something listens on the port. */
export async function untilListening(port: number): Promise<void> {
  const end = Date.now() + 10_000;
  for (;;) {
    const socket = connect(port, "127.0.0.1");
    const isUp = await new Promise<boolean>((resolve) => {
      socket.once("connect", () => resolve(true));
      socket.once("error", () => resolve(false));
    });
    socket.destroy();
    if (isUp) return;
    if (Date.now() > end) throw new Error(`nothing listens on port ${port}`);
    await new Promise((resolve) => setTimeout(resolve, 25));
  }
}

export interface LoadResult {
  readonly requests: number;
  readonly rps: number;
  /** NaN with HTTP/2: h2load does not tell. */
  readonly p50Ms: number;
  readonly p99Ms: number;
  readonly failed: number;
}

/** What to ask, and how. */
export interface Load {
  readonly connections: number;
  readonly seconds: number;
  /** Default `/x`. */
  readonly path?: string;
  readonly headers?: readonly string[];
  readonly tls?: boolean;
  /** A file in Lua that makes the requests; GET without it. */
  readonly script?: string;
}

/** Runs wrk on a core against a port. */
export async function wrk(core: number, port: number, load: Load): Promise<LoadResult> {
  const { connections, seconds, script, path = "/x", headers = [], tls = false } = load;
  const text = await outputOf(core, [
    "wrk",
    "-t1",
    `-c${connections}`,
    `-d${seconds}s`,
    "--latency",
    ...headers.flatMap((header) => ["-H", header]),
    ...(script === undefined ? [] : ["-s", script]),
    `${tls ? "https" : "http"}://127.0.0.1:${port}${path}`,
  ]);
  const requests = Number(/(\d+) requests in/.exec(text)?.[1] ?? NaN);
  const rps = Number(/Requests\/sec:\s+([\d.]+)/.exec(text)?.[1] ?? NaN);
  const bad = Number(/Non-2xx or 3xx responses: (\d+)/.exec(text)?.[1] ?? 0);
  const errors = /Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)/.exec(text);
  const failed = bad + (errors?.slice(1).reduce((sum, count) => sum + Number(count), 0) ?? 0);
  return { requests, rps, p50Ms: latency(text, "50%"), p99Ms: latency(text, "99%"), failed };
}

/** Runs h2load on a core against a port, in the clear. */
export async function h2load(
  core: number,
  port: number,
  { connections, seconds, path = "/x" }: Load,
  streams: number,
): Promise<LoadResult> {
  const text = await outputOf(core, [
    "h2load",
    `-c${connections}`,
    `-m${streams}`,
    `-D${seconds}`,
    `http://127.0.0.1:${port}${path}`,
  ]);
  const rps = Number(/finished in [\d.]+\w+, ([\d.]+) req\/s/.exec(text)?.[1] ?? NaN);
  const counts = /(\d+) succeeded, (\d+) failed, (\d+) errored/.exec(text);
  const [requests = NaN, failed = NaN, errored = NaN] = counts?.slice(1).map(Number) ?? [];
  return { requests, rps, p50Ms: NaN, p99Ms: NaN, failed: failed + errored };
}

/** All that a program says that runs on a core to its end. */
async function outputOf(core: number, command: readonly string[]): Promise<string> {
  const run = spawn("taskset", ["-c", String(core), ...command], {
    stdio: ["ignore", "pipe", "pipe"],
  });
  let text = "";
  run.stdout.on("data", (chunk) => (text += chunk));
  run.stderr.on("data", (chunk) => (text += chunk));
  await once(run, "close");
  return text;
}

function latency(text: string, row: string): number {
  const match = new RegExp(`\\s${row}\\s+([\\d.]+)(us|ms|s)`).exec(text);
  if (match === null) return NaN;
  const scale = match[2] === "us" ? 0.001 : match[2] === "ms" ? 1 : 1000;
  return Number(match[1]) * scale;
}
