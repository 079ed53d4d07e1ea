/**
 * The life of a serving process: what it lets in, what is in flight, whether it is ready, and how
 * it ends. Used by Baton for itself and by any Hono app (see docs/lifecycle.md).
 */

import type { Hono, MiddlewareHandler } from "hono";
import type { Log } from "../observe/log.ts";
import { silentLog } from "../observe/log.ts";
import type { Clock } from "../runtime/runtime.ts";
import { Admission, type AdmissionElsewhere } from "./admission.ts";
import { type Condition, Conditions } from "./conditions.ts";
import {
  type HostEvent,
  type HostState,
  isAccepting,
  isDraining,
  isServing,
  nextHostState,
} from "./host_state.ts";
import { lifecycleMiddleware } from "./middleware.ts";
import { lifecycleRoutes } from "./routes.ts";
import { webClock } from "./web_clock.ts";

export interface LifecycleOptions {
  /** Default: the timers and clocks of the web platform. */
  readonly clock?: Clock;
  readonly log?: Log;
  /**
   * How long readiness fails before admission closes, so that balancers stop sending first. 0 (the
   * default) for a process without a balancer in front.
   */
  readonly announceMs?: number;
  /** When true the process lets nothing in until `available()`; else it serves from the start. */
  readonly waitForAvailable?: boolean;
}

/** One thing that owes answers, in a drain's status. Baton lists its targets so. */
export type DrainTarget = Readonly<Record<string, unknown>>;

export interface ReadyStatus {
  readonly ready: boolean;
  readonly draining: boolean;
  readonly inflight: number;
  readonly conditions: readonly Condition[];
  readonly [more: string]: unknown;
}

export interface DrainStatus {
  readonly ready: boolean;
  readonly draining: boolean;
  readonly inflight: number;
  readonly targets: readonly DrainTarget[];
}

/** How a drain ended: everything finished, or so many were left when the wait was over. */
export interface DrainResult {
  readonly drained: boolean;
  readonly left: number;
}

export interface Lifecycle {
  readonly state: HostState;
  /** New work is let in. */
  readonly accepting: boolean;
  /** Serving, not draining, and every condition met: what a balancer asks. */
  readonly ready: boolean;
  readonly draining: boolean;
  readonly inflight: number;
  readonly conditions: Conditions;
  /** Fires when the process was told to stop at once; what is in flight must be cut then. */
  readonly forced: AbortSignal;
  /** Counts one exchange in, or undefined when nothing is let in. Call the result once at its end. */
  admit(): (() => void) | undefined;
  /** The first thing to serve is there. Does nothing once a drain was begun. */
  available(): void;
  /**
   * Begins the drain (idempotent): readiness fails at once, admission closes after the announce
   * window. Resolves when nothing is in flight, or after `timeoutMs` if that comes first.
   */
  drain(options?: { readonly timeoutMs?: number }): Promise<DrainResult>;
  /** Begins the drain and returns; the announce window runs by itself. */
  beginDrain(): void;
  /** Resolves when admission is closed (a drain's announce window is over, or was cut short). */
  closed(): Promise<void>;
  /** Resolves the next time that nothing is in flight. */
  idle(): Promise<void>;
  /** What was accepted is done; what serves is being taken down. */
  stopping(): void;
  /** Ends everything now. Fires `forced`. */
  force(): void;
  /** Everything is down. */
  stopped(): void;
  onChange(listener: (state: HostState, from: HostState) => void): () => void;
  /** Counts what another thread lets in under this admission as in flight. */
  include(elsewhere: AdmissionElsewhere): void;
  /** Adds what still owes answers to the drain's status. */
  reportTargets(list: () => readonly DrainTarget[]): void;
  /** Adds fields to the readiness body, e.g. `recovery_complete`. */
  reportReady(fields: () => Readonly<Record<string, unknown>>): void;
  readyStatus(): ReadyStatus;
  status(): DrainStatus;
  /** `GET /ready`, `POST /drain`, `GET /drain/status`: keep them off public listeners. */
  routes(): Hono;
  /** Admits, counts until the response's bytes end, and answers 503 once admission is closed. */
  middleware(): MiddlewareHandler;
}

