import { mkdir, readdir, readFile, stat, utimes, writeFile } from "node:fs/promises";
import { join } from "node:path";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { defaultVersionsConfig, type VersionsConfig } from "../../src/config/versions.ts";
import { silentLog } from "../../src/observe/log.ts";
import type { Files } from "../../src/runtime/runtime.ts";
import { FileMissing } from "../../src/runtime/runtime.ts";
import { RolloutFailure } from "../../src/supervisor/failure.ts";
import { canonicalPaths } from "../../src/supervisor/install_layout.ts";
import { type InstallProgress, Installs } from "../../src/supervisor/installs.ts";
import { makeTarGz, makeZip, noise, sha256, tarFile } from "../support/artifacts.ts";
import { dyingAfter } from "../support/failing_files.ts";
import { type RawServer, rawServer, reply } from "../support/raw_http.ts";
import { runtime } from "../support/runtime.ts";
import { inScratch, rejection } from "../support/scratch.ts";

const PROGRAM = noise(100_000);
const ZIP = await makeZip([{ name: "build/devshard", content: PROGRAM }]);
const SHA = sha256(ZIP);

interface Case {
  readonly bin: string;
  readonly server: RawServer;
  readonly desired: { name: string; url: string; sha256: string };
  installs(config?: Partial<VersionsConfig>, files?: Files): Installs;
}

/** A server with the zip and an empty folder for installs. */
async function serving(
  action: (one: Case) => Promise<void>,
  artifact: Uint8Array = ZIP,
): Promise<void> {
  const server = await rawServer((socket) => reply(socket, 200, artifact));
  try {
    await inScratch(async (folder) => {
      const bin = join(folder, "bin");
      await action({
        bin,
        server,
        desired: { name: "v1", url: `${server.url}/v1.zip`, sha256: sha256(artifact) },
        installs: (config = {}, files = runtime.files) =>
          new Installs({
            runtime: { ...runtime, files },
            log: silentLog,
            binDir: bin,
            config: { ...defaultVersionsConfig({ oracle: "file:x" }), ...config },
          }),
      });
    });
  } finally {
    await server.close();
  }
}

async function flat(one: Case, program = PROGRAM, archive = SHA): Promise<void> {
  await mkdir(join(one.bin, "v1"), { recursive: true });
  await writeFile(join(one.bin, "v1", "devshard"), program, { mode: 0o755 });
  await writeFile(
    join(one.bin, "v1", "install.json"),
    JSON.stringify({ archive_sha256: archive.toUpperCase(), binary_sha256: sha256(PROGRAM) }),
  );
}

test("case 40: the hash of known bytes", async () => {
  await inScratch(async (folder) => {
    await writeFile(join(folder, "x"), "abc");
    assert.is(
      await runtime.files.sha256(join(folder, "x")),
      "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
    );
  });
});

test("case 41: the hash of a path that is missing is an error", async () => {
  assert.instance(await rejection(runtime.files.sha256("/nowhere/x")), FileMissing);
});

test("case 48: a source of mode 0644 is copied as the same bytes, mode 0755", async () => {
  await inScratch(async (folder) => {
    await writeFile(join(folder, "a"), PROGRAM, { mode: 0o644 });
    await runtime.files.copy(join(folder, "a"), join(folder, "b"), 0o755);
    assert.equal(new Uint8Array(await readFile(join(folder, "b"))), PROGRAM);
    assert.is((await stat(join(folder, "b"))).mode & 0o777, 0o755);
  });
});

test("case 49: where an install lies", () => {
  assert.equal(canonicalPaths("/bin", "v1", SHA, "devshard"), {
    folder: `/bin/v1/${SHA}`,
    record: `/bin/v1/${SHA}/install.json`,
    binary: `/bin/v1/${SHA}/devshard`,
  });
});

test("case 216: a good zip becomes a program, and install.json holds both hashes", async () => {
  await serving(async (one) => {
    const steps: string[] = [];
    const onProgress = (progress: InstallProgress) => steps.push(progress.step);
    const install = await one.installs().ensure(one.desired, { onProgress });
    assert.equal(install, {
      name: "v1",
      sha256: SHA,
      binarySha256: sha256(PROGRAM),
      binary: join(one.bin, "v1", SHA, "devshard"),
      folder: join(one.bin, "v1", SHA),
      layout: "canonical",
    });
    assert.equal(new Uint8Array(await readFile(install.binary)), PROGRAM);
    assert.is((await stat(install.binary)).mode & 0o777, 0o755);
    const record = join(install.folder, "install.json");
    assert.equal(JSON.parse(await readFile(record, "utf8")), {
      archive_sha256: SHA,
      binary_sha256: sha256(PROGRAM),
    });
    assert.is((await stat(record)).mode & 0o777, 0o644);
    assert.equal(await readdir(join(one.bin, "v1")), [SHA], "no work in progress is left");
    assert.equal([...new Set(steps)], ["waiting", "downloading", "unpacking"]);
  });
});

