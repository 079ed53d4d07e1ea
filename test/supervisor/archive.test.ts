import { mkdir, readFile, readlink, stat, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { packTar } from "modern-tar";
import { test } from "uvu";
import * as assert from "uvu/assert";
import type { Files } from "../../src/runtime/runtime.ts";
import { unpack, type Unpacked, type UnpackOptions } from "../../src/supervisor/archive.ts";
import { RolloutFailure } from "../../src/supervisor/failure.ts";
import { gzip, makeTarGz, makeZip, noise, tarFile } from "../support/artifacts.ts";
import { runtime } from "../support/runtime.ts";
import { inScratch, rejection } from "../support/scratch.ts";

async function unpacking<T>(
  bytes: Uint8Array,
  action: (run: () => Promise<Unpacked>, into: string, folder: string) => Promise<T>,
  options: Partial<UnpackOptions> = {},
): Promise<T> {
  return await inScratch(async (folder) => {
    const archive = join(folder, "artifact");
    const into = join(folder, "into");
    await writeFile(archive, bytes);
    await mkdir(into);
    const run = () =>
      unpack({
        files: runtime.files,
        archive,
        into,
        binaryName: "devshard",
        maxExtractedBytes: 10_000_000,
        maxArchiveEntries: 100,
        ...options,
      });
    return await action(run, into, folder);
  });
}

async function refused(
  bytes: Uint8Array,
  message: RegExp,
  options: Partial<UnpackOptions> = {},
): Promise<void> {
  await unpacking(bytes, async (run, _into, folder) => {
    const error = await rejection(run());
    assert.instance(error, RolloutFailure, error.stack);
    assert.is((error as RolloutFailure).class, "download");
    assert.match(error.message, message);
    for (const escaped of ["escape", "devshard", "evil"]) {
      assert.is(await runtime.files.info(join(folder, escaped)), undefined, "nothing got out");
    }
  }, options);
}

const mode = async (path: string) => (await stat(path)).mode & 0o7777;

// ----------------------------------------------------------------------------------------- zip

test("case 216: the program of a zip, mode 0755 whatever the zip says", async () => {
  const program = noise(300_000);
  const zip = await makeZip([
    { name: "README", content: "read me" },
    { name: "devshard", content: program, mode: 0o104000 },
  ]);
  await unpacking(zip, async (run, into) => {
    assert.equal(await run(), { program: "devshard", tree: false });
    assert.equal(new Uint8Array(await readFile(join(into, "devshard"))), program);
    assert.is(await mode(join(into, "devshard")), 0o755);
    assert.is(await runtime.files.info(join(into, "README")), undefined, "only the program");
  });
});

test("the first entry of that base name counts, at any depth; folders of the name do not", async () => {
  const zip = await makeZip([
    { name: "devshard/", content: "", folder: true },
    { name: "a/b/devshard", content: "first" },
    { name: "devshard", content: "second" },
  ]);
  await unpacking(zip, async (run, into) => {
    await run();
    assert.is(await readFile(join(into, "devshard"), "utf8"), "first");
  });
});

test("an entry that leads out of the folder is written under the fixed name inside", async () => {
  for (const name of ["../../devshard", "/etc/devshard", "a/../../../devshard"]) {
    const zip = await makeZip([{ name, content: "x" }]);
    await unpacking(zip, async (run, into, folder) => {
      await run();
      assert.is(await readFile(join(into, "devshard"), "utf8"), "x", name);
      assert.is(await runtime.files.info(join(folder, "devshard")), undefined, name);
    });
  }
});

test("case 218: the program is not in the zip", async () => {
  await refused(
    await makeZip([{ name: "other", content: "x" }]),
    /there is no devshard in the zip/,
  );
  await refused(await makeZip([{ name: "devshard.exe", content: "x" }]), /there is no devshard/);
  await refused(await makeZip([]), /there is no devshard/);
});

test("a link in place of the program is refused", async () => {
  const zip = await makeZip([{ name: "devshard", content: "/bin/sh", mode: 0o120777 }]);
  await refused(zip, /is a link/);
});

test("a zip bomb is refused by what it says, and by what comes when it lies", async () => {
  const bomb = await makeZip([{ name: "devshard", content: new Uint8Array(20_000_000) }]);
  assert.ok(bomb.length < 100_000);
  await refused(bomb, /unpacks to 20000000 bytes/);
  const lying = bomb.slice();
  const view = new DataView(lying.buffer);
  for (let at = 0; at + 4 <= lying.length; at++) {
    if (view.getUint32(at, true) === 20_000_000) view.setUint32(at, 1_000, true);
  }
  await refused(lying, /./);
});

test("a zip with more entries than are taken is refused", async () => {
  const entries = Array.from({ length: 101 }, (_, index) => ({ name: `f${index}`, content: "" }));
  await refused(await makeZip(entries), /more than 100 entries/);
});

test("a zip that is cut or changed anywhere is refused, and never hangs", async () => {
  const zip = await makeZip([{ name: "devshard", content: noise(40_000) }]);
  for (let part = 1; part < 10; part++) {
    await refused(zip.slice(0, Math.floor(zip.length * part / 10)), /./);
  }
  for (const at of [200, 20_000, 40_010]) {
    const changed = zip.slice();
    changed[at] = (changed[at] ?? 0) ^ 0xff;
    await refused(changed, /cannot be unpacked/);
  }
});

// ------------------------------------------------------------------------------------- tar.gz

test("a tree is unpacked with its folders, links and what runs; other bits are dropped", async () => {
  const tree = await makeTarGz([
    { header: { name: "./app/", size: 0, type: "directory", mode: 0o700 } },
    tarFile("./app/bin/devshard", "#!/bin/sh", 0o644),
    tarFile("./app/lib/helper", "run", 0o4755),
    tarFile("./app/data/table", "data", 0o666),
    { header: { name: "./app/current", size: 0, type: "symlink", linkname: "lib/helper" } },
    { header: { name: "./app/bin/up", size: 0, type: "symlink", linkname: "../data/table" } },
    { header: { name: "./app/same", size: 0, type: "link", linkname: "./app/data/table" } },
  ]);
  await unpacking(tree, async (run, into) => {
    assert.equal(await run(), { program: "app/bin/devshard", tree: true });
    assert.is(await mode(join(into, "app/bin/devshard")), 0o755, "the program runs");
    assert.is(await mode(join(into, "app/lib/helper")), 0o755, "without setuid");
    assert.is(await mode(join(into, "app/data/table")), 0o644);
    assert.is(await readlink(join(into, "app/current")), "lib/helper");
    assert.is(await readFile(join(into, "app/bin/up"), "utf8"), "data");
    assert.is(await readFile(join(into, "app/same"), "utf8"), "data");
  });
});

test("the entry point names the program; without it the first file of the binary's name", async () => {
  const tree = await makeTarGz([tarFile("a/devshard", "one"), tarFile("b/devshard", "two")]);
  await unpacking(tree, async (run) => assert.is((await run()).program, "a/devshard"));
  await unpacking(tree, async (run) => assert.is((await run()).program, "b/devshard"), {
    entryPoint: "./b/devshard",
  });
  await refused(tree, /there is no c\/devshard/, { entryPoint: "c/devshard" });
  await refused(await makeTarGz([tarFile("a/other", "x")]), /there is no devshard/);
});

test("whatever leads out of a tree refuses it whole", async () => {
  const file = (name: string) => tarFile(name, "x");
  const link = (name: string, linkname: string, type: "symlink" | "link" = "symlink") => ({
    header: { name, size: 0, type, linkname },
  });
  const bad: [Parameters<typeof makeTarGz>[0], RegExp][] = [
    [[file("../escape")], /leads out/],
    [[file("a/../../escape")], /leads out/],
    [[file("/tmp/escape")], /not relative/],
    [[link("a", "/etc"), file("a/passwd")], /is a link to/],
    [[link("a", "../.."), file("devshard")], /link out of the tree/],
    [[file("d/x"), link("d/up", "../..")], /link out of the tree/],
    [[link("here", "."), file("here/devshard")], /lies below here, which is a link/],
    [[link("b", "."), link("c", "b/..")], /link out of the tree/],
    [[file("x"), link("x", "y")], /comes twice/],
    [[link("x", "y"), file("x")], /comes twice/],
    [[file("x"), file("x/y")], /lies below x, which is a file/],
    [[link("h", "/etc/passwd", "link")], /not relative/],
    [[link("h", "nothing", "link")], /linked to no file/],
    [[{ header: { name: "p", size: 0, type: "fifo" } }], /is a fifo/],
    [[{ header: { name: "dev", size: 0, type: "character-device" } }], /is a character-device/],
  ];
  for (const [entries, message] of bad) await refused(await makeTarGz(entries), message);
});

test("a tar bomb is stopped by the bytes that come, entries are counted", async () => {
  const zeros = new Uint8Array(11_000_000);
  const bomb = await gzip(
    await packTar([{
      header: { name: "devshard", size: zeros.length, type: "file" },
      body: zeros,
    }]),
  );
  assert.ok(bomb.length < 100_000);
  await refused(bomb, /more than/);
  const entries = Array.from({ length: 101 }, (_, index) => tarFile(`f${index}`, ""));
  await refused(await makeTarGz(entries), /more than 100 entries/);
  const linked = await makeTarGz([
    { header: { name: "big", size: 6_000_000, type: "file" }, body: new Uint8Array(6_000_000) },
    { header: { name: "again", size: 0, type: "link", linkname: "big" } },
  ]);
  await refused(linked, /more than/);
});

test("a tree that is cut anywhere, or is no tar, is refused and never hangs", async () => {
  const tree = await makeTarGz([
    { header: { name: "devshard", size: 60_000, type: "file" }, body: noise(60_000) },
    tarFile("last", "x"),
  ]);
  for (let part = 1; part < 10; part++) {
    await refused(tree.slice(0, Math.floor(tree.length * part / 10)), /./);
  }
  await refused(await gzip(noise(5_000)), /./);
  await refused(await gzip(new Uint8Array(0)), /./);
  await refused(await gzip(new Uint8Array(1_024)), /there is no devshard/);
  const plain = await packTar([tarFile("devshard", "x".repeat(3_000))]);
  await refused(await gzip(plain.slice(0, 2_000)), /./);
});

// --------------------------------------------------------------------------------- bare program

test("a bare program is taken as it is", async () => {
  for (const start of ["#!/bin/sh\necho hi\n", "\x7fELF and so on"]) {
    const bytes = Uint8Array.from(start, (char) => char.charCodeAt(0));
    await unpacking(bytes, async (run, into) => {
      assert.equal(await run(), { program: "devshard", tree: false });
      assert.equal(new Uint8Array(await readFile(join(into, "devshard"))), bytes);
      assert.is(await mode(join(into, "devshard")), 0o755);
    });
  }
});

test("anything else is refused", async () => {
  for (const text of ["", "P", "<html>404</html>", "MZ"]) {
    await refused(new TextEncoder().encode(text), /no zip, no tar.gz and no program/);
  }
  const big = new Uint8Array(11_000_000);
  big.set([0x23, 0x21]);
  await refused(big, /more than/);
});

test("a disk that is full says nothing about the build", async () => {
  const files: Files = {
    ...runtime.files,
    openWrite: async (path, options) => {
      const writer = await runtime.files.openWrite(path, options);
      let left = 1_000;
      return {
        ...writer,
        close: () => writer.close(),
        sync: () => writer.sync(),
        write: async (bytes) => {
          left -= bytes.length;
          if (left < 0) {
            throw Object.assign(new Error("ENOSPC: no space left on device"), { code: "ENOSPC" });
          }
          await writer.write(bytes);
        },
      };
    },
  };
  const archives = [
    await makeZip([{ name: "devshard", content: noise(50_000) }]),
    await makeTarGz([{
      header: { name: "devshard", size: 50_000, type: "file" },
      body: noise(50_000),
    }]),
    Uint8Array.from([0x23, 0x21, ...noise(50_000)]),
  ];
  for (const archive of archives) {
    await unpacking(archive, async (run) => {
      const error = await rejection(run());
      assert.is((error as RolloutFailure).class, "transient", error.stack);
      assert.match(error.message, "disk: ENOSPC");
    }, { files });
  }
});

test("unpacking can be called off", async () => {
  for (
    const archive of [
      await makeZip([{ name: "devshard", content: noise(3_000_000) }]),
      await makeTarGz([{
        header: { name: "devshard", size: 3_000_000, type: "file" },
        body: noise(3_000_000),
      }]),
    ]
  ) {
    const abort = new AbortController();
    const files: Files = {
      ...runtime.files,
      openWrite: (path, options) => {
        abort.abort(new Error("no longer wanted"));
        return runtime.files.openWrite(path, options);
      },
    };
    await unpacking(archive, async (run) => {
      assert.match((await rejection(run())).message, "no longer wanted");
    }, { files, signal: abort.signal });
  }
});

test.run();
