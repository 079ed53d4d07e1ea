/**
 * A router that is rolled keeps its index: Baton supervises a Baton with a pool, a new build is ready
 * only once it has the index of the generation before it, and nobody notices the swap, whichever of
 * the two is killed in the middle of the hand-over.
 */

import http from "node:http";
import type { AddressInfo } from "node:net";
import process from "node:process";
import { mkdir, writeFile } from "node:fs/promises";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { type BatonProcess, type LogLine, startBatonProcess } from "../support/baton_process.ts";
import {
  type EngineWorker,
  type GenerationStatus,
  indexesAtRest,
  MODEL,
  poolOf,
  recoveryOf,
  type RecoveryReport,
  type RolledRouter,
  startRolledRouter,
  startWorkers,
  stopWorkers,
  TOKEN,
} from "../support/rolled_router.ts";
import { inScratch, until } from "../support/scratch.ts";

const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

/** So many that who holds them outweighs all other clients' requests. */
const PROMPT_TOKENS = 1600;
/** As many tokens (one a byte), which begin like no other prompt. */
const promptOf = (n: number): string => `${n}:`.repeat(PROMPT_TOKENS).slice(0, PROMPT_TOKENS);

interface Answer {
  readonly status: number;
  readonly cached: number;
  /** `<version>#<generation>` that answered. */
  readonly from: string | null;
}

/** Asks and reads to the end; throws if the answer is cut. */
async function ask(url: string, prompt: string, stream: boolean, id: string): Promise<Answer> {
  const response = await fetch(`${url}/v1/completions`, {
    method: "POST",
    headers: { "content-type": "application/json", "x-request-id": id },
    body: JSON.stringify({
      model: MODEL,
      prompt,
      max_tokens: 8,
      stream,
      ...(stream ? { stream_options: { include_usage: true } } : {}),
    }),
  });
  const from = response.headers.get("x-baton-generation");
  const text = await response.text();
  if (response.status !== 200) return { status: response.status, cached: 0, from };
  const lines = text.trimEnd().split("\n\n");
  if (stream) assert.is(lines.at(-1), "data: [DONE]", "the stream came to its end");
  const last = JSON.parse(stream ? (lines.at(-2) ?? "").slice("data: ".length) : text);
  return { status: 200, cached: last.usage.prompt_tokens_details.cached_tokens, from };
}

/** Clients that ask one request after the other until they are told to stop. */
class Clients {
  readonly failures: string[] = [];
  /** Answers whose prompt was not in the cache of the worker that was chosen. */
  misses = 0;
  asked = 0;
  #isOn = true;
  readonly #ended: Promise<unknown>;

  constructor(url: string, prompts: readonly string[], count = 4) {
    const client = async (name: number): Promise<void> => {
      for (let turn = 0; this.#isOn; turn += 1) {
        const prompt = prompts[(turn * count + name) % prompts.length] ?? "";
        this.asked += 1;
        try {
          const { status, cached } = await ask(
            url,
            prompt,
            turn % 2 === 0,
            `load-${name}-${turn}`,
          );
          if (status !== 200) this.failures.push(`status ${status}`);
          else if (cached < PROMPT_TOKENS) this.misses += 1;
        } catch (error) {
          this.failures.push(String(error));
        }
        await pause(5);
      }
    };
    this.#ended = Promise.all(Array.from({ length: count }, (_, name) => client(name)));
  }

  async stop(): Promise<void> {
    this.#isOn = false;
    await this.#ended;
  }
}

/** Each request was executed exactly once, by whichever worker. */
function executions(workers: readonly EngineWorker[], prefix: string): number {
  const counts = workers.flatMap(({ mock }) => Object.entries(mock.stats().executed))
    .filter(([id]) => id.startsWith(prefix));
  for (const [id, count] of counts) assert.is(count, 1, `${id} was executed ${count} times`);
  assert.is(new Set(counts.map(([id]) => id)).size, counts.length, "on one worker each");
  return counts.length;
}

const peerOf = (one: GenerationStatus): string => `http://127.0.0.1:${one.peerPort}`;
const addressOf = (one: GenerationStatus): string => `127.0.0.1:${one.peerPort}`;

/** Runs the test on it, and stops it; if the test fails, says what happened, and ends it at once. */
async function within(router: RolledRouter, action: () => Promise<void>): Promise<void> {
  const { outer } = router;
  try {
    await action();
  } catch (error) {
    const lines = outer.log.filter((line) => line.event !== "request").slice(-30);
    console.error(lines.map((line) => JSON.stringify(line)).join("\n"));
    console.error(await router.childLog());
    outer.signal("SIGINT");
    await outer.exited;
    throw error;
  }
  assert.is(await outer.stop(), 0);
}

