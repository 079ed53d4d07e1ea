/**
 * The counters of the event path, bound once so that an event costs one addition.
 */

import type { BoundCounter, Counter, Metrics } from "../observe/metrics.ts";

export interface KvMeters {
  /** `type`: stored, removed, cleared, batch; `status`: ok or why it changed nothing. */
  event(type: string, status: string, count?: number): void;
  /** A hole of so many batches was noticed: between live batches, or between a cut and those. */
  gap(where: "live" | "hand_off", batches: bigint): void;
  replayed(batches: number): void;
  /** Batches that no source could give back. */
  lost(batches: number): void;
  /** A bounded buffer had to let go of batches: `place` is `frames`, `lane` or `replay`. */
  overflow(place: string, batches: number): void;
  /** A lane was cleared because its publisher started over. */
  restart(reason: string): void;
  /** Bytes that wait in buffers went up or down. */
  buffered(bytes: number): void;
  replay(outcome: string): void;
}

const GAP_SIZES = [1, 2, 5, 10, 50, 100, 500, 1000, 5000, 10_000, 100_000];

/** Meters on a registry; without one they do nothing. */
export function createKvMeters(metrics?: Metrics): KvMeters {
  if (metrics === undefined) return SILENT;
  const events = metrics.counter("baton_kv_events_total", "KV events by type and outcome.", [
    "type",
    "status",
  ]);
  const bound = new Map<string, Map<string, BoundCounter>>();
  const eventCounter = (type: string, status: string): BoundCounter => {
    let byStatus = bound.get(type);
    if (byStatus === undefined) bound.set(type, byStatus = new Map());
    let counter = byStatus.get(status);
    if (counter === undefined) byStatus.set(status, counter = events.with({ type, status }));
    return counter;
  };
  const gaps = metrics.counter("baton_kv_gaps_total", "Holes noticed in event sequences.");
  const gapSizes = metrics.histogram(
    "baton_kv_gap_batches",
    "Batches that holes lacked when they were noticed: between live ones, or at a hand-off between " +
      "a peer's snapshot and those that were held back.",
    ["where"],
    GAP_SIZES,
  );
  const replayed = metrics.counter(
    "baton_kv_replayed_batches_total",
    "Batches applied from workers' replay rings.",
  );
  const lost = metrics.counter(
    "baton_kv_lost_batches_total",
    "Batches that could not be replayed.",
  );
  const overflows: Counter = metrics.counter(
    "baton_kv_buffer_overflow_batches_total",
    "Batches let go because a buffer was full.",
    ["place"],
  );
  const restarts = metrics.counter(
    "baton_kv_restarts_total",
    "Lanes cleared because their publisher started over.",
    ["reason"],
  );
  const replays = metrics.counter("baton_kv_replays_total", "Replay requests by outcome.", [
    "outcome",
  ]);
  const bytes = metrics.gauge("baton_kv_buffer_bytes", "Bytes of batches that wait in buffers.");
  const peak = metrics.gauge(
    "baton_kv_buffer_peak_bytes",
    "The most that has waited in buffers at once since the start.",
  );
  let waiting = 0;
  let most = 0;
  metrics.beforeScrape(() => peak.set(most));
  return {
    event: (type, status, count = 1) => eventCounter(type, status).inc(count),
    gap: (where, batches) => {
      gaps.inc();
      gapSizes.observe(Number(batches), { where });
    },
    replayed: (batches) => replayed.inc({}, batches),
    lost: (batches) => lost.inc({}, batches),
    overflow: (place, batches) => overflows.inc({ place }, batches),
    restart: (reason) => restarts.inc({ reason }),
    buffered: (delta) => {
      bytes.add(delta);
      waiting += delta;
      if (waiting > most) most = waiting;
    },
    replay: (outcome) => replays.inc({ outcome }),
  };
}

const SILENT: KvMeters = {
  event: () => {},
  gap: () => {},
  replayed: () => {},
  lost: () => {},
  overflow: () => {},
  restart: () => {},
  buffered: () => {},
  replay: () => {},
};
