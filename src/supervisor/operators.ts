/**
 * The operators' hand on one version. Each call is decided from what is known now, kept on disk, and
 * then left to the version's worker; what cannot be is refused with `conflict` and the reason.
 */

import { BatonError } from "../errors.ts";
import type { ServiceContext } from "./context.ts";
import type { VersionWorker } from "./version_worker.ts";

export interface OperatorOptions {
  /** Which build; absent = the one that the verb is about anyway. */
  readonly sha256?: string;
  /** For people: kept with the decision. */
  readonly reason?: string;
  /** Requests are held too, and not only roll-outs. */
  readonly traffic?: boolean;
}

/** Each verb with the options that mean something to it. */
export const VERB_OPTIONS = {
  pause: ["reason", "traffic"],
  resume: ["reason"],
  pin: ["sha256", "reason"],
  unpin: ["reason"],
  rollback: ["sha256", "reason"],
  promote: ["reason"],
  deny: ["sha256", "reason"],
  allow: ["sha256", "reason"],
  restart: ["reason"],
} as const satisfies Readonly<Record<string, readonly (keyof OperatorOptions)[]>>;

export type OperatorVerb = keyof typeof VERB_OPTIONS;
export const VERBS = Object.keys(VERB_OPTIONS) as readonly OperatorVerb[];

/** Where a call's decision is kept; it is durable when each of them has been written. */
const KEPT_IN: Readonly<Record<OperatorVerb, readonly ("memory" | "quarantine")[]>> = {
  pause: ["memory"],
  resume: ["memory"],
  pin: ["memory"],
  unpin: ["memory"],
  rollback: ["memory", "quarantine"],
  promote: [],
  deny: ["memory", "quarantine"],
  allow: ["memory", "quarantine"],
  restart: [],
};

const NOT_SAVED = "in effect, but not saved: the disk refuses it, and a restart would forget it";

/**
 * Carries the call out; resolves, when that was written, with what changed. What a full disk refuses
 * is in effect all the same (an operator may need it just then), and the result says `saved: false`;
 * it is written once that can be. Throws BatonError.
 */
export async function operate(
  context: ServiceContext,
  worker: VersionWorker,
  verb: OperatorVerb,
  options: OperatorOptions,
): Promise<Record<string, unknown>> {
  if (!context.mayStart()) throw refused("the service is going down");
  if (!worker.known) throw refused(`${worker.name} was withdrawn and is draining`);
  const changed = await ACTIONS[verb](context, worker, options);
  const saved = KEPT_IN[verb].every((store) => context[store].saved);
  const result = saved ? changed : { ...changed, saved, warning: NOT_SAVED };
  context.reports.tell("info", "operator_called", worker.name, { verb, ...options, ...result });
  worker.reconsider();
  return result;
}

type Action = (
  context: ServiceContext,
  worker: VersionWorker,
  options: OperatorOptions,
) => Promise<Record<string, unknown>>;

