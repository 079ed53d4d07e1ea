/**
 * A small program to be supervised: it can do what a good child does, and most of what a bad one does.
 *
 * Run by Node through a shell script that builds.ts writes, as
 * `child_program.ts <build id> <options as JSON> --data-dir <dir> --port <n>`.
 * What it is asked on its lifecycle paths, and every POST that it executes, is appended to files in
 * its data folder, where a test can count.
 */

import { appendFileSync, existsSync, readFileSync } from "node:fs";
import http from "node:http";
import process from "node:process";

export interface ChildOptions {
  /** Listens this late; until then connections are refused. */
  readonly listenDelayMs?: number;
  /** Answers 503 on its readiness path for so long after that. */
  readonly readyDelayMs?: number;
  /** How it is not ready meanwhile: a plain 503, one that says "initialising", 404, or no answer. */
  readonly unreadyAs?: "plain" | "initializing" | "absent" | "draining" | "hang";
  readonly neverReady?: boolean;
  /** Only its first process in a data folder runs; later ones exit at once. */
  readonly onlyFirstRuns?: boolean;
  /** Has an admin listener on DEVSHARD_ADMIN_ADDR; lifecycle paths are then not public. */
  readonly adminApi?: boolean;
  /** `/healthz` of the public listener fails for so long. */
  readonly healthDelayMs?: number;
  /** The readiness body has recovery_complete, true after so long. */
  readonly warmAfterMs?: number;
  /** Knows neither drain nor drain status. */
  readonly legacy?: boolean;
  /** Knows no readiness path either. */
  readonly noReady?: boolean;
  readonly noHealth?: boolean;
  /** Exits with this code at once. */
  readonly exitAtOnce?: number;
  readonly crashAfterMs?: number;
  readonly ignoreSigterm?: boolean;
  /** Starts a helper in its group that ignores SIGTERM too. */
  readonly helper?: boolean;
  /** Reports this count in its drain status whatever happens. */
  readonly stuckInflight?: number;
  /** Its drain status counts down from here, one a poll. */
  readonly inflightCountdown?: number;
  readonly drainStatusField?: string;
}

interface Parsed {
  readonly build: string;
  readonly options: ChildOptions;
  readonly dataDir: string;
  readonly port: number;
}

function parse(argv: readonly string[]): Parsed {
  const [build = "", json = "{}", ...rest] = argv;
  const value = (flag: string): string => rest[rest.indexOf(flag) + 1] ?? "";
  return {
    build,
    options: JSON.parse(json) as ChildOptions,
    dataDir: value("--data-dir"),
    port: Number(value("--port")),
  };
}

