/**
 * One stream of either side: a message each way, with flow control (RFC 9113 sections 5.1 and 5.2).
 *
 * What the window or the socket has no room for is kept here, and its writer told to wait; what the
 * owner does not want yet is kept as well, and the other side runs out of window.
 */

import type { StreamHandlers } from "./handlers.ts";
import { H2_ERRORS, MOST_PAYLOAD_BYTES } from "./protocol.ts";
import { ReceiveWindow } from "./receive_window.ts";

/** What a stream asks of its session. */
export interface StreamHome {
  /** The session is taking a read apart: what is told now is followed by a flush. */
  readonly isReading: boolean;
  /** Whether a `write` should go on. */
  readonly hasRoom: boolean;
  /** Sends of the data what windows and socket have room for; answers how many bytes. */
  sendData(stream: Stream, bytes: Uint8Array): number;
  /** Ends our message, after its last byte. `trailers` are lines. */
  sendEnd(stream: Stream, trailers: string): void;
  sendReset(id: number, code: number): void;
  /** Data of the stream was used, or will not be: `wasKept` if it had to wait for that. */
  used(stream: Stream, bytes: number, wasKept: boolean): void;
  /** Data of the stream waits with us. */
  kept(bytes: number): void;
  /** Calls `sendSome` when there is room. */
  wait(stream: Stream): void;
  /** Calls `flush` at the end of this read. */
  touch(stream: Stream): void;
  /** The stream is closed: it counts no more. */
  left(stream: Stream): void;
}

export class Stream {
  readonly id: number;
  /** What the other side takes of us now; negative after it made its windows smaller. */
  sendWindow: number;
  readonly receiveWindow: ReceiveWindow;
  isTouched = false;
  /** Bytes of the message that are still to come if its length was told; Infinity if it was not. */
  bytesToCome = Infinity;
  /** Their message is complete. */
  hasEnded = false;
  /** Ours is. */
  hasSentEnd = false;
  /** Closed on the wire; what is kept may still be told. */
  isClosed = false;
  /** By a reset of ours, which frames of the other side may have crossed. */
  isResetByUs = false;
  protected readonly home: StreamHome;
  protected handlers: StreamHandlers | undefined;
  #isPaused: boolean;
  #isTelling = false;
  #kept: Uint8Array[] = [];
  #keptBytes = 0;
  /** Set when their end has come and was not told. */
  #untoldEnd: string | undefined;
  #code: number | undefined;
  #hasToldClose = false;
  #queue: Uint8Array[] = [];
  #queuedBytes = 0;
  #wantsDrain = false;
  #isEnding = false;
  #trailers = "";
  #breakCode: number | undefined;

  constructor(
    home: StreamHome,
    id: number,
    windows: { readonly sendBytes: number; readonly receiveBytes: number },
    isPaused: boolean,
  ) {
    this.home = home;
    this.id = id;
    this.sendWindow = windows.sendBytes;
    this.receiveWindow = new ReceiveWindow(windows.receiveBytes);
    this.#isPaused = isPaused;
  }

  handle(handlers: StreamHandlers): void {
    this.handlers = handlers;
  }

  // ------------------------------------------------------------------------------ what we send

  /** Bytes that wait for the other side's window or for the socket. */
  get pendingBytes(): number {
    return this.#queuedBytes;
  }

  /** Queues bytes; they are copied. False: wait for `drain`. Ignored after the end. */
  write(chunk: Uint8Array): boolean {
    if (this.isClosed || this.#isEnding) return true;
    const sent = this.#queuedBytes === 0 ? this.home.sendData(this, chunk) : 0;
    if (sent < chunk.length) {
      this.#queue.push(chunk.slice(sent));
      this.#queuedBytes += chunk.length - sent;
      return this.#waitForRoom();
    }
    return this.hasRoom();
  }

  /** Whether more may be sent; if not, `drain` is told when it may. */
  protected hasRoom(): boolean {
    return this.home.hasRoom || this.#waitForRoom();
  }

  #waitForRoom(): false {
    this.#wantsDrain = true;
    this.home.wait(this);
    return false;
  }

