import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { childScript } from "../support/builds.ts";
import { type ConfigInput, createHarness, type Harness, pause, until } from "./harness.ts";

/** A harness with an override for v1, whose program calls itself `local`. */
async function withOverride(
  config: ConfigInput,
  body: (
    h: Harness,
    rewrite: (id: string, more?: Record<string, unknown>) => Promise<void>,
  ) => Promise<void>,
  start = true,
): Promise<void> {
  const folder = await mkdtemp(`${tmpdir()}/baton-override-`);
  const source = `${folder}/program`;
  const rewrite = (id: string, more: Record<string, unknown> = {}): Promise<void> =>
    writeFile(source, childScript({ id, ...more }), { mode: 0o755 });
  await rewrite("local");
  const harness = await createHarness({
    config: { overrides: { v1: source }, ...config },
    start,
  });
  try {
    await body(harness, rewrite);
  } finally {
    await harness.close();
    await rm(folder, { recursive: true, force: true });
  }
}

test("case 61: an override of a listed version runs from a copy, not a link", async () => {
  await withOverride({}, async (h) => {
    await h.publish("v1", { id: "published" });
    await h.serves("v1", "local");
    const [generation] = h.supervisor.generations();
    assert.match(generation?.build.sha256 ?? "", /^override:[0-9a-f]{64}$/);
    assert.match(generation?.build.binary ?? "", /\/bin\/v1\/child$/);
    const { lstat } = await import("node:fs/promises");
    const info = await lstat(generation?.build.binary ?? "");
    assert.ok(info.isFile());
    assert.is(info.nlink, 1);
    assert.is(h.supervisor.healthz()[0]?.sha256, generation?.build.sha256);
    assert.is(h.lines.filter((line) => line.event === "download_started").length, 0);
  });
});

test("case 62: a forced version with an override runs although the list is empty", async () => {
  await withOverride({ force: ["v1"] }, async (h) => {
    await h.serves("v1", "local");
  });
});

test("case 63: a forced version without an override is no error and no child", async () => {
  const h = await createHarness({ config: { force: ["v7"] } });
  try {
    await h.supervisor.pollNow();
    await pause(50);
    assert.equal(h.supervisor.list(), []);
    assert.equal(h.events.since(0).filter((event) => event.kind.includes("fail")), []);
  } finally {
    await h.close();
  }
});

test("case 64: an override that comes back while the old one drains waits for its end", async () => {
  await withOverride({}, async (h, rewrite) => {
    await rewrite("local", { inflightCountdown: 20 });
    await h.publish("v1", { id: "published" });
    await h.serves("v1", "local");
    await h.remove("v1");
    await h.event("generation_moved", (event) => event.to === "draining");
    await rewrite("local2");
    await h.publish("v1", { id: "published" });
    await pause(80);
    assert.is(h.supervisor.generations().length, 1);
    await h.serves("v1", "local2");
  });
});

test("case 65: an override that changes while the child leaves does not start beside it", async () => {
  await withOverride({ drainTimeoutMs: 1_000 }, async (h, rewrite) => {
    await rewrite("local", { stuckInflight: 1 });
    await h.publish("v1", { id: "published" });
    await h.serves("v1", "local");
    await rewrite("local2");
    await h.supervisor.pollNow();
    await until(() => h.supervisor.generations()[0]?.role === "leaving");
    await rewrite("local3");
    await h.supervisor.pollNow();
    await pause(80);
    assert.is(h.supervisor.generations().length, 1);
    await h.serves("v1", "local3");
  });
});

test("case 66: a published child is replaced by the override also where the bytes are the same", async () => {
  const folder = await mkdtemp(`${tmpdir()}/baton-override-`);
  const first = await createHarness();
  await first.publish("v1", { id: "same" });
  await first.serves("v1", "same");
  await first.close({ keepFolder: true });
  const source = `${folder}/program`;
  await writeFile(source, childScript({ id: "same" }), { mode: 0o755 });
  const h = await createHarness({ folder: first.folder, config: { overrides: { v1: source } } });
  try {
    await h.serves("v1", "same");
    const [generation] = h.supervisor.generations();
    assert.match(generation?.build.sha256 ?? "", /^override:/);
    assert.match(generation?.build.binary ?? "", /\/bin\/v1\/child$/);
  } finally {
    await h.close();
    await rm(folder, { recursive: true, force: true });
  }
});

test("case 67: an override that did not change is left alone", async () => {
  await withOverride({ force: ["v1"] }, async (h) => {
    await h.serves("v1", "local");
    const before = h.events.lastId;
    await h.supervisor.pollNow();
    await h.supervisor.pollNow();
    await pause(80);
    assert.not(h.events.since(before).some((event) => event.kind === "rollout_started"));
    assert.is(h.supervisor.targets()[0]?.generation, 1);
  });
});

test("a changed override: the old child is drained, then the new one starts; requests wait", async () => {
  await withOverride({ force: ["v1"] }, async (h, rewrite) => {
    await h.serves("v1", "local");
    const slow = h.get("/v1/gate");
    await until(() => h.supervisor.generations()[0]?.leases === 1);
    await rewrite("local2");
    await h.supervisor.pollNow();
    await until(() => h.supervisor.generations()[0]?.role === "leaving");
    const held = h.get("/v1/who");
    await h.openGate("v1");
    assert.is((await slow).text, "local");
    assert.match((await held).text, /^local2 /);
    const calls = await h.dataLines("v1", "calls.log");
    assert.match(calls[0] ?? "", "POST /drain");
  });
});

test("a copy that was tampered with under the running child is put right", async () => {
  await withOverride({ force: ["v1"] }, async (h) => {
    await h.serves("v1", "local");
    const copy = h.supervisor.generations()[0]?.build.binary ?? "";
    await rm(copy);
    await writeFile(copy, "#!/bin/sh\nexit 1\n", { mode: 0o755 });
    await h.supervisor.pollNow();
    await h.event("install_changed_on_disk");
    await until(() => h.supervisor.targets()[0]?.generation === 2);
    assert.match((await h.get("/v1/who")).text, /^local /);
  });
});

test.run();
