import { type ChildProcess, spawn } from "node:child_process";
import { mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import process from "node:process";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { FileOracle, makeBuild } from "../support/builds.ts";
import { sideBySide } from "../support/side_by_side.ts";
import { type ConfigInput, createHarness, until } from "./harness.ts";
import { DEADLINE_MS } from "../support/until.ts";

const waiting = sideBySide(5);

const PROGRAM = fileURLToPath(new URL("./supervisor_process.ts", import.meta.url));
type Line = Readonly<Record<string, unknown>>;

/** A supervisor in a process of its own. */
class Victim {
  readonly process: ChildProcess;
  readonly lines: Line[] = [];
  readonly exited: Promise<void>;
  readonly #listeners = new Set<(line: Line) => void>();

  constructor(folder: string, config: ConfigInput) {
    const run = "Deno" in globalThis ? ["run", "-A"] : [];
    this.process = spawn(
      process.execPath,
      [...run, PROGRAM, folder, JSON.stringify(config)],
      { stdio: ["ignore", "pipe", "inherit"] },
    );
    this.exited = new Promise((resolve) => this.process.once("exit", () => resolve()));
    createInterface({ input: this.process.stdout as NodeJS.ReadableStream }).on("line", (text) => {
      const line = JSON.parse(text) as Line;
      this.lines.push(line);
      for (const listener of this.#listeners) listener(line);
    });
  }

  /** Kills it with SIGKILL as soon as a line passes the filter. */
  killAt(filter: (line: Line) => boolean): void {
    this.#listeners.add((line) => {
      if (filter(line)) this.process.kill("SIGKILL");
    });
  }

  async serves(build: string): Promise<void> {
    await until(() => this.lines.some((line) => line.event === "listening"));
    const origin = String(this.lines.find((line) => line.event === "listening")?.origin);
    await until(async () => {
      const answer = await fetch(`${origin}/v1/who`).then((one) => one.text(), () => "");
      return answer.startsWith(`${build} `);
    }, `the victim serving ${build}`);
  }
}

/** Pids of live children whose data is in the folder. */
async function childrenIn(folder: string): Promise<number[]> {
  const pids: number[] = [];
  for (const entry of await readdir("/proc")) {
    if (!/^\d+$/.test(entry)) continue;
    try {
      const command = await readFile(`/proc/${entry}/cmdline`, "utf8");
      const stat = await readFile(`/proc/${entry}/stat`, "utf8");
      if (/\) [ZX]/.test(stat)) continue;
      if (command.includes("child_program.ts") && command.includes(`${folder}/state`)) {
        pids.push(Number(entry));
      }
    } catch {
      // It ended while we looked.
    }
  }
  return pids;
}

/**
 * Brings `one` up in a victim, publishes `two`, kills the victim at the given moment, and looks at
 * what the next supervisor makes of the folder.
 */
async function killDuringSwap(
  kill: { at: (line: Line) => boolean } | { afterMs: number },
  config: ConfigInput = {},
): Promise<void> {
  const folder = await mkdtemp(`${tmpdir()}/baton-kill-`);
  const oracle = new FileOracle(`${folder}/oracle`);
  let harness: Awaited<ReturnType<typeof createHarness>> | undefined;
  try {
    await oracle.publish("v1", await makeBuild({ id: "one" }));
    const victim = new Victim(folder, { bakeMs: 200, ...config });
    await victim.serves("one");
    if ("at" in kill) victim.killAt(kill.at);
    await oracle.publish("v1", await makeBuild({ id: "two", readyDelayMs: 50 }));
    if ("afterMs" in kill) setTimeout(() => victim.process.kill("SIGKILL"), kill.afterMs);
    const late = setTimeout(() => victim.process.kill("SIGKILL"), DEADLINE_MS);
    await victim.exited;
    clearTimeout(late);
    const left = await childrenIn(folder);

    harness = await createHarness({ folder, config: { bakeMs: 200, ...config } });
    await harness.serves("v1", "two");
    // Exactly one child is left, and it is one that this supervisor knows.
    const known = (): number[] =>
      harness?.supervisor.generations().map((one) => one.process?.pid ?? 0) ?? [];
    await until(
      async () => {
        const now = await childrenIn(folder);
        return now.length === 1 && known().includes(now[0] ?? -1);
      },
      "the orphans' end",
      () => ({ left, known: known() }),
    );
    await until(async () => {
      const text = await readFile(`${folder}/state/shard/children.json`, "utf8");
      return (JSON.parse(text) as { children: unknown[] }).children.length === 1;
    }, "the records of those that are gone to go");
  } finally {
    await harness?.close();
    for (const pid of await childrenIn(folder)) process.kill(pid, "SIGKILL");
    await rm(folder, { recursive: true, force: true });
  }
}

