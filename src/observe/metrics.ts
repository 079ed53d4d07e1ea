/**
 * Prometheus metrics on a registry of our own.
 *
 * Every metric has a fixed set of label names and a bound on its series: once `maxSeries` label
 * combinations exist, any further one is counted under the value `other` in every label, so that
 * no client can grow the process by inventing names. Asking for a metric twice gives the same one.
 */

import prom from "prom-client";

export type Labels = Readonly<Record<string, string>>;

/** A counter, gauge or histogram with its labels already chosen: for hot paths. */
export interface BoundCounter {
  inc(by?: number): void;
}
export interface BoundGauge {
  set(value: number): void;
  add(delta: number): void;
}
export interface BoundHistogram {
  observe(value: number): void;
}

export interface Counter {
  inc(labels?: Labels, by?: number): void;
  with(labels: Labels): BoundCounter;
}

export interface Gauge {
  set(value: number, labels?: Labels): void;
  add(delta: number, labels?: Labels): void;
  with(labels: Labels): BoundGauge;
  /** Forgets one series, e.g. of a worker that is gone. */
  remove(labels: Labels): void;
  /**
   * Calls `read` at each scrape, after forgetting all series; it sets those that exist now. Of several
   * readers each adds its own.
   */
  collect(read: (gauge: Gauge) => void): void;
}

export interface Histogram {
  observe(value: number, labels?: Labels): void;
  with(labels: Labels): BoundHistogram;
}

export interface Metrics {
  /** `name` without prefix rules; by convention `baton_..._total`. */
  counter(name: string, help: string, labels?: readonly string[]): Counter;
  gauge(name: string, help: string, labels?: readonly string[]): Gauge;
  /** `buckets` are upper bounds in the metric's unit; by default seconds from 0.5 ms to 60 s. */
  histogram(
    name: string,
    help: string,
    labels?: readonly string[],
    buckets?: readonly number[],
  ): Histogram;
  /** Runs before every scrape; may be async (reading /proc). */
  beforeScrape(refresh: () => void | Promise<void>): void;
  /** All metrics in the Prometheus text format. */
  text(): Promise<string>;
  readonly contentType: string;
}

export interface MetricsOptions {
  /** Series a metric may have before new ones become `other`. */
  readonly maxSeries?: number;
}

const SECONDS = [
  0.0005,
  0.001,
  0.0025,
  0.005,
  0.01,
  0.025,
  0.05,
  0.1,
  0.25,
  0.5,
  1,
  2.5,
  5,
  10,
  30,
  60,
] as const;

/** Makes an empty registry. */
export function createMetrics(options: MetricsOptions = {}): Metrics {
  const registry = new prom.Registry();
  const maxSeries = options.maxSeries ?? 2000;
  const made = new Map<string, Counter | Gauge | Histogram>();
  const refreshers: (() => void | Promise<void>)[] = [];

  const once = <T extends Counter | Gauge | Histogram>(
    kind: string,
    name: string,
    labels: readonly string[],
    make: () => T,
  ): T => {
    const key = JSON.stringify([kind, name, ...labels]);
    const known = made.get(key);
    if (known !== undefined) return known as T;
    const metric = make();
    made.set(key, metric);
    return metric;
  };

  return {
    counter: (name, help, labelNames = []) =>
      once("counter", name, labelNames, () => {
        const inner = new prom.Counter({ name, help, labelNames, registers: [registry] });
        const bounded = bound(labelNames, maxSeries);
        return {
          inc: (labels, by = 1) => inner.inc(bounded.admit(labels), by),
          with: (labels) => {
            const child = inner.labels(bounded.admit(labels));
            return { inc: (by = 1) => child.inc(by) };
          },
        };
      }),
    gauge: (name, help, labelNames = []) =>
      once("gauge", name, labelNames, () => {
        const inner = new prom.Gauge({ name, help, labelNames, registers: [registry] });
        const bounded = bound(labelNames, maxSeries);
        const readers: ((gauge: Gauge) => void)[] = [];
        const gauge: Gauge = {
          set: (value, labels) => inner.set(bounded.admit(labels), value),
          add: (delta, labels) => inner.inc(bounded.admit(labels), delta),
          with: (labels) => {
            const child = inner.labels(bounded.admit(labels));
            return { set: (value) => child.set(value), add: (delta) => child.inc(delta) };
          },
          remove: (labels) => {
            inner.remove(bounded.admit(labels));
            bounded.forget(labels);
          },
          collect: (read) => {
            if (readers.push(read) > 1) return;
            refreshers.push(() => {
              inner.reset();
              bounded.forgetAll();
              for (const one of readers) one(gauge);
            });
          },
        };
        return gauge;
      }),
    histogram: (name, help, labelNames = [], buckets = SECONDS) =>
      once("histogram", name, labelNames, () => {
        const inner = new prom.Histogram({
          name,
          help,
          labelNames,
          buckets: [...buckets],
          registers: [registry],
        });
        const bounded = bound(labelNames, maxSeries);
        return {
          observe: (value, labels) => inner.observe(bounded.admit(labels), value),
          with: (labels) => {
            const child = inner.labels(bounded.admit(labels));
            return { observe: (value) => child.observe(value) };
          },
        };
      }),
    beforeScrape: (refresh) => {
      refreshers.push(refresh);
    },
    text: async () => {
      for (const refresh of refreshers) await refresh();
      return await registry.metrics();
    },
    contentType: registry.contentType,
  };
}

/** Lets through at most `maxSeries` label combinations; later ones all become `other`. */
function bound(names: readonly string[], maxSeries: number) {
  const seen = new Set<string>();
  const none: Record<string, string> = {};
  const rest: Record<string, string> = Object.fromEntries(names.map((name) => [name, "other"]));
  const keyOf = (labels: Labels): string => names.map((name) => labels[name] ?? "").join("\u0000");
  return {
    admit(labels: Labels | undefined): Record<string, string> {
      if (labels === undefined || names.length === 0) return none;
      const key = keyOf(labels);
      if (seen.has(key)) return labels;
      if (seen.size >= maxSeries) return rest;
      seen.add(key);
      return labels;
    },
    forget(labels: Labels): void {
      seen.delete(keyOf(labels));
    },
    forgetAll(): void {
      seen.clear();
    },
  };
}