test("a new build of a router is ready with the index of the one before, and nobody notices", async () => {
  const held: http.ServerResponse[] = [];
  const upstream = http.createServer((_, response) => void held.push(response));
  await new Promise<void>((resolve) => upstream.listen(0, "127.0.0.1", () => resolve()));
  const { port } = upstream.address() as AddressInfo;
  const workers = await startWorkers(3, { blockSize: 16, ringBatches: 4 });
  try {
    await inScratch(async (folder) => {
      await writeFile(`${folder}/token`, TOKEN);
      const router = await startRolledRouter(folder, {
        services: {
          chat: poolOf(workers, 16),
          hold: { mount: "/hold", upstream: `http://127.0.0.1:${port}` },
        },
        replica: { token: { file: `${folder}/token` } },
      });
      await within(router, () => swapped(router, workers, held));
    });
  } finally {
    upstream.closeAllConnections();
    upstream.close();
    await stopWorkers(workers);
  }
});

async function swapped(
  router: RolledRouter,
  workers: readonly EngineWorker[],
  held: readonly http.ServerResponse[],
): Promise<void> {
  await router.publish("one");
  const one = await router.generation("one");
  // Nobody was before it: ready at once, and it says so.
  assert.is((await recoveryOf(one.adminPort))?.state, "empty_bootstrap");
  const loud = /"level":"warn","event":"recovery_finished".*"state":"empty_bootstrap"/;
  await until(async () => loud.test(await router.childLog()), "the warning");

  const prompts = Array.from({ length: 12 }, (_, n) => promptOf(n));
  for (const [n, prompt] of prompts.entries()) {
    assert.is((await ask(router.url, prompt, false, `fill-${n}`)).cached, 0, "a new prompt");
  }
  // Each engine's ring forgets that: whoever starts cold would find only what comes now.
  for (const { engine } of workers) {
    for (let n = 0; n < 5; n += 1) {
      engine.store(Array.from({ length: 32 }, (_, token) => 1000 * (n + 1) + token));
      engine.publish();
    }
  }

  const slow = fetch(`${router.url}/hold`).then((response) => response.text());
  // If the test fails before it asks, this is not what it fails of.
  slow.catch(() => {});
  await until(() => held.length === 1, "the request that is held");
  const clients = new Clients(router.url, prompts);
  await until(() => clients.asked > 20, "some requests");
  await router.publish("two");
  const two = await router.generation("two");
  const before = clients.asked;
  await until(() => clients.asked > before + 20, "requests after the swap");
  await clients.stop();
  assert.equal(clients.failures, [], "no request failed");
  assert.is(executions(workers, "load-"), clients.asked);
  assert.is(clients.misses, 0, "each went where its prompt was, before and after");

  const recovery = await recoveryOf(two.adminPort) as RecoveryReport;
  assert.is(recovery.state, "recovered");
  assert.is(recovery.lanes.restored, workers.length, JSON.stringify(recovery.lanes));
  assert.equal(recovery.attempts.map(({ peer, outcome }) => [peer, outcome]), [
    [peerOf(one), "complete"],
  ]);
  // The token's rule holds between generations as between hosts.
  assert.is((await fetch(`${peerOf(one)}/dump`)).status, 401);

  // The old one still has a request, and follows the events for as long.
  assert.is((await router.generations()).find((it) => it.buildId === "one")?.role, "leaving");
  const [theirs, ours] = await indexesAtRest(peerOf(one), peerOf(two));
  assert.is(Object.keys(ours).length, workers.length);
  assert.equal(ours, theirs);
  for (const [n, prompt] of prompts.entries()) {
    const answer = await ask(router.url, prompt, n % 2 === 0, `after-${n}`);
    assert.is(answer.from, `r1#${two.generation}`);
    assert.is(answer.cached, PROMPT_TOKENS, `prompt ${n} is where it was`);
  }

  held[0]?.end("not cut");
  assert.is(await slow, "not cut");
  await until(async () => (await router.generations()).length === 1, "the end of the old one");
  const report = () => router.outer.log.find((line) => line.event === "drain_report");
  await until(() => report() !== undefined, "the report of the drain");
  assert.is(report()?.cut, 0);

  // A restart hands over in the same way; the address that a generation had may be reused.
  const restarted = await fetch(`${router.outer.admin}/api/v1/versions/r1/restart`, {
    method: "POST",
  });
  assert.is(restarted.status, 200, await restarted.text());
  const again = await router.generation(
    "two",
    (it) => it.generation > two.generation && it.role === "current" && it.ready,
  );
  assert.is((await recoveryOf(again.adminPort))?.state, "recovered");
  assert.is((await ask(router.url, prompts[0] ?? "", false, "again")).cached, PROMPT_TOKENS);
}

const LANES = 8;
const LANE_BLOCKS = 40_000;

test("whichever of the two is killed in the middle of the dump, it ends well", async () => {
  const workers = await startWorkers(LANES, { blockSize: 4, ringBatches: 4 });
  try {
    await inScratch(async (folder) => {
      await writeFile(`${folder}/token`, TOKEN);
      await mkdir(`${folder}/remote`);
      const services = { chat: poolOf(workers, 4) };
      const token = { file: `${folder}/token` };
      const remote = await startBatonProcess(`${folder}/remote`, {
        listen: { peer: "127.0.0.1:0" },
        services,
        replica: { token },
        shutdown: { announceMs: 0 },
      });
      try {
        await until(
          () => workers.every(({ engine }) => engine.subscribers >= 1),
          "its subscriptions",
        );
        const router = await startRolledRouter(
          folder,
          { services, replica: { token, peers: [remote.peer] } },
          { retryBackoffMs: 200 },
        );
        await within(router, () => killed(router, remote, workers));
      } finally {
        await remote.stop();
      }
    });
  } finally {
    await stopWorkers(workers);
  }
});

