/**
 * The wait for a new generation to be warm, while the old one still serves.
 *
 * The child tells by a field of its readiness body. Nothing here may hold a switch for no reason: a
 * child that has no such field, or no admin listener to ask, or whose predecessor has gone, is
 * switched to at once.
 */

import type { Runtime } from "../runtime/runtime.ts";
import { childRequest, readBounded } from "./child_http.ts";
import { sleep } from "./wait.ts";

export type WarmEnd = "warm" | "not_told" | "old_gone";

/** The child was still not warm when the time was over. */
export class NotWarm extends Error {
  override readonly name = "NotWarm";
}

export interface WarmOptions {
  /** Where the readiness body is asked for; undefined: the child cannot tell. */
  readonly port: number | undefined;
  readonly path: string;
  /** The name of the field; "" for no wait. */
  readonly field: string;
  readonly timeoutMs: number;
  readonly intervalMs: number;
  readonly probeTimeoutMs: number;
  /** False once the generation that serves meanwhile has ended. */
  readonly isOldAlive: () => boolean;
  readonly signal?: AbortSignal;
}

const MAX_BODY_BYTES = 65_536;

/** Waits until the switch may happen. Throws NotWarm at the timeout, CalledOff by the signal. */
export async function waitWarm(
  runtime: Pick<Runtime, "http" | "clock">,
  options: WarmOptions,
): Promise<WarmEnd> {
  if (options.field === "" || options.port === undefined) return "not_told";
  const endMs = runtime.clock.monotonic() + options.timeoutMs;
  for (;;) {
    const told = await ask(runtime, options.port, options);
    if (told === true) return "warm";
    if (told === undefined) return "not_told";
    if (!options.isOldAlive()) return "old_gone";
    if (runtime.clock.monotonic() >= endMs) {
      throw new NotWarm(`${options.field} was not true within ${options.timeoutMs} ms`);
    }
    await sleep(runtime.clock, options.intervalMs, options.signal);
  }
}

/** The field's value; undefined when the child does not tell. No answer counts as "not yet". */
async function ask(
  runtime: Pick<Runtime, "http" | "clock">,
  port: number,
  options: WarmOptions,
): Promise<boolean | undefined> {
  let body: string;
  try {
    const request = { port, path: options.path, timeoutMs: options.probeTimeoutMs };
    body = await childRequest(
      runtime,
      request,
      (response) => readBounded(response, MAX_BODY_BYTES),
    );
  } catch {
    return false;
  }
  try {
    const value: unknown = JSON.parse(body);
    if (typeof value !== "object" || value === null) return undefined;
    const field = (value as Record<string, unknown>)[options.field];
    return typeof field === "boolean" ? field : undefined;
  } catch {
    return undefined;
  }
}
