/**
 * The access log and the metrics of the traffic listener: one line and two samples an exchange.
 */

import type { Log } from "../observe/log.ts";
import type { BoundCounter, BoundHistogram, Metrics } from "../observe/metrics.ts";

/** What is known of an exchange at its end. */
export interface AccessEntry {
  readonly requestId: string;
  readonly method: string;
  readonly target: string;
  readonly remoteAddress: string;
  readonly httpVersion: number;
  /** 499: the client left before its answer was complete. */
  readonly status: number;
  readonly reason: string | undefined;
  readonly bytesFromClient: number;
  readonly bytesToClient: number;
  readonly startedMs: number;
  /** When the answer's head was put together; 0 if never. */
  readonly firstByteMs: number;
  readonly notes: Readonly<Record<string, unknown>> | undefined;
}

/** Methods with a label of their own; a client that invents methods invents no series. */
const METHODS = new Set([
  "GET",
  "HEAD",
  "POST",
  "PUT",
  "PATCH",
  "DELETE",
  "OPTIONS",
  "CONNECT",
  "TRACE",
]);

/** `method` itself if it is a common one, else `OTHER`. */
export function foldMethod(method: string): string {
  return METHODS.has(method) ? method : "OTHER";
}

export interface AccessLogOptions {
  readonly log: Log;
  readonly metrics: Metrics;
  readonly writeLines: boolean;
  readonly now: () => number;
}

export class AccessLog {
  readonly #options: AccessLogOptions;
  readonly #requests: ReturnType<Metrics["counter"]>;
  readonly #durations: ReturnType<Metrics["histogram"]>;
  readonly #counters = new Map<string, BoundCounter>();
  readonly #histograms = new Map<string, BoundHistogram>();

  constructor(options: AccessLogOptions) {
    this.#options = options;
    this.#requests = options.metrics.counter(
      "baton_requests_total",
      "Exchanges on the traffic listener by service, method and status (499: the client left).",
      ["service", "method", "status"],
    );
    this.#durations = options.metrics.histogram(
      "baton_request_duration_seconds",
      "From a request's head to the last byte of its answer.",
      ["service"],
    );
  }

  write(entry: AccessEntry): void {
    const durationMs = this.#options.now() - entry.startedMs;
    const noted = entry.notes?.service;
    const service = typeof noted === "string" ? noted : "";
    this.#count(service, foldMethod(entry.method), entry.status);
    this.#observe(service, durationMs / 1000);
    if (!this.#options.writeLines) return;
    this.#options.log.info("request", {
      request_id: entry.requestId,
      client: entry.remoteAddress,
      method: entry.method,
      target: entry.target,
      http: entry.httpVersion / 10,
      status: entry.status,
      reason: entry.reason,
      bytes_in: entry.bytesFromClient,
      bytes_out: entry.bytesToClient,
      duration_ms: rounded(durationMs),
      first_byte_ms: entry.firstByteMs === 0
        ? undefined
        : rounded(entry.firstByteMs - entry.startedMs),
      ...entry.notes,
    });
  }

  #count(service: string, method: string, status: number): void {
    const key = `${status}${method} ${service}`;
    let counter = this.#counters.get(key);
    if (counter === undefined) {
      counter = this.#requests.with({ service, method, status: String(status) });
      if (this.#counters.size < 10_000) this.#counters.set(key, counter);
    }
    counter.inc();
  }

  #observe(service: string, seconds: number): void {
    let histogram = this.#histograms.get(service);
    if (histogram === undefined) {
      histogram = this.#durations.with({ service });
      this.#histograms.set(service, histogram);
    }
    histogram.observe(seconds);
  }
}

function rounded(ms: number): number {
  return Math.round(ms * 1000) / 1000;
}