test("case 217, 218: a wrong hash, or no program inside, installs nothing", async () => {
  await serving(async (one) => {
    const wrong = { ...one.desired, sha256: "0".repeat(64) };
    const error = await rejection(one.installs().ensure(wrong));
    assert.is((error as RolloutFailure).class, "hash");
    const other = await rejection(one.installs({ binaryName: "other" }).ensure(one.desired));
    assert.is((other as RolloutFailure).class, "download");
    assert.match(other.message, "no other in the zip");
    assert.equal(await readdir(join(one.bin, "v1")), []);
  });
});

test("case 88: what is installed is not downloaded again, by this manager or the next (M2)", async () => {
  await serving(async (one) => {
    const installs = one.installs();
    const first = await installs.ensure(one.desired);
    assert.equal(await installs.ensure(one.desired), first);
    assert.equal(await one.installs().ensure(one.desired), first);
    assert.equal(await one.installs().find("v1", SHA), first);
    assert.is(await one.installs().find("v2", SHA), undefined);
    assert.is(one.server.requests.length, 1);
  });
});

test("case 87: bytes that changed after the install do not match, and both hashes are told", async () => {
  await serving(async (one) => {
    const installs = one.installs();
    const install = await installs.ensure(one.desired);
    assert.is((await installs.verify(install)).ok, true);
    const changed = PROGRAM.slice();
    changed[5] = (changed[5] ?? 0) ^ 1;
    await writeFile(install.binary, changed);
    assert.equal(await installs.verify(install), {
      ok: false,
      expected: sha256(PROGRAM),
      actual: sha256(changed),
    });
    assert.is(await installs.find("v1", SHA), undefined, "it is not used");
    assert.is((await installs.ensure(one.desired)).binarySha256, sha256(PROGRAM), "but made good");
    assert.is((await installs.verify(install)).ok, true);
    await runtime.files.remove(install.binary);
    assert.is((await installs.verify(install)).actual, undefined);
  });
});

test("hashes are read again only when inode, size or time changed (M3)", async () => {
  await serving(async (one) => {
    let read = 0;
    const files: Files = {
      ...runtime.files,
      sha256: (path) => {
        read += 1;
        return runtime.files.sha256(path);
      },
    };
    const installs = one.installs({}, files);
    const install = await installs.ensure(one.desired);
    const old = new Date(Date.now() - 60_000);
    await utimes(install.binary, old, old);
    await installs.verify(install);
    read = 0;
    for (let poll = 0; poll < 10; poll += 1) {
      await installs.verify(install);
      await installs.ensure(one.desired);
    }
    assert.is(read, 0);
    await utimes(install.binary, old, new Date(old.getTime() + 1_000));
    assert.is((await installs.verify(install)).ok, true);
    assert.is(read, 1);
    await writeFile(install.binary, noise(100_000, 7));
    assert.is((await installs.verify(install)).ok, false, "same size, same inode, a fresh time");
    await writeFile(install.binary, noise(100_000, 8));
    assert.is((await installs.verify(install)).actual, sha256(noise(100_000, 8)));
  });
});

test("case 89: a verified flat install is promoted, without the network, and kept (B20)", async () => {
  await serving(async (one) => {
    await flat(one);
    await one.server.close();
    const install = await one.installs().ensure(one.desired);
    assert.is(install.layout, "canonical");
    assert.is(install.binary, join(one.bin, "v1", SHA, "devshard"));
    assert.equal(new Uint8Array(await readFile(install.binary)), PROGRAM);
    assert.equal((await readdir(join(one.bin, "v1"))).sort(), [SHA, "devshard", "install.json"]);
    assert.is(one.server.requests.length, 0);
  });
});

