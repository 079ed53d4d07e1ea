import { chmod, copyFile, mkdir, readFile, realpath, writeFile } from "node:fs/promises";
import { join } from "node:path";
import process from "node:process";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { parseProcStat } from "../../src/runtime/proc_stat.ts";
import { FileMissing, NotExecutable } from "../../src/runtime/runtime.ts";
import { runtime } from "../support/runtime.ts";
import { inFolder, rejection, until } from "./support.ts";

const { processes } = runtime;
const env = { PATH: "/usr/bin:/bin" };

/** A shell in a group of its own, with its output as text. */
async function shell(script: string) {
  let text = "";
  const decoder = new TextDecoder();
  const child = await processes.spawn({
    command: "sh",
    args: ["-c", script],
    env,
    onOutput: (_stream, chunk) => {
      text += decoder.decode(chunk, { stream: true });
    },
  });
  return { child, text: () => text };
}

test("an exit code is reported after the child was reaped", async () => {
  const { child } = await shell("exit 7");
  assert.equal(await child.exited, { code: 7 });
  assert.is(await processes.startTime(child.pid), undefined);
});

test("the signal that ended a child is reported instead of a code", async () => {
  const { child, text } = await shell("echo ready; exec sleep 1000");
  await until("the child is ready", () => text() === "ready\n");
  assert.is(child.signalGroup("SIGTERM"), true);
  assert.equal(await child.exited, { signal: "SIGTERM" });
});

test("kill -9 from outside is reported as such, with all output from before it", async () => {
  const { child, text } = await shell("head -c 300000 /dev/zero; kill -9 $$");
  assert.equal(await child.exited, { signal: "SIGKILL" });
  assert.is(text().length, 300_000);
});

test("a child leads a group of its own, and a group signal reaches its grandchildren", async () => {
  const { child, text } = await shell("sleep 1000 & sleep 1000 & echo ready; wait");
  await until("the child is ready", () => text() === "ready\n");
  assert.is((await processes.groupMembers(child.pid)).length, 3);
  assert.not.ok((await processes.groupMembers(child.pid)).includes(process.pid));
  assert.is(child.signalGroup("SIGKILL"), true);
  assert.equal(await child.exited, { signal: "SIGKILL" });
  await until(
    "the group is empty",
    async () => (await processes.groupMembers(child.pid)).length === 0,
  );
});

test("grandchildren that outlive the child can still be signalled, and do not hold `exited`", async () => {
  const { child, text } = await shell("sleep 1000 & echo ready; exit 5");
  assert.equal(await child.exited, { code: 5 });
  assert.is(text(), "ready\n");
  assert.is((await processes.groupMembers(child.pid)).length, 1);
  assert.is(child.signalGroup("SIGKILL"), true);
  await until(
    "the group is empty",
    async () => (await processes.groupMembers(child.pid)).length === 0,
  );
});

test("a grandchild that keeps writing to the pipe does not hold `exited` either", async () => {
  const { child } = await shell("yes & exit 0");
  assert.equal(await child.exited, { code: 0 });
  child.signalGroup("SIGKILL");
  await until(
    "the group is empty",
    async () => (await processes.groupMembers(child.pid)).length === 0,
  );
});

test("signalling a group that has ended says so, for a child and for a bare pid", async () => {
  const { child } = await shell("exit 0");
  await child.exited;
  assert.is(child.signalGroup("SIGTERM"), false);
  assert.is(processes.signalGroup(child.pid, "SIGTERM"), false);
});

test("a group that another Baton left behind can be signalled by its pid", async () => {
  const { child, text } = await shell("sleep 1000 & echo ready; wait");
  await until("the child is ready", () => text() === "ready\n");
  assert.is(processes.signalGroup(child.pid, "SIGKILL"), true);
  assert.equal(await child.exited, { signal: "SIGKILL" });
});

test("pids that would mean everybody or ourselves are refused", () => {
  for (const pid of [0, 1, -1, -5, 1.5, NaN]) {
    assert.throws(() => processes.signalGroup(pid, "SIGTERM"), /no process group/);
  }
});

