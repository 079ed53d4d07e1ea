/** Artifacts for tests, made on the spot: zips and tar.gz trees with whatever is in them. */

import { createHash } from "node:crypto";
import { ZipWriter } from "@zip.js/zip.js";
import { packTar, type TarEntry } from "modern-tar";

export function sha256(bytes: Uint8Array | string): string {
  return createHash("sha256").update(bytes).digest("hex");
}

export interface ZipEntry {
  readonly name: string;
  readonly content: Uint8Array | string;
  /** Unix mode with the file type, e.g. 0o100644 or 0o120777 for a link. */
  readonly mode?: number;
  readonly folder?: true;
}

/** A zip with these entries in this order, names exactly as given. */
export async function makeZip(entries: readonly ZipEntry[]): Promise<Uint8Array> {
  const chunks: Uint8Array[] = [];
  const zip = new ZipWriter(
    new WritableStream<Uint8Array>({
      write: (chunk) => {
        chunks.push(chunk.slice());
      },
    }),
    { useWebWorkers: false, extendedTimestamp: false, lastModDate: new Date(1.6e12) },
  );
  for (const { name, content, mode, folder } of entries) {
    const bytes = typeof content === "string" ? new TextEncoder().encode(content) : content;
    await zip.add(
      name,
      folder === true ? undefined : new Blob([bytes as Uint8Array<ArrayBuffer>]).stream(),
      {
        ...(mode === undefined ? {} : { unixMode: mode }),
        ...(folder === true ? { directory: true } : {}),
      },
    );
  }
  await zip.close();
  return join(chunks);
}

/** A gzipped tar with these entries in this order. */
export async function makeTarGz(entries: readonly TarEntry[]): Promise<Uint8Array> {
  return await gzip(await packTar(entries));
}

export async function gzip(bytes: Uint8Array): Promise<Uint8Array> {
  const packed = new Blob([bytes as Uint8Array<ArrayBuffer>]).stream()
    .pipeThrough(new CompressionStream("gzip"));
  return new Uint8Array(await new Response(packed).arrayBuffer());
}

/** A file entry for `makeTarGz`. */
export function tarFile(name: string, content: string, mode = 0o644): TarEntry {
  const size = new TextEncoder().encode(content).length;
  return { header: { name, size, type: "file", mode }, body: content };
}

function join(chunks: readonly Uint8Array[]): Uint8Array {
  const all = new Uint8Array(chunks.reduce((size, chunk) => size + chunk.length, 0));
  let at = 0;
  for (const chunk of chunks) {
    all.set(chunk, at);
    at += chunk.length;
  }
  return all;
}

/** Bytes that do not compress, the same for the same seed. */
export function noise(length: number, seed = 1): Uint8Array {
  const bytes = new Uint8Array(length);
  let state = seed >>> 0 || 1;
  for (let at = 0; at < length; at++) {
    state ^= state << 13;
    state >>>= 0;
    state ^= state >>> 17;
    state ^= state << 5;
    state >>>= 0;
    bytes[at] = state;
  }
  return bytes;
}
