import type { Metrics } from "../observe/metrics.ts";
import {
  type AttemptReport,
  type LaneOutcome,
  RECOVERY_STATES,
  type RecoveryState,
} from "./recovery_status.ts";

/** What the recovery reports; gaps, replays and buffers are reported by the lanes themselves. */
export interface RecoveryMetrics {
  state(state: RecoveryState): void;
  attempt(report: AttemptReport): void;
  lane(outcome: LaneOutcome): void;
  finished(ms: number): void;
}

export function createRecoveryMetrics(metrics: Metrics): RecoveryMetrics {
  const state = metrics.gauge(
    "baton_kv_recovery_state",
    "1 for the state that the recovery of the index is in, 0 for the others.",
    ["state"],
  );
  const attempts = metrics.counter(
    "baton_kv_recovery_attempts_total",
    "Dumps asked for, by what came of it.",
    ["outcome"],
  );
  const bytes = metrics.counter("baton_kv_recovery_bytes_total", "Bytes of dumps received.");
  const blocks = metrics.counter(
    "baton_kv_recovery_blocks_total",
    "Blocks taken over from peers.",
  );
  const lanes = metrics.counter(
    "baton_kv_recovery_lanes_total",
    "Lanes by how their recovery ended.",
    ["outcome"],
  );
  const seconds = metrics.gauge(
    "baton_kv_recovery_seconds",
    "How long the recovery took, from its start to readiness.",
  );
  return {
    state(now) {
      for (const name of RECOVERY_STATES) state.set(name === now ? 1 : 0, { state: name });
    },
    attempt(report) {
      attempts.inc({ outcome: report.outcome });
      bytes.inc({}, report.bytes);
      blocks.inc({}, report.blocks);
    },
    lane: (outcome) => lanes.inc({ outcome }),
    finished: (ms) => seconds.set(ms / 1000),
  };
}
