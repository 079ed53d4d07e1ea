/**
 * One HTTP/2 stream of a client: a request and its answer, like any other exchange.
 *
 * Flow control is the backpressure: a body that nobody reads is not acknowledged, and an answer that
 * the client's window has no room for stays with us, at most one high-water mark of it.
 */

import { BatonError } from "../errors.ts";
import {
  type ClientConnection,
  ClientExchange,
  isBodiless,
  type RequestFacts,
} from "./client_exchange.ts";
import type { Framing, RawSide } from "./client_side.ts";
import type { Timed } from "./deadlines.ts";
import type { StreamHandlers } from "./http2/handlers.ts";
import { H2_ERRORS } from "./http2/protocol.ts";
import type { ServerStream } from "./http2/server_session.ts";

/** How long the rest of a broken answer may take to leave before the stream is reset. */
const LAST_BYTES_MS = 2000;

/** The connection that a stream belongs to, as the stream sees it. */
export interface H2Owner extends ClientConnection {
  /** The stream is closed. `wasGivenUp`: by the client, before its answer was complete. */
  ended(exchange: H2Exchange, wasGivenUp: boolean): void;
}

export class H2Exchange extends ClientExchange implements StreamHandlers, Timed {
  deadlineMs = Infinity;
  deadlinePlace = -1;
  /** Where its connection keeps it. */
  place = -1;
  readonly #owner: H2Owner;
  readonly #stream: ServerStream;
  #isStalled = false;
  #windowBytes = 0;
  #isClosed = false;

  constructor(owner: H2Owner, stream: ServerStream, facts: RequestFacts) {
    super(owner, facts);
    this.#owner = owner;
    this.#stream = stream;
    this.core.deadlines.add(this);
    if (!this.requestComplete) this.#startWindow();
    stream.handle(this);
  }

  // ------------------------------------------------------------------------------- the request

  override pauseRequest(): void {
    super.pauseRequest();
    if (!this.requestComplete) this.#stream.pause();
  }

  resumeRequest(): void {
    if (!this.requestPaused) return;
    this.requestPaused = false;
    // A flush follows: the head must not wait for a body that waits for word from the target.
    this.#stream.resume();
  }

  data(chunk: Uint8Array): void {
    const { sink } = this;
    const most = this.core.limits.bodyBytes;
    this.#windowBytes += chunk.length;
    this.bytesFromClient += chunk.length;
    if (sink === undefined) return;
    if (most > 0 && this.bytesFromClient > most) return this.#refuseBody("body_too_large");
    sink.onRequestChunk(chunk);
  }

  end(trailers: string): void {
    if (this.requestComplete) return;
    this.requestComplete = true;
    if (!this.#isStalled) this.deadlineMs = Infinity;
    this.sink?.onRequestEnd(trailers);
  }

  flush(): void {
    this.sink?.onRequestFlush();
  }

  #refuseBody(code: "body_too_large" | "request_timeout"): void {
    this.breakRequest(new BatonError(code, `the request body is refused: ${code}`));
  }

  #startWindow(): void {
    const { bodyWindowMs } = this.core.limits;
    this.#windowBytes = 0;
    this.deadlineMs = bodyWindowMs > 0 ? this.core.now() + bodyWindowMs : Infinity;
  }

  onDeadline(nowMs: number): void {
    this.deadlineMs = Infinity;
    // The client has let its window stay closed for too long, or the last bytes had their time.
    if (this.#isStalled) return this.#stream.reset(H2_ERRORS.cancel);
    if (this.finished) return this.#stream.reset(H2_ERRORS.none);
    if (this.requestComplete) return;
    const waitsForUs = this.answered || this.requestPaused;
    if (waitsForUs || this.#windowBytes >= this.core.limits.bodyFloorBytes) {
      return this.#startWindow();
    }
    this.deadlineMs = nowMs + LAST_BYTES_MS;
    this.#refuseBody("request_timeout");
  }

  drain(): void {
    if (this.finished) return;
    this.#isStalled = false;
    this.deadlineMs = Infinity;
    if (!this.requestComplete) this.#startWindow();
    this.sink?.onClientDrain();
  }

  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    const wasGivenUp = !this.finished;
    this.deadlineMs = Infinity;
    this.core.deadlines.remove(this);
    this.abandon();
    this.#owner.ended(this, wasGivenUp);
  }

  // -------------------------------------------------------------------------------- the answer

  inform(status: number, _reason: string, lines: string): boolean {
    if (this.answered || this.finished) return true;
    const hasRoom = this.#stream.inform(status, lines);
    if (!hasRoom) this.stalled();
    return hasRoom;
  }

  startAnswer(
    status: number,
    _reason: string,
    lines: string,
    framing: Framing,
    _length: number,
    hasDate: boolean,
  ): void {
    if (this.answered || this.finished) return;
    const { core } = this;
    this.answered = true;
    this.status = status;
    this.firstByteMs = core.now();
    this.hasBody = framing !== "none" && !isBodiless(this.method, status);
    this.#stream.respond(status, hasDate ? lines : lines + core.dateLine());
  }

  protected write(body: Uint8Array | undefined): boolean {
    return body === undefined || this.#stream.write(body);
  }

  protected stalled(): void {
    const { writeStallMs } = this.core.limits;
    this.#isStalled = true;
    this.deadlineMs = writeStallMs > 0 ? this.core.now() + writeStallMs : Infinity;
  }

  protected complete(): void {
    const { core } = this;
    this.#stream.end(this.hasBody ? this.trailers : "");
    // What is still with us has to be taken in time, and of the request nobody reads any more.
    if (this.#stream.pendingBytes > 0) this.stalled();
    else this.deadlineMs = this.requestComplete ? Infinity : core.now() + core.limits.lingerMs;
    core.finished(this);
  }

  protected breakOff(): void {
    this.core.finished(this);
    this.#isStalled = true;
    this.deadlineMs = this.core.now() + LAST_BYTES_MS;
    this.#stream.breakOff(H2_ERRORS.internal);
  }

  /** Cannot happen: `upgrade` is never set, so nobody asks the target to switch. */
  openTunnel(): RawSide {
    throw new Error("an HTTP/2 stream has no upgrade");
  }

  closeTunnel(): void {}
}