test("case 90: where the canonical place is blocked the flat install is used", async () => {
  await serving(async (one) => {
    await flat(one);
    await mkdir(join(one.bin, "v1", SHA, "devshard", "in-the-way"), { recursive: true });
    const install = await one.installs().ensure(one.desired);
    assert.is(install.layout, "flat");
    assert.is(install.binary, join(one.bin, "v1", "devshard"));
    assert.is(one.server.requests.length, 0);
  });
});

test("case 91: managers that promote or download at once all end with a verified install", async () => {
  await serving(async (one) => {
    await flat(one);
    const promoted = await Promise.all(
      Array.from({ length: 6 }, () => one.installs().ensure(one.desired)),
    );
    for (const install of promoted) assert.is((await one.installs().verify(install)).ok, true);
    assert.is(new Set(promoted.map((install) => install.binary)).size, 1);
    const v2 = { ...one.desired, name: "v2" };
    const downloaded = await Promise.all(
      Array.from({ length: 6 }, () => one.installs().ensure(v2)),
    );
    for (const install of downloaded) assert.is((await one.installs().verify(install)).ok, true);
    assert.equal(await readdir(join(one.bin, "v2")), [SHA]);
    assert.equal((await readdir(join(one.bin, "v2", SHA))).sort(), ["devshard", "install.json"]);
  });
});

test("case 92: a flat install that was tampered with is refused and not promoted", async () => {
  await serving(async (one) => {
    await flat(one, noise(100_000, 4));
    assert.is(await one.installs().find("v1", SHA), undefined);
    assert.is(await runtime.files.info(join(one.bin, "v1", SHA)), undefined);
    await flat(one, PROGRAM, "1".repeat(64));
    assert.is(await one.installs().find("v1", SHA), undefined, "another archive's");
  });
});

test("an install.json that is torn, empty or lies about its place is no install", async () => {
  await serving(async (one) => {
    const installs = one.installs();
    const install = await installs.ensure(one.desired);
    const record = join(install.folder, "install.json");
    const good = await readFile(record, "utf8");
    const bad = [
      "",
      good.slice(0, -5),
      "{}",
      JSON.stringify({ archive_sha256: "", binary_sha256: sha256(PROGRAM) }),
      JSON.stringify({ archive_sha256: "1".repeat(64), binary_sha256: sha256(PROGRAM) }),
      JSON.stringify({ ...JSON.parse(good), entry: "../../../etc/passwd" }),
      JSON.stringify({ ...JSON.parse(good), entry: "/bin/sh" }),
    ];
    for (const text of bad) {
      await writeFile(record, text);
      assert.is(await installs.find("v1", SHA), undefined, text);
    }
    await installs.ensure(one.desired);
    assert.is(await readFile(record, "utf8"), good);
  });
});

test("a tree is installed as a whole and found again by its entry", async () => {
  const tree = await makeTarGz([
    tarFile("app/bin/start", "#!/bin/sh", 0o755),
    tarFile("app/share/data", "data"),
  ]);
  await serving(async (one) => {
    const desired = { ...one.desired, entryPoint: "app/bin/start" };
    const install = await one.installs().ensure(desired);
    assert.match(install.binary, new RegExp(`/v1/${desired.sha256}/tree-[^/]+/app/bin/start$`));
    assert.is(await readFile(join(install.binary, "..", "..", "share", "data"), "utf8"), "data");
    assert.equal(await one.installs().find("v1", desired.sha256), install);
    const record = JSON.parse(await readFile(join(install.folder, "install.json"), "utf8"));
    assert.is(join(install.folder, record.entry), install.binary);
    await one.installs({ retainInstalls: 0 }).collectGarbage([{ name: "v1", sha256: SHA }]);
    assert.is(await runtime.files.info(install.folder), undefined, "removed with all it held");
  }, tree);
});

test("a disk that dies at any change leaves either a whole install or none, and the next start mends it", async () => {
  const tree = await makeTarGz([tarFile("d/devshard", "#!/bin/sh", 0o755), tarFile("d/x", "y")]);
  for (const artifact of [ZIP, tree]) {
    await serving(async (one) => {
      let survived = false;
      for (let changes = 0; !survived; changes += 1) {
        assert.ok(changes < 200, "it ends");
        await runtime.files.remove(one.bin);
        await mkdir(one.bin);
        const outcome = await one.installs({}, dyingAfter(runtime.files, changes))
          .ensure(one.desired).then(() => "done", (error: Error) => error);
        const found = await one.installs().find("v1", one.desired.sha256);
        if (outcome === "done") assert.ok(found, `after ${changes}`);
        else assert.is((outcome as RolloutFailure).class, "transient", String(outcome));
        if (found !== undefined) {
          assert.is((await one.installs().verify(found)).ok, true);
          assert.is((await stat(found.binary)).mode & 0o777, 0o755);
        }
        const mended = await one.installs().ensure(one.desired);
        assert.is((await one.installs().verify(mended)).ok, true, `after ${changes}`);
        survived = outcome === "done" && changes > 10;
      }
    }, artifact);
  }
});

