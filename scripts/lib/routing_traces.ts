/**
 * Traces for the routing bench: Mooncake's, read from a folder, or one made up here with the same
 * fields, for machines that do not have them.
 */

import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import type { TraceRow } from "./routing_model.ts";

/** Reads a trace; undefined if the folder does not have it. */
export function readTrace(folder: string, name: string): TraceRow[] | undefined {
  const path = join(folder, `mooncake_${name}_trace.jsonl`);
  if (!existsSync(path)) return undefined;
  return readFileSync(path, "utf8").trim().split("\n").map((line) => JSON.parse(line) as TraceRow);
}

/**
 * Conversations of a few turns over a few system prompts, arriving at random: each turn repeats what
 * came before and adds to it.
 */
export function madeUpTrace(requests = 4_000): TraceRow[] {
  let state = 2026;
  const random = () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
  let nextBlock = 1_000;
  const talks: number[][] = [];
  const rows: TraceRow[] = [];
  let timestamp = 0;
  for (let i = 0; i < requests; i++) {
    timestamp += -Math.log(1 - random()) * 250;
    const at = Math.floor(random() * 60);
    let talk = talks[at];
    if (talk === undefined || talk.length > 120 || random() < 0.1) {
      const system = Math.floor(random() * 5);
      talk = Array.from({ length: 4 + 2 * system }, (_, block) => 20 * system + block);
    }
    const fresh = Array.from({ length: 1 + Math.floor(random() * 12) }, () => nextBlock++);
    talks[at] = talk = [...talk, ...fresh];
    rows.push({
      timestamp: Math.round(timestamp),
      input_length: talk.length * 512 - Math.floor(random() * 511),
      output_length: 50 + Math.floor(random() * 500),
      hash_ids: talk,
    });
  }
  return rows;
}
