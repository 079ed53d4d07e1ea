/**
 * Moves one request to the target of a lease, and the answer back.
 *
 * Bytes go through as they come: one write for what arrived in one read, no promise and no object a
 * chunk, each side paused while the other cannot take more. The lease is released once, before the
 * promise of `Forward` resolves, on every path.
 *
 * Over 400 lines because it is one state machine over two connections: what either side may do at any
 * moment is read in one place.
 */

import { BatonError } from "../errors.ts";
import { type Clock, ConnectFailed, type Runtime } from "../runtime/runtime.ts";
import type { ClientSide, Framing, RequestSink } from "./client_side.ts";
import { Deadlines } from "./deadlines.ts";
import type { Forward, ForwardOptions, ForwardOutcome } from "./exchange.ts";
import { H2Forwarder } from "./h2_forward.ts";
import {
  bit,
  CONTENT_LENGTH,
  DATE,
  EXPECT,
  type Head,
  HOP_BY_HOP,
  HOST,
  X_BATON_GENERATION,
  X_REQUEST_ID,
} from "./head.ts";
import { CONNECT_PAUSES_MS, IDEMPOTENT } from "./retry_rules.ts";
import type { Lease, Target } from "./target.ts";
import { DEFAULT_TIMEOUTS, type Timeouts } from "./timeouts.ts";
import { Tunnel, type TunnelOptions } from "./tunnel.ts";
import {
  UpstreamConnection,
  type UpstreamOptions,
  UpstreamPool,
  type UpstreamUser,
} from "./upstream.ts";

export interface ForwardSetup {
  readonly runtime: Pick<Runtime, "net" | "wire" | "clock">;
  readonly timeouts?: Partial<Timeouts>;
  /** How long an idle connection to a target is kept (default 4 s; children allow 5 s and more). */
  readonly idleConnectionMs?: number;
  /** Idle connections kept for each target (default 256). */
  readonly mostIdleConnections?: number;
  /** Longest header section of an answer (default 64 KiB). */
  readonly answerHeadBytes?: number;
  /** Connects tried before the request fails with 502 (default 3). */
  readonly connectTries?: number;
  /** Adds `x-baton-generation: <version>#<generation>` to answers. */
  readonly showGeneration?: boolean;
  /** How long a side of a tunnel may be silent after the other's FIN (default 30 s). */
  readonly halfClosedMs?: number;
  readonly deadlines?: Deadlines;
}

const MOST_REPLAY_BYTES = 65536;

/** One forwarder, with the connection pools of all targets. */
export function createForward(setup: ForwardSetup): Forward {
  const engine = new Engine(setup);
  return (exchange, lease, given) => {
    const client = exchange as ClientSide;
    const options = withServiceTimeouts(client, given ?? NO_OPTIONS);
    if (lease.target.protocol === "h2c") return engine.http2.forward(client, lease, options);
    return new Promise((resolve) => {
      new Relay(engine, client, lease, options, resolve).start();
    });
  };
}

const NO_OPTIONS: ForwardOptions = {};

/** What the service says at the call counts first, then what its configuration says. */
function withServiceTimeouts(client: ClientSide, options: ForwardOptions): ForwardOptions {
  const { timeouts } = client;
  if (timeouts === undefined) return options;
  return { ...options, timeouts: { ...timeouts, ...options.timeouts } };
}

/** What all relays share. */
class Engine {
  readonly clock: Clock;
  readonly timeouts: Timeouts;
  readonly connectTries: number;
  readonly showGeneration: boolean;
  /** For targets that speak HTTP/2. */
  readonly http2: H2Forwarder;
  readonly tunnels: Pick<TunnelOptions, "deadlines" | "now" | "halfClosedMs">;
  readonly #pools = new WeakMap<Target, UpstreamPool>();
  readonly #upstream: UpstreamOptions;

