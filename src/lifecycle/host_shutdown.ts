/**
 * How a host goes down: one absolute deadline, and everything it owes in an order that cuts nothing
 * as long as there is time (rolling-updates.md 2.9).
 *
 * 1. readiness fails, requests are still taken (announce);  2. meanwhile no part starts anything new;
 * 3. admission closes;  4. what was accepted finishes;  5. children are drained, then stopped;
 * 6. listeners close.  At the deadline, or when forced, what is left is cut; children are still
 * waited for until they are reaped.
 */

import type { Log } from "../observe/log.ts";
import type { Clock } from "../runtime/runtime.ts";
import type { Lifecycle } from "./lifecycle.ts";

/** Something with a life of its own inside the host, such as a service with child processes. */
export interface ShutdownPart {
  readonly name: string;
  /** Nothing new is begun from now on; resolves when what was being begun has unwound. */
  quiesce(): Promise<void>;
  /** Withdraws its routes and lets its work finish. `deadlineMs` is monotonic. */
  drain(deadlineMs: number): Promise<void>;
  /** Stops what it runs (politely until `deadlineMs`); resolves when all of it is reaped. */
  stop(deadlineMs: number): Promise<void>;
  /** Ends what it runs now; resolves when all of it is reaped. */
  kill(): Promise<void>;
  /** Exchanges that broke off because what it ran was stopped in the middle of them. */
  readonly cut?: () => number;
}

/** What the host itself listens with. */
export interface ShutdownListeners {
  /** Stops accepting; resolves when the last answer has left. */
  close(): Promise<void>;
  /** Cuts what is left. */
  destroy(): Promise<void>;
}

export interface HostShutdownOptions {
  readonly lifecycle: Lifecycle;
  readonly clock: Clock;
  readonly log: Log;
  readonly parts: readonly ShutdownPart[];
  readonly listeners: ShutdownListeners;
  /** From the signal to the end. */
  readonly budgetMs: number;
  /** The last part of the budget, kept for stopping children. */
  readonly childGraceMs: number;
}

export interface ShutdownReport {
  /** Exchanges that were still open when the time was over, or whose child was stopped before. */
  readonly cut: number;
  readonly forced: boolean;
  readonly tookMs: number;
}

/** Of the time that is left, how long parts may take to unwind before the drain goes on anyway. */
export function unwindAllowanceMs(remainingMs: number): number {
  return Math.max(0, Math.min(Math.floor(remainingMs / 10), 5_000));
}

/** Runs the whole shutdown. Never rejects: a part that fails is logged, and the others go on. */
export async function shutDownHost(options: HostShutdownOptions): Promise<ShutdownReport> {
  const { lifecycle, clock, log, parts, listeners } = options;
  const started = clock.monotonic();
  const deadline = started + options.budgetMs;
  const drainUntil = Math.max(started, deadline - options.childGraceMs);
  const each = (step: string, act: (part: ShutdownPart) => Promise<void>): Promise<void> =>
    Promise.all(parts.map((part) => guarded(log, step, part.name, () => act(part)))).then(() => {});
  const wait = (work: Promise<unknown>, until: number): Promise<Outcome> =>
    waitFor(clock, work, until, lifecycle.forced);

  lifecycle.beginDrain();
  const unwound = each("quiesce", (part) => part.quiesce());
  await wait(lifecycle.closed(), deadline);
  await wait(unwound, clock.monotonic() + unwindAllowanceMs(drainUntil - clock.monotonic()));
  const requests = await wait(lifecycle.idle(), drainUntil);
  if (requests === "done") await wait(each("drain", (part) => part.drain(drainUntil)), drainUntil);

  lifecycle.stopping();
  const stopped = each("stop", (part) => part.stop(deadline));
  const closed = guarded(log, "close", "listeners", () => listeners.close());
  const ended = await wait(Promise.all([stopped, closed]), deadline);
  const left = lifecycle.inflight;
  const cut = parts.reduce((sum, part) => sum + (part.cut?.() ?? 0), left);
  const forced = ended !== "done" || left > 0;
  if (forced) {
    lifecycle.force();
    const killed = each("kill", (part) => part.kill());
    await guarded(log, "destroy", "listeners", () => listeners.destroy());
    await Promise.all([killed, stopped]);
  }
  lifecycle.stopped();
  const report = { cut, forced, tookMs: Math.round(clock.monotonic() - started) };
  log.info("host_stopped", { ...report });
  return report;
}

type Outcome = "done" | "deadline" | "forced";

/** Waits for the work, until the time, or until the host is forced: whichever is first. */
async function waitFor(
  clock: Clock,
  work: Promise<unknown>,
  untilMs: number,
  forced: AbortSignal,
): Promise<Outcome> {
  if (forced.aborted) return "forced";
  const done = work.then((): Outcome => "done");
  let release = (): void => {};
  const given = new Promise<Outcome>((resolve) => {
    const onForce = (): void => resolve("forced");
    forced.addEventListener("abort", onForce, { once: true });
    const cancel = clock.after(
      Math.max(0, untilMs - clock.monotonic()),
      () => resolve("deadline"),
    );
    release = () => {
      cancel();
      forced.removeEventListener("abort", onForce);
    };
  });
  try {
    return await Promise.race([done, given]);
  } finally {
    release();
  }
}

async function guarded(
  log: Log,
  step: string,
  part: string,
  act: () => Promise<void>,
): Promise<void> {
  try {
    await act();
  } catch (error) {
    log.error("shutdown_step_failed", { step, part, error });
  }
}
