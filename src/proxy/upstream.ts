/**
 * Connections to targets, and the idle ones of each target.
 *
 * An idle connection is closed before the child would close it, at once when its target retires,
 * and at the first sign that the child has closed its side or talks out of turn.
 */

import type { Address, ByteSocket, Net, SocketHandlers } from "../runtime/runtime.ts";
import { AnswerReader, type AnswerSink } from "./answer_reader.ts";
import type { TunnelEnd } from "./client_side.ts";
import type { Deadlines, Timed } from "./deadlines.ts";
import type { Latin1 } from "./head.ts";
import type { Target } from "./target.ts";

/** Whoever uses a connection for one request. */
export interface UpstreamUser extends AnswerSink {
  /** All bytes of one read have been pushed. */
  onFlush(): void;
  onUpstreamDrain(): void;
  /** The answer can no longer become complete. */
  onUpstreamFailed(code: "upstream_reset" | "upstream_bad_response", reason: string): void;
  onUpstreamTimeout(): void;
}

const IDLE = 0;
const BUSY = 1;
const RAW = 2;
const CLOSED = 3;

export class UpstreamConnection implements SocketHandlers, Timed {
  deadlineMs = Infinity;
  deadlinePlace = -1;
  /** Requests that were sent on it before the present one. */
  uses = 0;
  readonly #socket: ByteSocket;
  readonly #pool: UpstreamPool;
  readonly #reader: AnswerReader;
  #user: UpstreamUser | undefined;
  #tunnel: TunnelEnd | undefined;
  #state = BUSY;

  constructor(socket: ByteSocket, pool: UpstreamPool) {
    this.#socket = socket;
    this.#pool = pool;
    this.#reader = new AnswerReader(pool.latin1, pool.headLimitBytes);
    pool.deadlines.add(this);
    socket.handle(this);
  }

  get reader(): AnswerReader {
    return this.#reader;
  }

  get open(): boolean {
    return this.#state !== CLOSED;
  }

  /** Begins a request; its bytes follow through `write`. */
  begin(user: UpstreamUser, method: string, mayUpgrade: boolean): void {
    this.#user = user;
    this.#state = BUSY;
    this.#reader.start(method, mayUpgrade);
  }

  write(text: string): boolean {
    return this.#socket.write(text);
  }

  writeAround(before: string, bytes: Uint8Array, after: string): boolean {
    return this.#socket.writeAround(before, bytes, after);
  }

  pause(): void {
    this.#socket.pause();
  }

  resume(): void {
    this.#socket.resume();
  }