  constructor(setup: ForwardSetup) {
    const { runtime } = setup;
    this.clock = runtime.clock;
    this.timeouts = { ...DEFAULT_TIMEOUTS, ...setup.timeouts };
    this.connectTries = setup.connectTries ?? 3;
    this.showGeneration = setup.showGeneration ?? false;
    const deadlines = setup.deadlines ?? new Deadlines(runtime.clock);
    const now = () => runtime.clock.monotonic();
    this.tunnels = { deadlines, now, halfClosedMs: setup.halfClosedMs ?? 30_000 };
    this.http2 = new H2Forwarder({
      runtime,
      deadlines,
      timeouts: this.timeouts,
      connectTries: this.connectTries,
      showGeneration: this.showGeneration,
      idleMs: setup.idleConnectionMs ?? 4000,
      headLimitBytes: setup.answerHeadBytes ?? 65536,
    });
    this.#upstream = {
      net: runtime.net,
      latin1: runtime.wire.latin1,
      deadlines,
      now,
      idleMs: setup.idleConnectionMs ?? 4000,
      mostIdle: setup.mostIdleConnections ?? 256,
      headLimitBytes: setup.answerHeadBytes ?? 65536,
    };
  }

  pool(target: Target): UpstreamPool {
    let pool = this.#pools.get(target);
    if (pool === undefined) {
      pool = new UpstreamPool(target, this.#upstream);
      this.#pools.set(target, pool);
    }
    return pool;
  }
}

class Relay implements RequestSink, UpstreamUser {
  readonly #engine: Engine;
  readonly #exchange: ClientSide;
  readonly #lease: Lease;
  readonly #options: ForwardOptions;
  readonly #resolve: (outcome: ForwardOutcome) => void;
  readonly #pool: UpstreamPool;
  #upstream: UpstreamConnection | undefined;
  /** Text that waits for body bytes, to leave in one write with them. */
  #before = "";
  #requestEnded = false;
  #requestBytes = 0;
  /** The whole body, as long as it may have to be sent again. */
  #replay: Uint8Array | undefined;
  #mayRepeat: boolean;
  #tries = 0;
  #requestPaused = false;
  #answerPaused = false;
  #answerEnded = false;
  #bytesToClient = 0;
  #status = 0;
  #done = false;

  constructor(
    engine: Engine,
    exchange: ClientSide,
    lease: Lease,
    options: ForwardOptions,
    resolve: (outcome: ForwardOutcome) => void,
  ) {
    this.#engine = engine;
    this.#exchange = exchange;
    this.#lease = lease;
    this.#options = options;
    this.#resolve = resolve;
    this.#pool = engine.pool(lease.target);
    this.#replay = options.body;
    this.#requestEnded = options.body !== undefined || exchange.requestComplete;
    this.#mayRepeat = IDEMPOTENT.has(exchange.method) && exchange.upgrade === undefined;
  }

  start(): void {
    const { target } = this.#lease;
    this.#exchange.note(target.logFields);
    if (this.#exchange.finished) return this.#finish("client_closed", 499);
    this.#lease.cut = (reason) => this.#cut(reason);
    this.#exchange.attach(this);
    // A connection that changes its protocol is spent: it starts as a fresh one, which is never stale.
    const idle = this.#exchange.upgrade === undefined
      ? this.#pool.take(this.#mayRepeat)
      : undefined;
    if (idle === undefined) this.#connect();
    else this.#send(idle);
  }

  #connect(): void {
    const pauseMs = CONNECT_PAUSES_MS[Math.min(this.#tries, 2)] as number;
    if (pauseMs === 0) return void this.#tryConnect();
    const cancel = this.#engine.clock.after(pauseMs, () => {
      if (this.#done) return;
      this.#tryConnect();
    });
    this.#cancelPause = cancel;
  }

  #cancelPause: (() => void) | undefined;

  async #tryConnect(): Promise<void> {
    this.#tries += 1;
    const timeouts = this.#options.timeouts;
    let connection: UpstreamConnection;
    try {
      connection = await this.#pool.connect(
        timeouts?.connectMs ?? this.#engine.timeouts.connectMs,
      );
    } catch (error) {
      if (this.#done) return;
      this.#lease.target.reportConnectFailure(error);
      return this.#connectFailed(error);
    }
    if (this.#done) connection.destroy();
    else this.#send(connection);
  }

  #connectFailed(error: unknown): void {
    const isSlow = error instanceof ConnectFailed && error.reason === "timeout";
    const mayTry = this.#options.returnFailure !== true && !isSlow &&
      this.#tries < this.#engine.connectTries && !this.#lease.target.retired;
    if (mayTry) return this.#connect();
    const { label } = this.#lease.target;
    const why = error instanceof ConnectFailed ? error.reason : "other";
    if (isSlow) return this.#failed("upstream_timeout", `connect: no connection to ${label}`, true);
    this.#failed("upstream_connect_failed", `no connection to ${label} (${why})`, true);
  }

