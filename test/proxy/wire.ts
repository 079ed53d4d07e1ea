/**
 * Raw sockets on both sides of a traffic listener: what the tests of the proxy rules speak with.
 */

import { Buffer } from "node:buffer";
import { connect, createServer, type Server, type Socket } from "node:net";
import { createLog } from "../../src/observe/log.ts";
import { createMetrics } from "../../src/observe/metrics.ts";
import type {
  Exchange,
  Forward,
  ForwardOptions,
  ForwardOutcome,
} from "../../src/proxy/exchange.ts";
import type { Timeouts } from "../../src/proxy/timeouts.ts";
import { Routes } from "../../src/proxy/routes.ts";
import { Target } from "../../src/proxy/target.ts";
import { startTraffic, type TrafficOptions, type TrafficServer } from "../../src/proxy/traffic.ts";
import type { Address } from "../../src/runtime/runtime.ts";
import { runtime } from "../support/runtime.ts";
import { DEADLINE_MS } from "../support/until.ts";

export { DEADLINE_MS };

/** Where nobody listens: a port that was free a moment ago may be somebody else's by now. */
export const NOBODY: Address = { kind: "tcp", host: "127.0.0.1", port: 1 };

/** Waits until `condition` gives something truthy; throws with `what` after the deadline. */
export async function eventually<T>(what: string, condition: () => T): Promise<T> {
  const end = performance.now() + DEADLINE_MS;
  for (;;) {
    const value = condition();
    if (value) return value;
    if (performance.now() > end) throw new Error(`did not happen in time: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 3));
  }
}

/** A client's connection that sends and receives plain bytes (as latin1 text). */
export class Client {
  received = "";
  fin = false;
  closed = false;
  error: Error | undefined;
  readonly socket: Socket;

  constructor(socket: Socket) {
    this.socket = socket;
    socket.on("data", (chunk: Uint8Array) => {
      this.received += Buffer.from(chunk).toString("latin1");
    });
    socket.on("end", () => (this.fin = true));
    socket.on("error", (error) => (this.error = error));
    socket.on("close", () => (this.closed = true));
  }

  static async to(port: number | string, host = "127.0.0.1"): Promise<Client> {
    const socket = typeof port === "string"
      ? connect({ path: port, allowHalfOpen: true })
      : connect({ port, host, allowHalfOpen: true, noDelay: true });
    await new Promise<void>((resolve, reject) => {
      socket.once("connect", resolve);
      socket.once("error", reject);
    });
    return new Client(socket);
  }

  send(text: string): this {
    this.socket.write(text, "latin1");
    return this;
  }

  /** Waits for a text in what was received and returns everything so far. */
  async until(text: string | RegExp): Promise<string> {
    await eventually(
      `the client receives ${text} (has ${JSON.stringify(this.received)})`,
      () => typeof text === "string" ? this.received.includes(text) : text.test(this.received),
    );
    return this.received;
  }

  /** Waits until the other side has closed (FIN or reset) and returns everything received. */
  async untilClosed(): Promise<string> {
    await eventually(
      `the connection ends (has ${JSON.stringify(this.received.slice(0, 300))})`,
      () => this.fin || this.closed,
    );
    this.socket.destroy();
    return this.received;
  }

  destroy(): void {
    this.socket.destroy();
  }

  reset(): void {
    this.socket.resetAndDestroy();
  }
}

/** One connection that the proxy opened to the upstream. */
export class UpstreamSide {
  received = "";
  fin = false;
  closed = false;
  error: Error | undefined;
  readonly socket: Socket;
  /** How much of `received` was taken as requests. */
  taken = 0;

  constructor(socket: Socket) {
    this.socket = socket;
    socket.on("end", () => (this.fin = true));
    socket.on("error", (error) => (this.error = error));
    socket.on("close", () => (this.closed = true));
  }

  send(text: string): this {
    this.socket.write(text, "latin1");
    return this;
  }

  async until(text: string | RegExp): Promise<string> {
    await eventually(
      `the upstream receives ${text} (has ${JSON.stringify(this.received)})`,
      () => typeof text === "string" ? this.received.includes(text) : text.test(this.received),
    );
    return this.received;
  }

  async untilGone(): Promise<void> {
    await eventually("the upstream connection ends", () => this.fin || this.closed);
  }
}

/** A raw server. By default it answers every complete request with `answer`. */
export class Upstream {
  answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
  /** Replaces the default: called with each connection when bytes came. */
  onData: ((side: UpstreamSide) => void) | undefined;
  /** Called with each complete request instead of answering. */
  onRequest: ((side: UpstreamSide, request: string) => void) | undefined;
  readonly sides: UpstreamSide[] = [];
  /** Complete requests as they came, head and body. */
  readonly requests: string[] = [];
  readonly server: Server;
  address: Address = { kind: "tcp", host: "127.0.0.1", port: 0 };

  constructor() {
    this.server = createServer({ allowHalfOpen: true, noDelay: true }, (socket) => {
      const side = new UpstreamSide(socket);
      this.sides.push(side);
      socket.on("data", (chunk: Uint8Array) => {
        side.received += Buffer.from(chunk).toString("latin1");
        if (this.onData !== undefined) return this.onData(side);
        for (;;) {
          const length = requestLength(side.received.slice(side.taken));
          if (length < 0) return;
          const request = side.received.slice(side.taken, side.taken + length);
          side.taken += length;
          this.requests.push(request);
          if (this.onRequest !== undefined) this.onRequest(side, request);
          else side.send(this.answer);
        }
      });
      socket.on("end", () => socket.end());
    });
  }

  static async start(address: Address = { kind: "tcp", host: "127.0.0.1", port: 0 }) {
    const upstream = new Upstream();
    await new Promise<void>((resolve, reject) => {
      upstream.server.once("error", reject);
      const listening = () => resolve();
      if (address.kind === "unix") upstream.server.listen(address.path, listening);
      else upstream.server.listen(address.port, address.host, listening);
    });
    const bound = upstream.server.address();
    if (bound === null) throw new Error("not listening");
    upstream.address = typeof bound === "string"
      ? { kind: "unix", path: bound }
      : { kind: "tcp", host: bound.address, port: bound.port };
    return upstream;
  }

  /** The side that the proxy opened as number `index`. */
  side(index = 0): Promise<UpstreamSide> {
    return eventually(`upstream connection ${index}`, () => this.sides[index] as UpstreamSide);
  }

  /** The first request, once it is there. */
  request(index = 0): Promise<string> {
    return eventually(`upstream request ${index}`, () => this.requests[index] as string);
  }

  async close(): Promise<void> {
    for (const side of this.sides) side.socket.destroy();
    await new Promise<void>((resolve) => this.server.close(() => resolve()));
  }
}

/** Length of the first complete request in the text, or -1. */
function requestLength(text: string): number {
  const end = text.indexOf("\r\n\r\n");
  if (end < 0) return -1;
  const head = text.slice(0, end + 4);
  const length = /\r\ncontent-length: *(\d+)\r\n/i.exec(head);
  if (length !== null) {
    const total = end + 4 + Number(length[1]);
    return text.length >= total ? total : -1;
  }
  if (/\r\ntransfer-encoding: *chunked\r\n/i.test(head)) {
    const last = /(?:^|\r\n)0\r\n(?:[^\r\n]+\r\n)*\r\n/.exec(text.slice(end + 4));
    return last === null ? -1 : end + 4 + last.index + last[0].length;
  }
  return end + 4;
}

export type LogLine = Record<string, unknown>;

/** A traffic listener with one target behind it. */
export interface Proxy {
  readonly server: TrafficServer;
  readonly port: number;
  readonly target: Target;
  readonly routes: Routes;
  readonly lines: LogLine[];
  readonly outcomes: ForwardOutcome[];
  metricsText(): Promise<string>;
  close(): Promise<void>;
}

export interface ProxyOptions extends Partial<TrafficOptions> {
  readonly mounts?: readonly string[];
  /** What the target speaks. */
  readonly protocol?: Target["protocol"];
  readonly forwardOptions?: ForwardOptions;
  readonly serviceTimeouts?: Partial<Timeouts>;
  readonly handle?: (exchange: Exchange, forward: Forward) => void | Promise<void>;
  /** How long a request may wait while the lifecycle has nothing to serve yet (default 0). */
  readonly startHoldMs?: () => number;
}

/** Starts a listener on a free port that forwards everything to `address`. */
export async function startProxy(address: Address, options: ProxyOptions = {}): Promise<Proxy> {
  const { protocol = "http/1.1" } = options;
  const target = new Target({ service: "test", version: "v1", generation: 1, address, protocol });
  const routes = new Routes();
  const lines: LogLine[] = [];
  const outcomes: ForwardOutcome[] = [];
  const metrics = createMetrics();
  const handle = options.handle ?? (async (exchange: Exchange, forward: Forward) => {
    const lease = target.claim(exchange.requestId, runtime.clock.monotonic());
    if (lease === undefined) throw new Error("retired");
    outcomes.push(await forward(exchange, lease, options.forwardOptions));
  });
  routes.replace(
    [{
      name: "test",
      mounts: options.mounts ?? ["/"],
      handle,
      startHoldMs: () => options.startHoldMs?.() ?? 0,
    }],
    () => options.serviceTimeouts,
  );
  const server = await startTraffic({
    runtime,
    log: createLog({ write: (line) => lines.push(JSON.parse(line)), now: () => 0 }),
    metrics,
    routes,
    listen: { address: { kind: "tcp", host: "127.0.0.1", port: 0 } },
    ...options,
  });
  return {
    server,
    port: server.address.kind === "tcp" ? server.address.port : 0,
    target,
    routes,
    lines,
    outcomes,
    metricsText: () => metrics.text(),
    close: async () => {
      const closed = server.close();
      server.destroy();
      await closed;
    },
  };
}

/** Upstream and proxy together, taken down afterwards, with a check that no lease is left. */
export async function withProxy(
  options: ProxyOptions,
  body: (proxy: Proxy, upstream: Upstream) => Promise<void>,
): Promise<void> {
  const upstream = await Upstream.start();
  try {
    const proxy = await startProxy(upstream.address, options);
    try {
      await body(proxy, upstream);
      await eventually("all leases are released", () => proxy.target.leases === 0);
    } finally {
      await proxy.close();
    }
  } finally {
    await upstream.close();
  }
}

/** Sends one request on a connection of its own and returns all bytes until the connection ends. */
export async function ask(proxy: Proxy, request: string): Promise<string> {
  const client = await Client.to(proxy.port);
  client.send(request);
  return await client.untilClosed();
}

/** A GET that asks to close, with more header lines. */
export function get(target: string, lines = ""): string {
  return `GET ${target} HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n${lines}\r\n`;
}

export function statusOf(answer: string): number {
  return Number(/^HTTP\/1\.[01] (\d{3})/.exec(answer)?.[1] ?? 0);
}

export function headOf(message: string): string {
  const end = message.indexOf("\r\n\r\n");
  return end < 0 ? message : message.slice(0, end + 2);
}

export function bodyOf(message: string): string {
  const end = message.indexOf("\r\n\r\n");
  return end < 0 ? "" : message.slice(end + 4);
}

/** All values of a header, in order. */
export function valuesOf(message: string, name: string): string[] {
  const values: string[] = [];
  for (const line of headOf(message).split("\r\n").slice(1)) {
    const colon = line.indexOf(":");
    if (line.slice(0, colon).toLowerCase() === name.toLowerCase()) {
      values.push(line.slice(colon + 1).trim());
    }
  }
  return values;
}
