/**
 * A versions service in the host.
 */

import type { VersionsConfig } from "../config/versions.ts";
import type { Lifecycle } from "../lifecycle/mod.ts";
import type { EventJournal } from "../observe/events.ts";
import type { Log } from "../observe/log.ts";
import type { Metrics } from "../observe/metrics.ts";
import type { Runtime } from "../runtime/runtime.ts";
import type { Generation } from "../supervisor/generation.ts";
import { createSupervisor, type Supervisor } from "../supervisor/supervisor.ts";
import type { Conditions } from "../supervisor/version_status.ts";
import type { HostedService } from "./hosted.ts";

export interface HostVersionsOptions {
  readonly runtime: Runtime;
  readonly log: Log;
  readonly metrics: Metrics;
  readonly events: EventJournal;
  readonly lifecycle: Lifecycle;
  readonly name: string;
  readonly mounts: readonly string[];
  readonly config: VersionsConfig;
  readonly stateDir: string;
  readonly reservedPorts: readonly number[];
}

export interface HostedVersions extends HostedService {
  readonly supervisor: Supervisor;
  /** Looks at the supervisor's conditions and tells the lifecycle. */
  refresh(): void;
}

/** Between two looks at the conditions: they also change by time alone (a probe that stays away). */
const REFRESH_MS = 1000;

export async function hostVersions(options: HostVersionsOptions): Promise<HostedVersions> {
  const { name, lifecycle, runtime } = options;
  const supervisor = await createSupervisor({ ...options, service: name });
  const condition = `service ${name}`;
  lifecycle.conditions.set(condition, false, "starting");
  const refresh = (): void => {
    const { ok, reason } = versionsReady(supervisor.conditions());
    lifecycle.conditions.set(condition, ok, reason);
    // The first route that anybody has makes the host a serving one.
    if (supervisor.available) lifecycle.available();
  };
  let cancel = (): void => {};
  const repeat = (): void => {
    cancel = runtime.clock.after(REFRESH_MS, () => {
      refresh();
      repeat();
    });
  };
  const unsubscribe = supervisor.onTargets(refresh);
  const end = (): void => {
    unsubscribe();
    cancel();
  };
  return {
    service: supervisor,
    threaded: {
      service: supervisor,
      byVersion: true,
      hidden: [options.config.drainPath, options.config.drainStatusPath],
      direct: () => supervisor.direct(),
      onChange: (listener) => supervisor.onTargets(listener),
    },
    supervisor,
    refresh,
    operator: supervisor,
    health: supervisor,
    start: async () => {
      repeat();
      await supervisor.start();
      refresh();
    },
    part: {
      name,
      quiesce: () => {
        end();
        return supervisor.quiesce();
      },
      drain: (deadlineMs) => supervisor.drain(deadlineMs),
      stop: (deadlineMs) => supervisor.stop(deadlineMs),
      kill: () => {
        end();
        return supervisor.kill();
      },
      cut: () => supervisor.cut,
    },
    targets: () => supervisor.generations().map((one) => generationTarget(name, one)),
  };
}

/**
 * A host is ready for what it was asked to run once that has run (case 237): work in progress and
 * versions that fail do not take readiness away again, the loss of every live child does.
 */
export function versionsReady(conditions: Conditions): { ok: boolean; reason: string } {
  const { available, serving, converged, running, desired, error } = conditions;
  if (converged && desired === 0) return { ok: true, reason: "nothing is listed" };
  if (!available) return { ok: false, reason: error ?? "no version has a route" };
  if (!serving) return { ok: false, reason: "no child answers its probe" };
  const run = `${running} of ${desired} versions run`;
  if (!converged) return { ok: false, reason: error ?? run };
  // What runs is not in danger, but somebody may wait for a build that was listed meanwhile.
  return {
    ok: true,
    reason: error === undefined ? run : `${run}; the list is not followed: ${error}`,
  };
}

/** A generation in the form of `/drain/status`. */
function generationTarget(service: string, generation: Generation) {
  const { version, number, leases, drain } = generation;
  return {
    service,
    version,
    generation: number,
    leases,
    streams: generation.countLeases("stream") + generation.countLeases("tunnel"),
    phase: generation.phase,
    ...(drain === undefined ? {} : {
      deadline: new Date(drain.deadline).toISOString(),
      cut: drain.cutCount,
    }),
  };
}
