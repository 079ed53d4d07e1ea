/** Byte sockets over `node:net`. */

import { Buffer } from "node:buffer";
import { connect, createServer, type NetConnectOpts, type Socket } from "node:net";
import { listenOn } from "./net_listen.ts";
import { connectFailure } from "./net_connect_error.ts";
import { plainAddress } from "./plain_address.ts";
import {
  type Address,
  type ByteSocket,
  ConnectFailed,
  type Listener,
  type ListenOptions,
  type Net,
  type SocketHandlers,
} from "./runtime.ts";
import type { StreamBacked } from "./socket_stream.ts";

/** Sockets of the runtime's own `node:net`. */
export function createNet(): Net {
  return { listen, connect: connectTo };
}

async function listen(
  options: ListenOptions,
  accept: (socket: ByteSocket) => void,
): Promise<Listener> {
  const server = createServer({ allowHalfOpen: true, noDelay: true }, (socket) => {
    accept(new AcceptedSocket(socket));
  });
  const address = await listenOn(server, options);
  // An error of one accept (no descriptors left, say) must not end the process.
  server.on("error", () => {});
  return {
    address,
    close: async () => {
      // The callback of close() waits for the accepted sockets, the port is free before that.
      server.close();
      await new Promise<void>((resolve) => setImmediate(resolve));
    },
  };
}

function connectTo(address: Address, options: { timeoutMs: number }): Promise<ByteSocket> {
  return new Promise((resolve, reject) => {
    let made: NetSocket | undefined;
    const onread = {
      buffer: READ_BUFFER,
      callback: (length: number) => {
        made?.received(READ_BUFFER.subarray(0, length));
        return true;
      },
    };
    const target: NetConnectOpts = address.kind === "unix"
      ? { path: address.path, allowHalfOpen: true, onread }
      : { host: address.host, port: address.port, allowHalfOpen: true, noDelay: true, onread };
    const socket = connect(target);
    const timer = setTimeout(() => {
      socket.destroy();
      reject(new ConnectFailed("timeout", `no connection within ${options.timeoutMs} ms`));
    }, options.timeoutMs);
    const failed = (error: Error) => {
      clearTimeout(timer);
      reject(connectFailure(address, error));
    };
    socket.once("error", failed);
    socket.once("connect", () => {
      clearTimeout(timer);
      socket.off("error", failed);
      made = new NetSocket(socket);
      resolve(made);
    });
  });
}

/**
 * All connected sockets read into this one buffer: each read is handed on, and used, before the next
 * one of any socket can begin. Saves an allocation of 64 KiB a read.
 */
const READ_BUFFER = new Uint8Array(65536);

const SCRATCH_BYTES = 16_384;
/** Where small writes are put together; ours again as soon as the kernel has taken the bytes. */
let scratch = Buffer.allocUnsafeSlow(SCRATCH_BYTES);

/** The texts (as latin1) around the bytes, copied into `all`. */
function putTogether(all: Buffer, before: string, bytes: Uint8Array, after: string): void {
  if (before.length > 0) all.write(before, 0, "latin1");
  all.set(bytes, before.length);
  if (after.length > 0) all.write(after, before.length + bytes.length, "latin1");
}

class NetSocket implements ByteSocket {
  protected readonly stream: Socket;
  protected readonly listeners: [string, (chunk: Uint8Array) => void][] = [];
  #handlers: SocketHandlers | undefined;
  #error: Error | undefined;
  #isClosed = false;
  #isEnded = false;
  #wantsDrain = false;

  constructor(socket: Socket) {
    this.stream = socket;
    socket.on("error", (error) => {
      this.#error ??= error;
    });
  }

  get remoteAddress(): string {
    return plainAddress(this.stream.remoteAddress);
  }

  get remotePort(): number {
    return this.stream.remotePort ?? 0;
  }

  get localPort(): number {
    return this.stream.localPort ?? 0;
  }

  get pendingBytes(): number {
    return this.stream.writableLength;
  }

  handle(handlers: SocketHandlers): void {
    const first = this.#handlers === undefined;
    this.#handlers = handlers;
    if (!first) return;
    this.startReading();
    this.on("end", () => this.#handlers?.end());
    this.on("drain", () => {
      if (!this.#wantsDrain) return;
      this.#wantsDrain = false;
      this.#handlers?.drain();
    });
    this.on("close", () => {
      if (this.#isClosed) return;
      this.#isClosed = true;
      this.#handlers?.close(this.#error);
    });
  }

  protected on(event: string, listener: (chunk: Uint8Array) => void): void {
    this.listeners.push([event, listener]);
    this.stream.on(event, listener);
  }

  /** Connected sockets have been reading into the buffer since they were made. */
  protected startReading(): void {}

  received(chunk: Uint8Array): void {
    this.#handlers?.data(chunk);
  }

  write(data: Uint8Array | string): boolean {
    if (this.#isEnded || this.stream.destroyed) return true;
    const hasRoom = typeof data === "string"
      ? this.stream.write(data, "latin1")
      : this.stream.write(data);
    if (!hasRoom) this.#wantsDrain = true;
    return hasRoom;
  }

  writeAround(before: string, bytes: Uint8Array, after: string): boolean {
    const length = before.length + bytes.length + after.length;
    if (length > SCRATCH_BYTES) {
      const all = Buffer.allocUnsafeSlow(length);
      putTogether(all, before, bytes, after);
      return this.write(all);
    }
    putTogether(scratch, before, bytes, after);
    const hasRoom = this.write(scratch.subarray(0, length));
    if (this.stream.writableLength > 0) scratch = Buffer.allocUnsafeSlow(SCRATCH_BYTES);
    return hasRoom;
  }

  pause(): void {
    this.stream.pause();
  }

  resume(): void {
    this.stream.resume();
  }

  end(): void {
    if (this.#isEnded || this.stream.destroyed) return;
    this.#isEnded = true;
    this.stream.end();
  }

  destroy(reset = false): void {
    if (reset) this.stream.resetAndDestroy();
    else this.stream.destroy();
  }
}

/** A socket of a listener: a stream that can be given away, since a client may speak HTTP/2. */
class AcceptedSocket extends NetSocket implements StreamBacked {
  protected override startReading(): void {
    this.on("data", (chunk: Uint8Array) => this.received(chunk));
  }

  /** See StreamBacked. */
  takeStream(early: Uint8Array): Socket {
    const socket = this.stream;
    socket.pause();
    for (const [event, listener] of this.listeners) socket.off(event, listener);
    // Half-open connections are of no use to HTTP/2, and nobody would end them.
    socket.allowHalfOpen = false;
    if (early.length > 0) socket.unshift(early);
    return socket;
  }
}
