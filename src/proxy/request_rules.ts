/**
 * What parts of a request must look like, whatever protocol it came by.
 */

/** host[:port] without user information (RFC 9110 section 7.2, RFC 3986 section 3.2.2). */
export const HOST_VALUE =
  /^(?:\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9._~%-]+)?\]|[A-Za-z0-9._~!$&'()*+;=%-]+)(?::\d{0,5})?$/;

/** An `x-request-id` that we pass on and echo instead of minting one. */
export const REQUEST_ID = /^[A-Za-z0-9._:\/+=@~-]{1,128}$/;

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