export function createLifecycle(options: LifecycleOptions = {}): Lifecycle {
  const clock = options.clock ?? webClock;
  const log = options.log ?? silentLog;
  const announceMs = options.announceMs ?? 0;
  const admission = new Admission();
  const forced = new AbortController();
  const listeners = new Set<(state: HostState, from: HostState) => void>();
  const conditions = new Conditions(({ name, ok, reason }) =>
    log.info("condition_changed", { condition: name, ok, reason })
  );
  let state: HostState = options.waitForAvailable === true ? "starting" : "serving";
  let cancelAnnounce = (): void => {};
  let resolveClosed = (): void => {};
  const closed = new Promise<void>((resolve) => (resolveClosed = resolve));
  let targets: () => readonly DrainTarget[] = () => [];
  let readyFields: () => Readonly<Record<string, unknown>> = () => ({});

  const happen = (event: HostEvent): boolean => {
    const from = state;
    state = nextHostState(from, event);
    if (state === from) return false;
    log.info("host_state", { from, to: state, cause: event.kind, inflight: admission.inflight });
    if (isDraining(state) && !isAccepting(state)) {
      cancelAnnounce();
      resolveClosed();
    }
    for (const listener of [...listeners]) listener(state, from);
    return true;
  };

  const lifecycle: Lifecycle = {
    get state() {
      return state;
    },
    get accepting() {
      return isAccepting(state);
    },
    get ready() {
      return isServing(state) && conditions.met;
    },
    get draining() {
      return isDraining(state);
    },
    get inflight() {
      return admission.inflight;
    },
    conditions,
    forced: forced.signal,
    admit: () => isAccepting(state) ? admission.enter() : undefined,
    available: () => void happen({ kind: "available" }),
    beginDrain: () => {
      if (!happen({ kind: "drain", announce: announceMs > 0 })) return;
      if (state === "announcing") {
        cancelAnnounce = clock.after(announceMs, () => happen({ kind: "announced" }));
      }
    },
    drain: async ({ timeoutMs } = {}) => {
      lifecycle.beginDrain();
      const idle = closed.then(() => admission.idle());
      if (timeoutMs === undefined) await idle;
      else await withTimeout(clock, idle, timeoutMs);
      const left = admission.inflight;
      return { drained: left === 0 && !isAccepting(state), left };
    },
    closed: () => closed,
    idle: () => admission.idle(),
    stopping: () => void happen({ kind: "stop" }),
    force: () => {
      if (happen({ kind: "force" })) forced.abort();
    },
    stopped: () => void happen({ kind: "reaped" }),
    onChange: (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    include: (elsewhere) => admission.include(elsewhere),
    reportTargets: (list) => {
      targets = list;
    },
    reportReady: (fields) => {
      readyFields = fields;
    },
    readyStatus: () => ({
      ready: lifecycle.ready,
      draining: lifecycle.draining,
      inflight: admission.inflight,
      conditions: [{ name: "serving", ok: isServing(state), reason: state }, ...conditions.list()],
      ...readyFields(),
    }),
    status: () => ({
      ready: lifecycle.ready,
      draining: lifecycle.draining,
      inflight: admission.inflight,
      targets: targets(),
    }),
    routes: () => lifecycleRoutes(lifecycle),
    middleware: () => lifecycleMiddleware(lifecycle),
  };
  return lifecycle;
}

/** Resolves with the promise or after the time, whichever is first; leaves no timer behind. */
async function withTimeout(clock: Clock, promise: Promise<void>, timeoutMs: number): Promise<void> {
  let cancel = (): void => {};
  const timeout = new Promise<void>((resolve) => (cancel = clock.after(timeoutMs, resolve)));
  await Promise.race([promise, timeout]);
  cancel();
}
