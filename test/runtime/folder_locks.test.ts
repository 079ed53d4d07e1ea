/** Locks on folders: between processes, whatever end the holder comes to. */

import { test } from "uvu";
import * as assert from "uvu/assert";
import { spawn } from "node:child_process";
import { mkdir, writeFile } from "node:fs/promises";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { createFolderLocks, tryLockByProgram } from "../../src/runtime/folder_locks.ts";
import { runtime } from "../support/runtime.ts";
import { inScratch, until } from "../support/scratch.ts";

const HOLDER = fileURLToPath(new URL("./programs/lock_holder.ts", import.meta.url));

/** Another process that asks for the folder's lock; `end` kills it and waits until it is gone. */
async function otherProcess(folder: string) {
  const run = "Deno" in globalThis ? ["run", "-A", "--no-check", "--quiet"] : [];
  const child = spawn(process.execPath, [...run, HOLDER, folder], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  const gone = new Promise<void>((resolve) => child.once("exit", () => resolve()));
  const kind = await new Promise<string>((resolve) =>
    child.stdout.once("data", (chunk) => resolve(String(chunk).trim()))
  );
  return {
    kind,
    end: async () => {
      child.kill("SIGKILL");
      await gone;
    },
  };
}

test("a lock keeps other processes out until it is released", async () => {
  await inScratch(async (folder) => {
    const lock = await runtime.files.lockFolder(folder);
    assert.is(lock.kind, "locked");
    const kept = await otherProcess(folder);
    assert.is(kept.kind, "held");
    await kept.end();
    if (lock.kind === "locked") lock.release();
    const next = await otherProcess(folder);
    assert.is(next.kind, "locked");
    assert.is((await runtime.files.lockFolder(folder)).kind, "held");
    await next.end();
  });
});

test("a holder that is killed has let go, and nothing in the folder says or decides it", async () => {
  await inScratch(async (folder) => {
    const other = await otherProcess(folder);
    assert.is((await runtime.files.lockFolder(folder)).kind, "held");
    assert.equal(await runtime.files.list(folder), []);
    await other.end();
    const lock = await runtime.files.lockFolder(folder);
    assert.is(lock.kind, "locked");
    if (lock.kind === "locked") lock.release();
  });
});

test("one process may lock a folder several times, under any path; the last release counts", async () => {
  await inScratch(async (folder) => {
    await mkdir(`${folder}/a`);
    await runtime.files.symlink(`${folder}/a`, `${folder}/b`);
    const [one, two] = await Promise.all([
      runtime.files.lockFolder(`${folder}/a`),
      runtime.files.lockFolder(`${folder}/b`),
    ]);
    assert.is(one.kind, "locked");
    assert.is(two.kind, "locked");
    if (one.kind !== "locked" || two.kind !== "locked") return;
    one.release();
    one.release();
    const kept = await otherProcess(folder + "/a");
    assert.is(kept.kind, "held");
    await kept.end();
    two.release();
    const free = await otherProcess(folder + "/a");
    assert.is(free.kind, "locked");
    await free.end();
  });
});

test("a child does not keep the lock of a parent that was killed", async () => {
  await inScratch(async (folder) => {
    const lock = await runtime.files.lockFolder(folder);
    const child = await runtime.processes.spawn({
      command: "sleep",
      args: ["60"],
      env: { PATH: "/usr/bin:/bin" },
    });
    if (lock.kind === "locked") lock.release();
    const other = await otherProcess(folder);
    assert.is(other.kind, "locked");
    await other.end();
    child.signalGroup("SIGKILL");
    await child.exited;
  });
});

test("where it cannot be known, that is what is answered, with the reason", async () => {
  await inScratch(async (folder) => {
    for (const path of [`${folder}/none`, `${folder}/file`]) {
      if (path.endsWith("file")) await writeFile(path, "");
      const lock = await runtime.files.lockFolder(path);
      if (path.endsWith("none")) assert.is(lock.kind, "unavailable");
      if (lock.kind === "unavailable") assert.ok(lock.reason.length > 5);
      if (lock.kind === "locked") lock.release();
    }
  });
});

test("without the program flock there is no lock by way of it, and it says so", async () => {
  await inScratch(async (folder) => {
    const path = process.env.PATH ?? "";
    process.env.PATH = folder;
    try {
      const lock = await createFolderLocks(tryLockByProgram)(folder);
      assert.is(lock.kind, "unavailable");
      if (lock.kind === "unavailable") assert.match(lock.reason, "flock cannot be run");
    } finally {
      process.env.PATH = path;
    }
    const lock = await createFolderLocks(tryLockByProgram)(folder);
    assert.is(lock.kind, "locked");
    await until(async () => (await otherProcessKind(folder)) === "held");
    if (lock.kind === "locked") lock.release();
  });
});

async function otherProcessKind(folder: string): Promise<string> {
  const other = await otherProcess(folder);
  await other.end();
  return other.kind;
}

test.run();