const isMove = (line: Line, generation: number, to: string): boolean =>
  line.event === "generation_moved" && line.generation === generation && line.to === to;

const STEPS: Record<string, (line: Line) => boolean> = {
  "the rollout begins": (line) => line.event === "rollout_started",
  "the download begins": (line) => line.event === "download_started",
  "the install is complete": (line) => line.event === "installed",
  "the new child is forked": (line) => isMove(line, 2, "starting"),
  "the new child is ready": (line) => line.event === "child_ready",
  "traffic is switched": (line) => line.event === "traffic_switched",
  "the new build is proven": (line) => line.event === "build_proven",
  "the old child retires": (line) => isMove(line, 1, "retiring"),
  "the old child drains": (line) => isMove(line, 1, "draining"),
  "the old child is signalled": (line) => isMove(line, 1, "stopping"),
  "the old child is reaped": (line) => isMove(line, 1, "stopped"),
};

for (const [step, at] of Object.entries(STEPS)) {
  waiting(
    `killed when ${step}: the next start puts everything right`,
    () => killDuringSwap({ at }),
  );
}

for (let index = 0; index < 3; index++) {
  const afterMs = Math.floor(Math.random() * 600);
  waiting(
    `killed ${afterMs} ms into a swap: the next start puts everything right`,
    () => killDuringSwap({ afterMs }),
  );
}

waiting("killed in a stop/start swap: the next start puts everything right", async () => {
  await killDuringSwap({ at: (line) => isMove(line, 1, "draining") }, { overlap: "never" });
});

waiting(
  "an orphan that ignores SIGTERM, with a helper in its group, is ended by SIGKILL",
  async () => {
    const folder = await mkdtemp(`${tmpdir()}/baton-kill-`);
    const oracle = new FileOracle(`${folder}/oracle`);
    await oracle.publish("v1", await makeBuild({ id: "one", ignoreSigterm: true, helper: true }));
    const config: ConfigInput = { killGraceMs: 200, overlap: "never" };
    const victim = new Victim(folder, config);
    await victim.serves("one");
    const [orphan = 0] = await childrenIn(folder);
    victim.process.kill("SIGKILL");
    await victim.exited;
    const harness = await createHarness({ folder, config });
    try {
      // Both would use one data folder: the new one starts only when the old one is gone.
      await harness.serves("v1", "one");
      const ended = await harness.event("orphan_ended");
      assert.is(ended.ended, true);
      assert.is(ended.group, orphan);
      const started = await harness.event("generation_moved", (event) => event.to === "starting");
      assert.ok(ended.id < started.id);
      assert.match(await harness.metrics.text(), /baton_orphans_total\{service="shard"\} 1/);
    } finally {
      await harness.close();
      await rm(folder, { recursive: true, force: true });
    }
  },
);

waiting("a child that was never recorded is found by the mark in its environment", async () => {
  const folder = await mkdtemp(`${tmpdir()}/baton-kill-`);
  const oracle = new FileOracle(`${folder}/oracle`);
  await oracle.publish("v1", await makeBuild({ id: "one" }));
  const victim = new Victim(folder, {});
  await victim.serves("one");
  victim.process.kill("SIGKILL");
  await victim.exited;
  const [orphan] = await childrenIn(folder);
  await rm(`${folder}/state/shard/children.json`);
  const harness = await createHarness({ folder });
  try {
    const ended = await harness.event("orphan_ended");
    assert.equal([ended.group, ended.ended], [orphan, true]);
    await harness.serves("v1", "one");
  } finally {
    await harness.close();
    await rm(folder, { recursive: true, force: true });
  }
});

waiting("quarantine and the operators' hand survive the kill", async () => {
  const folder = await mkdtemp(`${tmpdir()}/baton-kill-`);
  const oracle = new FileOracle(`${folder}/oracle`);
  await oracle.publish("v1", await makeBuild({ id: "one" }));
  const victim = new Victim(folder, {});
  await victim.serves("one");
  const bad = await makeBuild({ id: "two", print: { protocolVersion: "v9" } });
  await oracle.publish("v1", bad);
  await until(() => victim.lines.some((line) => line.event === "rollout_failed"));
  await until(async () =>
    (await readFile(`${folder}/state/shard/quarantine.json`, "utf8").catch(() => ""))
      .includes(bad.sha256)
  );
  victim.process.kill("SIGKILL");
  await victim.exited;
  const harness = await createHarness({ folder });
  try {
    await harness.serves("v1", "one");
    const status = harness.supervisor.list()[0];
    assert.is(status?.quarantined[0]?.sha256, bad.sha256);
    assert.is(status?.quarantined[0]?.class, "preflight");
    assert.is(harness.lines.filter((line) => line.event === "download_started").length, 0);
  } finally {
    await harness.close();
    await rm(folder, { recursive: true, force: true });
  }
});

