/**
 * `baton/lifecycle`: admission, in-flight count, readiness and drain for any Hono app.
 *
 * @module
 */

export { Admission } from "./admission.ts";
export { type Condition, Conditions } from "./conditions.ts";
export { countedBody } from "./counted_body.ts";
export {
  HOST_STATES,
  type HostEvent,
  type HostState,
  isAccepting,
  isDraining,
  isServing,
  mayMove,
  nextHostState,
} from "./host_state.ts";
export {
  createLifecycle,
  type DrainResult,
  type DrainStatus,
  type DrainTarget,
  type Lifecycle,
  type LifecycleOptions,
  type ReadyStatus,
} from "./lifecycle.ts";
export { refusal } from "./middleware.ts";
export {
  type HostShutdownOptions,
  shutDownHost,
  type ShutdownListeners,
  type ShutdownPart,
  type ShutdownReport,
  unwindAllowanceMs,
} from "./host_shutdown.ts";