const ACTIONS: Readonly<Record<OperatorVerb, Action>> = {
  async pause(context, worker, options) {
    await context.memory.update(worker.name, {
      paused: true,
      ...(options.traffic === true ? { trafficPaused: true } : {}),
      ...noted(context, options),
    });
    return { paused: true, traffic: context.memory.of(worker.name).trafficPaused === true };
  },

  async resume(context, worker, options) {
    await context.memory.update(worker.name, {
      paused: undefined,
      trafficPaused: undefined,
      ...noted(context, options),
    });
    context.holds.release(worker.name);
    return { paused: false };
  },

  async pin(context, worker, options) {
    const sha256 = options.sha256 ?? worker.current?.build.sha256;
    if (sha256 === undefined) throw refused("nothing serves: say which build to pin");
    if (worker.overrideIdentity !== undefined) throw refused("an override runs");
    await requireRunnable(context, worker, sha256);
    await context.memory.update(worker.name, { pinned: sha256, ...noted(context, options) });
    return { pinned: sha256 };
  },

  async unpin(context, worker, options) {
    if (context.memory.of(worker.name).pinned === undefined) throw refused("nothing is pinned");
    await context.memory.update(worker.name, { pinned: undefined, ...noted(context, options) });
    return { pinned: null };
  },

  async rollback(context, worker, options) {
    if (worker.overrideIdentity !== undefined) throw refused("an override runs");
    const canary = worker.canary?.build.sha256;
    if (canary !== undefined) {
      await context.quarantine.deny(worker.name, canary, options.reason ?? "rolled back");
      worker.dropCanary("rolled back");
      return { from: canary, to: worker.current?.build.sha256 };
    }
    const from = worker.current?.build.sha256 ?? worker.desired?.sha256;
    const to = options.sha256 ?? await worker.rollbackTarget();
    if (to === undefined) throw refused("no earlier build is installed");
    if (to === from) throw refused("that build serves already");
    if (!(await context.builds.installed(worker.name)).includes(to)) {
      throw refused(`${to} is not installed`);
    }
    await requireRunnable(context, worker, to);
    await context.memory.update(worker.name, {
      pinned: undefined,
      rolledBackFrom: worker.desired?.sha256 ?? from,
      rolledBackTo: to,
      ...noted(context, options),
    });
    return { from, to };
  },

  async promote(_context, worker) {
    if (!worker.promote()) throw refused("there is no canary");
    return await Promise.resolve({ promoted: worker.current?.build.sha256 });
  },

  async deny(context, worker, options) {
    const sha256 = options.sha256 ?? worker.desired?.sha256;
    if (sha256 === undefined) throw refused("say which build to deny");
    if (context.memory.of(worker.name).pinned === sha256) throw refused("that build is pinned");
    const serving = worker.current?.build.sha256;
    if (serving === sha256 && await worker.rollbackTarget() === undefined) {
      throw refused("that build serves and no other is installed");
    }
    const to = serving === sha256 ? await worker.rollbackTarget() : undefined;
    await context.quarantine.deny(worker.name, sha256, options.reason ?? "denied by an operator");
    if (to !== undefined) {
      await context.memory.update(worker.name, {
        rolledBackFrom: worker.desired?.sha256,
        rolledBackTo: to,
        ...noted(context, options),
      });
    }
    return { denied: sha256 };
  },

  async allow(context, worker, options) {
    const { rolledBackFrom } = context.memory.of(worker.name);
    const found = await context.quarantine.allow(worker.name, options.sha256);
    const wasRolledBack = rolledBackFrom !== undefined &&
      (options.sha256 ?? rolledBackFrom) === rolledBackFrom;
    if (!found && !wasRolledBack) throw refused("no such build is denied or quarantined");
    if (wasRolledBack) {
      await context.memory.update(worker.name, {
        rolledBackFrom: undefined,
        rolledBackTo: undefined,
        ...noted(context, options),
      });
    }
    return { allowed: options.sha256 ?? "all" };
  },

  async restart(_context, worker, options) {
    if (worker.current === undefined) throw refused("nothing serves");
    worker.restart(options.reason ?? "restarted by an operator");
    return await Promise.resolve({ restarting: worker.current?.number });
  },
};

async function requireRunnable(
  context: ServiceContext,
  worker: VersionWorker,
  sha256: string,
): Promise<void> {
  const blocked = context.quarantine.blocks(worker.name, sha256);
  if (blocked !== undefined) {
    throw refused(`that build is ${blocked.class === "denied" ? "denied" : "quarantined"}`, {
      class: blocked.class,
      cause: blocked.message,
    });
  }
  const known = worker.desired?.sha256 === sha256 || worker.current?.build.sha256 === sha256 ||
    (await context.builds.installed(worker.name)).includes(sha256);
  if (!known) throw refused(`${sha256} is neither listed nor installed`);
}

function noted(context: ServiceContext, options: OperatorOptions) {
  return { since: context.runtime.clock.now(), reason: options.reason };
}

function refused(message: string, detail: Record<string, unknown> = {}): BatonError {
  return new BatonError("conflict", message, { detail });
}
