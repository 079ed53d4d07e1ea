import { mkdir, readdir, readFile, stat, symlink, truncate, writeFile } from "node:fs/promises";
import { join } from "node:path";
import process from "node:process";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { FileMissing } from "../../src/runtime/runtime.ts";
import { runtime } from "../support/runtime.ts";
import { inFolder, ownEnv, program, rejection, until } from "./support.ts";

const { files } = runtime;
const text = (bytes: Uint8Array) => new TextDecoder().decode(bytes);

test("whole files are read as bytes and as text", async () => {
  await inFolder(async (folder) => {
    const path = join(folder, "a");
    await writeFile(path, "grüße\n");
    assert.is(await files.readText(path), "grüße\n");
    const bytes = await files.read(path);
    assert.is(Object.getPrototypeOf(bytes), Uint8Array.prototype);
    assert.is(text(bytes), "grüße\n");
  });
});

test("what is missing is FileMissing for every call that needs it, also below a plain file", async () => {
  await inFolder(async (folder) => {
    await writeFile(join(folder, "file"), "");
    for (const path of [join(folder, "none"), join(folder, "file", "below")]) {
      const calls = [
        () => files.read(path),
        () => files.readText(path),
        () => files.stream(path),
        () => files.sha256(path),
        () => files.list(path),
        () => files.chmod(path, 0o600),
        () => files.rename(path, join(folder, "x")),
        () => files.copy(path, join(folder, "x")),
        () => files.syncFolder(path),
        () => files.writeAtomic(join(path, "deeper"), "x"),
      ];
      for (const call of calls) assert.instance(await rejection(call()), FileMissing);
      assert.is(await files.info(path), undefined);
      await files.remove(path).catch(() => {});
    }
    assert.equal(await files.list(folder), ["file"]);
  });
});

test("info tells what is there without following a last link", async () => {
  await inFolder(async (folder) => {
    const file = join(folder, "file");
    await files.writeAtomic(file, "12345", 0o640);
    await files.symlink("file", join(folder, "link"));
    const info = await files.info(file);
    assert.equal([info?.kind, info?.size, info?.mode], ["file", 5, 0o640]);
    assert.is(info?.inode, (await stat(file)).ino);
    assert.ok(Math.abs((info?.mtimeMs ?? 0) - (await stat(file)).mtimeMs) < 1);
    assert.is((await files.info(join(folder, "link")))?.kind, "link");
    assert.is((await files.info(folder))?.kind, "folder");
    assert.is((await files.info("/dev/null"))?.kind, "other");
  });
});

test("an atomic write replaces the file, has the exact mode, and leaves nothing else", async () => {
  await inFolder(async (folder) => {
    const path = join(folder, "state.json");
    await files.writeAtomic(path, "old");
    const inode = (await files.info(path))?.inode;
    await files.writeAtomic(path, new Uint8Array([110, 101, 119]), 0o666);
    const info = await files.info(path);
    assert.is(await files.readText(path), "new");
    assert.is.not(info?.inode, inode);
    assert.is(info?.mode, 0o666);
    assert.equal(await readdir(folder), ["state.json"]);
  });
});

test("an atomic write that cannot be finished leaves the old file and no temporary one", async () => {
  await inFolder(async (folder) => {
    await mkdir(join(folder, "taken"));
    await writeFile(join(folder, "taken", "in"), "");
    await rejection(files.writeAtomic(join(folder, "taken"), "x"));
    assert.equal(await readdir(folder), ["taken"]);
    assert.equal(await readdir(join(folder, "taken")), ["in"]);
  });
});

test("atomic writes at the same time each land whole", async () => {
  await inFolder(async (folder) => {
    const path = join(folder, "a");
    const letters = [..."abcdefghijklmnop"];
    await Promise.all(letters.map((letter) => files.writeAtomic(path, letter.repeat(100_000))));
    const content = await files.readText(path);
    assert.is(content, content.charAt(0).repeat(100_000));
    assert.equal(await readdir(folder), ["a"]);
  });
});

test("a writer killed at any moment leaves the old bytes or the new ones", async () => {
  await inFolder(async (folder) => {
    const path = join(folder, "a");
    const size = 400_000;
    for (const readsBeforeKill of [0, 1, 2, 3, 5, 8]) {
      let output = "";
      const child = await runtime.processes.spawn({
        ...program("write_atomic_until_killed.ts", path, String(size)),
        env: ownEnv(),
        onOutput: (_stream, chunk) => {
          output += text(chunk);
        },
      });
      await until("the writer has begun", () => output.includes("started"));
      // Each look lies at another moment of the writer's round.
      for (let i = 0; i <= readsBeforeKill; i++) {
        const content = await readFile(path, "utf8");
        assert.is(content, content.charAt(0).repeat(size));
      }
      child.signalGroup("SIGKILL");
      assert.equal(await child.exited, { signal: "SIGKILL" });
      const content = await readFile(path, "utf8");
      assert.is(content, content.charAt(0).repeat(size));
    }
  });
});

