import { join } from "node:path";
import process from "node:process";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { runtime } from "../support/runtime.ts";
import { inFolder, ownEnv, program, until } from "./support.ts";

test("the record says what it runs on", () => {
  assert.is(runtime.name, "Deno" in globalThis ? "deno" : "node");
  assert.match(runtime.version, /^\d+\.\d+\.\d+/);
  assert.is(runtime.pid, process.pid);
});

test("the environment is a copy", () => {
  const copy = runtime.env();
  assert.is(copy.PATH, process.env.PATH);
  copy.PATH = "changed";
  assert.is.not(runtime.env().PATH, "changed");
});

test("the clock fires in order, in time, and not after being cancelled", async () => {
  const { clock } = runtime;
  const before = Date.now();
  const now = clock.now();
  assert.ok(before <= now && now <= Date.now());
  const fired: string[] = [];
  const startedAt = clock.monotonic();
  await new Promise<void>((resolve) => {
    clock.after(60, () => {
      fired.push("late");
      resolve();
    });
    clock.after(20, () => fired.push("early"));
    clock.after(10, () => fired.push("cancelled"))();
    // Over 2^31 ms a plain timer would fire at once.
    const cancelLongest = clock.after(2 ** 40, () => fired.push("overflow"));
    clock.after(50, cancelLongest);
  });
  assert.equal(fired, ["early", "late"]);
  assert.ok(clock.monotonic() - startedAt >= 55);
});

test("random bytes of any length, numbers in range, and UUIDs", () => {
  const { random } = runtime;
  for (const length of [0, 1, 65_536, 65_537, 200_000]) {
    assert.is(random.bytes(length).length, length);
  }
  assert.ok(random.bytes(200_000).subarray(131_072).some((byte) => byte !== 0));
  for (let i = 0; i < 100; i++) {
    const number = random.number();
    assert.ok(number >= 0 && number < 1);
  }
  assert.match(random.uuid(), /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/);
  assert.is.not(random.uuid(), random.uuid());
});

test("lines are printed whole and in order, though the reader is slow", async () => {
  const done = await runtime.processes.run({
    command: "sh",
    args: ["-c", `"$@" | (sleep 0.2; cat)`, "sh", ...argumentsOf("print_lines.ts", "20000")],
    env: ownEnv(),
    timeoutMs: 60_000,
    maxOutputBytes: 64 * 1024 * 1024,
  });
  const lines = done.stdout.trimEnd().split("\n");
  assert.is(lines.length, 20_000);
  for (const [index, line] of lines.entries()) {
    assert.is(line, `${index} ${"x".repeat(index % 300)}`);
  }
  assert.match(done.stderr, "done\n");
});

for (const end of ["exit", "throw", "return"]) {
  test(`lines that may wait keep their order, and none is lost by an end with ${end}`, async () => {
    const done = await runtime.processes.run({
      command: "sh",
      args: ["-c", `"$@"`, "sh", ...argumentsOf("print_soon.ts", "3000", end)],
      env: ownEnv(),
      timeoutMs: 60_000,
      maxOutputBytes: 64 * 1024 * 1024,
    });
    const lines = done.stdout.trimEnd().split("\n");
    assert.equal(lines, Array.from({ length: 3000 }, (_, index) => `line ${index}`));
    assert.is(done.code, { exit: 7, throw: 1, return: 0 }[end]);
  });
}

test("a line that may wait is written without an exit", async () => {
  let output = "";
  const child = await runtime.processes.spawn({
    ...program("print_soon.ts", "10", "stay"),
    env: ownEnv(),
    onOutput: (stream, chunk) => {
      if (stream === "stdout") output += new TextDecoder().decode(chunk);
    },
  });
  await until("the last line", () => output.endsWith("line 9\n"));
  child.signalGroup("SIGKILL");
  await child.exited;
});

test("a log that nobody reads does not stop the process", async () => {
  await inFolder(async (folder) => {
    const done = await runtime.processes.run({
      command: "sh",
      args: ["-c", `mkfifo pipe && exec 4<>pipe && "$@" 2>&4`, "sh"].concat(
        argumentsOf("print_log.ts", "9000"),
      ),
      env: ownEnv(),
      cwd: folder,
      timeoutMs: 60_000,
    });
    assert.is(done.timedOut, false);
    assert.match(done.stdout, "done\n");
  });
});

test("a reader of the output that leaves does not end the process", async () => {
  const done = await runtime.processes.run({
    command: "sh",
    args: ["-c", `"$@" | true`, "sh", ...argumentsOf("print_lines.ts", "20000")],
    env: ownEnv(),
    timeoutMs: 60_000,
  });
  assert.match(done.stderr, "done\n");
});

test("a signal calls its listeners until they stop, and arguments and exit code pass through", async () => {
  await inFolder(async (folder) => {
    let output = "";
    const child = await runtime.processes.spawn({
      ...program("count_signals.ts", "one", "two words", join(folder, "x")),
      env: ownEnv(),
      onOutput: (_stream, chunk) => {
        output += new TextDecoder().decode(chunk);
      },
    });
    await until("it listens", () => output.includes("\n"));
    assert.is(output, `one|two words|${join(folder, "x")}\n`);
    child.signalGroup("SIGUSR1");
    await until("the first signal came", () => output.endsWith("SIGUSR1 1\n"));
    child.signalGroup("SIGUSR1");
    await until("the second signal came", () => output.endsWith("SIGUSR1 2\n"));
    child.signalGroup("SIGHUP");
    await until("the other signal came", () => output.endsWith("SIGHUP\n"));
    child.signalGroup("SIGTERM");
    assert.equal(await child.exited, { code: 42 });
    assert.is(output.split("\n").length, 5);
  });
});

function argumentsOf(name: string, ...args: string[]): string[] {
  const found = program(name, ...args);
  return [found.command, ...found.args];
}

test.run();