test("50 MB on each pipe arrive whole and never block the child", async () => {
  const bytes = { stdout: 0, stderr: 0 };
  const child = await processes.spawn({
    command: "sh",
    args: ["-c", "head -c 50000000 /dev/zero; head -c 50000000 /dev/zero >&2; exit 3"],
    env,
    onOutput: (stream, chunk) => {
      bytes[stream] += chunk.length;
    },
  });
  assert.equal(await child.exited, { code: 3 });
  assert.equal(bytes, { stdout: 50_000_000, stderr: 50_000_000 });
});

test("a gigabyte of output that nobody keeps does not grow our memory", async () => {
  const before = process.memoryUsage().rss;
  const child = await processes.spawn({
    command: "sh",
    args: ["-c", "head -c 1000000000 /dev/zero >&2"],
    env,
    onOutput: () => {},
  });
  assert.equal(await child.exited, { code: 0 });
  assert.ok(process.memoryUsage().rss - before < 250_000_000);
});

test("output that nobody asked for does not block the child", async () => {
  const child = await processes.spawn({
    command: "sh",
    args: ["-c", "head -c 50000000 /dev/zero; exit 4"],
    env,
  });
  assert.equal(await child.exited, { code: 4 });
});

test("an owner of output that throws does not stop the reading", async () => {
  let calls = 0;
  const child = await processes.spawn({
    command: "sh",
    args: ["-c", "head -c 2000000 /dev/zero; exit 4"],
    env,
    onOutput: () => {
      calls++;
      throw new Error("no");
    },
  });
  assert.equal(await child.exited, { code: 4 });
  assert.ok(calls > 1);
});

test("the child gets exactly the environment given, and the working folder", async () => {
  await inFolder(async (folder) => {
    const path = await realpath(folder);
    const seen = await processes.run({
      command: "/usr/bin/env",
      args: [],
      env: { ONE: "1", TWO: "a b" },
      timeoutMs: 20_000,
    });
    assert.equal(seen.stdout.trim().split("\n").sort(), ["ONE=1", "TWO=a b"]);
    const where = await processes.run({
      command: "pwd",
      args: ["-P"],
      env,
      cwd: path,
      timeoutMs: 20_000,
    });
    assert.is(where.stdout, `${path}\n`);
  });
});

test("the child's standard input is empty", async () => {
  const done = await processes.run({ command: "cat", args: [], env, timeoutMs: 20_000 });
  assert.equal(done, { code: 0, stdout: "", stderr: "", timedOut: false });
});

test("a command without a slash is looked up in the child's own PATH", async () => {
  await inFolder(async (folder) => {
    await writeFile(join(folder, "greet"), "#!/bin/sh\necho hello\n", { mode: 0o755 });
    const done = await processes.run({
      command: "greet",
      args: [],
      env: { PATH: `/nowhere:${folder}` },
      timeoutMs: 20_000,
    });
    assert.is(done.stdout, "hello\n");
    const error = await rejection(processes.spawn({ command: "greet", args: [], env }));
    assert.instance(error, FileMissing);
  });
});

test("a relative command is relative to the child's working folder", async () => {
  await inFolder(async (folder) => {
    await mkdir(join(folder, "bin"));
    await writeFile(join(folder, "bin", "greet"), "#!/bin/sh\necho hello\n", { mode: 0o755 });
    const done = await processes.run({
      command: "bin/greet",
      args: [],
      env,
      cwd: folder,
      timeoutMs: 20_000,
    });
    assert.is(done.stdout, "hello\n");
  });
});

test("a missing program and a missing working folder are FileMissing", async () => {
  for (const command of ["/nowhere/at/all", "no-such-command-anywhere", "./nothing-here"]) {
    assert.instance(await rejection(processes.spawn({ command, args: [], env })), FileMissing);
  }
  const error = await rejection(
    processes.spawn({ command: "true", args: [], env, cwd: "/nowhere/at/all" }),
  );
  assert.instance(error, FileMissing);
  assert.match(error.message, "working folder");
});

test("what the kernel would not run is NotExecutable", async () => {
  await inFolder(async (folder) => {
    const files: Record<string, [string | Uint8Array, number]> = {
      "no-permission": ["#!/bin/sh\n", 0o644],
      "no-magic": ["echo this is a shell script only to a shell\n", 0o755],
      "empty": ["", 0o755],
      "interpreter-missing": ["#!/nowhere/at/all\n", 0o755],
      "cut-off": ["\x7fELF", 0o755],
      "other-machine": [
        new Uint8Array([0x7f, 69, 76, 70, 2, 1, 1, ...new Array(11).fill(0), 8, 0]),
        0o755,
      ],
    };
    for (const [name, [content, mode]] of Object.entries(files)) {
      const path = join(folder, name);
      await writeFile(path, content);
      await chmod(path, mode);
      const error = await rejection(processes.spawn({ command: path, args: [], env }));
      assert.instance(error, NotExecutable, name);
    }
    const error = await rejection(processes.spawn({ command: folder, args: [], env }));
    assert.instance(error, NotExecutable);
  });
});

