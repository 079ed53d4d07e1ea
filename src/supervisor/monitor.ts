/**
 * The live probe of one running child: is it still ready?
 *
 * It looks at the status only. Its end is awaited before anything that replaces the child acts, so
 * that no answer of a dead process is ever taken for one of its successor.
 */

import type { Runtime } from "../runtime/runtime.ts";
import { probe, type ProbeResult, type ProbeTarget } from "./readiness.ts";
import { CalledOff, sleep } from "./wait.ts";

export interface MonitorOptions {
  readonly intervalMs: number;
  readonly timeoutMs: number;
  /** Told of every answer, unless the monitor was stopped meanwhile. */
  readonly onResult: (ready: boolean, result: ProbeResult) => void;
}

export class Monitor {
  readonly #stop = new AbortController();
  readonly #ended: Promise<void>;

  constructor(
    runtime: Pick<Runtime, "http" | "net" | "clock">,
    target: ProbeTarget,
    options: MonitorOptions,
  ) {
    this.#ended = this.#run(runtime, target, options);
  }

  /** Ends the probing; resolves when no further answer can be reported. */
  stop(): Promise<void> {
    this.#stop.abort(new Error("the monitor was stopped"));
    return this.#ended;
  }

  async #run(
    runtime: Pick<Runtime, "http" | "net" | "clock">,
    target: ProbeTarget,
    options: MonitorOptions,
  ): Promise<void> {
    const signal = this.#stop.signal;
    try {
      for (;;) {
        await sleep(runtime.clock, options.intervalMs, signal);
        const result = await probe(runtime, target, {
          timeoutMs: options.timeoutMs,
          readBody: false,
          signal,
        });
        if (signal.aborted) return;
        options.onResult(result.class === "ready", result);
      }
    } catch (error) {
      if (!(error instanceof CalledOff)) throw error;
    }
  }
}
