/** One request on an HTTP/1.1 connection, and the framing of its answer. */

import { ClientExchange, isBodiless, type RequestFacts } from "./client_exchange.ts";
import type { Framing, RawSide, RequestSink, TunnelEnd } from "./client_side.ts";
import type { H1Connection } from "./h1_connection.ts";
import { EXPECT } from "./head.ts";

const MOST_SKIPPED_BYTES = 65536;
const IGNORE: RequestSink = {
  onRequestChunk: () => {},
  onRequestEnd: () => {},
  onRequestFlush: () => {},
  onClientDrain: () => {},
  onClientGone: () => {},
};

export class H1Exchange extends ClientExchange {
  readonly #connection: H1Connection;
  /** The answer's head, until it leaves. */
  #head = "";
  #framing: Framing = "none";

  constructor(connection: H1Connection, facts: RequestFacts) {
    super(connection, facts);
    this.#connection = connection;
  }

  /** The answer has begun, and has neither a length nor chunks. */
  get endsWithConnection(): boolean {
    return this.#framing === "close";
  }

  resumeRequest(): void {
    if (!this.requestPaused) return;
    this.requestPaused = false;
    this.#connection.resumeRequest();
  }

  // -------------------------------------------------------------------------------- the answer

  inform(status: number, reason: string, lines: string): boolean {
    if (this.answered || this.finished || this.httpVersion < 11) return true;
    const hasRoom = this.#connection.write(`HTTP/1.1 ${status} ${reason}\r\n${lines}\r\n`);
    if (!hasRoom) this.stalled();
    return hasRoom;
  }

  startAnswer(
    status: number,
    reason: string,
    lines: string,
    framing: Framing,
    _length: number,
    hasDate: boolean,
  ): void {
    if (this.answered || this.finished) return;
    const { core } = this;
    this.answered = true;
    this.status = status;
    let extra = hasDate ? "" : core.dateLine();
    if (isBodiless(this.method, status)) this.#framing = "none";
    else if (framing === "length" || framing === "none") this.#framing = framing;
    else if (this.httpVersion >= 11) {
      this.#framing = "chunked";
      extra += "transfer-encoding: chunked\r\n";
    } else {
      this.#framing = "close";
      this.keepAlive = false;
    }
    this.hasBody = this.#framing !== "none";
    if (core.draining || !this.requestComplete) this.keepAlive = false;
    if (!this.keepAlive) extra += "connection: close\r\n";
    else if (this.httpVersion < 11) extra += "connection: keep-alive\r\n";
    this.#head = `HTTP/1.1 ${status} ${reason}\r\n${lines}${extra}\r\n`;
    this.firstByteMs = core.now();
  }

  protected write(body: Uint8Array | undefined): boolean {
    let before = this.#head;
    this.#head = "";
    const isChunked = this.#framing === "chunked";
    const end = isChunked && this.hasEnd ? `0\r\n${this.trailers}\r\n` : "";
    if (body === undefined) {
      const text = before + end;
      return text === "" ? true : this.#connection.write(text);
    }
    if (isChunked) before += `${body.length.toString(16)}\r\n`;
    return this.#connection.writeAround(before, body, isChunked ? `\r\n${end}` : "");
  }

  protected complete(): void {
    this.#connection.exchangeDone(this);
  }

  protected stalled(): void {
    this.#connection.answerStalled();
  }

  /**
   * Without a length or chunks the end of the connection is the end of the body: only a reset tells
   * the client that this one is not.
   */
  protected breakOff(): void {
    this.#connection.breakOff(this, this.endsWithConnection);
  }

  protected override sendWhole(status: number, lines: string, body: Uint8Array): void {
    this.#skipSmallBody();
    super.sendWhole(status, lines, body);
  }

  /** A small body that nobody will read is read away, so that the connection can go on. */
  #skipSmallBody(): void {
    if (this.requestComplete || this.sink !== undefined || this.requestFraming !== "length") return;
    if (this.requestLength > MOST_SKIPPED_BYTES || this.requestHead.has(EXPECT)) return;
    this.attach(IGNORE);
    this.resumeRequest();
    this.sink = undefined;
  }

  openTunnel(reason: string, lines: string, end: TunnelEnd): RawSide {
    this.answered = true;
    this.status = 101;
    this.firstByteMs = this.core.now();
    this.sink = undefined;
    return this.#connection.enterTunnel(`HTTP/1.1 101 ${reason}\r\n${lines}\r\n`, end);
  }

  closeTunnel(reason: string | undefined, bytesToClient: number): void {
    if (this.finished) return;
    this.finished = true;
    this.reason ??= reason;
    this.bytesToClient = bytesToClient;
    this.core.finished(this);
  }
}
