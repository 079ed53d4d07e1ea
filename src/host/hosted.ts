/**
 * A service as the host sees it: what answers, how it begins and ends, and what it tells.
 */

import type { VersionsHealth } from "../http/traffic.ts";
import type { VersionsOperator } from "../http/versions_api.ts";
import type { DrainTarget, ShutdownPart } from "../lifecycle/mod.ts";
import type { Service } from "../proxy/routes.ts";
import type { ThreadedService } from "../threads/threaded_traffic.ts";

export interface HostedService {
  readonly service: Service;
  /** Begins its work, once the listeners are there; the host does not wait for it. */
  start(): Promise<void>;
  /** How it goes down with the host. */
  readonly part: ShutdownPart;
  /** What of it still owes answers, for `/drain/status`. */
  targets(): readonly DrainTarget[];
  /** A versions service also has these. */
  readonly operator?: VersionsOperator;
  readonly health?: VersionsHealth;
  /** How threads of the data path may serve it; absent: they may not. */
  readonly threaded?: ThreadedService;
  /** A pool's workers with their lanes, for `/api/v1/workers`. */
  workers?(): readonly unknown[];
}
