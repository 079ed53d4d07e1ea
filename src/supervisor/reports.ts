/**
 * How the supervisor tells what it does: each happening as one log line, one rollout event and, where
 * it counts, one metric. The three are made in one place so that they cannot disagree.
 */

import type { Fields, Level, Log } from "../observe/log.ts";
import type { Metrics } from "../observe/metrics.ts";
import type { DrainReport } from "./drain.ts";
import type { Generation, GenerationMove } from "./generation.ts";

/** The journal, as far as the supervisor needs it (EventJournal fits). */
export interface EventSink {
  emit(kind: string, fields?: Readonly<Record<string, unknown>>): unknown;
}

/** Seconds; from a quick start on loopback to a drain of half an hour. */
const BUCKETS = [0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 150, 300, 600, 900, 1800];

export class Reports {
  readonly #service: string;
  readonly #log: Log;
  readonly #events: EventSink;
  readonly #metrics: ReturnType<typeof makeMetrics>;

  constructor(
    options: { service: string; log: Log; events: EventSink; metrics: Metrics },
  ) {
    this.#service = options.service;
    this.#log = options.log;
    this.#events = options.events;
    this.#metrics = makeMetrics(options.metrics);
  }

  get log(): Log {
    return this.#log;
  }

  /** A log line and an event with the same name and fields. */
  tell(level: Level, event: string, version: string, fields: Fields = {}): void {
    this.#log[level](event, { version, ...fields });
    this.#events.emit(event, { service: this.#service, version, ...fields });
  }

  moved(generation: Generation, move: GenerationMove, refused: boolean): void {
    const fields = { generation: generation.number, ...move };
    if (refused) {
      this.#log.error("generation_move_refused", { version: generation.version, ...fields });
      return;
    }
    this.tell("info", "generation_moved", generation.version, fields);
    const labels = { service: this.#service, phase: move.from };
    this.#metrics.phaseSeconds.observe(move.afterMs / 1000, labels);
  }

  started(version: string): void {
    this.#metrics.starts.inc(this.#labels(version));
  }

  ready(version: string, waitedMs: number): void {
    this.#metrics.readySeconds.observe(waitedMs / 1000, { service: this.#service });
    this.#log.debug("child_ready", { version, waitedMs: Math.round(waitedMs) });
  }

  /** A switch of traffic: `how` is first, swap, promote, switch_back or restart. */
  switched(version: string, how: string, fields: Fields): void {
    this.#metrics.switches.inc({ ...this.#labels(version), how });
    this.tell("info", "traffic_switched", version, { how, ...fields });
  }

  crashed(version: string, fields: Fields): void {
    this.#metrics.crashes.inc(this.#labels(version));
    this.tell("error", "child_crashed", version, fields);
  }

  /** A child that lives but does not serve: whether another takes its place. */
  unwell(version: string, fields: Fields & { readonly replaced: boolean }): void {
    if (fields.replaced) this.#metrics.replacements.inc(this.#labels(version));
    this.tell("error", "child_unwell", version, fields);
  }

  failed(version: string, failureClass: string, fields: Fields): void {
    this.#metrics.failures.inc({ ...this.#labels(version), class: failureClass });
    this.tell("error", "rollout_failed", version, { class: failureClass, ...fields });
  }

  held(version: string, end: string): void {
    this.#metrics.held.inc({ ...this.#labels(version), end });
  }

  drained(report: DrainReport): void {
    const { service: _service, version, exit, ...fields } = report;
    const labels = this.#labels(version);
    this.#metrics.drainSeconds.observe(report.durationMs / 1000, { service: this.#service });
    this.#metrics.drained.inc({ ...labels, end: "finished" }, report.finished);
    this.#metrics.drained.inc({ ...labels, end: "cut" }, report.cut);
    this.tell(report.cut > 0 ? "warn" : "info", "drain_report", version, {
      ...fields,
      ...(exit === undefined ? {} : { exit }),
    });
  }

  polled(ok: boolean): void {
    this.#metrics.polls.inc({ service: this.#service, result: ok ? "ok" : "error" });
  }

  orphans(count: number): void {
    this.#metrics.orphans.inc({ service: this.#service }, count);
  }

  /** Gauges that are read at each scrape. */
  collect(read: () => Gauges): void {
    const service = this.#service;
    this.#metrics.generations.collect((gauge) => {
      for (const one of read().generations) {
        gauge.add(1, { service, version: one.version, phase: one.phase, role: one.role });
      }
    });
    this.#metrics.leases.collect((gauge) => {
      for (const one of read().generations) {
        for (const [kind, count] of Object.entries(one.leases)) {
          const generation = String(one.number);
          gauge.set(count, { service, version: one.version, generation, kind });
        }
      }
    });
    this.#metrics.quarantined.collect((gauge) => {
      for (const [version, count] of read().quarantined) gauge.set(count, { service, version });
    });
    this.#metrics.waiting.collect((gauge) => gauge.set(read().held, { service }));
    this.#metrics.unsaved.collect((gauge) => gauge.set(read().unsaved ? 1 : 0, { service }));
  }

  #labels(version: string): { service: string; version: string } {
    return { service: this.#service, version };
  }
}