waiting("a bad build that was listed while nobody ran does not become the only one", async () => {
  const folder = await mkdtemp(`${tmpdir()}/baton-kill-`);
  const oracle = new FileOracle(`${folder}/oracle`);
  await oracle.publish("v1", await makeBuild({ id: "one" }));
  const first = await createHarness({ folder });
  await first.serves("v1", "one");
  await first.event("build_proven");
  await first.close({ keepFolder: true });
  await oracle.publish("v1", await makeBuild({ id: "two", neverReady: true }));
  const second = await createHarness({ folder, config: { holdTimeoutMs: 10_000 } });
  try {
    assert.match((await second.get("/v1/who")).text, /^one /);
    await second.event("rollout_started", (event) => event.reason === "listed");
    assert.match((await second.get("/v1/who")).text, /^one /);
  } finally {
    await second.close();
  }
});

waiting("torn and missing state files do not stop the start", async () => {
  const folder = await mkdtemp(`${tmpdir()}/baton-kill-`);
  const oracle = new FileOracle(`${folder}/oracle`);
  await oracle.publish("v1", await makeBuild({ id: "one" }));
  const first = await createHarness({ folder });
  await first.serves("v1", "one");
  await first.close({ keepFolder: true });
  const state = `${folder}/state/shard`;
  for (const file of ["children.json", "operator.json", "quarantine.json", "owner.json"]) {
    await writeFile(`${state}/${file}`, '{"versions": {"v1": {"pau');
  }
  await rm(`${state}/catalog.json`, { force: true });
  const second = await createHarness({ folder });
  try {
    await second.serves("v1", "one");
    assert.ok(second.lines.some((line) => line.event === "state_corrupt"));
  } finally {
    await second.close();
  }
});

waiting("two supervisors do not share a state folder, whatever its records say", async () => {
  const folder = await mkdtemp(`${tmpdir()}/baton-kill-`);
  await new FileOracle(`${folder}/oracle`).write();
  const victim = new Victim(folder, {});
  await until(() => victim.lines.some((line) => line.event === "listening"));
  const record = `${folder}/state/shard/owner.json`;
  const refusal = async (): Promise<string> => {
    try {
      const harness = await createHarness({ folder });
      await harness.close({ keepFolder: true });
    } catch (error) {
      return (error as Error).message;
    }
    return "not refused";
  };
  try {
    assert.match(await refusal(), `in use by process ${victim.process.pid}`);
    // As in another container, where the pid of the record is our own, or nobody's.
    for (const pid of [process.pid, 1, 4_000_000]) {
      await writeFile(record, JSON.stringify({ owner: "x", pid, startTime: "1" }));
      assert.match(
        await refusal(),
        new RegExp(`in use by another process.*its record says process ${pid}`),
      );
    }
    await writeFile(record, "{");
    assert.match(await refusal(), /in use by another process.*it left no record/);
    await rm(record, { force: true });
    assert.match(await refusal(), /in use by another process.*it left no record/);
  } finally {
    victim.process.kill("SIGKILL");
    await victim.exited;
  }
  assert.is(await refusal(), "not refused", "a killed one holds nothing");
  await rm(folder, { recursive: true, force: true });
});

waiting("without its record of itself a Baton still knows its own orphans", async () => {
  const folder = await mkdtemp(`${tmpdir()}/baton-kill-`);
  await new FileOracle(`${folder}/oracle`).publish("v1", await makeBuild({ id: "one" }));
  const victim = new Victim(folder, {});
  await victim.serves("one");
  victim.process.kill("SIGKILL");
  await victim.exited;
  const [child] = await childrenIn(folder);
  assert.ok(child !== undefined, "its child lives on");
  const state = `${folder}/state/shard`;
  await rm(`${state}/owner.json`);
  // Only the mark in its environment is left to find it by.
  const kept = JSON.parse(await readFile(`${state}/children.json`, "utf8"));
  await writeFile(`${state}/children.json`, JSON.stringify({ ...kept, children: [] }));
  const second = await createHarness({ folder });
  try {
    const ended = await second.event("orphan_ended");
    assert.is(ended.group, child);
    await second.serves("v1", "one");
  } finally {
    await second.close();
  }
});

test.run();
