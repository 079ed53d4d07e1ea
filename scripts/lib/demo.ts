/**
 * The demo: a rolling update under load that loses nothing, and a replica that recovers its index
 * before it serves. Every number in the report was measured in this run.
 */

import { readFileSync } from "node:fs";
import process from "node:process";
import { indexesAtRest } from "../../test/support/rolled_router.ts";
import type { RuntimeName } from "./bench.ts";
import { type ChatReport, Conversations, emptyChatReport } from "./conversations.ts";
import { type BatonProcess, Fleet, getJson, until } from "./fleet.ts";
import { type Load, startLoad } from "./load.ts";

const MODEL = "demo";
const WORKERS = ["worker-0", "worker-1", "worker-2"];
const TURNS = 5;

const args = process.argv.slice(2);
const runtime = runtimeOf(args);
const fleet = new Fleet(runtime);
const say = (line: string) =>
  console.log(`${(process.uptime()).toFixed(1).padStart(5)} s  ${line}`);

let closing: Promise<void> | undefined;
for (const signal of ["SIGINT", "SIGTERM"] as const) {
  process.on(signal, () => void (closing ??= fleet.close()).then(() => process.exit(130)));
}

let code = 1;
try {
  code = await demo();
  if (!args.includes("--exit")) await new Promise(() => setInterval(() => {}, 60_000));
} catch (error) {
  console.error(error);
  for (const name of ["first", "second", "cold"]) {
    try {
      const lines = fleet.log(name).split("\n").filter((line) =>
        !line.includes('"event":"request"')
      );
      console.error(`--- ${name}, its last lines:\n${lines.slice(-40).join("\n")}`);
    } catch { /* It was not started. */ }
  }
}
await (closing ??= fleet.close());
process.exit(code);

async function demo(): Promise<number> {
  say(`Baton on ${runtime}; its files and logs are in ${fleet.folder}`);
  const ports = {
    first: await fleet.ports(),
    second: await fleet.ports(),
    cold: await fleet.ports(),
  };
  const peerUrl = (port: number) => `http://127.0.0.1:${port}`;
  const eventUrls = [ports.first.peer, ports.second.peer].map((port) => `${peerUrl(port)}/events`);
  const urls = await Promise.all(WORKERS.map((name) =>
    fleet.startMockWorker(name, [
      ...["--model", MODEL, "--capacity", "4000", "--decode-ms", "2"],
      ...eventUrls.flatMap((url) => ["--events", url]),
    ])
  ));
  say("three mock inference workers run; each tells both replicas what is in its KV cache");

  const chat = {
    mount: "/v1",
    pool: {
      model: MODEL,
      blockSize: 16,
      workers: urls.map((url, n) => ({ id: WORKERS[n], url })),
    },
  };
  const oracle = fleet.path("versions.json");
  const first = fleet.startBaton("first", ports.first, {
    services: {
      shard: {
        mount: "/shard",
        versions: {
          oracle: `file:${oracle}`,
          binaryName: "child",
          dataDir: fleet.path("data"),
          bakeMs: 1_000,
        },
      },
      chat,
    },
    replica: { peers: [peerUrl(ports.second.peer)] },
  });
  await until("the first Baton", () => fetch(`${first.admin}/ready`), () => true);
  await fleet.publish(oracle, "v1", { id: "build-a" });
  await until("build-a", () => currentBuild(first), (build) => build === "build-a");
  say("the first Baton serves v1 with build-a, and routes chats to the workers");

  console.log("\nA new build under load: 100 requests/s, half of them POSTs, 20 streams, 24 chats");
  const load = startTraffic(first);
  const conversations = new Conversations(24, MODEL);
  const before = emptyChatReport();
  for (let turn = 1; turn <= TURNS; turn += 1) {
    await Promise.all([conversations.turn(first.traffic, before), pause(500)]);
    if (turn === 2) {
      say("baton publish: build-b");
      await fleet.publish(oracle, "v1", { id: "build-b" });
    }
    const { requests, failed, cut } = load.report;
    say(
      `${requests} requests, ${failed} failed, ${cut} cut; ` +
        `chats: ${percent(hitRate(before))} of prompt tokens from a worker's cache`,
    );
  }
  await until("build-b", () => currentBuild(first), (build) => build === "build-b");
  const swapped = await until(
    "the end of build-a",
    () => generations(first),
    (all) => all.length === 1,
    45_000,
  );
  say(`build-a has ended its last stream and is gone; generation ${describe(swapped)} serves`);
  const report = await load.stop();

  console.log("\nA second replica, and beside it one that knows no peer");
  const cold = fleet.startBaton("cold", ports.cold, { services: { chat } });
  const second = fleet.startBaton("second", ports.second, {
    services: { chat },
    replica: { peers: [peerUrl(ports.first.peer)] },
  });
  let answeredEarly = 0;
  await until("the second replica", async () => {
    const status = (await fetch(`${second.traffic}/readyz`)).status;
    const recovery = await getJson(`${second.admin}/api/v1/recovery`);
    if (status === 200 && recovery.state !== "recovered") answeredEarly += 1;
    return status;
  }, (status) => status === 200);
  const readyMs = performance.now() - second.startedAt;
  const recovery = await getJson(`${second.admin}/api/v1/recovery`);
  say(
    `${recovery.state}: ${recovery.blocks} blocks from ${recovery.attempts?.[0]?.peer} in ` +
      `${recovery.elapsedMs} ms; ready ${readyMs.toFixed(0)} ms after its start`,
  );
  const [ours, theirs] = await indexesAtRest(first.peer, second.peer);
  const differing = Object.keys({ ...ours, ...theirs })
    .filter((lane) => JSON.stringify(ours[lane]) !== JSON.stringify(theirs[lane]));
  await until("the one without peers", () => fetch(`${cold.traffic}/readyz`), ({ ok }) => ok);

  const after = emptyChatReport();
  const without = emptyChatReport();
  await Promise.all([
    conversations.turn(second.traffic, after, "even"),
    conversations.turn(cold.traffic, without, "odd"),
  ]);
  say("the next turn of one half of the chats went through each of the two");

  const executions = [
    ...readFileSync(fleet.path("data", "v1", "executed.log"), "utf8").trim().split("\n"),
    ...(await Promise.all(urls.map(async (url) => {
      const { executed } = await getJson(`${url}/mock/stats`);
      return Object.entries<number>(executed).flatMap(([id, n]) => Array(n).fill(id));
    }))).flat(),
  ];
  const chats = [before, after, without];
  const result = {
    requests: report.requests + report.streams +
      chats.reduce((sum, chat) => sum + chat.requests, 0),
    failed: report.failed + answeredEarly + chats.reduce((sum, chat) => sum + chat.failed, 0),
    cut: report.cut + chats.reduce((sum, chat) => sum + chat.cut, 0),
    executed_twice: executions.length - new Set(executions).size,
    longest_gap_ms: Math.round(report.longestGapMs),
    swaps: (await switches(first)).length - 1,
    recovered_blocks: recovery.blocks,
    recovery_ms: recovery.elapsedMs,
    differing_lanes: differing.length,
    hit_rate_before: hitRate(before),
    hit_rate_after: hitRate(after),
    hit_rate_without_recovery: hitRate(without),
  };
  const reasons = [...report.reasons, ...chats.flatMap((chat) => chat.reasons)].slice(0, 10);
  const isClean = result.failed === 0 && result.cut === 0 && result.executed_twice === 0 &&
    result.swaps === 1 && result.recovered_blocks > 0 && recovery.state === "recovered" &&
    differing.length === 0;

  console.log(`
Measured in this run
  requests        ${result.requests}, ${report.streams} of them streams with ${report.events} events
  failed          ${result.failed}
  cut             ${result.cut} streams that did not come to their own last event
  executed twice  ${result.executed_twice} of ${executions.length} executions
  longest gap     ${result.longest_gap_ms} ms in which requests were due and none was answered
  generations     1 (build-a) before, ${describe(swapped)} after
  recovered       ${result.recovered_blocks} blocks in ${result.recovery_ms} ms, before the replica was ready; ${result.differing_lanes} of ${
    Object.keys(ours).length
  } lanes differ from the first's
  cache hits      ${percent(result.hit_rate_before)} on the first replica, from its first chat on
                  ${percent(result.hit_rate_after)} on the second, from its first request on
                  ${percent(result.hit_rate_without_recovery)} on the one without peers
${reasons.map((reason) => `  ${reason.trim()}\n`).join("")}${
    isClean ? "Nothing was lost." : "SOMETHING WAS LOST."
  }`);
  if (!args.includes("--exit")) {
    const chatBody = `{"model":"${MODEL}","messages":[{"role":"user","content":"hello"}]}`;
    console.log(`
Still up until Ctrl-C:
  status page   ${first.admin}/ui/
  the same      node_modules/.bin/node src/main.ts status --admin ${first.admin}
  a request     curl ${first.traffic}/shard/v1/
  a chat        curl ${second.traffic}/v1/chat/completions -d '${chatBody}'
  the index     curl ${second.peer}/dump`);
  }
  if (args.includes("--json")) console.log(JSON.stringify(result));
  return isClean ? 0 : 1;
}