test("kill -9 at any step leaves nothing that counts as an install, and the next start installs", async () => {
  const program = fileURLToPath(new URL("./programs/install.ts", import.meta.url));
  const args = "Deno" in globalThis ? ["run", "-A", program] : [program];
  await serving(async (one) => {
    let killed = 0;
    for (let at = 1;; at += 3) {
      await runtime.files.remove(one.bin);
      const result = await runtime.processes.run({
        command: process.execPath,
        args: [...args, one.desired.url, SHA, one.bin, String(at)],
        env: { PATH: process.env.PATH ?? "", HOME: process.env.HOME ?? "" },
        timeoutMs: 30_000,
      });
      const found = await one.installs().find("v1", SHA);
      if (found !== undefined) assert.is((await one.installs().verify(found)).ok, true);
      const mended = await one.installs().ensure(one.desired);
      assert.is((await one.installs().verify(mended)).ok, true, `killed at ${at}`);
      if (result.code === 0) break;
      assert.is(result.signal, "SIGKILL", result.stderr);
      killed += 1;
    }
    assert.ok(killed >= 5, `${killed} steps`);
  });
});

test("one build asked for by several is downloaded once; different ones at most so many at a time", async () => {
  let open = 0;
  let most = 0;
  const server = await rawServer((socket, request) => {
    open += 1;
    most = Math.max(most, open);
    setTimeout(() => {
      open -= 1;
      reply(socket, 200, ZIP);
    }, 30);
    void request;
  });
  await inScratch(async (folder) => {
    const installs = new Installs({
      runtime,
      log: silentLog,
      binDir: join(folder, "bin"),
      config: { ...defaultVersionsConfig({ oracle: "file:x" }), parallelDownloads: 2 },
    });
    const desired = (name: string) => ({ name, url: `${server.url}/${name}`, sha256: SHA });
    await Promise.all(
      ["v1", "v1", "v1", "v2", "v3", "v4", "v5"].map((name) => installs.ensure(desired(name))),
    );
    assert.is(server.requests.length, 5);
    assert.is(most, 2);
  });
  await server.close();
});

test("a download can be called off while it waits for its turn", async () => {
  await serving(async (one) => {
    const abort = new AbortController();
    abort.abort(new Error("removed"));
    assert.match(
      (await rejection(one.installs().ensure(one.desired, { signal: abort.signal }))).message,
      "removed",
    );
    assert.is(one.server.requests.length, 0);
  });
});

// -------------------------------------------------------------------------------------- removal

async function installed(
  bin: string,
  name: string,
  sha: string,
  ageS: number,
  complete = true,
): Promise<void> {
  const folder = join(bin, name, sha);
  await mkdir(folder, { recursive: true });
  await writeFile(join(folder, "devshard"), sha);
  if (!complete) return;
  const record = join(folder, "install.json");
  await writeFile(record, JSON.stringify({ archive_sha256: sha, binary_sha256: sha256(sha) }));
  const at = new Date(Date.now() - ageS * 1_000);
  await utimes(record, at, at);
}

const HASHES = ["1", "2", "3", "4", "5", "6"].map((digit) => digit.repeat(64));

test("case 60: the newest stale ones stay, an incomplete one is not touched, the oldest goes", async () => {
  await serving(async (one) => {
    const [kept = "", a = "", b = "", c = "", incomplete = ""] = HASHES;
    await installed(one.bin, "v1", kept, 1_000);
    await installed(one.bin, "v1", a, 30);
    await installed(one.bin, "v1", b, 20);
    await installed(one.bin, "v1", c, 10);
    await installed(one.bin, "v1", incomplete, 0, false);
    const installs = one.installs({ retainInstalls: 2 });
    assert.equal((await installs.retained("v1")).map((install) => install.sha256), [c, b, a, kept]);
    const removed = await installs.collectGarbage([{ name: "v1", sha256: kept }]);
    assert.equal(removed, [join(one.bin, "v1", a)]);
    assert.equal((await readdir(join(one.bin, "v1"))).sort(), [kept, b, c, incomplete].sort());
    assert.equal(await installs.collectGarbage([{ name: "v1", sha256: kept }]), []);
  });
});

