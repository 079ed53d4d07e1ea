/**
 * Is a child ready? One probe, and the wait for a starting child.
 *
 * A child with an admin listener must answer 200 there and be healthy on its public port in the
 * same attempt, or a route could lead to a port that nobody listens on yet. A child without one is
 * asked on its public port; only if it does not know the default path at all (404, 405, 501) do its
 * health path and then a plain connection count instead.
 */

import { messageOf } from "../errors.ts";
import type { Clock, Runtime } from "../runtime/runtime.ts";
import { childRequest, readBounded } from "./child_http.ts";
import { maxWindowMs, mayExtend } from "./ready_window.ts";
import { CalledOff, orCalledOff, sleep, throwIfCalledOff } from "./wait.ts";

/** What one probe found; see ready_window.ts for which ones may take longer. */
export type ReadyClass = "unreachable" | "not_ready" | "initializing" | "ready_absent" | "ready";

export interface ProbeResult {
  readonly class: ReadyClass;
  /** What the child answered, for logs: `503`, `connection refused`, ... */
  readonly detail: string;
  /** True when the answer came by the fallback for children without a readiness path. */
  readonly legacy: boolean;
  /** True when one of the ports that were asked gave no answer at all. */
  readonly silent?: true;
}

/** Where a child listens and which of its paths are asked. */
export interface ProbeTarget {
  readonly port: number;
  readonly adminPort?: number;
  readonly readyPath: string;
  readonly healthPath: string;
}

export interface ProbeOptions {
  readonly timeoutMs: number;
  /** The running child's monitor looks at the status only; a starting child's body tells more. */
  readonly readBody: boolean;
  readonly signal?: AbortSignal;
}

type ProbeRuntime = Pick<Runtime, "http" | "net" | "clock">;

/** The path for which a missing answer may mean an old child. */
const DEFAULT_READY_PATH = "/ready";
const MAX_BODY_BYTES = 65_536;

/** Asks once. Never throws, except CalledOff when the signal is set. */
export async function probe(
  runtime: ProbeRuntime,
  target: ProbeTarget,
  options: ProbeOptions,
): Promise<ProbeResult> {
  throwIfCalledOff(options.signal);
  const viaAdmin = target.adminPort !== undefined;
  const answer = await ask(runtime, target.adminPort ?? target.port, target.readyPath, options);
  throwIfCalledOff(options.signal);
  if (answer.status === undefined) return { ...found("unreachable", answer.detail), silent: true };
  if (isAbsent(answer.status)) {
    if (viaAdmin || target.readyPath !== DEFAULT_READY_PATH) {
      return found("ready_absent", answer.detail);
    }
    return await probeLegacy(runtime, target, options);
  }
  if (viaAdmin ? answer.status === 200 : isSuccess(answer.status)) {
    if (!viaAdmin) return found("ready", answer.detail);
    const health = await ask(runtime, target.port, target.healthPath, options);
    throwIfCalledOff(options.signal);
    if (health.status !== undefined && isSuccess(health.status)) {
      return found("ready", answer.detail);
    }
    const unhealthy = found("initializing", `public health: ${health.detail}`);
    return health.status === undefined ? { ...unhealthy, silent: true } : unhealthy;
  }
  if (answer.status === 503 && saysInitializing(answer.body)) {
    return found("initializing", answer.detail);
  }
  return found("not_ready", answer.detail);
}

/** True for 404, 405 and 501: the path is not known there. */
export function isAbsent(status: number): boolean {
  return status === 404 || status === 405 || status === 501;
}

/**
 * True when a 503 body says that the child is not draining and is still working towards readiness.
 * Missing fields count as false, so an object without any of them is initialising.
 */
export function saysInitializing(body: string | undefined): boolean {
  if (body === undefined) return false;
  try {
    const value: unknown = JSON.parse(body);
    if (typeof value !== "object" || value === null || Array.isArray(value)) return false;
    const fields = value as Record<string, unknown>;
    return fields.draining !== true && (fields.ready !== true || fields.storage_ready !== true);
  } catch {
    return false;
  }
}

export interface ReadyWaitOptions {
  readonly windowMs: number;
  readonly maxWindowMs: number;
  readonly intervalMs: number;
  readonly probeTimeoutMs: number;
  /** Passes in a row, against a lucky first answer. */
  readonly passes: number;
  readonly signal?: AbortSignal;
  /** Settles when the child's process is gone: that ends the wait at once. */
  readonly exited: Promise<unknown>;
  readonly onProbe?: (result: ProbeResult) => void;
}