function main(): void {
  const { build, options, dataDir, port } = parse(process.argv.slice(2));
  const startedAt = performance.now();
  if (options.exitAtOnce !== undefined) process.exit(options.exitAtOnce);
  process.stdout.write(`${build} started\n`);
  if (options.crashAfterMs !== undefined) setTimeout(() => process.exit(3), options.crashAfterMs);

  const record = (file: string, line: string): void => {
    if (dataDir !== "") appendFileSync(`${dataDir}/${file}`, line + "\n");
  };
  record("starts.log", `${build} ${process.pid}`);
  if (options.onlyFirstRuns) {
    const starts = readFileSync(`${dataDir}/starts.log`, "utf8").trim().split("\n");
    if (starts.length > 1) process.exit(7);
  }
  let draining = false;
  let unready = false;
  let inflight = 0;
  let countdown = options.inflightCountdown;
  let adminPortUsed = false;
  /** A test opens it with a file of that name in the data folder. */
  const gateIsOpen = (): boolean => existsSync(`${dataDir}/gate`);
  const age = (): number => performance.now() - startedAt;
  const readyAt = (options.listenDelayMs ?? 0) + (options.readyDelayMs ?? 0);
  const isReady = (): boolean => !options.neverReady && !unready && !draining && age() >= readyAt;

  const json = (response: http.ServerResponse, status: number, body: unknown): void => {
    response.writeHead(status, { "content-type": "application/json" });
    response.end(JSON.stringify(body));
  };
  const statusBody = (): Record<string, unknown> => {
    if (countdown !== undefined && countdown > 0 && draining) countdown -= 1;
    const count = options.stuckInflight ?? countdown ?? inflight;
    return { ready: isReady(), draining, [options.drainStatusField ?? "inflight"]: count };
  };

  const lifecycle = (
    request: http.IncomingMessage,
    response: http.ServerResponse,
    listener: string,
  ): boolean => {
    const path = request.url ?? "";
    if (path === "/ready" && !options.noReady) {
      if (isReady()) {
        const warm = options.warmAfterMs;
        const extra = warm === undefined ? {} : { recovery_complete: age() >= warm };
        json(response, 200, { ready: true, draining: false, storage_ready: true, ...extra });
      } else if (options.unreadyAs === "initializing") {
        json(response, 503, { ready: false, draining: false });
      } else if (options.unreadyAs === "draining") {
        json(response, 503, { ready: false, draining: true });
      } else if (options.unreadyAs === "absent") {
        json(response, 404, {});
      } else if (options.unreadyAs !== "hang") {
        response.writeHead(503).end("no");
      }
      return true;
    }
    if (options.legacy) return false;
    if (path === "/drain" && request.method === "POST") {
      record("calls.log", `${build} POST /drain ${listener} inflight=${inflight}`);
      draining = true;
      json(response, 200, statusBody());
      return true;
    }
    if (path === "/drain/status") {
      record("calls.log", `${build} GET /drain/status ${listener}`);
      json(response, 200, statusBody());
      return true;
    }
    return false;
  };

  const work = (request: http.IncomingMessage, response: http.ServerResponse): void => {
    // Counted before the check, or a drain could slip in between (and be told of an idle child).
    inflight += 1;
    response.once("close", () => {
      inflight -= 1;
    });
    if (draining) {
      response.writeHead(503).end("draining");
      return;
    }
    const url = new URL(request.url ?? "/", "http://child");
    const ms = Number(url.searchParams.get("ms") ?? 0);
    response.setHeader("x-build", build);
    switch (url.pathname) {
      case "/slow":
        setTimeout(() => response.end(build), ms);
        return;
      case "/gate": {
        const timer = setInterval(() => {
          if (!gateIsOpen()) return;
          clearInterval(timer);
          response.end(build);
        }, 20);
        response.once("close", () => clearInterval(timer));
        return;
      }
      case "/events": {
        response.writeHead(200, { "content-type": "text/event-stream" });
        const total = Number(url.searchParams.get("count") ?? 3);
        const gated = url.searchParams.has("gated");
        let sent = 0;
        const timer = setInterval(() => {
          sent += 1;
          response.write(`data: ${build} ${sent}\n\n`);
          if (sent < total || gated && !gateIsOpen()) return;
          clearInterval(timer);
          response.end("data: [DONE]\n\n");
        }, ms || 20);
        response.once("close", () => clearInterval(timer));
        return;
      }
      case "/execute": {
        let id = "";
        request.setEncoding("utf8");
        request.on("data", (chunk: string) => {
          id += chunk;
        });
        request.on("end", () => {
          record("executed.log", id);
          setTimeout(() => response.end(build), ms);
        });
        return;
      }
      case "/crash":
        process.kill(process.pid, "SIGKILL");
        return;
      case "/unready":
        unready = true;
        response.end(build);
        return;
      case "/deaf":
        // What is connected goes on; nobody else gets in.
        response.setHeader("connection", "close");
        server.close();
        response.end(build);
        return;
      case "/reready":
        unready = false;
        response.end(build);
        return;
      case "/env":
        json(response, 200, { env: process.env, argv: process.argv.slice(4) });
        return;
      default:
        response.end(`${build} ${process.pid} ${request.url}`);
    }
  };

  const server = http.createServer((request, response) => {
    if (request.url === "/healthz") {
      if (options.noHealth) response.writeHead(404).end();
      else response.writeHead(age() >= (options.healthDelayMs ?? 0) ? 200 : 503).end("ok");
      return;
    }
    if (!adminPortUsed && lifecycle(request, response, "public")) return;
    if (/^\/(ready|drain)/.test(request.url ?? "")) {
      response.writeHead(404).end();
      return;
    }
    work(request, response);
  });
  server.on("upgrade", (_request, socket) => {
    inflight += 1;
    socket.once("close", () => {
      inflight -= 1;
    });
    socket.on("error", () => {});
    socket.write(
      "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
    );
    socket.pipe(socket);
  });

  const admin = options.adminApi ? process.env.DEVSHARD_ADMIN_ADDR : undefined;
  adminPortUsed = admin !== undefined;
  setTimeout(() => {
    server.listen(port, "127.0.0.1");
    if (admin !== undefined) {
      http.createServer((request, response) => {
        if (!lifecycle(request, response, "admin")) response.writeHead(404).end();
      }).listen(Number(admin.split(":")[1]), "127.0.0.1");
    }
  }, options.listenDelayMs ?? 0);

  process.on("SIGTERM", () => {
    record("calls.log", `${build} SIGTERM inflight=${inflight}`);
    if (options.ignoreSigterm) return;
    draining = true;
    const leave = (): void => {
      if (inflight > 0) return;
      process.exit(0);
    };
    setInterval(leave, 10);
    leave();
  });
}

if (import.meta.main) main();