test("a folder is protected by its name and by what its record says", async () => {
  await serving(async (one) => {
    const [folderName = "", recorded = "", other = ""] = HASHES;
    await installed(one.bin, "v1", folderName, 10);
    await writeFile(
      join(one.bin, "v1", folderName, "install.json"),
      JSON.stringify({ archive_sha256: recorded, binary_sha256: sha256("x") }),
    );
    const installs = one.installs({ retainInstalls: 0 });
    for (const sha of [folderName, recorded]) {
      assert.equal(await installs.collectGarbage([{ name: "v1", sha256: sha.toUpperCase() }]), []);
    }
    assert.is((await installs.collectGarbage([{ name: "v1", sha256: other }])).length, 1);
  });
});

test("of equal age the higher hash counts as newer; a folder with other things in it stays", async () => {
  await serving(async (one) => {
    const [a = "", b = ""] = HASHES;
    const at = new Date(1.6e12);
    for (const sha of [a, b]) {
      await installed(one.bin, "v1", sha, 0);
      await utimes(join(one.bin, "v1", sha, "install.json"), at, at);
    }
    await writeFile(join(one.bin, "v1", a, "notes"), "by hand");
    await one.installs({ retainInstalls: 1 }).collectGarbage([{
      name: "v1",
      sha256: "9".repeat(64),
    }]);
    assert.equal(await readdir(join(one.bin, "v1", a)), ["notes"]);
    assert.equal((await readdir(join(one.bin, "v1", b))).sort(), ["devshard", "install.json"]);
  });
});

test("versions that nothing uses keep their newest until those are old, flat ones too (M10)", async () => {
  await serving(async (one) => {
    const [a = "", b = "", c = ""] = HASHES;
    await installed(one.bin, "old", a, 3_000);
    await installed(one.bin, "old", b, 10);
    await installed(one.bin, "older", c, 3_000);
    await flat(one);
    const past = new Date(Date.now() - 3_000_000);
    await utimes(join(one.bin, "v1", "install.json"), past, past);
    const installs = one.installs({ retainInstalls: 3, retainRemovedMs: 1_000_000 });
    assert.equal((await installs.collectGarbage([])).sort(), [
      join(one.bin, "old", a),
      join(one.bin, "older", c),
      join(one.bin, "v1", "devshard"),
    ]);
    assert.equal(await readdir(join(one.bin, "old")), [b]);
    assert.is(await runtime.files.info(join(one.bin, "v1")), undefined);
  });
});

test("leftovers of work that died are swept, living work and an override's copy are not", async () => {
  await serving(async (one) => {
    const folder = join(one.bin, "v1");
    await mkdir(join(folder, `.${SHA}.dead.tmp`), { recursive: true });
    await writeFile(join(folder, `.${SHA}.dead.part`), "x");
    await writeFile(join(folder, `.${SHA}.part`), "x");
    const past = new Date(1e12);
    for (const name of [`.${SHA}.dead.tmp`, `.${SHA}.dead.part`, `.${SHA}.part`]) {
      await utimes(join(folder, name), past, past);
    }
    await writeFile(join(folder, `.${SHA}.alive.part`), "x");
    await writeFile(join(folder, "devshard"), "an override");
    await utimes(join(folder, "devshard"), past, past);
    await one.installs().collectGarbage([]);
    assert.equal((await readdir(folder)).sort(), [`.${SHA}.alive.part`, "devshard"]);
  });
});

test("a removal that dies in the middle is done by the next one", async () => {
  await serving(async (one) => {
    const [a = ""] = HASHES;
    for (let changes = 0; changes < 4; changes += 1) {
      await installed(one.bin, "v1", a, 10);
      const config = { retainInstalls: 0 };
      const keep = [{ name: "v1", sha256: "9".repeat(64) }];
      await one.installs(config, dyingAfter(runtime.files, changes)).collectGarbage(keep);
      const found = await one.installs().find("v1", a);
      if (found !== undefined) assert.is((await one.installs().verify(found)).ok, true);
      await one.installs(config).collectGarbage(keep);
      const left = await runtime.files.info(join(one.bin, "v1", a));
      if (left !== undefined) assert.equal(await readdir(join(one.bin, "v1", a)), []);
    }
  });
});

test.run();
