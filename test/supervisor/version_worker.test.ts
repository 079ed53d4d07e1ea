/**
 * A version's worker in a made-up world: its clock, processes and children are simulated, so that
 * thousands of histories of rollouts, crashes and operators' calls can be tried in seconds.
 */

import { setImmediate } from "node:timers/promises";
import fc from "fast-check";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { defaultVersionsConfig } from "../../src/config/versions.ts";
import { silentLog } from "../../src/observe/log.ts";
import { createMetrics } from "../../src/observe/metrics.ts";
import {
  type ChildProcess,
  type Clock,
  ConnectFailed,
  FileMissing,
  type ProcessExit,
  type Runtime,
} from "../../src/runtime/runtime.ts";
import type { Builds } from "../../src/supervisor/builds.ts";
import type { DesiredVersion } from "../../src/supervisor/catalog.ts";
import { Children } from "../../src/supervisor/children.ts";
import type { ServiceContext } from "../../src/supervisor/context.ts";
import { RolloutFailure } from "../../src/supervisor/failure.ts";
import type { Build, Generation } from "../../src/supervisor/generation.ts";
import { Generations } from "../../src/supervisor/generations.ts";
import { Holds } from "../../src/supervisor/hold.ts";
import { Launcher } from "../../src/supervisor/launcher.ts";
import { Memory } from "../../src/supervisor/memory.ts";
import { operate, type OperatorVerb } from "../../src/supervisor/operators.ts";
import { PortPool } from "../../src/supervisor/ports.ts";
import { Quarantine } from "../../src/supervisor/quarantine.ts";
import { Reports } from "../../src/supervisor/reports.ts";
import { Slots } from "../../src/supervisor/slots.ts";
import { VersionWorker } from "../../src/supervisor/version_worker.ts";
import type { ConfigInput } from "./harness.ts";

/** What a build's children do. */
interface Nature {
  readonly readyMs: number;
  /** It ends by itself so long after its start. */
  readonly crashMs?: number;
  readonly installMs: number;
  readonly installFails?: boolean;
  readonly preflightFails?: boolean;
  /** Its drain status counts down from here. */
  readonly busyPolls: number;
  readonly termMs: number;
}

const GOOD: Nature = { readyMs: 200, installMs: 500, busyPolls: 2, termMs: 50 };
const NATURES: Readonly<Record<string, Nature>> = {
  a: GOOD,
  b: { ...GOOD, readyMs: 1_500, busyPolls: 20 },
  c: { ...GOOD, installMs: 5_000, termMs: 3_000 },
  crashing: { ...GOOD, crashMs: 2_000 },
  stillborn: { ...GOOD, crashMs: 50 },
  never: { ...GOOD, readyMs: Infinity },
  broken: { ...GOOD, installFails: true },
  wrong: { ...GOOD, preflightFails: true },
};

interface SimulatedChild {
  readonly build: string;
  readonly startedAt: number;
  alive: boolean;
  polls: number;
  end(exit: ProcessExit): void;
}

/** A clock that is moved by the test; everything here settles within two turns of the event loop. */
class TestClock implements Clock {
  #at = 0;
  readonly #timers = new Set<{ due: number; action: () => void }>();

  now(): number {
    return 1_700_000_000_000 + this.#at;
  }

  monotonic(): number {
    return this.#at;
  }

  after(delayMs: number, action: () => void): () => void {
    const timer = { due: this.#at + delayMs, action };
    this.#timers.add(timer);
    return () => this.#timers.delete(timer);
  }

  async advance(ms: number): Promise<void> {
    const end = this.#at + ms;
    await setImmediate();
    for (;;) {
      let next: { due: number; action: () => void } | undefined;
      for (const timer of this.#timers) {
        if (timer.due <= end && (next === undefined || timer.due < next.due)) next = timer;
      }
      if (next === undefined) break;
      this.#timers.delete(next);
      this.#at = Math.max(this.#at, next.due);
      next.action();
      await setImmediate();
      await setImmediate();
    }
    this.#at = end;
  }
}

class World {
  readonly clock = new TestClock();
  readonly children = new Map<number, SimulatedChild>();
  readonly started: string[] = [];
  /** The most children of the version that were alive at one time. */
  mostAlive = 0;
  #lastPid = 1000;

