/**
 * Our two readers against llhttp, with fixed seeds: what ours accept, llhttp accepts, and it means
 * the same. (Not the other way round: ours may be stricter, llhttp then has the word.)
 */

import { test } from "uvu";
import * as assert from "uvu/assert";
import { AnswerReader, type AnswerSink } from "../../src/proxy/answer_reader.ts";
import {
  CONTENT_LENGTH,
  Head,
  parseLength,
  scanRequestLine,
  TRANSFER_ENCODING,
} from "../../src/proxy/head.ts";
import type { MessageHead } from "../../src/runtime/runtime.ts";
import { runtime } from "../support/runtime.ts";

const { latin1, messageParser } = runtime.wire;

/** mulberry32 */
function random(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}

function bytesOf(text: string): Uint8Array {
  const bytes = new Uint8Array(text.length);
  for (let at = 0; at < text.length; at++) bytes[at] = text.charCodeAt(at);
  return bytes;
}

const pick = <T>(next: () => number, choices: readonly T[]): T =>
  choices[Math.floor(next() * choices.length)] as T;

const NAMES = [
  "Host",
  "content-length",
  "Content-Length",
  "Transfer-Encoding",
  "transfer-encoding",
  "Connection",
  "Upgrade",
  "X-A",
  "x!#$%&'*+-.^_`|~9",
  "Cookie",
  "Keep-Alive",
  "Proxy-Connection",
];
const VALUES = [
  "a",
  "",
  "5",
  "0",
  "05",
  "5, 5",
  "+5",
  "-1",
  "0x5",
  "5 ",
  "chunked",
  "Chunked",
  "gzip, chunked",
  "identity",
  "close",
  "keep-alive",
  "upgrade",
  "websocket",
  "a\tb",
  "\xe9\x80\xff",
  " lead",
  "trail \t ",
  "18446744073709551617",
];
const BREAKS = [
  "\r\n",
  "\r\n",
  "\r\n",
  "\r\n",
  "\r\n",
  "\r\n",
  "\r\n",
  "\n",
  "\r",
  "\r\r\n",
  "\r\n ",
];
const COLONS = [": ", ": ", ": ", ":", ":  ", ":\t", " : ", " "];

function lines(next: () => number, line: () => string): string {
  let text = "";
  for (let count = Math.floor(next() * 5); count > 0; count--) {
    text += pick(next, NAMES) + pick(next, COLONS) + pick(next, VALUES) + line();
  }
  return text;
}

/** Changes, removes or adds a byte now and then. */
function mutate(next: () => number, text: string): string {
  if (next() < 0.5) return text;
  const at = Math.floor(next() * text.length);
  const byte = String.fromCharCode(Math.floor(next() * 256));
  const kind = next();
  if (kind < 0.4) return text.slice(0, at) + byte + text.slice(at + 1);
  if (kind < 0.7) return text.slice(0, at) + text.slice(at + 1);
  return text.slice(0, at) + byte + text.slice(at);
}

function lineBreaks(next: () => number): () => string {
  return next() < 0.7 ? () => "\r\n" : () => pick(next, BREAKS);
}

/** Lines as llhttp reports them against ours: names and trimmed values, in order. */
function sameLines(head: Head, lines: string): boolean {
  let ours = "";
  for (let line = 0; line < head.count; line++) {
    ours += `${head.name(line)}: ${head.value(line)}\r\n`;
  }
  return ours === lines;
}

