/** The whole stream as bytes. */
export async function toArrayBuffer(stream: ReadableStream<Uint8Array>): Promise<ArrayBuffer> {
  const chunks: Uint8Array[] = [];
  let length = 0;
  for await (const chunk of stream) {
    chunks.push(chunk);
    length += chunk.length;
  }
  const all = new Uint8Array(length);
  let at = 0;
  for (const chunk of chunks) {
    all.set(chunk, at);
    at += chunk.length;
  }
  return all.buffer;
}

/** The whole stream as text: strings joined, bytes decoded as UTF-8. */
export async function toText(stream: ReadableStream<string | Uint8Array>): Promise<string> {
  const decoder = new TextDecoder();
  let text = "";
  for await (const chunk of stream) {
    text += typeof chunk === "string" ? chunk : decoder.decode(chunk, { stream: true });
  }
  return text + decoder.decode();
}

/** The whole stream parsed as one JSON value. */
export async function toJson(stream: ReadableStream<string | Uint8Array>): Promise<unknown> {
  return JSON.parse(await toText(stream));
}