test("a writer appends or truncates, and its bytes are there after the close", async () => {
  await inFolder(async (folder) => {
    const path = join(folder, "log");
    const first = await files.openWrite(path, { mode: 0o600 });
    await first.write(new TextEncoder().encode("one\n"));
    await first.sync();
    await first.close();
    const second = await files.openWrite(path, { append: true });
    await second.write(new TextEncoder().encode("two\n"));
    await second.close();
    assert.is(await files.readText(path), "one\ntwo\n");
    await (await files.openWrite(path)).close();
    assert.is(await files.readText(path), "");
    assert.is((await files.info(path))?.mode, 0o600);
    assert.instance(await rejection(files.openWrite(join(folder, "no", "log"))), FileMissing);
  });
});

test("a disk that is full is an error that names the path and keeps its code", async () => {
  const writer = await files.openWrite("/dev/full");
  try {
    const error = await rejection(writer.write(new Uint8Array(1)));
    assert.match(error.message, /^\/dev\/full: .*no space/i);
    assert.is((error as Error & { code?: string }).code, "ENOSPC");
  } finally {
    await writer.close();
  }
});

test("a file streams from an offset, in pieces, and stops when cancelled", async () => {
  await inFolder(async (folder) => {
    const path = join(folder, "a");
    const content = new Uint8Array(1_000_000).map((_, index) => index % 251);
    await writeFile(path, content);
    const parts: number[] = [];
    let offset = 123_456;
    for await (const chunk of await files.stream(path, offset)) {
      parts.push(chunk.length);
      assert.equal(chunk, content.slice(offset, offset + chunk.length));
      offset += chunk.length;
    }
    assert.is(offset, content.length);
    assert.ok(parts.length > 5);
    const reader = (await files.stream(path)).getReader();
    await reader.read();
    const open = (await readdir("/proc/self/fd")).length;
    await reader.cancel();
    assert.is((await readdir("/proc/self/fd")).length, open - 1);
  });
});

test("the hash of a big file is that of sha256sum, and the event loop turns meanwhile", async () => {
  await inFolder(async (folder) => {
    const path = join(folder, "big");
    await writeFile(path, new Uint8Array(1024).map((_, index) => index));
    await truncate(path, 200_000_000);
    const { stdout } = await runtime.processes.run({
      command: "sha256sum",
      args: [path],
      env: { PATH: "/usr/bin:/bin" },
      timeoutMs: 60_000,
    });
    let turns = 0;
    let isDone = false;
    const turn = () => {
      turns++;
      if (!isDone) setTimeout(turn, 0);
    };
    turn();
    const before = process.memoryUsage().rss;
    const hash = await files.sha256(path);
    isDone = true;
    assert.is(hash, stdout.slice(0, 64));
    // Hashing in one go would leave the first turn alone.
    assert.ok(turns > 3, `${turns} turns`);
    assert.ok(process.memoryUsage().rss - before < 100_000_000);
    await writeFile(path, "");
    assert.is(
      await files.sha256(path),
      "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    );
  });
});

test("folders, copies, renames, links and removals", async () => {
  await inFolder(async (folder) => {
    const deep = join(folder, "a", "b", "c");
    await files.makeFolder(deep);
    await files.makeFolder(deep);
    await writeFile(join(deep, "one"), "1");
    await files.copy(join(deep, "one"), join(deep, "two"), 0o755);
    assert.is(await files.readText(join(deep, "two")), "1");
    assert.is((await files.info(join(deep, "two")))?.mode, 0o755);
    await files.rename(join(deep, "two"), join(folder, "moved"));
    await files.chmod(join(folder, "moved"), 0o600);
    assert.is((await files.info(join(folder, "moved")))?.mode, 0o600);
    await files.syncFolder(folder);
    assert.equal((await files.list(folder)).sort(), ["a", "moved"]);
    // A link is removed, not what it leads to.
    await symlink(join(folder, "a"), join(folder, "link"));
    await files.remove(join(folder, "link"));
    assert.is(await files.readText(join(deep, "one")), "1");
    await files.remove(join(folder, "a"));
    await files.remove(join(folder, "a"));
    assert.equal(await files.list(folder), ["moved"]);
  });
});

test.run();
