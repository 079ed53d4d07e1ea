/**
 * An upstream service in the host: it has nothing to start and nothing to stop.
 */

import type { Clock } from "../runtime/runtime.ts";
import { UpstreamService } from "../proxy/upstream_service.ts";
import type { Target } from "../proxy/target.ts";
import type { HostedService } from "./hosted.ts";

export interface HostUpstreamOptions {
  readonly name: string;
  readonly mounts: readonly string[];
  readonly url: string;
  readonly clock: Clock;
  /** Told once it can serve: at its start. */
  readonly available: () => void;
}

export function hostUpstream(options: HostUpstreamOptions): HostedService {
  const service = new UpstreamService(options);
  const { target } = service;
  return {
    service,
    threaded: {
      service,
      byVersion: false,
      direct: () => [["", target]],
      onChange: () => () => {},
    },
    start: () => {
      options.available();
      return Promise.resolve();
    },
    part: {
      name: options.name,
      quiesce: () => Promise.resolve(),
      drain: () => target.retire(),
      stop: () => Promise.resolve(),
      kill: () => Promise.resolve(),
    },
    targets: () => [targetStatus(target)],
  };
}

/** A target in the form of `/drain/status`. */
export function targetStatus(target: Target): Readonly<Record<string, unknown>> {
  return {
    service: target.service,
    version: target.version,
    generation: target.generation,
    leases: target.leases,
    streams: target.count("stream") + target.count("tunnel"),
    phase: target.retired ? "draining" : "serving",
  };
}
