/**
 * One HTTP/2 connection, as far as both sides are alike: frames in, streams, windows, frames out.
 *
 * What comes in one read is taken apart in one go; what is to be said meanwhile leaves at its end as
 * one write. Between reads it leaves once the turn is over (`soon`). When the socket is full no DATA
 * is put into it, so that streams wait where their writers can see it; when it stays full of other
 * frames, the connection is not read on.
 *
 * Over 400 lines because it is one state machine with a case for each type of frame.
 */

import type { Latin1 } from "../head.ts";
import type { ByteSocket, Clock, SocketHandlers } from "../../runtime/runtime.ts";
import { ClosedStreams } from "./closed_streams.ts";
import { FloodGuard } from "./flood_guard.ts";
import { FrameReader, type FrameSink } from "./frame_reader.ts";
import { FrameWriter } from "./frame_writer.ts";
import { checkPriority, HeaderBlock } from "./header_block.ts";
import { HpackDecoder } from "./hpack_decoder.ts";
import { HpackEncoder } from "./hpack_encoder.ts";
import { PeerSettings } from "./peer_settings.ts";
import {
  ACK,
  ConnectionError,
  CONTINUATION,
  DATA,
  DEFAULT_WINDOW_BYTES,
  END_STREAM,
  GOAWAY,
  H2_ERRORS,
  HEADERS,
  MOST_31_BITS,
  MOST_PAYLOAD_BYTES,
  PING,
  PRIORITY,
  readU31,
  readU32,
  RST_STREAM,
  SETTINGS,
  WINDOW_UPDATE,
} from "./protocol.ts";
import { ReceiveWindow } from "./receive_window.ts";
import type { Stream, StreamHome } from "./stream.ts";
import { StreamTable } from "./stream_table.ts";

/** What a stream may be ahead of its reader. */
export const STREAM_WINDOW_BYTES = 128 * 1024;
/** What all streams together may send before they hear of us. */
export const CONNECTION_WINDOW_BYTES = 1024 * 1024;
/** A header block may be larger than what it says: that costs one stream, more the connection. */
const SPARE_BLOCK_BYTES = 65_536;
/** Frames that are put together leave when there are so many bytes of them, whatever the turn. */
const MOST_GATHERED_BYTES = 65_536;
/** Up to here a copy is cheaper than a buffer that may have to be given away. */
const LARGE_WRITE_BYTES = 16_384;
/** Bytes that wait for a socket which is not read: above that we do not read either. */
const MOST_STUCK_BYTES = 1024 * 1024;
/** How long the other side has to take our last words. */
const FAREWELL_MS = 1000;
/** How often that may pass without a byte taken. */
const MOST_IDLE_LOOKS = 10;
/** Smaller pieces, when the window cuts them, earn the other side nothing (CVE-2019-9511). */
const FAIR_PIECE_BYTES = 1024;
const NONE = new Uint8Array(0);

export interface SessionOptions {
  readonly socket: ByteSocket;
  readonly clock: Pick<Clock, "monotonic" | "after">;
  readonly latin1: Latin1;
  /** Runs an action when this turn is over. */
  readonly soon: (action: () => void) => void;
  /** Largest header section of a message, as RFC 9113 section 6.5.2 counts; larger ones are reset. */
  readonly headerBytes: number;
  /** Bytes of bodies that are kept for all streams before the other side has to wait. */
  readonly keptBytes: number;
}

export abstract class Session<S extends Stream> implements SocketHandlers, FrameSink, StreamHome {
  isOpen = true;
  isReading = false;
  protected readonly open = new StreamTable<S>();
  protected readonly out = new FrameWriter();
  protected readonly encoder = new HpackEncoder();
  protected readonly decoder: HpackDecoder;
  protected readonly peer = new PeerSettings();
  protected readonly options: SessionOptions;
  /** Ends with its last stream. */
  protected isClosing = false;
  protected readonly reader: FrameReader = new FrameReader(this);
  readonly #socket: ByteSocket;
  readonly #block: HeaderBlock;
  readonly #guard: FloodGuard;
  protected readonly closed = new ClosedStreams();
  readonly #receiveWindow = new ReceiveWindow(CONNECTION_WINDOW_BYTES);
  #sendWindow = DEFAULT_WINDOW_BYTES;
  #hasSettings = false;
  #settingsUnconfirmed = 1;
  /** The stream of the DATA frame that is being read; undefined when its bytes are nobody's. */
  #dataStream: S | undefined;
  #dataFlags = 0;
  #keptBytes = 0;
  /** Used up of the connection's window, to be told when less is kept. */
  #owedBytes = 0;
  readonly #waiting = new Set<Stream>();
  #touched: Stream[] = [];
  #isCongested = false;
  #isStuck = false;
  #isFlushDue = false;
  #isGone = false;
  #cancelFarewell: (() => void) | undefined;