function startTraffic(baton: BatonProcess): Load {
  const base = `${baton.traffic}/shard/v1`;
  return startLoad({
    requestsPerS: 100,
    request: (n) =>
      n % 2 === 0 ? { url: `${base}/slow?ms=5` } : {
        url: `${base}/execute?ms=5`,
        method: "POST",
        body: `execution-${n}`,
      },
    streams: 20,
    stream: () => ({ url: `${base}/events?count=40&ms=50` }),
  });
}

/** The build that answers new requests, asked through the traffic port. */
async function currentBuild(baton: BatonProcess): Promise<string> {
  const response = await fetch(`${baton.traffic}/shard/v1/slow`);
  return await response.text();
}

async function generations(
  baton: BatonProcess,
): Promise<{ generation: number; buildId: string }[]> {
  return (await getJson(`${baton.admin}/api/v1/versions/v1`)).generations;
}

function describe(all: readonly { generation: number; buildId: string }[]): string {
  return all.map(({ generation, buildId }) => `${generation} (${buildId})`).join(", ");
}

/** The moments at which a generation took over the traffic. */
async function switches(baton: BatonProcess): Promise<string[]> {
  const journal = await (await fetch(`${baton.admin}/api/v1/events`)).text();
  return journal.split("\n").filter((line) => line.includes('"kind":"traffic_switched"'));
}

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

function hitRate({ promptTokens, cachedTokens }: ChatReport): number {
  return promptTokens === 0 ? 0 : Number((cachedTokens / promptTokens).toFixed(4));
}

function percent(share: number): string {
  return `${(share * 100).toFixed(1)} %`;
}

function runtimeOf(given: readonly string[]): RuntimeName {
  const at = given.indexOf("--runtime");
  const name = at < 0 ? "node" : given[at + 1];
  if (name === "node" || name === "deno") return name;
  console.error(`--runtime takes node or deno, not ${name}`);
  process.exit(2);
}
