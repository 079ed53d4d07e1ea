/**
 * Baton in versiond's place: started with versiond's environment only, an oracle over plain HTTP,
 * zips of a program that knows the print flags and has an admin listener. Cases of 4.28.
 */

import { readFile } from "node:fs/promises";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { inScratch, until } from "../support/scratch.ts";
import { sideBySide } from "../support/side_by_side.ts";
import { devshard, MockOracle, startHost, type VersiondHost } from "../support/versiond_host.ts";

const waiting = sideBySide(3);

async function onHost(
  action: (host: VersiondHost, oracle: MockOracle, folder: string) => Promise<void>,
): Promise<void> {
  const oracle = new MockOracle();
  await oracle.start();
  try {
    await inScratch(async (folder) => {
      const host = await startHost(folder, oracle);
      try {
        await action(host, oracle, folder);
      } finally {
        await host.stop();
      }
    });
  } finally {
    await oracle.close();
  }
}

waiting(
  "case 258, 261, 267, 268: published versions are served on both paths, with SSE and /healthz",
  async () => {
    await onHost(async (host, oracle, folder) => {
      const build = await devshard("v1", "v1-r1");
      oracle.add("v1", build);
      await host.serves("/v1/x", "v1-r1");
      await host.serves("/devshard/v1/x", "v1-r1");
      const path = (await host.get("/devshard/v1/a/b?q=1%2F2")).text.split(" ")[2];
      assert.is(path, "/a/b?q=1%2F2");
      const events = (await host.get("/v1/events?count=5")).text;
      assert.is(events.split("\n\n").filter((event) => event.startsWith("data: v1-r1")).length, 5);

      oracle.add("v2", await devshard("v2", "v2-r1"));
      await host.serves("/v2/x", "v2-r1");
      await host.serves("/v1/x", "v1-r1");
      const health = await host.healthz();
      assert.equal(health.map((item) => [item.name, item.status, item.binary_version]), [
        ["v1", "running", "v1-r1"],
        ["v2", "running", "v2-r1"],
      ]);
      assert.is(health[0]?.sha256, build.sha256);

      const { env, argv } = JSON.parse((await host.get("/v1/env")).text);
      assert.is(env.DEVSHARD_BINARY_LOG_VERSION, "v1-r1");
      assert.match(env.DEVSHARD_ADMIN_ADDR, /^127\.0\.0\.1:\d+$/);
      assert.is(env.GONKA_HA, "false");
      assert.is(env.SECRET_OF_THE_SUPERVISOR, undefined);
      assert.is(env.VERSIOND_ORACLE_URL, undefined);
      assert.is(env.DEVSHARD_SHUTDOWN_GRACE, "5s");
      assert.equal(argv.slice(0, 3), ["--data-dir", `${folder}/data/v1`, "--port"]);
      const record = `${folder}/bin/v1/${build.sha256}/install.json`;
      assert.is(JSON.parse(await readFile(record, "utf8")).archive_sha256, build.sha256);
      const warnings = host.log.filter((line) => line.event === "configuration");
      assert.equal(warnings.length, 1, "plain http is accepted, and said");
    });
  },
);

waiting(
  "case 259: a child that is told to exit comes back; requests meanwhile wait instead of failing",
  async () => {
    await onHost(async (host, oracle) => {
      oracle.add("v1", await devshard("v1", "v1-r1"));
      await host.serves("/v1/x", "v1-r1");
      const pid = (await host.get("/v1/x")).text.split(" ")[1];
      const crash = await fetch(`${host.url}/v1/crash`, { method: "POST" });
      assert.is(crash.status, 502);
      await until(() => host.log.some((line) => line.event === "child_exited"), "its end");
      const { status, text } = await host.get("/v1/x");
      assert.is(status, 200, "held until the new process served");
      assert.is.not(text.split(" ")[1], pid);
    });
  },
);