  get runtime(): Runtime {
    const missing = (): never => {
      throw new Error("not simulated");
    };
    const fake = {
      name: "node",
      version: "0",
      pid: 999,
      args: [],
      env: () => ({}),
      clock: this.clock,
      random: {
        number: () => 0.5,
        uuid: () => "owner",
        bytes: (length: number) => new Uint8Array(length),
      },
      files: {
        lockFolder: () => Promise.resolve({ kind: "locked", release() {} }),
        readText: () => Promise.reject(new FileMissing("none")),
        writeAtomic: () => Promise.resolve(),
        makeFolder: () => Promise.resolve(),
        rename: () => Promise.resolve(),
      },
      processes: {
        spawn: (options: { command: string; args: readonly string[] }) =>
          Promise.resolve(this.#spawn(options.command, options.args)),
        startTime: () => Promise.resolve("1"),
        portHolders: () => Promise.resolve([]),
      },
      http: { fetch: (url: string, init?: RequestInit) => this.#answer(new URL(url), init) },
      net: { connect: missing },
    };
    return fake as unknown as Runtime;
  }

  #spawn(command: string, args: readonly string[]): ChildProcess {
    const build = command.slice(1);
    const nature = NATURES[build] ?? GOOD;
    const port = Number(args[args.indexOf("--port") + 1]);
    this.#lastPid += 1;
    let finish: (exit: ProcessExit) => void = () => {};
    const exited = new Promise<ProcessExit>((resolve) => (finish = resolve));
    const child: SimulatedChild = {
      build,
      startedAt: this.clock.monotonic(),
      alive: true,
      polls: nature.busyPolls,
      end: (exit) => {
        if (!child.alive) return;
        child.alive = false;
        this.children.delete(port);
        finish(exit);
      },
    };
    assert.not(this.children.has(port), "two children were given one port");
    this.children.set(port, child);
    this.started.push(build);
    this.mostAlive = Math.max(this.mostAlive, this.children.size);
    if (nature.crashMs !== undefined) {
      this.clock.after(nature.crashMs, () => child.end({ code: 3 }));
    }
    return {
      pid: this.#lastPid,
      exited,
      signalGroup: (signal) => {
        if (signal === "SIGKILL") child.end({ signal });
        else this.clock.after(nature.termMs, () => child.end({ code: 0 }));
        return child.alive;
      },
    };
  }

  async #answer(url: URL, init?: RequestInit): Promise<Response> {
    await Promise.resolve();
    const child = this.children.get(Number(url.port));
    if (child === undefined) throw new ConnectFailed("refused", "refused");
    const nature = NATURES[child.build] ?? GOOD;
    if (url.pathname === "/ready") {
      const ready = this.clock.monotonic() - child.startedAt >= nature.readyMs;
      return new Response("", { status: ready ? 200 : 503 });
    }
    if (url.pathname === "/drain" && init?.method === "POST") return new Response("{}");
    if (url.pathname === "/drain/status") {
      child.polls = Math.max(0, child.polls - 1);
      return new Response(JSON.stringify({ inflight: child.polls }));
    }
    return new Response("", { status: 404 });
  }
}

interface Simulation {
  readonly world: World;
  readonly worker: VersionWorker;
  readonly context: ServiceContext;
  readonly events: { kind: string; fields: Record<string, unknown> }[];
  list(build: string | undefined): void;
  operate(verb: OperatorVerb, sha256?: string): Promise<string>;
}

async function simulate(input: ConfigInput = {}): Promise<Simulation> {
  const world = new World();
  const { runtime, clock } = world;
  const config = defaultVersionsConfig({
    oracle: "file:none",
    binaryName: "child",
    overlap: "always",
    command: ["{binary}", "--port", "{port}"],
    readyTimeoutMs: 3_000,
    readyMaxWaitMs: 10_000,
    bakeMs: 4_000,
    drainTimeoutMs: 20_000,
    killGraceMs: 1_000,
    ...input,
  });
  const events: Simulation["events"] = [];
  const { children } = await Children.open(runtime, silentLog, "state");
  const generations = new Generations();
  const installed: string[] = [];
  const builds = {
    installed: () => Promise.resolve([...installed]),
    isIntact: () => Promise.resolve(true),
    forget: () => {},
    install: async (_name: string, sha256: string, _desired: unknown, signal: AbortSignal) => {
      const nature = NATURES[sha256] ?? GOOD;
      if (!installed.includes(sha256)) {
        await new Promise<void>((resolve, reject) => {
          const cancel = clock.after(nature.installMs, resolve);
          signal.addEventListener("abort", () => {
            cancel();
            reject(signal.reason);
          });
        });
        if (nature.installFails) throw new RolloutFailure("transient", "no network");
        installed.unshift(sha256);
      }
      return { name: "v1", sha256, binary: `/${sha256}`, folder: "/" };
    },
    check: (install: { sha256: string }): Promise<Build> => {
      if (NATURES[install.sha256]?.preflightFails) {
        return Promise.reject(new RolloutFailure("preflight", "speaks another protocol"));
      }
      return Promise.resolve({
        sha256: install.sha256,
        binary: `/${install.sha256}`,
        folder: "/",
        buildId: install.sha256,
        storageMode: "",
        adminApi: false,
      });
    },
  };
  const context: ServiceContext = {
    service: "s",
    runtime,
    config,
    reports: new Reports({
      service: "s",
      log: silentLog,
      events: { emit: (kind, fields) => events.push({ kind, fields: { ...fields } }) },
      metrics: createMetrics(),
    }),
    generations,
    launcher: new Launcher({
      runtime,
      log: silentLog,
      config,
      ports: new PortPool({ base: 5000, isFree: () => Promise.resolve(true) }),
      children,
      generations,
      dataDir: "data",
      output: () => ({ write() {}, close() {} }),
      mayStart: () => true,
      stopGraceMs: config.killGraceMs,
    }),
    builds: builds as unknown as Builds,
    starts: new Slots(4),
    holds: new Holds({ clock, maxRequests: 100, maxBytes: 1e6 }),
    quarantine: await Quarantine.open({
      files: runtime.files,
      clock,
      random: runtime.random,
      log: silentLog,
      retryBackoffMs: config.retryBackoffMs,
      retryBackoffMaxMs: config.retryBackoffMaxMs,
    }),
    memory: await Memory.open(runtime.files, silentLog, "state"),
    stopGraceMs: config.killGraceMs,
    mayStart: () => true,
    orphansOf: () => [],
    background: (work) => void work,
    changed: () => {},
  };
  const worker = new VersionWorker(context, "v1");
  return {
    world,
    worker,
    context,
    events,
    list: (build) => {
      const desired: DesiredVersion | undefined = build === undefined
        ? undefined
        : { name: "v1", url: "file:x", sha256: build };
      worker.setDesired(desired, undefined);
    },
    operate: async (verb, sha256) => {
      try {
        await operate(context, worker, verb, sha256 === undefined ? {} : { sha256 });
        return "done";
      } catch (error) {
        return (error as Error).message;
      }
    },
  };
}

/** What must hold at every moment, whatever happened. */
function checkInvariants({ worker, context, world }: Simulation): void {
  const all = [...context.generations];
  const published = all.filter((one) => one.target !== undefined);
  const { current, canary, warm } = worker;
  const allowed: (Generation | undefined)[] = [current, canary];
  for (const one of published) {
    assert.ok(allowed.includes(one), `${one.label} is published and is ${one.role}`);
    assert.is(one.phase, "running");
  }
  if (current !== undefined) assert.ok(all.includes(current));
  for (const one of all) {
    if (one.phase === "running") assert.ok([current, canary, warm].includes(one), one.role);
    if (one.role === "leaving") assert.ok(one.drain !== undefined || one.phase === "stopped");
  }
  // Every living process is somebody's: none is forgotten.
  const owned = all.filter((one) => one.process !== undefined && one.process.state !== "exited");
  assert.ok(world.children.size <= owned.length + 1, "a process without a generation");
  if (!worker.known) assert.equal(published, []);
}

type Step =
  | { readonly do: "list"; readonly build: string | undefined }
  | { readonly do: "crash" }
  | { readonly do: "pass"; readonly ms: number }
  | { readonly do: "operate"; readonly verb: OperatorVerb; readonly build?: string | undefined };

const anyBuild = fc.constantFrom(...Object.keys(NATURES));
const anyStep: fc.Arbitrary<Step> = fc.oneof(
  { weight: 4, arbitrary: fc.record({ do: fc.constant("list" as const), build: anyBuild }) },
  fc.record({ do: fc.constant("list" as const), build: fc.constant(undefined) }),
  fc.record({ do: fc.constant("crash" as const) }),
  {
    weight: 6,
    arbitrary: fc.record({
      do: fc.constant("pass" as const),
      ms: fc.oneof(fc.nat(300), fc.nat(6_000)),
    }),
  },
  {
    weight: 2,
    arbitrary: fc.record({
      do: fc.constant("operate" as const),
      verb: fc.constantFrom<OperatorVerb[]>(
        "pause",
        "resume",
        "pin",
        "unpin",
        "rollback",
        "promote",
        "deny",
        "allow",
        "restart",
      ),
      build: fc.option(anyBuild, { nil: undefined }),
    }),
  },
);

async function take(simulation: Simulation, step: Step): Promise<void> {
  const { world, worker } = simulation;
  if (step.do === "list") simulation.list(step.build);
  if (step.do === "operate") await simulation.operate(step.verb, step.build);
  if (step.do === "crash") {
    const child = [...world.children.values()][0];
    child?.end({ signal: "SIGKILL" });
  }
  // In small pieces, so that a wrong state between two events is seen too.
  let left = step.do === "pass" ? step.ms : 1;
  while (left > 0) {
    const piece = Math.min(left, 97);
    await world.clock.advance(piece);
    left -= piece;
    checkInvariants(simulation);
  }
  assert.ok(worker.name === "v1");
}

/** Takes back whatever operators did, lists a good build, and lets time pass. */
async function settle(simulation: Simulation, build: string): Promise<void> {
  await simulation.operate("resume");
  await simulation.operate("unpin");
  simulation.list(build);
  await simulation.operate("resume");
  await simulation.operate("unpin");
  await simulation.operate("allow");
  for (let round = 0; round < 400; round++) {
    await simulation.world.clock.advance(500);
    checkInvariants(simulation);
    const { current, rollout } = simulation.worker;
    const done = current?.build.sha256 === build && rollout === undefined &&
      [...simulation.context.generations].length === 1;
    if (done) return;
  }
  const { worker, context } = simulation;
  assert.unreachable(JSON.stringify({
    goal: worker.goal(),
    current: worker.current?.label,
    generations: [...context.generations].map((one) => [one.label, one.phase, one.role]),
    quarantined: context.quarantine.list(),
    rollout: worker.rollout?.stage,
    operator: context.memory.of("v1"),
  }));
}

for (
  const [how, config, most] of [
    ["with a bake", {}, Infinity],
    ["without a bake", { bakeMs: 0 }, Infinity],
    ["with a canary", { canaryPercent: 10, canaryMs: 3_000 }, Infinity],
    ["without overlap", { overlap: "never" }, 1],
  ] as const
) {
  test(`any history ${how}: nothing is forgotten, and a good build serves in the end`, async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.array(anyStep, { minLength: 1, maxLength: 25 }),
        fc.constantFrom("a", "b", "c"),
        async (steps, last) => {
          const simulation = await simulate(config);
          for (const step of steps) await take(simulation, step);
          await settle(simulation, last);
          assert.ok(simulation.world.mostAlive <= most, "builds overlapped");
        },
      ),
      { seed: 20_260_108, numRuns: 150 },
    );
  });
}

