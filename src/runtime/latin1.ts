/** Bytes to text, one char a byte: TextDecoder's "latin1" is windows-1252, and slow. */

import { Buffer } from "node:buffer";

type Slice = (this: Uint8Array, start: number, end: number) => string;

/** Buffer's native slice works on any Uint8Array; it is not in the types. */
const native = (Buffer.prototype as unknown as { latin1Slice?: Slice }).latin1Slice;

/** Decodes `bytes[start..end)` as ISO 8859-1. */
export function latin1(bytes: Uint8Array, start: number, end: number): string {
  if (native !== undefined) return native.call(bytes, start, end);
  return Buffer.from(bytes.buffer, bytes.byteOffset + start, end - start).toString("latin1");
}
