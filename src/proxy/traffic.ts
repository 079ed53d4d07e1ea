/**
 * The traffic listener: connections in, exchanges out to the services, one log line each.
 *
 * Mounted services are asked first-hand; everything else goes to a fetch-shaped app (the Hono app of
 * src/http). Why the mounts do not go through Hono as well: docs/performance.md has the figure.
 *
 * Over 400 lines with the options of everything that a listener can do, each with its meaning.
 */

import { BatonError } from "../errors.ts";
import type { Log } from "../observe/log.ts";
import type { Metrics } from "../observe/metrics.ts";
import type {
  Address,
  ByteSocket,
  Listener,
  ListenOptions,
  MessageHandlers,
  MessageParser,
  Runtime,
} from "../runtime/runtime.ts";
import type { TlsListener, TlsListenOptions, TlsPair } from "../runtime/tls_contract.ts";
import { AccessLog } from "./access_log.ts";
import { Deadlines } from "./deadlines.ts";
import type { Exchange, Forward } from "./exchange.ts";
import { createForward } from "./forward.ts";
import { H1Connection } from "./h1_connection.ts";
import { H2Connection } from "./h2_connection.ts";
import { isToken } from "./head.ts";
import { DEFAULT_LIMITS, type Limits } from "./limits.ts";
import { ALLOWED } from "./own_answer.ts";
import { pathGuard } from "./path.ts";
import { exchangeRequest } from "./request.ts";
import { Roster } from "./roster.ts";
import type { Routes, Service } from "./routes.ts";
import { StartHold } from "./start_hold.ts";
import type { Timeouts } from "./timeouts.ts";
import type { Served, ServedConnection, TrafficCore } from "./traffic_core.ts";
import { TrustedPeers } from "./trust.ts";

export interface TrafficOptions {
  readonly runtime: Runtime;
  readonly log: Log;
  readonly metrics: Metrics;
  readonly routes: Routes;
  readonly listen: ListenOptions;
  /** Speaks TLS, with HTTP/2 and HTTP/1.1 by ALPN. */
  readonly tls?: Pick<TlsListenOptions, "pair" | "minVersion">;
  readonly limits?: Partial<Limits>;
  readonly timeouts?: Partial<Timeouts>;
  /** Addresses, CIDR ranges, or "unix": whose forwarding headers are believed. */
  readonly trustedProxies?: readonly string[];
  /**
   * Counts exchanges in; undefined from it means that nothing is let in. `ownPaths` are answered
   * without it: whoever asks how we are must get an answer also then.
   */
  readonly lifecycle?: {
    admit(): (() => void) | undefined;
    /** False before anything is served (default true): tells apart why nothing is let in. */
    readonly draining?: boolean;
    /** Calls back when that changes. With it, requests that come too early wait for their service. */
    onChange?(listener: () => void): () => void;
  };
  /** Answers what no service is mounted for, and `ownPaths`. Without it: 404. */
  readonly appFetch?: (
    request: Request,
    env: { exchange: Exchange },
  ) => Response | Promise<Response>;
  /** Whether clients may speak HTTP/2 (default "always"). */
  readonly http2?: "always" | "never";
  /** Answers what `appFetch` would, in its place: for a listener whose app is elsewhere. */
  readonly ownService?: Service;
  /** Paths that are ours whatever is mounted (default /healthz and /readyz). */
  readonly ownPaths?: readonly string[];
  /** Paths that are 404 here whatever is mounted and however they are spelled (default none). */
  readonly hiddenPaths?: readonly string[];
  /** Writes a line for each exchange (default true). Metrics are kept either way. */
  readonly accessLog?: boolean;
  /** Adds `x-baton-generation` to answers of targets (default false). */
  readonly showGeneration?: boolean;
  /** Our name in `Via` (default: `baton-` and random letters, new for each process). */
  readonly pseudonym?: string;
  /** Protocols that may be switched to (default: websocket). */
  readonly upgrades?: readonly string[];
  /** Used instead of one of its own, so that several listeners share the connection pools. */
  readonly forward?: Forward;
  /** Counts connections for `limits.connections` together with other listeners. */
  readonly connectionCount?: ConnectionCount;
}

/** Connections of several listeners under one limit. */
export interface ConnectionCount {
  /** Counts one more, or returns false when there are `most` already. */
  take(most: number): boolean;
  give(): void;
}

/** What of the options is plain values: the same for each thread. */
export type TrafficSettings = Pick<
  TrafficOptions,
  | "trustedProxies"
  | "limits"
  | "timeouts"
  | "accessLog"
  | "showGeneration"
  | "upgrades"
  | "pseudonym"
  | "ownPaths"
  | "hiddenPaths"
  | "http2"
