import { mkdir, readdir, readFile, stat, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { test } from "uvu";
import * as assert from "uvu/assert";
import * as v from "valibot";
import { createLog } from "../../src/observe/log.ts";
import type { Files } from "../../src/runtime/runtime.ts";
import { parentOf, StateFile } from "../../src/supervisor/state.ts";
import { runtime } from "../support/runtime.ts";
import { inScratch, rejection } from "../support/scratch.ts";

const schema = v.object({ count: v.number() });

function stateFile(path: string, files: Files = runtime.files, events: string[] = []) {
  const log = createLog({
    write: (text) => events.push((JSON.parse(text) as { event: string }).event),
    now: () => 0,
  });
  return new StateFile({ files, log, path, schema, empty: () => ({ count: 0 }) });
}

test("a missing file means that nothing is known, silently", async () => {
  await inScratch(async (folder) => {
    const events: string[] = [];
    assert.equal(await stateFile(join(folder, "no", "x.json"), runtime.files, events).load(), {
      count: 0,
    });
    assert.equal(events, []);
  });
});

test("what was saved is loaded, in a folder and with a mode that others cannot read", async () => {
  await inScratch(async (folder) => {
    const path = join(folder, "state", "deep", "x.json");
    await stateFile(path).save({ count: 5 });
    assert.equal(await stateFile(path).load(), { count: 5 });
    assert.is((await stat(path)).mode & 0o777, 0o600);
    assert.equal(await readdir(join(folder, "state", "deep")), ["x.json"], "no temporary is left");
  });
});

test("a torn, foreign or empty file is set aside as .corrupt, reported, and the start goes on", async () => {
  await inScratch(async (folder) => {
    const path = join(folder, "x.json");
    for (const text of ["", "{", '{"count":"5"}', "[]", "null", "\0\0\0"]) {
      const events: string[] = [];
      await writeFile(path, text);
      assert.equal(await stateFile(path, runtime.files, events).load(), { count: 0 }, text);
      assert.equal(events, ["state_corrupt"]);
      assert.is(await readFile(`${path}.corrupt`, "utf8"), text);
    }
  });
});

test("a path that cannot be read is reported and the start goes on", async () => {
  await inScratch(async (folder) => {
    const path = join(folder, "x.json");
    await mkdir(path);
    const events: string[] = [];
    assert.equal(await stateFile(path, runtime.files, events).load(), { count: 0 });
    assert.equal(events, ["state_unreadable"]);
  });
});

test("saves in a burst end with the newest value, in few writes, each whole", async () => {
  await inScratch(async (folder) => {
    const path = join(folder, "x.json");
    let writes = 0;
    const files: Files = {
      ...runtime.files,
      writeAtomic: async (...args) => {
        writes += 1;
        await runtime.files.writeAtomic(...args);
      },
    };
    const file = stateFile(path, files);
    const saves = Array.from({ length: 100 }, (_, count) => file.save({ count }));
    await Promise.all(saves);
    assert.equal(await file.load(), { count: 99 });
    assert.is(writes, 2);
    await file.save({ count: 7 });
    assert.equal(await file.load(), { count: 7 });
  });
});

test("a disk that refuses rejects the save that it refused, and the next one is tried anew", async () => {
  await inScratch(async (folder) => {
    let full = true;
    const files: Files = {
      ...runtime.files,
      writeAtomic: (...args) =>
        full ? Promise.reject(new Error("ENOSPC")) : runtime.files.writeAtomic(...args),
    };
    const file = stateFile(join(folder, "x.json"), files);
    const first = file.save({ count: 1 });
    const second = file.save({ count: 2 });
    assert.match((await rejection(first)).message, "ENOSPC");
    assert.match((await rejection(second)).message, "ENOSPC");
    full = false;
    await file.save({ count: 3 });
    assert.equal(await file.load(), { count: 3 });
  });
});

test("the folder of a path", () => {
  assert.is(parentOf("a/b"), "a");
  assert.is(parentOf("/a"), "/");
  assert.is(parentOf("a"), undefined);
});

test.run();
