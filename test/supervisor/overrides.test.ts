import { lstat, mkdir, readdir, readFile, stat, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { defaultVersionsConfig } from "../../src/config/versions.ts";
import { RolloutFailure } from "../../src/supervisor/failure.ts";
import { Overrides } from "../../src/supervisor/overrides.ts";
import { sha256 } from "../support/artifacts.ts";
import { runtime } from "../support/runtime.ts";
import { inScratch, rejection } from "../support/scratch.ts";

interface Case {
  readonly bin: string;
  readonly source: string;
  readonly overrides: Overrides;
}

function overriding(
  action: (one: Case) => Promise<void>,
  force: string[] = [],
): Promise<void> {
  return inScratch(async (folder) => {
    const source = join(folder, "mine");
    await writeFile(source, "local build", { mode: 0o644 });
    const bin = join(folder, "bin");
    const config = defaultVersionsConfig({ oracle: "file:x", overrides: { v1: source }, force });
    await action({ bin, source, overrides: new Overrides({ runtime, binDir: bin, config }) });
  });
}

test("case 61: the file is copied, not linked, to the flat path, and can run", async () => {
  await overriding(async ({ overrides, bin, source }) => {
    const install = await overrides.prepare("v1");
    assert.equal(install, {
      name: "v1",
      sha256: `override:${sha256("local build")}`,
      binarySha256: sha256("local build"),
      binary: join(bin, "v1", "devshard"),
      folder: join(bin, "v1"),
      layout: "override",
    });
    assert.ok((await lstat(install.binary)).isFile());
    assert.is((await stat(install.binary)).mode & 0o777, 0o755);
    assert.is((await stat(install.binary)).nlink, 1);
    await writeFile(source, "the next build");
    assert.is(await readFile(install.binary, "utf8"), "local build");
    assert.equal(await readdir(join(bin, "v1")), ["devshard"]);
  });
});

test("case 62, 63: a forced version runs if it has an override, and else not", async () => {
  await overriding(({ overrides }) => {
    assert.equal(overrides.forced([]), ["v1"]);
    assert.is(overrides.sourceFor("v2"), undefined);
    return Promise.resolve();
  }, ["v1", "v2", "v1"]);
});

test("a forced version that is listed is not named twice", async () => {
  await overriding(({ overrides }) => {
    assert.equal(overrides.forced([{ name: "v1", url: "https://x/", sha256: "0".repeat(64) }]), []);
    return Promise.resolve();
  }, ["v1"]);
});

test("case 66: a published build that equals the file is still not the override (B19)", async () => {
  await overriding(async ({ overrides, bin }) => {
    await overrides.prepare("v1");
    const identity = await overrides.identity("v1");
    const canonical = join(bin, "v1", "1".repeat(64), "devshard");
    assert.is(await overrides.isCurrent("v1", { sha256: identity, binary: canonical }), false);
    assert.is(
      await overrides.isCurrent("v1", {
        sha256: "1".repeat(64),
        binary: join(bin, "v1", "devshard"),
      }),
      false,
    );
  });
});

test("case 67: same path, identity and bytes: nothing to do; any other: replaced", async () => {
  await overriding(async ({ overrides, source }) => {
    const install = await overrides.prepare("v1");
    assert.is(await overrides.isCurrent("v1", install), true);
    await writeFile(install.binary, "tampered");
    assert.is(await overrides.isCurrent("v1", install), false);
    await overrides.prepare("v1");
    assert.is(await overrides.isCurrent("v1", install), true);
    await writeFile(source, "the next build");
    assert.is(await overrides.isCurrent("v1", install), false);
    await runtime.files.remove(install.binary);
    assert.is(await overrides.isCurrent("v1", install), false);
  });
});

test("an override that cannot be read or copied is a transient failure, and changes nothing", async () => {
  await overriding(async ({ overrides, bin, source }) => {
    const install = await overrides.prepare("v1");
    await runtime.files.remove(source);
    for (const attempt of [overrides.identity("v1"), overrides.prepare("v1")]) {
      const error = await rejection(attempt);
      assert.instance(error, RolloutFailure);
      assert.is((error as RolloutFailure).class, "transient");
    }
    assert.is(await readFile(install.binary, "utf8"), "local build");
    assert.equal(await readdir(join(bin, "v1")), ["devshard"]);
    await mkdir(source);
    await rejection(overrides.prepare("v1"));
    assert.equal(await readdir(join(bin, "v1")), ["devshard"]);
  });
});

test("a name from the prototype has no override", async () => {
  await overriding(({ overrides }) => {
    assert.is(overrides.sourceFor("constructor"), undefined);
    return Promise.resolve();
  });
});

test.run();