test("a request head that the scanner accepts means the same to llhttp", () => {
  const head = new Head();
  let accepted = 0;
  for (let seed = 1; seed <= 60_000; seed++) {
    const next = random(seed);
    const line = lineBreaks(next);
    const start = pick(next, ["GET", "POST", "OPTIONS", "DELETE", "HEAD"]) +
      pick(next, [" ", " ", " ", "  "]) +
      pick(next, [
        "/",
        "/a?b=c",
        "*",
        "http://h/x",
        "/a b",
        "//x",
        "/%zz",
        "/\\",
        '/a{}|^`"<>',
        "/a#b",
      ]) +
      pick(next, [" ", " ", " ", "  "]) +
      pick(next, ["HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "http/1.1"]);
    const text = mutate(next, start + line() + lines(next, line) + line());
    const bytes = bytesOf(text);
    const request = { method: "", target: "" };
    const from = scanRequestLine(bytes, 0, bytes.length, latin1, request);
    if (from < 0) continue;
    const end = head.scan(bytes, from, bytes.length, latin1);
    if (end < 0 || head.has(TRANSFER_ENCODING)) continue;
    if (head.has(CONTENT_LENGTH)) {
      const isRepeated = (head.repeated & (1 << CONTENT_LENGTH)) !== 0;
      if (isRepeated || parseLength(head.first(CONTENT_LENGTH) ?? "") < 0) continue;
    }
    accepted += 1;
    let seen: MessageHead | undefined;
    const parser = messageParser("request", {
      head: (found) => (seen = found),
      body: () => {},
      end: () => {},
    });
    // Our scanner lets any upper-case method through; llhttp is asked about the rest of the message.
    parser.execute(bytesOf("GET"), 0);
    parser.execute(bytes.subarray(0, end), request.method.length);
    const what = JSON.stringify({ seed, text });
    assert.is(parser.error, undefined, what);
    assert.is(seen?.target, request.target, what);
    assert.is(seen?.version, 11, what);
    assert.ok(sameLines(head, seen?.lines ?? ""), what);
    parser.free();
  }
  assert.ok(accepted > 2000, `${accepted} were accepted`);
});

interface Read {
  head: string;
  body: string;
  trailers: string;
  complete: boolean;
}

/** Reads an answer with our reader, in pieces; undefined when it is refused. */
function readOurs(
  bytes: Uint8Array,
  method: string,
  cut: (left: number) => number,
): Read | undefined {
  const read: Read = { head: "", body: "", trailers: "", complete: false };
  const reader = new AnswerReader(latin1, 65536);
  const sink: AnswerSink = {
    onInterim: (status, reason, head) => void (read.head += describe(status, reason, head)),
    onHead: (status, reason, head) => void (read.head += describe(status, reason, head)),
    onChunk: (chunk) => void (read.body += latin1(chunk, 0, chunk.length)),
    onEnd: (trailers) => {
      read.trailers = normal(trailers);
      read.complete = true;
    },
    onSwitch: () => {},
  };
  reader.start(method, false);
  for (let at = 0; at < bytes.length && !reader.done && reader.error === undefined;) {
    const end = at + cut(bytes.length - at);
    reader.push(bytes.slice(at, end), sink);
    at = end;
  }
  if (reader.error !== undefined) return undefined;
  return read;
}

function describe(status: number, reason: string, head: Head): string {
  let text = `${status} ${reason}\n`;
  for (let line = 0; line < head.count; line++) {
    text += `${head.name(line)}: ${head.value(line)}\r\n`;
  }
  return text;
}

/** Lines without the liberties of white space around values. */
function normal(lines: string): string {
  return lines.split("\r\n").map((line) => {
    const colon = line.indexOf(":");
    return colon < 0
      ? line
      : `${line.slice(0, colon)}: ${line.slice(colon + 1).replace(/^[ \t]+|[ \t]+$/g, "")}`;
  }).join("\r\n");
}

/** The same with llhttp, which has no notion of an interim answer: the messages follow each other. */
function readTheirs(bytes: Uint8Array, method: string): Read | undefined {
  const read: Read = { head: "", body: "", trailers: "", complete: false };
  let status = 0;
  const parser = messageParser("response", {
    head: (head) => {
      status = head.status;
      read.head += `${head.status} ${head.reason}\n${head.lines}`;
    },
    body: (chunk) => void (read.body += latin1(chunk, 0, chunk.length)),
    end: (trailers) => (read.trailers = trailers),
  });
  try {
    let at = 0;
    for (;;) {
      parser.withoutBody = method === "HEAD";
      at = parser.execute(bytes, at);
      if (parser.error !== undefined) return undefined;
      if (!parser.complete) return read;
      if (status >= 200) return { ...read, complete: true };
      if (at >= bytes.length) return read;
      parser.reset();
    }
  } finally {
    parser.free();
  }
}

function answer(next: () => number): string {
  const line = lineBreaks(next);
  const status = pick(next, [
    "200 OK",
    "200",
    "200 ",
    "404 Not Found",
    "204 No Content",
    "304 X",
    "999 ?",
    "099 X",
    "20 X",
  ]);
  const version = pick(next, [
    "HTTP/1.1",
    "HTTP/1.1",
    "HTTP/1.1",
    "HTTP/1.0",
    "HTTP/1.2",
    "HTTP/2.0",
  ]);
  const interim = next() < 0.1 ? `HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n` : "";
  const framing = pick(next, [
    "Content-Length: 5\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Transfer-Encoding: chunked\r\n",
    "",
  ]);
  const body = framing.startsWith("T")
    ? pick(next, [
      "5\r\nhello\r\n0\r\n\r\n",
      '5;ext="a"\r\nhello\r\n3\r\nabc\r\n0\r\nX-T: 1\r\n\r\n',
      "05\r\nhello\r\n00\r\n\r\n",
      "A\r\n0123456789\r\n0\r\nX: y\r\nZ:\r\n\r\n",
      "5 \r\nhello\r\n0\r\n\r\n",
      "5\nhello\n0\n\n",
      "fffffffffffffffff\r\nx",
      "\r\n0\r\n\r\n",
    ])
    : "hello";
  return interim +
    mutate(next, `${version} ${status}${line()}${lines(next, line)}${framing}${line()}${body}`);
}

test("an answer that our reader accepts means the same to llhttp, wherever it is cut", () => {
  let accepted = 0;
  for (let seed = 1; seed <= 30_000; seed++) {
    const next = random(seed);
    const text = answer(next);
    const method = next() < 0.9 ? "GET" : "HEAD";
    const bytes = bytesOf(text);
    const whole = readOurs(bytes, method, (left) => left);
    const cut = readOurs(bytes, method, () => 1 + Math.floor(next() * 7));
    const what = JSON.stringify({ seed, method, text });
    assert.equal(cut, whole, what);
    if (whole === undefined || whole.head === "") continue;
    accepted += 1;
    const theirs = readTheirs(bytes, method);
    if (theirs === undefined) {
      // Ours may still be waiting for the byte that shows what llhttp has seen coming.
      assert.not.ok(whole.complete, what);
      continue;
    }
    assert.is(whole.head, theirs.head, what);
    assert.is(whole.body, theirs.body, what);
    assert.is(whole.trailers, theirs.trailers, what);
    if (whole.complete) assert.ok(theirs.complete, what);
  }
  assert.ok(accepted > 2000, `${accepted} were accepted`);
});

test("no bytes make our readers throw", () => {
  const head = new Head();
  for (let seed = 1; seed <= 5000; seed++) {
    const next = random(seed);
    const bytes = new Uint8Array(Math.floor(next() * 200)).map(() => Math.floor(next() * 256));
    head.scan(bytes, 0, bytes.length, latin1);
    scanRequestLine(bytes, 0, bytes.length, latin1, { method: "", target: "" });
    readOurs(bytes, "GET", (left) => left);
    const started = bytesOf(
      `HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n${latin1(bytes, 0, bytes.length)}`,
    );
    readOurs(started, "GET", () => 3);
  }
});

test.run();