  /** The request is over: the connection goes back to the idle ones if it may. */
  finish(reusable: boolean): void {
    this.#user = undefined;
    this.deadlineMs = Infinity;
    if (this.#state !== BUSY) return;
    const may = reusable && this.#reader.done && this.#reader.keepAlive && !this.#reader.excess;
    this.uses += 1;
    if (may && this.#pool.keep(this)) this.#state = IDLE;
    else this.destroy();
  }

  /** Hands the raw connection over after a 101. */
  enterTunnel(end: TunnelEnd): ByteSocket {
    this.#state = RAW;
    this.#user = undefined;
    this.#tunnel = end;
    this.deadlineMs = Infinity;
    return this.#socket;
  }

  destroy(): void {
    if (this.#state === CLOSED) return;
    this.#leave();
    this.#user = undefined;
    this.#socket.destroy();
  }

  #leave(): void {
    if (this.#state === IDLE) this.#pool.forget(this);
    this.#state = CLOSED;
    this.#pool.closed(this);
  }

  data(chunk: Uint8Array): void {
    if (this.#state === RAW) return this.#tunnel?.onTunnelData(chunk);
    const user = this.#user;
    // Bytes that nobody asked for: whatever they are, they must not become the next answer.
    if (user === undefined) return this.destroy();
    this.#reader.push(chunk, user);
    if (this.#state === RAW) return;
    if (this.#reader.error !== undefined) {
      return this.#fail("upstream_bad_response", this.#reader.error);
    }
    user.onFlush();
  }

  end(): void {
    if (this.#state === RAW) return this.#tunnel?.onTunnelFin();
    const user = this.#user;
    if (user === undefined) {
      if (this.#state === IDLE) this.#pool.closedByTarget();
      return this.destroy();
    }
    if (this.#reader.finish(user)) {
      user.onFlush();
      return this.destroy();
    }
    this.#fail("upstream_reset", "the target closed the connection");
  }

  drain(): void {
    if (this.#state === RAW) return this.#tunnel?.onTunnelDrain();
    this.#user?.onUpstreamDrain();
  }

  close(error?: Error): void {
    if (this.#state === RAW) {
      this.#leave();
      return this.#tunnel?.onTunnelClosed();
    }
    if (this.#state === CLOSED) return;
    if (this.#state === IDLE) this.#pool.closedByTarget();
    this.#fail("upstream_reset", error === undefined ? "the connection was closed" : error.message);
  }

  #fail(code: "upstream_reset" | "upstream_bad_response", reason: string): void {
    const user = this.#user;
    // Most likely it was closing as the request came.
    if (this.uses > 0 && !this.#reader.began) this.#pool.closedByTarget();
    this.destroy();
    user?.onUpstreamFailed(code, reason);
  }

  onDeadline(): void {
    this.deadlineMs = Infinity;
    if (this.#user === undefined) this.destroy();
    else this.#user.onUpstreamTimeout();
  }
}

export interface UpstreamOptions {
  readonly net: Net;
  readonly latin1: Latin1;
  readonly deadlines: Deadlines;
  readonly now: () => number;
  /** How long an idle connection is kept; must be less than what the children allow. */
  readonly idleMs: number;
  readonly mostIdle: number;
  readonly headLimitBytes: number;
}

/** The connections of one target. */
export class UpstreamPool {
  readonly latin1: Latin1;
  readonly deadlines: Deadlines;
  readonly headLimitBytes: number;
  readonly #options: UpstreamOptions;
  readonly #target: Target;
  readonly #idle: UpstreamConnection[] = [];
  #open = 0;
  #isWary = false;

  constructor(target: Target, options: UpstreamOptions) {
    this.#target = target;
    this.#options = options;
    this.latin1 = options.latin1;
    this.deadlines = options.deadlines;
    this.headLimitBytes = options.headLimitBytes;
    target.onRetire(() => this.#closeIdle());
  }

  /**
   * An idle connection, the one used last first. None for a request that must not be sent twice
   * once the target has been seen closing idle connections: the next close may cross the request.
   */
  take(mayRepeat: boolean): UpstreamConnection | undefined {
    if (this.#isWary && !mayRepeat) return undefined;
    return this.#idle.pop();
  }

  async connect(timeoutMs: number): Promise<UpstreamConnection> {
    const socket = await this.#options.net.connect(this.#target.address, { timeoutMs });
    const connection = new UpstreamConnection(socket, this);
    this.#open += 1;
    return connection;
  }

  /** Keeps a connection for the next request; false when it must be closed instead. */
  keep(connection: UpstreamConnection): boolean {
    // At most half of the time that the target says: it counts from another moment than we do.
    const idleMs = Math.min(this.#options.idleMs, connection.reader.keptForMs / 2);
    if (this.#target.retired || idleMs <= 0) return false;
    if (this.#idle.length >= this.#options.mostIdle) return false;
    connection.deadlineMs = this.#options.now() + idleMs;
    this.#idle.push(connection);
    return true;
  }

  forget(connection: UpstreamConnection): void {
    const at = this.#idle.indexOf(connection);
    if (at >= 0) this.#idle.splice(at, 1);
  }

  closed(connection: UpstreamConnection): void {
    this.#open -= 1;
    this.deadlines.remove(connection);
  }

  /** The target closed a connection that we were keeping, perhaps with the next request on it. */
  closedByTarget(): void {
    this.#isWary = true;
  }

  get address(): Address {
    return this.#target.address;
  }

  get open(): number {
    return this.#open;
  }

  get idle(): number {
    return this.#idle.length;
  }

  #closeIdle(): void {
    for (const connection of [...this.#idle]) connection.destroy();
  }
}