>;

export interface TrafficServer {
  readonly address: Address;
  /** The forwarder that the services use. */
  readonly forward: Forward;
  readonly connections: number;
  /** Exchanges that have begun and not ended. */
  readonly inflight: number;
  /** With `tls`: new handshakes get this certificate, connections that exist keep theirs. */
  replaceCertificate(pair: TlsPair): void;
  /** From now on every answer ends its connection. Connections are still accepted. */
  drain(): void;
  /** Stops accepting, closes idle connections; resolves when the last connection has ended. */
  close(): Promise<void>;
  /** Cuts what is left. */
  destroy(): void;
}

const SPARE_PARSERS = 64;

/** Starts the listener. Throws ListenFailed, and RangeError for a bad entry in `trustedProxies`. */
export async function startTraffic(options: TrafficOptions): Promise<TrafficServer> {
  const traffic = new Traffic(options);
  await traffic.listen();
  return traffic;
}

/** A name in `Via` that nobody else has. */
export function randomPseudonym({ random }: Pick<Runtime, "random">): string {
  return `baton-${hex(random.bytes(6))}`;
}

class Traffic implements TrafficServer, TrafficCore {
  readonly limits: Limits;
  readonly deadlines: Deadlines;
  readonly trusted: TrustedPeers;
  readonly pseudonym: string;
  readonly scheme: "http" | "https";
  readonly upgrades: ReadonlySet<string>;
  readonly latin1: Runtime["wire"]["latin1"];
  readonly clock: Runtime["clock"];
  readonly soon: Runtime["wire"]["soon"];
  readonly allowsHttp2: boolean;
  readonly forward: Forward;
  draining = false;
  inflight = 0;
  readonly #options: TrafficOptions;
  readonly #connections = new Roster<"place", ServedConnection>("place");
  readonly #parsers: SharedParser[] = [];
  readonly #accessLog: AccessLog;
  readonly #ownPaths: ReadonlySet<string>;
  readonly #isHidden: (target: string) => boolean;
  readonly #idPrefix: string;
  readonly #startHold = new StartHold({ after: (delayMs, action) => this.after(delayMs, action) });
  readonly #endOnChange: (() => void) | undefined;
  #lastId = 0;
  #dateSecond = 0;
  #dateLine = "";
  #listener: Listener | undefined;
  #tlsListener: TlsListener | undefined;
  #onEmpty: (() => void) | undefined;

