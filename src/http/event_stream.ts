/**
 * The journal as a stream: server-sent events or NDJSON, from any number on.
 *
 * A reader has a cursor and no queue: each pull takes what the journal holds after the cursor, so
 * that a slow reader costs nothing and is told what it missed.
 */

import type { EventJournal, JournalEvent } from "../observe/events.ts";
import type { Clock } from "../runtime/runtime.ts";

export interface EventStreamOptions {
  readonly journal: EventJournal;
  readonly clock: Clock;
  readonly format: "sse" | "ndjson";
  /** Events after this number are sent. */
  readonly since: number;
  /** Stay and send what comes; else end after what there is. */
  readonly follow: boolean;
  /** Ends the stream in good order, e.g. when the process goes down. */
  readonly ending: AbortSignal;
  /** Between two signs of life on a quiet stream. */
  readonly heartbeatMs?: number;
  /** For HEAD: nobody would ever read, or cancel, a body. */
  readonly headersOnly?: boolean;
}

const BATCH = 100;
const CONTENT_TYPE = { sse: "text/event-stream; charset=utf-8", ndjson: "application/x-ndjson" };

export function eventStream(options: EventStreamOptions): Response {
  const { journal, clock, format, follow, ending } = options;
  const heartbeatMs = options.heartbeatMs ?? 15_000;
  const headers = { "content-type": CONTENT_TYPE[format], "cache-control": "no-store" };
  if (options.headersOnly === true) return new Response(null, { headers });
  const encoder = new TextEncoder();
  // A number that this journal has not given is another journal's: to that reader all of this is new.
  let cursor = options.since > journal.lastId ? 0 : options.since;
  let left = false;
  let wake = (): void => {};
  const unsubscribe = journal.subscribe(() => wake());
  const onEnding = (): void => wake();
  ending.addEventListener("abort", onEnding);
  const leave = (): void => {
    left = true;
    unsubscribe();
    ending.removeEventListener("abort", onEnding);
    wake();
  };
  /** Waits for the next event, the end, or the time for a sign of life (then true). */
  const quiet = (): Promise<boolean> =>
    new Promise((resolve) => {
      const cancel = clock.after(heartbeatMs, () => resolve(true));
      wake = () => {
        cancel();
        resolve(false);
      };
    });

  const body = new ReadableStream<Uint8Array>({
    start(controller) {
      // The first byte tells the reader that it is subscribed.
      if (follow) controller.enqueue(encoder.encode(heartbeat(format)));
    },
    async pull(controller) {
      while (!left) {
        const events = journal.since(cursor).slice(0, BATCH);
        const first = events[0];
        if (first !== undefined) {
          const missed = cursor > 0 && first.id > cursor + 1 && journal.oldestId === first.id;
          const gap = missed ? lostLine(format, cursor + 1, first.id - 1) : "";
          cursor = events.at(-1)?.id ?? cursor;
          const lines = events.map((event) => line(format, event)).join("");
          controller.enqueue(encoder.encode(gap + lines));
          return;
        }
        if (!follow || ending.aborted) {
          leave();
          controller.close();
          return;
        }
        if (await quiet()) {
          controller.enqueue(encoder.encode(heartbeat(format)));
          return;
        }
      }
    },
    cancel: leave,
  }, { highWaterMark: 1 });

  return new Response(body, { headers });
}

function line(format: "sse" | "ndjson", event: JournalEvent): string {
  const json = JSON.stringify(event);
  return format === "ndjson"
    ? `${json}\n`
    : `id: ${event.id}\nevent: ${event.kind}\ndata: ${json}\n\n`;
}

function lostLine(format: "sse" | "ndjson", from: number, to: number): string {
  const json = JSON.stringify({ kind: "events_lost", from, to });
  return format === "ndjson" ? `${json}\n` : `event: events_lost\ndata: ${json}\n\n`;
}

function heartbeat(format: "sse" | "ndjson"): string {
  return format === "ndjson" ? "\n" : ": alive\n\n";
}
