/**
 * Turns slices into a response body that is made only as fast as it is read.
 */

import type { Clock } from "../runtime/runtime.ts";
import type { WorkSlice } from "../kv/work_slice.ts";

export type DumpEnd = "complete" | "failed" | "cancelled" | "stalled" | "too_long";

export interface DumpBodyOptions {
  readonly clock: Clock;
  /** Says when to rest between slices; who makes them may end one early for it. */
  readonly work: WorkSlice;
  /** A reader that takes nothing for this long loses its dump. */
  readonly idleTimeoutMs: number;
  /** Bytes after which the body is broken; unbounded when absent. */
  readonly maxBytes?: number;
  /** Called exactly once, whichever way it ends. */
  readonly onEnd: (end: DumpEnd, bytes: number, error?: unknown) => void;
}

/**
 * A body that breaks (the transfer ends without its terminator) when making a slice throws: nobody
 * downstream may take a cut body for a whole one.
 */
export function dumpBody(
  slices: AsyncIterator<Uint8Array<ArrayBuffer>, void>,
  options: DumpBodyOptions,
): ReadableStream<Uint8Array<ArrayBuffer>> {
  const { clock, work } = options;
  let bytes = 0;
  let ended = false;
  let stopTimer = (): void => {};
  const end = (how: DumpEnd, error?: unknown): void => {
    if (ended) return;
    ended = true;
    stopTimer();
    void slices.return?.();
    options.onEnd(how, bytes, error);
  };
  return new ReadableStream<Uint8Array<ArrayBuffer>>({
    async pull(controller) {
      stopTimer();
      const rest = work.rest();
      if (rest !== undefined) await rest;
      if (ended) return;
      const broken = (how: DumpEnd, error: unknown): void => {
        end(how, error);
        controller.error(error);
      };
      try {
        const next = await slices.next();
        if (ended) return;
        if (next.done === true) {
          end("complete");
          controller.close();
          return;
        }
        bytes += next.value.length;
        if (options.maxBytes !== undefined && bytes > options.maxBytes) {
          broken("too_long", new Error(`the dump has over ${options.maxBytes} bytes`));
          return;
        }
        controller.enqueue(next.value);
        stopTimer = clock.after(options.idleTimeoutMs, () => {
          broken("stalled", new Error(`the reader took nothing for ${options.idleTimeoutMs} ms`));
        });
      } catch (error) {
        broken("failed", error);
      }
    },
    cancel(reason) {
      end("cancelled", reason);
    },
  }, { highWaterMark: 1 });
}
