/** A real service: file oracle, children, traffic listener, in a folder of its own. */

import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import type * as v from "valibot";
import { defaultVersionsConfig, type versionsSchema } from "../../src/config/versions.ts";
import { EventJournal, type JournalEvent } from "../../src/observe/events.ts";
import { createLog, type Log } from "../../src/observe/log.ts";
import { createMetrics, type Metrics } from "../../src/observe/metrics.ts";
import { Routes } from "../../src/proxy/routes.ts";
import { startTraffic, type TrafficServer } from "../../src/proxy/traffic.ts";
import type { Files } from "../../src/runtime/runtime.ts";
import { createSupervisor, type Supervisor } from "../../src/supervisor/supervisor.ts";
import { basePort } from "../support/baton_process.ts";
import { type BuildOptions, FileOracle, makeBuild, type TestBuild } from "../support/builds.ts";
import { runtime } from "../support/runtime.ts";
import { until } from "../support/until.ts";

export { until };

export type ConfigInput = Partial<v.InferInput<typeof versionsSchema>>;

/** Short times, so that a test is over soon; each test says which of them matter to it. */
export const QUICK: ConfigInput = {
  binaryName: "child",
  overlap: "always",
  allowEmpty: true,
  pollIntervalMs: 60_000,
  readyIntervalMs: 15,
  readyTimeoutMs: 60_000,
  monitorIntervalMs: 50,
  bakeMs: 0,
  drainPollMs: 20,
  drainTimeoutMs: 60_000,
  drainCushionMs: 100,
  killGraceMs: 2_000,
  childGraceMs: 0,
  restartBackoffMs: 50,
  retryBackoffMs: 100,
  holdTimeoutMs: 60_000,
};

export interface Harness {
  readonly folder: string;
  readonly oracle: FileOracle;
  readonly supervisor: Supervisor;
  readonly traffic: TrafficServer;
  readonly origin: string;
  readonly events: EventJournal;
  readonly metrics: Metrics;
  /** Every log line, parsed. */
  readonly lines: Record<string, unknown>[];
  /** Makes a build, publishes it under the name, and has the oracle polled. */
  publish(name: string, options: BuildOptions): Promise<TestBuild>;
  remove(name: string): Promise<void>;
  /** GET (or what `method` says); the text of the answer. */
  get(path: string, method?: string): Promise<{ status: number; text: string; headers: Headers }>;
  /**
   * Makes the serving child kill itself; the status of the request that did it. A POST: a GET might
   * be sent again, and kill the next one too.
   */
  crash(name: string): Promise<number>;
  /** Lets the gated answers of a version's child end. */
  openGate(name: string): Promise<void>;
  /** Waits until the version answers with this build. */
  serves(name: string, build: string): Promise<void>;
  /** Waits for the first event of a kind (after `since`) that the filter takes. */
  event(
    kind: string,
    filter?: (event: JournalEvent) => boolean,
    since?: number,
  ): Promise<JournalEvent>;
  /** Lines of a file in a version's data folder; none if it does not exist. */
  dataLines(name: string, file: string): Promise<string[]>;
  /** Stops everything and removes the folder. */
  close(options?: { keepFolder?: boolean }): Promise<void>;
}

export interface HarnessOptions {
  readonly folder?: string;
  readonly config?: ConfigInput;
  readonly start?: boolean;
  /** The disk, if it is not to be the real one. */
  readonly files?: Files;
  /** Told of every log line. */
  readonly onLine?: (line: string) => void;
}

export async function createHarness(options: HarnessOptions = {}): Promise<Harness> {
  const folder = options.folder ?? await mkdtemp(`${tmpdir()}/baton-test-`);
  const oracle = new FileOracle(`${folder}/oracle`);
  if (options.folder === undefined) await oracle.write();
  const lines: Record<string, unknown>[] = [];
  const log: Log = createLog({
    write: (line) => {
      lines.push(JSON.parse(line) as Record<string, unknown>);
      options.onLine?.(line);
    },
    now: () => runtime.clock.now(),
    level: "debug",
  });
  const events = EventJournal.inMemory({ runtime, log, keep: 100_000 });
  const metrics = createMetrics();
  const supervisor = await createSupervisor({
    runtime: { ...runtime, files: options.files ?? runtime.files },
    log,
    metrics,
    events,
    service: "shard",
    mounts: ["/", "/devshard"],
    config: defaultVersionsConfig({
      ...QUICK,
      basePort: basePort(),
      ...options.config,
      oracle: options.config?.oracle ?? `file:${oracle.path}`,
    }),
    stateDir: `${folder}/state`,
  });
  const routes = new Routes();
  routes.replace([supervisor]);
  const traffic = await startTraffic({
    runtime,
    log,
    metrics,
    routes,
    listen: { address: { kind: "tcp", host: "127.0.0.1", port: 0 } },
    accessLog: false,
  });
  const { address } = traffic;
  if (address.kind !== "tcp") throw new Error("not a TCP listener");
  const origin = `http://127.0.0.1:${address.port}`;
  if (options.start !== false) await supervisor.start();

  // Twice: the first call may join a poll that had read the list before it was written.
  const poll = async (): Promise<void> => {
    await supervisor.pollNow();
    await supervisor.pollNow();
  };
  const harness: Harness = {
    folder,
    oracle,
    supervisor,
    traffic,
    origin,
    events,
    metrics,
    lines,
    async publish(name, build) {
      const made = await makeBuild(build);
      await oracle.publish(name, made);
      await poll();
      return made;
    },
    async remove(name) {
      await oracle.remove(name);
      await poll();
    },
    async get(path, method = "GET") {
      const response = await runtime.http.fetch(`${origin}${path}`, { method });
      return { status: response.status, text: await response.text(), headers: response.headers };
    },
    openGate: (name) => writeFile(`${folder}/state/shard/data/${name}/gate`, ""),
    crash: (name) => harness.get(`/${name}/crash`, "POST").then((answer) => answer.status, () => 0),
    async serves(name, build) {
      await until(
        async () => (await harness.get(`/${name}/who`)).text.startsWith(`${build} `),
        `${name} served by ${build}`,
      );
    },
    async event(kind, filter = () => true, since = 0) {
      let found: JournalEvent | undefined;
      await until(
        () => {
          found = events.since(since).find((event) => event.kind === kind && filter(event));
          return found !== undefined;
        },
        `the event ${kind}`,
        () => events.since(since).map((one) => one.kind),
      );
      return found as JournalEvent;
    },
    async dataLines(name, file) {
      try {
        const path = `${folder}/state/shard/data/${name}/${file}`;
        return (await readFile(path, "utf8")).split("\n").filter((line) => line !== "");
      } catch {
        return [];
      }
    },
    async close(how = {}) {
      await supervisor.kill();
      await supervisor.quiesce();
      traffic.destroy();
      await traffic.close();
      if (how.keepFolder !== true) {
        await rm(folder, { recursive: true, force: true, maxRetries: 5 });
      }
    },
  };
  return harness;
}

export function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

/** Runs a test against a fresh harness, which is closed whatever happens. */
export function withHarness(
  options: HarnessOptions,
  body: (harness: Harness) => Promise<void>,
): () => Promise<void> {
  return async () => {
    const harness = await createHarness(options);
    try {
      await body(harness);
    } finally {
      await harness.close();
    }
  };
}

/** GET with header lines; the text of the answer. */
export async function runtimeFetch(
  url: string,
  headers: Record<string, string>,
): Promise<string> {
  return await (await runtime.http.fetch(url, { headers })).text();
}