test("while a good build serves, no listed build takes its route away before it is ready", async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(anyBuild, { minLength: 1, maxLength: 8 }), async (builds) => {
      const simulation = await simulate();
      simulation.list("a");
      await simulation.world.clock.advance(6_000);
      assert.is(simulation.worker.current?.build.sha256, "a");
      for (const build of builds) {
        simulation.list(build);
        for (let round = 0; round < 60; round++) {
          await simulation.world.clock.advance(150);
          const { current } = simulation.worker;
          const crashed = simulation.events.some((event) => event.kind === "child_crashed");
          // A build that crashes after its bake is gone until it is restarted: nobody kept the old.
          if (crashed) return;
          assert.ok(current?.target !== undefined && current.alive, "there was a gap");
        }
      }
    }),
    { seed: 20_260_109, numRuns: 150 },
  );
});

test("a build that was quarantined for good is not started again before it is allowed", async () => {
  const simulation = await simulate();
  simulation.list("a");
  await simulation.world.clock.advance(6_000);
  simulation.list("stillborn");
  await simulation.world.clock.advance(600_000);
  const starts = simulation.world.started.filter((build) => build === "stillborn").length;
  assert.is(starts, 1);
  assert.is(simulation.worker.current?.build.sha256, "a");
  assert.is(await simulation.operate("allow"), "done");
  await simulation.world.clock.advance(10_000);
  assert.is(simulation.world.started.filter((build) => build === "stillborn").length, 2);
});

