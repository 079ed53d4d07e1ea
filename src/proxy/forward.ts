/**
 * Forwarding, and the relay to targets that speak HTTP/1.1 (relay.ts has what is the same for all).
 *
 * One write for what arrived in one read, no promise and no object a chunk.
 */

import type { Clock, Runtime } from "../runtime/runtime.ts";
import type { ClientSide, Framing } from "./client_side.ts";
import { Deadlines } from "./deadlines.ts";
import type { Forward, ForwardOptions } from "./exchange.ts";
import { H2Forwarder } from "./h2_forward.ts";
import {
  bit,
  CONTENT_LENGTH,
  crossingTrailers,
  EXPECT,
  type Head,
  HOP_BY_HOP,
  HOST,
  X_REQUEST_ID,
} from "./head.ts";
import { Relay, type RelayJob, type RelaySetup } from "./relay.ts";
import type { Target } from "./target.ts";
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
      new H1Relay(engine, { exchange: client, lease, options, resolve }).start();
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
class Engine implements RelaySetup {
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
      clock: runtime.clock,
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

class H1Relay extends Relay implements UpstreamUser {
  readonly #engine: Engine;
  readonly #pool: UpstreamPool;
  #upstream: UpstreamConnection | undefined;
  /** Text that waits for body bytes, to leave in one write with them. */
  #before = "";
  /** The whole body, as long as it may have to be sent again. */
  #replay: Uint8Array | undefined;
  #tunnel: Tunnel | undefined;

  constructor(engine: Engine, job: RelayJob) {
    super(engine, job);
    this.#engine = engine;
    this.#pool = engine.pool(job.lease.target);
    this.#replay = job.options.body;
    if (job.exchange.upgrade !== undefined) this.mayRepeat = false;
  }

  protected begin(): void {
    // A connection that changes its protocol is spent: it starts as a fresh one, which is never stale.
    const idle = this.exchange.upgrade === undefined ? this.#pool.take(this.mayRepeat) : undefined;
    if (idle === undefined) this.connect();
    else this.#send(idle);
  }

  protected async open(timeoutMs: number): Promise<() => void> {
    const connection = await this.#pool.connect(timeoutMs);
    return () => {
      if (this.done) connection.destroy();
      else this.#send(connection);
    };
  }

  protected letGo(isWhole: boolean): void {
    const upstream = this.#upstream;
    this.#upstream = undefined;
    if (upstream === undefined || this.#tunnel !== undefined) return;
    if (isWhole) upstream.finish(true);
    else upstream.destroy();
  }

  protected waitUntil(deadlineMs: number): void {
    if (this.#upstream !== undefined) this.#upstream.deadlineMs = deadlineMs;
  }

  protected pauseAnswer(): void {
    this.#upstream?.pause();
  }

  protected resumeAnswer(): void {
    this.#upstream?.resume();
  }

  // ------------------------------------------------------------------------------- the request

  #send(connection: UpstreamConnection): void {
    const { exchange } = this;
    this.#upstream = connection;
    connection.begin(this, exchange.method, exchange.upgrade !== undefined);
    this.waitForFirstByte();
    const text = this.#requestHead();
    const body = this.#replay;
    if (body !== undefined) {
      if (!connection.writeAround(text, body, "")) this.pauseRequest();
    } else if (this.requestEnded) {
      connection.write(text);
    } else {
      this.#before = text;
      exchange.resumeRequest();
    }
  }

  #requestHead(): string {
    const { exchange } = this;
    const head = exchange.requestHead;
    let drop = HOP_BY_HOP | exchange.stampedNames;
    let extra = "";
    if (exchange.authority !== undefined) {
      drop |= bit(HOST);
      extra = `Host: ${exchange.authority}\r\n`;
    } else if (!head.has(HOST)) extra = `Host: ${this.lease.target.hostName}\r\n`;
    const { body } = this.options;
    if (body !== undefined) {
      drop |= bit(CONTENT_LENGTH) | bit(EXPECT);
      if (exchange.requestFraming !== "none") extra += `Content-Length: ${body.length}\r\n`;
    } else if (exchange.requestFraming === "chunked") extra += "Transfer-Encoding: chunked\r\n";
    if (exchange.upgrade !== undefined) {
      extra += `Connection: Upgrade\r\nUpgrade: ${exchange.upgrade}\r\n`;
    } else if (exchange.acceptsTrailers) extra += "TE: trailers\r\nConnection: TE\r\n";
    const target = this.options.target ?? exchange.target;
    return `${exchange.method} ${target} HTTP/1.1\r\n${
      head.crossing(drop)
    }${extra}${exchange.stamps}\r\n`;
  }

