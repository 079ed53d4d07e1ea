/**
 * How a service goes down, in the steps of the host's shutdown: nothing new, then drains, then
 * signals, then force. Every step goes over the set of all generations, so none is left behind.
 */

import type { ServiceContext } from "./context.ts";
import type { Drain } from "./drain.ts";
import type { Oracle } from "./oracle.ts";
import type { VersionWorker } from "./version_worker.ts";
import { settledWithin } from "./wait.ts";

const KILL_AGAIN_MS = 50;

export class WayDown {
  readonly #context: ServiceContext;
  readonly #workers: ReadonlyMap<string, VersionWorker>;
  readonly #oracle: Oracle;
  readonly #drains = new Set<Drain>();
  #begun = false;

  constructor(
    context: ServiceContext,
    workers: ReadonlyMap<string, VersionWorker>,
    oracle: Oracle,
  ) {
    this.#context = context;
    this.#workers = workers;
    this.#oracle = oracle;
  }

  /** True from the turn on in which nothing may be started any more. */
  get begun(): boolean {
    return this.#begun;
  }

  /** Exchanges that the drains on the way down had to cut. */
  get cut(): number {
    return [...this.#drains].reduce((sum, drain) => sum + drain.cutCount, 0);
  }

  /** Calls off whatever is being brought; resolves when what was started for it is reaped. */
  async quiesce(): Promise<void> {
    this.#begun = true;
    this.#oracle.stop();
    for (const worker of this.#workers.values()) worker.stop();
    const unpublished = [...this.#context.generations].filter((one) => one.role === "candidate");
    await Promise.all(unpublished.map((generation) => generation.ended));
  }

  async drain(deadlineMs: number): Promise<void> {
    this.#begun = true;
    await Promise.all(this.#beginDrains(deadlineMs).map((drain) => drain.idle));
  }

  async stop(deadlineMs: number): Promise<void> {
    this.#begun = true;
    const { clock } = this.#context.runtime;
    this.#beginDrains(clock.monotonic());
    const leftMs = Math.max(0, deadlineMs - clock.monotonic());
    const cancel = clock.after(leftMs, () => this.#killAll());
    await this.#allEnded();
    cancel();
  }

  async kill(): Promise<void> {
    void this.quiesce();
    // Again and again: one may just have been forked.
    while (this.#context.generations.size > 0) {
      this.#killAll();
      await settledWithin(this.#context.runtime.clock, this.#allEnded(), KILL_AGAIN_MS);
    }
  }

  /** All steps within one budget; the force signal goes straight to the last one. */
  async whole(options: { budgetMs: number; force?: AbortSignal }): Promise<void> {
    const { runtime, stopGraceMs } = this.#context;
    const deadlineMs = runtime.clock.monotonic() + options.budgetMs;
    const { force } = options;
    const forced = new Promise<void>((resolve) => {
      force?.addEventListener("abort", () => resolve(), { once: true });
      if (force?.aborted) resolve();
    });
    const orderly = async (): Promise<void> => {
      void this.quiesce();
      // The last part of the budget belongs to the children's own ends.
      await this.drain(Math.max(runtime.clock.monotonic(), deadlineMs - stopGraceMs));
      await this.stop(deadlineMs);
    };
    await Promise.race([orderly(), forced.then(() => this.kill())]);
  }

  #beginDrains(deadlineMs: number): Drain[] {
    const { generations, stopGraceMs } = this.#context;
    const drains: Drain[] = [];
    for (const worker of this.#workers.values()) worker.withdrawAll();
    for (const generation of generations) {
      // What was not published yet is stopped by its rollout, which was called off.
      if (generation.role === "candidate") continue;
      const worker = this.#workers.get(generation.version);
      const drain = generation.drain ?? worker?.drain(generation, "shutdown");
      if (drain === undefined) continue;
      // Without routes nothing new can come: a child without a drain status needs no cushion now.
      drain.shorten(deadlineMs, stopGraceMs, true);
      drains.push(drain);
      this.#drains.add(drain);
    }
    return drains;
  }

  #killAll(): void {
    for (const generation of this.#context.generations) {
      if (generation.drain === undefined) generation.process?.force();
      else generation.drain.force();
    }
  }

  async #allEnded(): Promise<void> {
    const { generations } = this.#context;
    while (generations.size > 0) {
      await Promise.all([...generations].map((generation) => generation.ended));
    }
  }
}
