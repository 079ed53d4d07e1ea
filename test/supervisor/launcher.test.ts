import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { defaultVersionsConfig } from "../../src/config/versions.ts";
import { silentLog } from "../../src/observe/log.ts";
import { Children } from "../../src/supervisor/children.ts";
import { Generation } from "../../src/supervisor/generation.ts";
import { Launcher } from "../../src/supervisor/launcher.ts";
import { PortPool } from "../../src/supervisor/ports.ts";
import { stopGraceMs } from "../../src/supervisor/stop_grace.ts";
import { CalledOff } from "../../src/supervisor/wait.ts";
import { runtime } from "../support/runtime.ts";

async function withLauncher(
  body: (launcher: Launcher, ports: PortPool, generation: Generation) => Promise<void>,
  mayStart = () => true,
  onMove: (generation: Generation, to: string) => void = () => {},
): Promise<void> {
  const folder = await mkdtemp(`${tmpdir()}/baton-launch-`);
  const { children } = await Children.open(runtime, silentLog, folder);
  const ports = new PortPool({ base: 42_000, isFree: () => Promise.resolve(true) });
  const launcher = new Launcher({
    runtime,
    log: silentLog,
    config: defaultVersionsConfig({ oracle: "file:none", command: ["/bin/sleep", "60"] }),
    ports,
    children,
    generations: { of: () => [] },
    dataDir: `${folder}/data`,
    output: () => ({ write() {}, close() {} }),
    mayStart,
    stopGraceMs: 1_000,
  });
  const generation = new Generation({
    service: "s",
    version: "v1",
    number: 1,
    build: {
      sha256: "0".repeat(64),
      binary: "/bin/sleep",
      folder,
      buildId: "v1",
      storageMode: "",
      adminApi: false,
    },
    clock: runtime.clock,
    onMove: (moved, { to }) => onMove(moved, to),
  });
  try {
    await body(launcher, ports, generation);
  } finally {
    generation.process?.force();
    await generation.process?.exited;
    await children.close();
    await rm(folder, { recursive: true, force: true });
  }
}

async function thrown(promise: Promise<unknown>): Promise<unknown> {
  return await promise.then(() => assert.unreachable(), (error: unknown) => error);
}

test("case 70: a generation that is asked to go before it runs is not forked", async () => {
  await withLauncher(async (launcher, ports, generation) => {
    generation.move("retiring", "drained");
    assert.instance(await thrown(launcher.launch(generation)), CalledOff);
    assert.is(generation.process, undefined);
    assert.is(generation.phase, "stopped");
    assert.is(ports.taken, 0);
  });
});

test("a service that goes down while a start is prepared forks nothing (B29)", async () => {
  let up = true;
  await withLauncher(async (launcher, ports, generation) => {
    const launching = thrown(launcher.launch(generation));
    up = false;
    assert.instance(await launching, CalledOff);
    assert.is(generation.process, undefined);
    assert.is(ports.taken, 0);
  }, () => up);
});

test("one that is asked to go while it is forked is stopped and reaped", async () => {
  await withLauncher(
    async (launcher, ports, generation) => {
      assert.instance(await thrown(launcher.launch(generation)), CalledOff);
      await generation.ended;
      assert.is(generation.process?.state, "exited");
      assert.is(ports.taken, 0);
    },
    () => true,
    (generation, to) => {
      // Between the decision to fork and the news that it happened.
      if (to === "starting") queueMicrotask(() => generation.move("stopping", "not wanted"));
    },
  );
});

test("case 56: devshard's programs have at least their own grace of ten minutes", () => {
  const config = defaultVersionsConfig({
    oracle: "file:none",
    binaryName: "devshardd",
    killGraceMs: 30_000,
  });
  assert.is(stopGraceMs(config), 600_000);
});

test("case 57: a configured grace of the child counts", () => {
  assert.is(
    stopGraceMs({ binaryName: "devshardd", killGraceMs: 30_000, childGraceMs: 120_000 }),
    120_000,
  );
});

test("case 58: the kill grace counts where it is the longer one", () => {
  assert.is(
    stopGraceMs({ binaryName: "devshardd", killGraceMs: 30_000, childGraceMs: 5_000 }),
    30_000,
  );
});

test("case 59: any other program has the kill grace", () => {
  assert.is(
    stopGraceMs({ binaryName: "child", killGraceMs: 30_000, childGraceMs: 600_000 }),
    30_000,
  );
});

test.run();