async function killed(
  router: RolledRouter,
  remote: BatonProcess,
  workers: readonly EngineWorker[],
): Promise<void> {
  await router.publish("one");
  const one = await router.generation("one");
  assert.equal((await recoveryOf(one.adminPort))?.attempts.map(({ peer }) => peer), [remote.peer]);
  // Or more: a stranger may try a port that was somebody else's before.
  await until(() => workers.every(({ engine }) => engine.subscribers >= 2), "subscriptions");
  for (const { engine } of workers) fill(engine);
  const filled = (index: Record<string, { blocks: string[] }>): boolean =>
    Object.values(index).every(({ blocks }) => blocks.length >= LANE_BLOCKS);
  await until(
    async () => filled((await indexesAtRest(peerOf(one), remote.peer ?? ""))[0]),
    "blocks",
  );

  // The new generation is killed while it takes the index over: the old one serves on, and the build
  // is tried again.
  const prompts = Array.from({ length: 8 }, (_, n) => promptOf(n));
  let clients = new Clients(router.url, prompts);
  await router.publish("two");
  const first = await midway(router, one, "two");
  process.kill(first.pid, "SIGKILL");
  process.kill(one.pid, "SIGCONT");
  const two = await router.generation("two");
  assert.ok(two.generation > first.generation);
  await clients.stop();
  assert.equal(clients.failures, [], "no request failed");
  const failed = router.outer.log.find((line) => line.event === "rollout_failed");
  assert.is(failed?.class, "crash");
  assert.ok(Number(failed?.retryInMs) > 0, "it is tried again");
  assert.equal((await recoveryOf(two.adminPort))?.attempts.map(({ peer }) => peer), [peerOf(one)]);
  const [theirs, ours] = await indexesAtRest(remote.peer ?? "", peerOf(two));
  assert.equal(ours, theirs);
  await until(async () => (await router.generations()).length === 1, "the end of the first one");

  // The old generation is killed while it gives its index away: what is left comes from another
  // replica, and requests wait.
  await router.publish("three");
  const next = await midway(router, two, "three");
  process.kill(two.pid, "SIGKILL");
  // What was sent into the process as it died is lost with it; from here on nothing is.
  const isNoticed = (line: LogLine): boolean =>
    line.event === "child_exited" && line.generation === two.generation;
  await until(() => router.outer.log.some(isNoticed), "the news of its death");
  clients = new Clients(router.url, prompts);
  const three = await router.generation("three");
  assert.is(three.generation, next.generation, "it went on");
  await until(() => clients.asked > 20, "requests after the swap");
  await clients.stop();
  assert.equal(clients.failures, [], "no request failed");
  const recovery = await recoveryOf(three.adminPort) as RecoveryReport;
  assert.equal(
    recovery.attempts.map(({ peer, outcome }) => [peer, outcome]),
    [[peerOf(two), "failed"], [remote.peer, "complete"]],
  );
  assert.is(recovery.state, "recovered");
  assert.is(recovery.lanes.restored, LANES);
  const [kept, taken] = await indexesAtRest(remote.peer ?? "", peerOf(three));
  assert.equal(taken, kept);
  assert.ok(filled(taken));
}

/** Sequences of 400 blocks of 4 tokens. */
function fill(engine: EngineWorker["engine"]): void {
  for (let token = 0; token < LANE_BLOCKS * 4; token += 1600) {
    engine.store(Array.from({ length: 1600 }, (_, n) => token + n));
    engine.publish();
  }
}

/**
 * Lets the new generation get some lanes from the old one, but not all, and stops the old one there
 * (SIGSTOP). It runs only for moments, so that this point cannot be missed.
 */
async function midway(
  router: RolledRouter,
  old: GenerationStatus,
  buildId: string,
): Promise<GenerationStatus> {
  const next = await router.generation(buildId, (one) => one.role === "candidate" && one.pid > 0);
  process.kill(old.pid, "SIGSTOP");
  const progress = async (): Promise<{ bytes: number; restored: number } | undefined> => {
    const report = await recoveryOf(next.adminPort);
    if (report?.state !== "fetching") return undefined;
    return { bytes: report.bytes, restored: report.lanes.restored ?? 0 };
  };
  await until(async () => await progress() !== undefined, `the question for ${addressOf(old)}`);
  for (;;) {
    let now = await progress();
    for (let last = -1; now !== undefined && now.bytes !== last; now = await progress()) {
      last = now.bytes;
      await pause(20);
    }
    assert.ok(now !== undefined && now.restored < LANES, "it cannot be done yet");
    if (now.restored > 0) return next;
    process.kill(old.pid, "SIGCONT");
    await pause(now.bytes > 0 ? 2 : 10);
    process.kill(old.pid, "SIGSTOP");
  }
}

test.run();