  constructor(options: TrafficOptions) {
    const { runtime } = options;
    this.#options = options;
    this.limits = { ...DEFAULT_LIMITS, ...options.limits };
    this.deadlines = new Deadlines(runtime.clock);
    this.trusted = new TrustedPeers(options.trustedProxies ?? []);
    this.pseudonym = options.pseudonym ?? randomPseudonym(runtime);
    if (!isToken(this.pseudonym)) throw new RangeError(`no name for Via: ${this.pseudonym}`);
    this.upgrades = new Set(options.upgrades ?? ["websocket"]);
    this.latin1 = runtime.wire.latin1;
    this.clock = runtime.clock;
    this.soon = runtime.wire.soon;
    this.allowsHttp2 = options.http2 !== "never";
    this.scheme = options.tls === undefined ? "http" : "https";
    this.#ownPaths = new Set(options.ownPaths ?? ["/healthz", "/readyz"]);
    this.#isHidden = pathGuard(options.hiddenPaths ?? []);
    this.#idPrefix = hex(runtime.random.bytes(8));
    this.#accessLog = new AccessLog({
      log: options.log,
      metrics: options.metrics,
      writeLines: options.accessLog ?? true,
      now: () => this.now(),
    });
    this.forward = options.forward ?? createForward({
      runtime,
      deadlines: this.deadlines,
      ...(options.timeouts !== undefined && { timeouts: options.timeouts }),
      ...(options.showGeneration !== undefined && { showGeneration: options.showGeneration }),
    });
    this.#endOnChange = options.lifecycle?.onChange?.(() => this.#startHold.release());
    options.metrics.gauge("baton_connections", "Open client connections.").collect((gauge) =>
      gauge.set(this.#connections.size)
    );
  }

  async listen(): Promise<void> {
    const { runtime, listen, tls } = this.#options;
    if (tls === undefined) {
      this.#listener = await runtime.net.listen(listen, (socket) => this.#accept(socket));
      return;
    }
    const protocols = this.allowsHttp2 ? ["h2", "http/1.1"] : ["http/1.1"];
    const { connections } = this.limits;
    const options = {
      ...listen,
      ...tls,
      protocols,
      // As many may be in their handshake as are let in: who never ends it must not take them all.
      ...(connections > 0 && { mostSockets: 2 * connections }),
    };
    this.#tlsListener = await runtime.tls.listen(options, (socket, protocol) => {
      this.#accept(socket, protocol);
    });
    this.#listener = this.#tlsListener;
  }

  replaceCertificate(pair: TlsPair): void {
    this.#tlsListener?.replace(pair);
  }

  get address(): Address {
    return this.#listener?.address ?? this.#options.listen.address;
  }

  get connections(): number {
    return this.#connections.size;
  }

  /** A connection of any kind begins here; HTTP/1.1 is what it is taken for. */
  #accept(socket: ByteSocket, protocol = "http/1.1"): void {
    if (!this.#hasRoom()) return this.#refuseConnection(socket);
    if (protocol === "h2") return this.#addHttp2(socket, new Uint8Array(0));
    this.#connections.add(new H1Connection(this, socket));
  }

  #hasRoom(): boolean {
    const most = this.limits.connections;
    if (most === 0) return true;
    const { connectionCount } = this.#options;
    return connectionCount === undefined
      ? this.#connections.size < most
      : connectionCount.take(most);
  }

  /** It is not counted, so it must not stay for longer than the answer takes. */
  #refuseConnection(socket: ByteSocket): void {
    const cancel = this.after(this.limits.lingerMs, () => socket.destroy());
    socket.handle({ data: () => {}, end: () => {}, drain: () => {}, close: cancel });
    const body = '{"error":{"code":"overloaded","message":"too many connections"}}\n';
    socket.write(
      "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n" +
        `connection: close\r\ncontent-length: ${body.length}\r\n\r\n${body}`,
    );
    socket.end();
  }

  // --------------------------------------------------------------------------- TrafficCore

  now(): number {
    return this.#options.runtime.clock.monotonic();
  }

  after(delayMs: number, action: () => void): () => void {
    return this.#options.runtime.clock.after(delayMs, action);
  }

  mintRequestId(): string {
    this.#lastId += 1;
    return `${this.#idPrefix}-${this.#lastId.toString(36)}`;
  }

  dateLine(): string {
    const now = this.#options.runtime.clock.now();
    const second = Math.floor(now / 1000);
    if (second !== this.#dateSecond) {
      this.#dateSecond = second;
      this.#dateLine = `date: ${new Date(now).toUTCString()}\r\n`;
    }
    return this.#dateLine;
  }

  takeParser(handlers: MessageHandlers): MessageParser {
    const shared = this.#parsers.pop() ?? new SharedParser(this.#options.runtime);
    shared.owner = handlers;
    shared.parser.reset();
    this.#taken.set(shared.parser, shared);
    return shared.parser;
  }

  readonly #taken = new Map<MessageParser, SharedParser>();

  returnParser(parser: MessageParser): void {
    const shared = this.#taken.get(parser);
    if (shared === undefined) return;
    this.#taken.delete(parser);
    shared.owner = undefined;
    if (this.#parsers.length < SPARE_PARSERS) this.#parsers.push(shared);
    else parser.free();
  }

  begun(_exchange: Served): void {
    this.inflight += 1;
  }

  dispatch(exchange: Served): void {
    this.inflight += 1;
    if (this.#ownPaths.has(exchange.path)) return void this.#answerOurselves(exchange);
    if (this.#isHidden(exchange.target)) {
      return exchange.fail(new BatonError("not_found", "there is nothing at this path"));
    }
    this.#admit(exchange);
  }

  /** `holdMs`: how long its service lets it wait, once that was asked for. */
  #admit(exchange: Served, holdMs?: number): void {
    const { lifecycle } = this.#options;
    if (lifecycle !== undefined) {
      const release = lifecycle.admit();
      if (release === undefined) return this.#notAdmitted(exchange, holdMs);
      exchange.release = release;
    }
    this.#route(exchange);
  }

  /** Before the host serves anything a request waits, if its service has hope for it. */
  #notAdmitted(exchange: Served, knownMs: number | undefined): void {
    const { lifecycle, routes } = this.#options;
    if (lifecycle?.draining !== false) {
      return refuse(exchange, new BatonError("draining", "shutting down", { retryAfterS: 1 }));
    }
    const route = this.#endOnChange === undefined ? undefined : routes.match(exchange.path);
    const holdMs = knownMs ?? route?.service.startHoldMs?.(exchange, route.mount) ?? 0;
    if (typeof holdMs === "number") return this.#waitForStart(exchange, holdMs);
    void holdMs.then((ms) => {
      // It may serve by now, or drain.
      if (!exchange.finished) this.#admit(exchange, ms);
    });
  }

  #waitForStart(exchange: Served, holdMs: number): void {
    const early = (): void =>
      refuse(exchange, new BatonError("not_ready", "nothing is served yet", { retryAfterS: 1 }));
    const sinceMs = this.now();
    const held = this.#startHold.wait(exchange, holdMs);
    if (held === undefined) return early();
    void held.then((end) => {
      if (exchange.finished) return;
      exchange.note({ heldMs: Math.round(this.now() - sinceMs) });
      if (end === "released") this.#admit(exchange);
      else early();
    });
  }

  #route(exchange: Served): void {
    if (exchange.target === "*") return answerOptions(exchange);
    const route = this.#options.routes.match(exchange.path);
    if (route === undefined) return void this.#answerOurselves(exchange);
    exchange.timeouts = route.timeouts;
    try {
      const handled = route.service.handle(exchange, this.forward, route.mount);
      if (handled !== undefined) void this.#watch(exchange, handled);
    } catch (error) {
      this.#failed(exchange, error);
    }
  }

  async #watch(exchange: Served, handled: Promise<void>): Promise<void> {
    try {
      await handled;
      if (!exchange.answered && !exchange.finished && exchange.sink === undefined) {
        throw new Error("the service did not answer");
      }
    } catch (error) {
      this.#failed(exchange, error);
    }
  }

  #failed(exchange: Served, error: unknown): void {
    if (!(error instanceof BatonError)) {
      this.#options.log.error("service_failed", { request_id: exchange.requestId, error });
    }
    exchange.fail(error);
  }

  async #answerOurselves(exchange: Served): Promise<void> {
    const { appFetch, ownService } = this.#options;
    try {
      if (ownService !== undefined) return await ownService.handle(exchange, this.forward, "/");
      if (appFetch === undefined) throw new BatonError("not_found", "nothing is served here");
      exchange.respond(await appFetch(exchangeRequest(exchange), { exchange }));
    } catch (error) {
      this.#failed(exchange, error);
    }
  }

  finished(exchange: Served): void {
    this.inflight -= 1;
    this.#accessLog.write(exchange);
  }

  becameHttp2(connection: ServedConnection, socket: ByteSocket, early: Uint8Array): void {
    this.#connections.delete(connection);
    this.#addHttp2(socket, early);
  }

  #addHttp2(socket: ByteSocket, early: Uint8Array): void {
    const connection = new H2Connection(this, socket);
    this.#connections.add(connection);
    connection.begin(early);
    if (this.draining) connection.announceEnd();
  }

  closed(connection: ServedConnection): void {
    const wasOpen = this.#connections.delete(connection);
    if (wasOpen && this.limits.connections > 0) this.#options.connectionCount?.give();
    if (this.#connections.size === 0) this.#onEmpty?.();
  }

  // ------------------------------------------------------------------------- TrafficServer

  drain(): void {
    this.draining = true;
    for (const connection of [...this.#connections]) connection.announceEnd?.();
  }

  async close(): Promise<void> {
    this.draining = true;
    this.#endOnChange?.();
    await this.#listener?.close();
    for (const connection of [...this.#connections]) connection.shut();
    if (this.#connections.size > 0) await new Promise<void>((resolve) => (this.#onEmpty = resolve));
    for (const shared of this.#parsers.splice(0)) shared.parser.free();
  }

  destroy(): void {
    for (const connection of [...this.#connections]) connection.cut();
  }
}

/** A parser whose callbacks go to whoever has it at the time. */
class SharedParser {
  owner: MessageHandlers | undefined;
  readonly parser: MessageParser;

  constructor(runtime: Pick<Runtime, "wire">) {
    this.parser = runtime.wire.messageParser("request", {
      head: (head) => this.owner?.head(head),
      body: (chunk) => this.owner?.body(chunk),
      end: (trailers) => this.owner?.end(trailers),
    });
  }
}

function refuse(exchange: Served, error: BatonError): void {
  exchange.keepAlive = false;
  exchange.fail(error);
}

function answerOptions(exchange: Served): void {
  exchange.respond(new Response(null, { status: 204, headers: { allow: ALLOWED } }));
}

function hex(bytes: Uint8Array): string {
  let text = "";
  for (const byte of bytes) text += byte.toString(16).padStart(2, "0");
  return text;
}
