/**
 * proxy: requests per second and CPU per request of one proxy on one core.
 *
 * 1 KiB answers, keep-alive, 32 connections; `--case NAME` asks for something else
 * (proxy_cases.ts). Each proxy is pinned to core 0; the load and the upstream are pinned to core 1.
 * The systems take turns in several rounds; medians are reported.
 */

import { execFileSync } from "node:child_process";
import { existsSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { serverCert, serverKey } from "../../test/runtime/certificates.ts";
import {
  type BenchContext,
  type BenchResult,
  type Limit,
  median,
  needPrograms,
} from "../lib/bench.ts";
import { freePort, h2load, type LoadResult, Pinned, untilListening, wrk } from "../lib/pinned.ts";
import { CASES, type ProxyCase } from "../lib/proxy_cases.ts";
import { startUpstream } from "../lib/proxy_upstream.ts";

const PROXY_CORE = 0;
const LOAD_CORE = 1;
const ROUNDS = 3;
const NPM_PEERS = ["http-proxy-3", "httpxy", "fastify"] as const;

interface System {
  readonly name: string;
  readonly process: Pinned;
  readonly port: number;
  readonly rounds: (LoadResult & { cpuUsPerRequest: number })[];
}

/** What all parts of a run need. */
interface Bench {
  readonly context: BenchContext;
  readonly asked: ProxyCase;
  readonly folder: string;
  readonly running: Pinned[];
}

export async function run(context: BenchContext): Promise<BenchResult> {
  const name = caseName(context.args);
  const asked = CASES[name] as ProxyCase;
  needPrograms({ caddy: "caddy", haproxy: "haproxy", nginx: "nginx", wrk: "wrk" });
  if (asked.streams !== undefined) needPrograms({ h2load: "nghttp2-client" });
  const peers = name === "small" ? NPM_PEERS : [];
  if (peers.length > 0) installPeers(context);
  const folder = mkdtempSync(join(tmpdir(), "baton-bench-"));
  const running: Pinned[] = [];
  const bench: Bench = { context, asked, folder, running };
  try {
    context.say(`${name}: ${asked.about}`);
    const upstreamPort = await startUpstream(context, asked, LOAD_CORE, folder, running);
    const systems = await startSystems(bench, upstreamPort, peers);
    for (const system of systems) await load(bench, system.port, 1);
    const seconds = systems.length > 6 ? 1 : 2;
    for (let round = 0; round < ROUNDS; round++) {
      for (const system of systems) {
        const before = system.process.cpuUs();
        const result = await load(bench, system.port, seconds);
        const cpuUsPerRequest = (system.process.cpuUs() - before) / result.requests;
        system.rounds.push({ ...result, cpuUsPerRequest });
      }
      context.say(`round ${round + 1} of ${ROUNDS}`);
    }
    return report(context, systems, peers);
  } finally {
    for (const process of running) await process.stop();
    rmSync(folder, { recursive: true, force: true });
  }
}

function caseName(args: readonly string[]): string {
  const at = args.indexOf("--case");
  if (at < 0) return "small";
  const name = args[at + 1] ?? "";
  if (name in CASES) return name;
  const cases = Object.entries(CASES).map(([one, { about }]) => `\n  ${one.padEnd(8)}${about}`);
  throw new Error(`--case takes one of${cases.join("")}`);
}

function load({ asked, folder }: Bench, port: number, seconds: number): Promise<LoadResult> {
  const { path, connections, headers = [], tls = false, postBytes, streams } = asked;
  const common = { path, connections, seconds };
  if (streams !== undefined) return h2load(LOAD_CORE, port, common, streams);
  if (postBytes === undefined) return wrk(LOAD_CORE, port, { ...common, headers, tls });
  const script = join(folder, "post.lua");
  writeFileSync(script, `wrk.method = "POST"\nwrk.body = string.rep("x", ${postBytes})\n`);
  return wrk(LOAD_CORE, port, { ...common, headers, tls, script });
}

function installPeers(context: BenchContext): void {
  const folder = join(context.root, "scripts/bench-peers");
  if (existsSync(join(folder, "node_modules/httpxy"))) return;
  context.say("installing the npm proxies to compare with");
  execFileSync("npm", ["ci", "--no-audit", "--no-fund", "--loglevel=error"], {
    cwd: folder,
    stdio: ["ignore", "ignore", "inherit"],
  });
}

async function startSystems(
  bench: Bench,
  upstreamPort: number,
  peers: readonly string[],
): Promise<System[]> {
  const { context, asked, folder, running } = bench;
  const systems: System[] = [];
  const start = (name: string, command: string[]) => {
    const process = new Pinned(name, PROXY_CORE, command);
    running.push(process);
    return process;
  };
  const add = (name: string, port: number, process: Pinned) =>
    systems.push({ name, port, process, rounds: [] });

  const cert = join(folder, "cert.pem");
  const key = join(folder, "key.pem");
  writeFileSync(cert, serverCert);
  writeFileSync(key, serverKey);

  const caddyPort = await freePort();
  writeFileSync(join(folder, "Caddyfile"), caddyfile(asked, caddyPort, upstreamPort, cert, key));
  const environment = ["env", "GOMAXPROCS=1", `HOME=${folder}`];
  const caddy = ["caddy", "run", "--config", join(folder, "Caddyfile")];
  add("caddy", caddyPort, start("caddy", [...environment, ...caddy]));

  const haproxyPort = await freePort();
  writeFileSync(join(folder, "both.pem"), serverCert + serverKey);
  const configured = haproxyConfiguration(asked, haproxyPort, upstreamPort, folder);
  writeFileSync(join(folder, "haproxy.cfg"), configured);
  const haproxy = ["haproxy", "-db", "-f", join(folder, "haproxy.cfg")];
  add("haproxy", haproxyPort, start("haproxy", haproxy));

  const node = context.command("node", join(context.root, "scripts/bench-peers/peer.js"));
  for (const peer of peers) {
    const process = start(peer, [...node, peer, String(upstreamPort)]);
    add(peer, await process.printedPort(), process);
  }
  const tls = asked.tls === true ? [cert, key] : [];
  for (const runtime of context.runtimes) {
    const file = join(context.root, "scripts/lib/proxy_under_test.ts");
    const process = start(runtime, context.command(runtime, file, String(upstreamPort), ...tls));
    add(runtime, await process.printedPort(), process);
  }
  await untilListening(caddyPort);
  await untilListening(haproxyPort);
  return systems;
}

function caddyfile(
  { tls = false, streams }: ProxyCase,
  port: number,
  upstreamPort: number,
  cert: string,
  key: string,
): string {
  const servers = streams === undefined ? "" : " servers {\n  protocols h1 h2c\n }\n";
  const site = tls ? `https://127.0.0.1:${port}` : `http://127.0.0.1:${port}`;
  return `{\n admin off\n auto_https off\n${servers}}\n${site} {\n` +
    `${tls ? ` tls ${cert} ${key}\n` : ""} reverse_proxy 127.0.0.1:${upstreamPort}\n}\n`;
}

function haproxyConfiguration(
  { tls = false, streams }: ProxyCase,
  port: number,
  upstreamPort: number,
  folder: string,
): string {
  const how = tls ? ` ssl crt ${folder}/both.pem` : streams === undefined ? "" : " proto h2";
  return "global\n nbthread 1\n maxconn 4096\ndefaults\n mode http\n timeout connect 5s\n" +
    " timeout client 60s\n timeout server 60s\n option forwardfor\n" +
    `frontend f\n bind 127.0.0.1:${port}${how}\n default_backend b\n` +
    `backend b\n http-reuse always\n server s 127.0.0.1:${upstreamPort}\n`;
}

function report(
  context: BenchContext,
  systems: readonly System[],
  peers: readonly string[],
): BenchResult {
  const of = (system: System) => ({
    rps: median(system.rounds.map((round) => round.rps)),
    cpu_us_per_request: median(system.rounds.map((round) => round.cpuUsPerRequest)),
    p50_ms: median(system.rounds.map((round) => round.p50Ms)),
    p99_ms: median(system.rounds.map((round) => round.p99Ms)),
    failed: system.rounds.reduce((sum, round) => sum + round.failed, 0),
    rss_mib: system.process.rssBytes() / 2 ** 20,
  });
  const table = Object.fromEntries(systems.map((system) => [system.name, of(system)]));
  const row = (name: string) => table[name] as ReturnType<typeof of>;
  const figures: Record<string, number> = {};
  const limits: Record<string, Limit> = {};
  for (const runtime of context.runtimes) {
    const own = row(runtime);
    figures[`${runtime}_rps`] = own.rps;
    figures[`${runtime}_rps_over_caddy`] = own.rps / row("caddy").rps;
    figures[`${runtime}_rps_over_haproxy`] = own.rps / row("haproxy").rps;
    figures[`${runtime}_cpu_us_per_request`] = own.cpu_us_per_request;
    if (!Number.isNaN(own.p99_ms)) {
      figures[`${runtime}_p99_ms`] = own.p99_ms;
      figures[`${runtime}_p99_over_caddy`] = own.p99_ms / row("caddy").p99_ms;
    }
    figures[`${runtime}_failed`] = own.failed;
    limits[`${runtime}_failed`] = ["==", 0];
    if (peers.length === 0) continue;
    const bestPeer = Math.max(...peers.map((peer) => row(peer).rps));
    figures[`${runtime}_rps_over_best_npm_proxy`] = own.rps / bestPeer;
    limits[`${runtime}_rps_over_caddy`] = [">=", runtime === "node" ? 1.3 : 1.6];
    limits[`${runtime}_rps_over_best_npm_proxy`] = [">=", 1.6];
    limits[`${runtime}_p99_over_caddy`] = ["<=", 1];
  }
  return { figures, limits, systems: table };
}
