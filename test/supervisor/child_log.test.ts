import {
  appendFile,
  mkdir,
  readdir,
  readFile,
  rename,
  symlink,
  unlink,
  writeFile,
} from "node:fs/promises";
import { join } from "node:path";
import process from "node:process";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { createLog, silentLog } from "../../src/observe/log.ts";
import type { Files } from "../../src/runtime/runtime.ts";
import { childLogPath, ChildLogs, formatLogLine } from "../../src/supervisor/child_log.ts";
import { followLogFile, tailLogFile } from "../../src/supervisor/log_reader.ts";
import { runtime } from "../support/runtime.ts";
import { inScratch, until } from "../support/scratch.ts";

const bytes = (text: string) => new TextEncoder().encode(text);

interface Case {
  readonly folder: string;
  readonly path: string;
  readonly logs: ChildLogs;
  readonly events: string[];
}

function logging(
  action: (one: Case) => Promise<void>,
  config: Partial<ConstructorParameters<typeof ChildLogs>[0]["config"]> = {},
  files: Files = runtime.files,
): Promise<void> {
  return inScratch(async (scratch) => {
    const folder = join(scratch, "logs");
    const events: string[] = [];
    const logs = new ChildLogs({
      runtime: { ...runtime, files },
      log: createLog({
        write: (line) => events.push((JSON.parse(line) as { event: string }).event),
        now: () => 0,
      }),
      folder,
      config: {
        logMaxBytes: 1_000_000,
        logFiles: 3,
        logTailLines: 100,
        logBytesPerS: 16 * 2 ** 20,
        ...config,
      },
    });
    await action({ folder, path: childLogPath(folder, "v2"), logs, events });
    await logs.close();
  });
}

/** The text of each line of a file, without its label. */
async function texts(path: string): Promise<string[]> {
  const lines = (await readFile(path, "utf8")).split("\n").slice(0, -1);
  return lines.map((line) => line.split(" ").slice(3).join(" "));
}

test("lines of several generations and streams are labelled, however they are cut into chunks", async () => {
  await logging(async ({ logs, path }) => {
    const one = logs.open("v2", 1);
    const two = logs.open("v2", 2);
    one.write("stdout", bytes("hel"));
    two.write("stderr", bytes("other\r\n"));
    one.write("stdout", bytes("lo\n\nlast"));
    const umlaut = bytes("grüße\n");
    two.write("stdout", umlaut.subarray(0, 3));
    two.write("stdout", umlaut.subarray(3));
    one.close();
    await logs.flush();
    const lines = (await readFile(path, "utf8")).split("\n");
    assert.equal(lines.map((line) => line.split(" ").slice(1).join(" ")), [
      "v2#2 err other",
      "v2#1 out hello",
      "v2#1 out ",
      "v2#2 out grüße",
      "v2#1 out last",
      "",
    ]);
    for (const line of lines.slice(0, -1)) {
      assert.match(line, /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z /);
    }
    assert.equal(logs.tail("v2", 2).map((line) => line.text), ["grüße", "last"]);
    assert.equal(logs.tail("v2", 1).map(formatLogLine), [lines[4]]);
    assert.equal(logs.tail("v2", 0), []);
    assert.equal(logs.tail("v9", 5), []);
  });
});

test("bytes that are no text are taken, and nothing is after the end", async () => {
  await logging(async ({ logs, path }) => {
    const one = logs.open("v2", 1);
    one.write("stdout", new Uint8Array([0xff, 0x41, 0x00, 0x0a]));
    one.close();
    one.close();
    one.write("stdout", bytes("late\n"));
    await logs.flush();
    assert.equal(await texts(path), ["\ufffdA\0"]);
  });
});