test("a build that crashes while another one is being brought comes back meanwhile", async () => {
  const simulation = await simulate({ readyTimeoutMs: 60_000, readyMaxWaitMs: 60_000 });
  const { world, worker } = simulation;
  simulation.list("a");
  await world.clock.advance(6_000);
  simulation.list("never");
  await world.clock.advance(3_000);
  assert.is(worker.rollout?.sha256, "never");
  [...world.children.values()].find((child) => child.build === "a")?.end({ code: 3 });
  await world.clock.advance(2_500);
  assert.is(worker.current?.build.sha256, "a");
  assert.is(worker.current?.number, 3);
  // The rollout that was under way goes on as if nothing had happened.
  assert.is(worker.rollout?.sha256, "never");
  assert.equal(simulation.events.filter((event) => event.kind === "rollout_called_off"), []);
});

test("a transient failure is tried again with a growing wait", async () => {
  const simulation = await simulate({ retryBackoffMs: 10_000, retryBackoffMaxMs: 100_000 });
  simulation.list("a");
  await simulation.world.clock.advance(6_000);
  simulation.list("broken");
  await simulation.world.clock.advance(600_000);
  const failures = simulation.events.filter((event) => event.kind === "rollout_failed");
  const waits = failures.map((event) => Number(event.fields.retryInMs));
  assert.ok(failures.length >= 5 && failures.length <= 12, `${failures.length}`);
  assert.ok((waits[1] ?? 0) > (waits[0] ?? 0) && (waits[2] ?? 0) > (waits[1] ?? 0));
  assert.is(simulation.worker.current?.build.sha256, "a");
});

test("with a stagger, a swap waits, and a first start does not", async () => {
  const simulation = await simulate({ staggerMs: 10_000 });
  simulation.list("a");
  await simulation.world.clock.advance(1_500);
  assert.is(simulation.worker.current?.build.sha256, "a");
  simulation.list("b");
  await simulation.world.clock.advance(4_000);
  assert.is(simulation.worker.rollout?.stage, "staggering");
  await simulation.world.clock.advance(10_000);
  assert.is(simulation.worker.current?.build.sha256, "b");
});

test("only so many children are starting at once; one that takes long gives its place up", async () => {
  const simulation = await simulate({ readyMaxWaitMs: 100_000 });
  // The bound of this world is four: it is taken from outside.
  const places = await Promise.all([1, 2, 3, 4].map(() => simulation.context.starts.take()));
  simulation.list("a");
  await simulation.world.clock.advance(5_000);
  assert.equal(simulation.world.started, []);
  places[0]?.();
  await simulation.world.clock.advance(2_000);
  assert.equal(simulation.world.started, ["a"]);
  assert.is(simulation.worker.current?.build.sha256, "a");
  assert.is(simulation.context.starts.taken, 3);
});

test.run();
