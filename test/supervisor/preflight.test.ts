import { chmod, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { defaultVersionsConfig, type VersionsConfig } from "../../src/config/versions.ts";
import { RolloutFailure } from "../../src/supervisor/failure.ts";
import { isUnsupported, preflight } from "../../src/supervisor/preflight.ts";
import { runtime } from "../support/runtime.ts";
import { inScratch, rejection, until } from "../support/scratch.ts";

/** What the program does for one flag; the default is to say that it does not know it. */
type Answers = Partial<Record<"binary" | "protocol" | "admin" | "storage", string>>;

const UNKNOWN = `echo "unknown flag: $1" >&2; exit 2`;
const prints = (text: string) => `echo "${text}"`;

interface Asked {
  readonly answers?: Answers;
  readonly name?: string;
  readonly config?: Partial<VersionsConfig>;
  readonly signal?: AbortSignal;
}

/** Runs preflight on a shell script with these answers. */
function asking(asked: Asked) {
  return inScratch(async (folder) => {
    const binary = join(folder, "devshard");
    const { binary: build = UNKNOWN, protocol = UNKNOWN, admin = UNKNOWN, storage = UNKNOWN } =
      asked.answers ?? {};
    await writeFile(
      binary,
      `#!/bin/sh
case "$1" in
  --print-binary-version) ${build} ;;
  --print-protocol-version) ${protocol} ;;
  --print-admin-api-version) ${admin} ;;
  --print-storage-mode) ${storage} ;;
esac
`,
    );
    await chmod(binary, 0o755);
    return await preflight({
      runtime,
      config: { ...defaultVersionsConfig({ oracle: "file:x" }), ...asked.config },
      name: asked.name ?? "v2",
      binary,
      ...(asked.signal === undefined ? {} : { signal: asked.signal }),
    });
  });
}

async function refused(
  asked: Asked,
  message: RegExp,
  failureClass: RolloutFailure["class"] = "preflight",
): Promise<void> {
  const error = await rejection(asking(asked));
  assert.instance(error, RolloutFailure);
  assert.is((error as RolloutFailure).class, failureClass);
  assert.match(error.message, message);
}

test("case 10: a binary that is missing", async () => {
  const error = await rejection(preflight({
    runtime,
    config: defaultVersionsConfig({ oracle: "file:x" }),
    name: "v2",
    binary: "/nowhere/devshard",
  }));
  assert.instance(error, RolloutFailure);
  assert.match(error.message, "does not exist");
});

test("case 11: every flag unknown: accepted, the build id is the slot's name", async () => {
  assert.equal(await asking({}), { buildId: "v2", adminApi: false, storageMode: "", ha: false });
});

test("case 12: protocol flag unsupported: the stamped build id is kept", async () => {
  const said = await asking({ answers: { binary: prints("0.2.13-v2-r2") } });
  assert.is(said.buildId, "0.2.13-v2-r2");
});

test("case 13: build flag unsupported, protocol matches: the build id is the slot's name", async () => {
  assert.is((await asking({ answers: { protocol: prints("v2") } })).buildId, "v2");
});

test("case 14: a protocol that is not the slot's", async () => {
  await refused(
    { answers: { protocol: prints("v1") } },
    /protocol version v1, but is listed as v2/,
  );
});

test("case 15: both stamped and matching, whatever space is around", async () => {
  const answers = { binary: prints("  build-7  "), protocol: prints("v2\\n") };
  assert.is((await asking({ answers })).buildId, "build-7");
});

test("case 16: admin and storage flags unsupported: no admin, no mode, no error", async () => {
  const said = await asking({ answers: { binary: prints("b"), protocol: prints("v2") } });
  assert.is(said.adminApi, false);
  assert.is(said.storageMode, "");
});

test("case 17: admin printed, storage postgres", async () => {
  const said = await asking({ answers: { admin: prints("1"), storage: prints("postgres") } });
  assert.is(said.adminApi, true);
  assert.is(said.storageMode, "postgres");
});

test("case 18: the storage flag fails with another text", async () => {
  await refused(
    { answers: { storage: "echo 'cannot reach the database' >&2; exit 1" } },
    /--print-storage-mode: exit code 1.*cannot reach/,
  );
});

test("case 19: HA on, storage postgres: accepted, and the child is told", async () => {
  const said = await asking({ answers: { storage: prints("postgres") }, config: { ha: "true" } });
  assert.is(said.ha, true);
});

test("case 20: HA on, storage hybrid", async () => {
  await refused(
    { answers: { storage: prints("hybrid") }, config: { ha: "1" } },
    /reports storage hybrid/,
  );
});

test("case 21: HA on, a build that does not report its storage", async () => {
  await refused({ config: { ha: "on" } }, /does not report its storage mode/);
});

test("case 22: HA on, but not for this slot", async () => {
  const said = await asking({ config: { ha: "on", nonHaVersions: ["v1", "v2", "v3"] } });
  assert.is(said.ha, false);
});

test("case 23: HA off, a build that knows no flag", async () => {
  assert.is((await asking({ config: { ha: "off" } })).ha, false);
});

test("case 24: HA set to no known word", async () => {
  await refused({ config: { ha: "enabled" } }, /GONKA_HA is "enabled"/);
});

test("case 25: a probe that takes too long is no unknown flag", async () => {
  await refused(
    {
      answers: { protocol: "echo 'unknown flag' >&2; sleep 30" },
      config: { printTimeoutMs: 50 },
    },
    /--print-protocol-version: no answer within 50 ms/,
    "transient",
  );
});

test("case 26: the caller's deadline ends a probe that hangs, and its whole group", async () => {
  await inScratch(async (folder) => {
    const pidFile = join(folder, "pid");
    const abort = new AbortController();
    const asked = asking({
      answers: {
        binary: `sleep 600 & echo $! > ${pidFile}.tmp; mv ${pidFile}.tmp ${pidFile}; wait`,
      },
      signal: abort.signal,
    });
    asked.catch(() => {});
    const pid = async () => Number(await readFile(pidFile, "utf8").catch(() => "0"));
    await until(async () => await pid() > 0, "the probe's helper");
    abort.abort(new Error("deadline"));
    assert.match((await rejection(asked)).message, "deadline");
    const helper = await pid();
    await until(async () => await runtime.processes.startTime(helper) === undefined, "its end");
  });
});

test("a signal that is set already runs nothing", async () => {
  assert.match(
    (await rejection(asking({ signal: AbortSignal.abort(new Error("gone")) }))).message,
    "gone",
  );
});

test("unsupported is what flag parsers say, in any case, on either stream", async () => {
  for (
    const text of [
      "Error: unknown flag: --x",
      "flag provided but not defined: -x",
      "UNKNOWN SHORTHAND FLAG: 'p'",
      "app: unrecognized option '--x'",
    ]
  ) {
    assert.ok(isUnsupported(text), text);
  }
  assert.not(isUnsupported("unknown command"));
  const said = await asking({ answers: { binary: "echo 'unrecognized option'; exit 64" } });
  assert.is(said.buildId, "v2");
});

test("a usage error with exit code 0 is an answer, not an unknown flag", async () => {
  assert.is((await asking({ answers: { binary: "echo 'unknown flag'" } })).buildId, "unknown flag");
});

test("a probe that is killed is refused, whatever it printed (B7)", async () => {
  await refused(
    { answers: { binary: "echo 'unknown flag' >&2; kill -9 $$" } },
    /--print-binary-version: ended by SIGKILL/,
  );
});

test("an empty answer is refused", async () => {
  await refused({ answers: { storage: "echo '  '" } }, /--print-storage-mode: empty answer/);
  await refused({ answers: { binary: "echo only on stderr >&2" } }, /empty answer/);
});

test("a program that floods its output is bounded and still judged", async () => {
  await refused(
    { answers: { binary: "head -c 20000000 /dev/zero | tr '\\0' x; exit 3" } },
    /exit code 3/,
  );
});

test("a file that is no program is refused", async () => {
  await inScratch(async (folder) => {
    const binary = join(folder, "devshard");
    await writeFile(binary, "not a program", { mode: 0o644 });
    const error = await rejection(preflight({
      runtime,
      config: defaultVersionsConfig({ oracle: "file:x" }),
      name: "v2",
      binary,
    }));
    assert.instance(error, RolloutFailure);
    assert.match(error.message, "cannot be run");
    assert.is((error as RolloutFailure).class, "preflight");
  });
});

test("a host that cannot start another process says nothing about the build", async () => {
  const processes = {
    ...runtime.processes,
    spawn: () => Promise.reject(new Error("spawn EAGAIN: resource temporarily unavailable")),
  };
  const error = await rejection(preflight({
    runtime: { ...runtime, processes },
    config: defaultVersionsConfig({ oracle: "file:x" }),
    name: "v2",
    binary: "/bin/sh",
  }));
  assert.is((error as RolloutFailure).class, "transient");
});

test("other binaries are asked two questions, and no HA rule applies to them", async () => {
  const said = await asking({
    answers: { binary: prints("b1"), protocol: prints("v2"), storage: "exit 1", admin: "exit 1" },
    config: { binaryName: "app", ha: "true" },
  });
  assert.equal(said, { buildId: "b1", adminApi: false, storageMode: "" });
});

test("printFlags never: nothing is run, since the program would start", async () => {
  const answers = { binary: "exit 1", protocol: "exit 1" };
  const said = await asking({ answers, config: { binaryName: "app", printFlags: "never" } });
  assert.equal(said, { buildId: "v2", adminApi: false, storageMode: "" });
});

test("a probe sees the allowed environment only", async () => {
  const said = await asking({
    answers: { binary: 'echo "[$HOME][$BATON_SECRET]"' },
    config: { envAllow: ["PATH"] },
  });
  assert.is(said.buildId, "[][]");
});

test.run();