test("a failure that is not the program's fault is neither of the two", async () => {
  const args = ["x".repeat(1_000_000)];
  const error = await rejection(processes.spawn({ command: "true", args, env }));
  assert.not.ok(error instanceof NotExecutable || error instanceof FileMissing);
  assert.match(error.message, /E2BIG|too long/i);
});

test("run collects both outputs, the code, and ends what the program left running", async () => {
  const done = await processes.run({
    command: "sh",
    args: ["-c", "sleep 1000 & echo out; echo err >&2; echo $$; exit 9"],
    env,
    timeoutMs: 20_000,
  });
  const [out, pid] = done.stdout.trim().split("\n");
  assert.is(out, "out");
  assert.equal([done.stderr, done.code, done.timedOut], ["err\n", 9, false]);
  await until(
    "the group is empty",
    async () => (await processes.groupMembers(Number(pid))).length === 0,
  );
});

test("run kills the whole group at its timeout", async () => {
  const done = await processes.run({
    command: "sh",
    args: ["-c", "echo $$; sleep 1000 & sleep 1000; true"],
    env,
    timeoutMs: 300,
  });
  assert.equal([done.timedOut, done.signal, done.code], [true, "SIGKILL", undefined]);
  const pid = Number(done.stdout);
  await until("the group is empty", async () => (await processes.groupMembers(pid)).length === 0);
});

test("run keeps the first bytes of a long output and reads the rest away", async () => {
  const done = await processes.run({
    command: "sh",
    args: ["-c", "head -c 5000000 /dev/zero | tr '\\0' x"],
    env,
    timeoutMs: 20_000,
    maxOutputBytes: 100_000,
  });
  assert.is(done.code, 0);
  assert.is(done.stdout, "x".repeat(100_000));
});

test("a start time names a process, whatever its program is called", async () => {
  await inFolder(async (folder) => {
    const path = join(folder, "a) b (c) 1 2");
    await copyFile(await realpath("/bin/sleep"), path);
    await chmod(path, 0o755);
    const child = await processes.spawn({ command: path, args: ["1000"], env });
    const stat = await readFile(`/proc/${child.pid}/stat`, "utf8");
    const own = Number(await processes.startTime(process.pid));
    const theirs = Number(await processes.startTime(child.pid));
    assert.ok(stat.includes("a) b (c) 1 2"));
    assert.ok(own > 0 && theirs >= own);
    assert.is(await processes.startTime(child.pid), String(theirs));
    child.signalGroup("SIGKILL");
    await child.exited;
    assert.is(await processes.startTime(child.pid), undefined);
  });
});

test("field 22 is found behind a name with spaces and parentheses", () => {
  const after = Array.from({ length: 49 }, (_, index) => String(index + 4)).join(" ");
  assert.equal(parseProcStat(`77 (a) S 9) Z ${after}`), {
    state: "Z",
    group: 5,
    startTime: "22",
  });
  assert.is(parseProcStat("77 (a) S 1"), undefined);
});

test("a zombie has no start time and is not a member of its group", async () => {
  // The inner shell dies only after the outer one has become a sleep, which never reaps.
  const { child, text } = await shell(
    `sh -c 'until grep -q sleep /proc/$PPID/comm; do sleep 0.01; done; kill -9 $$' &
     echo $!; exec sleep 1000`,
  );
  await until("the zombie's pid is printed", () => text().endsWith("\n"));
  const zombie = Number(text());
  await until("it is a zombie", async () => {
    return (await readFile(`/proc/${zombie}/stat`, "utf8")).includes(") Z ");
  });
  assert.is(await processes.startTime(zombie), undefined);
  assert.equal(await processes.groupMembers(child.pid), [child.pid]);
  child.signalGroup("SIGKILL");
  await child.exited;
});

test.run();