  constructor(options: SessionOptions) {
    const { socket, clock, latin1, headerBytes } = options;
    this.options = options;
    this.#socket = socket;
    this.#block = new HeaderBlock(headerBytes + SPARE_BLOCK_BYTES);
    this.#guard = new FloodGuard(() => clock.monotonic());
    this.decoder = new HpackDecoder(latin1);
  }

  // ----------------------------------------------------------------- what the two sides differ in

  /** Whether we opened the connection. */
  protected abstract readonly isClient: boolean;
  /** Takes bytes of the socket: frames, once the preface is over. */
  protected abstract takeBytes(chunk: Uint8Array): void;
  /** A whole header section has come; the decoder has its fields. */
  protected abstract takeHeaders(id: number, flags: number): void;
  /** Whether no such stream was ever opened. */
  protected abstract isIdle(id: number): boolean;
  protected abstract takeGoaway(last: number, code: number): void;
  /** The last stream that we have taken, for GOAWAY. */
  protected abstract readonly lastTaken: number;
  /** The stream's message may have data now. */
  protected abstract mayHaveData(stream: S): boolean;
  /** SETTINGS have come. */
  protected tookSettings(): void {}
  protected streamLeft(_stream: Stream): void {}
  /** What was gathered has been given to the socket. */
  protected flushed(): void {}
  /** The connection is gone. */
  protected abstract gone(): void;

  // --------------------------------------------------------------------------------- the socket

  get streams(): number {
    return this.open.size;
  }

  /** The connection is no more. */
  get isGone(): boolean {
    return this.#isGone;
  }

  /** Bytes that are not with the kernel yet, those that wait for a window left out. */
  get pendingBytes(): number {
    return this.out.length + this.#socket.pendingBytes;
  }

  data(chunk: Uint8Array): void {
    if (!this.isOpen) return;
    this.isReading = true;
    try {
      this.takeBytes(chunk);
    } catch (error) {
      if (!(error instanceof ConnectionError)) throw error;
      this.destroy(error.code);
    } finally {
      this.isReading = false;
    }
    const touched = this.#touched;
    if (touched.length > 0) {
      this.#touched = [];
      for (const stream of touched) {
        stream.isTouched = false;
        stream.flush();
      }
    }
    this.#pump();
    this.flush();
  }

  end(): void {
    // Half a connection is of no use to HTTP/2. A side that only waited for our end has it.
    this.#socket.destroy();
    this.close();
  }

  drain(): void {
    this.#isCongested = false;
    if (this.#isStuck) {
      this.#isStuck = false;
      this.#socket.resume();
    }
    this.#pump();
    this.flush();
    this.flushed();
  }

