/**
 * The traffic path of a versions service: the path's next segment names the version, the rest goes to
 * whichever of its generations serves.
 *
 * A request for a version that is known but not serving waits, and then goes on to the generation
 * that is there by then. A request of which nothing was sent (its connection was refused) goes on to
 * wait in the same way, so a crash costs only the requests that were on the child.
 */

import { BatonError } from "../errors.ts";
import type { Exchange, Forward } from "../proxy/exchange.ts";
import { pathGuard, segmentBehind, stripMount } from "../proxy/path.ts";
import type { Service } from "../proxy/routes.ts";
import { heldBytes } from "../proxy/start_hold.ts";
import type { Target } from "../proxy/target.ts";
import { upstreamFailure } from "../proxy/upstream_failure.ts";
import type { Clock } from "../runtime/runtime.ts";
import type { HoldEnd, Holds } from "./hold.ts";
import type { Reports } from "./reports.ts";
import type { VersionWorker } from "./version_worker.ts";

export interface VersionsServiceOptions {
  readonly name: string;
  readonly mounts: readonly string[];
  /** Where children are asked to drain: nobody else may ask them. */
  readonly drainPaths: readonly string[];
  readonly clock: Clock;
  readonly holds: Holds;
  readonly reports: Reports;
  readonly worker: (version: string) => VersionWorker | undefined;
  /** How long a request may wait while nobody has said yet which versions there are. */
  readonly unheardHoldMs: () => number;
  /** False once the service is going down: nobody waits any more. */
  readonly mayHold: () => boolean;
}

/** Pauses before the next try at a generation that refused a connection; then it is given up. */
const CONNECT_PAUSES_MS = [10, 50, 150, 400];
const PROCESS = "the version's process";

export class VersionsService implements Service {
  readonly name: string;
  readonly mounts: readonly string[];
  readonly #options: VersionsServiceOptions;
  readonly #isDrain: (target: string) => boolean;

  constructor(options: VersionsServiceOptions) {
    this.#options = options;
    this.name = options.name;
    this.mounts = options.mounts;
    this.#isDrain = pathGuard(options.drainPaths);
  }

  /** Answers one exchange; the lease of a version that serves is taken in this turn. */
  handle(exchange: Exchange, forward: Forward, mount: string): void | Promise<void> {
    const version = segmentBehind(exchange.path, mount);
    if (version === "") {
      throw new BatonError("version_required", "the path must begin with a version");
    }
    const worker = this.#options.worker(version);
    if (worker === undefined || !worker.known) throw unknownVersion(version);
    const target = stripMount(exchange.target, prefixOf(mount, version));
    if (target === undefined) {
      throw new BatonError("bad_request", "the path does not spell its version plainly");
    }
    // A child without an admin listener has its drain on the port that clients reach.
    if (this.#isDrain(target)) {
      throw new BatonError("not_found", "there is nothing at this path");
    }
    return this.#serve(exchange, forward, worker, target);
  }

  /** How long a request may wait for the host to serve anything: what its version may hope for. */
  startHoldMs(exchange: Pick<Exchange, "path">, mount: string): number {
    const version = segmentBehind(exchange.path, mount);
    if (version === "") return 0;
    const worker = this.#options.worker(version);
    if (worker === undefined || !worker.known) return this.#options.unheardHoldMs();
    const outlook = worker.outlook();
    return outlook.kind === "soon" ? outlook.timeoutMs : 0;
  }

  async #serve(
    exchange: Exchange,
    forward: Forward,
    worker: VersionWorker,
    target: string,
  ): Promise<void> {
    const header = (name: string): string | undefined => exchange.header(name);
    let holdUntilMs: number | undefined;
    let refusedBy: Target | undefined;
    let refusals = 0;
    while (!exchange.finished) {
      const lease = worker.claim(exchange.requestId, header);
      if (lease === undefined) {
        holdUntilMs = await this.#hold(exchange, worker, holdUntilMs);
        continue;
      }
      const outcome = await forward(exchange, lease, { target, returnFailure: true });
      if (outcome.result !== "upstream_failed" || exchange.finished || exchange.answered) return;
      if (!outcome.retriable) throw upstreamFailure(outcome.reason, PROCESS);
      // Nothing of it was sent: it goes to this generation again, or to the one that comes after it.
      refusals = refusedBy === lease.target ? refusals + 1 : 1;
      refusedBy = lease.target;
      const pauseMs = CONNECT_PAUSES_MS[refusals - 1];
      if (pauseMs === undefined) throw upstreamFailure(outcome.reason, PROCESS);
      await new Promise<void>((resolve) => this.#options.clock.after(pauseMs, resolve));
    }
  }

  /**
   * Waits for the version. Returns until when the request may wait in all; throws the answer when it
   * may not, or not any longer.
   */
  async #hold(
    exchange: Exchange,
    worker: VersionWorker,
    untilMs: number | undefined,
  ): Promise<number> {
    const { clock, holds, reports, mayHold } = this.#options;
    if (!worker.known) throw unknownVersion(worker.name);
    if (!mayHold()) {
      throw new BatonError("draining", "this host is going down", { retryAfterS: 1 });
    }
    const outlook = worker.outlook();
    if (outlook.kind === "not_soon") throw notServing(worker.name, outlook);
    const nowMs = clock.monotonic();
    const until = untilMs ?? nowMs + outlook.timeoutMs;
    const end = await holds.wait({
      version: worker.name,
      bytes: heldBytes(exchange),
      timeoutMs: until - nowMs,
      onLeave: (listener) => exchange.onAbort(listener),
    });
    reports.held(worker.name, end);
    if (end !== "left") exchange.note({ heldMs: Math.round(clock.monotonic() - nowMs) });
    this.#throwUnlessReleased(end, worker);
    return until;
  }

  #throwUnlessReleased(end: HoldEnd, worker: VersionWorker): void {
    const { name } = worker;
    if (end === "timeout") {
      throw new BatonError("hold_timeout", `${name} did not become ready in time`, {
        detail: { version: name },
        retryAfterS: 1,
      });
    }
    if (end === "full") {
      throw new BatonError("overloaded", `too many requests wait for ${name}`, {
        detail: { version: name },
        retryAfterS: 1,
      });
    }
    // "hopeless", "left", "released": the caller looks again, and finds out which answer is due.
  }
}

function prefixOf(mount: string, version: string): string {
  return mount === "/" ? `/${version}` : `${mount}/${version}`;
}

function unknownVersion(version: string): BatonError {
  return new BatonError("unknown_version", `there is no version ${JSON.stringify(version)}`, {
    detail: { version },
  });
}

function notServing(
  version: string,
  outlook: { readonly retryAfterMs: number; readonly reason: string },
): BatonError {
  const retryAfterS = Math.min(60, Math.max(1, Math.ceil(outlook.retryAfterMs / 1000)));
  return new BatonError("not_ready", `${version} does not serve: ${outlook.reason}`, {
    detail: { version },
    retryAfterS,
  });
}
