/**
 * A ZeroMQ socket: one endpoint, connected or bound, that comes back after every failure.
 *
 * A connecting socket has one connection at a time and tries again with a jittered, growing wait; a
 * bound one accepts a bounded number of peers. Nothing is queued while there is no connection.
 */

import { messageOf } from "../errors.ts";
import type { Log } from "../observe/log.ts";
import type { ByteSocket, Clock, Listener, Net, Random } from "../runtime/runtime.ts";
import { type SocketType, ZmtpConnection, type ZmtpLimits } from "./zmtp.ts";
import { parseZmqEndpoint } from "./zmq_endpoint.ts";

export interface ZmqSocketOptions {
  readonly net: Net;
  readonly clock: Clock;
  readonly random: Random;
  readonly log: Log;
  readonly type: SocketType;
  /** `tcp://...` or `ipc://...`. */
  readonly endpoint: string;
  /** Bind instead of connecting; a host of `*` always binds. */
  readonly bind?: boolean;
  readonly limits?: Partial<ZmtpLimits>;
  readonly reconnect?: Partial<ReconnectLimits>;
  readonly handlers: ZmqSocketHandlers;
}

export interface ReconnectLimits {
  readonly connectTimeoutMs: number;
  /** First wait before connecting again; doubles each time up to the most. */
  readonly firstMs: number;
  readonly mostMs: number;
  /** Peers that a bound socket accepts at a time. */
  readonly maxPeers: number;
}

const RECONNECT_LIMITS: ReconnectLimits = {
  connectTimeoutMs: 5_000,
  firstMs: 100,
  mostMs: 5_000,
  maxPeers: 64,
};

export interface ZmqSocketHandlers {
  message(frames: Uint8Array[], peer: ZmtpConnection): void;
  /** A peer is connected and the handshake done. */
  up?(peer: ZmtpConnection): void;
  /** A peer is gone, or could not be reached; a new try follows by itself. */
  down?(reason: string, peer: ZmtpConnection | undefined): void;
  subscription?(isWanted: boolean, prefix: Uint8Array, peer: ZmtpConnection): void;
}

export class ZmqSocket {
  readonly #options: ZmqSocketOptions;
  readonly #reconnect: ReconnectLimits;
  readonly #peers = new Set<ZmtpConnection>();
  readonly #bound = Promise.withResolvers<Listener["address"]>();
  #listener: Listener | undefined;
  #isClosed = false;
  #failures = 0;
  #cancelRetry: (() => void) | undefined;
  #lastError: string | undefined;

  /** Starts at once. Throws `BadEndpoint`. */
  constructor(options: ZmqSocketOptions) {
    this.#options = options;
    this.#reconnect = { ...RECONNECT_LIMITS, ...options.reconnect };
    const { address, isWildcard } = parseZmqEndpoint(options.endpoint, options.bind);
    if (options.bind === true || isWildcard) void this.#bind(address);
    else void this.#connect(address);
  }

  /** Connected peers. */
  get peers(): ReadonlySet<ZmtpConnection> {
    return this.#peers;
  }

  /** Why there is no connection, or why the last one ended. */
  get lastError(): string | undefined {
    return this.#lastError;
  }

  /** Where a bound socket listens, as soon as it does. */
  get bound(): Promise<Listener["address"]> {
    return this.#bound.promise;
  }

  /** Ends all connections and tries no more. Resolves when a bound port is free. */
  async close(): Promise<void> {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#cancelRetry?.();
    for (const peer of [...this.#peers]) peer.close();
    await this.#listener?.close();
  }

  async #connect(address: Listener["address"]): Promise<void> {
    try {
      const socket = await this.#options.net.connect(address, {
        timeoutMs: this.#reconnect.connectTimeoutMs,
      });
      if (this.#isClosed) {
        socket.handle(DEAF);
        socket.destroy();
        return;
      }
      this.#adopt(socket, () => {
        this.#retry(() => void this.#connect(address));
      });
    } catch (error) {
      this.#failed(error, undefined);
      this.#retry(() => void this.#connect(address));
    }
  }

  async #bind(address: Listener["address"]): Promise<void> {
    try {
      const listener = await this.#options.net.listen({ address }, (socket) => {
        if (this.#isClosed || this.#peers.size >= this.#reconnect.maxPeers) {
          socket.handle(DEAF);
          socket.destroy();
          return;
        }
        this.#adopt(socket, () => {});
      });
      if (this.#isClosed) await listener.close();
      this.#listener = listener;
      this.#bound.resolve(listener.address);
    } catch (error) {
      this.#failed(error, undefined);
      this.#retry(() => void this.#bind(address));
    }
  }

  #adopt(socket: ByteSocket, ended: () => void): void {
    const { clock, type, limits, handlers } = this.#options;
    const connection = new ZmtpConnection(
      socket,
      { clock, type, ...(limits === undefined ? {} : { limits }) },
      {
        ready: () => {
          this.#failures = 0;
          this.#lastError = undefined;
          handlers.up?.(connection);
        },
        message: (frames) => handlers.message(frames, connection),
        subscription: (isWanted, prefix) => handlers.subscription?.(isWanted, prefix, connection),
        closed: (error) => {
          this.#peers.delete(connection);
          if (this.#isClosed) return;
          this.#failed(error ?? new Error("the connection ended"), connection);
          ended();
        },
      },
    );
    this.#peers.add(connection);
  }

  #failed(error: unknown, peer: ZmtpConnection | undefined): void {
    if (this.#isClosed) return;
    const reason = messageOf(error);
    // An outage is logged once, however often it is tried.
    if (this.#failures === 0) {
      const { endpoint, type } = this.#options;
      this.#options.log.warn("zmq_connection_lost", { endpoint, type, reason });
    }
    this.#lastError = reason;
    this.#options.handlers.down?.(reason, peer);
  }

  #retry(again: () => void): void {
    if (this.#isClosed) return;
    const { firstMs, mostMs } = this.#reconnect;
    const waitMs = Math.min(mostMs, firstMs * 2 ** Math.min(this.#failures, 16)) *
      (0.5 + this.#options.random.number() / 2);
    this.#failures += 1;
    this.#cancelRetry = this.#options.clock.after(waitMs, again);
  }
}

const DEAF = { data: () => {}, end: () => {}, drain: () => {}, close: () => {} };