  // ------------------------------------------------------------------------------- the request

  #send(connection: UpstreamConnection): void {
    const exchange = this.#exchange;
    this.#upstream = connection;
    connection.begin(this, exchange.method, exchange.upgrade !== undefined);
    this.#waitForFirstByte();
    const text = this.#requestHead();
    const body = this.#replay;
    if (body !== undefined) {
      if (!connection.writeAround(text, body, "")) this.#requestPaused = true;
    } else if (this.#requestEnded) {
      connection.write(text);
    } else {
      this.#before = text;
      exchange.resumeRequest();
    }
  }

  #requestHead(): string {
    const exchange = this.#exchange;
    const head = exchange.requestHead;
    let drop = HOP_BY_HOP | exchange.stampedNames;
    let extra = "";
    if (exchange.authority !== undefined) {
      drop |= bit(HOST);
      extra = `Host: ${exchange.authority}\r\n`;
    } else if (!head.has(HOST)) extra = `Host: ${this.#lease.target.hostName}\r\n`;
    const body = this.#options.body;
    if (body !== undefined) {
      drop |= bit(CONTENT_LENGTH) | bit(EXPECT);
      if (exchange.requestFraming !== "none") extra += `Content-Length: ${body.length}\r\n`;
    } else if (exchange.requestFraming === "chunked") extra += "Transfer-Encoding: chunked\r\n";
    if (exchange.upgrade !== undefined) {
      extra += `Connection: Upgrade\r\nUpgrade: ${exchange.upgrade}\r\n`;
    } else if (exchange.acceptsTrailers) extra += "TE: trailers\r\nConnection: TE\r\n";
    const target = this.#options.target ?? exchange.target;
    return `${exchange.method} ${target} HTTP/1.1\r\n${
      head.crossing(drop)
    }${extra}${exchange.stamps}\r\n`;
  }

  onRequestChunk(chunk: Uint8Array): void {
    const upstream = this.#upstream;
    if (upstream === undefined || this.#done) return;
    this.#requestBytes += chunk.length;
    this.#keepForReplay(chunk);
    const isChunked = this.#exchange.requestFraming === "chunked";
    const before = isChunked ? `${this.#before}${chunk.length.toString(16)}\r\n` : this.#before;
    this.#before = "";
    const hasRoom = upstream.writeAround(before, chunk, isChunked ? "\r\n" : "");
    this.#waitForFirstByte();
    if (hasRoom) return;
    this.#requestPaused = true;
    this.#exchange.pauseRequest();
  }

  /** A small body that came in one piece can be sent again; of anything larger nothing is kept. */
  #keepForReplay(chunk: Uint8Array): void {
    const { requestFraming, requestLength } = this.#exchange;
    const isWhole = requestFraming === "length" && chunk.length === requestLength &&
      chunk.length <= MOST_REPLAY_BYTES;
    if (isWhole && this.#mayRepeat) this.#replay = chunk.slice();
    else this.#mayRepeat = false;
  }

  onRequestEnd(trailers: string): void {
    this.#requestEnded = true;
    if (this.#exchange.requestFraming === "chunked") this.#before += `0\r\n${trailers}\r\n`;
  }

  onRequestFlush(): void {
    if (this.#before === "" || this.#done) return;
    const text = this.#before;
    this.#before = "";
    this.#upstream?.write(text);
  }

  onUpstreamDrain(): void {
    if (!this.#requestPaused) return;
    this.#requestPaused = false;
    this.#waitForFirstByte();
    this.#exchange.resumeRequest();
  }

  #waitForFirstByte(): void {
    const ms = this.#options.timeouts?.firstByteMs ?? this.#engine.timeouts.firstByteMs;
    const upstream = this.#upstream;
    if (upstream === undefined || this.#status !== 0) return;
    upstream.deadlineMs = ms > 0 ? this.#engine.clock.monotonic() + ms : Infinity;
  }

  // -------------------------------------------------------------------------------- the answer

  onInterim(status: number, reason: string, head: Head): void {
    this.#exchange.inform(status, reason, head.crossing(HOP_BY_HOP));
  }

  onHead(status: number, reason: string, head: Head, framing: Framing, length: number): void {
    const exchange = this.#exchange;
    this.#status = status;
    let drop = HOP_BY_HOP;
    if (status === 204) drop |= bit(CONTENT_LENGTH);
    let extra = "";
    if (!head.has(X_REQUEST_ID)) extra = `x-request-id: ${exchange.requestId}\r\n`;
    if (this.#engine.showGeneration) {
      drop |= bit(X_BATON_GENERATION);
      const { version, generation } = this.#lease.target;
      extra += `x-baton-generation: ${version}#${generation}\r\n`;
    }
    if (framing === "chunked" || framing === "close") this.#lease.kind = "stream";
    this.#options.onHead?.(status, head.lines());
    exchange.startAnswer(
      status,
      reason,
      head.crossing(drop) + extra,
      framing,
      length,
      head.has(DATE),
    );
    this.#waitInside();
  }

  onChunk(chunk: Uint8Array): void {
    this.#bytesToClient += chunk.length;
    this.#options.onBody?.(chunk);
    this.#exchange.answerChunk(chunk);
  }

  onEnd(trailers: string): void {
    this.#answerEnded = true;
    this.#exchange.endAnswer(this.#exchange.acceptsTrailers ? trailers : "");
  }

  onFlush(): void {
    if (this.#done) return;
    if (this.#answerEnded) {
      if (this.#answerPaused) this.#upstream?.resume();
      // First, so that a request that waits behind this one finds the connection idle.
      this.#finish("complete", this.#status);
      return void this.#exchange.flushAnswer();
    }
    const hasRoom = this.#exchange.flushAnswer();
    if (this.#done) return;
    if (!hasRoom) {
      this.#answerPaused = true;
      this.#upstream?.pause();
      if (this.#upstream !== undefined && this.#status !== 0) this.#upstream.deadlineMs = Infinity;
    } else this.#waitInside();
  }

  onClientDrain(): void {
    if (!this.#answerPaused) return;
    this.#answerPaused = false;
    this.#waitInside();
    this.#upstream?.resume();
  }

  #waitInside(): void {
    const upstream = this.#upstream;
    if (upstream === undefined || this.#status === 0) return;
    const ms = this.#options.timeouts?.idleMs ?? this.#engine.timeouts.idleMs;
    if (ms > 0) upstream.deadlineMs = this.#engine.clock.monotonic() + ms;
    else upstream.deadlineMs = Infinity;
  }

  onSwitch(reason: string, head: Head, rest: Uint8Array): void {
    const upstream = this.#upstream;
    const asked = this.#exchange.upgrade;
    const switched = head.find("upgrade")?.toLowerCase();
    if (upstream === undefined || asked === undefined || switched !== asked) {
      upstream?.destroy();
      return this.#failed("upstream_bad_response", "a switch to another protocol than asked for");
    }
    this.#status = 101;
    this.#lease.kind = "tunnel";
    const tunnel = new Tunnel({
      ...this.#engine.tunnels,
      isWebSocket: asked === "websocket",
      ended: (reason, bytes) => {
        this.#bytesToClient = bytes;
        this.#exchange.closeTunnel(reason, bytes);
        this.#finish(reason === undefined ? "complete" : "cut", 101, reason);
      },
    });
    this.#tunnel = tunnel;
    this.#lease.warn = () => tunnel.warn();
    const extra =
      `Connection: Upgrade\r\nUpgrade: ${asked}\r\nx-request-id: ${this.#exchange.requestId}\r\n`;
    this.#options.onHead?.(101, head.lines());
    const drop = HOP_BY_HOP | bit(X_REQUEST_ID);
    const client = this.#exchange.openTunnel(reason, head.crossing(drop) + extra, tunnel.client);
    tunnel.connect(client, upstream.enterTunnel(tunnel.upstream), rest);
  }

  #tunnel: Tunnel | undefined;

  // -------------------------------------------------------------------------------- the ends

  onUpstreamFailed(code: "upstream_reset" | "upstream_bad_response", reason: string): void {
    const upstream = this.#upstream;
    this.#upstream = undefined;
    if (this.#done || upstream === undefined) return;
    const isStale = code === "upstream_reset" && upstream.uses > 0 && !upstream.reader.began;
    // Only a request that does no harm when it counts twice, and only whole (proxy rule 74).
    const isWhole = this.#requestEnded && (this.#requestBytes === 0 || this.#replay !== undefined);
    if (isStale && this.#mayRepeat && isWhole && !this.#exchange.answered) {
      this.#mayRepeat = false;
      return this.#connect();
    }
    this.#failed(code, reason);
  }

  onUpstreamTimeout(): void {
    this.#upstream?.destroy();
    this.#upstream = undefined;
    const where = this.#status === 0 ? "first_byte" : "idle";
    this.#failed("upstream_timeout", `${where}: no byte from the target in time`);
  }

  #failed(
    code:
      | "upstream_reset"
      | "upstream_bad_response"
      | "upstream_timeout"
      | "upstream_connect_failed",
    message: string,
    nothingSent = false,
  ): void {
    if (this.#done) return;
    const exchange = this.#exchange;
    if (this.#status !== 0 && exchange.answered) {
      exchange.breakAnswer(code);
    } else if (this.#options.returnFailure === true && !exchange.answered) {
      const again = nothingSent && this.#requestBytes === 0;
      exchange.detach();
      return this.#finish("upstream_failed", 0, code, again);
    } else {
      exchange.fail(new BatonError(code, message, { detail: { request_id: exchange.requestId } }));
    }
    const status = this.#status !== 0 ? this.#status : code === "upstream_timeout" ? 504 : 502;
    this.#finish("upstream_failed", status, code, nothingSent);
  }

  onClientGone(): void {
    if (this.#done) return;
    this.#finish("client_closed", 499);
  }

  #cut(reason: string): void {
    if (this.#done) return;
    if (this.#tunnel !== undefined) return this.#tunnel.destroy(reason);
    const exchange = this.#exchange;
    if (exchange.answered) exchange.breakAnswer(reason);
    else exchange.fail(new BatonError("draining", `cut: ${reason}`));
    this.#finish("cut", exchange.answered ? this.#status : 503, reason);
  }

  #finish(
    result: ForwardOutcome["result"],
    status: number,
    reason?: string,
    retriable = false,
  ): void {
    if (this.#done) return;
    this.#done = true;
    this.#cancelPause?.();
    const upstream = this.#upstream;
    this.#upstream = undefined;
    if (upstream !== undefined && this.#tunnel === undefined) {
      if (result === "complete" && this.#requestEnded) upstream.finish(true);
      else upstream.destroy();
    }
    const isCut = result === "cut" || (result === "upstream_failed" && !retriable);
    this.#lease.release(isCut ? reason ?? result : undefined);
    const outcome: ForwardOutcome = {
      result,
      status,
      retriable,
      bytesToClient: this.#bytesToClient,
    };
    this.#resolve(reason === undefined ? outcome : { ...outcome, reason });
  }
}
