/**
 * A ZMTP 3 peer over a byte socket: greeting, NULL handshake, messages, subscriptions, heartbeats.
 *
 * Enough of ZeroMQ to talk to engines' PUB and ROUTER sockets from any runtime (and to play them, for
 * the fake engine): socket types SUB, DEALER, PUB and ROUTER. Tested against libzmq.
 */

import type { ByteSocket, Clock } from "../runtime/runtime.ts";
import {
  FLAG_COMMAND,
  FLAG_MORE,
  FrameCutter,
  GREETING_BYTES,
  readCommand,
  readGreeting,
  readProperties,
  writeCommand,
  writeFrame,
  writeGreeting,
  writeMessage,
  writeProperties,
  ZmtpError,
} from "./zmtp_frames.ts";

export { ZmtpError } from "./zmtp_frames.ts";

export type SocketType = "SUB" | "DEALER" | "PUB" | "ROUTER";

export interface ZmtpLimits {
  /** Bytes of one frame at most. */
  readonly maxFrameBytes: number;
  /** Frames of one message at most. */
  readonly maxFrames: number;
  /** Bytes that wait for the other side to read before we give it up. */
  readonly maxUnsentBytes: number;
  readonly handshakeTimeoutMs: number;
  /** A PING goes out this often. */
  readonly heartbeatMs: number;
  /** Silence after which the connection counts as dead; also what we ask the other side to use. */
  readonly heartbeatTimeoutMs: number;
}

const ZMTP_LIMITS: ZmtpLimits = {
  maxFrameBytes: 64 * 1024 * 1024,
  maxFrames: 16,
  maxUnsentBytes: 1024 * 1024,
  handshakeTimeoutMs: 10_000,
  heartbeatMs: 5_000,
  heartbeatTimeoutMs: 15_000,
};

export interface ZmtpHandlers {
  /** The handshake is done: messages may be sent. */
  ready(): void;
  /** A whole message; the frames are in memory of their own. */
  message(frames: Uint8Array[]): void;
  /** The other side wants (or no more wants) messages that start with these bytes. */
  subscription?(isWanted: boolean, prefix: Uint8Array): void;
  /** The last call. `error` is undefined after `close` and after an orderly end. */
  closed(error?: Error): void;
}

export interface ZmtpOptions {
  readonly clock: Clock;
  readonly type: SocketType;
  readonly limits?: Partial<ZmtpLimits>;
}

/** What each of our types may talk to. */
const PARTNERS: Record<SocketType, readonly string[]> = {
  SUB: ["PUB", "XPUB"],
  DEALER: ["ROUTER", "DEALER", "REP"],
  PUB: ["SUB", "XSUB"],
  ROUTER: ["DEALER", "REQ", "ROUTER"],
};

export class ZmtpConnection {
  readonly #socket: ByteSocket;
  readonly #options: ZmtpOptions;
  readonly #limits: ZmtpLimits;
  readonly #handlers: ZmtpHandlers;
  readonly #cutter: FrameCutter;
  #greeting: Uint8Array | undefined = new Uint8Array(GREETING_BYTES);
  #greetingFilled = 0;
  #minor = 0;
  #isReady = false;
  #isClosed = false;
  #error: Error | undefined;
  #frames: Uint8Array[] = [];
  #messageBytes = 0;
  /** When the other side was heard last, on the monotonic clock. */
  #heardAt: number;
  /** Silence after which the other side asked to be given up; from its PING. */
  #theirTtlMs = Infinity;
  #cancelTimer: () => void;

