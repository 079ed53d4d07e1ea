/** `baton dump`, as one types it. */

import { spawn } from "node:child_process";
import { closeSync, openSync } from "node:fs";
import { readFile, writeFile } from "node:fs/promises";
import { gzipSync } from "node:zlib";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { batonCommand, runVerb } from "../support/baton_process.ts";
import { inScratch } from "../support/scratch.ts";
import { closeAll, laneKey, sourceReplica, store, testReplica } from "./support/replica.ts";

async function source(token?: string) {
  const replica = await sourceReplica({
    lanes: [laneKey("0")],
    ...(token === undefined ? {} : { token }),
  });
  const lane = replica.store.lane(laneKey("0"));
  if (lane === undefined) throw new Error("no lane");
  store(lane, 0, 1n, 0, 200);
  return replica;
}

test("prints a replica's dump, in either shape", async () => {
  const replica = await source();
  const plain = await runVerb(["dump", replica.url]);
  assert.is(plain.code, 0, plain.stderr);
  assert.match(
    plain.stdout,
    /^{"kind":"header".*\n(.*\n)*{"kind":"trailer","lanes":1,"blocks":200}\n$/,
  );
  const dynamo = await runVerb(["dump", replica.url, "--dynamo"]);
  assert.match(dynamo.stdout, /^{"model:default":{"block_size":4,"events":\[/);
  const events = JSON.parse(dynamo.stdout)["model:default"].events as unknown[];
  assert.is(dynamo.stdout.trim().split("\n").length, events.length, "a line for each event");
  await replica.close();
});

test("writes it to a file, verifies the file, and says when it is not whole", async () => {
  const replica = await source();
  await inScratch(async (folder) => {
    const file = `${folder}/dump.ndjson`;
    const written = await runVerb(["dump", replica.url, "--out", file]);
    assert.is(written.code, 0, written.stderr);
    const good = await runVerb(["dump", "--verify", file]);
    assert.is(good.code, 0);
    assert.match(
      good.stdout,
      /model \/ default \/ worker 0 rank 0: 200 blocks of 4 tokens, cursor 0/,
    );
    assert.match(good.stdout, /^whole: 1 lanes, 200 blocks/m);
    const bytes = await readFile(file);
    await writeFile(file, bytes.subarray(0, bytes.length - 30));
    const bad = await runVerb(["dump", "--verify", file, "--json"]);
    assert.is(bad.code, 1);
    const report = JSON.parse(bad.stdout) as { lanes: unknown[]; error: string };
    assert.is(report.lanes.length, 1);
    assert.match(report.error, /DumpBroken/);
    const packed = gzipSync(bytes);
    await writeFile(file, packed);
    assert.match((await runVerb(["dump", "--verify", file])).stdout, /^whole: 1 lanes/m);
    const flawed = packed.slice();
    flawed.fill(0xff, packed.length >> 1);
    for (const torn of [packed.subarray(0, packed.length >> 1), flawed]) {
      await writeFile(file, torn);
      const { code, stdout } = await runVerb(["dump", "--verify", file]);
      assert.is(code, 1);
      assert.match(
        stdout,
        /^NOT WHOLE after .*\n\s+DumpBroken: its gzip data is damaged or ends early$/m,
      );
    }
  });
  await replica.close();
});

test("verifies what a replica gives, with the token from the environment", async () => {
  const replica = await source("s3cret");
  const refused = await runVerb(["dump", "--verify", replica.url]);
  assert.is(refused.code, 1);
  assert.match(refused.stderr, /answered 401/);
  const taken = await runVerb(["dump", "--verify", replica.url], { BATON_PEER_TOKEN: "s3cret" });
  assert.is(taken.code, 0, taken.stderr);
  assert.match(taken.stdout, /whole: 1 lanes/);
  assert.not.match(taken.stdout + taken.stderr, /s3cret/);
  await replica.close();
});

test("a dump that its output does not take whole, since a disk is full or nobody reads, has failed", async () => {
  const replica = await source();
  const { command, args } = batonCommand(["dump", replica.url]);
  const full = openSync("/dev/full", "w");
  for (const output of [full, "pipe"] as const) {
    const child = spawn(command, args, { stdio: ["ignore", output, "pipe"] });
    child.stdout?.destroy();
    let said = "";
    child.stderr?.on("data", (chunk) => (said += chunk));
    const code = await new Promise((resolve) => child.once("close", resolve));
    assert.is(code, 1, said);
    assert.match(said, /baton dump: standard output did not take all of it/);
  }
  closeSync(full);
  await replica.close();
});

test("what is no URL of a peer is said to be none", async () => {
  const { code, stderr } = await runVerb(["dump", "localhost:8082"]);
  assert.is(code, 2);
  assert.match(stderr, /localhost:8082 is no http or https URL/);
});

test("a replica that cannot be reached, and one that has not recovered, are errors", async () => {
  const nobody = await runVerb(["dump", "http://127.0.0.1:9"]);
  assert.is(nobody.code, 1);
  assert.match(nobody.stderr, /baton dump: /);
  const cold = await testReplica({ lanes: [laneKey("0")] });
  const early = await runVerb(["dump", cold.url]);
  assert.is(early.code, 1);
  assert.match(early.stderr, /answered 503.*not_ready/);
  await cold.close();
});

test.after(closeAll);
test.run();