  /** Ends our message; `trailers` are lines, or "". */
  end(trailers: string): void {
    if (this.isClosed || this.#isEnding) return;
    this.#isEnding = true;
    this.#trailers = trailers;
    if (this.#queuedBytes === 0) this.#sendEnd();
  }

  #sendEnd(): void {
    this.home.sendEnd(this, this.#trailers);
    this.hasSentEnd = true;
    if (this.hasEnded) this.finish(H2_ERRORS.none);
    else this.ourSideEnded();
  }

  /** Our message is complete and theirs is not. */
  protected ourSideEnded(): void {}

  /**
   * There may be room: sends one frame of what is queued, and when nothing is left does what waited
   * for that. Answers whether it still waits for others than its own window.
   */
  sendSome(): boolean {
    if (this.isClosed) return false;
    const first = this.#queue[0];
    if (first !== undefined) {
      const piece = first.length > MOST_PAYLOAD_BYTES
        ? first.subarray(0, MOST_PAYLOAD_BYTES)
        : first;
      const sent = this.home.sendData(this, piece);
      this.#queuedBytes -= sent;
      if (sent === first.length) this.#queue.shift();
      else this.#queue[0] = first.subarray(sent);
      if (this.#queuedBytes > 0) return this.sendWindow > 0;
    }
    if (this.#breakCode !== undefined) this.reset(this.#breakCode);
    else if (this.#isEnding) {
      if (!this.hasSentEnd) this.#sendEnd();
    } else if (this.#wantsDrain) {
      this.#wantsDrain = false;
      this.handlers?.drain();
    }
    return false;
  }

  /** Something waits that a wider window would let go. */
  get waits(): boolean {
    return this.#queuedBytes > 0 && this.sendWindow > 0;
  }

  /** Ends the stream at once; what is queued is dropped. */
  reset(code: number): void {
    if (this.isClosed) return;
    this.isResetByUs = true;
    this.home.sendReset(this.id, code);
    this.#drop();
    this.finish(code);
  }

  /** Ends the stream as broken once what is queued has left. */
  breakOff(code: number): void {
    if (this.isClosed) return;
    if (this.#queuedBytes === 0) return this.reset(code);
    this.#isEnding = true;
    this.#breakCode = code;
  }

  // --------------------------------------------------------------------------- what they send

  pause(): void {
    this.#isPaused = true;
  }

  resume(): void {
    if (!this.#isPaused) return;
    this.#isPaused = false;
    this.#tellKept();
    if (this.home.isReading) this.home.touch(this);
    else this.handlers?.flush();
  }

  /** Data has come. False when it is more than the message was to have. */
  receive(bytes: Uint8Array): boolean {
    this.bytesToCome -= bytes.length;
    if (this.bytesToCome < 0) return false;
    if (this.#isPaused || this.#kept.length > 0) {
      this.#kept.push(bytes.slice());
      this.#keptBytes += bytes.length;
      this.home.kept(bytes.length);
      return true;
    }
    this.home.touch(this);
    this.handlers?.data(bytes);
    this.home.used(this, bytes.length, false);
    return true;
  }

  /** Their message has ended. False when it is shorter than it was to be. */
  receiveEnd(trailers: string): boolean {
    if (this.bytesToCome > 0 && this.bytesToCome !== Infinity) return false;
    this.hasEnded = true;
    this.#untoldEnd = trailers;
    this.#tellKept();
    this.home.touch(this);
    if (this.hasSentEnd) this.finish(H2_ERRORS.none);
    return true;
  }

  #tellKept(): void {
    if (this.#isTelling) return;
    this.#isTelling = true;
    while (!this.#isPaused && this.#kept.length > 0) {
      const chunk = this.#kept.shift() as Uint8Array;
      this.#keptBytes -= chunk.length;
      this.handlers?.data(chunk);
      this.home.used(this, chunk.length, true);
    }
    this.#isTelling = false;
    if (this.#kept.length > 0) return;
    const trailers = this.#untoldEnd;
    if (trailers !== undefined && !this.#isPaused) {
      this.#untoldEnd = undefined;
      this.handlers?.end(trailers);
    }
    this.#tellClose();
  }

  flush(): void {
    this.handlers?.flush();
  }

  // ----------------------------------------------------------------------------------- the end

  /** The stream is over on the wire. With 0 what is kept of their message is still told. */
  finish(code: number): void {
    if (this.isClosed) return;
    this.isClosed = true;
    this.#queue = [];
    this.#queuedBytes = 0;
    this.home.left(this);
    if (code !== H2_ERRORS.none || !this.wantsRest) this.#drop();
    this.#code = code;
    this.#tellClose();
  }

  /** Whether what is kept of their message is wanted after ours has ended. */
  protected get wantsRest(): boolean {
    return true;
  }

  #drop(): void {
    if (this.#keptBytes > 0) this.home.used(this, this.#keptBytes, true);
    this.#kept = [];
    this.#keptBytes = 0;
    this.#untoldEnd = undefined;
  }

  #tellClose(): void {
    if (this.#code === undefined || this.#hasToldClose || this.#isTelling) return;
    if (this.#kept.length > 0 || this.#untoldEnd !== undefined) return;
    this.#hasToldClose = true;
    this.handlers?.close(this.#code);
  }
}