  /** Takes the socket over; must be called in the turn in which the socket was handed out. */
  constructor(socket: ByteSocket, options: ZmtpOptions, handlers: ZmtpHandlers) {
    this.#socket = socket;
    this.#options = options;
    this.#limits = { ...ZMTP_LIMITS, ...options.limits };
    this.#handlers = handlers;
    this.#cutter = new FrameCutter(
      this.#limits.maxFrameBytes,
      (flags, body) => this.#frame(flags, body),
    );
    this.#heardAt = options.clock.monotonic();
    socket.handle({
      data: (chunk) => this.#data(chunk),
      end: () => this.close(new ZmtpError("the other side ended the connection")),
      drain: () => {},
      close: (error) => this.#closed(error),
    });
    socket.write(writeGreeting());
    this.#cancelTimer = options.clock.after(this.#limits.handshakeTimeoutMs, () => {
      this.close(new ZmtpError("no handshake in time"));
    });
  }

  get isReady(): boolean {
    return this.#isReady && !this.#isClosed;
  }

  /** Bytes that wait to be sent. */
  get unsentBytes(): number {
    return this.#socket.pendingBytes;
  }

  /** Queues a message. False if it could not be taken: not ready, or too much waits already. */
  send(frames: readonly Uint8Array[]): boolean {
    if (!this.isReady || this.#socket.pendingBytes > this.#limits.maxUnsentBytes) return false;
    this.#socket.write(writeMessage(frames));
    return true;
  }

  /** Asks a publisher for messages that start with `prefix`; the empty one asks for all. */
  subscribe(prefix: Uint8Array): void {
    if (!this.isReady) return;
    // ZMTP 3.1 has a command for it; before, it was a message that starts with a 1.
    if (this.#minor >= 1) this.#socket.write(writeCommand("SUBSCRIBE", prefix));
    else {
      const body = new Uint8Array(1 + prefix.length);
      body[0] = 1;
      body.set(prefix, 1);
      this.#socket.write(writeFrame(0, body));
    }
  }

  /** Ends the connection; `closed` is called with `error`. */
  close(error?: Error): void {
    if (this.#isClosed) return;
    this.#error ??= error;
    this.#socket.destroy();
    this.#closed(undefined);
  }

  #closed(error: Error | undefined): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#cancelTimer();
    this.#handlers.closed(this.#error ?? error);
  }

  #data(chunk: Uint8Array): void {
    if (this.#isClosed) return;
    this.#heardAt = this.#options.clock.monotonic();
    try {
      const rest = this.#greeting === undefined ? chunk : this.#greet(chunk, this.#greeting);
      if (rest.length > 0) this.#cutter.push(rest);
    } catch (error) {
      if (!(error instanceof ZmtpError)) throw error;
      this.close(error);
    }
  }

  /** Fills the greeting; returns what comes after it. */
  #greet(chunk: Uint8Array, greeting: Uint8Array): Uint8Array {
    const size = Math.min(chunk.length, GREETING_BYTES - this.#greetingFilled);
    greeting.set(chunk.subarray(0, size), this.#greetingFilled);
    this.#greetingFilled += size;
    if (greeting[0] !== 0xff) throw new ZmtpError("not a ZMTP peer");
    if (this.#greetingFilled < GREETING_BYTES) return NOTHING;
    this.#minor = readGreeting(greeting).minor;
    this.#greeting = undefined;
    const { type } = this.#options;
    const properties: Record<string, string> = { "Socket-Type": type };
    if (type === "DEALER" || type === "ROUTER") properties["Identity"] = "";
    this.#socket.write(writeCommand("READY", writeProperties(properties)));
    return chunk.subarray(size);
  }

  #frame(flags: number, body: Uint8Array): void {
    if (this.#isClosed) return;
    if ((flags & FLAG_COMMAND) !== 0) this.#command(body);
    else if (!this.#isReady) throw new ZmtpError("a message before the handshake");
    else if (this.#options.type === "PUB") this.#subscribed(flags, body);
    else {
      this.#frames.push(body);
      this.#messageBytes += body.length;
      if (this.#frames.length > this.#limits.maxFrames) {
        throw new ZmtpError(`a message of more than ${this.#limits.maxFrames} frames`);
      }
      if (this.#messageBytes > this.#limits.maxFrameBytes) {
        throw new ZmtpError(`a message of over ${this.#limits.maxFrameBytes} bytes`);
      }
      if ((flags & FLAG_MORE) !== 0) return;
      const frames = this.#frames;
      this.#frames = [];
      this.#messageBytes = 0;
      this.#handlers.message(frames);
    }
  }

  /** Subscriptions of peers that speak ZMTP 3.0. */
  #subscribed(flags: number, body: Uint8Array): void {
    const first = body[0];
    if ((flags & FLAG_MORE) !== 0 || (first !== 0 && first !== 1)) return;
    this.#handlers.subscription?.(first === 1, body.subarray(1));
  }

  #command(frame: Uint8Array): void {
    const { name, body } = readCommand(frame);
    switch (name) {
      case "READY":
        this.#handshake(readProperties(body));
        break;
      case "ERROR":
        throw new ZmtpError(`refused: ${new TextDecoder().decode(body.subarray(1, 101))}`);
      case "PING": {
        if (body.length < 2) throw new ZmtpError("a PING without a time");
        const ttlMs = 100 * (((body[0] ?? 0) << 8) | (body[1] ?? 0));
        if (ttlMs > 0) this.#theirTtlMs = ttlMs;
        if (this.#socket.pendingBytes > this.#limits.maxUnsentBytes) {
          throw new ZmtpError("the other side does not read");
        }
        this.#socket.write(writeCommand("PONG", body.subarray(2, 18)));
        break;
      }
      case "SUBSCRIBE":
      case "CANCEL":
        this.#handlers.subscription?.(name === "SUBSCRIBE", body);
        break;
      default:
        // PONG, and whatever later versions bring.
    }
  }

  #handshake(properties: Map<string, string>): void {
    if (this.#isReady) throw new ZmtpError("a second READY");
    const theirs = properties.get("socket-type") ?? "";
    if (!PARTNERS[this.#options.type].includes(theirs)) {
      throw new ZmtpError(`a ${this.#options.type} socket cannot talk to ${theirs.slice(0, 20)}`);
    }
    this.#isReady = true;
    this.#cancelTimer();
    this.#cancelTimer = () => {};
    this.#beat();
    this.#handlers.ready();
  }

  #beat(): void {
    const { clock } = this.#options;
    const { heartbeatMs, heartbeatTimeoutMs } = this.#limits;
    this.#cancelTimer = clock.after(heartbeatMs, () => {
      if (this.#isClosed) return;
      const silentMs = clock.monotonic() - this.#heardAt;
      // Peers of version 3.0 know no PING: of them silence tells nothing.
      const limitMs = this.#minor >= 1
        ? Math.min(heartbeatTimeoutMs, this.#theirTtlMs)
        : this.#theirTtlMs;
      if (silentMs > limitMs) {
        this.close(new ZmtpError(`nothing heard for ${Math.round(silentMs)} ms`));
        return;
      }
      if (this.#minor >= 1) {
        const tenths = Math.min(0xffff, Math.round(heartbeatTimeoutMs / 100));
        this.#socket.write(writeCommand("PING", Uint8Array.of(tenths >> 8, tenths & 0xff)));
      }
      this.#beat();
    });
  }
}

const NOTHING = new Uint8Array(0);
