import { mkdir, rename, rm, symlink, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { runtime } from "../support/runtime.ts";
import { inFolder, until } from "./support.ts";

/** Runs `change` until the watch on `path` has told of it; then again, to see that it still watches. */
async function expectNotice(path: string, ...changes: (() => Promise<void>)[]): Promise<void> {
  let notices = 0;
  const stop = runtime.files.watch(path, () => notices++);
  try {
    for (const [index, change] of changes.entries()) {
      const before = notices;
      await change();
      await until(`change ${index + 1} is noticed`, () => notices > before);
      // Let the echoes of this change pass, so that they are not taken for the next one's.
      for (let last = -1; last !== notices;) {
        last = notices;
        await new Promise((resolve) => setTimeout(resolve, 100));
      }
    }
  } finally {
    stop();
  }
}

test("a file written in place is noticed", async () => {
  await inFolder(async (folder) => {
    const path = join(folder, "a");
    await writeFile(path, "1");
    await expectNotice(path, () => writeFile(path, "2"), () => writeFile(path, "3"));
  });
});

test("a file replaced by rename is noticed each time", async () => {
  await inFolder(async (folder) => {
    const path = join(folder, "a");
    await runtime.files.writeAtomic(path, "1");
    const replace = (content: string) => () => runtime.files.writeAtomic(path, content);
    await expectNotice(path, replace("2"), replace("3"), replace("4"));
  });
});

test("the coming, going and coming back of a path is noticed", async () => {
  await inFolder(async (folder) => {
    const path = join(folder, "a");
    await expectNotice(
      path,
      () => writeFile(path, "1"),
      () => rm(path),
      () => writeFile(path, "2"),
    );
  });
});

test("a path whose folder does not exist yet, or is replaced, is noticed", async () => {
  await inFolder(async (folder) => {
    const path = join(folder, "sub", "deep", "a");
    const make = async (content: string) => {
      await mkdir(join(folder, "sub", "deep"), { recursive: true });
      await writeFile(path, content);
    };
    await expectNotice(
      path,
      () => make("1"),
      () => writeFile(path, "2"),
      () => rm(join(folder, "sub"), { recursive: true }),
      () => make("3"),
      () => writeFile(path, "4"),
    );
  });
});

test("a link into a folder that is swapped is noticed, as with mounted config maps", async () => {
  await inFolder(async (folder) => {
    const publish = async (name: string, content: string) => {
      await mkdir(join(folder, name));
      await writeFile(join(folder, name, "a"), content);
      await symlink(name, join(folder, "..new"));
      await rename(join(folder, "..new"), join(folder, "..data"));
    };
    await publish("..1", "1");
    await symlink("..data/a", join(folder, "a"));
    await expectNotice(join(folder, "a"), () => publish("..2", "2"), () => publish("..3", "3"));
  });
});

test("entries of a watched folder are noticed", async () => {
  await inFolder(async (folder) => {
    const path = join(folder, "sub");
    await mkdir(path);
    await expectNotice(
      path,
      () => writeFile(join(path, "a"), "1"),
      () => writeFile(join(path, "a"), "2"),
      () => rename(join(path, "a"), join(path, "b")),
    );
  });
});

test("a neighbour's change, and a change after the watch was stopped, are not told", async () => {
  await inFolder(async (folder) => {
    const path = join(folder, "a");
    await writeFile(path, "1");
    let notices = 0;
    let others = 0;
    const stop = runtime.files.watch(path, () => notices++);
    const stopOther = runtime.files.watch(join(folder, "b"), () => others++);
    await writeFile(join(folder, "b"), "1");
    await until("the neighbour's watch tells", () => others > 0);
    assert.is(notices, 0);
    stop();
    const before = others;
    await writeFile(path, "2");
    await writeFile(join(folder, "b"), "22");
    await until("the neighbour's watch tells", () => others > before);
    assert.is(notices, 0);
    stopOther();
  });
});

test.run();