test("a line without an end is broken into pieces and does not grow in memory", async () => {
  await logging(async ({ logs, path }) => {
    const one = logs.open("v2", 1);
    for (let part = 0; part < 100; part += 1) one.write("stdout", bytes("x".repeat(1_000)));
    one.write("stdout", bytes("\nnext\n"));
    await logs.flush();
    const lines = await texts(path);
    assert.is(lines.slice(0, -1).join("").length, 100_000);
    for (const line of lines) assert.ok(line.length <= 16 * 1024);
    assert.is(lines.at(-1), "next");
  });
});

test("the lines in memory are bounded by count and by size", async () => {
  await logging(async ({ logs }) => {
    const one = logs.open("v2", 1);
    for (let line = 0; line < 1_000; line += 1) one.write("stdout", bytes(`${line}\n`));
    assert.equal(logs.tail("v2", 3).map((line) => line.text), ["997", "998", "999"]);
    assert.ok(logs.tail("v2", 10_000).length <= 200);
    for (let line = 0; line < 500; line += 1) one.write("stdout", bytes("y".repeat(16_000) + "\n"));
    const size = logs.tail("v2", 10_000).reduce((sum, line) => sum + line.text.length, 0);
    assert.ok(size <= 2 * 2 ** 20 + 16_000, String(size));
    await logs.flush();
  });
});

test("listeners hear each line until they leave", async () => {
  await logging(async ({ logs }) => {
    const heard: string[] = [];
    const leave = logs.follow("v2", (line) => heard.push(`${line.generation} ${line.text}`));
    const one = logs.open("v2", 7);
    one.write("stdout", bytes("a\nb\n"));
    logs.open("v3", 1).write("stdout", bytes("another version\n"));
    leave();
    one.write("stdout", bytes("c\n"));
    assert.equal(heard, ["7 a", "7 b"]);
    await logs.flush();
  });
});

test("the file is rotated by size, and so many files are kept", async () => {
  await logging(async ({ logs, folder, path }) => {
    const one = logs.open("v2", 1);
    for (let line = 0; line < 60; line += 1) {
      one.write("stdout", bytes(`${line} ${"z".repeat(400)}\n`));
      await logs.flush();
    }
    assert.equal((await readdir(folder)).sort(), ["v2.log", "v2.log.1", "v2.log.2"]);
    const kept: number[] = [];
    for (const file of [`${path}.2`, `${path}.1`, path]) {
      assert.ok((await readFile(file)).length <= 5_000);
      kept.push(...(await texts(file)).map((text) => Number(text.split(" ")[0])));
    }
    const first = kept[0] ?? 0;
    assert.ok(first > 0, "the oldest are gone");
    assert.equal(kept, Array.from({ length: 60 - first }, (_, index) => first + index));
  }, { logMaxBytes: 5_000 });
});

test("with one file it is emptied instead, and what was there at the start counts", async () => {
  await logging(async ({ logs, folder, path }) => {
    await mkdir(folder);
    await writeFile(path, "o".repeat(4_900) + "\n");
    logs.open("v2", 1).write("stdout", bytes("n".repeat(300) + "\n"));
    await logs.flush();
    assert.equal(await readdir(folder), ["v2.log"]);
    assert.equal(await texts(path), ["n".repeat(300)]);
  }, { logMaxBytes: 5_000, logFiles: 1 });
});

test("a file that somebody deleted or moved is made anew", async () => {
  await logging(async ({ logs, path }) => {
    const one = logs.open("v2", 1);
    one.write("stdout", bytes("first\n"));
    await logs.flush();
    await unlink(path);
    let number = 0;
    await until(async () => {
      one.write("stdout", bytes(`${number += 1}\n`));
      await logs.flush();
      return await runtime.files.info(path) !== undefined;
    }, "a new file");
    await rename(path, `${path}.mine`);
    await until(async () => {
      one.write("stdout", bytes("again\n"));
      await logs.flush();
      return await runtime.files.info(path) !== undefined;
    }, "another new file");
  });
});

