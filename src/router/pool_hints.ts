/**
 * What a pool tells a replica that recovers from this one, beside the index: how busy its workers
 * are, and where sessions are bound. And what it takes of a peer that tells.
 *
 * Hints come from outside. One that names a worker that we do not have, or says what cannot be, is
 * left out by itself; what is taken fades (inherited_load.ts) or is a preference (affinity.ts).
 */

import * as v from "valibot";
import { MAX_SESSION_BYTES, type SessionAffinity } from "./affinity.ts";
import type { WorkerRank } from "./choice.ts";
import type { InheritedLoad } from "./inherited_load.ts";
import type { LoadBook } from "./load.ts";
import type { PoolMembers } from "./pool_members.ts";

export interface PoolHintsOptions {
  readonly model: string;
  readonly group: string;
  readonly members: Pick<PoolMembers, "get">;
  readonly load: LoadBook;
  readonly inherited: InheritedLoad;
  readonly sessions: SessionAffinity;
}

/** More than any worker can have in progress: whoever says so is wrong. */
const MAX_PREFILL_TOKENS = 16_777_216;
const MAX_DECODE_BLOCKS = 16_777_216;
const MAX_REQUESTS = 65_536;
const MAX_SESSION_TTL_MS = 366 * 86_400_000;
/** Sessions in one record, so that its text stays under the 64 KiB that a record may have. */
const SESSIONS_PER_RECORD = 32;
/** Sessions that travel at most, the latest ones. */
export const MAX_SESSIONS_TOLD = 16_384;

const rank = {
  worker: v.pipe(v.string(), v.maxLength(1024)),
  dpRank: v.pipe(v.number(), v.integer(), v.minValue(0), v.maxValue(65_535)),
};
const amount = (most: number) => v.pipe(v.number(), v.finite(), v.minValue(0), v.maxValue(most));

const loadSchema = v.object({
  hint: v.literal("load"),
  model: v.string(),
  group: v.string(),
  ...rank,
  prefillTokens: amount(MAX_PREFILL_TOKENS),
  decodeBlocks: amount(MAX_DECODE_BLOCKS),
  requests: amount(MAX_REQUESTS),
});

const sessionSchema = v.object({
  session: v.pipe(v.string(), v.nonEmpty(), v.maxBytes(MAX_SESSION_BYTES)),
  ...rank,
  ttlMs: v.pipe(v.number(), v.finite(), v.minValue(1), v.maxValue(MAX_SESSION_TTL_MS)),
});

const sessionsSchema = v.object({
  hint: v.literal("sessions"),
  model: v.string(),
  group: v.string(),
  sessions: v.pipe(v.array(v.unknown()), v.maxLength(SESSIONS_PER_RECORD)),
});

export interface PoolHints {
  /** Own bookings as totals for each rank, then sessions with the time that they stay bound. */
  tell(): Iterable<unknown>;
  /** Takes those of a peer's hints that are about this pool; how many loads and sessions it were. */
  take(records: readonly unknown[]): { readonly loads: number; readonly sessions: number };
}

export function createPoolHints(options: PoolHintsOptions): PoolHints {
  const { model, group, members, load, inherited, sessions } = options;
  const isKnown = ({ worker, dpRank }: WorkerRank): boolean =>
    members.get(worker)?.dpRank === dpRank;
  const isOurs = (hint: { readonly model: string; readonly group: string }): boolean =>
    hint.model === model && hint.group === group;

  const takeSessions = (rows: readonly unknown[]): number => {
    let taken = 0;
    for (const row of rows) {
      if (!v.is(sessionSchema, row) || !isKnown(row)) continue;
      const { session, worker, dpRank, ttlMs } = row;
      if (sessions.restore(session, { worker, dpRank }, ttlMs)) taken += 1;
    }
    return taken;
  };

  return {
    *tell() {
      for (const of of [...load.loads()]) yield { hint: "load", model, group, ...of };
      const rows = sessions.bindings(MAX_SESSIONS_TOLD);
      for (let at = 0; at < rows.length; at += SESSIONS_PER_RECORD) {
        const some = rows.slice(at, at + SESSIONS_PER_RECORD);
        yield { hint: "sessions", model, group, sessions: some };
      }
    },
    take(records) {
      const taken = { loads: 0, sessions: 0 };
      for (const hint of records) {
        if (v.is(loadSchema, hint)) {
          if (!isOurs(hint) || !isKnown(hint)) continue;
          const { worker, dpRank, prefillTokens, decodeBlocks, requests } = hint;
          inherited.tell({ worker, dpRank }, { prefillTokens, decodeBlocks, requests });
          taken.loads += 1;
        } else if (v.is(sessionsSchema, hint) && isOurs(hint)) {
          taken.sessions += takeSessions(hint.sessions);
        }
      }
      return taken;
    },
  };
}
