/**
 * Answers of our own making, and bodies that we read ourselves: the same over every protocol.
 */

import { BatonError } from "../errors.ts";
import type { ClientSide } from "./client_side.ts";
import { EXPECT, isFieldValue, isToken } from "./head.ts";
import { reasonPhrase } from "./reason_phrase.ts";

const NONE = new Uint8Array(0);

/** Methods that we know to work through us, for `Allow` on a 405. */
export const ALLOWED = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";

/** A whole answer, ready to be framed. */
export interface OwnAnswer {
  readonly status: number;
  readonly lines: string;
  readonly body: Uint8Array;
}

/** What a client is told about an error, and the error's code for the log. */
export function errorAnswer(error: unknown, requestId: string): OwnAnswer & { code: string } {
  const known = error instanceof BatonError ? error : new BatonError("internal", "internal error");
  const fields = { code: known.code, message: known.message, ...known.detail };
  const body = new TextEncoder().encode(JSON.stringify({ error: fields }) + "\n");
  let lines = "content-type: application/json\r\ncache-control: no-store\r\n" +
    `content-length: ${body.length}\r\nx-request-id: ${requestId}\r\n`;
  if (known.retryAfterS !== undefined) lines += `retry-after: ${known.retryAfterS}\r\n`;
  if (known.status === 405) lines += `allow: ${ALLOWED}\r\n`;
  return { status: known.status, lines, body, code: known.code };
}

/** The headers of a Response of ours as lines; undefined when one cannot stand on a line. */
export function responseLines(response: Response, requestId: string): string | undefined {
  let lines = "";
  let hasId = false;
  for (const [name, value] of response.headers) {
    if (name === "connection" || name === "transfer-encoding" || name === "keep-alive") continue;
    if (!isToken(name) || !isFieldValue(value)) return undefined;
    if (name === "x-request-id") hasId = true;
    lines += `${name}: ${value}\r\n`;
  }
  return hasId ? lines : `${lines}x-request-id: ${requestId}\r\n`;
}

/** The answer to send for a Response without a body. */
export function bodilessAnswer(method: string, status: number, lines: string): OwnAnswer {
  const isBodiless = method === "HEAD" || status === 204 || status === 304;
  const whole = isBodiless || /^content-length:/im.test(lines)
    ? lines
    : `${lines}content-length: 0\r\n`;
  return { status, lines: whole, body: NONE };
}

/** Sends a Response's body as it comes; a body that fails breaks the answer. */
export async function streamResponse(
  side: ClientSide,
  response: Response,
  body: ReadableStream<Uint8Array>,
  lines: string,
): Promise<void> {
  const reader = body.getReader();
  let wake: (() => void) | undefined;
  side.attach({
    onRequestChunk: () => {},
    onRequestEnd: () => {},
    onRequestFlush: () => {},
    onClientDrain: () => wake?.(),
    onClientGone: () => {
      wake?.();
      void reader.cancel("the client has left").catch(() => {});
    },
  });
  try {
    let read = await reader.read();
    const stated = Number(response.headers.get("content-length") ?? NaN);
    const framing = Number.isInteger(stated) ? "length" : "chunked";
    side.startAnswer(
      response.status,
      response.statusText || reasonPhrase(response.status),
      lines,
      framing,
      framing === "length" ? stated : 0,
      response.headers.has("date"),
    );
    while (!read.done && !side.finished) {
      side.answerChunk(read.value);
      if (!side.flushAnswer()) await new Promise<void>((resolve) => (wake = resolve));
      read = await reader.read();
    }
    side.endAnswer("");
    side.flushAnswer();
  } catch {
    if (side.answered) side.breakAnswer("internal");
    else side.fail(new BatonError("internal", "internal error"));
  }
}

/** Reads the request's whole body. Rejects with `body_too_large` or `client_closed`. */
export function readWholeBody(side: ClientSide, limitBytes: number): Promise<Uint8Array> {
  // Without a body, or with one of length 0, no end will be told.
  if (side.requestComplete) return Promise.resolve(NONE);
  if (side.requestFraming === "length" && side.requestLength > limitBytes) {
    return Promise.reject(tooLarge(limitBytes));
  }
  return new Promise((resolve, reject) => {
    const pieces: Uint8Array[] = [];
    let size = 0;
    side.attach({
      onRequestChunk: (chunk) => {
        size += chunk.length;
        if (size <= limitBytes) return void pieces.push(chunk.slice());
        side.detach();
        reject(tooLarge(limitBytes));
      },
      onRequestEnd: () => {
        side.detach();
        resolve(joinPieces(pieces, size));
      },
      onRequestFlush: () => {},
      onClientDrain: () => {},
      onClientGone: () => reject(new BatonError("client_closed", "the client has left")),
    });
    // The client may be waiting for the word before it sends the body (RFC 9110 section 10.1.1).
    const waits = side.requestHead.first(EXPECT)?.toLowerCase() === "100-continue";
    if (waits && side.httpVersion >= 11) side.inform(100, "Continue", "");
    side.resumeRequest();
  });
}

/** The pieces as one array. `size` is their length in all. */
export function joinPieces(pieces: readonly Uint8Array[], size: number): Uint8Array {
  const all = new Uint8Array(size);
  let at = 0;
  for (const piece of pieces) {
    all.set(piece, at);
    at += piece.length;
  }
  return all;
}

function tooLarge(limitBytes: number): BatonError {
  return new BatonError("body_too_large", `the body is larger than ${limitBytes} bytes`);
}
