/**
 * A client's HTTP/2 connection: every stream of it becomes an exchange.
 *
 * Frames, flow control and the compression of fields are the runtime's (nghttp2); what a request
 * must look like to be one that we pass on is decided here, as for HTTP/1.1.
 */

import { BatonError } from "../errors.ts";
import {
  HTTP2_ERRORS,
  type Http2RequestHead,
  type Http2ServerSession,
  type Http2ServerStream,
} from "../runtime/http2_contract.ts";
import type { ByteSocket } from "../runtime/runtime.ts";
import type { Framing } from "./client_side.ts";
import type { Timed } from "./deadlines.ts";
import { H2Exchange, type H2Owner } from "./h2_exchange.ts";
import { bit, CONTENT_LENGTH, Head, parseLength, X_REQUEST_ID } from "./head.ts";
import { HOST_VALUE, REQUEST_ID } from "./request_rules.ts";
import { Stamper, timesInVia } from "./stamps.ts";
import type { ServedConnection, TrafficCore } from "./traffic_core.ts";

/** Streams that a client may give up in a burst, and a second: above that it works against us. */
const RESET_BURST = 200;
const RESETS_A_SECOND = 50;
/** What the fields of a section cost beside their text (RFC 9113 section 6.5.2: 32 a field). */
const FIELD_OVERHEAD_BYTES = 8192;

export class H2Connection implements H2Owner, ServedConnection, Timed {
  deadlineMs: number;
  readonly core: TrafficCore;
  readonly remoteAddress: string;
  readonly #session: Http2ServerSession;
  readonly #stamper: Stamper;
  readonly #open = new Set<H2Exchange>();
  #resetsLeft = RESET_BURST;
  #resetsAtMs: number;
  #isClosed = false;

  /** `early` are bytes that were read from the socket already. */
  constructor(core: TrafficCore, socket: ByteSocket, early: Uint8Array) {
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
    this.#session = core.http2.serve(
      socket,
      early,
      { streams, headerBytes: headerBytes + targetBytes + FIELD_OVERHEAD_BYTES },
      {
        stream: (stream, head) => this.#begin(stream, head),
        close: () => this.#closed(),
      },
    );
  }

  #begin(stream: Http2ServerStream, request: Http2RequestHead): void {
    const { core } = this;
    this.deadlineMs = Infinity;
    const head = new Head();
    const problem = this.#read(request, head);
    const host = head.find("host");
    let requestId = head.first(X_REQUEST_ID);
    const stamped = this.#stamper.stamp(head, problem === undefined ? host : undefined, 20);
    let { lines: stamps, replaced: stampedNames } = stamped;
    const isKept = requestId !== undefined && REQUEST_ID.test(requestId);
    if (requestId === undefined || !isKept || (head.repeated & bit(X_REQUEST_ID)) !== 0) {
      if (requestId === undefined || !isKept) requestId = core.mintRequestId();
      stamps += `x-request-id: ${requestId}\r\n`;
      stampedNames |= bit(X_REQUEST_ID);
    }
    const length = head.has(CONTENT_LENGTH) ? parseLength(head.first(CONTENT_LENGTH) ?? "") : -1;
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
      acceptsTrailers: head.find("te")?.trim().toLowerCase() === "trailers",
      keepAlive: true,
      stamps,
      stampedNames,
      startedMs: core.now(),
    });
    if (request.isComplete) exchange.requestComplete = true;
    this.#open.add(exchange);
    const refusal = problem ?? this.#check(exchange, length);
    if (refusal === undefined) return core.dispatch(exchange);
    core.begun(exchange);
    exchange.fail(refusal);
  }

  /** Fills `head` with the request's fields as lines; answers what is wrong with the request. */
  #read(request: Http2RequestHead, head: Head): BatonError | undefined {
    const { limits, latin1 } = this.core;
    const { method, path, authority, fields } = request;
    let text = "";
    let host = authority;
    let cookie: string | undefined;
    for (let at = 0; at + 1 < fields.length; at += 2) {
      const name = fields[at] as string;
      const value = fields[at + 1] as string;
      if (name === "host") {
        // Both may be sent, and then must agree (RFC 9113 section 8.3.1).
        if (host !== undefined && host.toLowerCase() !== value.toLowerCase()) {
          return bad(":authority and host do not agree");
        }
        host ??= value;
      } else if (name === "cookie") {
        // Crumbs of one header line (section 8.2.3).
        cookie = cookie === undefined ? value : `${cookie}; ${value}`;
      } else text += `${name}: ${value}\r\n`;
    }
    if (cookie !== undefined) text += `cookie: ${cookie}\r\n`;
    if (host !== undefined) text = `host: ${host}\r\n${text}`;
    const bytes = new Uint8Array(text.length + 2);
    for (let at = 0; at < text.length; at++) bytes[at] = text.charCodeAt(at);
    bytes.set([13, 10], text.length);
    if (head.scan(bytes, 0, bytes.length, latin1) < 0) {
      head.clear();
      return bad("a header field is not valid");
    }
    if (method === "CONNECT") return undefined;
    if (host === undefined) return bad("there is no :authority");
    if (!HOST_VALUE.test(host)) return bad("the :authority is not valid");
    const isPath = path.startsWith("/") || (path === "*" && method === "OPTIONS");
    if (!isPath || !/^[\x21-\x22\x24-\x7e]+$/.test(path)) return bad("the :path is not valid");
    if (path.length > limits.targetBytes) {
      return new BatonError("target_too_long", "the request target is too long");
    }
    if (text.length > limits.headerBytes) {
      return new BatonError("headers_too_large", "the header section is too large");
    }
    return undefined;
  }

  #check(exchange: H2Exchange, length: number): BatonError | undefined {
    const { limits, pseudonym } = this.core;
    const { method } = exchange;
    if (method === "CONNECT" || method === "TRACE") {
      return new BatonError("method_not_allowed", `${method} is not served here`);
    }
    if (limits.bodyBytes > 0 && length > limits.bodyBytes) {
      return new BatonError("body_too_large", `the body is larger than ${limits.bodyBytes} bytes`);
    }
    if (timesInVia(exchange.requestHead, pseudonym) >= 2) {
      return new BatonError("loop_detected", `the request has been here before (${pseudonym})`);
    }
    return undefined;
  }

  ended(exchange: H2Exchange, code: number): void {
    this.#open.delete(exchange);
    if (this.#open.size === 0 && !this.#isClosed) {
      this.deadlineMs = this.core.now() + this.core.limits.keepAliveMs;
    }
    if (code !== HTTP2_ERRORS.none) this.#countReset();
  }

  /** Opening streams only to give them up costs us far more than the client (CVE-2023-44487). */
  #countReset(): void {
    const now = this.core.now();
    const earned = (now - this.#resetsAtMs) * RESETS_A_SECOND / 1000;
    this.#resetsLeft = Math.min(RESET_BURST, this.#resetsLeft + earned) - 1;
    this.#resetsAtMs = now;
    if (this.#resetsLeft < 0) this.#session.destroy(HTTP2_ERRORS.enhanceYourCalm);
  }

  onDeadline(): void {
    this.deadlineMs = Infinity;
    if (this.#open.size === 0) this.#session.close();
  }

  /** Tells the client to come back on another connection; what it still opens is served. */
  announceEnd(): void {
    this.#session.announceEnd();
  }

  shut(): void {
    this.#session.close();
  }

  cut(): void {
    this.#session.destroy();
  }

  #closed(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.deadlineMs = Infinity;
    this.core.deadlines.remove(this);
    this.core.closed(this);
  }
}

function bad(message: string): BatonError {
  return new BatonError("bad_request", message);
}
