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

/** Sockets of the runtime's own `node:net`. */
export function createNet(): Net {
  return { listen, connect: connectTo };
}

async function listen(
  options: ListenOptions,
  accept: (socket: ByteSocket) => void,
): Promise<Listener> {
  const server = createServer({ allowHalfOpen: true, noDelay: true }, (socket) => {
    accept(new NetSocket(socket));
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
    const target: NetConnectOpts = address.kind === "unix"
      ? { path: address.path, allowHalfOpen: true }
      : { host: address.host, port: address.port, allowHalfOpen: true, noDelay: true };
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
      resolve(new NetSocket(socket));
    });
  });
}

/** One fresh array with the texts (as latin1) around the bytes. */
function joined(before: string, bytes: Uint8Array, after: string): Uint8Array {
  const all = Buffer.allocUnsafe(before.length + bytes.length + after.length);
  if (before.length > 0) all.write(before, 0, "latin1");
  all.set(bytes, before.length);
  if (after.length > 0) all.write(after, before.length + bytes.length, "latin1");
  return all;
}

class NetSocket implements ByteSocket {
  readonly #socket: Socket;
  #handlers: SocketHandlers | undefined;
  #error: Error | undefined;
  #isClosed = false;
  #isEnded = false;
  #wantsDrain = false;

  constructor(socket: Socket) {
    this.#socket = socket;
    socket.on("error", (error) => {
      this.#error ??= error;
    });
  }

  get remoteAddress(): string {
    return plainAddress(this.#socket.remoteAddress);
  }

  get remotePort(): number {
    return this.#socket.remotePort ?? 0;
  }

  get localPort(): number {
    return this.#socket.localPort ?? 0;
  }

  get pendingBytes(): number {
    return this.#socket.writableLength;
  }

  handle(handlers: SocketHandlers): void {
    const first = this.#handlers === undefined;
    this.#handlers = handlers;
    if (!first) return;
    const socket = this.#socket;
    socket.on("data", (chunk: Uint8Array) => this.#handlers?.data(chunk));
    socket.on("end", () => this.#handlers?.end());
    socket.on("drain", () => {
      if (!this.#wantsDrain) return;
      this.#wantsDrain = false;
      this.#handlers?.drain();
    });
    socket.on("close", () => {
      if (this.#isClosed) return;
      this.#isClosed = true;
      this.#handlers?.close(this.#error);
    });
  }

  write(data: Uint8Array | string): boolean {
    if (this.#isEnded || this.#socket.destroyed) return true;
    const hasRoom = typeof data === "string"
      ? this.#socket.write(data, "latin1")
      : this.#socket.write(data);
    if (!hasRoom) this.#wantsDrain = true;
    return hasRoom;
  }

  writeAround(before: string, bytes: Uint8Array, after: string): boolean {
    return this.write(joined(before, bytes, after));
  }

  pause(): void {
    this.#socket.pause();
  }

  resume(): void {
    this.#socket.resume();
  }

  end(): void {
    if (this.#isEnded || this.#socket.destroyed) return;
    this.#isEnded = true;
    this.#socket.end();
  }

  destroy(reset = false): void {
    if (reset) this.#socket.resetAndDestroy();
    else this.#socket.destroy();
  }
}
