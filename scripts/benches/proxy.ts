/**
 * proxy: requests per second and CPU per request of one proxy on one core.
 *
 * 1 KiB answers, keep-alive, 32 connections. Each proxy is pinned to core 0; wrk and the nginx that
 * answers are pinned to core 1. The systems take turns in several rounds; medians are reported.
 */

import { execFileSync } from "node:child_process";
import { existsSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import {
  type BenchContext,
  type BenchResult,
  type Limit,
  median,
  needPrograms,
} from "../lib/bench.ts";
import { freePort, Pinned, untilListening, wrk, type WrkResult } from "../lib/pinned.ts";

const PROXY_CORE = 0;
const LOAD_CORE = 1;
const CONNECTIONS = 32;
const ROUNDS = 3;
const NPM_PEERS = ["http-proxy-3", "httpxy", "fastify"] as const;

interface System {
  readonly name: string;
  readonly process: Pinned;
  readonly port: number;
  readonly rounds: (WrkResult & { cpuUsPerRequest: number })[];
}

export async function run(context: BenchContext): Promise<BenchResult> {
  needPrograms({ caddy: "caddy", haproxy: "haproxy", nginx: "nginx", wrk: "wrk" });
  installPeers(context);
  const folder = mkdtempSync(join(tmpdir(), "baton-bench-"));
  const running: Pinned[] = [];
  try {
    const upstreamPort = await startUpstream(folder, running);
    const systems = await startSystems(context, folder, upstreamPort, running);
    for (const system of systems) {
      await wrk(LOAD_CORE, system.port, { connections: CONNECTIONS, seconds: 1 });
    }
    const seconds = systems.length > 6 ? 1 : 2;
    for (let round = 0; round < ROUNDS; round++) {
      for (const system of systems) {
        const before = system.process.cpuUs();
        const result = await wrk(LOAD_CORE, system.port, { connections: CONNECTIONS, seconds });
        const cpuUsPerRequest = (system.process.cpuUs() - before) / result.requests;
        system.rounds.push({ ...result, cpuUsPerRequest });
      }
      context.say(`round ${round + 1} of ${ROUNDS}`);
    }
    return report(context, systems);
  } finally {
    for (const process of running) await process.stop();
    rmSync(folder, { recursive: true, force: true });
  }
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

async function startUpstream(folder: string, running: Pinned[]): Promise<number> {
  const port = await freePort();
  const file = join(folder, "upstream.conf");
  writeFileSync(
    file,
    `daemon off; worker_processes 1; error_log /dev/null; pid ${folder}/upstream.pid;
     events { worker_connections 4096; }
     http { access_log off; keepalive_requests 100000000; keepalive_timeout 65s;
       client_body_temp_path ${folder}/a; proxy_temp_path ${folder}/b; fastcgi_temp_path ${folder}/c;
       uwsgi_temp_path ${folder}/d; scgi_temp_path ${folder}/e;
       server { listen 127.0.0.1:${port} backlog=4096; location / { return 200 "${
      "x".repeat(1024)
    }"; } } }`,
  );
  running.push(new Pinned("upstream", LOAD_CORE, ["nginx", "-p", folder, "-c", file]));
  await untilListening(port);
  return port;
}

async function startSystems(
  context: BenchContext,
  folder: string,
  upstreamPort: number,
  running: Pinned[],
): Promise<System[]> {
  const systems: System[] = [];
  const add = (name: string, port: number, process: Pinned) =>
    systems.push({ name, port, process, rounds: [] });
  const start = (name: string, command: string[]) => {
    const process = new Pinned(name, PROXY_CORE, command);
    running.push(process);
    return process;
  };

  const caddyPort = await freePort();
  writeFileSync(
    join(folder, "Caddyfile"),
    `{\n admin off\n auto_https off\n}\nhttp://127.0.0.1:${caddyPort} {\n reverse_proxy 127.0.0.1:${upstreamPort}\n}\n`,
  );
  add(
    "caddy",
    caddyPort,
    start("caddy", [
      "env",
      "GOMAXPROCS=1",
      `HOME=${folder}`,
      "caddy",
      "run",
      "--config",
      join(folder, "Caddyfile"),
    ]),
  );

  const haproxyPort = await freePort();
  writeFileSync(
    join(folder, "haproxy.cfg"),
    `global\n nbthread 1\n maxconn 4096\ndefaults\n mode http\n timeout connect 5s\n timeout client 60s\n timeout server 60s\n option forwardfor\n` +
      `frontend f\n bind 127.0.0.1:${haproxyPort}\n default_backend b\nbackend b\n http-reuse always\n server s 127.0.0.1:${upstreamPort}\n`,
  );
  add(
    "haproxy",
    haproxyPort,
    start("haproxy", ["haproxy", "-db", "-f", join(folder, "haproxy.cfg")]),
  );

  const node = context.command("node", join(context.root, "scripts/bench-peers/peer.js"));
  for (const peer of NPM_PEERS) {
    const process = start(peer, [...node, peer, String(upstreamPort)]);
    add(peer, await process.printedPort(), process);
  }
  for (const runtime of context.runtimes) {
    const file = join(context.root, "scripts/lib/proxy_under_test.ts");
    const process = start(runtime, context.command(runtime, file, String(upstreamPort)));
    add(runtime, await process.printedPort(), process);
  }
  await untilListening(caddyPort);
  await untilListening(haproxyPort);
  return systems;
}

function report(context: BenchContext, systems: readonly System[]): BenchResult {
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
  const bestPeer = Math.max(...NPM_PEERS.map((peer) => row(peer).rps));
  const figures: Record<string, number> = {};
  const limits: Record<string, Limit> = {};
  for (const runtime of context.runtimes) {
    const own = row(runtime);
    figures[`${runtime}_rps`] = own.rps;
    figures[`${runtime}_rps_over_caddy`] = own.rps / row("caddy").rps;
    figures[`${runtime}_rps_over_best_npm_proxy`] = own.rps / bestPeer;
    figures[`${runtime}_rps_over_haproxy`] = own.rps / row("haproxy").rps;
    figures[`${runtime}_cpu_us_per_request`] = own.cpu_us_per_request;
    figures[`${runtime}_p99_ms`] = own.p99_ms;
    figures[`${runtime}_p99_over_caddy`] = own.p99_ms / row("caddy").p99_ms;
    figures[`${runtime}_failed`] = own.failed;
    limits[`${runtime}_rps_over_caddy`] = [">=", runtime === "node" ? 1.3 : 1.6];
    limits[`${runtime}_rps_over_best_npm_proxy`] = [">=", 1.6];
    limits[`${runtime}_p99_over_caddy`] = ["<=", 1];
    limits[`${runtime}_failed`] = ["==", 0];
  }
  return { figures, limits, systems: table };
}