test("a full disk costs lines, never the child; it is told once, and writing goes on after it", async () => {
  await logging(async ({ logs, folder, path, events }) => {
    await mkdir(folder);
    await symlink("/dev/full", path);
    const one = logs.open("v2", 1);
    for (let line = 0; line < 50; line += 1) {
      one.write("stderr", bytes(`${line}\n`));
      await logs.flush();
    }
    assert.equal(logs.tail("v2", 1).map((line) => line.text), ["49"], "memory has it all the same");
    assert.equal(events, ["child_log_failed"]);
    await unlink(path);
    await until(async () => {
      one.write("stderr", bytes("back\n"));
      await logs.flush();
      return events.includes("child_log_back");
    }, "writing again");
    assert.ok((await texts(path)).includes("back"));
  });
});

test("a rotation that fails loses lines, and neither throws nor fills the disk", async () => {
  const files: Files = {
    ...runtime.files,
    rename: () => Promise.reject(new Error("EACCES")),
  };
  await logging(
    async ({ logs, path, events }) => {
      const one = logs.open("v2", 1);
      for (let line = 0; line < 100; line += 1) {
        one.write("stdout", bytes("q".repeat(400) + "\n"));
        await logs.flush();
      }
      assert.ok((await readFile(path)).length <= 5_000);
      assert.ok(events.includes("child_log_failed"));
    },
    { logMaxBytes: 5_000 },
    files,
  );
});

test("a child that floods its output is never blocked: it ends, and what was dropped is counted", async () => {
  await inScratch(async (folder) => {
    // A clock that stands still: one second's worth is taken, whatever the machine's speed.
    const logs = new ChildLogs({
      runtime: {
        files: runtime.files,
        clock: { ...runtime.clock, now: () => 0, monotonic: () => 0 },
      },
      log: silentLog,
      folder,
      config: { logMaxBytes: 1e9, logFiles: 2, logTailLines: 10, logBytesPerS: 2_000_000 },
    });
    const one = logs.open("v2", 1);
    let taken = 0;
    const before = process.memoryUsage().rss;
    let most = before;
    const child = await runtime.processes.spawn({
      command: "/bin/sh",
      args: ["-c", "yes 0123456789abcdef | head -c 100000000 >&2; echo end"],
      env: { PATH: process.env.PATH ?? "/bin:/usr/bin" },
      onOutput: (stream, chunk) => {
        taken += chunk.length;
        most = Math.max(most, process.memoryUsage().rss);
        one.write(stream, chunk);
      },
    });
    const exit = await child.exited;
    one.close();
    await logs.close();
    assert.is(exit.code, 0);
    assert.ok(taken > 100_000_000);
    assert.ok(most - before < 300 * 2 ** 20, `${(most - before) / 2 ** 20} MiB`);
    const lines = await texts(childLogPath(folder, "v2"));
    // One gap is usual; a slow disk may make several, and each is told.
    const gaps = lines.map((line) => /baton: (\d+) bytes of output/.exec(line)?.[1]);
    const dropped = gaps.reduce((sum, bytes) => sum + Number(bytes ?? 0), 0);
    assert.ok(dropped > 97_000_000 && dropped < taken, `${dropped} bytes`);
    const whole = lines.filter((_, at) => gaps[at] === undefined);
    for (const line of whole) assert.match(line, /^[0-9a-f]{1,16}$/);
    const count = lines.length - whole.length;
    assert.ok(whole.filter((line) => line.length < 16).length <= count, "but those at the gaps");
  });
});

