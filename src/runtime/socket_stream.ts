/** A byte socket as a `node:stream`, for what speaks over streams only. */

import { Buffer } from "node:buffer";
import { Duplex } from "node:stream";
import type { ByteSocket } from "./runtime.ts";

/** A socket that may have a stream of the runtime's own underneath, and can give it away. */
export interface StreamBacked {
  /**
   * Gives the stream away, with `early` put back in front; the ByteSocket must not be used again.
   * Undefined when it cannot: the socket stays as it is.
   */
  takeStream(early: Uint8Array): Duplex | undefined;
}

/** The socket as a stream which begins with `early`. The socket is the stream's from now on. */
export function socketStream(
  socket: ByteSocket & Partial<StreamBacked>,
  early: Uint8Array,
): Duplex {
  return socket.takeStream?.(early) ?? new SocketStream(socket, early);
}

class SocketStream extends Duplex {
  readonly #socket: ByteSocket;
  #written: (() => void) | undefined;

  constructor(socket: ByteSocket, early: Uint8Array) {
    super({ allowHalfOpen: false });
    this.#socket = socket;
    if (early.length > 0) this.push(Buffer.from(early));
    socket.handle({
      data: (chunk) => {
        if (!this.push(Buffer.from(chunk))) socket.pause();
      },
      end: () => void this.push(null),
      drain: () => this.#wake(),
      close: (error) => {
        this.#wake();
        this.destroy(error);
      },
    });
  }

  #wake(): void {
    const written = this.#written;
    this.#written = undefined;
    written?.();
  }

  override _read(): void {
    this.#socket.resume();
  }

  override _write(chunk: Uint8Array, _encoding: string, done: (error?: Error | null) => void) {
    if (this.#socket.write(chunk)) done();
    else this.#written = done;
  }

  override _final(done: (error?: Error | null) => void): void {
    this.#socket.end();
    done();
  }

  override _destroy(error: Error | null, done: (error?: Error | null) => void): void {
    this.#socket.destroy();
    done(error);
  }
}
