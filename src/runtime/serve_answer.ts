/**
 * Writing a fetch-shaped answer to a `node:http` response.
 *
 * Hono's adapter could do it, but it appends the text of a body's error to the body, prints it to the
 * console, and makes up a content type; here a body that fails cuts the connection and nothing else.
 */

import type { OutgoingHttpHeaders, ServerResponse } from "node:http";

/** Resolves when the answer was handed over, or the connection is gone. Never rejects. */
export async function writeAnswer(response: Response, outgoing: ServerResponse): Promise<void> {
  if (outgoing.destroyed) {
    await response.body?.cancel().catch(() => {});
    return;
  }
  try {
    if (response.body === null) {
      outgoing.writeHead(response.status, headersOf(response.headers)).end();
    } else {
      await writeBody(response, response.body.getReader(), outgoing);
    }
  } catch {
    outgoing.destroy();
  }
}

type Reader = ReadableStreamDefaultReader<Uint8Array>;

async function writeBody(
  response: Response,
  reader: Reader,
  outgoing: ServerResponse,
): Promise<void> {
  const cancel = () => void reader.cancel().catch(() => {});
  outgoing.once("close", cancel);
  // A body may fail while nobody awaits its next chunk, because the client does not read.
  const read = () => {
    const chunk = reader.read();
    chunk.catch(() => outgoing.destroy());
    return chunk;
  };
  const headers = headersOf(response.headers);
  let next = read();
  const first = await orNothingYet(next);
  if (first !== undefined && !first.done) {
    next = read();
    const second = await orNothingYet(next);
    if (second?.done) {
      // All of it is here: one write, with its length.
      headers["content-length"] ??= first.value.length;
      outgoing.writeHead(response.status, headers).end(first.value);
      return;
    }
  }
  outgoing.writeHead(response.status, headers);
  if (first === undefined) outgoing.flushHeaders();
  else if (!first.done) await write(outgoing, first.value);
  while (!outgoing.destroyed) {
    const { done, value } = await next;
    if (done) break;
    await write(outgoing, value);
    next = read();
  }
  outgoing.end();
}

/** What a read gives before the loop turns once: strings and bytes in memory, never a live stream. */
function orNothingYet<T>(read: Promise<T>): Promise<T | undefined> {
  return Promise.race([
    read,
    new Promise<undefined>((resolve) => setImmediate(() => resolve(undefined))),
  ]);
}

/** Resolves at once while there is room, else once the buffer has drained or the client has left. */
async function write(outgoing: ServerResponse, chunk: Uint8Array): Promise<void> {
  if (outgoing.write(chunk)) return;
  if (outgoing.destroyed) return;
  await new Promise<void>((resolve) => {
    const done = () => {
      outgoing.off("drain", done);
      outgoing.off("close", done);
      resolve();
    };
    outgoing.on("drain", done);
    outgoing.on("close", done);
  });
}

function headersOf(headers: Headers): OutgoingHttpHeaders {
  const record: OutgoingHttpHeaders = {};
  for (const [name, value] of headers) {
    if (name !== "set-cookie") record[name] = value;
  }
  const cookies = headers.getSetCookie();
  if (cookies.length > 0) record["set-cookie"] = cookies;
  return record;
}
