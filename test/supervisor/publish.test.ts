import { chmod, mkdir, readdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { defaultVersionsConfig } from "../../src/config/versions.ts";
import { silentLog } from "../../src/observe/log.ts";
import { parseCatalog } from "../../src/supervisor/catalog.ts";
import { withFolderLock } from "../../src/supervisor/folder_lock.ts";
import { Installs } from "../../src/supervisor/installs.ts";
import { publish, type PublishOptions } from "../../src/supervisor/publish.ts";
import { makeTarGz, makeZip, sha256, tarFile } from "../support/artifacts.ts";
import { dyingAfter } from "../support/failing_files.ts";
import { runtime } from "../support/runtime.ts";
import { inScratch, rejection, until } from "../support/scratch.ts";

interface Case {
  readonly folder: string;
  readonly oracleFile: string;
  readonly program: string;
  run(options?: Partial<PublishOptions>): ReturnType<typeof publish>;
  list(): Promise<Record<string, unknown> & { versions: Record<string, unknown>[] }>;
}

function publishing(action: (one: Case) => Promise<void>): Promise<void> {
  return inScratch(async (folder) => {
    const oracleFile = join(folder, "conf", "versions.json");
    const program = join(folder, "app");
    await writeFile(program, "#!/bin/sh\necho one\n");
    await chmod(program, 0o755);
    await action({
      folder,
      oracleFile,
      program,
      run: (options = {}) =>
        publish({
          runtime,
          oracleFile,
          name: "v1",
          file: program,
          binaryName: "devshard",
          ...options,
        }),
      list: async () => JSON.parse(await readFile(oracleFile, "utf8")),
    });
  });
}

test("a bare program is packed, lies beside the list, and installs from it", async () => {
  await publishing(async (one) => {
    const published = await one.run();
    assert.is(published.changed, true);
    assert.is(published.replaced, undefined);
    const { versions } = await one.list();
    assert.equal(versions, [{
      name: "v1",
      binary: `./artifacts/v1-${published.sha256.slice(0, 16)}.zip`,
      sha256: published.sha256,
    }]);
    const text = await readFile(one.oracleFile, "utf8");
    const [desired] = parseCatalog(text, `file:${one.oracleFile}`).versions;
    assert.ok(desired);
    const installs = new Installs({
      runtime,
      log: silentLog,
      binDir: join(one.folder, "bin"),
      config: defaultVersionsConfig({ oracle: "file:x" }),
    });
    const install = await installs.ensure(desired);
    assert.is(await readFile(install.binary, "utf8"), "#!/bin/sh\necho one\n");
    assert.equal(await readdir(join(one.folder, "conf")), ["artifacts", "versions.json"]);
  });
});

test("the same program twice is the same build, and changes nothing", async () => {
  await publishing(async (one) => {
    const first = await one.run();
    const before = await readFile(one.oracleFile, "utf8");
    const second = await one.run();
    assert.is(second.sha256, first.sha256);
    assert.is(second.changed, false);
    assert.is(await readFile(one.oracleFile, "utf8"), before);
    assert.is((await readdir(join(one.folder, "conf", "artifacts"))).length, 1);
  });
});

test("a new build under the same name replaces the old one in the list and keeps its artifact", async () => {
  await publishing(async (one) => {
    const first = await one.run();
    await writeFile(one.program, "#!/bin/sh\necho two\n");
    const second = await one.run();
    assert.is(second.replaced, first.sha256);
    assert.is((await one.list()).versions.length, 1);
    assert.is(
      await runtime.files.sha256(first.artifact),
      first.sha256,
      "a host may still fetch it",
    );
  });
});

test("a zip and a tar.gz are copied as they are", async () => {
  await publishing(async (one) => {
    const zip = await makeZip([{ name: "devshard", content: "x" }]);
    const tree = await makeTarGz([tarFile("bin/app", "#!/bin/sh")]);
    await writeFile(join(one.folder, "a.bin"), zip);
    await writeFile(join(one.folder, "b.bin"), tree);
    assert.is((await one.run({ file: join(one.folder, "a.bin") })).sha256, sha256(zip));
    const published = await one.run({
      name: "v2",
      file: join(one.folder, "b.bin"),
      entryPoint: "bin/app",
    });
    assert.is(published.sha256, sha256(tree));
    assert.match(published.artifact, /\.tar\.gz$/);
    assert.is((await one.list()).versions[1]?.entryPoint, "bin/app");
  });
});

test("what else the list holds is kept, and revisions go up", async () => {
  await publishing(async (one) => {
    await mkdir(join(one.folder, "conf"));
    const other = {
      name: "v0",
      binary: "https://f.test/v0.zip",
      sha256: "0".repeat(64),
      port: 5000,
    };
    const mine = {
      name: "v1",
      binary: "https://f.test/v1.zip",
      sha256: "1".repeat(64),
      note: "mine",
    };
    await writeFile(
      one.oracleFile,
      JSON.stringify({
        schema: 1,
        initialized: true,
        revision: 41,
        owner: "ops",
        versions: [other, mine],
      }),
    );
    const published = await one.run();
    const list = await one.list();
    assert.is(list.revision, 42);
    assert.is(list.owner, "ops");
    assert.equal(list.versions[0], other);
    assert.is(list.versions[1]?.note, "mine");
    assert.is(list.versions[1]?.sha256, published.sha256);
    await one.run();
    assert.is((await one.list()).revision, 42, "no change, no revision");
  });
});

test("a list with a byte order mark before it is a list, for publishers as for followers", async () => {
  await publishing(async (one) => {
    await one.run();
    await writeFile(one.oracleFile, "\uFEFF" + await readFile(one.oracleFile, "utf8"));
    const marked = await readFile(one.oracleFile, "utf8");
    assert.is(parseCatalog(marked, `file:${one.oracleFile}`).versions.length, 1);
    await one.run({ name: "v2" });
    assert.equal((await one.list()).versions.map(({ name }) => name), ["v1", "v2"]);
  });
});

test("a damaged list is not overwritten", async () => {
  await publishing(async (one) => {
    await mkdir(join(one.folder, "conf"));
    for (const text of ["{", '{"versions":[{"name":"../x"}]}', "[]"]) {
      await writeFile(one.oracleFile, text);
      assert.match(
        (await rejection(one.run())).message,
        /not a valid list of versions, nothing was changed/,
      );
      assert.is(await readFile(one.oracleFile, "utf8"), text);
    }
  });
});

test("clear errors for what cannot be published", async () => {
  await publishing(async (one) => {
    const cases: [Partial<PublishOptions>, RegExp][] = [
      [{ name: "../v1" }, /not a version name/],
      [{ file: join(one.folder, "none") }, /there is no such file/],
      [{ file: one.folder }, /is a folder: pack it/],
      [{ file: join(one.folder, "empty") }, /is empty/],
      [{ file: join(one.folder, "text") }, /no zip, no tar.gz and no program/],
      [{ entryPoint: "../x" }, /entryPoint/],
    ];
    await writeFile(join(one.folder, "empty"), "");
    await writeFile(join(one.folder, "text"), "hello");
    for (const [options, message] of cases) {
      assert.match((await rejection(one.run(options))).message, message);
    }
    assert.is(await runtime.files.info(one.oracleFile), undefined);
  });
});

test("publishers at once, in several processes, lose no entry of each other", async () => {
  await publishing(async (one) => {
    const program = fileURLToPath(new URL("./programs/publish.ts", import.meta.url));
    const args = "Deno" in globalThis ? ["run", "-A", program] : [program];
    const names = (publisher: number) => Array.from({ length: 8 }, (_, n) => `p${publisher}-${n}`);
    const results = await Promise.all([1, 2, 3].map((publisher) =>
      runtime.processes.run({
        command: process.execPath,
        args: [...args, one.oracleFile, one.program, ...names(publisher)],
        env: { PATH: process.env.PATH ?? "", HOME: process.env.HOME ?? "" },
        timeoutMs: 60_000,
      })
    ));
    for (const result of results) assert.is(result.code, 0, result.stderr);
    assert.equal(
      (await one.list()).versions.map((version) => version.name).sort(),
      [1, 2, 3].flatMap(names).sort(),
    );
    assert.equal(await readdir(join(one.folder, "conf")), ["artifacts", "versions.json"]);
  });
});

test("a publisher that dies at any change leaves a valid list, and the next one gets through", async () => {
  await publishing(async (one) => {
    await one.run();
    for (let changes = 0;; changes += 1) {
      assert.ok(changes < 100);
      await writeFile(one.program, `#!/bin/sh\necho ${changes}\n`);
      const files = dyingAfter(runtime.files, changes);
      const outcome = await one.run({ runtime: { ...runtime, files } }).then(
        () => true,
        () => false,
      );
      const text = await readFile(one.oracleFile, "utf8");
      for (const { url, sha256 } of parseCatalog(text, `file:${one.oracleFile}`).versions) {
        assert.is(await runtime.files.sha256(url.slice("file:".length)), sha256, "complete");
      }
      // The lock of a process that died is recognised by its pid; here the process is this one.
      await runtime.files.remove(`${one.oracleFile}.lock`);
      await one.run();
      if (outcome) break;
    }
  });
});

test("a lock holds off others, is freed on every path, and that of a dead process is taken", async () => {
  await inScratch(async (folder) => {
    const path = join(folder, "lock");
    const options = { runtime, path, timeoutMs: 10_000 };
    const order: string[] = [];
    let release = (): void => {};
    const first = withFolderLock(options, () => {
      order.push("first in");
      return new Promise<void>((resolve) => release = resolve).then(() =>
        void order.push("first out")
      );
    });
    await until(() => order.length === 1, "the first holder");
    const short = withFolderLock({ ...options, timeoutMs: 50 }, () => Promise.resolve());
    assert.match((await rejection(short)).message, "held by another process");
    const second = withFolderLock(options, () => Promise.resolve(void order.push("second in")));
    release();
    await Promise.all([first, second]);
    assert.equal(order, ["first in", "first out", "second in"]);

    const failing = withFolderLock(options, () => Promise.reject(new Error("inside")));
    assert.match((await rejection(failing)).message, "inside");
    assert.equal(await readdir(folder), []);

    await mkdir(path);
    await writeFile(
      join(path, "owner.json"),
      JSON.stringify({ pid: 2 ** 22 - 1, startTime: "1", id: "x" }),
    );
    assert.is(await withFolderLock(options, () => Promise.resolve("mine")), "mine");
    assert.equal(await readdir(folder), []);
  });
});

test.run();
