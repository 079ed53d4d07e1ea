/**
 * Reads a byte stream from outside with bounds on silence and on slowness.
 *
 * A total timeout would bound the size of what can be sent, so there is none here: what counts is
 * the time that we wait for the other side, never the time that we take ourselves.
 */

import type { Clock } from "../runtime/runtime.ts";

export interface PatienceOptions {
  readonly clock: Clock;
  /** Longest wait for the next bytes. */
  readonly idleTimeoutMs: number;
  /**
   * Bytes that must have come whenever we have waited for `idleTimeoutMs` in sum, so that a byte now
   * and then is not progress.
   */
  readonly leastBytesPerWindow?: number;
  /** Bytes after which the stream is given up; unbounded when absent. */
  readonly maxBytes?: number;
  readonly signal?: AbortSignal;
  /** Told about each chunk, for progress reports. */
  readonly onBytes?: (bytes: number) => void;
}

/** The other side sent nothing, or next to nothing, for too long. */
export class StreamStalled extends Error {
  override readonly name = "StreamStalled";
}

/** The stream has more bytes than allowed. */
export class StreamTooLong extends Error {
  override readonly name = "StreamTooLong";
}

/** The stream's non-empty chunks. Whenever it ends early, for any reason, the source is cancelled. */
export async function* patientReader(
  stream: ReadableStream<Uint8Array>,
  options: PatienceOptions,
): AsyncGenerator<Uint8Array, void> {
  const { clock, idleTimeoutMs, signal } = options;
  const leastBytes = options.leastBytesPerWindow ?? 1;
  const reader = stream.getReader();
  let total = 0;
  let windowBytes = 0;
  let windowWaitedMs = 0;
  let finished = false;
  try {
    for (;;) {
      const before = clock.monotonic();
      const result = await readWithin(reader, clock, idleTimeoutMs, signal);
      windowWaitedMs += clock.monotonic() - before;
      if (result.done) {
        finished = true;
        return;
      }
      const chunk = result.value;
      if (chunk.length === 0) continue;
      total += chunk.length;
      windowBytes += chunk.length;
      if (options.maxBytes !== undefined && total > options.maxBytes) {
        throw new StreamTooLong(`over ${options.maxBytes} bytes`);
      }
      if (windowWaitedMs >= idleTimeoutMs) {
        if (windowBytes < leastBytes) {
          throw new StreamStalled(`${windowBytes} bytes in ${Math.round(windowWaitedMs)} ms`);
        }
        windowBytes = 0;
        windowWaitedMs = 0;
      }
      options.onBytes?.(chunk.length);
      yield chunk;
    }
  } finally {
    // Not awaited: a source that never settles its cancellation must not hold us.
    if (!finished) reader.cancel("given up").catch(() => {});
  }
}

function readWithin(
  reader: ReadableStreamDefaultReader<Uint8Array>,
  clock: Clock,
  timeoutMs: number,
  signal: AbortSignal | undefined,
): Promise<ReadableStreamReadResult<Uint8Array>> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) {
      reject(signal.reason);
      return;
    }
    const aborted = (): void => {
      stopTimer();
      reject(signal?.reason);
    };
    const stopTimer = clock.after(timeoutMs, () => {
      signal?.removeEventListener("abort", aborted);
      reject(new StreamStalled(`nothing for ${timeoutMs} ms`));
    });
    signal?.addEventListener("abort", aborted, { once: true });
    reader.read().then(resolve, reject).finally(() => {
      stopTimer();
      signal?.removeEventListener("abort", aborted);
    });
  });
}
