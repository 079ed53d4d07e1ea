/**
 * Unpacking a dump.
 */

import { DumpBroken } from "./dump_format.ts";

/**
 * Unpacks gzip. Throws `DumpBroken` for data that is none, is damaged or ends early (what runtimes say
 * of it differs, and one says nothing), and what `packed` throws as it is.
 */
export async function* gunzip(
  packed: AsyncIterable<Uint8Array>,
): AsyncGenerator<Uint8Array, void> {
  const gzip = new DecompressionStream("gzip") as TransformStream<Uint8Array, Uint8Array>;
  let failed: { readonly error: unknown } | undefined;
  const source = async function* (): AsyncGenerator<Uint8Array, void> {
    try {
      yield* packed;
    } catch (error) {
      failed = { error };
      throw error;
    }
  };
  const reader = ReadableStream.from(source()).pipeThrough(gzip).getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read().catch(() => {
        throw failed === undefined
          ? new DumpBroken("its gzip data is damaged or ends early")
          : failed.error;
      });
      if (done) return;
      yield value;
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}