  onRequestChunk(chunk: Uint8Array): void {
    const upstream = this.#upstream;
    if (upstream === undefined || this.done) return;
    this.requestBytes += chunk.length;
    this.#keepForReplay(chunk);
    const isChunked = this.exchange.requestFraming === "chunked";
    const before = isChunked ? `${this.#before}${chunk.length.toString(16)}\r\n` : this.#before;
    this.#before = "";
    const hasRoom = upstream.writeAround(before, chunk, isChunked ? "\r\n" : "");
    this.waitForFirstByte();
    if (!hasRoom) this.pauseRequest();
  }

  /** A small body that came in one piece can be sent again; of anything larger nothing is kept. */
  #keepForReplay(chunk: Uint8Array): void {
    const { requestFraming, requestLength } = this.exchange;
    const isWhole = requestFraming === "length" && chunk.length === requestLength &&
      chunk.length <= MOST_REPLAY_BYTES;
    if (isWhole && this.mayRepeat) this.#replay = chunk.slice();
    else this.mayRepeat = false;
  }

  onRequestEnd(trailers: string): void {
    this.requestEnded = true;
    if (this.exchange.requestFraming !== "chunked") return;
    this.#before += `0\r\n${crossingTrailers(trailers)}\r\n`;
  }

  onRequestFlush(): void {
    if (this.#before === "" || this.done) return;
    const text = this.#before;
    this.#before = "";
    this.#upstream?.write(text);
  }

  onUpstreamDrain(): void {
    this.resumeRequest();
  }

  // -------------------------------------------------------------------------------- the answer

  onInterim(status: number, reason: string, head: Head): void {
    this.passInterim(status, reason, head);
  }

  onHead(status: number, reason: string, head: Head, framing: Framing, length: number): void {
    this.answered(status, reason, head, framing, length, "");
  }

  onChunk(chunk: Uint8Array): void {
    this.passOn(chunk);
  }

  onEnd(trailers: string): void {
    this.passEnd(trailers);
  }

  onFlush(): void {
    this.flushAnswer();
  }

  onSwitch(reason: string, head: Head, rest: Uint8Array): void {
    const upstream = this.#upstream;
    const asked = this.exchange.upgrade;
    const switched = head.find("upgrade")?.toLowerCase();
    if (upstream === undefined || asked === undefined || switched !== asked) {
      upstream?.destroy();
      return this.failed("upstream_bad_response", "a switch to another protocol than asked for");
    }
    this.status = 101;
    this.lease.kind = "tunnel";
    const tunnel = new Tunnel({
      ...this.#engine.tunnels,
      isWebSocket: asked === "websocket",
      ended: (reason, bytes) => {
        this.bytesToClient = bytes;
        this.exchange.closeTunnel(reason, bytes);
        this.finish(reason === undefined ? "complete" : "cut", 101, reason);
      },
    });
    this.#tunnel = tunnel;
    this.lease.warn = () => tunnel.warn();
    const extra =
      `Connection: Upgrade\r\nUpgrade: ${asked}\r\nx-request-id: ${this.exchange.requestId}\r\n`;
    this.options.onHead?.(101, head.lines());
    const drop = HOP_BY_HOP | bit(X_REQUEST_ID);
    const client = this.exchange.openTunnel(reason, head.crossing(drop) + extra, tunnel.client);
    tunnel.connect(client, upstream.enterTunnel(tunnel.upstream), rest);
  }

  // -------------------------------------------------------------------------------- the ends

  onUpstreamFailed(code: "upstream_reset" | "upstream_bad_response", reason: string): void {
    const upstream = this.#upstream;
    this.#upstream = undefined;
    if (this.done || upstream === undefined) return;
    const isStale = code === "upstream_reset" && upstream.uses > 0 && !upstream.reader.began;
    // Only a request that does no harm when it counts twice, and only whole (proxy rule 74).
    const isWhole = this.requestEnded && (this.requestBytes === 0 || this.#replay !== undefined);
    if (isStale && this.mayRepeat && isWhole && !this.exchange.answered) {
      this.mayRepeat = false;
      return this.connect();
    }
    this.failed(code, reason);
  }

  onUpstreamTimeout(): void {
    this.#upstream?.destroy();
    this.#upstream = undefined;
    this.timedOut();
  }

  protected override cut(reason: string): void {
    if (this.#tunnel === undefined) super.cut(reason);
    else if (!this.done) this.#tunnel.destroy(reason);
  }
}