/** A child that did not become ready, and why. */
export class NotReady extends Error {
  override readonly name = "NotReady";
  /** `exited`, or what the last probe found. */
  readonly class: ReadyClass | "exited";
  readonly waitedMs: number;
  constructor(lastClass: ReadyClass | "exited", waitedMs: number, message: string) {
    super(message);
    this.class = lastClass;
    this.waitedMs = waitedMs;
  }
}

/** Waits until the child is ready. Throws NotReady, or CalledOff when the signal is set. */
export async function waitReady(
  runtime: ProbeRuntime,
  target: ProbeTarget,
  options: ReadyWaitOptions,
): Promise<ProbeResult> {
  const clock: Clock = runtime.clock;
  const startMs = clock.monotonic();
  const limitMs = maxWindowMs(options.windowMs, options.maxWindowMs);
  const ends = new AbortController();
  const onAbort = (): void => ends.abort(options.signal?.reason);
  options.signal?.addEventListener("abort", onAbort, { once: true });
  if (options.signal?.aborted) onAbort();
  let exited = false;
  options.exited.then(() => {
    exited = true;
    ends.abort(new Error("the child's process ended"));
  });
  let passes = 0;
  try {
    for (;;) {
      const result = await orCalledOff(
        probe(runtime, target, {
          timeoutMs: options.probeTimeoutMs,
          readBody: true,
          signal: ends.signal,
        }),
        ends.signal,
      );
      options.onProbe?.(result);
      passes = result.class === "ready" ? passes + 1 : 0;
      if (passes >= options.passes) return result;
      const waitedMs = clock.monotonic() - startMs;
      const extends_ = mayExtend(result.class) || result.class === "ready";
      if (waitedMs >= (extends_ ? limitMs : options.windowMs)) {
        throw new NotReady(
          result.class,
          waitedMs,
          `not ready after ${Math.round(waitedMs)} ms: ${result.class} (${result.detail})`,
        );
      }
      await sleep(clock, options.intervalMs, ends.signal);
    }
  } catch (error) {
    if (error instanceof CalledOff && exited && !options.signal?.aborted) {
      const waitedMs = clock.monotonic() - startMs;
      throw new NotReady("exited", waitedMs, "the child's process ended before it was ready");
    }
    throw error;
  } finally {
    options.signal?.removeEventListener("abort", onAbort);
  }
}

interface Answer {
  readonly status?: number;
  readonly body?: string;
  readonly detail: string;
}

async function ask(
  runtime: ProbeRuntime,
  port: number,
  path: string,
  options: ProbeOptions,
): Promise<Answer> {
  try {
    return await childRequest(runtime, { port, path, timeoutMs: options.timeoutMs }, async (
      response,
    ) => {
      const wanted = options.readBody && response.status === 503;
      const body = wanted ? await readBounded(response, MAX_BODY_BYTES) : undefined;
      const answer = { status: response.status, detail: String(response.status) };
      return body === undefined ? answer : { ...answer, body };
    });
  } catch (error) {
    return { detail: messageOf(error) };
  }
}

async function probeLegacy(
  runtime: ProbeRuntime,
  target: ProbeTarget,
  options: ProbeOptions,
): Promise<ProbeResult> {
  const health = await ask(runtime, target.port, target.healthPath, options);
  throwIfCalledOff(options.signal);
  if (health.status !== undefined && isSuccess(health.status)) {
    return { class: "ready", detail: `health path ${health.status}`, legacy: true };
  }
  if (health.status !== undefined && !isAbsent(health.status)) {
    return found("ready_absent", `no readiness path, health path ${health.status}`);
  }
  try {
    const address = { kind: "tcp", host: "127.0.0.1", port: target.port } as const;
    const socket = await runtime.net.connect(address, { timeoutMs: options.timeoutMs });
    socket.handle({ data() {}, end() {}, drain() {}, close() {} });
    socket.destroy();
    return { class: "ready", detail: "accepts connections", legacy: true };
  } catch {
    return found("ready_absent", "no readiness path, no health path, no connection");
  }
}

function found(kind: ReadyClass, detail: string): ProbeResult {
  return { class: kind, detail, legacy: false };
}

function isSuccess(status: number): boolean {
  return status >= 200 && status < 300;
}
