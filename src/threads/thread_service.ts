/**
 * A service inside a thread of the data path: what the table says is done here and now, everything
 * else is asked of the main thread.
 */

import type { Exchange, Forward, ForwardOutcome } from "../proxy/exchange.ts";
import { pathGuard, segmentBehind, stripMount } from "../proxy/path.ts";
import type { Service } from "../proxy/routes.ts";
import type { Lease } from "../proxy/target.ts";
import { upstreamFailure } from "../proxy/upstream_failure.ts";
import type { Clock } from "../runtime/runtime.ts";
import type { AskedExchanges } from "./asked.ts";
import type { SharedService } from "./messages.ts";
import type { Replicas } from "./replicas.ts";

export interface ThreadServiceOptions {
  readonly shared: SharedService;
  readonly clock: Pick<Clock, "monotonic">;
  readonly replicas: Replicas;
  readonly asked: AskedExchanges;
}

export class ThreadService implements Service {
  readonly name: string;
  readonly mounts: readonly string[];
  readonly #options: ThreadServiceOptions;
  readonly #isHidden: (target: string) => boolean;

  constructor(options: ThreadServiceOptions) {
    this.#options = options;
    this.name = options.shared.name;
    this.mounts = options.shared.mounts;
    this.#isHidden = pathGuard(options.shared.hidden);
  }

  /** Only the main thread knows what a request may hope for. */
  startHoldMs({ path }: Pick<Exchange, "path">): Promise<number> {
    return this.#options.asked.mayWait(path);
  }

  handle(exchange: Exchange, forward: Forward, mount: string): Promise<void> {
    const { shared, asked } = this.#options;
    const version = shared.byVersion ? segmentBehind(exchange.path, mount) : "";
    const prefix = version === "" ? "/" : mount === "/" ? `/${version}` : `${mount}/${version}`;
    const target = stripMount(exchange.target, prefix);
    const isMovable = target !== undefined && !this.#isHidden(target);
    const lease = isMovable ? this.#claim(exchange, version) : undefined;
    if (lease === undefined || target === undefined) return asked.ask(exchange, forward);
    return this.#move(
      exchange,
      forward,
      () => forward(exchange, lease, shared.byVersion ? { target, returnFailure: true } : {}),
    );
  }

  #claim(exchange: Exchange, version: string): Lease | undefined {
    const { replicas, clock } = this.#options;
    return replicas.direct(this.name, version)?.claim(exchange.requestId, clock.monotonic());
  }

  async #move(
    exchange: Exchange,
    forward: Forward,
    move: () => Promise<ForwardOutcome>,
  ): Promise<void> {
    const outcome = await move();
    if (!this.#options.shared.byVersion) return;
    if (outcome.result !== "upstream_failed" || exchange.finished || exchange.answered) return;
    // Nothing of it was sent: whoever decides for the version says where it goes now.
    if (outcome.retriable) return this.#options.asked.ask(exchange, forward);
    throw upstreamFailure(outcome.reason, "the version's process");
  }
}