  /** The socket's own end; a session that has one to close is asked by `closeGently`. */
  close(): void {
    if (this.#isGone) return;
    this.#isGone = true;
    this.isOpen = false;
    this.#cancelFarewell?.();
    for (const stream of this.open.all()) stream.finish(H2_ERRORS.cancel);
    this.gone();
  }

  /** Takes no more streams, and ends the connection after the last one. */
  closeGently(): void {
    if (!this.isOpen || this.isClosing) return;
    this.isClosing = true;
    this.sendGoaway(this.lastTaken, H2_ERRORS.none);
    if (this.open.size === 0) this.#sayFarewell();
  }

  /** Cuts the connection; with a code the other side is told why. */
  destroy(code: number = H2_ERRORS.none): void {
    if (code === H2_ERRORS.none) {
      if (this.isOpen) this.flush();
      this.#socket.destroy();
      return this.close();
    }
    if (!this.isOpen) return;
    this.sendGoaway(this.lastTaken, code);
    // Who hears of the end of a stream must not begin another one here.
    this.isClosing = true;
    for (const stream of this.open.all()) {
      stream.isResetByUs = true;
      stream.finish(code);
    }
    this.#sayFarewell();
  }

  /** FIN after what is queued, and a moment for the other side to read it. */
  #sayFarewell(): void {
    if (!this.isOpen) return;
    this.flush();
    this.isOpen = false;
    this.#socket.end();
    if (this.#isStuck) this.#socket.resume();
    this.#waitForTheirEnd(0, 0);
  }

  /** As long as they take bytes they have time for more. */
  #waitForTheirEnd(before: number, idleLooks: number): void {
    this.#cancelFarewell = this.options.clock.after(FAREWELL_MS, () => {
      const pending = this.#socket.pendingBytes;
      const looks = pending === before ? idleLooks + 1 : 0;
      if (pending === 0 || looks >= MOST_IDLE_LOOKS) this.destroy();
      else this.#waitForTheirEnd(pending, looks);
    });
  }

  // ----------------------------------------------------------------------------- frames that come

  dataFrame(id: number, flags: number, length: number): void {
    this.#expectFrame();
    if (!this.#receiveWindow.take(length)) throw tooMuch();
    if (length === 0 && (flags & END_STREAM) === 0) this.spend();
    this.#dataFlags = flags;
    this.#dataStream = undefined;
    const stream = this.open.get(id);
    if (stream === undefined) {
      this.#credit(length);
      if (this.stray(id) !== true) this.sendReset(id, H2_ERRORS.streamClosed);
      return;
    }
    const problem = stream.hasEnded
      ? H2_ERRORS.streamClosed
      : !this.mayHaveData(stream)
      ? H2_ERRORS.protocol
      : stream.receiveWindow.take(length)
      ? H2_ERRORS.none
      : H2_ERRORS.flowControl;
    if (problem === H2_ERRORS.none) this.#dataStream = stream;
    else {
      this.#credit(length);
      stream.reset(problem);
    }
  }

  dataBytes(bytes: Uint8Array): void {
    const stream = this.#dataStream;
    if (stream === undefined) return;
    if (stream.isClosed) return this.#credit(bytes.length);
    if (stream.receive(bytes)) return;
    this.#credit(bytes.length);
    stream.reset(H2_ERRORS.protocol);
  }

  dataEnd(padding: number): void {
    const stream = this.#dataStream;
    if (stream === undefined) return;
    if (padding > 0) this.used(stream, padding, false);
    if ((this.#dataFlags & END_STREAM) === 0 || stream.isClosed) return;
    if (!stream.receiveEnd("")) stream.reset(H2_ERRORS.protocol);
  }

  unknownFrame(): void {
    this.#expectFrame();
    this.spend();
  }

  /** Between a header block's frames no others may come, and before the first SETTINGS none at all. */
  #expectFrame(): void {
    if (this.#block.stream !== 0) {
      throw new ConnectionError(H2_ERRORS.protocol, "a frame inside a header block");
    }
    if (!this.#hasSettings) throw new ConnectionError(H2_ERRORS.protocol, "no SETTINGS first");
  }

  frame(
    type: number,
    flags: number,
    id: number,
    bytes: Uint8Array,
    from: number,
    to: number,
  ): void {
    if (type === CONTINUATION) {
      if (this.#block.go(id, flags, bytes, from, to)) this.#takeBlock(id);
      return;
    }
    if (type === SETTINGS && (flags & ACK) === 0) this.#hasSettings = true;
    this.#expectFrame();
    switch (type) {
      case HEADERS:
        if (this.#block.begin(id, flags, bytes, from, to)) this.#takeBlock(id);
        return;
      case PRIORITY:
        this.spend();
        return checkPriority(id, bytes, from);
      case RST_STREAM:
        return this.#takeReset(id, readU32(bytes, from));
      case SETTINGS:
        this.spend();
        return (flags & ACK) === 0 ? this.#takeSettings(bytes, from, to) : this.#takeConfirmation();
      case PING:
        this.spend();
        if ((flags & ACK) === 0) this.#answerPing(bytes.subarray(from, to));
        return;
      case GOAWAY:
        this.spend();
        return this.takeGoaway(readU31(bytes, from), readU32(bytes, from + 4));
      case WINDOW_UPDATE:
        this.spend();
        return this.#takeWindowUpdate(id, readU31(bytes, from));
      default:
        // PUSH_PROMISE: we have forbidden it, and a client may never send it (section 8.4).
        throw new ConnectionError(H2_ERRORS.protocol, "PUSH_PROMISE");
    }
  }

  #takeBlock(id: number): void {
    const block = this.#block;
    this.decoder.decode(block.bytes, block.from, block.to, this.options.headerBytes);
    block.clear();
    this.takeHeaders(id, block.flags);
  }

  #takeReset(id: number, code: number): void {
    this.spend();
    const stream = this.open.get(id);
    if (stream === undefined) this.stray(id);
    else stream.finish(code);
  }

  #takeSettings(bytes: Uint8Array, from: number, to: number): void {
    const before = this.peer.windowBytes;
    this.peer.take(bytes, from, to, this.isClient);
    this.encoder.resize(this.peer.headerTableBytes);
    const change = this.peer.windowBytes - before;
    if (change !== 0) {
      for (const stream of this.open.all()) {
        stream.sendWindow += change;
        if (stream.sendWindow > MOST_31_BITS) throw tooMuch();
        if (stream.waits) this.#waiting.add(stream);
      }
    }
    this.out.head(SETTINGS, ACK, 0, 0);
    this.tookSettings();
  }

  #takeConfirmation(): void {
    this.#settingsUnconfirmed -= 1;
    if (this.#settingsUnconfirmed >= 0) return;
    throw new ConnectionError(H2_ERRORS.protocol, "settings confirmed that were not sent");
  }

  #answerPing(payload: Uint8Array): void {
    this.out.head(PING, ACK, 0, payload.length);
    this.out.bytes(payload);
  }

  #takeWindowUpdate(id: number, increment: number): void {
    if (id === 0) {
      if (increment === 0) throw new ConnectionError(H2_ERRORS.protocol, "a window wider by 0");
      this.#sendWindow += increment;
      if (this.#sendWindow > MOST_31_BITS) throw tooMuch();
      return;
    }
    const stream = this.open.get(id);
    if (stream === undefined) return void this.stray(id);
    if (increment === 0) return stream.reset(H2_ERRORS.protocol);
    stream.sendWindow += increment;
    if (stream.sendWindow > MOST_31_BITS) return stream.reset(H2_ERRORS.flowControl);
    if (stream.waits) this.#waiting.add(stream);
  }

  /** A frame of a stream that is not open; answers whether it may have crossed a reset of ours. */
  protected stray(id: number): boolean | undefined {
    if (this.isIdle(id)) throw new ConnectionError(H2_ERRORS.protocol, `stream ${id} is idle`);
    const wasReset = this.closed.wasResetByUs(id);
    // What crosses a reset is bounded by the windows.
    if (wasReset !== true) this.spend();
    return wasReset;
  }

  /** Counts a frame that is of no use to anybody. */
  protected spend(): void {
    if (!this.#guard.spend()) throw new ConnectionError(H2_ERRORS.enhanceYourCalm, "a flood");
  }

  protected earn(credits: number): void {
    this.#guard.earn(credits);
  }

  // ------------------------------------------------------------------------- for the streams

  get hasRoom(): boolean {
    return !this.#isCongested;
  }

  touch(stream: Stream): void {
    if (stream.isTouched) return;
    stream.isTouched = true;
    this.#touched.push(stream);
  }

  wait(stream: Stream): void {
    this.#waiting.add(stream);
  }

  sendData(stream: Stream, bytes: Uint8Array): number {
    let sent = 0;
    while (sent < bytes.length && !this.#isCongested) {
      const wanted = Math.min(bytes.length - sent, MOST_PAYLOAD_BYTES);
      const length = Math.min(wanted, stream.sendWindow, this.#sendWindow);
      if (length <= 0) break;
      this.out.data(DATA, 0, stream.id, bytes.subarray(sent, sent + length));
      stream.sendWindow -= length;
      this.#sendWindow -= length;
      sent += length;
      // Its stream's window and the connection's may be widened for it.
      if (length === wanted || length >= FAIR_PIECE_BYTES) this.#guard.earn(2);
      if (this.out.length >= MOST_GATHERED_BYTES) this.flush();
    }
    if (sent > 0) this.flushSoon();
    return sent;
  }

  sendEnd(stream: Stream, trailers: string): void {
    const { out, encoder } = this;
    if (trailers !== "") {
      const at = out.beginBlock();
      encoder.begin(out);
      encoder.lines(out, trailers);
      out.endBlock(at, END_STREAM, stream.id);
    } else if (!out.endLast(stream.id)) out.data(DATA, END_STREAM, stream.id, NONE);
    this.flushSoon();
  }

  sendReset(id: number, code: number): void {
    this.out.head(RST_STREAM, 0, id, 4);
    this.out.u32(code);
    this.flushSoon();
  }

  used(stream: Stream, bytes: number, wasKept: boolean): void {
    if (!stream.isClosed && !stream.hasEnded) {
      const increment = stream.receiveWindow.give(bytes);
      if (increment > 0) this.#sendWindowUpdate(stream.id, increment);
    }
    if (!wasKept) return this.#credit(bytes);
    this.#keptBytes -= bytes;
    if (this.#owedBytes === 0 || this.#keptBytes > this.options.keptBytes) return;
    const owed = this.#owedBytes;
    this.#owedBytes = 0;
    this.#credit(owed);
  }

  /** A body that nobody reads does not hold up other streams, until there is too much of such. */
  kept(bytes: number): void {
    this.#keptBytes += bytes;
    if (this.#keptBytes <= this.options.keptBytes) this.#credit(bytes);
    else this.#owedBytes += bytes;
  }

  #credit(bytes: number): void {
    const increment = this.#receiveWindow.give(bytes);
    if (increment > 0) this.#sendWindowUpdate(0, increment);
  }

  #sendWindowUpdate(id: number, increment: number): void {
    this.out.head(WINDOW_UPDATE, 0, id, 4);
    this.out.u32(increment);
    this.flushSoon();
  }

  left(stream: Stream): void {
    this.open.delete(stream.id);
    this.#waiting.delete(stream);
    this.closed.add(stream.id, stream.isResetByUs);
    this.streamLeft(stream);
    if (this.isClosing && this.open.size === 0) this.#sayFarewell();
  }

  // -------------------------------------------------------------------------------- frames out

  protected sendGoaway(last: number, code: number): void {
    this.out.head(GOAWAY, 0, 0, 8);
    this.out.u32(last);
    this.out.u32(code);
    this.flushSoon();
  }

  /** Streams that wait take turns, a frame each, as long as there is room. */
  #pump(): void {
    const waiting = this.#waiting;
    for (const stream of waiting) {
      if (this.#isCongested || this.#sendWindow <= 0) return;
      waiting.delete(stream);
      if (stream.sendSome()) waiting.add(stream);
    }
  }

  protected flushSoon(): void {
    if (this.isReading || this.#isFlushDue) return;
    this.#isFlushDue = true;
    this.options.soon(() => {
      this.#isFlushDue = false;
      this.flush();
    });
  }

  protected flush(): void {
    const { out } = this;
    const socket = this.#socket;
    if (out.length === 0) return;
    // A large buffer goes to the socket as it is, and is ours again if the kernel took all of it.
    const isLarge = out.length > LARGE_WRITE_BYTES;
    const hasRoom = isLarge ? socket.write(out.view()) : socket.writeAround("", out.view(), "");
    out.clear(isLarge && socket.pendingBytes > 0);
    if (!hasRoom && socket.pendingBytes > 0) {
      this.#isCongested = true;
      if (socket.pendingBytes > MOST_STUCK_BYTES && !this.#isStuck) {
        this.#isStuck = true;
        socket.pause();
      }
    }
    this.flushed();
  }
}

function tooMuch(): ConnectionError {
  return new ConnectionError(H2_ERRORS.flowControl, "a window overflows");
}
