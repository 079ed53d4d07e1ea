/**
 * What a request must look like to be passed on, whatever protocol it came by.
 */

import { BatonError } from "../errors.ts";
import { bit, type Head, X_REQUEST_ID } from "./head.ts";
import type { Limits } from "./limits.ts";
import { type Stamps, timesInVia } from "./stamps.ts";

/** host[:port] without user information (RFC 9110 section 7.2, RFC 3986 section 3.2.2). */
export const HOST_VALUE =
  /^(?:\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9._~%-]+)?\]|[A-Za-z0-9._~!$&'()*+;=%-]+)(?::\d{0,5})?$/;

/** An `x-request-id` that we pass on and echo instead of minting one. */
const REQUEST_ID = /^[A-Za-z0-9._:\/+=@~-]{1,128}$/;

/** The preface of HTTP/2 with prior knowledge (RFC 9113 section 3.4). */
export const HTTP2_PREFACE = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/** Whether bytes begin an HTTP/2 connection: yes, no, or perhaps when they end before that shows. */
export function isHttp2Preface(bytes: Uint8Array): boolean | undefined {
  const length = Math.min(bytes.length, HTTP2_PREFACE.length);
  for (let at = 0; at < length; at++) {
    if (bytes[at] !== HTTP2_PREFACE.charCodeAt(at)) return false;
  }
  return length === HTTP2_PREFACE.length ? true : undefined;
}

export function badRequest(message: string): BatonError {
  return new BatonError("bad_request", message);
}

/** A request's id, and its stamps with the id among them where it is not the client's own line. */
export interface Identity {
  readonly requestId: string;
  readonly stamps: string;
  readonly stampedNames: number;
}

/** Keeps the id that a request came with, if it is a valid one, or mints one. */
export function identify(
  head: Head,
  stamped: Stamps,
  core: { mintRequestId(): string },
): Identity {
  const { lines, replaced } = stamped;
  const given = head.first(X_REQUEST_ID);
  const isValid = given !== undefined && REQUEST_ID.test(given);
  if (isValid && (head.repeated & bit(X_REQUEST_ID)) === 0) {
    return { requestId: given, stamps: lines, stampedNames: replaced };
  }
  const requestId = isValid ? given : core.mintRequestId();
  return {
    requestId,
    stamps: `${lines}x-request-id: ${requestId}\r\n`,
    stampedNames: replaced | bit(X_REQUEST_ID),
  };
}

/**
 * Why a well-formed request is not served here. `length` is that of its body: Infinity, or less than
 * 0, where nothing says it.
 */
export function refusalOf(
  method: string,
  head: Head,
  length: number,
  { limits, pseudonym }: { readonly limits: Limits; readonly pseudonym: string },
): BatonError | undefined {
  if (method === "CONNECT" || method === "TRACE") {
    return new BatonError("method_not_allowed", `${method} is not served here`);
  }
  if (limits.bodyBytes > 0 && length > limits.bodyBytes && length !== Infinity) {
    return new BatonError("body_too_large", `the body is larger than ${limits.bodyBytes} bytes`);
  }
  // Passing twice is a way in and out again; a third time is a circle.
  if (timesInVia(head, pseudonym) >= 2) {
    return new BatonError("loop_detected", `the request has been here before (${pseudonym})`);
  }
  return undefined;
}
