/**
 * Brings the build that served back after a crash, while the rollout of another build, which may take
 * long, goes on: a version must not be down for the length of a download. Whichever of the two is
 * ready first serves; a rescue that comes second is called off.
 */

import { messageOf } from "../errors.ts";
import type { Attempts } from "./attempts.ts";
import type { ServiceContext } from "./context.ts";
import { RolloutFailure } from "./failure.ts";
import type { Generation } from "./generation.ts";
import { Rollout, type RolloutOptions } from "./rollout.ts";
import { CalledOff } from "./wait.ts";

export interface RescueOptions {
  readonly context: ServiceContext;
  readonly version: string;
  readonly attempts: Attempts;
  readonly install: (sha256: string) => RolloutOptions["install"];
  readonly onMove: RolloutOptions["onMove"];
  /** True while nothing serves and that build may be brought back beside what is being brought. */
  readonly isWanted: (sha256: string) => boolean;
  readonly switchTo: (generation: Generation) => void;
  /** It has ended, one way or the other. */
  readonly ended: () => void;
}

export class Rescue {
  readonly #options: RescueOptions;
  #rollout: Rollout | undefined;
  #cancelTimer: (() => void) | undefined;

  constructor(options: RescueOptions) {
    this.#options = options;
  }

  /** The build that is being brought back, if one is. */
  get sha256(): string | undefined {
    return this.#rollout?.sha256;
  }

  /** Begins once the version's back-off is over, if it is still wanted then. */
  plan(sha256: string): void {
    const { context, attempts } = this.#options;
    this.#cancelTimer?.();
    this.#cancelTimer = context.runtime.clock.after(
      attempts.waitMs,
      () => void this.#run(sha256),
    );
  }

  /** Calls it off; also what was only planned. */
  callOff(reason: string): void {
    this.#cancelTimer?.();
    this.#rollout?.callOff(reason);
  }

  async #run(sha256: string): Promise<void> {
    const { context, version, attempts, isWanted } = this.#options;
    if (this.#rollout !== undefined || !isWanted(sha256)) return;
    const rollout = new Rollout({
      context,
      version,
      sha256,
      reason: "restart",
      install: this.#options.install(sha256),
      staggerMs: 0,
      clearTheWay: () => Promise.resolve(),
      onReady: (generation) => {
        if (!isWanted(sha256)) throw new CalledOff("another generation serves");
        this.#rollout = undefined;
        this.#options.switchTo(generation);
      },
      readyWindowMs: attempts.windowMs,
      serving: () => undefined,
      onMove: this.#options.onMove,
    });
    this.#rollout = rollout;
    context.reports.tell("info", "rollout_started", version, { sha256, reason: rollout.reason });
    try {
      await rollout.run();
    } catch (error) {
      if (!(error instanceof CalledOff)) {
        const retryInMs = attempts.backOff();
        const failureClass = error instanceof RolloutFailure ? error.class : "transient";
        context.reports.failed(version, failureClass, {
          sha256,
          error: messageOf(error),
          retryInMs,
        });
        this.plan(sha256);
      }
    }
    if (this.#rollout === rollout) this.#rollout = undefined;
    this.#options.ended();
  }
}