waiting(
  "case 260, 263: a restart finds its install and its list, also while the oracle fails",
  async () => {
    const oracle = new MockOracle();
    await oracle.start();
    await inScratch(async (folder) => {
      oracle.add("v1", await devshard("v1", "v1-r1"));
      const first = await startHost(folder, oracle);
      await first.serves("/v1/x", "v1-r1");
      oracle.failing = true;
      await oracle.cycles();
      assert.is((await first.get("/v1/x")).status, 200, "case 263");
      assert.is(await first.stop(), 0);
      const second = await startHost(folder, oracle);
      await second.serves("/v1/x", "v1-r1");
      assert.equal((await second.healthz()).map((item) => item.status), ["running"]);
      assert.not(second.log.some((line) => line.event === "download_started"));
      oracle.failing = false;
      oracle.versions = [];
      await oracle.cycles();
      assert.is((await second.get("/v1/x")).status, 200, "an emptied list right after the start");
      assert.is((await second.get("/v1/x")).status, 200);
      assert.is(await second.stop(), 0);
    });
    await oracle.close();
  },
);

waiting("case 262, 264: a deleted version is 404, an emptied list is ignored", async () => {
  await onHost(async (host, oracle) => {
    oracle.add("v1", await devshard("v1", "v1-r1"));
    oracle.add("v2", await devshard("v2", "v2-r1"));
    await host.serves("/v1/x", "v1-r1");
    await host.serves("/v2/x", "v2-r1");
    oracle.remove("v2");
    await until(async () => (await host.get("/v2/x")).status === 404, "404");
    await until(async () => (await host.healthz()).length === 1, "its end");
    oracle.versions = [];
    await oracle.cycles();
    assert.is((await host.get("/v1/x")).status, 200);
  });
});

waiting(
  "case 265, 266: a wrong or invalid hash: the old build keeps serving, a new slot never serves",
  async () => {
    await onHost(async (host, oracle) => {
      const build = await devshard("v1", "v1-r1");
      const next = await devshard("v1", "v1-r2");
      oracle.add("v1", build);
      await host.serves("/v1/x", "v1-r1");
      oracle.add("v1", next, "not a hash");
      await oracle.cycles();
      oracle.add("v1", next, "f".repeat(64));
      const refused = (name: string) => () =>
        host.log.some((line) =>
          line.event === "rollout_failed" && line.version === name && line.class === "hash"
        );
      await until(refused("v1"), "the refusal");
      await host.serves("/v1/x", "v1-r1");
      assert.equal((await host.healthz()).map((item) => [item.status, item.sha256]), [
        ["running", build.sha256],
      ]);
      oracle.add("v9", next, "e".repeat(64));
      await until(refused("v9"), "the refusal of v9");
      // Known but without a build that may run: not 404, so that no gateway gives the host up for it.
      assert.is((await host.get("/v9/x")).status, 503);
      oracle.add("v1", next);
      await host.serves("/v1/x", "v1-r2");
    });
  },
);

waiting("case 269: a long request ends on the old build while new ones go to the new", async () => {
  await onHost(async (host, oracle) => {
    oracle.add("v1", await devshard("v1", "v1-r1"));
    await host.serves("/v1/x", "v1-r1");
    let ended = false;
    const slow = host.get("/v1/gate").then((answer) => {
      ended = true;
      return answer;
    });
    await host.get("/v1/x");
    oracle.add("v1", await devshard("v1", "v1-r2"));
    await host.serves("/v1/x", "v1-r2");
    assert.not(ended, "the long request is still on its way");
    const during = await host.healthz();
    assert.equal(during.map((item) => [item.binary_version, item.status]).sort(), [
      ["v1-r1", "draining"],
      ["v1-r2", "running"],
    ]);
    await host.openGate("v1");
    assert.equal(await slow, { status: 200, text: "v1-r1" });
    await until(async () => (await host.healthz()).length === 1, "the end of the drain");
  });
});

test.run();