export interface Gauges {
  readonly generations: readonly {
    readonly version: string;
    readonly number: number;
    readonly phase: string;
    readonly role: string;
    readonly leases: Readonly<Record<string, number>>;
  }[];
  readonly quarantined: ReadonlyMap<string, number>;
  readonly held: number;
  /** The disk refuses what was decided: a restart would forget it. */
  readonly unsaved: boolean;
}

function makeMetrics(metrics: Metrics) {
  const version = ["service", "version"] as const;
  return {
    generations: metrics.gauge(
      "baton_generations",
      "Generations by phase and role.",
      [...version, "phase", "role"],
    ),
    leases: metrics.gauge("baton_generation_leases", "Open leases of each generation.", [
      ...version,
      "generation",
      "kind",
    ]),
    quarantined: metrics.gauge("baton_quarantined_builds", "Builds that are not tried.", version),
    waiting: metrics.gauge("baton_held_requests_waiting", "Requests that wait for a version.", [
      "service",
    ]),
    unsaved: metrics.gauge(
      "baton_decisions_unsaved",
      "1 while the disk refuses what operators decided, or which builds failed.",
      ["service"],
    ),
    phaseSeconds: metrics.histogram(
      "baton_generation_phase_seconds",
      "Time that generations spent in a phase, by the phase they left.",
      ["service", "phase"],
      BUCKETS,
    ),
    readySeconds: metrics.histogram(
      "baton_ready_seconds",
      "Time from the start of a child until it was ready.",
      ["service"],
      BUCKETS,
    ),
    drainSeconds: metrics.histogram(
      "baton_drain_seconds",
      "Duration of drains, the end of the process included.",
      ["service"],
      BUCKETS,
    ),
    starts: metrics.counter("baton_child_starts_total", "Children started.", version),
    crashes: metrics.counter(
      "baton_child_crashes_total",
      "Children that ended without being asked to.",
      version,
    ),
    replacements: metrics.counter(
      "baton_child_replacements_total",
      "Replacements begun for children that lived but did not answer, or were not ready.",
      version,
    ),
    switches: metrics.counter("baton_traffic_switches_total", "Switches of traffic, by kind.", [
      ...version,
      "how",
    ]),
    failures: metrics.counter("baton_rollout_failures_total", "Failed rollouts, by class.", [
      ...version,
      "class",
    ]),
    drained: metrics.counter(
      "baton_drained_exchanges_total",
      "Exchanges that were open when a drain began, by how they ended.",
      [...version, "end"],
    ),
    held: metrics.counter("baton_held_requests_total", "Requests that had to wait, by end.", [
      ...version,
      "end",
    ]),
    polls: metrics.counter("baton_oracle_polls_total", "Reports of the oracle, by result.", [
      "service",
      "result",
    ]),
    orphans: metrics.counter(
      "baton_orphans_total",
      "Children of an earlier Baton that were found running.",
      ["service"],
    ),
  };
}
