/**
 * A client's HTTP/2 connection: every stream of it becomes an exchange.
 *
 * What the protocol says is the session's; what a request must look like to be one that we pass on is
 * decided here, as for HTTP/1.1.
 */

import { BatonError } from "../errors.ts";
import type { ByteSocket } from "../runtime/runtime.ts";
import type { Framing } from "./client_side.ts";
import type { Timed } from "./deadlines.ts";
import { H2Exchange, type H2Owner } from "./h2_exchange.ts";
import { bit, HOST, isToken, TE } from "./head.ts";
import type { RequestHead } from "./http2/handlers.ts";
import { H2_ERRORS } from "./http2/protocol.ts";
import { type ServerHandlers, ServerSession, type ServerStream } from "./http2/server_session.ts";
import { badRequest, HOST_VALUE, identify, refusalOf } from "./request_rules.ts";
import { Roster } from "./roster.ts";
import { Stamper } from "./stamps.ts";
import type { ServedConnection, TrafficCore } from "./traffic_core.ts";

/** Streams that a client may give up in a burst, and a second: above that it works against us. */
const RESET_BURST = 200;
const RESETS_A_SECOND = 50;
/** What the fields of a section cost beside their text (RFC 9113 section 6.5.2: 32 a field). */
const FIELD_OVERHEAD_BYTES = 8192;
/** Bytes of bodies that their targets do not take yet, before the client has to wait. */
const KEPT_BYTES = 1024 * 1024;
/** How often it is asked whether the last bytes are with the kernel. */
const LOOK_MS = 50;

export class H2Connection implements H2Owner, ServedConnection, ServerHandlers, Timed {
  deadlineMs: number;
  deadlinePlace = -1;
  place = -1;
  readonly core: TrafficCore;
  readonly remoteAddress: string;
  readonly #session: ServerSession;
  readonly #stamper: Stamper;
  readonly #open = new Roster<"place", H2Exchange>("place");
  #resetsLeft = RESET_BURST;
  #resetsAtMs: number;
  #isClosed = false;
  /** Exchanges whose last bytes are not with the kernel yet. */
  #owed: (() => void)[] = [];
  #isLooking = false;

  constructor(core: TrafficCore, socket: ByteSocket) {
    this.core = core;
    this.remoteAddress = socket.remoteAddress;
    this.#stamper = new Stamper({
      remoteAddress: socket.remoteAddress,
      localPort: socket.localPort,
      scheme: core.scheme,
      isTrusted: core.trusted.has(socket.remoteAddress),
      pseudonym: core.pseudonym,
    });
    this.#resetsAtMs = core.now();
    this.deadlineMs = core.now() + core.limits.keepAliveMs;
    core.deadlines.add(this);
    const { streams, headerBytes, targetBytes } = core.limits;
    this.#session = new ServerSession({
      socket,
      clock: core.clock,
      latin1: core.latin1,
      soon: core.soon,
      headerBytes: headerBytes + targetBytes + FIELD_OVERHEAD_BYTES,
      keptBytes: KEPT_BYTES,
      mostStreams: streams,
    }, this);
  }

  /** Begins; `early` are bytes that were read from the socket already. */
  begin(early: Uint8Array): void {
    this.#session.begin(early);
  }

  stream(stream: ServerStream, request: RequestHead): void {
    const { core } = this;
    this.deadlineMs = Infinity;
    const { head, length } = request;
    const problem = this.#checkRequest(request);
    const host = problem === undefined ? head.first(HOST) : undefined;
    const stamped = this.#stamper.stamp(head, host, 20);
    const { requestId, stamps, stampedNames } = identify(head, stamped, core);
    const framing: Framing = length >= 0 ? "length" : request.isComplete ? "none" : "chunked";
    const exchange = new H2Exchange(this, stream, {
      requestId,
      method: request.method,
      target: request.path,
      head,
      httpVersion: 20,
      framing,
      length: Math.max(0, length),
      authority: undefined,
      upgrade: undefined,
      acceptsTrailers: head.has(TE),
      keepAlive: true,
      stamps,
      stampedNames,
      startedMs: core.now(),
    });
    if (request.isComplete) exchange.requestComplete = true;
    this.#open.add(exchange);
    const refusal = problem ?? refusalOf(request.method, head, length, core);
    if (refusal === undefined) return core.dispatch(exchange);
    core.begun(exchange);
    exchange.fail(refusal);
  }

  /** What is wrong with the request's fields. */
  #checkRequest({ method, path, head }: RequestHead): BatonError | undefined {
    const { limits } = this.core;
    if ((head.repeated & bit(HOST)) !== 0) return badRequest(":authority and host do not agree");
    if (method === "CONNECT") return undefined;
    if (!isToken(method)) return badRequest("the :method is not valid");
    const host = head.first(HOST);
    if (host === undefined) return badRequest("there is no :authority");
    if (!HOST_VALUE.test(host)) return badRequest("the :authority is not valid");
    const isPath = path.startsWith("/") || (path === "*" && method === "OPTIONS");
    if (!isPath || !/^[\x21-\x22\x24-\x7e]+$/.test(path)) {
      return badRequest("the :path is not valid");
    }
    if (path.length > limits.targetBytes) {
      return new BatonError("target_too_long", "the request target is too long");
    }
    if (head.text.length > limits.headerBytes) {
      return new BatonError("headers_too_large", "the header section is too large");
    }
    return undefined;
  }

  ended(exchange: H2Exchange, wasGivenUp: boolean): void {
    this.#open.delete(exchange);
    if (this.#open.size === 0 && !this.#isClosed) {
      this.deadlineMs = this.core.now() + this.core.limits.keepAliveMs;
    }
    if (wasGivenUp) this.#countReset();
    this.#settle(exchange);
  }

  /** The exchange counts as in flight until its bytes are with the kernel. */
  #settle(exchange: H2Exchange): void {
    const { release } = exchange;
    if (release === undefined) return;
    exchange.release = undefined;
    if (this.#isClosed || this.#session.pendingBytes === 0) release();
    else this.#owed.push(release);
  }

  flushed(): void {
    if (this.#owed.length === 0 || this.#isLooking) return;
    if (this.#session.pendingBytes === 0) return this.#payOwed();
    // A socket tells of its drain only when it was full, so this asks.
    this.#isLooking = true;
    this.core.after(LOOK_MS, () => {
      this.#isLooking = false;
      this.flushed();
    });
  }

  #payOwed(): void {
    for (const release of this.#owed.splice(0)) release();
  }

  /** Opening streams only to give them up costs us far more than the client (CVE-2023-44487). */
  #countReset(): void {
    const now = this.core.now();
    const earned = (now - this.#resetsAtMs) * RESETS_A_SECOND / 1000;
    this.#resetsLeft = Math.min(RESET_BURST, this.#resetsLeft + earned) - 1;
    this.#resetsAtMs = now;
    if (this.#resetsLeft < 0) this.#session.destroy(H2_ERRORS.enhanceYourCalm);
  }

  onDeadline(): void {
    this.deadlineMs = Infinity;
    if (this.#open.size === 0) this.#session.closeGently();
  }

  /** Tells the client to come back on another connection; what it still opens is served. */
  announceEnd(): void {
    this.#session.announceEnd();
  }

  shut(): void {
    this.#session.closeGently();
  }

  cut(): void {
    for (const exchange of [...this.#open]) exchange.cut();
    this.#session.destroy();
  }

  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.deadlineMs = Infinity;
    this.core.deadlines.remove(this);
    this.#payOwed();
    this.core.closed(this);
  }
}
