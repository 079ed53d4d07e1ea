/** A disk that is full: what is installed starts and serves; what operators decide is not lost silently. */

import { test } from "uvu";
import * as assert from "uvu/assert";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { BatonError } from "../../src/errors.ts";
import { FileOracle, makeBuild } from "../support/builds.ts";
import { fullWhile } from "../support/failing_files.ts";
import { runtime } from "../support/runtime.ts";
import { createHarness, type Harness, until } from "./harness.ts";

/** A disk that the test fills and empties. */
function disk() {
  const state = { full: false };
  return { state, files: fullWhile(runtime.files, () => state.full) };
}

/** Runs the body with a folder in which the build `one` of v1 was installed and has served well. */
async function withInstalled(
  body: (folder: string, oracle: FileOracle) => Promise<void>,
): Promise<void> {
  const folder = await mkdtemp(`${tmpdir()}/baton-full-`);
  try {
    const oracle = new FileOracle(`${folder}/oracle`);
    await oracle.publish("v1", await makeBuild({ id: "one" }));
    const before = await createHarness({ folder });
    await before.serves("v1", "one");
    await before.event("build_proven");
    await before.close({ keepFolder: true });
    await body(folder, oracle);
  } finally {
    await rm(folder, { recursive: true, force: true, maxRetries: 5 });
  }
}

const close = (harness: Harness) => harness.close({ keepFolder: true });
const logged = (harness: Harness) => harness.lines.map((line) => line.event);

test("what is installed starts and serves on a full disk, also after a crash", async () => {
  await withInstalled(async (folder) => {
    const { state, files } = disk();
    state.full = true;
    const harness = await createHarness({ folder, files });
    try {
      await harness.serves("v1", "one");
      await harness.crash("v1");
      await harness.serves("v1", "one");
      for (const event of ["owner_not_recorded", "children_not_saved", "child_log_failed"]) {
        assert.ok(logged(harness).includes(event), event);
      }
    } finally {
      await close(harness);
    }
  });
});

test("with its list lost too, the oracle's first list is taken, and written later", async () => {
  await withInstalled(async (folder) => {
    const catalog = `${folder}/state/shard/catalog.json`;
    await rm(catalog);
    const { state, files } = disk();
    state.full = true;
    const harness = await createHarness({ folder, files });
    try {
      await harness.serves("v1", "one");
      assert.ok(logged(harness).includes("catalog_not_saved"));
      state.full = false;
      await harness.supervisor.pollNow();
      assert.ok(await runtime.files.info(catalog));
    } finally {
      await close(harness);
    }
  });
});

test("a new list on a full disk is refused, and followed when there is room", async () => {
  await withInstalled(async (folder, oracle) => {
    const { state, files } = disk();
    const harness = await createHarness({ folder, files });
    try {
      await harness.serves("v1", "one");
      state.full = true;
      await oracle.publish("v1", await makeBuild({ id: "two" }));
      await harness.supervisor.pollNow();
      await until(() => /ENOSPC/.test(String(harness.supervisor.conditions().error)));
      assert.match((await harness.get("/v1/who")).text, /^one /);
      state.full = false;
      await harness.supervisor.pollNow();
      await harness.serves("v1", "two");
    } finally {
      await close(harness);
    }
  });
});

test("a decision that cannot be written is in effect, says so, and is written later", async () => {
  await withInstalled(async (folder, oracle) => {
    const { state, files } = disk();
    const harness = await createHarness({ folder, files });
    try {
      await harness.serves("v1", "one");
      assert.equal(await harness.supervisor.control("v1", "pause"), {
        paused: true,
        traffic: false,
      });
      await harness.supervisor.control("v1", "resume");
      state.full = true;
      const answer = await harness.supervisor.control("v1", "pause");
      assert.is(answer.paused, true);
      assert.is(answer.saved, false);
      const unsaved = async () =>
        /^baton_decisions_unsaved\{.*\} (\d)$/m.exec(await harness.metrics.text())?.[1];
      assert.is(await unsaved(), "1");
      assert.match(String(answer.warning), "not saved");
      assert.is(harness.supervisor.list()[0]?.operator.paused, true);
      const denied = await harness.supervisor.control("v1", "deny", { sha256: "a".repeat(64) });
      assert.is(denied.saved, false);
      const called = await harness.event("operator_called", (event) => event.verb === "deny");
      assert.is(called.saved, false, "the journal knows it too");
      // What needs no disk says nothing about it.
      assert.is((await harness.supervisor.control("v1", "restart")).saved, undefined);
      state.full = false;
      await harness.supervisor.pollNow();
      await until(() => logged(harness).includes("operator_state_saved"));
      await until(() => logged(harness).includes("quarantine_saved"));
      assert.is(await unsaved(), "0");
    } finally {
      await close(harness);
    }
    await oracle.publish("v1", await makeBuild({ id: "two" }));
    const after = await createHarness({ folder });
    try {
      await after.serves("v1", "one");
      assert.is(after.supervisor.list()[0]?.operator.paused, true);
      const denied = await after.supervisor.control("v1", "allow", { sha256: "a".repeat(64) });
      assert.is(denied.allowed, "a".repeat(64));
    } finally {
      await close(after);
    }
  });
});

test("what is refused on a full disk is refused for its own reason", async () => {
  await withInstalled(async (folder) => {
    const { state, files } = disk();
    const harness = await createHarness({ folder, files });
    try {
      await harness.serves("v1", "one");
      state.full = true;
      const error = await harness.supervisor.control("v1", "unpin").catch((thrown) => thrown);
      assert.instance(error, BatonError);
      assert.is((error as BatonError).code, "conflict");
    } finally {
      await close(harness);
    }
  });
});

test.run();
