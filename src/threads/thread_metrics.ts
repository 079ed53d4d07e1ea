/** Metrics of a thread: kept as sums, and handed to the main thread, which is the one scraped. */

import type { Counter, Gauge, Histogram, Metrics } from "../observe/metrics.ts";
import type { Labels, MetricName, ToMain } from "./messages.ts";

/** Observations that are kept between two hand-overs; the rest of a burst is thinned out. */
const MOST_OBSERVATIONS = 20_000;

export interface ThreadMetrics extends Metrics {
  /** What came together since the last time; undefined if nothing did. */
  take(): Extract<ToMain, { kind: "metrics" }> | undefined;
}

export function createThreadMetrics(): ThreadMetrics {
  let declared: MetricName[] = [];
  let counted = new Map<string, { name: string; labels: Labels; by: number }>();
  let observed = new Map<string, { name: string; labels: Labels; values: number[] }>();

  const count = (name: string, labels: Labels, by: number): void => {
    const key = `${name} ${JSON.stringify(labels)}`;
    const known = counted.get(key);
    if (known === undefined) counted.set(key, { name, labels, by });
    else known.by += by;
  };
  const observe = (name: string, labels: Labels, value: number): void => {
    const key = `${name} ${JSON.stringify(labels)}`;
    const known = observed.get(key);
    if (known === undefined) observed.set(key, { name, labels, values: [value] });
    else if (known.values.length < MOST_OBSERVATIONS) known.values.push(value);
  };
  const gauge: Gauge = {
    set: () => {},
    add: () => {},
    with: () => ({ set: () => {}, add: () => {} }),
    remove: () => {},
    collect: () => {},
  };

  return {
    counter: (name, help, labels = []): Counter => {
      declared.push({ type: "counter", name, help, labels, buckets: undefined });
      return {
        inc: (given = {}, by = 1) => count(name, given, by),
        with: (given) => {
          // The hot path: one number, found once.
          let cell: { by: number } | undefined;
          let age: unknown;
          return {
            inc: (by = 1) => {
              if (age !== counted) {
                count(name, given, 0);
                cell = counted.get(`${name} ${JSON.stringify(given)}`);
                age = counted;
              }
              if (cell !== undefined) cell.by += by;
            },
          };
        },
      };
    },
    // Gauges of a listener are the main thread's to keep.
    gauge: () => gauge,
    histogram: (name, help, labels = [], buckets): Histogram => {
      declared.push({ type: "histogram", name, help, labels, buckets });
      return {
        observe: (value, given = {}) => observe(name, given, value),
        with: (given) => {
          let values: number[] | undefined;
          let age: unknown;
          return {
            observe: (value) => {
              if (age !== observed) {
                observe(name, given, value);
                values = observed.get(`${name} ${JSON.stringify(given)}`)?.values;
                age = observed;
              } else if (values !== undefined && values.length < MOST_OBSERVATIONS) {
                values.push(value);
              }
            },
          };
        },
      };
    },
    beforeScrape: () => {},
    text: () => Promise.resolve(""),
    contentType: "text/plain",
    take: () => {
      if (declared.length + counted.size + observed.size === 0) return undefined;
      const message = {
        kind: "metrics",
        declared,
        counted: [...counted.values()].map(({ name, labels, by }) => [name, labels, by] as const),
        observed: [...observed.values()]
          .map(({ name, labels, values }) => [name, labels, values] as const),
      } as const;
      declared = [];
      counted = new Map();
      observed = new Map();
      return message;
    },
  };
}
