/**
 * How long a child that serves may be in trouble before another process takes its place.
 *
 * Silence and "not ready" are two things. A child that answers no probe at all hangs, or has lost its
 * listener; one that answers "not ready" is alive and says so, often since something that it needs is
 * away, and then a new process would say the same.
 */

import type { VersionsConfig } from "../config/versions.ts";
import type { ProbeResult } from "./readiness.ts";

type Limits = Pick<VersionsConfig, "silentRestartMs" | "unreadyRestartMs">;

export class Patience {
  readonly #limits: Limits;
  #silentSinceMs: number | undefined;
  #unreadySinceMs: number | undefined;

  constructor(limits: Limits) {
    this.#limits = limits;
  }

  /** Takes a probe's answer; says why the child is to be replaced, once each time a limit is over. */
  probed(result: Pick<ProbeResult, "class" | "silent">, nowMs: number): string | undefined {
    if (result.class === "ready") {
      this.#silentSinceMs = undefined;
      this.#unreadySinceMs = undefined;
      return undefined;
    }
    this.#unreadySinceMs ??= nowMs;
    if (result.silent === true) this.#silentSinceMs ??= nowMs;
    else this.#silentSinceMs = undefined;
    const { silentRestartMs, unreadyRestartMs } = this.#limits;
    if (isOver(this.#silentSinceMs, silentRestartMs, nowMs)) {
      return this.#spent(nowMs, `it answered no probe for ${silentRestartMs} ms`);
    }
    if (isOver(this.#unreadySinceMs, unreadyRestartMs, nowMs)) {
      return this.#spent(nowMs, `it was not ready for ${unreadyRestartMs} ms`);
    }
    return undefined;
  }

  /** The next limit counts from now: what replaces it may fail, and is then tried again. */
  #spent(nowMs: number, cause: string): string {
    if (this.#silentSinceMs !== undefined) this.#silentSinceMs = nowMs;
    this.#unreadySinceMs = nowMs;
    return cause;
  }
}

function isOver(sinceMs: number | undefined, limitMs: number, nowMs: number): boolean {
  return sinceMs !== undefined && limitMs > 0 && nowMs - sinceMs >= limitMs;
}