test("after a gap taking goes on at the next line's start, and the gap is told in between", async () => {
  await inScratch(async (folder) => {
    let nowMs = 0;
    const logs = new ChildLogs({
      runtime: {
        files: runtime.files,
        clock: { ...runtime.clock, now: () => 0, monotonic: () => nowMs },
      },
      log: silentLog,
      folder,
      config: { logMaxBytes: 1e9, logFiles: 2, logTailLines: 10, logBytesPerS: 1_024 },
    });
    const one = logs.open("v2", 1);
    one.write("stdout", bytes("x".repeat(1_100) + "\nhalf a"));
    one.write("stdout", bytes(" line\nlost\nhalf"));
    nowMs = 1_000;
    one.write("stdout", bytes(" lost\nback\n"));
    one.close();
    await logs.close();
    assert.equal(await texts(childLogPath(folder, "v2")), [
      "x".repeat(1_100),
      "half a",
      "[baton: 15 bytes of output came too fast and were dropped]",
      "back",
    ]);
  });
});

// ---------------------------------------------------------------------- reading it from elsewhere

test("the last lines of a file, also over a rotation, of big files and of none", async () => {
  await inScratch(async (folder) => {
    const path = join(folder, "v.log");
    const { files } = runtime;
    assert.equal(await tailLogFile(files, path, 5), []);
    await writeFile(path, "a\nb\nc\n");
    assert.equal(await tailLogFile(files, path, 2), ["b", "c"]);
    assert.equal(await tailLogFile(files, path, 9), ["a", "b", "c"]);
    assert.equal(await tailLogFile(files, path, 0), []);
    await writeFile(`${path}.1`, "y\nz\n");
    assert.equal(await tailLogFile(files, path, 4), ["z", "a", "b", "c"]);
    await writeFile(path, "c\nno end yet");
    assert.equal(await tailLogFile(files, path, 2), ["c", "no end yet"]);
    const many = Array.from({ length: 50_000 }, (_, index) => `line ${index}`);
    await writeFile(path, many.join("\n") + "\n");
    assert.equal(await tailLogFile(files, path, 20_000), many.slice(-20_000));
  });
});

test("following sees every line once, over rotations, emptying and deletion", async () => {
  await inScratch(async (folder) => {
    const path = join(folder, "v.log");
    const seen: string[] = [];
    const abort = new AbortController();
    await writeFile(path, "old 1\nold 2\nold 3\n");
    let looks = 0;
    const following = followLogFile({
      files: runtime.files,
      clock: {
        now: () => 0,
        monotonic: () => 0,
        after: (delayMs, action) => {
          looks += 1;
          return runtime.clock.after(delayMs / 10, action);
        },
      },
      path,
      tail: 2,
      signal: abort.signal,
      onLines: (lines) => seen.push(...lines),
    });
    const looked = async () => {
      const now = looks;
      await until(() => looks >= now + 2, "a look at the file");
    };
    const expects = (line: string) => until(() => seen.at(-1) === line, line);
    await expects("old 3");
    await appendFile(path, "new 1\nnew");
    await expects("new 1");
    await appendFile(path, " 2\n");
    await expects("new 2");
    await appendFile(path, "before\n");
    await rename(path, `${path}.1`);
    await appendFile(`${path}.1`, "at the end\n");
    await writeFile(path, "after\n");
    await expects("after");
    await writeFile(path, "");
    await looked();
    await appendFile(path, "emptied\n");
    await expects("emptied");
    await unlink(path);
    await looked();
    await writeFile(path, "reborn\n");
    await expects("reborn");
    abort.abort();
    await following;
    assert.equal(seen, [
      "old 2",
      "old 3",
      "new 1",
      "new 2",
      "before",
      "at the end",
      "after",
      "emptied",
      "reborn",
    ]);
  });
});

test("a log that does not exist yet is waited for", async () => {
  await inScratch(async (folder) => {
    const path = join(folder, "v.log");
    const seen: string[] = [];
    const abort = new AbortController();
    const following = followLogFile({
      files: runtime.files,
      clock: runtime.clock,
      path,
      tail: 10,
      signal: abort.signal,
      onLines: (lines) => seen.push(...lines),
    });
    await writeFile(path, "first\n");
    await until(() => seen.length === 1, "the first line");
    abort.abort();
    await following;
    assert.equal(seen, ["first"]);
  });
});

test.run();
